//! `/dev/kfd` for the tests. Preloaded, this library acts as AMD's compute driver, as far as queues are concerned.
//!
//! Opening `/dev/kfd` returns a descriptor of an anonymous file; the driver's ioctls on it are handled here. The ring of a
//! queue begins with a [`Ring`], whose function the driver calls to stop or resume the queue.
//!
//! * `KFD_STANDIN_LOG`: a file that gets one line for each ioctl.
//! * `KFD_STANDIN_REFUSE`: `all` or `second`: which calls of `open` fail with EACCES.
//! * `KFD_STANDIN_PROCESSES=descriptors`: each call of `open` makes a process of its own, as the driver's secondary processes;
//!   its queues have ids of their own, and can be changed only through a descriptor from that call.
//! * `KFD_STANDIN_REFUSE_ONCE=stop ID` or `=resume ID`: the first such update of the queue with this id fails with EBUSY.
//! * `KFD_STANDIN_CWSR=0`: the machine that the stand-in for `ROCr` presents does not save running waves.
//! * `KFD_STANDIN_ROOT`: the directory that replaces `/` for the driver's files under `/sys`. Without it, and with
//!   `ROCR_STANDIN_DEVICE`, the topology of the machine that the stand-in for `ROCr` presents is written beside the
//!   simulated devices, and used.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_ulong, c_void};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

const DEVICE: &[u8] = b"/dev/kfd";
const MEMORY: &[u8] = b"/memfd:kfd (deleted)";

/// The header of a queue's ring.
#[repr(C)]
pub struct Ring {
    /// [`RING_MAGIC`].
    pub magic: u64,
    /// Called with the ring and the queue's percentage: 0 stops the queue.
    pub control: unsafe extern "C" fn(*const Ring, u32),
}

/// The first word of a [`Ring`].
pub const RING_MAGIC: u64 = u64::from_le_bytes(*b"kfd-ring");

/// A queue: its process, and its id there.
type QueueKey = (u64, u32);

/// The ring and the percentage of each queue.
static QUEUES: Mutex<BTreeMap<QueueKey, (u64, u32)>> = Mutex::new(BTreeMap::new());

/// What identifies the file of a descriptor: each call of `open` creates a file.
fn file_of(fd: c_int) -> u64 {
    // SAFETY: all zeros is a valid value of this plain struct.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is writable.
    if unsafe { libc::fstat(fd, &raw mut stat) } == 0 { stat.st_ino } else { 0 }
}

/// The driver's process of a descriptor.
fn process_of(fd: c_int) -> u64 {
    let has_several = std::env::var("KFD_STANDIN_PROCESSES").is_ok_and(|value| value == "descriptors");
    if has_several { file_of(fd) } else { 0 }
}

/// Whether a change of the percentage is the one that `KFD_STANDIN_REFUSE_ONCE` names.
fn is_refused(id: u32, from: u32, to: u32) -> bool {
    static HAS_REFUSED: AtomicBool = AtomicBool::new(false);
    let Ok(refused) = std::env::var("KFD_STANDIN_REFUSE_ONCE") else { return false };
    let change = match (from, to) {
        (0, 1..) => "resume",
        (1.., 0) => "stop",
        _ => return false,
    };
    refused == format!("{change} {id}") && !HAS_REFUSED.swap(true, Ordering::Relaxed)
}

fn log(line: std::fmt::Arguments<'_>) {
    let Some(path) = std::env::var_os("KFD_STANDIN_LOG") else { return };
    if let Ok(mut file) = std::fs::OpenOptions::new().create(true).append(true).open(path) {
        let _ = file.write_all(format!("{} {line}\n", std::process::id()).as_bytes());
    }
}

/// Functions of the C library. They are looked up when this library is loaded: later, a lookup may wait for a thread that
/// holds the loader's lock because it is inside a constructor, and which may wait for the calling thread.
static REAL: [(&CStr, AtomicPtr<c_void>); 5] = [
    (c"open", AtomicPtr::new(null_mut())),
    (c"open64", AtomicPtr::new(null_mut())),
    (c"fopen", AtomicPtr::new(null_mut())),
    (c"opendir", AtomicPtr::new(null_mut())),
    (c"ioctl", AtomicPtr::new(null_mut())),
];

#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_UP: extern "C" fn() = look_up;

extern "C" fn look_up() {
    for (name, _) in &REAL {
        let _ = find(name);
    }
}

fn find(name: &CStr) -> *mut c_void {
    let known = REAL.iter().find(|(known, _)| *known == name).map(|(_, function)| function);
    let found = known.map_or(null_mut(), |function| function.load(Ordering::Acquire));
    if !found.is_null() {
        return found;
    }
    // SAFETY: a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if let Some(function) = known {
        function.store(found, Ordering::Release);
    }
    found
}

fn next<F: Copy>(name: &CStr) -> F {
    let found = find(name);
    assert!(!found.is_null() && size_of::<F>() == size_of_val(&found), "libc has no such function");
    // SAFETY: the caller names libc's function together with its type.
    unsafe { std::mem::transmute_copy(&found) }
}

fn fail_with(errno: c_int) -> c_int {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = errno };
    -1
}

type Open = unsafe extern "C" fn(*const c_char, c_int, libc::mode_t) -> c_int;

fn open_file(path: *const c_char, flags: c_int, mode: libc::mode_t, real: &CStr) -> c_int {
    static OPENED: AtomicUsize = AtomicUsize::new(0);
    let real: Open = next(real);
    // SAFETY: the caller of `open` passes a C string.
    let name = unsafe { CStr::from_ptr(path) }.to_bytes();
    if name == DEVICE {
        let before = OPENED.fetch_add(1, Ordering::Relaxed);
        let denied = std::env::var("KFD_STANDIN_REFUSE").unwrap_or_default();
        if denied == "all" || (denied == "second" && before > 0) {
            return fail_with(libc::EACCES);
        }
        // SAFETY: a C string.
        return unsafe { libc::memfd_create(c"kfd".as_ptr(), libc::MFD_CLOEXEC) };
    }
    let replaced = replaced_path(name);
    let path = replaced.as_ref().map_or(path, |replaced| replaced.as_ptr());
    // SAFETY: the caller's arguments, with the path possibly replaced.
    unsafe { real(path, flags, mode) }
}

/// The path that replaces that of a driver's file.
fn replaced_path(name: &[u8]) -> Option<CString> {
    let directories = ["/sys/class/kfd/", "/sys/devices/virtual/kfd/", "/sys/module/amdgpu/"];
    let is_drivers = directories.iter().any(|directory| name.starts_with(directory.as_bytes()));
    if !is_drivers {
        return None;
    }
    let mut root = std::env::var_os("KFD_STANDIN_ROOT").or_else(generated_root)?;
    root.push(OsStr::from_bytes(name));
    CString::new(root.as_bytes()).ok()
}

/// The directory with the topology of the simulated machine, which is written on first use.
fn generated_root() -> Option<OsString> {
    static ROOT: OnceLock<Option<OsString>> = OnceLock::new();
    thread_local! {
        static IS_WRITING: Cell<bool> = const { Cell::new(false) };
    }
    if IS_WRITING.get() {
        return None;
    }
    ROOT.get_or_init(|| {
        let mut root = std::env::var_os("ROCR_STANDIN_DEVICE")?;
        root.push(".driver");
        IS_WRITING.set(true);
        let written = amd_machine::write_topology(&Path::new(&root).join("sys"), &amd_machine::gpu_nodes());
        IS_WRITING.set(false);
        written.ok().map(|()| root)
    })
    .clone()
}

type OpenStream = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE;

/// # Safety
/// The requirements of libc's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    let real: OpenStream = next(c"fopen");
    // SAFETY: the caller of `fopen` passes a C string.
    let replaced = replaced_path(unsafe { CStr::from_ptr(path) }.to_bytes());
    // SAFETY: the caller's arguments, with the path possibly replaced.
    unsafe { real(replaced.as_ref().map_or(path, |replaced| replaced.as_ptr()), mode) }
}

type OpenDirectory = unsafe extern "C" fn(*const c_char) -> *mut libc::DIR;

/// # Safety
/// The requirements of libc's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn opendir(path: *const c_char) -> *mut libc::DIR {
    let real: OpenDirectory = next(c"opendir");
    // SAFETY: as above.
    let replaced = replaced_path(unsafe { CStr::from_ptr(path) }.to_bytes());
    // SAFETY: as above.
    unsafe { real(replaced.as_ref().map_or(path, |replaced| replaced.as_ptr())) }
}

/// # Safety
/// The requirements of libc's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    open_file(path, flags, mode, c"open")
}

/// # Safety
/// The requirements of libc's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    open_file(path, flags, mode, c"open64")
}

type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;

/// # Safety
/// The requirements of libc's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let is_kfd = (request >> 8) & 0xff == c_ulong::from(b'K')
        && std::fs::read_link(format!("/proc/self/fd/{fd}"))
            .is_ok_and(|link| link.as_os_str().as_bytes() == MEMORY);
    if !is_kfd {
        let real: Ioctl = next(c"ioctl");
        // SAFETY: the caller's arguments.
        return unsafe { real(fd, request, argument) };
    }
    // SAFETY: the caller of `ioctl` passes as many bytes as the request encodes; each case below stays within its own.
    let word = |offset: usize| unsafe { argument.byte_add(offset).cast::<u32>() };
    // SAFETY: as above.
    let read = |offset: usize| unsafe { word(offset).read_unaligned() };
    let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    match (request & 0xff, (request >> 16) & 0x3fff) {
        // GET_VERSION
        (1, 8) => {
            // SAFETY: as above.
            unsafe { (word(0).write_unaligned(1), word(4).write_unaligned(17)) };
            0
        }
        // CREATE_QUEUE
        (2, 88 | 96) => {
            // SAFETY: as above.
            let ring = unsafe { argument.cast::<u64>().read_unaligned() };
            let process = process_of(fd);
            let ids = queues.keys().filter(|(its_process, _)| *its_process == process).map(|(_, id)| *id);
            let id = ids.max().map_or(0, |last| last + 1);
            queues.insert((process, id), (ring, read(44) & 0xff));
            // SAFETY: as above.
            unsafe { word(52).write_unaligned(id) };
            log(format_args!("create {id} on {}", read(36)));
            0
        }
        // DESTROY_QUEUE
        (3, 8) => match queues.remove(&(process_of(fd), read(0))) {
            Some(_) => {
                log(format_args!("destroy {}", read(0)));
                0
            }
            None => fail_with(libc::EINVAL),
        },
        // SET_CU_MASK: the compute units that a queue may use.
        (0x1a, 16) => {
            let (id, bits) = (read(0), read(4));
            // SAFETY: as above; the mask has `bits` bits.
            let words = unsafe {
                let words = argument.byte_add(8).cast::<*const u32>().read_unaligned();
                std::slice::from_raw_parts(words, usize::try_from(bits / 32).unwrap_or(0))
            };
            let used: u32 = words.iter().map(|word| word.count_ones()).sum();
            let is_own = queues.contains_key(&(process_of(fd), id));
            let is_valid = is_own && bits > 0 && bits.is_multiple_of(32) && used > 0;
            log(format_args!("mask {id} units {used} good {is_valid}"));
            if is_valid { 0 } else { fail_with(libc::EINVAL) }
        }
        // GET_CLOCK_COUNTERS: all zero. RUNTIME_ENABLE. CREATE_EVENT, DESTROY_EVENT, SET_EVENT, RESET_EVENT: accepted, but
        // no event is ever signalled.
        (5, 40) | (0x25, 16) | (8, 32) | (9..=0xb, 8) => 0,
        // WAIT_EVENTS: always times out.
        (0xc, 24) => {
            drop(queues);
            std::thread::sleep(std::time::Duration::from_millis(read(16).min(10).into()));
            // SAFETY: as above.
            unsafe { word(20).write_unaligned(1) };
            0
        }
        // GET_PROCESS_APERTURES_NEW: no GPU has any.
        (0x14, 16) => {
            // SAFETY: as above.
            unsafe { word(8).write_unaligned(0) };
            0
        }
        // UPDATE_QUEUE
        (7, 24) => {
            // SAFETY: as above.
            let ring = unsafe { argument.cast::<u64>().read_unaligned() };
            let (id, percentage, priority) = (read(8), read(16), read(20));
            let share = percentage & 0xff;
            let queue = queues.get_mut(&(process_of(fd), id)).filter(|(its_ring, _)| *its_ring == ring);
            let is_valid = queue.is_some() && share <= 100 && priority <= 15;
            if let Some((_, its_share)) = queue.filter(|_| is_valid) {
                if is_refused(id, *its_share, share) {
                    log(format_args!("update {id} to {share} refused"));
                    return fail_with(libc::EBUSY);
                }
                *its_share = share;
            }
            drop(queues);
            log(format_args!("update {id} share {share} priority {priority} good {is_valid}"));
            if !is_valid {
                return fail_with(libc::EINVAL);
            }
            let ring =
                usize::try_from(ring).map_or(std::ptr::null(), std::ptr::with_exposed_provenance::<Ring>);
            // SAFETY: the process that created the queue passed the ring, and keeps it until the queue is destroyed.
            unsafe {
                if (*ring).magic == RING_MAGIC {
                    ((*ring).control)(ring, share);
                }
            }
            0
        }
        _ => fail_with(libc::EINVAL),
    }
}

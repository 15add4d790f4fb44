//! What `/dev/kfd` is for the tests. To be preloaded: it answers for AMD's compute driver, as far as queues go.
//!
//! Opening `/dev/kfd` gives a descriptor without anything behind it; calls of the driver's letter on it are answered here. A
//! queue's ring begins with a [`Ring`], by which whoever made the queue is told that it is to stop or to go on.
//!
//! * `KFD_STANDIN_LOG`: a file that gets one line for each call.
//! * `KFD_STANDIN_REFUSE`: `all` or `second`: which openings are refused, as if without permission.
//! * `KFD_STANDIN_ROOT`: where the driver's files under `/sys` are looked for instead.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_ulong, c_void};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

const DEVICE: &[u8] = b"/dev/kfd";
const MEMORY: &[u8] = b"/memfd:kfd (deleted)";

/// What a queue's ring begins with.
#[repr(C)]
pub struct Ring {
    /// [`RING_MAGIC`].
    pub magic: u64,
    /// Called with the ring and the share of the queue that is to be active: 0 stops it.
    pub control: unsafe extern "C" fn(*const Ring, u32),
}

/// The first word of a [`Ring`].
pub const RING_MAGIC: u64 = u64::from_le_bytes(*b"kfd-ring");

static QUEUES: Mutex<BTreeMap<u32, u64>> = Mutex::new(BTreeMap::new());

fn log(line: std::fmt::Arguments<'_>) {
    let Some(path) = std::env::var_os("KFD_STANDIN_LOG") else { return };
    if let Ok(mut file) = std::fs::OpenOptions::new().create(true).append(true).open(path) {
        let _ = file.write_all(format!("{} {line}\n", std::process::id()).as_bytes());
    }
}

fn next<F: Copy>(name: &CStr) -> F {
    // SAFETY: a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    assert!(!found.is_null() && size_of::<F>() == size_of_val(&found), "libc has it");
    // SAFETY: whoever asks names libc's function by its type.
    unsafe { std::mem::transmute_copy(&found) }
}

fn refuse(errno: c_int) -> c_int {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = errno };
    -1
}

type Open = unsafe extern "C" fn(*const c_char, c_int, libc::mode_t) -> c_int;

fn opened(path: *const c_char, flags: c_int, mode: libc::mode_t, real: &CStr) -> c_int {
    static OPENED: AtomicUsize = AtomicUsize::new(0);
    let real: Open = next(real);
    // SAFETY: who opens a file passes a C string.
    let name = unsafe { CStr::from_ptr(path) }.to_bytes();
    if name == DEVICE {
        let before = OPENED.fetch_add(1, Ordering::Relaxed);
        let refused = std::env::var("KFD_STANDIN_REFUSE").unwrap_or_default();
        if refused == "all" || (refused == "second" && before > 0) {
            return refuse(libc::EACCES);
        }
        // SAFETY: a C string.
        return unsafe { libc::memfd_create(c"kfd".as_ptr(), libc::MFD_CLOEXEC) };
    }
    let moved = moved(name);
    let path = moved.as_ref().map_or(path, |moved| moved.as_ptr());
    // SAFETY: the caller's arguments, perhaps with another path.
    unsafe { real(path, flags, mode) }
}

/// Where a file of the driver's is looked for instead.
fn moved(name: &[u8]) -> Option<CString> {
    let places = ["/sys/class/kfd/", "/sys/devices/virtual/kfd/", "/sys/module/amdgpu/"];
    let of_the_driver = places.iter().any(|place| name.starts_with(place.as_bytes()));
    let mut root = std::env::var_os("KFD_STANDIN_ROOT").filter(|_| of_the_driver)?;
    root.push(OsStr::from_bytes(name));
    CString::new(root.as_bytes()).ok()
}

type OpenStream = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE;

/// # Safety
/// As libc's demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    let real: OpenStream = next(c"fopen");
    // SAFETY: who opens a file passes a C string.
    let moved = moved(unsafe { CStr::from_ptr(path) }.to_bytes());
    // SAFETY: the caller's arguments, perhaps with another path.
    unsafe { real(moved.as_ref().map_or(path, |moved| moved.as_ptr()), mode) }
}

type OpenDirectory = unsafe extern "C" fn(*const c_char) -> *mut libc::DIR;

/// # Safety
/// As libc's demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn opendir(path: *const c_char) -> *mut libc::DIR {
    let real: OpenDirectory = next(c"opendir");
    // SAFETY: as above.
    let moved = moved(unsafe { CStr::from_ptr(path) }.to_bytes());
    // SAFETY: as above.
    unsafe { real(moved.as_ref().map_or(path, |moved| moved.as_ptr())) }
}

/// # Safety
/// As libc's demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    opened(path, flags, mode, c"open")
}

/// # Safety
/// As libc's demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    opened(path, flags, mode, c"open64")
}

type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;

/// # Safety
/// As libc's demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let ours = (request >> 8) & 0xff == c_ulong::from(b'K')
        && std::fs::read_link(format!("/proc/self/fd/{fd}"))
            .is_ok_and(|link| link.as_os_str().as_bytes() == MEMORY);
    if !ours {
        let real: Ioctl = next(c"ioctl");
        // SAFETY: the caller's arguments.
        return unsafe { real(fd, request, argument) };
    }
    // SAFETY: who calls the driver passes as many bytes as the request says; each call below stays within its own.
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
            let id = queues.keys().next_back().map_or(0, |last| last + 1);
            queues.insert(id, ring);
            // SAFETY: as above.
            unsafe { word(52).write_unaligned(id) };
            log(format_args!("create {id} on {}", read(36)));
            0
        }
        // DESTROY_QUEUE
        (3, 8) => match queues.remove(&read(0)) {
            Some(_) => {
                log(format_args!("destroy {}", read(0)));
                0
            }
            None => refuse(libc::EINVAL),
        },
        // SET_CU_MASK: how many units a queue may use.
        (0x1a, 16) => {
            let (id, bits) = (read(0), read(4));
            // SAFETY: as above; the words are as many as is said.
            let words = unsafe {
                let words = argument.byte_add(8).cast::<*const u32>().read_unaligned();
                std::slice::from_raw_parts(words, usize::try_from(bits / 32).unwrap_or(0))
            };
            let used: u32 = words.iter().map(|word| word.count_ones()).sum();
            let good = queues.contains_key(&id) && bits > 0 && bits.is_multiple_of(32) && used > 0;
            log(format_args!("mask {id} units {used} good {good}"));
            if good { 0 } else { refuse(libc::EINVAL) }
        }
        // GET_CLOCK_COUNTERS: all stand still. RUNTIME_ENABLE. CREATE_EVENT, DESTROY_EVENT, SET_EVENT, RESET_EVENT: none
        // ever happens.
        (5, 40) | (0x25, 16) | (8, 32) | (9..=0xb, 8) => 0,
        // WAIT_EVENTS: the time is up before that.
        (0xc, 24) => {
            drop(queues);
            std::thread::sleep(std::time::Duration::from_millis(read(16).min(10).into()));
            // SAFETY: as above.
            unsafe { word(20).write_unaligned(1) };
            0
        }
        // GET_PROCESS_APERTURES_NEW: there is no GPU with any.
        (0x14, 16) => {
            // SAFETY: as above.
            unsafe { word(8).write_unaligned(0) };
            0
        }
        // UPDATE_QUEUE
        (7, 24) => {
            // SAFETY: as above.
            let ring = unsafe { argument.cast::<u64>().read_unaligned() };
            let (id, share, priority) = (read(8), read(16), read(20));
            let good = queues.get(&id) == Some(&ring) && share & 0xff <= 100 && priority <= 15;
            drop(queues);
            log(format_args!("update {id} share {} priority {priority} good {good}", share & 0xff));
            if !good {
                return refuse(libc::EINVAL);
            }
            let ring =
                usize::try_from(ring).map_or(std::ptr::null(), std::ptr::with_exposed_provenance::<Ring>);
            // SAFETY: whoever made the queue gave it, and keeps it until the queue is destroyed.
            unsafe {
                if (*ring).magic == RING_MAGIC {
                    ((*ring).control)(ring, share & 0xff);
                }
            }
            0
        }
        _ => refuse(libc::EINVAL),
    }
}

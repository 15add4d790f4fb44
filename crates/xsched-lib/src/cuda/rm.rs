//! Timeslices of the process's own channel groups, through the driver's resource manager.
//!
//! The GPU changes from one process to another when the slice of the one that runs has ended. With the shortest slice
//! for what may be interrupted and a long one for what may not, the important process takes the GPU from a running
//! kernel, and keeps it while it has something to run.
//!
//! The handles are learnt by watching the process's own calls; the calls are allowed to every process on its own
//! objects. A layout that we do not know is left alone.

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use xsched_core::{LevelCost, Nanos, Order};

/// `_IOWR('F', nr, size)` without the size.
const fn is_call(request: c_ulong, nr: c_ulong) -> bool {
    request & 0xffff == (('F' as c_ulong) << 8) | nr
}

const ALLOC: c_ulong = 0x2b;
const CONTROL: c_ulong = 0xc020_462a;
const CHANNEL_GROUP: u32 = 0xa06c;
const SET_TIMESLICE: u32 = 0xa06c_0103;

/// What the driver gives a context when it is made.
const USUAL_US: u64 = 2048;
/// For whom nobody may interrupt.
const LONG_US: u64 = 10_000;
/// For whom somebody may.
const SHORT_US: u64 = 1;

const MOST: usize = 32;

/// A compute channel group: the first of its parent, for the others are those of the copy engines.
struct Group {
    fd: AtomicI32,
    client: AtomicU32,
    parent: AtomicU32,
    handle: AtomicU32,
}

static GROUPS: [Group; MOST] = [const {
    Group {
        fd: AtomicI32::new(-1),
        client: AtomicU32::new(0),
        parent: AtomicU32::new(0),
        handle: AtomicU32::new(0),
    }
}; MOST];
static KNOWN: AtomicUsize = AtomicUsize::new(0);
static SLICE_US: Mutex<u64> = Mutex::new(USUAL_US);

/// Watches the resource manager's calls go by.
///
/// # Safety
/// The arguments and the answer of a call that the system has just answered.
pub(crate) unsafe fn watch_ioctl(fd: c_int, request: c_ulong, argument: *mut c_void, answer: c_int) {
    if answer == 0 && is_call(request, ALLOC) && !argument.is_null() {
        let size = usize::try_from((request >> 16) & 0x3fff).unwrap_or(0);
        // SAFETY: the kernel has just accepted `size` bytes at `argument`.
        unsafe { learn(fd, argument.cast(), size) };
    }
}

/// Takes note of a channel group that was made.
///
/// # Safety
/// `size` bytes at `words` can be read.
unsafe fn learn(fd: c_int, words: *const u32, size: usize) {
    // The status is the last word of the short form, and the eleventh of the long one.
    let status = match size {
        32 => 7,
        48 => 10,
        _ => return,
    };
    // SAFETY: by the caller's word; both forms are longer than what is read.
    let word = |n: usize| unsafe { words.add(n).read_unaligned() };
    let (root, parent, new, class) = (word(0), word(1), word(2), word(3));
    if class != CHANNEL_GROUP || word(status) != 0 {
        return;
    }
    let known = KNOWN.load(Ordering::Acquire).min(MOST);
    let of_parent = |group: &Group| {
        group.client.load(Ordering::Relaxed) == root && group.parent.load(Ordering::Relaxed) == parent
    };
    if known == MOST || GROUPS[..known].iter().any(of_parent) {
        return;
    }
    let group = &GROUPS[known];
    group.fd.store(fd, Ordering::Relaxed);
    group.client.store(root, Ordering::Relaxed);
    group.parent.store(parent, Ordering::Relaxed);
    group.handle.store(new, Ordering::Relaxed);
    // Two threads that make contexts at the same moment: one group is not known, which is what it was before.
    let _ = KNOWN.compare_exchange(known, known + 1, Ordering::AcqRel, Ordering::Relaxed);
}

/// Whether running kernels can be interrupted, or why not.
pub(crate) fn capability() -> Result<LevelCost, String> {
    if KNOWN.load(Ordering::Acquire) == 0 {
        return Err("no channel group was seen (is the library preloaded?)".to_owned());
    }
    Ok(LevelCost { preempt: Nanos::from_micros(200), restore: Nanos::from_micros(200) })
}

/// Gives the process the slices that go with an order.
pub(crate) fn follow(order: Order) {
    let wanted = match order {
        Order::Free => USUAL_US,
        Order::Watched => LONG_US,
        Order::Paced | Order::Hold => SHORT_US,
    };
    let mut slice = SLICE_US.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if *slice != wanted {
        let known = KNOWN.load(Ordering::Acquire).min(MOST);
        for group in &GROUPS[..known] {
            set_timeslice(group, wanted);
        }
        *slice = wanted;
    }
}

/// A control call, as the driver has it.
#[repr(C)]
struct Control {
    client: u32,
    object: u32,
    command: u32,
    flags: u32,
    parameters: u64,
    size: u32,
    status: u32,
}

const _: () = assert!(size_of::<Control>() == 32);

fn set_timeslice(group: &Group, us: u64) -> bool {
    let mut parameters = us;
    let mut control = Control {
        client: group.client.load(Ordering::Relaxed),
        object: group.handle.load(Ordering::Relaxed),
        command: SET_TIMESLICE,
        flags: 0,
        parameters: (&raw mut parameters) as u64,
        size: 8,
        status: u32::MAX,
    };
    let fd = group.fd.load(Ordering::Relaxed);
    // SAFETY: the driver reads and writes the 32 bytes of the control and the 8 of its parameters, both of which live
    // until it returns. A descriptor that was closed or reused since refuses a call of another kind.
    let answer = unsafe { crate::ioctl::real()(fd, CONTROL, (&raw mut control).cast()) };
    answer == 0 && control.status == 0
}

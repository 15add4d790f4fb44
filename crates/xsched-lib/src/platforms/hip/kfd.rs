//! Levels 2 and 3: the queues of this process, made inactive in the kernel's compute driver. It takes them off the hardware and
//! saves the waves that run; made active again, they go on where they were. A process may do so with its own queues.
//!
//! Their numbers are learnt by watching the process's own calls.

use std::ffi::{c_int, c_ulong, c_void};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use xsched_core::{DeviceId, LevelCost, Nanos};

/// What stopping and going on is expected to take; nobody has told us better.
pub(super) const COST: LevelCost =
    LevelCost { preempt: Nanos::from_micros(300), restore: Nanos::from_micros(300) };

/// `_IO*('K', nr, size)` without the size: `AMDKFD_IOC_*`.
const fn is_call(request: c_ulong, nr: c_ulong) -> bool {
    request & 0xffff == ANY_CALL | nr
}

const ANY_CALL: c_ulong = ('K' as c_ulong) << 8;
const CREATE: c_ulong = 2;
const DESTROY: c_ulong = 3;
const UPDATE: c_ulong = 7;
const UPDATE_QUEUE: c_ulong = 0x4018_4b07;
const MASK: c_ulong = 0x1a;
const SET_CU_MASK: c_ulong = 0x4010_4b1a;

/// Queues of these kinds run kernels; the others copy.
const COMPUTE: [u32; 2] = [0, 2];

/// The share of a queue that is active. Other bits of the word say other things, and are kept.
const ACTIVE: u32 = 100;
const SHARE_BITS: u32 = 0xff;

/// The most and the least important queue.
pub(super) const FIRST: u32 = 15;
pub(super) const LAST: u32 = 0;

const MOST: usize = 256;
const FREE: u8 = 0;
const CHANGING: u8 = 1;
const KNOWN: u8 = 2;

/// One queue of this process.
struct Queue {
    state: AtomicU8,
    id: AtomicU32,
    gpu: AtomicU32,
    ring: AtomicU64,
    ring_size: AtomicU32,
    share: AtomicU32,
    priority: AtomicU32,
    /// The program has chosen its compute units itself.
    masked: AtomicBool,
}

static QUEUES: [Queue; MOST] = [const {
    Queue {
        state: AtomicU8::new(FREE),
        id: AtomicU32::new(0),
        gpu: AtomicU32::new(0),
        ring: AtomicU64::new(0),
        ring_size: AtomicU32::new(0),
        share: AtomicU32::new(0),
        priority: AtomicU32::new(0),
        masked: AtomicBool::new(false),
    }
}; MOST];

/// A call to the driver has gone by: we are where we can see them.
static SEEN: AtomicBool = AtomicBool::new(false);

/// Watches the driver's calls go by.
///
/// # Safety
/// The arguments and the answer of a call that the system has just answered.
pub(crate) unsafe fn watch_ioctl(_fd: c_int, request: c_ulong, argument: *mut c_void, answer: c_int) {
    if request & 0xff00 != ANY_CALL || answer != 0 || argument.is_null() {
        return;
    }
    let size = usize::try_from((request >> 16) & 0x3fff).unwrap_or(0);
    // SAFETY: the kernel has just accepted `size` bytes at `argument`; offsets are checked against it.
    let word = |offset: usize| unsafe { argument.byte_add(offset).cast::<u32>().read_unaligned() };
    // SAFETY: as above.
    let long = |offset: usize| unsafe { argument.byte_add(offset).cast::<u64>().read_unaligned() };
    if is_call(request, CREATE) && size >= 88 {
        if COMPUTE.contains(&word(40)) {
            learn(word(52), word(36), long(0), word(32), word(44), word(48));
        }
    } else if is_call(request, DESTROY) && size >= 8 {
        for queue in known().filter(|queue| queue.id.load(Ordering::Relaxed) == word(0)) {
            queue.state.store(FREE, Ordering::Release);
        }
    } else if is_call(request, UPDATE) && size >= 24 {
        // The program's own wish: it counts once the queue is active again.
        for queue in known().filter(|queue| queue.id.load(Ordering::Relaxed) == word(8)) {
            queue.ring.store(long(0), Ordering::Relaxed);
            queue.ring_size.store(word(12), Ordering::Relaxed);
            queue.share.store(word(16), Ordering::Relaxed);
            queue.priority.store(word(20), Ordering::Relaxed);
        }
    }
    if is_call(request, MASK) && size >= 16 {
        for queue in known().filter(|queue| queue.id.load(Ordering::Relaxed) == word(0)) {
            queue.masked.store(true, Ordering::Relaxed);
        }
    }
    // Any other device may have calls of the same letter: only these are certain.
    if matches!(request & 0xff, 1..=8) && size >= 8 {
        SEEN.store(true, Ordering::Release);
    }
}

fn learn(id: u32, gpu: u32, ring: u64, ring_size: u32, share: u32, priority: u32) {
    let take = |queue: &&Queue| {
        queue.state.compare_exchange(FREE, CHANGING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    // More queues than places: those are not stopped, which is what they were before.
    let Some(queue) = QUEUES.iter().find(take) else { return };
    queue.id.store(id, Ordering::Relaxed);
    queue.gpu.store(gpu, Ordering::Relaxed);
    queue.ring.store(ring, Ordering::Relaxed);
    queue.ring_size.store(ring_size, Ordering::Relaxed);
    queue.share.store(share, Ordering::Relaxed);
    queue.priority.store(priority, Ordering::Relaxed);
    queue.masked.store(false, Ordering::Relaxed);
    queue.state.store(KNOWN, Ordering::Release);
}

fn known() -> impl Iterator<Item = &'static Queue> {
    QUEUES.iter().filter(|queue| queue.state.load(Ordering::Acquire) == KNOWN)
}

/// Tells all queues of a GPU to stop or to go on, and how important they are. One call for each, all at once: the driver
/// has no call for several.
pub(super) fn tell(gpu: Option<u32>, stopped: bool, priority: Option<u32>) -> Result<(), String> {
    let driver = driver().as_ref().map_err(Clone::clone)?;
    let gpu = gpu_of(gpu);
    let (mut told, mut refused) = (0, None);
    for queue in known().filter(|queue| gpu == Some(queue.gpu.load(Ordering::Relaxed))) {
        match update(driver, queue, stopped, priority) {
            Ok(()) => told += 1,
            Err(why) => refused = Some(why),
        }
    }
    match refused {
        Some(why) if told == 0 => Err(format!("the driver refused: {why}")),
        _ => Ok(()),
    }
}

/// `kfd_ioctl_update_queue_args`.
#[repr(C)]
struct Update {
    ring: u64,
    id: u32,
    ring_size: u32,
    share: u32,
    priority: u32,
}

const _: () = assert!(size_of::<Update>() == 24);

fn update(driver: &File, queue: &Queue, stopped: bool, priority: Option<u32>) -> Result<(), std::io::Error> {
    let share = queue.share.load(Ordering::Relaxed);
    let active = if share & SHARE_BITS == 0 { ACTIVE } else { share & SHARE_BITS };
    let mut change = Update {
        ring: queue.ring.load(Ordering::Relaxed),
        id: queue.id.load(Ordering::Relaxed),
        ring_size: queue.ring_size.load(Ordering::Relaxed),
        share: (share & !SHARE_BITS) | if stopped { 0 } else { active },
        priority: priority.unwrap_or_else(|| queue.priority.load(Ordering::Relaxed)),
    };
    // Past our own watching: the program's hint_request are another matter.
    // SAFETY: the driver reads 24 bytes, which live until it returns.
    let answer = unsafe { crate::ioctl::real()(driver.as_raw_fd(), UPDATE_QUEUE, (&raw mut change).cast()) };
    if answer == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// `kfd_ioctl_set_cu_mask_args`.
#[repr(C)]
struct Mask {
    id: u32,
    bits: u32,
    words: *const u32,
}

const _: () = assert!(size_of::<Mask>() == 16);

/// Lets all queues of a GPU use these compute units, but for those whose units the program has chosen itself.
pub(super) fn set_mask(gpu: u32, words: &[u32]) -> Result<(), String> {
    let driver = driver().as_ref().map_err(Clone::clone)?;
    let bits = u32::try_from(32 * words.len()).unwrap_or(0);
    let of_gpu =
        |queue: &&Queue| queue.gpu.load(Ordering::Relaxed) == gpu && !queue.masked.load(Ordering::Relaxed);
    for queue in known().filter(of_gpu) {
        let mut change = Mask { id: queue.id.load(Ordering::Relaxed), bits, words: words.as_ptr() };
        let argument = (&raw mut change).cast();
        // SAFETY: the driver reads 16 bytes and the words, which live until it returns.
        let answer = unsafe { crate::ioctl::real()(driver.as_raw_fd(), SET_CU_MASK, argument) };
        if answer != 0 {
            return Err(format!("the driver refused: {}", std::io::Error::last_os_error()));
        }
    }
    Ok(())
}

/// A descriptor of our own, or why there is none. The driver knows the process by its memory, not by the descriptor.
pub(super) fn driver() -> &'static Result<File, String> {
    static DRIVER: OnceLock<Result<File, String>> = OnceLock::new();
    DRIVER.get_or_init(open)
}

fn open() -> Result<File, String> {
    const FILE: &str = "/dev/kfd";
    if !SEEN.load(Ordering::Acquire) {
        return Err(format!("none of the program's calls to {FILE} was seen (is the library preloaded?)"));
    }
    // Absent: the driver is older than the setting, or built in.
    let saves = std::fs::read_to_string("/sys/module/amdgpu/parameters/cwsr_enable");
    if saves.is_ok_and(|text| text.trim() == "0") {
        return Err("the driver saves no running waves (amdgpu.cwsr_enable=0)".to_owned());
    }
    OpenOptions::new().read(true).write(true).open(FILE).map_err(|why| format!("cannot open {FILE}: {why}"))
}

/// What the driver calls the GPU at this address; none if its topology does not tell.
pub(super) fn gpu_at(device: DeviceId) -> Option<u32> {
    let here = |node: &Node| {
        let place = node.value("location_id").map(|place| place & 0xffff);
        place.map(|place| (node.value("domain").unwrap_or(0) << 16) | place) == Some(device.address())
    };
    nodes().find(here).map(|node| node.gpu)
}

/// How many compute units a GPU has; none if its topology does not tell.
pub(super) fn compute_units(gpu: u32) -> Option<u32> {
    let node = nodes().find(|node| node.gpu == gpu)?;
    node.value("simd_count")?.checked_div(node.value("simd_per_cu")?).filter(|units| *units > 0)
}

/// A GPU in the driver's topology.
struct Node {
    gpu: u32,
    properties: String,
}

impl Node {
    fn value(&self, name: &str) -> Option<u32> {
        let found = self.properties.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        found.and_then(|value| value.trim().parse().ok())
    }
}

fn nodes() -> impl Iterator<Item = Node> {
    (0..128).filter_map(|node| {
        let file = |name: &str| {
            std::fs::read_to_string(format!("/sys/class/kfd/kfd/topology/nodes/{node}/{name}")).ok()
        };
        let gpu = file("gpu_id")?.trim().parse().ok().filter(|gpu| *gpu != 0)?;
        Some(Node { gpu, properties: file("properties")? })
    })
}

/// A GPU by what the driver calls it, if that is known; else the only one.
pub(super) fn gpu_of(known: Option<u32>) -> Option<u32> {
    known.or_else(only_gpu)
}

/// The GPU of all queues, if there is only one.
fn only_gpu() -> Option<u32> {
    let mut gpus = known().map(|queue| queue.gpu.load(Ordering::Relaxed));
    let first = gpus.next()?;
    gpus.all(|gpu| gpu == first).then_some(first)
}

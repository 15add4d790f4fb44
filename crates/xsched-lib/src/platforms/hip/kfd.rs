//! Levels 2 and 3 through the kernel's compute driver, `/dev/kfd`. A process may make its own queues inactive: the driver
//! takes them off the hardware and saves their running waves. Made active again, the queues resume where they were.
//!
//! The ids of the queues are learnt by watching the process's own `ioctl` calls.

use std::ffi::{c_int, c_ulong, c_void};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use xsched_core::{DeviceId, LevelCost, Nanos};

/// An estimate; not measured on hardware.
pub(super) const COST: LevelCost =
    LevelCost { preempt: Nanos::from_micros(300), restore: Nanos::from_micros(300) };

/// Whether a request is `AMDKFD_IOC_*` number `nr`, `_IO*('K', nr, size)` of any size.
const fn is_call(request: c_ulong, nr: c_ulong) -> bool {
    request & 0xffff == KFD_CALL | nr
}

const KFD_CALL: c_ulong = ('K' as c_ulong) << 8;
const CREATE: c_ulong = 2;
const DESTROY: c_ulong = 3;
const UPDATE: c_ulong = 7;
const UPDATE_QUEUE: c_ulong = 0x4018_4b07;
const MASK: c_ulong = 0x1a;
const SET_CU_MASK: c_ulong = 0x4010_4b1a;

/// `KFD_IOC_QUEUE_TYPE_COMPUTE` and `_COMPUTE_AQL`. Queues of other types copy.
const COMPUTE_TYPES: [u32; 2] = [0, 2];

/// The queue percentage of an active queue. The other bits of the word have other meanings and are kept.
const ACTIVE_PERCENTAGE: u32 = 100;
const PERCENTAGE_BITS: u32 = 0xff;

pub(super) const HIGHEST_PRIORITY: u32 = 15;
pub(super) const LOWEST_PRIORITY: u32 = 0;

const MAX_QUEUES: usize = 256;

/// States of an entry.
const UNUSED: u8 = 0;
const BEING_FILLED: u8 = 1;
const IN_USE: u8 = 2;

/// One queue of this process, as the program created or last updated it. Atomics, because `watch_ioctl` must not block.
struct Queue {
    state: AtomicU8,
    id: AtomicU32,
    gpu: AtomicU32,
    ring_base: AtomicU64,
    ring_size: AtomicU32,
    percentage: AtomicU32,
    priority: AtomicU32,
    /// The program has chosen the queue's compute units itself.
    has_own_mask: AtomicBool,
}

static QUEUES: [Queue; MAX_QUEUES] = [const {
    Queue {
        state: AtomicU8::new(UNUSED),
        id: AtomicU32::new(0),
        gpu: AtomicU32::new(0),
        ring_base: AtomicU64::new(0),
        ring_size: AtomicU32::new(0),
        percentage: AtomicU32::new(0),
        priority: AtomicU32::new(0),
        has_own_mask: AtomicBool::new(false),
    }
}; MAX_QUEUES];

/// Whether a call to the driver was seen. Otherwise the library is not in a position to learn the queues' ids.
static SAW_DRIVER_CALL: AtomicBool = AtomicBool::new(false);

/// Watches the process's calls to the driver.
///
/// # Safety
/// The arguments and the result of an `ioctl` call that has just returned.
pub(crate) unsafe fn watch_ioctl(_fd: c_int, request: c_ulong, argument: *mut c_void, result: c_int) {
    if request & 0xff00 != KFD_CALL || result != 0 || argument.is_null() {
        return;
    }
    let size = usize::try_from((request >> 16) & 0x3fff).unwrap_or(0);
    // SAFETY: the kernel has just accepted `size` bytes at `argument`; the offsets below are within the checked sizes.
    let word = |offset: usize| unsafe { argument.byte_add(offset).cast::<u32>().read_unaligned() };
    // SAFETY: as above.
    let long = |offset: usize| unsafe { argument.byte_add(offset).cast::<u64>().read_unaligned() };
    if is_call(request, CREATE) && size >= 88 {
        if COMPUTE_TYPES.contains(&word(40)) {
            record_queue(word(52), word(36), long(0), word(32), word(44), word(48));
        }
    } else if is_call(request, DESTROY) && size >= 8 {
        for queue in queues_with_id(word(0)) {
            queue.state.store(UNUSED, Ordering::Release);
        }
    } else if is_call(request, UPDATE) && size >= 24 {
        // The program's own update. If the queue is stopped, the values apply when it is resumed.
        for queue in queues_with_id(word(8)) {
            queue.ring_base.store(long(0), Ordering::Relaxed);
            queue.ring_size.store(word(12), Ordering::Relaxed);
            queue.percentage.store(word(16), Ordering::Relaxed);
            queue.priority.store(word(20), Ordering::Relaxed);
        }
    }
    if is_call(request, MASK) && size >= 16 {
        for queue in queues_with_id(word(0)) {
            queue.has_own_mask.store(true, Ordering::Relaxed);
        }
    }
    // Drivers of other devices may use the same letter, but not these numbers.
    if matches!(request & 0xff, 1..=8) && size >= 8 {
        SAW_DRIVER_CALL.store(true, Ordering::Release);
    }
}

fn record_queue(id: u32, gpu: u32, ring_base: u64, ring_size: u32, percentage: u32, priority: u32) {
    let claim = |queue: &&Queue| {
        queue.state.compare_exchange(UNUSED, BEING_FILLED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    // A process with more queues than entries keeps the others unscheduled.
    let Some(queue) = QUEUES.iter().find(claim) else { return };
    queue.id.store(id, Ordering::Relaxed);
    queue.gpu.store(gpu, Ordering::Relaxed);
    queue.ring_base.store(ring_base, Ordering::Relaxed);
    queue.ring_size.store(ring_size, Ordering::Relaxed);
    queue.percentage.store(percentage, Ordering::Relaxed);
    queue.priority.store(priority, Ordering::Relaxed);
    queue.has_own_mask.store(false, Ordering::Relaxed);
    queue.state.store(IN_USE, Ordering::Release);
}

fn queues() -> impl Iterator<Item = &'static Queue> {
    QUEUES.iter().filter(|queue| queue.state.load(Ordering::Acquire) == IN_USE)
}

fn queues_with_id(id: u32) -> impl Iterator<Item = &'static Queue> {
    queues().filter(move |queue| queue.id.load(Ordering::Relaxed) == id)
}

/// Stops or resumes all queues of a GPU, and sets their priority: the program's own if none. One call for each queue, as the
/// driver has no call for several. Fails if the driver refuses all of them.
pub(super) fn update_queues(gpu: Option<u32>, stopped: bool, priority: Option<u32>) -> Result<(), String> {
    let driver = driver().as_ref().map_err(Clone::clone)?;
    let gpu = gpu_or_only(gpu);
    let (mut updated, mut error) = (0, None);
    for queue in queues().filter(|queue| gpu == Some(queue.gpu.load(Ordering::Relaxed))) {
        match update_queue(driver, queue, stopped, priority) {
            Ok(()) => updated += 1,
            Err(why) => error = Some(why),
        }
    }
    match error {
        Some(why) if updated == 0 => Err(format!("the driver refused: {why}")),
        _ => Ok(()),
    }
}

/// `kfd_ioctl_update_queue_args`.
#[repr(C)]
struct UpdateQueueArgs {
    ring_base: u64,
    id: u32,
    ring_size: u32,
    percentage: u32,
    priority: u32,
}

const _: () = assert!(size_of::<UpdateQueueArgs>() == 24);

fn update_queue(
    driver: &File,
    queue: &Queue,
    stopped: bool,
    priority: Option<u32>,
) -> Result<(), std::io::Error> {
    let own = queue.percentage.load(Ordering::Relaxed);
    let active = if own & PERCENTAGE_BITS == 0 { ACTIVE_PERCENTAGE } else { own & PERCENTAGE_BITS };
    let mut args = UpdateQueueArgs {
        ring_base: queue.ring_base.load(Ordering::Relaxed),
        id: queue.id.load(Ordering::Relaxed),
        ring_size: queue.ring_size.load(Ordering::Relaxed),
        percentage: (own & !PERCENTAGE_BITS) | if stopped { 0 } else { active },
        priority: priority.unwrap_or_else(|| queue.priority.load(Ordering::Relaxed)),
    };
    // The real function, so that `watch_ioctl` does not record this as the program's own update.
    // SAFETY: the driver reads 24 bytes, which live until the call returns.
    let result = unsafe { crate::ioctl::real()(driver.as_raw_fd(), UPDATE_QUEUE, (&raw mut args).cast()) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// `kfd_ioctl_set_cu_mask_args`.
#[repr(C)]
struct SetCuMaskArgs {
    id: u32,
    bits: u32,
    words: *const u32,
}

const _: () = assert!(size_of::<SetCuMaskArgs>() == 16);

/// Limits all queues of a GPU to these compute units, except queues whose compute units the program has chosen itself.
pub(super) fn set_cu_mask(gpu: u32, words: &[u32]) -> Result<(), String> {
    let driver = driver().as_ref().map_err(Clone::clone)?;
    let bits = u32::try_from(32 * words.len()).unwrap_or(0);
    let is_affected = |queue: &&Queue| {
        queue.gpu.load(Ordering::Relaxed) == gpu && !queue.has_own_mask.load(Ordering::Relaxed)
    };
    for queue in queues().filter(is_affected) {
        let mut args = SetCuMaskArgs { id: queue.id.load(Ordering::Relaxed), bits, words: words.as_ptr() };
        let argument = (&raw mut args).cast();
        // SAFETY: the driver reads 16 bytes and the words, which live until the call returns.
        let result = unsafe { crate::ioctl::real()(driver.as_raw_fd(), SET_CU_MASK, argument) };
        if result != 0 {
            return Err(format!("the driver refused: {}", std::io::Error::last_os_error()));
        }
    }
    Ok(())
}

/// This library's own descriptor of `/dev/kfd`, or the reason why there is none. The driver identifies the process by its
/// address space, not by the descriptor.
pub(super) fn driver() -> &'static Result<File, String> {
    static DRIVER: OnceLock<Result<File, String>> = OnceLock::new();
    DRIVER.get_or_init(open_driver)
}

fn open_driver() -> Result<File, String> {
    const FILE: &str = "/dev/kfd";
    if !SAW_DRIVER_CALL.load(Ordering::Acquire) {
        return Err(format!("none of the program's calls to {FILE} was seen (is the library preloaded?)"));
    }
    // The file is absent if the driver is built in, or older than the parameter.
    let cwsr_enable = std::fs::read_to_string("/sys/module/amdgpu/parameters/cwsr_enable");
    if cwsr_enable.is_ok_and(|text| text.trim() == "0") {
        return Err("the driver saves no running waves (amdgpu.cwsr_enable=0)".to_owned());
    }
    OpenOptions::new().read(true).write(true).open(FILE).map_err(|why| format!("cannot open {FILE}: {why}"))
}

/// The driver's id of the GPU at a PCI address; none if its topology does not list it.
pub(super) fn gpu_at(device: DeviceId) -> Option<u32> {
    let is_at_address = |node: &TopologyNode| {
        let location = node.property("location_id").map(|location| location & 0xffff);
        let domain = node.property("domain").unwrap_or(0);
        location.map(|location| (domain << 16) | location) == Some(device.address())
    };
    gpu_nodes().find(is_at_address).map(|node| node.gpu)
}

/// The number of compute units of a GPU; none if the driver's topology does not list it.
pub(super) fn compute_units(gpu: u32) -> Option<u32> {
    let node = gpu_nodes().find(|node| node.gpu == gpu)?;
    node.property("simd_count")?.checked_div(node.property("simd_per_cu")?).filter(|units| *units > 0)
}

/// A GPU in the driver's topology.
struct TopologyNode {
    gpu: u32,
    properties: String,
}

impl TopologyNode {
    fn property(&self, name: &str) -> Option<u32> {
        let value = self.properties.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.trim().parse().ok())
    }
}

fn gpu_nodes() -> impl Iterator<Item = TopologyNode> {
    (0..128).filter_map(|node| {
        let file = |name: &str| {
            std::fs::read_to_string(format!("/sys/class/kfd/kfd/topology/nodes/{node}/{name}")).ok()
        };
        // CPUs have id 0.
        let gpu = file("gpu_id")?.trim().parse().ok().filter(|gpu| *gpu != 0)?;
        Some(TopologyNode { gpu, properties: file("properties")? })
    })
}

/// The driver's id of a GPU: the given one, or that of the only GPU the process has queues on.
pub(super) fn gpu_or_only(gpu: Option<u32>) -> Option<u32> {
    gpu.or_else(|| {
        let mut gpus = queues().map(|queue| queue.gpu.load(Ordering::Relaxed));
        let first = gpus.next()?;
        gpus.all(|gpu| gpu == first).then_some(first)
    })
}

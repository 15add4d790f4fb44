//! Levels 2 and 3 through the kernel's compute driver, `/dev/kfd`. A process may make its own queues inactive: the driver
//! takes them off the hardware and saves their running waves. Made active again, the queues resume where they were.
//!
//! The ids of the queues are learnt by watching the process's own `ioctl` calls.
//!
//! * [`records`]: the queues. [`descriptors`]: the descriptors through which they were created.
//! * [`packets`]: whether they have packets that the device is not done with.
//!
//! The GPUs and their partitions are in [`xsched_ipc::kfd_topology`].

mod descriptors;
mod packets;
mod records;

use std::ffi::{c_int, c_ulong, c_void};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use xsched_core::{LevelCost, Nanos};

pub(super) use packets::has_pending_packets;
use records::{Queue, queues};
pub(super) use records::{after_ioctl, before_ioctl, gpu_of_created_queue};

/// An estimate; not measured on hardware.
pub(super) const COST: LevelCost =
    LevelCost { preempt: Nanos::from_micros(300), restore: Nanos::from_micros(300) };

const UPDATE_QUEUE: c_ulong = 0x4018_4b07;
const SET_CU_MASK: c_ulong = 0x4010_4b1a;

/// The queue percentage of an active queue. The other bits of the word have other meanings and are kept.
const ACTIVE_PERCENTAGE: u32 = 100;
const PERCENTAGE_BITS: u32 = 0xff;

pub(super) const HIGHEST_PRIORITY: u32 = 15;
pub(super) const LOWEST_PRIORITY: u32 = 0;

/// Why an update failed.
#[derive(Clone, Debug)]
pub(super) enum UpdateError {
    /// The process has no queue on the GPU.
    NoQueue,
    /// The driver stopped none of the queues, or a queue that it was to resume is still stopped.
    Refused(String),
    /// The driver stopped some of the queues only.
    PartlyStopped(String),
}

impl std::fmt::Display for UpdateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoQueue => f.write_str("none of the queues that the process has created is on this GPU"),
            Self::Refused(why) | Self::PartlyStopped(why) => f.write_str(why),
        }
    }
}

fn queues_on(gpu: Option<u32>) -> impl Iterator<Item = &'static Queue> {
    let gpu = gpu_or_only(gpu);
    queues().filter(move |queue| gpu == Some(queue.gpu.load(Ordering::Relaxed)))
}

/// Stops or resumes all queues of a GPU, and sets their priority: the program's own if none. One call for each queue, as the
/// driver has no call for several.
pub(super) fn set_stopped(gpu: Option<u32>, stop: bool, priority: Option<u32>) -> Result<(), UpdateError> {
    let (mut updated, mut refused) = (0, None);
    for queue in queues_on(gpu) {
        match update_queue(queue, stop, priority) {
            Ok(()) => updated += 1,
            // The program has destroyed the queue meanwhile.
            Err(_) if !queue.exists() => {}
            // Nothing is to be resumed, and the priority only improves on the gate.
            Err(_) if !stop && !queue.is_stopped.load(Ordering::Acquire) => updated += 1,
            Err(why) => refused = Some(why),
        }
    }
    match refused {
        None if updated > 0 => Ok(()),
        None => Err(UpdateError::NoQueue),
        Some(why) if stop && updated > 0 => Err(UpdateError::PartlyStopped(why)),
        Some(why) => Err(UpdateError::Refused(why)),
    }
}

/// Sets the priority of all queues of a GPU. Queues that are stopped stay stopped. Errors are ignored: priorities only improve
/// on what the gate enforces.
pub(super) fn set_priority(gpu: Option<u32>, priority: Option<u32>) {
    for queue in queues_on(gpu) {
        let _ = update_queue(queue, queue.is_stopped.load(Ordering::Acquire), priority);
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

fn update_queue(queue: &Queue, stopped: bool, priority: Option<u32>) -> Result<(), String> {
    let own = queue.percentage.load(Ordering::Relaxed);
    let active = if own & PERCENTAGE_BITS == 0 { ACTIVE_PERCENTAGE } else { own & PERCENTAGE_BITS };
    let mut args = UpdateQueueArgs {
        ring_base: queue.ring_base.load(Ordering::Relaxed),
        id: queue.id.load(Ordering::Relaxed),
        ring_size: queue.ring_size.load(Ordering::Relaxed),
        percentage: (own & !PERCENTAGE_BITS) | if stopped { 0 } else { active },
        priority: priority.unwrap_or_else(|| queue.priority.load(Ordering::Relaxed)),
    };
    queue.call_driver(UPDATE_QUEUE, (&raw mut args).cast())?;
    queue.is_stopped.store(stopped, Ordering::Release);
    Ok(())
}

impl Queue {
    /// Calls the driver for this queue, through the descriptor that it was created with.
    ///
    /// The real function is called, so that `after_ioctl` does not record this as the program's own call. `argument` points to
    /// what the request reads.
    fn call_driver(&self, request: c_ulong, argument: *mut c_void) -> Result<(), String> {
        // SAFETY: the callers pass the structure that the request reads, which lives until the call returns.
        let call = |fd: c_int| match unsafe { crate::ioctl::real()(fd, request, argument) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        };
        let result = match descriptors::with(self.descriptor.load(Ordering::Acquire), call) {
            Some(result) => result,
            None => call(own_descriptor()?.as_raw_fd()),
        };
        result.map_err(|why| format!("the driver refused: {why}"))
    }
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
    let bits = u32::try_from(32 * words.len()).unwrap_or(0);
    let is_affected = |queue: &&Queue| {
        queue.gpu.load(Ordering::Relaxed) == gpu && !queue.has_own_mask.load(Ordering::Relaxed)
    };
    queues().filter(is_affected).try_for_each(|queue| {
        let mut args = SetCuMaskArgs { id: queue.id.load(Ordering::Relaxed), bits, words: words.as_ptr() };
        queue.call_driver(SET_CU_MASK, (&raw mut args).cast())
    })
}

/// This library's own descriptor of `/dev/kfd`, for queues whose descriptor is not known, or the reason why there is none.
fn own_descriptor() -> Result<&'static File, String> {
    const FILE: &str = "/dev/kfd";
    static DESCRIPTOR: OnceLock<Result<File, String>> = OnceLock::new();
    let open = || OpenOptions::new().read(true).write(true).open(FILE);
    let opened = DESCRIPTOR.get_or_init(|| open().map_err(|why| format!("cannot open {FILE}: {why}")));
    opened.as_ref().map_err(Clone::clone)
}

/// Whether the driver can stop queues of this process, or the reason why not.
pub(super) fn check() -> Result<(), String> {
    if !records::has_seen_driver_call() {
        return Err("none of the program's calls to /dev/kfd was seen (is the library preloaded?)".to_owned());
    }
    // The file is absent if the driver is built in, or older than the parameter.
    let cwsr_enable = std::fs::read_to_string("/sys/module/amdgpu/parameters/cwsr_enable");
    if cwsr_enable.is_ok_and(|text| text.trim() == "0") {
        return Err("the driver saves no running waves (amdgpu.cwsr_enable=0)".to_owned());
    }
    Ok(())
}

/// The driver's id of a GPU: the given one, or that of the only GPU the process has queues on.
pub(super) fn gpu_or_only(gpu: Option<u32>) -> Option<u32> {
    gpu.or_else(|| {
        let mut gpus = queues().map(|queue| queue.gpu.load(Ordering::Relaxed));
        let first = gpus.next()?;
        gpus.all(|gpu| gpu == first).then_some(first)
    })
}

//! The compute queues of this process, learnt by watching its `ioctl` calls.
//!
//! The driver may have several processes for one address space, each with a descriptor and with ids of its own: a queue is
//! identified by its id and by the file through which it was created.

use std::cell::Cell;
use std::ffi::{c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::descriptors;

/// Whether a request is `AMDKFD_IOC_*` number `nr`, `_IO*('K', nr, size)` of any size.
const fn is_call(request: c_ulong, nr: c_ulong) -> bool {
    request & 0xffff == KFD_CALL | nr
}

const KFD_CALL: c_ulong = ('K' as c_ulong) << 8;
const CREATE: c_ulong = 2;
const DESTROY: c_ulong = 3;
const UPDATE: c_ulong = 7;
const MASK: c_ulong = 0x1a;

/// `KFD_IOC_QUEUE_TYPE_COMPUTE` and `_COMPUTE_AQL`. Queues of other types copy.
const COMPUTE_TYPES: [u32; 2] = [0, 2];

const MAX_QUEUES: usize = 256;

/// States of an entry.
const UNUSED: u8 = 0;
const BEING_FILLED: u8 = 1;
const IN_USE: u8 = 2;
/// A thread of the program is destroying the queue. Its id can belong to a new queue before that thread has returned.
const BEING_DESTROYED: u8 = 3;

/// One queue of this process, as the program created or last updated it. Atomics, because the observers must not block.
pub(super) struct Queue {
    state: AtomicU8,
    pub(super) id: AtomicU32,
    pub(super) gpu: AtomicU32,
    pub(super) ring_base: AtomicU64,
    pub(super) ring_size: AtomicU32,
    /// The addresses of the words that count the packets that were written and that the device is done with; 0 if not known.
    pub(super) write_index: AtomicUsize,
    pub(super) read_index: AtomicUsize,
    pub(super) percentage: AtomicU32,
    pub(super) priority: AtomicU32,
    /// This library has stopped the queue.
    pub(super) is_stopped: AtomicBool,
    /// The program has chosen the queue's compute units itself.
    pub(super) has_own_mask: AtomicBool,
    /// The index of the duplicate of the descriptor through which it was created.
    pub(super) descriptor: AtomicUsize,
    /// The program's own number of that descriptor.
    program_descriptor: AtomicI32,
}

static QUEUES: [Queue; MAX_QUEUES] = [const {
    Queue {
        state: AtomicU8::new(UNUSED),
        id: AtomicU32::new(0),
        gpu: AtomicU32::new(0),
        ring_base: AtomicU64::new(0),
        ring_size: AtomicU32::new(0),
        write_index: AtomicUsize::new(0),
        read_index: AtomicUsize::new(0),
        percentage: AtomicU32::new(0),
        priority: AtomicU32::new(0),
        is_stopped: AtomicBool::new(false),
        has_own_mask: AtomicBool::new(false),
        descriptor: AtomicUsize::new(descriptors::NONE),
        program_descriptor: AtomicI32::new(-1),
    }
}; MAX_QUEUES];

/// The process whose queues are recorded. A child after fork has its parent's records, but not its queues.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Whether a call to the driver was seen. Otherwise the library is not in a position to learn the queues' ids.
static SAW_DRIVER_CALL: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The GPU of the queue that the calling thread created last; 0 if it created none.
    static LAST_GPU: Cell<u32> = const { Cell::new(0) };
    /// The queue that the calling thread is destroying.
    static DESTROYED: Cell<Option<&'static Queue>> = const { Cell::new(None) };
}

/// Whether a call of the process to the driver was seen.
pub(super) fn has_seen_driver_call() -> bool {
    SAW_DRIVER_CALL.load(Ordering::Acquire)
}

/// Calls `create`, and returns the driver's id of the GPU on which it created a queue; none if it created none.
pub(in super::super) fn gpu_of_created_queue(create: impl FnOnce()) -> Option<u32> {
    let _ = LAST_GPU.try_with(|gpu| gpu.set(0));
    create();
    LAST_GPU.try_with(Cell::get).ok().filter(|gpu| *gpu != 0)
}

/// The structure that a call passes to the driver.
struct Arguments {
    address: *const c_void,
    size: usize,
}

impl Arguments {
    /// None if the call is not one to the driver.
    ///
    /// # Safety
    /// The process passes `address` to the kernel with this request.
    unsafe fn new(request: c_ulong, address: *const c_void) -> Option<Self> {
        let size = usize::try_from((request >> 16) & 0x3fff).unwrap_or(0);
        (request & 0xff00 == KFD_CALL && !address.is_null()).then_some(Self { address, size })
    }

    /// 0 beyond the end of the structure.
    fn word(&self, offset: usize) -> u32 {
        if offset + 4 > self.size {
            return 0;
        }
        // SAFETY: `new` was given a structure of `size` bytes.
        unsafe { self.address.byte_add(offset).cast::<u32>().read_unaligned() }
    }

    fn long(&self, offset: usize) -> u64 {
        u64::from(self.word(offset)) | (u64::from(self.word(offset + 4)) << 32)
    }

    fn address(&self, offset: usize) -> usize {
        usize::try_from(self.long(offset)).unwrap_or(0)
    }
}

/// Watches the process's calls to the driver. The record of a queue is claimed before the queue is destroyed: afterwards
/// another thread may have a new queue with the same id.
///
/// # Safety
/// The arguments of an `ioctl` call that is about to be made.
pub(in super::super) unsafe fn before_ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) {
    if is_call(request, DESTROY)
        // SAFETY: the caller passes the arguments of a call.
        && let Some(arguments) = unsafe { Arguments::new(request, argument) }
        && arguments.size >= 8
    {
        let queue = find(arguments.word(0), fd).filter(|queue| queue.changes(IN_USE, BEING_DESTROYED));
        let _ = DESTROYED.try_with(|destroyed| destroyed.set(queue));
    }
}

/// Watches the process's calls to the driver.
///
/// # Safety
/// The arguments and the result of an `ioctl` call that has just returned.
pub(in super::super) unsafe fn after_ioctl(
    fd: c_int,
    request: c_ulong,
    argument: *mut c_void,
    result: c_int,
) {
    // SAFETY: the caller passes the arguments of a call.
    let Some(arguments) = (unsafe { Arguments::new(request, argument) }) else { return };
    learn(fd, request, &arguments, result);
    // Drivers of other devices may use the same letter, but not these numbers.
    if result == 0 && matches!(request & 0xff, 1..=8) && arguments.size >= 8 {
        SAW_DRIVER_CALL.store(true, Ordering::Release);
    }
}

/// Learns what a call has changed.
fn learn(fd: c_int, request: c_ulong, arguments: &Arguments, result: c_int) {
    if is_call(request, DESTROY)
        && let Some(queue) = DESTROYED.try_with(Cell::take).ok().flatten()
    {
        queue.after_destruction(result == 0);
    }
    if result != 0 {
        return;
    }
    let (word, long) = (|offset| arguments.word(offset), |offset| arguments.long(offset));
    if is_call(request, CREATE) && arguments.size >= 88 {
        if COMPUTE_TYPES.contains(&word(40)) {
            record(fd, arguments);
            let _ = LAST_GPU.try_with(|gpu| gpu.set(word(36)));
        }
    } else if is_call(request, UPDATE) && arguments.size >= 24 {
        // The program's own update. If the queue is stopped, the values apply when it is resumed.
        if let Some(queue) = find(word(8), fd) {
            queue.ring_base.store(long(0), Ordering::Relaxed);
            queue.ring_size.store(word(12), Ordering::Relaxed);
            queue.percentage.store(word(16), Ordering::Relaxed);
            queue.priority.store(word(20), Ordering::Relaxed);
        }
    } else if is_call(request, MASK)
        && arguments.size >= 16
        && let Some(queue) = find(word(0), fd)
    {
        queue.has_own_mask.store(true, Ordering::Relaxed);
    }
}

/// Records a queue that was created through a descriptor, from `kfd_ioctl_create_queue_args`.
fn record(fd: c_int, created: &Arguments) {
    let (pid, owner) = (std::process::id(), OWNER.load(Ordering::Acquire));
    let takes_over =
        owner != pid && OWNER.compare_exchange(owner, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if takes_over {
        for queue in &QUEUES {
            queue.state.store(UNUSED, Ordering::Release);
        }
        descriptors::forget_all();
    }
    // A process with more queues than entries keeps the others unscheduled.
    let Some(queue) = QUEUES.iter().find(|queue| queue.changes(UNUSED, BEING_FILLED)) else { return };
    queue.ring_base.store(created.long(0), Ordering::Relaxed);
    queue.ring_size.store(created.word(32), Ordering::Relaxed);
    queue.write_index.store(created.address(8), Ordering::Relaxed);
    queue.read_index.store(created.address(16), Ordering::Relaxed);
    queue.gpu.store(created.word(36), Ordering::Relaxed);
    queue.percentage.store(created.word(44), Ordering::Relaxed);
    queue.priority.store(created.word(48), Ordering::Relaxed);
    queue.id.store(created.word(52), Ordering::Relaxed);
    queue.is_stopped.store(false, Ordering::Relaxed);
    queue.has_own_mask.store(false, Ordering::Relaxed);
    queue.program_descriptor.store(fd, Ordering::Relaxed);
    queue.descriptor.store(descriptors::acquire(fd), Ordering::Relaxed);
    queue.state.store(IN_USE, Ordering::Release);
}

/// The queues that exist.
pub(super) fn queues() -> impl Iterator<Item = &'static Queue> {
    let is_own = OWNER.load(Ordering::Acquire) == std::process::id();
    QUEUES.iter().filter(move |_| is_own).filter(|queue| queue.exists())
}

/// The queue that has this id in the driver's process of a descriptor.
fn find(id: u32, fd: c_int) -> Option<&'static Queue> {
    queues().find(|queue| queue.id.load(Ordering::Relaxed) == id && queue.was_created_through(fd))
}

impl Queue {
    /// Whether the queue exists, and is not being destroyed.
    pub(super) fn exists(&self) -> bool {
        self.state.load(Ordering::Acquire) == IN_USE
    }

    fn changes(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// If it is not known whether the descriptors denote the same file, their numbers are compared: programs do not duplicate
    /// this descriptor.
    fn was_created_through(&self, fd: c_int) -> bool {
        let is_same = descriptors::denotes(self.descriptor.load(Ordering::Acquire), fd);
        is_same.unwrap_or_else(|| self.program_descriptor.load(Ordering::Relaxed) == fd)
    }

    /// The driver has destroyed the queue, or has refused to.
    fn after_destruction(&self, is_destroyed: bool) {
        if is_destroyed {
            let descriptor = self.descriptor.swap(descriptors::NONE, Ordering::AcqRel);
            self.state.store(UNUSED, Ordering::Release);
            descriptors::release(descriptor);
            return;
        }
        self.state.store(IN_USE, Ordering::Release);
        // Meanwhile the other queues may have been resumed without it.
        if self.is_stopped.load(Ordering::Acquire) {
            let _ = super::update_queue(self, false, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd as _;

    use super::*;

    const CREATE_QUEUE: c_ulong = 0xc058_4b02;
    const DESTROY_QUEUE: c_ulong = 0xc008_4b03;

    /// As a program that creates a queue, whose id the driver returns.
    fn create(file: &File, id: u32, gpu: u32) {
        let mut words = [0_u32; 22];
        (words[9], words[13]) = (gpu, id);
        // SAFETY: a structure of the size that the request encodes.
        let arguments = unsafe { Arguments::new(CREATE_QUEUE, words.as_ptr().cast()) }.unwrap();
        learn(file.as_raw_fd(), CREATE_QUEUE, &arguments, 0);
    }

    /// As a program that destroys a queue. `meanwhile` happens after the kernel returned.
    fn destroy(file: &File, id: u32, result: c_int, meanwhile: impl FnOnce()) {
        let mut words = [id, 0];
        // SAFETY: as above.
        unsafe { before_ioctl(file.as_raw_fd(), DESTROY_QUEUE, words.as_mut_ptr().cast()) };
        meanwhile();
        // SAFETY: as above.
        let arguments = unsafe { Arguments::new(DESTROY_QUEUE, words.as_ptr().cast()) }.unwrap();
        learn(file.as_raw_fd(), DESTROY_QUEUE, &arguments, result);
    }

    fn count(gpu: u32) -> usize {
        queues().filter(|queue| queue.gpu.load(Ordering::Relaxed) == gpu).count()
    }

    fn open() -> File {
        File::open("/dev/null").unwrap()
    }

    #[test]
    fn queues_of_two_processes_of_the_driver_may_have_the_same_id() {
        const GPUS: [u32; 2] = [0xfe01, 0xfe02];
        let files = [open(), open()];
        for (file, gpu) in files.iter().zip(GPUS) {
            create(file, 7, gpu);
        }
        destroy(&files[1], 7, 0, || {});
        assert_eq!(GPUS.map(count), [1, 0], "the other process's queue was forgotten");
        destroy(&files[0].try_clone().unwrap(), 7, 0, || {});
        assert_eq!(GPUS.map(count), [0, 0], "a duplicate denotes the same process");
    }

    #[test]
    fn queue_created_with_the_id_of_one_that_is_being_destroyed_is_recorded() {
        const OLD: u32 = 0xfe03;
        const NEW: u32 = 0xfe04;
        let file = open();
        create(&file, 8, OLD);
        destroy(&file, 8, 0, || create(&file, 8, NEW));
        assert_eq!([OLD, NEW].map(count), [0, 1]);
        destroy(&file, 8, -1, || {});
        assert_eq!(count(NEW), 1, "the driver refused");
        destroy(&file, 8, 0, || {});
        assert_eq!(count(NEW), 0);
    }
}

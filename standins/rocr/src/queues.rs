//! AQL queues: creation, indices, priorities and compute-unit masks. `processor.rs` executes their packets.

use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use xsched_core::Nanos;

use crate::doorbell::{DoorbellTimes, WakeWord};
use crate::packets::Packet;
use crate::processor::Processor;
use crate::status::{
    ERROR, INVALID_AGENT, INVALID_ARGUMENT, INVALID_QUEUE, OUT_OF_RESOURCES, Status, read_array, to_status,
    write_out,
};
use crate::{agents, async_handlers, driver, runtime, signals};

/// The smallest and the largest number of packets in a ring.
pub(crate) const MIN_SIZE: u32 = 64;
pub(crate) const MAX_SIZE: u32 = 131_072;
/// How many queues an agent has.
pub(crate) const MAX_QUEUES: u32 = 128;

/// How often a thread looks for the file without which no queue is created.
const FILE_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// `HSA_QUEUE_FEATURE_KERNEL_DISPATCH`.
const KERNEL_DISPATCH: u32 = 1;
/// `HSA_QUEUE_TYPE_MULTI`, `_SINGLE` and `_COOPERATIVE`.
const TYPES: std::ops::RangeInclusive<u32> = 0..=2;

pub(crate) type ErrorCallback = extern "C" fn(Status, *const Queue, *mut c_void);

/// `amd_queue_t`, followed by the runtime's own part.
#[repr(C, align(64))]
pub(crate) struct Queue {
    kind: u32,
    features: u32,
    base: *mut Packet,
    doorbell: u64,
    size: u32,
    reserved: u32,
    id: u64,
    caps: [u32; 4],
    write: AtomicU64,
    apertures: [u32; 4],
    legacy_doorbell: [u32; 12],
    read: AtomicU64,
    read_offset: u32,
    /// The scratch memory and other fields of the hardware.
    hardware: [u32; 605],
    pub(crate) agent: &'static agents::Agent,
    /// Called when the queue fails, with the address to pass to it.
    pub(crate) callback: Option<(ErrorCallback, usize)>,
    wake: &'static WakeWord,
    doorbell_times: Mutex<DoorbellTimes>,
    processor: Mutex<Option<Arc<Processor>>>,
    cu_mask: Mutex<Vec<u32>>,
}

const _: () = assert!(std::mem::offset_of!(Queue, write) == 56 && std::mem::offset_of!(Queue, read) == 128);

// SAFETY: the ring is freed after the processor's threads have ended, in `destroy`; the rest is atomic, constant or locked.
unsafe impl Send for Queue {}
// SAFETY: as for Send.
unsafe impl Sync for Queue {}

impl Queue {
    /// What the doorbell does.
    pub(crate) fn ring(&self, value: i64) {
        if let Some(signal) = signals::signal(self.doorbell) {
            // The lock is held while the value changes: a thread that sees the value finds its time.
            let mut times = self.doorbell_times.lock().unwrap_or_else(PoisonError::into_inner);
            times.rung(value, Nanos::now());
            // Threads may ring in another order than they reserved packets.
            signal.doorbell().fetch_max(value, Ordering::SeqCst);
        }
        self.wake.wake();
    }

    /// How many packets were written, and how many are done.
    pub(crate) fn indices(&self) -> [&AtomicU64; 2] {
        [&self.write, &self.read]
    }

    /// The highest packet for which the doorbell was rung; negative for none.
    pub(crate) fn doorbell_value(&self) -> i64 {
        signals::signal(self.doorbell).map_or(-1, |signal| signal.doorbell().load(Ordering::SeqCst))
    }

    /// When the doorbell was rung for a packet; now, if the program wrote the doorbell without a function call. Call it once for
    /// each packet, in their order.
    pub(crate) fn doorbell_time(&self, index: u64) -> Nanos {
        let mut times = self.doorbell_times.lock().unwrap_or_else(PoisonError::into_inner);
        times.of_packet(index).unwrap_or_else(Nanos::now)
    }

    pub(crate) fn packet(&self, index: u64) -> &Packet {
        let slot = usize::try_from(index & (u64::from(self.size) - 1)).unwrap_or(0);
        // SAFETY: the ring has `size` packets, a power of two, and lives as long as the queue's processor.
        unsafe { &*self.base.add(slot) }
    }

    /// Frees the slot of a packet that has completed.
    pub(crate) fn release_packet(&self, index: u64) {
        self.packet(index).invalidate();
        self.read.store(index + 1, Ordering::Release);
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }
}

static QUEUES: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// `hsa_queue_create`.
pub(crate) extern "C" fn create(
    agent: u64,
    size: u32,
    kind: u32,
    callback: Option<ErrorCallback>,
    data: *mut c_void,
    _private: u32,
    _group: u32,
    out: *mut *mut Queue,
) -> Status {
    to_status(try_create(
        agent,
        size,
        kind,
        callback.map(|callback| (callback, data.expose_provenance())),
        out,
    ))
}

fn try_create(
    agent: u64,
    size: u32,
    kind: u32,
    callback: Option<(ErrorCallback, usize)>,
    out: *mut *mut Queue,
) -> Result<(), Status> {
    static NEXT_ID: AtomicU64 = AtomicU64::new(0);
    runtime::require_running()?;
    let agent = agents::find(agent)?;
    if out.is_null() || size == 0 || !size.is_power_of_two() || !TYPES.contains(&kind) {
        return Err(INVALID_ARGUMENT);
    }
    // A CPU has no packet processor.
    let device = agent.device().ok_or(ERROR)?;
    if size > MAX_SIZE {
        return Err(OUT_OF_RESOURCES);
    }
    if size < MIN_SIZE {
        return Err(INVALID_ARGUMENT);
    }
    wait_for_file();
    let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    let sim = device.queue().ok_or(OUT_OF_RESOURCES)?;
    let ring: Vec<Packet> = (0..size).map(|_| Packet::empty()).collect();
    let queue = Box::into_raw(Box::new(Queue {
        kind,
        features: KERNEL_DISPATCH,
        base: Box::into_raw(ring.into_boxed_slice()).cast::<Packet>(),
        doorbell: 0,
        size,
        reserved: 0,
        id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        caps: [0; 4],
        write: AtomicU64::new(0),
        apertures: [0; 4],
        legacy_doorbell: [0; 12],
        read: AtomicU64::new(0),
        read_offset: 128,
        hardware: [0; 605],
        agent,
        callback,
        wake: WakeWord::leaked(),
        doorbell_times: Mutex::default(),
        processor: Mutex::new(None),
        cu_mask: Mutex::new(full_mask(device.node.compute_units)),
    }));
    // SAFETY: just allocated, and not shared yet.
    unsafe { (*queue).doorbell = signals::create_doorbell(queue) };
    // SAFETY: valid until `destroy`, which stops the processor first.
    let shared: &'static Queue = unsafe { &*queue };
    let processor = Processor::start(shared, device, sim, shared.wake).ok_or(OUT_OF_RESOURCES)?;
    *shared.processor.lock().unwrap_or_else(PoisonError::into_inner) = Some(processor);
    queues.push(queue.expose_provenance());
    write_out(out, queue)
}

/// Waits until the file exists that `ROCR_STANDIN_QUEUE_FILE` names, as if the creation of a queue took so long. Creates a file with the
/// same name and `.waiting` behind it.
fn wait_for_file() {
    let Some(file) = std::env::var_os("ROCR_STANDIN_QUEUE_FILE").map(PathBuf::from) else { return };
    let mut waiting = file.clone().into_os_string();
    waiting.push(".waiting");
    if let Err(error) = std::fs::write(&waiting, "") {
        eprintln!("rocr stand-in: cannot create {}: {error}", waiting.display());
        return;
    }
    while !file.exists() {
        std::thread::sleep(FILE_POLL_INTERVAL);
    }
}

fn full_mask(units: u32) -> Vec<u32> {
    (0..units.div_ceil(32)).map(|word| u32::MAX >> (32 - (units - 32 * word).min(32))).collect()
}

fn find<'a>(queue: *const Queue) -> Result<&'a Queue, Status> {
    let known = QUEUES.lock().unwrap_or_else(PoisonError::into_inner).contains(&queue.addr());
    // SAFETY: `create` made it and `destroy` has not removed it.
    if known { Ok(unsafe { &*queue }) } else { Err(INVALID_QUEUE) }
}

/// `hsa_queue_destroy`. Packets that have not started are dropped.
pub(crate) extern "C" fn destroy(queue: *mut Queue) -> Status {
    if queue.is_null() {
        return INVALID_ARGUMENT;
    }
    to_status(runtime::require_running().and_then(|()| {
        async_handlers::finish_due();
        remove(queue)
    }))
}

fn remove(queue: *mut Queue) -> Result<(), Status> {
    let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    let index = queues.iter().position(|known| *known == queue.addr()).ok_or(INVALID_QUEUE)?;
    queues.swap_remove(index);
    drop(queues);
    // SAFETY: it was in the list, so `create` made it, and no other thread destroys it.
    let shared = unsafe { &*queue };
    let processor = shared.processor.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(processor) = processor {
        processor.stop();
    }
    let _ = signals::destroy(shared.doorbell);
    // The queue and its ring are kept: AMD's HIP runtime may ring a doorbell on one thread while another destroys the queue
    // at the end of the process. A queue is about 1 MiB of memory at most, and programs create few.
    // SAFETY: the processor's threads have ended; the pages are only used again as zeros.
    unsafe {
        let bytes = shared.size as usize * size_of::<Packet>();
        let page = 4096;
        let first = shared.base.addr().next_multiple_of(page);
        let end = (shared.base.addr() + bytes) / page * page;
        if end > first {
            libc::madvise(std::ptr::with_exposed_provenance_mut(first), end - first, libc::MADV_DONTNEED);
        }
    }
    Ok(())
}

/// Destroys all queues when the runtime ends.
pub(crate) fn destroy_all() {
    let all = QUEUES.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for queue in all {
        let _ = remove(std::ptr::with_exposed_provenance_mut(queue));
    }
}

/// `hsa_queue_inactivate`.
pub(crate) extern "C" fn inactivate(queue: *mut Queue) -> Status {
    to_status(find(queue).map(|queue| {
        let processor = queue.processor.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(processor) = processor {
            processor.stop();
        }
    }))
}

fn shared<'a>(queue: *const Queue) -> &'a Queue {
    // SAFETY: the caller of the C function passes a queue; the memory of a destroyed one is kept.
    unsafe { &*queue }
}

/// `hsa_queue_load_read_index_*`.
pub(crate) extern "C" fn load_read_index(queue: *const Queue) -> u64 {
    shared(queue).read.load(Ordering::Acquire)
}

/// `hsa_queue_load_write_index_*`.
pub(crate) extern "C" fn load_write_index(queue: *const Queue) -> u64 {
    shared(queue).write.load(Ordering::Acquire)
}

/// `hsa_queue_store_write_index_*`.
pub(crate) extern "C" fn store_write_index(queue: *const Queue, value: u64) {
    shared(queue).write.store(value, Ordering::Release);
}

/// `hsa_queue_cas_write_index_*`.
pub(crate) extern "C" fn compare_exchange_write_index(queue: *const Queue, expected: u64, value: u64) -> u64 {
    let changed = shared(queue).write.compare_exchange(expected, value, Ordering::AcqRel, Ordering::Acquire);
    changed.unwrap_or_else(|found| found)
}

/// `hsa_queue_add_write_index_*`.
pub(crate) extern "C" fn add_write_index(queue: *const Queue, value: u64) -> u64 {
    shared(queue).write.fetch_add(value, Ordering::AcqRel)
}

fn with_processor(
    queue: *const Queue,
    operation: impl FnOnce(&Queue, &Processor) -> Result<(), Status>,
) -> Result<(), Status> {
    runtime::require_running()?;
    let queue = find(queue)?;
    let processor = queue.processor.lock().unwrap_or_else(PoisonError::into_inner).clone();
    operation(queue, &*processor.ok_or(INVALID_QUEUE)?)
}

/// `hsa_amd_queue_cu_set_mask`.
pub(crate) extern "C" fn set_cu_mask(queue: *const Queue, bits: u32, words: *const u32) -> Status {
    let mut is_reduced = false;
    let result = with_processor(queue, |queue, processor| {
        if !bits.is_multiple_of(32) {
            return Err(INVALID_ARGUMENT);
        }
        let device = queue.agent.device().ok_or(INVALID_AGENT)?;
        let available = full_mask(device.node.compute_units);
        let requested = read_array(words, usize::try_from(bits / 32).unwrap_or(0))?;
        // An empty mask restores all compute units.
        let requested = if requested.is_empty() { available.clone() } else { requested };
        let has_more =
            requested.iter().enumerate().any(|(n, word)| word & !available.get(n).unwrap_or(&0) != 0);
        is_reduced = has_more;
        let mask: Vec<u32> =
            available.iter().enumerate().map(|(n, word)| word & requested.get(n).unwrap_or(&0)).collect();
        if mask.iter().all(|word| *word == 0) || !processor.set_cu_mask(&mask) {
            return Err(INVALID_ARGUMENT);
        }
        *queue.cu_mask.lock().unwrap_or_else(PoisonError::into_inner) = mask;
        Ok(())
    });
    match result {
        Ok(()) if is_reduced => crate::status::CU_MASK_REDUCED,
        result => to_status(result),
    }
}

/// `hsa_amd_queue_cu_get_mask`.
pub(crate) extern "C" fn get_cu_mask(queue: *const Queue, bits: u32, words: *mut u32) -> Status {
    to_status(find(queue).and_then(|queue| {
        if bits == 0 || !bits.is_multiple_of(32) || words.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        let mask = queue.cu_mask.lock().unwrap_or_else(PoisonError::into_inner);
        for index in 0..usize::try_from(bits / 32).unwrap_or(0) {
            // SAFETY: the caller guarantees room for that many bits.
            unsafe { words.add(index).write(mask.get(index).copied().unwrap_or(0)) };
        }
        Ok(())
    }))
}

/// `hsa_amd_queue_set_priority`: low, normal and high.
pub(crate) extern "C" fn set_priority(queue: *mut Queue, priority: u32) -> Status {
    // What AMD's runtime passes to the driver for them.
    const DRIVER_PRIORITIES: [u32; 3] = [0, driver::NORMAL_PRIORITY, 11];
    to_status(with_processor(queue, |_, processor| {
        let index = usize::try_from(priority).unwrap_or(usize::MAX);
        let priority = DRIVER_PRIORITIES.get(index).ok_or(INVALID_ARGUMENT)?;
        if processor.set_priority(*priority) { Ok(()) } else { Err(OUT_OF_RESOURCES) }
    }))
}

/// `hsa_amd_queue_get_info`: the agent, or the number of the doorbell.
pub(crate) extern "C" fn get_info(queue: *mut Queue, attribute: u32, out: *mut u64) -> Status {
    to_status(find(queue).and_then(|queue| match attribute {
        0 => write_out(out, queue.agent.handle()),
        1 => write_out(out, queue.id),
        _ => Err(INVALID_ARGUMENT),
    }))
}

/// `hsa_amd_profiling_set_profiler_enabled`: times are always recorded.
pub(crate) extern "C" fn set_profiler_enabled(queue: *mut Queue, _enable: i32) -> Status {
    to_status(find(queue).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_mask_has_a_bit_for_each_compute_unit() {
        for (units, expected) in
            [(13, vec![0x1fff]), (32, vec![u32::MAX]), (104, vec![u32::MAX, u32::MAX, u32::MAX, 0xff])]
        {
            assert_eq!(full_mask(units), expected);
        }
    }
}

//! AQL queues. A thread for each reads the packets after its doorbell was rung, and submits them to the device.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use xsched_core::Marker;

use super::signals;
use super::{INVALID_ARGUMENT, OUT_OF_RESOURCES, SUCCESS, Status};
use crate::device::HwQueue;

/// `hsa_queue_t`, followed by the runtime's own part.
#[repr(C)]
pub(crate) struct Queue {
    kind: u32,
    features: u32,
    base: *mut Packet,
    doorbell: u64,
    size: u32,
    reserved: u32,
    id: u64,
    shared: Arc<Shared>,
}

#[repr(C, align(64))]
struct Packet {
    header: AtomicU16,
    setup: u16,
    shape: [u16; 2],
    /// The signals that a barrier waits for. In a kernel packet, the last word points to the kernel's arguments.
    words: [u64; 5],
    reserved: u64,
    done: u64,
}

const _: () = assert!(size_of::<Packet>() == 64);

const INVALID: u16 = 1;
const KERNEL: u16 = 2;
const BARRIER_AND: u16 = 3;

/// What the program and the queue's thread share.
pub(super) struct Shared {
    device: Arc<HwQueue>,
    packets: usize,
    size: u64,
    read: AtomicU64,
    write: AtomicU64,
    doorbell_value: AtomicI64,
    is_destroyed: AtomicBool,
    thread: OnceLock<std::thread::Thread>,
    done: Mutex<()>,
}

impl Shared {
    pub(super) fn ring_doorbell(&self, value: i64) {
        self.doorbell_value.fetch_max(value, Ordering::AcqRel);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    fn packet(&self, index: u64) -> &Packet {
        let slot = usize::try_from(index & (self.size - 1)).unwrap_or(0);
        // SAFETY: the ring has that many packets, and lives as long as the queue.
        unsafe { &*std::ptr::with_exposed_provenance::<Packet>(self.packets).add(slot) }
    }

    /// Submits a packet to the device; none if the packet is not valid yet, or its barrier is not satisfied.
    fn submit(&self, index: u64) -> Option<(Marker, u64)> {
        let packet = self.packet(index);
        let kind = packet.header.load(Ordering::Acquire) & 0xff;
        match kind {
            INVALID => return None,
            KERNEL => {
                let address = usize::try_from(packet.words[4]).unwrap_or(0);
                // SAFETY: a program that writes a kernel packet passes the arguments that the kernel takes.
                let length = unsafe { std::ptr::with_exposed_provenance::<u64>(address).as_ref() };
                self.device.launch(Duration::from_nanos(length.copied().unwrap_or(1000))).ok()?;
            }
            BARRIER_AND if packet.words.iter().any(|signal| *signal != 0 && signals::load(*signal) > 0) => {
                return None;
            }
            _ => {}
        }
        let done = packet.done;
        packet.header.store(INVALID, Ordering::Release);
        self.read.store(index + 1, Ordering::Release);
        Some((self.device.mark().ok()?, done))
    }

    fn run(&self) {
        let _running = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let mut unfinished = VecDeque::new();
        let mut next = 0;
        while !self.is_destroyed.load(Ordering::Acquire) {
            while i64::try_from(next).is_ok_and(|next| next <= self.doorbell_value.load(Ordering::Acquire)) {
                let Some(submitted) = self.submit(next) else { break };
                unfinished.push_back(submitted);
                next += 1;
            }
            while unfinished.front().is_some_and(|(marker, _)| self.device.is_past(*marker)) {
                unfinished.pop_front().into_iter().for_each(|(_, signal)| signals::count_down(signal));
            }
            std::thread::park_timeout(Duration::from_micros(if unfinished.is_empty() { 1000 } else { 20 }));
        }
    }
}

#[allow(clippy::too_many_arguments, reason = "AMD's function has them")]
pub(super) extern "C" fn create(
    agent: u64,
    size: u32,
    kind: u32,
    _callback: *mut c_void,
    _data: *mut c_void,
    _private: u32,
    _group: u32,
    out: *mut *mut Queue,
) -> Status {
    let Ok(device) = super::device(agent) else { return INVALID_ARGUMENT };
    if !size.is_power_of_two() || out.is_null() {
        return INVALID_ARGUMENT;
    }
    let Ok(device) = device.exclusive_queue() else { return OUT_OF_RESOURCES };
    let empty = || Packet {
        header: AtomicU16::new(INVALID),
        setup: 0,
        shape: [0; 2],
        words: [0; 5],
        reserved: 0,
        done: 0,
    };
    let ring: Vec<Packet> = (0..size).map(|_| empty()).collect();
    let base = Box::leak(ring.into_boxed_slice()).as_mut_ptr();
    let shared = Arc::new(Shared {
        device,
        packets: base.expose_provenance(),
        size: size.into(),
        read: AtomicU64::new(0),
        write: AtomicU64::new(0),
        doorbell_value: AtomicI64::new(-1),
        is_destroyed: AtomicBool::new(false),
        thread: OnceLock::new(),
        done: Mutex::new(()),
    });
    let doorbell = signals::new_signal(-1, Some(Arc::clone(&shared)));
    let worker = Arc::clone(&shared);
    let Ok(thread) = std::thread::Builder::new().spawn(move || worker.run()) else { return OUT_OF_RESOURCES };
    let _ = shared.thread.set(thread.thread().clone());
    let queue = Queue { kind, features: 1, base, doorbell, size, reserved: 0, id: 0, shared };
    crate::device::write_out(out, Box::into_raw(Box::new(queue))).map_or(INVALID_ARGUMENT, |()| SUCCESS)
}

pub(super) extern "C" fn destroy(queue: *mut Queue) -> Status {
    if queue.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: created by `create`, and the caller guarantees that this is its last use.
    let queue = unsafe { Box::from_raw(queue) };
    queue.shared.is_destroyed.store(true, Ordering::Release);
    queue.shared.ring_doorbell(0);
    // The queue's thread holds this lock until it exits.
    drop(queue.shared.done.lock().unwrap_or_else(PoisonError::into_inner));
    signals::destroy(queue.doorbell)
}

fn shared<'a>(queue: *mut Queue) -> &'a Shared {
    // SAFETY: the caller passes a valid queue.
    unsafe { &(*queue).shared }
}

pub(super) extern "C" fn read_index(queue: *mut Queue) -> u64 {
    shared(queue).read.load(Ordering::Acquire)
}

pub(super) extern "C" fn write_index(queue: *mut Queue) -> u64 {
    shared(queue).write.load(Ordering::Relaxed)
}

pub(super) extern "C" fn store_write_index(queue: *mut Queue, value: u64) {
    shared(queue).write.store(value, Ordering::Release);
}

pub(super) extern "C" fn compare_exchange_write_index(queue: *mut Queue, expected: u64, value: u64) -> u64 {
    let changed = shared(queue).write.compare_exchange(expected, value, Ordering::AcqRel, Ordering::Acquire);
    changed.unwrap_or_else(|found| found)
}

pub(super) extern "C" fn add_write_index(queue: *mut Queue, value: u64) -> u64 {
    shared(queue).write.fetch_add(value, Ordering::Relaxed)
}

//! The doorbell signals of the process's queues. Every signal store of the process is looked up here, so the look-up takes
//! no lock and costs one load if there are no queues.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use super::table::{Packet, Queue, QueueHandle};

/// One queue, by its doorbell.
pub(super) struct Doorbell {
    /// The handle of the doorbell signal; 0 for an unused entry.
    signal: AtomicU64,
    queue: AtomicPtr<Queue>,
    agent: AtomicU64,
    /// The number of packets that the doorbell was rung for.
    rung_packets: AtomicU64,
    /// The number of packets up to and including the last one that may wait for the program itself; 0 if there was none.
    program_dependency: AtomicU64,
}

const MAX_QUEUES: usize = 256;
static DOORBELLS: [Doorbell; MAX_QUEUES] = [const {
    Doorbell {
        signal: AtomicU64::new(0),
        queue: AtomicPtr::new(ptr::null_mut()),
        agent: AtomicU64::new(0),
        rung_packets: AtomicU64::new(0),
        program_dependency: AtomicU64::new(0),
    }
}; MAX_QUEUES];

/// The number of entries that were ever used.
static USED_ENTRIES: AtomicUsize = AtomicUsize::new(0);

/// An entry that a thread is filling in. No signal has this handle.
const BEING_FILLED: u64 = u64::MAX;

/// Adds a queue that was created.
pub(super) fn add(queue: QueueHandle, agent: u64) {
    if queue.is_null() {
        return;
    }
    // SAFETY: the runtime has just created the queue.
    let signal = unsafe { (*queue).doorbell };
    if signal == 0 || signal == BEING_FILLED {
        return;
    }
    let claim = |entry: &&Doorbell| {
        entry.signal.compare_exchange(0, BEING_FILLED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    // A process with more queues than entries has the others unscheduled.
    let Some((index, entry)) = DOORBELLS.iter().enumerate().find(|(_, entry)| claim(entry)) else { return };
    entry.queue.store(queue, Ordering::Relaxed);
    entry.agent.store(agent, Ordering::Relaxed);
    entry.rung_packets.store(0, Ordering::Relaxed);
    entry.program_dependency.store(0, Ordering::Relaxed);
    // Release: a thread that finds the signal sees the other fields.
    entry.signal.store(signal, Ordering::Release);
    USED_ENTRIES.fetch_max(index + 1, Ordering::Release);
}

/// The doorbell with this signal; none if the signal is no doorbell.
#[inline]
pub(super) fn find(signal: u64) -> Option<&'static Doorbell> {
    let used = USED_ENTRIES.load(Ordering::Acquire);
    DOORBELLS[..used].iter().find(|entry| entry.signal.load(Ordering::Acquire) == signal)
}

/// Removes a queue that is about to be destroyed. Returns its doorbell signal if it was known.
pub(super) fn remove(signal: u64) -> Option<u64> {
    let known = find(signal)?;
    known.signal.store(0, Ordering::Release);
    Some(signal)
}

/// Removes all queues and calls `untrack` with the doorbell signal of each.
pub(super) fn remove_all(untrack: impl Fn(u64) -> Option<u64>) {
    for entry in &DOORBELLS {
        let signal = entry.signal.swap(0, Ordering::AcqRel);
        if signal != 0 && signal != BEING_FILLED {
            untrack(signal);
        }
    }
}

impl Doorbell {
    pub(super) fn queue(&self) -> QueueHandle {
        self.queue.load(Ordering::Relaxed)
    }

    pub(super) fn agent(&self) -> u64 {
        self.agent.load(Ordering::Relaxed)
    }

    pub(super) fn signal(&self) -> u64 {
        self.signal.load(Ordering::Relaxed)
    }

    /// Records that the doorbell was rung with this value, the index of the last packet.
    pub(super) fn record_ring(&self, value: i64) {
        self.rung_packets.fetch_max(value.cast_unsigned().wrapping_add(1), Ordering::AcqRel);
    }

    /// The number of packets that the doorbell was rung for.
    pub(super) fn rung_packets(&self) -> u64 {
        self.rung_packets.load(Ordering::Acquire)
    }

    /// The number of packets up to and including the last one that may wait for the program itself; 0 if there was none.
    pub(super) fn program_dependency(&self) -> u64 {
        self.program_dependency.load(Ordering::Acquire)
    }

    /// Inspects the packets that the doorbell is about to be rung for: a barrier may wait for a signal that only the
    /// program sets.
    pub(super) fn inspect_packets(&self, value: i64) {
        let (first, last) = (self.rung_packets(), value.cast_unsigned());
        // SAFETY: the program is ringing the doorbell, so the queue exists.
        let (base, size) = unsafe { ((*self.queue()).base, u64::from((*self.queue()).size)) };
        if base.is_null() || last < first || last - first >= size {
            return;
        }
        for index in first..=last {
            let slot = usize::try_from(index & (size - 1)).unwrap_or(0);
            // SAFETY: the ring has `size` packets. Fields that another thread may be writing are read as atomics.
            let packet: &Packet = unsafe { &*base.add(slot) };
            let kind = packet.header.load(Ordering::Acquire) & 0xff;
            let is_barrier = kind == Packet::BARRIER_AND || kind == Packet::BARRIER_OR;
            if is_barrier && packet.dependencies.iter().any(|signal| signal.load(Ordering::Relaxed) != 0) {
                self.program_dependency.fetch_max(index + 1, Ordering::AcqRel);
            }
        }
    }
}

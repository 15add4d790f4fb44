//! The doorbells that we stand in front of. Every signal store of the process is looked up here: no lock, and one load where
//! there are none.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use super::table::{Packet, Queue, QueueHandle};

/// What is known of a queue.
pub(super) struct Doorbell {
    /// 0: none.
    signal: AtomicU64,
    queue: AtomicPtr<Queue>,
    agent: AtomicU64,
    /// The packets that were rung for so far.
    rung: AtomicU64,
    /// Behind the last packet that may wait for the program itself.
    depends: AtomicU64,
}

const MOST: usize = 256;
static DOORBELLS: [Doorbell; MOST] = [const {
    Doorbell {
        signal: AtomicU64::new(0),
        queue: AtomicPtr::new(ptr::null_mut()),
        agent: AtomicU64::new(0),
        rung: AtomicU64::new(0),
        depends: AtomicU64::new(0),
    }
}; MOST];

/// Places that were ever used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Being filled in; no signal has this handle.
const CHANGING: u64 = u64::MAX;

/// A queue was made.
pub(super) fn learn(queue: QueueHandle, agent: u64) {
    if queue.is_null() {
        return;
    }
    // SAFETY: the runtime has just made it.
    let signal = unsafe { (*queue).doorbell };
    if signal == 0 || signal == CHANGING {
        return;
    }
    let take = |place: &&Doorbell| {
        place.signal.compare_exchange(0, CHANGING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    // More queues than places: those run unscheduled.
    let Some((number, place)) = DOORBELLS.iter().enumerate().find(|(_, place)| take(place)) else { return };
    place.queue.store(queue, Ordering::Relaxed);
    place.agent.store(agent, Ordering::Relaxed);
    place.rung.store(0, Ordering::Relaxed);
    place.depends.store(0, Ordering::Relaxed);
    // Release: who finds the signal finds the rest.
    place.signal.store(signal, Ordering::Release);
    USED.fetch_max(number + 1, Ordering::Release);
}

/// The doorbell that a signal is, if it is one.
#[inline]
pub(super) fn find(signal: u64) -> Option<&'static Doorbell> {
    let used = USED.load(Ordering::Acquire);
    DOORBELLS[..used].iter().find(|place| place.signal.load(Ordering::Acquire) == signal)
}

/// A queue is about to be destroyed. Answers with its doorbell if we stood in front of it.
pub(super) fn forget(signal: u64) -> Option<u64> {
    let known = find(signal)?;
    known.signal.store(0, Ordering::Release);
    Some(signal)
}

/// All queues are gone.
pub(super) fn take_all(last: impl Fn(u64) -> Option<u64>) {
    for place in &DOORBELLS {
        let signal = place.signal.swap(0, Ordering::AcqRel);
        if signal != 0 && signal != CHANGING {
            last(signal);
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

    /// The device has been told of the packets up to this one.
    pub(super) fn rung(&self, value: i64) {
        self.rung.fetch_max(value.cast_unsigned().wrapping_add(1), Ordering::AcqRel);
    }

    /// How many packets the device has been told of.
    pub(super) fn packets(&self) -> u64 {
        self.rung.load(Ordering::Acquire)
    }

    /// Behind the last packet that may wait for the program itself; 0: there was none.
    pub(super) fn depends(&self) -> u64 {
        self.depends.load(Ordering::Acquire)
    }

    /// Looks at the packets that are about to be rung for: a barrier may wait for a signal that only the program sets.
    pub(super) fn look_at_packets(&self, value: i64) {
        let (first, last) = (self.packets(), value.cast_unsigned());
        // SAFETY: its program rings for it, so it exists.
        let (base, size) = unsafe { ((*self.queue()).base, u64::from((*self.queue()).size)) };
        if base.is_null() || last < first || last - first >= size {
            return;
        }
        for index in first..=last {
            let place = usize::try_from(index & (size - 1)).unwrap_or(0);
            // SAFETY: the ring has `size` packets. What another thread may be writing is read as atomics.
            let packet: &Packet = unsafe { &*base.add(place) };
            let kind = packet.header.load(Ordering::Acquire) & 0xff;
            let is_barrier = kind == Packet::BARRIER_AND || kind == Packet::BARRIER_OR;
            if is_barrier && packet.after.iter().any(|signal| signal.load(Ordering::Relaxed) != 0) {
                self.depends.fetch_max(index + 1, Ordering::AcqRel);
            }
        }
    }
}

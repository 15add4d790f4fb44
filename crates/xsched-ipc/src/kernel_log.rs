//! The kernels that a process launches, by name, while a tool traces them.
//!
//! ```text
//!   launching thread  launch ─► driver's name ─► record ─┐
//!                                                       entries: queue, name, count
//!   watcher thread                     every 10 ms: take ┘─► request to the service
//! ```
//!
//! The launching thread looks the name up after its launch, because the program may unload the kernel later. It neither allocates nor
//! waits: a launch during which another thread uses the entries, or for which there is no room, has no name in the trace.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

use xsched_core::{Nanos, QueueId};

use crate::process_threads::ORDER_WAIT_TIMEOUT;
use crate::protocol::{KernelLaunches, MAX_KERNELS, Request};
use crate::scheduled_process::{ScheduledProcess, SchedulerEndpoint, lock};
use crate::scheduled_queue::ScheduledQueue;

/// Between two requests to the service.
const SEND_INTERVAL: Nanos = Nanos::from_millis(10);
/// How long a launch of an idle process waits until its name is sent.
const MAX_DELAY: Duration = Duration::from_millis(100);

/// The name of a kernel, of which a long one is cut. It needs no allocation.
#[derive(Clone, Copy)]
pub struct KernelName {
    bytes: [u8; Self::ROOM],
    length: usize,
}

impl KernelName {
    const ROOM: usize = 255;

    /// The name in these bytes, up to the first zero byte.
    #[must_use]
    pub fn new(name: &[u8]) -> Self {
        let length = name.iter().take(Self::ROOM).take_while(|byte| **byte != 0).count();
        let mut bytes = [0; Self::ROOM];
        bytes[..length].copy_from_slice(&name[..length]);
        Self { bytes, length }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes[..self.length]).into_owned()
    }
}

impl PartialEq for KernelName {
    fn eq(&self, other: &Self) -> bool {
        self.bytes[..self.length] == other.bytes[..other.length]
    }
}

/// For drivers that know a kernel by numbers only.
impl fmt::Write for KernelName {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        let room = self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

struct Entry {
    queue: QueueId,
    name: KernelName,
    count: u64,
    /// The first launch.
    began: Nanos,
}

/// See the head of this file.
#[derive(Default)]
pub(crate) struct KernelLog {
    /// Set after the entries were allocated.
    is_wanted: AtomicBool,
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    list: Vec<Entry>,
    sent_at: Nanos,
}

impl KernelLog {
    /// Whether launching threads record names.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// Starts or ends the recording.
    fn set_wanted(&self, is_wanted: bool) {
        if is_wanted != self.is_wanted() {
            let mut entries = lock(&self.entries);
            entries.list = if is_wanted { Vec::with_capacity(MAX_KERNELS) } else { Vec::new() };
            self.is_wanted.store(is_wanted, Ordering::Relaxed);
        }
    }

    /// Records one launch.
    pub(crate) fn record(&self, queue: QueueId, name: &KernelName, now: Nanos) {
        let mut entries = match self.entries.try_lock() {
            Ok(entries) => entries,
            Err(TryLockError::Poisoned(entries)) => entries.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let list = &mut entries.list;
        if let Some(entry) = list.iter_mut().find(|entry| entry.queue == queue && entry.name == *name) {
            entry.count += 1;
        } else if list.len() < list.capacity() {
            list.push(Entry { queue, name: *name, count: 1, began: now });
        }
    }

    /// The entries, if it is time to send them, and how soon to call this again.
    fn take(&self, now: Nanos) -> (Vec<Entry>, Duration) {
        let (is_empty, due) = {
            let entries = lock(&self.entries);
            (entries.list.is_empty(), entries.sent_at + SEND_INTERVAL)
        };
        if is_empty {
            // A thread that launches wakes the watcher thread, but not for this.
            return (Vec::new(), if self.is_wanted() { MAX_DELAY } else { ORDER_WAIT_TIMEOUT });
        }
        if now < due {
            return (Vec::new(), (due - now).into());
        }
        // Allocated without the lock, so that few launches find it taken.
        let spare = Vec::with_capacity(MAX_KERNELS);
        let mut entries = lock(&self.entries);
        entries.sent_at = now;
        (std::mem::replace(&mut entries.list, spare), SEND_INTERVAL.into())
    }
}

/// Sends the kernels that were launched, if the service wants them. Returns how soon to call this again. Belongs to the watcher thread.
pub(crate) fn send_to_service(process: &ScheduledProcess, queues: &[Arc<ScheduledQueue>]) -> Duration {
    let binding = process.binding();
    let log = &process.kernel_log;
    let SchedulerEndpoint::Service(connection) = &binding.endpoint else {
        log.set_wanted(false);
        return ORDER_WAIT_TIMEOUT;
    };
    log.set_wanted(binding.page.wants_kernel_names());
    if !log.is_wanted() {
        return ORDER_WAIT_TIMEOUT;
    }
    let now = Nanos::now();
    let (entries, timeout) = log.take(now);
    let slot = |id| queues.iter().find(|queue| queue.id() == id).and_then(|queue| queue.slot());
    let kernels: Vec<_> = entries
        .into_iter()
        .filter_map(|Entry { queue, name, count, began }| {
            let age_ns = (now - began).0;
            Some(KernelLaunches { slot: slot(queue)?, name: name.text(), count, age_ns })
        })
        .collect();
    if !kernels.is_empty() {
        connection.post_if_room(&Request::Kernels(kernels));
    }
    timeout
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;
    use crate::socket::MAX_PACKET_SIZE;

    fn log() -> KernelLog {
        let log = KernelLog::default();
        log.set_wanted(true);
        log
    }

    #[test]
    fn launches_of_one_kernel_on_one_queue_are_one_entry() {
        let log = log();
        let at = Nanos::from_millis;
        for (queue, name, now) in [(1, "a", 20), (1, "b", 21), (1, "a", 22), (2, "a", 23)] {
            log.record(QueueId(queue), &KernelName::new(name.as_bytes()), at(now));
        }
        let (entries, _) = log.take(at(30));
        let seen: Vec<_> = entries
            .iter()
            .map(|entry| (entry.queue.0, entry.name.text(), entry.count, entry.began))
            .collect();
        let name = |name: &str| name.to_owned();
        let expected = [(1, name("a"), 2, at(20)), (1, name("b"), 1, at(21)), (2, name("a"), 1, at(23))];
        assert_eq!(seen, expected);
        log.record(QueueId(1), &KernelName::new(b"a"), at(31));
        assert_eq!(log.take(at(32)).0.len(), 0, "sent too soon");
        assert_eq!(log.take(at(40)).0.len(), 1);
    }

    #[test]
    fn recording_allocates_nothing_and_waits_for_nothing() {
        let log = log();
        for number in 0..2 * MAX_KERNELS {
            let mut name = KernelName::new(b"kernel ");
            write!(name, "{number}").unwrap();
            log.record(QueueId(1), &name, Nanos(1));
        }
        let held = lock(&log.entries);
        assert_eq!(held.list.len(), MAX_KERNELS);
        assert_eq!(held.list.capacity(), MAX_KERNELS);
        log.record(QueueId(1), &KernelName::new(b"while another thread uses the entries"), Nanos(1));
        drop(held);
        log.set_wanted(false);
        log.record(QueueId(1), &KernelName::new(b"after the end"), Nanos(1));
        assert_eq!(lock(&log.entries).list.capacity(), 0);
    }

    #[test]
    fn longest_names_fit_a_packet() {
        let name = KernelName::new(&[b'"'; 1_000]).text();
        let kernel = KernelLaunches { slot: usize::MAX, name, count: u64::MAX, age_ns: u64::MAX };
        let request = Request::Kernels(vec![kernel; MAX_KERNELS]);
        assert!(serde_json::to_vec(&request).unwrap().len() <= MAX_PACKET_SIZE);
        assert_eq!(KernelName::new(b"cut\0off").text(), "cut");
    }
}

//! What the service reports about the measured programs: their launches, and when they had work.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context as _;
use xsched_core::Nanos;
use xsched_ipc::protocol::{Event, EventKind, Reply, Request};

use crate::tool::ToolConnection;

/// How often the thread checks whether it is to end.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The work of all processes with one name.
#[derive(Clone, Debug, Default)]
pub(super) struct Work {
    /// Numbers of launches, and when the service counted them.
    launches: Vec<(Nanos, u64)>,
    /// Each span from the first launch on idle queues until they are idle again.
    requests: Vec<(Nanos, Nanos)>,
    /// When a task with work was held.
    held: Vec<Nanos>,
    /// Since when a task has had work.
    busy_since: HashMap<u64, Nanos>,
}

impl Work {
    /// Launches that were counted in this span.
    pub(super) fn launches(&self, from: Nanos, to: Nanos) -> u64 {
        self.launches.iter().filter(|(at, _)| *at > from && *at <= to).map(|(_, count)| count).sum()
    }

    /// How long each request took that ended in this span, shortest first, in milliseconds.
    pub(super) fn request_times_ms(&self, from: Nanos, to: Nanos) -> Vec<f64> {
        let ended = self.requests.iter().filter(|(begin, end)| *begin >= from && *end <= to);
        let mut times: Vec<f64> = ended.map(|(begin, end)| (*end - *begin).as_micros_f64() / 1e3).collect();
        times.sort_by(f64::total_cmp);
        times
    }

    /// How often a task was held with work.
    pub(super) fn holds(&self) -> usize {
        self.held.len()
    }

    fn record(&mut self, event: &Event) {
        let at = Nanos(event.at_ns);
        match event.kind {
            EventKind::Launched { count, .. } => self.launches.push((at, count)),
            EventKind::Held => self.held.push(at),
            EventKind::Busy => {
                self.busy_since.entry(event.task).or_insert(at);
            }
            EventKind::Idle | EventKind::TaskRemoved => {
                if let Some(since) = self.busy_since.remove(&event.task) {
                    self.requests.push((since, at));
                }
            }
            _ => {}
        }
    }
}

#[derive(Default)]
struct Records {
    /// The names of processes.
    names: HashMap<u32, String>,
    /// The devices that the processes of a name use.
    devices: HashMap<String, BTreeSet<u64>>,
    work: HashMap<String, Work>,
    lost: u64,
}

impl Records {
    fn record(&mut self, event: &Event) {
        if let EventKind::TaskAdded(name) = &event.kind
            && !name.is_empty()
        {
            self.names.insert(event.pid, name.clone());
            self.devices.entry(name.clone()).or_default().insert(event.device);
        }
        if let Some(name) = self.names.get(&event.pid) {
            self.work.entry(name.clone()).or_default().record(event);
        }
    }
}

/// Records the events of a service, from before its first client on.
pub(super) struct Recorder {
    records: Arc<Mutex<Records>>,
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Starts to record.
    pub(super) fn start(socket: &Path) -> anyhow::Result<Self> {
        let tracer = ToolConnection::connect_to_first(vec![socket.to_owned()])?;
        tracer.send(&Request::Trace)?;
        let records = Arc::new(Mutex::new(Records::default()));
        let is_stopped = Arc::new(AtomicBool::new(false));
        let (shared, stop) = (Arc::clone(&records), Arc::clone(&is_stopped));
        let receive = move || {
            while !stop.load(Ordering::Relaxed) {
                match tracer.wait(CHECK_INTERVAL) {
                    Ok(false) => continue,
                    Ok(true) => {}
                    Err(_) => return,
                }
                // The service has exited, or ends the trace: what was recorded stays.
                let Ok(reply) = tracer.next_reply() else { return };
                if let Reply::Events { events, lost } = reply {
                    let mut records = shared.lock().unwrap_or_else(PoisonError::into_inner);
                    records.lost += lost;
                    for event in &events {
                        records.record(event);
                    }
                }
            }
        };
        let thread = thread::Builder::new().name("recorder".to_owned()).spawn(receive);
        Ok(Self { records, is_stopped, thread: Some(thread.context("cannot start a thread")?) })
    }

    /// The work so far of the programs with this name.
    pub(super) fn work(&self, name: &str) -> Work {
        let records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.work.get(name).cloned().unwrap_or_default()
    }

    /// The devices that the programs with this name use.
    pub(super) fn devices(&self, name: &str) -> BTreeSet<u64> {
        let records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.devices.get(name).cloned().unwrap_or_default()
    }

    /// Whether a program with this name has launched.
    pub(super) fn has_launched(&self, name: &str) -> bool {
        let records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.work.get(name).is_some_and(|work| !work.launches.is_empty())
    }

    /// The number of events that the service could not send.
    pub(super) fn lost(&self) -> u64 {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).lost
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at_ns: u64, pid: u32, kind: EventKind) -> Event {
        Event { at_ns, task: pid.into(), pid, device: 0, kind }
    }

    #[test]
    fn work_is_attributed_by_the_name_of_the_process() {
        let mut records = Records::default();
        for (at, pid, kind) in [
            (0, 1, EventKind::TaskAdded("a".into())),
            (0, 2, EventKind::TaskAdded("b".into())),
            (0, 3, EventKind::TaskAdded("a".into())),
            (1_000_000, 1, EventKind::Busy),
            (1_000_000, 2, EventKind::Launched { queue: 1, count: 5 }),
            (2_000_000, 3, EventKind::Launched { queue: 2, count: 7 }),
            (3_500_000, 1, EventKind::Idle),
            (4_000_000, 3, EventKind::Launched { queue: 2, count: 1 }),
            (9_000_000, 9, EventKind::Launched { queue: 3, count: 100 }),
        ] {
            records.record(&event(at, pid, kind));
        }
        let (from, to) = (Nanos(0), Nanos(3_900_000));
        assert_eq!(records.work["a"].launches(from, to), 7, "also those of a second process of that name");
        assert_eq!(records.work["a"].launches(to, Nanos(5_000_000)), 1);
        assert_eq!(records.work["b"].launches(from, to), 5);
        assert_eq!(records.work["a"].request_times_ms(from, to), [2.5]);
        assert!(records.work["a"].request_times_ms(Nanos(2_000_000), to).is_empty(), "it began before");
    }

    #[test]
    fn request_ends_with_its_task() {
        let mut records = Records::default();
        records.record(&event(0, 1, EventKind::TaskAdded("a".into())));
        records.record(&event(1_000_000, 1, EventKind::Busy));
        records.record(&event(2_000_000, 1, EventKind::TaskRemoved));
        assert_eq!(records.work["a"].request_times_ms(Nanos(0), Nanos(2_000_000)), [1.0]);
    }
}

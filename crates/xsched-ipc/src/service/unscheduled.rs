//! Finds unscheduled programs that keep a GPU busy, beside which tasks with short time slices would starve.
//!
//! ```text
//!   service, every second while a task gives way ──devices──► thread: asks the driver
//!           ◄──── the processes on each device, and how much each uses it ────┘
//! ```
//!
//! NVIDIA's driver is asked through its management library (`nvml`), AMD's through its files (`kfd`). The thread exists because
//! the driver may take any time to reply.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use xsched_core::{DeviceId, Nanos};

use super::Service;
use super::kfd;
use super::nvml::ManagementLibrary;
use crate::kfd_topology::DRIVER_FILES;
use crate::notifier::Notifier;

/// How often the driver is asked while a task gives way.
const POLL_INTERVAL: Nanos = Nanos::from_secs(1);
/// The management library is unloaded after this time without a request.
const UNLOAD_DELAY: Duration = Duration::from_secs(10);
/// Unscheduled programs that use the GPU for this part of the time, in percent, do not pause long enough for other tasks.
const BUSY: u32 = 50;
/// They share the GPU then. Below this part they are gone, or pause.
const NOT_BUSY: u32 = 10;

/// A process that uses a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GpuProcess {
    pub(super) pid: u32,
    /// The part of the time, around the query, during which the GPU ran its kernels, in percent.
    pub(super) utilization: u32,
}

/// The processes on each device that was asked for.
pub(super) type Processes = Vec<(DeviceId, Vec<GpuProcess>)>;

/// Asks the driver, on a thread of its own, which starts with the first request.
pub(super) struct DriverQueries {
    requests: Option<mpsc::Sender<Vec<DeviceId>>>,
    /// The driver has not replied to the last request. Further ones would only wait behind it.
    is_pending: bool,
    results: Arc<Mutex<Option<Processes>>>,
    notifier: Arc<Notifier>,
}

impl DriverQueries {
    pub(super) fn new() -> rustix::io::Result<Self> {
        Ok(Self {
            requests: None,
            is_pending: false,
            results: Arc::default(),
            notifier: Arc::new(Notifier::new()?),
        })
    }

    /// Asks the driver, unless it has not replied to the last request.
    fn request(&mut self, devices: Vec<DeviceId>) {
        if std::mem::replace(&mut self.is_pending, true) {
            return;
        }
        let (results, notifier) = (&self.results, &self.notifier);
        let requests = self.requests.get_or_insert_with(|| {
            let (requests, received) = mpsc::channel();
            let (results, notifier) = (Arc::clone(results), Arc::clone(notifier));
            // Without the thread no unscheduled program is found.
            let _ = std::thread::Builder::new()
                .name("xsched-driver".to_owned())
                .spawn(move || answer(&received, &results, &notifier));
            requests
        });
        let _ = requests.send(devices);
    }

    fn take_result(&mut self) -> Option<Processes> {
        self.notifier.acknowledge();
        let result = self.results.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.is_pending &= result.is_none();
        result
    }
}

impl AsFd for DriverQueries {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }
}

/// The body of the thread. Returns when the service is gone.
fn answer(requests: &mpsc::Receiver<Vec<DeviceId>>, results: &Mutex<Option<Processes>>, notifier: &Notifier) {
    let mut library = None;
    loop {
        // Without the library nothing is left to do until the next request.
        let request = match library {
            Some(_) => requests.recv_timeout(UNLOAD_DELAY),
            None => requests.recv().map_err(Into::into),
        };
        match request {
            Ok(devices) => {
                // A PCI address does not show the vendor: devices that AMD's driver does not list are NVIDIA's.
                let mut found = kfd::processes(Path::new(DRIVER_FILES), &devices);
                let is_found = |device: &DeviceId| found.iter().any(|(other, _)| other == device);
                let others: Vec<_> = devices.into_iter().filter(|device| !is_found(device)).collect();
                if !others.is_empty() {
                    let library = library.get_or_insert_with(ManagementLibrary::load);
                    let processes = |device: DeviceId| Some((device, library.as_ref()?.processes(device)?));
                    found.extend(others.into_iter().filter_map(processes));
                }
                *results.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
                notifier.notify();
            }
            Err(mpsc::RecvTimeoutError::Timeout) => library = None,
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Service {
    /// After a decision: has the driver asked if some task gives way.
    pub(super) fn schedule_driver_query(&mut self, now: Nanos) {
        if self.driver_query_due.is_none() && self.coordinator.has_task_that_gives_way() {
            self.driver_query_due = Some(now + POLL_INTERVAL);
        }
    }

    pub(super) fn query_driver(&mut self, now: Nanos) {
        let devices = self.coordinator.devices_with_tasks_that_give_way();
        if devices.is_empty() {
            self.driver_query_due = None;
            self.is_decision_due |= self.coordinator.set_unscheduled(Vec::new());
        } else {
            self.driver_query_due = Some(now + POLL_INTERVAL);
            self.driver_queries.request(devices);
        }
    }

    /// The driver has replied.
    pub(super) fn store_driver_reply(&mut self) {
        let Some(devices) = self.driver_queries.take_result() else { return };
        let scheduled: Vec<u32> = self
            .sessions
            .iter()
            .filter(|session| session.process().is_some())
            .map(|session| session.peer.pid)
            .collect();
        let known = self.coordinator.unscheduled().to_vec();
        let busiest = |(device, processes): (DeviceId, Vec<GpuProcess>)| {
            let was_busy = known.iter().any(|(other, _)| *other == device);
            busiest_unscheduled(&processes, &scheduled, was_busy).map(|pid| (device, pid))
        };
        let unscheduled = devices.into_iter().filter_map(busiest).collect();
        self.is_decision_due |= self.coordinator.set_unscheduled(unscheduled);
    }
}

/// The unscheduled process that uses the device most, if unscheduled processes keep it busy.
fn busiest_unscheduled(processes: &[GpuProcess], scheduled: &[u32], was_busy: bool) -> Option<u32> {
    let is_scheduled = |process: &&GpuProcess| scheduled.contains(&process.pid);
    // A scheduled process uses the device. If the driver does not list it, the numbers are those of another PID namespace.
    processes.iter().find(is_scheduled)?;
    let others = || processes.iter().filter(|process| !is_scheduled(process));
    let sum: u32 = others().map(|process| process.utilization).sum();
    let is_busy = sum >= if was_busy { NOT_BUSY } else { BUSY };
    others().max_by_key(|process| process.utilization).filter(|_| is_busy).map(|process| process.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unscheduled_processes_count_together_and_until_they_pause() {
        let process = |pid, utilization| GpuProcess { pid, utilization };
        let scheduled = [1, 2];
        let busiest = |others: &[GpuProcess], was_busy| {
            busiest_unscheduled(&[&[process(1, 90)], others].concat(), &scheduled, was_busy)
        };
        assert_eq!(busiest(&[process(2, 100)], false), None);
        assert_eq!(busiest(&[process(3, 49)], false), None);
        assert_eq!(busiest(&[process(3, 20), process(4, 30)], false), Some(4));
        assert_eq!(busiest(&[process(3, 10)], true), Some(3), "it shares the device");
        assert_eq!(busiest(&[process(3, 9)], true), None);
        assert_eq!(
            busiest_unscheduled(&[process(3, 100)], &scheduled, false),
            None,
            "the numbers are those of another PID namespace"
        );
    }

    #[test]
    fn driver_that_does_not_reply_has_one_request() {
        let (requests, received) = mpsc::channel();
        let mut queries = DriverQueries { requests: Some(requests), ..DriverQueries::new().unwrap() };
        for _ in 0..100 {
            queries.request(vec![DeviceId(1)]);
            assert!(queries.take_result().is_none());
        }
        assert_eq!(received.try_iter().count(), 1);
        *queries.results.lock().unwrap() = Some(Vec::new());
        assert!(queries.take_result().is_some());
        queries.request(vec![DeviceId(1)]);
        assert_eq!(received.try_iter().count(), 1, "it has replied");
    }
}

//! The hardware queues of this process on one device, which are stopped together.
//!
//! Streams share hardware queues, and the runtime does not report which stream uses which queue. Stopping the queue of one
//! stream could stop a stream of higher precedence, so the queues are stopped once every stream of the process on the
//! device is preempted, and resumed with the first that is not. Until then the gate alone holds the preempted streams.
//!
//! Each device has its own lock, which is held during the calls to the kernel driver. Stopping one device does not delay
//! another.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xsched_core::{DeviceId, Order};
use xsched_ipc::report::{Severity, report};

use super::kfd::UpdateError;
use super::stall_points::StallWord;
use super::{compute_unit_mask, kfd};

/// How the queues of a device are stopped.
pub(super) enum StopMechanism {
    /// By the kernel driver, which has this id for the GPU. If its topology does not list the GPU, none: then the process's
    /// queues are stopped if all of them are on one GPU.
    Kfd(Option<u32>),
    /// By stall points that read these words, one for each copy of the runtime.
    StallPoints(Vec<&'static StallWord>),
    #[cfg(test)]
    Test(Box<dyn Fn(bool) -> Result<(), UpdateError> + Send>),
}

struct DeviceQueues {
    id: DeviceId,
    /// Work was launched, so the process has queues on the device. Not behind the lock, which launching threads must not wait for.
    has_launched: Arc<AtomicBool>,
    state: Mutex<State>,
}

#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own; none excludes another")]
struct State {
    id: DeviceId,
    mechanism: StopMechanism,
    streams: Vec<(u64, StreamState)>,
    last_stream: u64,
    is_stopped: bool,
    /// The priority that the driver was given for the queues; none for the program's own.
    priority: Option<u32>,
    /// A task of higher precedence may preempt this process.
    is_preemptible: bool,
    /// The process is exiting: the queues run, and stay so.
    is_released: bool,
    has_launched: Arc<AtomicBool>,
    is_failed_stop_reported: bool,
    is_failed_resume_reported: bool,
}

#[derive(Clone, Copy)]
struct StreamState {
    is_preempted: bool,
    has_work: bool,
}

static DEVICES: Mutex<Vec<Arc<DeviceQueues>>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One stream, registered with its device until it is dropped or unregistered.
pub(super) struct StreamOnDevice {
    device: Arc<DeviceQueues>,
    number: u64,
}

impl StreamOnDevice {
    /// Registers a stream, which resumes the queues of the device if they are stopped. The error is the driver's, if it refuses
    /// to resume them.
    pub(super) fn register(id: DeviceId, mechanism: StopMechanism) -> Result<Self, String> {
        let device = DeviceQueues::with_id(id, mechanism);
        let mut state = lock(&device.state);
        state.last_stream += 1;
        let number = state.last_stream;
        state.streams.push((number, StreamState { is_preempted: false, has_work: true }));
        if state.priority.is_some() {
            // The stream may have a new hardware queue.
            state.apply_precedence();
        }
        if let Err(why) = state.apply() {
            state.streams.pop();
            return Err(why);
        }
        drop(state);
        Ok(Self { device, number })
    }

    /// Preempts the stream, or resumes it. The queues are stopped when this is done for the device's last stream.
    pub(super) fn set_preempted(&self, is_preempted: bool) -> Result<(), String> {
        let result = self.update(|stream| stream.is_preempted = is_preempted);
        if is_preempted && result.is_err() {
            // The launch path regards the stream as running, and would not resume queues that a later change stops.
            let _ = self.update(|stream| stream.is_preempted = false);
        }
        result
    }

    pub(super) fn set_has_work(&self, has_work: bool) {
        // If the driver refuses, the next change tries again.
        let _ = self.update(|stream| stream.has_work = has_work);
    }

    /// Work was launched on the stream.
    pub(super) fn set_launched(&self) {
        self.device.has_launched.store(true, Ordering::Relaxed);
    }

    /// For a stream that is destroyed.
    pub(super) fn unregister(&self) {
        let mut state = lock(&self.device.state);
        state.streams.retain(|(number, _)| *number != self.number);
        // If the driver refuses, the next change of another stream tries again.
        let _ = state.apply();
    }

    fn update(&self, change: impl FnOnce(&mut StreamState)) -> Result<(), String> {
        let mut state = lock(&self.device.state);
        let Some((_, stream)) = state.streams.iter_mut().find(|(number, _)| *number == self.number) else {
            return Ok(());
        };
        change(stream);
        state.apply()
    }

    /// Gives the queues the hardware priority of the order.
    pub(super) fn set_order(&self, order: Order) {
        let priority = match order {
            // A peer shares the GPU with programs outside of XSched as well. With the lowest priority it would starve beside them.
            Order::Free | Order::Peer => None,
            Order::Leader => Some(kfd::HIGHEST_PRIORITY),
            Order::Throttled | Order::Yield | Order::Evict | Order::Drain => Some(kfd::LOWEST_PRIORITY),
        };
        let is_preemptible = order == Order::Throttled || order.stops();
        let mut state = lock(&self.device.state);
        if !state.is_released && (state.priority, state.is_preemptible) != (priority, is_preemptible) {
            (state.priority, state.is_preemptible) = (priority, is_preemptible);
            state.apply_precedence();
        }
    }
}

impl Drop for StreamOnDevice {
    fn drop(&mut self) {
        self.unregister();
    }
}

impl DeviceQueues {
    fn with_id(id: DeviceId, mechanism: StopMechanism) -> Arc<Self> {
        let mut devices = lock(&DEVICES);
        let Some(device) = devices.iter().find(|device| device.id == id).map(Arc::clone) else {
            let has_launched = Arc::new(AtomicBool::new(false));
            let state = Mutex::new(State::new(id, mechanism, Arc::clone(&has_launched)));
            let device = Arc::new(Self { id, has_launched, state });
            devices.push(Arc::clone(&device));
            return device;
        };
        drop(devices);
        lock(&device.state).add_words(mechanism);
        device
    }
}

impl State {
    fn new(id: DeviceId, mechanism: StopMechanism, has_launched: Arc<AtomicBool>) -> Self {
        Self {
            id,
            mechanism,
            streams: Vec::new(),
            last_stream: 0,
            is_stopped: false,
            priority: None,
            is_preemptible: false,
            is_released: false,
            has_launched,
            is_failed_stop_reported: false,
            is_failed_resume_reported: false,
        }
    }

    /// Adds the words of another copy of the runtime.
    fn add_words(&mut self, mechanism: StopMechanism) {
        if let (StopMechanism::StallPoints(words), StopMechanism::StallPoints(new)) =
            (&mut self.mechanism, mechanism)
        {
            for word in new {
                if !words.iter().any(|known| std::ptr::eq(*known, word)) {
                    words.push(word);
                }
            }
        }
    }

    /// Stops or resumes the queues, as the streams require.
    fn apply(&mut self) -> Result<(), String> {
        let all_preempted = self.streams.iter().all(|(_, stream)| stream.is_preempted);
        // Queues without work are not stopped: the program may copy there, which is not counted as work.
        let has_work = self.streams.iter().any(|(_, stream)| stream.has_work);
        let stop = all_preempted && has_work && !self.is_released;
        if stop == self.is_stopped {
            return Ok(());
        }
        self.is_stopped = stop;
        let Err(why) = self.update_queues() else { return Ok(()) };
        self.report_failure(stop, &why);
        match why {
            // The gate holds the queues that are not stopped, and the stopped ones are to be resumed.
            UpdateError::PartlyStopped(_) => Ok(()),
            // There is nothing to resume if there is no queue.
            UpdateError::NoQueue if !stop => Ok(()),
            // A caller that was to resume the queues tries again.
            why => {
                self.is_stopped = !stop;
                Err(why.to_string())
            }
        }
    }

    /// Reports once that the queues cannot be stopped, and once that they cannot be resumed. A process that has launched nothing
    /// has no queues yet: the gate holds its first launch.
    fn report_failure(&mut self, stop: bool, why: &UpdateError) {
        let has_no_queue = matches!(why, UpdateError::NoQueue);
        let is_expected = has_no_queue && !(stop && self.has_launched.load(Ordering::Relaxed));
        let is_reported =
            if stop { &mut self.is_failed_stop_reported } else { &mut self.is_failed_resume_reported };
        if is_expected || std::mem::replace(is_reported, true) {
            return;
        }
        let id = self.id;
        let consequence = match why {
            _ if !stop => "has queues that are still stopped, and are resumed later",
            UpdateError::PartlyStopped(_) => {
                "is scheduled at level 1 in part: some of its queues cannot be stopped"
            }
            _ => "is scheduled at level 1: its queues cannot be stopped",
        };
        report(Severity::Warning, format_args!("device {id} {consequence}: {why}"));
    }

    /// Hardware priorities and compute units only improve on what the gate enforces, so errors are ignored.
    fn apply_precedence(&self) {
        if let StopMechanism::Kfd(gpu) = &self.mechanism {
            kfd::set_priority(*gpu, self.priority);
            compute_unit_mask::set_preemptible(*gpu, self.is_preemptible);
        }
    }

    fn update_queues(&self) -> Result<(), UpdateError> {
        match &self.mechanism {
            StopMechanism::Kfd(gpu) => kfd::set_stopped(*gpu, self.is_stopped, self.priority),
            StopMechanism::StallPoints(words) => {
                for word in words {
                    word.set_stopped(self.is_stopped);
                }
                Ok(())
            }
            #[cfg(test)]
            StopMechanism::Test(set_stopped) => set_stopped(self.is_stopped),
        }
    }
}

/// Makes sure that a word is not written again: its memory is about to be freed.
pub(super) fn forget_word(word: &'static StallWord) {
    let devices = lock(&DEVICES).clone();
    for device in devices {
        if let StopMechanism::StallPoints(words) = &mut lock(&device.state).mechanism {
            words.retain(|known| !std::ptr::eq(*known, word));
        }
    }
}

/// Resumes the queues of all devices for a process that exits: its exit handlers may wait for them.
pub(super) fn release_all() {
    let devices = lock(&DEVICES).clone();
    for device in devices {
        let mut state = lock(&device.state);
        state.is_released = true;
        state.priority = None;
        let _ = state.apply();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use xsched_core::DeviceKind;

    use super::*;

    fn stream(address: u32, set_stopped: impl Fn(bool) + Send + 'static) -> StreamOnDevice {
        stream_with_driver(address, move |is_stopped| {
            set_stopped(is_stopped);
            Ok(())
        })
    }

    fn stream_with_driver(
        address: u32,
        driver: impl Fn(bool) -> Result<(), UpdateError> + Send + 'static,
    ) -> StreamOnDevice {
        let id = DeviceId::new(DeviceKind::Gpu, address);
        StreamOnDevice::register(id, StopMechanism::Test(Box::new(driver))).unwrap()
    }

    #[test]
    fn queues_that_appear_after_a_failed_stop_are_not_stopped() {
        let (sender, changes) = channel();
        let mut stops = [Err(UpdateError::NoQueue)].into_iter();
        let stops = Mutex::new(move || stops.next().unwrap_or(Ok(())));
        let stream = stream_with_driver(0xfe00_0018, move |is_stopped| {
            let result = if is_stopped { lock(&stops)() } else { Ok(()) };
            if result.is_ok() {
                sender.send(is_stopped).unwrap();
            }
            result
        });
        stream.set_preempted(true).unwrap_err();
        // The first copy creates a queue. The launch path was told that the stop failed, and will not resume the queue.
        stream.set_has_work(false);
        stream.set_has_work(true);
        assert!(changes.try_recv().is_err());
        stream.set_preempted(true).unwrap();
        assert_eq!(changes.try_recv(), Ok(true));
        stream.set_preempted(false).unwrap();
        assert_eq!(changes.try_recv(), Ok(false));
    }

    #[test]
    fn stopping_one_device_does_not_delay_another() {
        const TIMEOUT: Duration = Duration::from_secs(20);
        static TIMED_OUT: AtomicBool = AtomicBool::new(false);
        let (is_stopping, stopping) = channel();
        let (may_stop, proceed) = channel::<()>();
        // The driver of the first device returns only after the second device was stopped.
        let first = stream(0xfe00_0000, move |is_stopped| {
            if is_stopped {
                let _ = is_stopping.send(());
                TIMED_OUT.store(proceed.recv_timeout(TIMEOUT).is_err(), Ordering::SeqCst);
            }
        });
        std::thread::scope(|threads| {
            let stop = threads.spawn(|| first.set_preempted(true));
            stopping.recv_timeout(TIMEOUT).unwrap();
            let second = stream(0xfe00_0008, |_| {});
            second.set_preempted(true).unwrap();
            let _ = may_stop.send(());
            stop.join().unwrap().unwrap();
        });
        assert!(!TIMED_OUT.load(Ordering::SeqCst), "the second device waited for the first");
    }

    #[test]
    fn queues_stop_with_the_last_stream_and_resume_with_the_first() {
        let (sender, changes) = channel();
        let id = 0xfe00_0010;
        let first = stream(id, move |is_stopped| sender.send(is_stopped).unwrap());
        let second = stream(id, |_| unreachable!("the device has a mechanism"));
        first.set_preempted(true).unwrap();
        assert!(changes.try_recv().is_err(), "the second stream may run");
        second.set_preempted(true).unwrap();
        assert_eq!(changes.try_recv(), Ok(true));
        first.set_has_work(false);
        assert!(changes.try_recv().is_err(), "the second stream has work");
        second.set_has_work(false);
        assert_eq!(changes.try_recv(), Ok(false), "queues without work run");
        second.set_has_work(true);
        assert_eq!(changes.try_recv(), Ok(true));
        second.unregister();
        assert_eq!(changes.try_recv(), Ok(false), "the stream with work was destroyed");
        first.set_has_work(true);
        assert_eq!(changes.try_recv(), Ok(true));
        first.set_preempted(false).unwrap();
        assert_eq!(changes.try_recv(), Ok(false));
    }
}

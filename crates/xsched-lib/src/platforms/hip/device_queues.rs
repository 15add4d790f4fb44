//! The hardware queues of this process on one device, which are stopped together.
//!
//! Streams share hardware queues, and the runtime does not report which stream uses which queue. Stopping the queue of one
//! stream could stop a stream of higher precedence, so the queues are stopped once every stream of the process on the
//! device is preempted, and resumed with the first that is not. Until then the gate alone holds the preempted streams.
//!
//! Each device has its own lock, which is held during the calls to the kernel driver. Stopping one device does not delay
//! another.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xsched_core::{DeviceId, Order};

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
    Test(Box<dyn Fn(bool) + Send>),
}

struct DeviceQueues {
    id: DeviceId,
    state: Mutex<State>,
}

struct State {
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
        self.update(|stream| stream.is_preempted = is_preempted)
    }

    pub(super) fn set_has_work(&self, has_work: bool) {
        // If the driver refuses, the next change tries again.
        let _ = self.update(|stream| stream.has_work = has_work);
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
            Order::Free => None,
            Order::Leader => Some(kfd::HIGHEST_PRIORITY),
            Order::Peer | Order::Throttled | Order::Yield | Order::Evict | Order::Drain => {
                Some(kfd::LOWEST_PRIORITY)
            }
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
            let state = State::new(mechanism);
            let device = Arc::new(Self { id, state: Mutex::new(state) });
            devices.push(Arc::clone(&device));
            return device;
        };
        drop(devices);
        lock(&device.state).add_words(mechanism);
        device
    }
}

impl State {
    fn new(mechanism: StopMechanism) -> Self {
        Self {
            mechanism,
            streams: Vec::new(),
            last_stream: 0,
            is_stopped: false,
            priority: None,
            is_preemptible: false,
            is_released: false,
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
        let updated = self.update_queues();
        if updated.is_err() {
            self.is_stopped = !stop;
        }
        updated
    }

    /// Hardware priorities and compute units only improve on what the gate enforces, so errors are ignored.
    fn apply_precedence(&self) {
        let _ = self.update_queues();
        if let StopMechanism::Kfd(gpu) = &self.mechanism {
            compute_unit_mask::set_preemptible(*gpu, self.is_preemptible);
        }
    }

    fn update_queues(&self) -> Result<(), String> {
        match &self.mechanism {
            StopMechanism::Kfd(gpu) => kfd::update_queues(*gpu, self.is_stopped, self.priority),
            StopMechanism::StallPoints(words) => {
                for word in words {
                    word.set_stopped(self.is_stopped);
                }
                Ok(())
            }
            #[cfg(test)]
            StopMechanism::Test(set_stopped) => {
                set_stopped(self.is_stopped);
                Ok(())
            }
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
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use xsched_core::DeviceKind;

    use super::*;

    fn stream(address: u32, set_stopped: impl Fn(bool) + Send + 'static) -> StreamOnDevice {
        let id = DeviceId::new(DeviceKind::Gpu, address);
        StreamOnDevice::register(id, StopMechanism::Test(Box::new(set_stopped))).unwrap()
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

//! Preemption of this process on one GPU.
//!
//! Three mechanisms act on different scopes:
//! * **Time slices** belong to the process's compute channel groups. The GPU switches to another process when the time
//!   slice of the running one expires, or when it has nothing to run. With 1 us for the process that may be preempted and
//!   10 ms for the leader, the leader preempts a running kernel in about 0.2 ms and keeps the GPU while it has work.
//! * **Stop points** belong to one stream (see [`super::stop_words`]). The stream passes them while they are open, and
//!   stalls at the next one while they are closed.
//! * **Disabled channels** stop all streams of the process on the GPU at once, with the kernels that run.
//!
//! | order     | time slice            | stop points | channels                                                      |
//! |-----------|-----------------------|-------------|---------------------------------------------------------------|
//! | Free      | 2048 us, the driver's | open        | enabled                                                       |
//! | Leader    | 10 ms                 | open        | enabled                                                       |
//! | Peer      | 2048 us               | open        | enabled                                                       |
//! | Throttled | 1 us                  | open        | enabled                                                       |
//! | Yield     | 1 us                  | closed      | enabled: the leader preempts by time slice                    |
//! | Evict     | 1 us                  | closed      | disabled at once, unless every stream is stalled or idle      |
//! | Drain     | 1 us                  | closed      | disabled after 10 ms, unless every stream is stalled or idle  |
//!
//! A suspended stream is treated as with Drain, whatever its order. The streams of a process may have different orders: the
//! longest time slice of any of them applies, and channels are disabled only once all of them are to stop.
//!
//! The state of each GPU has its own lock, which is not held while streams approach their stop points. Stopping one GPU
//! therefore delays neither another GPU nor a thread that launches on the same one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use xsched_core::{DeviceId, LevelCost, Nanos, Order};

use super::markers::StreamMarkers;
use super::resource_manager::ComputeChannels;

/// The time slice that the driver sets on a new context.
const DEFAULT_TIME_SLICE_US: u64 = 2048;
const LEADER_TIME_SLICE_US: u64 = 10_000;
/// For processes that may be preempted. Two processes with this time slice would switch all the time and make no progress,
/// so the scheduler runs one of them at a time.
const PREEMPTIBLE_TIME_SLICE_US: u64 = 1;

/// How long streams may take to reach a stop point before their channels are disabled. Stop points are about 1 ms of work
/// apart, and the GPU works until then, whereas disabling and enabling channels takes 0.8 ms. Only a long kernel exceeds 10 ms.
const STOP_POINT_TIMEOUT: Duration = Duration::from_millis(10);
const STALL_POLL_INTERVAL: Duration = Duration::from_micros(20);

/// One GPU, as used by this process.
struct Device {
    id: DeviceId,
    state: Mutex<State>,
    /// The driver has refused to set the time slice that the process needs now. Not part of the state, because launching threads
    /// read it without waiting for the lock.
    is_time_slice_refused: AtomicBool,
}

struct State {
    streams: Vec<(u64, StreamState)>,
    last_stream: u64,
    /// The time slice in force; none if it is unknown, because the driver has refused to set another one.
    time_slice_us: Option<u64>,
    /// Whether the driver lets this process set its time slice; none before the first attempt.
    time_slice_control: Option<Result<(), String>>,
    stop: StopState,
}

impl Default for State {
    fn default() -> Self {
        Self {
            streams: Vec::new(),
            last_stream: 0,
            time_slice_us: Some(DEFAULT_TIME_SLICE_US),
            time_slice_control: None,
            stop: StopState::Running,
        }
    }
}

/// How far all streams of the process on the GPU are stopped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StopState {
    Running,
    /// A thread waits in [`Device::wait_until_stopped`].
    Stopping,
    /// Every stream is stalled at a stop point or has no work.
    Stalled,
    ChannelsDisabled,
}

struct StreamState {
    markers: Arc<StreamMarkers>,
    order: Order,
    is_preempted: bool,
}

static DEVICES: Mutex<Vec<Arc<Device>>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One stream, registered with its GPU until it is dropped.
pub(crate) struct StreamOnDevice {
    device: Arc<Device>,
    number: u64,
}

impl StreamOnDevice {
    pub(crate) fn register(id: DeviceId, markers: Arc<StreamMarkers>) -> Self {
        let device = Device::with_id(id);
        let number = {
            let mut state = lock(&device.state);
            state.last_stream += 1;
            let number = state.last_stream;
            state.streams.push((number, StreamState { markers, order: Order::Free, is_preempted: false }));
            number
        };
        Self { device, number }
    }

    /// Applies the scheduler's order for this stream.
    pub(crate) fn set_order(&self, order: Order) -> Result<(), String> {
        self.update(|stream| stream.order = order)
    }

    /// Preempts the stream at level 3, or resumes it. The process leaves the GPU when this is done for its last stream;
    /// then the call returns once nothing of the process runs there.
    pub(crate) fn set_preempted(&self, is_preempted: bool) -> Result<(), String> {
        self.update(|stream| stream.is_preempted = is_preempted)
    }

    /// Whether the GPU has the time slice that the orders of the process's streams need.
    pub(crate) fn has_time_slice(&self) -> bool {
        // Relaxed: the caller has read the order, which was stored after the time slice was set.
        !self.device.is_time_slice_refused.load(Ordering::Relaxed)
    }

    /// Reports that the stream has no work left.
    pub(crate) fn became_idle(&self) -> Result<(), String> {
        lock(&self.device.state).enable_idle_channels(self.device.id)
    }

    fn update(&self, change: impl FnOnce(&mut StreamState)) -> Result<(), String> {
        self.device.update(|state| {
            if let Some((_, stream)) = state.streams.iter_mut().find(|(number, _)| *number == self.number) {
                change(stream);
            }
        })
    }
}

impl Drop for StreamOnDevice {
    fn drop(&mut self) {
        // An error was reported when the driver first refused.
        let _ = self.device.update(|state| state.streams.retain(|(number, _)| *number != self.number));
    }
}

impl Device {
    fn with_id(id: DeviceId) -> Arc<Self> {
        let mut devices = lock(&DEVICES);
        let known = devices.iter().find(|device| device.id == id).cloned();
        known.unwrap_or_else(|| {
            let device =
                Arc::new(Self { id, state: Mutex::default(), is_time_slice_refused: AtomicBool::new(false) });
            devices.push(Arc::clone(&device));
            device
        })
    }

    /// Changes the state of the streams, then makes the GPU match it.
    fn update(&self, change: impl FnOnce(&mut State)) -> Result<(), String> {
        let mut state = lock(&self.state);
        change(&mut state);
        // A refusal does not keep the streams from stopping.
        self.apply_time_slice(&mut state, |us| ComputeChannels::on(self.id).set_time_slice(us));
        match (state.must_stop(), state.stop) {
            (true, StopState::Running | StopState::Stopping) => {
                state.stop = StopState::Stopping;
                drop(state);
                self.wait_until_stopped()
            }
            (true, StopState::Stalled | StopState::ChannelsDisabled) => Ok(()),
            (false, StopState::ChannelsDisabled) => state.enable_channels(self.id, StopState::Running),
            (false, _) => {
                state.stop = StopState::Running;
                Ok(())
            }
        }
    }

    /// Calls `set` with the time slice that the streams need. After a refusal the next change of a stream tries again.
    fn apply_time_slice(&self, state: &mut State, set: impl FnOnce(u64) -> Result<(), String>) {
        let needed = state.streams.iter().filter_map(|(_, stream)| time_slice_us(stream.order)).max();
        let needed = needed.unwrap_or(DEFAULT_TIME_SLICE_US);
        if state.time_slice_us == Some(needed) {
            return;
        }
        let is_set = set(needed).is_ok();
        // After a refusal some of the channel groups may have the new time slice.
        state.time_slice_us = is_set.then_some(needed);
        self.is_time_slice_refused.store(!is_set, Ordering::Relaxed);
    }

    /// Returns when every stream is stalled or idle, when the channels are disabled, or when another thread ends the stop.
    fn wait_until_stopped(&self) -> Result<(), String> {
        let deadline = Instant::now() + STOP_POINT_TIMEOUT;
        let mut were_stalled = false;
        loop {
            {
                let mut state = lock(&self.state);
                if state.stop != StopState::Stopping {
                    return Ok(());
                }
                let are_stalled = state.streams.iter().all(|(_, stream)| stream.markers.is_stalled_or_idle());
                // Required twice, for the reason given at `is_stalled_or_idle`.
                if were_stalled && are_stalled {
                    state.stop = StopState::Stalled;
                    return Ok(());
                }
                were_stalled = are_stalled;
                if !are_stalled && (state.has_evicted_stream() || Instant::now() >= deadline) {
                    // Also if the call fails: some of the channels may have been disabled.
                    state.stop = StopState::ChannelsDisabled;
                    return ComputeChannels::on(self.id).set_disabled(true);
                }
            }
            std::thread::sleep(STALL_POLL_INTERVAL);
        }
    }
}

impl State {
    fn must_stop(&self) -> bool {
        // A new stream is ordered to stop before it is preempted. It must not resume the stopped streams in between.
        let is_about_to_stop = |stream: &StreamState| {
            self.stop != StopState::Running && matches!(stream.order, Order::Evict | Order::Drain)
        };
        let stops = |stream: &StreamState| stream.is_preempted || is_about_to_stop(stream);
        !self.streams.is_empty() && self.streams.iter().all(|(_, stream)| stops(stream))
    }

    fn has_evicted_stream(&self) -> bool {
        self.streams.iter().any(|(_, stream)| stream.order == Order::Evict)
    }

    /// Enables channels whose kernels completed just before the channels were disabled. The scheduler does not resume a
    /// process without work, yet the process may issue copies, which are not counted as work.
    fn enable_idle_channels(&mut self, device: DeviceId) -> Result<(), String> {
        let all_idle = self.streams.iter().all(|(_, stream)| stream.markers.is_idle());
        if self.stop == StopState::ChannelsDisabled && all_idle {
            return self.enable_channels(device, StopState::Stalled);
        }
        Ok(())
    }

    /// On failure the state stays, so that the next change of a stream tries again.
    fn enable_channels(&mut self, device: DeviceId, next: StopState) -> Result<(), String> {
        ComputeChannels::on(device).set_disabled(false)?;
        self.stop = next;
        Ok(())
    }
}

/// The time slice that one stream needs; none if the driver's own will do.
fn time_slice_us(order: Order) -> Option<u64> {
    match order {
        Order::Free => None,
        Order::Throttled | Order::Yield | Order::Evict | Order::Drain => Some(PREEMPTIBLE_TIME_SLICE_US),
        Order::Peer => Some(DEFAULT_TIME_SLICE_US),
        Order::Leader => Some(LEADER_TIME_SLICE_US),
    }
}

/// Whether running kernels can be preempted on a GPU (level 3): its cost, or the reason why not.
pub(crate) fn interrupt_support(id: DeviceId) -> Result<LevelCost, String> {
    let channels = ComputeChannels::on(id);
    if channels.is_empty() {
        return Err(if is_mps_running() {
            "the program shares one context with other programs through MPS, so it has no channel group of its own"
                .to_owned()
        } else {
            "no channel group of the program was seen (was the library loaded after the driver?)".to_owned()
        });
    }
    check_time_slice_control(id, &channels)?;
    // Measured on an H200: disabling channels takes 0.6 ms, enabling them 0.2 ms.
    Ok(LevelCost { preempt: Nanos::from_micros(600), restore: Nanos::from_micros(200) })
}

/// Sets the time slice to its present value, because some drivers report it but refuse to set it.
fn check_time_slice_control(id: DeviceId, channels: &ComputeChannels) -> Result<(), String> {
    let device = Device::with_id(id);
    let mut state = lock(&device.state);
    let checked =
        state.time_slice_control.get_or_insert_with(|| channels.set_time_slice(channels.time_slice()?));
    checked.clone()
}

fn is_mps_running() -> bool {
    let directory = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").unwrap_or_else(|| "/tmp/nvidia-mps".into());
    std::path::Path::new(&directory).join("control").exists()
}

#[cfg(test)]
mod tests {
    use xsched_core::DeviceKind;

    use super::*;

    /// A stream without stop points that has work: stopping it takes at least [`STOP_POINT_TIMEOUT`].
    fn busy_stream(address: u32) -> StreamOnDevice {
        let id = DeviceId::new(DeviceKind::Gpu, address);
        StreamOnDevice::register(id, Arc::new(StreamMarkers::without_stop_points()))
    }

    #[test]
    fn two_devices_are_stopped_at_the_same_time() {
        let streams = [busy_stream(0xfe00_0000), busy_stream(0xfe00_0008)];
        let stop_both = || {
            let begun = Instant::now();
            std::thread::scope(|threads| {
                for stream in &streams {
                    // The driver knows no channels of these devices and refuses to disable them.
                    threads.spawn(|| stream.set_preempted(true));
                }
            });
            let took = begun.elapsed();
            for stream in &streams {
                let _ = stream.set_preempted(false);
                lock(&stream.device.state).stop = StopState::Running;
            }
            took
        };
        // One after the other they always take twice the timeout. The shortest attempt counts, as the machine may be busy.
        let shortest = (0..20).map(|_| stop_both()).min();
        assert!(shortest < Some(2 * STOP_POINT_TIMEOUT), "{shortest:?}");
    }

    #[test]
    fn resuming_a_stream_ends_the_wait_for_its_stop_point() {
        let stream = busy_stream(0xfe00_0010);
        let resume_while_stopping = || {
            let stopped = std::thread::scope(|threads| {
                let stop = threads.spawn(|| stream.set_preempted(true));
                while lock(&stream.device.state).stop == StopState::Running && !stop.is_finished() {
                    std::thread::yield_now();
                }
                let _ = stream.set_preempted(false);
                stop.join().unwrap()
            });
            lock(&stream.device.state).stop = StopState::Running;
            stopped
        };
        // A stop that is not ended tries to disable channels, which the driver refuses. On a busy machine the timeout may
        // pass before this thread runs, so one success of several attempts is enough.
        assert!((0..20).any(|_| resume_while_stopping().is_ok()));
    }

    #[test]
    fn refused_time_slice_is_not_taken_for_set_and_is_tried_again() {
        let stream = busy_stream(0xfe00_0018);
        let device = &stream.device;
        let mut state = lock(&device.state);
        // Returns which time slice the driver was asked for.
        let mut apply = |order: Order, result: Result<(), String>| {
            state.streams[0].1.order = order;
            let mut requested = None;
            device.apply_time_slice(&mut state, |us| {
                requested = Some(us);
                result
            });
            (requested, stream.has_time_slice())
        };
        let refused = || Err("refused".to_owned());
        assert_eq!(apply(Order::Throttled, Ok(())), (Some(PREEMPTIBLE_TIME_SLICE_US), true));
        assert_eq!(apply(Order::Leader, refused()), (Some(LEADER_TIME_SLICE_US), false));
        assert_eq!(apply(Order::Leader, refused()), (Some(LEADER_TIME_SLICE_US), false));
        assert_eq!(apply(Order::Leader, Ok(())), (Some(LEADER_TIME_SLICE_US), true));
        assert_eq!(apply(Order::Leader, refused()), (None, true), "it is in force");
        assert_eq!(apply(Order::Free, refused()), (Some(DEFAULT_TIME_SLICE_US), false));
        // Some of the channel groups may have lost it.
        assert_eq!(apply(Order::Leader, Ok(())), (Some(LEADER_TIME_SLICE_US), true));
    }
}

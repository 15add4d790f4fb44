//! Samples how busy tasks are that are alone on their device.
//!
//! A free task launches without counting anything, so neither its page nor the scheduler shows whether it has work. The watcher
//! thread asks the device instead: about 50 times a second, at random times, it queries whether any queue of the task is busy. The
//! query places nothing on the queue, and the launch path is not involved.
//!
//! ```text
//!   device     ████████        ████████        ████████
//!   samples    ▲   ▲      ▲      ▲    ▲     ▲    ▲
//!   estimate   ████▄▄▄▄▄▄▄       █████▄▄▄▄▄▄     ...     the whole time between two busy samples, half of it if they differ
//! ```
//!
//! The result is an estimate: at 50 % load its standard error is about 2 points over 10 s and 7 points over 1 s. A task that was idle
//! for 10 s is sampled once a second, so the first second of its next work is known less exactly.
//!
//! A task beside other tasks reports its work. There the samples show the time that is wasted: the task has work and may run, so that
//! other tasks are held, and the device has none of that work.

use std::sync::Arc;
use std::time::Duration;

use xsched_core::{DeviceId, Nanos, Order, QueueId};

use crate::process_threads::ORDER_WAIT_TIMEOUT;
use crate::scheduled_process::ScheduledProcess;
use crate::scheduled_queue::ScheduledQueue;

/// The mean time between two samples that the service asks for.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_millis(20);
/// A task that was idle for this long is sampled once a second.
const IDLE_TIME: Nanos = Nanos::from_secs(10);
const IDLE_SAMPLE_INTERVAL: Nanos = Nanos::from_secs(1);
/// The most time that one sample accounts for: the watcher thread may not have run in between.
const MAX_SPAN: Nanos = Nanos::from_secs(2);
/// The same for the time that is wasted: the watcher thread sleeps while no queue has work.
const MAX_WASTED_SPAN: Nanos = Nanos::from_millis(40);
/// How many queues are queried for one sample. Of a task with more queues the next sample queries the next ones.
const MAX_QUERIES: usize = 32;

/// The samples of all devices of a process. Belongs to its watcher thread.
pub(crate) struct Sampler {
    devices: Vec<SampledDevice>,
    /// When the tasks that are not free were last sampled, and when they are sampled next.
    last: Nanos,
    due: Nanos,
    random: u64,
}

struct SampledDevice {
    device: DeviceId,
    estimate: Estimate,
    due: Nanos,
    idle_since: Nanos,
    /// The queue that was busy at the last sample is queried first.
    busy_queue: Option<QueueId>,
    /// The first of the queues that are queried after that one.
    next_queue: usize,
}

/// The time that a task was busy, from samples.
#[derive(Debug, Default)]
struct Estimate {
    last: Option<(Nanos, bool)>,
}

impl Estimate {
    /// Returns by how much a sample adds to the busy time: the time since the last sample, or half of it if only one was busy.
    fn add(&mut self, now: Nanos, is_busy: bool) -> Nanos {
        let (then, was_busy) = self.last.replace((now, is_busy)).unwrap_or((now, is_busy));
        let span = (now - then).min(MAX_SPAN);
        match (was_busy, is_busy) {
            (true, true) => span,
            (false, false) => Nanos::ZERO,
            (true, false) | (false, true) => Nanos(span.0 / 2),
        }
    }
}

impl Default for Sampler {
    fn default() -> Self {
        // Processes that start together must not sample together. Zero would stay zero.
        Self { devices: Vec::new(), last: Nanos::ZERO, due: Nanos::ZERO, random: Nanos::now().0 | 1 }
    }
}

impl Sampler {
    /// Takes the samples that are due, if the scheduler wants samples. Returns how soon the next one is due.
    pub(crate) fn sample(&mut self, process: &ScheduledProcess, queues: &[Arc<ScheduledQueue>]) -> Duration {
        let sample = |interval| {
            let wasted = self.sample_wasted(interval, queues);
            process.binding().page.add_wasted(wasted);
            self.sample_free(interval, queues)
        };
        process.while_sampling(sample).unwrap_or_else(|| {
            self.devices.clear();
            ORDER_WAIT_TIMEOUT
        })
    }

    /// Returns how much time was wasted on all devices since the last sample, if one is due: a sample stands for the time since the last
    /// one.
    fn sample_wasted(&mut self, interval: Duration, queues: &[Arc<ScheduledQueue>]) -> Nanos {
        let now = Nanos::now();
        if now < self.due {
            return Nanos::ZERO;
        }
        let span = (now - std::mem::replace(&mut self.last, now)).min(MAX_WASTED_SPAN);
        self.due = now + self.random_pause(interval);
        let may_run = |queue: &&Arc<ScheduledQueue>| {
            let gate = queue.launch_path().gate();
            matches!(gate.order(), Order::Leader | Order::Peer | Order::Throttled) && gate.is_ready()
        };
        let mut running: Vec<_> = queues.iter().filter(may_run).collect();
        running.sort_by_key(|queue| queue.launch_path().hw().device());
        let devices = running.chunk_by(|a, b| a.launch_path().hw().device() == b.launch_path().hw().device());
        let is_idle = |queue: &Arc<ScheduledQueue>| queue.launch_path().hw().query_busy() == Some(false);
        let idle = devices.filter(|on_device| on_device.iter().take(MAX_QUERIES).all(|queue| is_idle(queue)));
        Nanos(span.0 * idle.count() as u64)
    }

    fn sample_free(&mut self, interval: Duration, queues: &[Arc<ScheduledQueue>]) -> Duration {
        let now = Nanos::now();
        let is_free = |queue: &&Arc<ScheduledQueue>| queue.launch_path().gate().order() == Order::Free;
        let mut timeout = ORDER_WAIT_TIMEOUT;
        let mut free: Vec<_> = queues.iter().filter(is_free).collect();
        free.sort_by_key(|queue| queue.launch_path().hw().device());
        let devices = free.chunk_by(|a, b| a.launch_path().hw().device() == b.launch_path().hw().device());
        let mut kept = Vec::new();
        for on_device in devices {
            let device = on_device[0].launch_path().hw().device();
            let place = self.devices.iter().position(|sampled| sampled.device == device);
            let mut sampled = match place {
                Some(place) => self.devices.swap_remove(place),
                None => SampledDevice::new(device, now),
            };
            if sampled.due <= now {
                let pause = self.random_pause(interval);
                sampled.take(on_device, now, pause);
            }
            timeout = timeout.min((sampled.due - now).into());
            kept.push(sampled);
        }
        // What is not free any more is counted by the scheduler: the time until it is free again is not sampled time.
        self.devices = kept;
        timeout
    }

    /// A random time from half of `interval` to one and a half: a program with the period of the samples would always be found
    /// in the same state.
    fn random_pause(&mut self, interval: Duration) -> Nanos {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let interval = Nanos::from(interval).0.max(1);
        Nanos(interval / 2 + self.random % interval)
    }
}

impl SampledDevice {
    fn new(device: DeviceId, now: Nanos) -> Self {
        Self {
            device,
            estimate: Estimate::default(),
            due: now,
            idle_since: now,
            busy_queue: None,
            next_queue: 0,
        }
    }

    fn take(&mut self, queues: &[&Arc<ScheduledQueue>], now: Nanos, pause: Nanos) {
        let is_busy = self.query(queues);
        if is_busy != Some(false) {
            self.idle_since = now;
        }
        let is_long_idle = now - self.idle_since >= IDLE_TIME;
        self.due = now + if is_long_idle { IDLE_SAMPLE_INTERVAL } else { pause };
        // A stream that is captured cannot be queried: the samples before and after it count.
        if let Some(is_busy) = is_busy {
            let span = self.estimate.add(now, is_busy);
            queues[0].publish_sample(span, is_busy);
        } else if self.estimate.last.is_none() {
            // The device may never answer: do not ask it 50 times a second.
            self.due = now + IDLE_SAMPLE_INTERVAL;
        }
    }

    /// Whether one of the queues is busy. None if no queue can tell.
    fn query(&mut self, queues: &[&Arc<ScheduledQueue>]) -> Option<bool> {
        let last_busy = queues.iter().position(|queue| Some(queue.id()) == self.busy_queue);
        let start = self.next_queue % queues.len();
        let others = (0..queues.len()).map(|step| (start + step) % queues.len());
        let mut answer = None;
        for place in last_busy.into_iter().chain(others).take(MAX_QUERIES) {
            match queues[place].launch_path().hw().query_busy() {
                Some(true) => {
                    self.busy_queue = Some(queues[place].id());
                    return Some(true);
                }
                Some(false) => answer = Some(false),
                None => {}
            }
        }
        self.next_queue = start + MAX_QUERIES;
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_between_two_busy_samples_is_busy_and_half_of_it_if_they_differ() {
        let mut estimate = Estimate::default();
        let ms = Nanos::from_millis;
        assert_eq!(estimate.add(ms(100), true), Nanos::ZERO, "nothing is known before the first sample");
        assert_eq!(estimate.add(ms(120), true), ms(20));
        assert_eq!(estimate.add(ms(130), false), ms(5));
        assert_eq!(estimate.add(ms(150), false), Nanos::ZERO);
        assert_eq!(estimate.add(ms(160), true), ms(5));
        assert_eq!(estimate.add(ms(60_160), true), MAX_SPAN, "the watcher did not run");
    }

    #[test]
    fn pauses_differ_and_have_the_mean_that_was_asked_for() {
        let mut sampler = Sampler { random: 7, ..Sampler::default() };
        let pauses: Vec<_> = (0..1_000).map(|_| sampler.random_pause(SAMPLE_INTERVAL).0).collect();
        let mean = pauses.iter().sum::<u64>() / 1_000;
        assert!((18_000_000..22_000_000).contains(&mean), "{mean}");
        assert!(pauses.iter().all(|pause| (10_000_000..30_000_000).contains(pause)));
    }

    #[test]
    fn estimate_of_a_periodic_load_approaches_the_load() {
        // Busy for 3 of every 10 ms, sampled at the sampler's own random times for 60 s.
        let mut sampler = Sampler { random: 11, ..Sampler::default() };
        let (mut estimate, mut busy, mut now) = (Estimate::default(), Nanos::ZERO, Nanos::ZERO);
        while now < Nanos::from_secs(60) {
            busy += estimate.add(now, now.0 % 10_000_000 < 3_000_000);
            now += sampler.random_pause(SAMPLE_INTERVAL);
        }
        let utilization = busy.0 as f64 / now.0 as f64;
        assert!((0.27..0.33).contains(&utilization), "{utilization}");
    }
}

use std::time::Duration;

use super::*;
use crate::gate::SchedulerLink;
use crate::hal::{HalError, HwQueue, Marker, Progress};
use crate::ids::DeviceId;
use crate::level::{Capabilities, LevelCost, LevelRequest};
use crate::sync::{Mutex, Shared, lock, thread};
use crate::{HoldPoint, NotDeferred};

/// A device with time slices, on which hold points can be placed.
struct SlicedDevice {
    capabilities: Capabilities,
    calls: Mutex<Vec<Call>>,
    arrived: AtomicU32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Hold(HoldPoint),
    Launch,
    Release(HoldPoint),
    Stop,
}

impl SlicedDevice {
    fn record(&self, call: Call) {
        lock(&self.calls).push(call);
    }

    fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut *lock(&self.calls))
    }
}

impl HwQueue for SlicedDevice {
    fn device(&self) -> DeviceId {
        DeviceId(1)
    }
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn mark(&self) -> Result<Marker, HalError> {
        Ok(1)
    }
    fn progress(&self) -> Progress {
        Progress::default()
    }
    fn synchronize(&self) -> Result<(), HalError> {
        Ok(())
    }
    fn preempt(&self, _: Level) -> Result<(), HalError> {
        self.record(Call::Stop);
        Ok(())
    }
    fn restore(&self) -> Result<(), HalError> {
        Ok(())
    }
    fn preempts_by_time_slice(&self) -> bool {
        true
    }
    fn can_defer(&self) -> bool {
        true
    }
    fn defer(&self, point: HoldPoint) -> Result<(), HalError> {
        self.record(Call::Hold(point));
        Ok(())
    }
    fn release_deferred(&self, point: HoldPoint) {
        self.record(Call::Release(point));
    }
    fn deferred_progress(&self) -> HoldPoint {
        self.arrived.load(Ordering::SeqCst)
    }
}

/// Counts the notifications of its scheduler.
#[derive(Default)]
struct Link {
    deferral: Deferral,
    notifications: AtomicU32,
}

impl SchedulerLink for Link {
    fn notify(&self) {
        self.notifications.fetch_add(1, Ordering::SeqCst);
    }
    fn is_alive(&self) -> bool {
        true
    }
    fn deferral(&self) -> Option<&Deferral> {
        Some(&self.deferral)
    }
}

struct Machine {
    device: Arc<SlicedDevice>,
    link: Arc<Link>,
    path: LaunchPath,
}

impl Machine {
    /// A host-bound leader that may defer its launches for a minute. Its timer thread only sleeps.
    fn deferring() -> Self {
        let machine = Self::leading();
        machine.path.gate().set_bound(Bound::Host);
        machine.link.deferral.set_slack(Nanos::from_secs(60));
        machine.start_timer(|_| thread::park());
        machine
    }

    fn leading() -> Self {
        let device = Arc::new(SlicedDevice {
            capabilities: Capabilities::block_only("d", "").with_interrupt(Ok(LevelCost::default())),
            calls: Mutex::default(),
            arrived: AtomicU32::new(0),
        });
        let (link, gate) = (Arc::new(Link::default()), Shared::from(Arc::new(Gate::default())));
        let path =
            LaunchPath::new(Arc::clone(&device) as _, gate, Arc::clone(&link) as _, LevelRequest::Auto);
        let machine = Self { device, link, path: path.unwrap() };
        machine.set_order(Order::Leader);
        machine.path.gate().permit_unreported(true);
        machine.path.gate().permit_deferral(true);
        machine
    }

    fn set_order(&self, order: Order) {
        self.path.gate().set_order(order);
        self.path.enforce().unwrap();
    }

    /// Returns once the timer thread runs.
    fn start_timer(&self, sleep_until: impl FnMut(Nanos) + Send + 'static) {
        // The first launch requests it, and is not deferred.
        self.launch();
        assert!(self.link.deferral.take_timer_request());
        let link = Arc::clone(&self.link);
        thread::spawn(move || link.deferral.run_timer(sleep_until));
        while !self.link.deferral.is_allowed(Nanos::now()) {
            thread::yield_now();
        }
        self.path.synchronized(|| ());
        self.device.take_calls();
    }

    fn launch(&self) {
        self.path.launch(|| self.device.record(Call::Launch));
    }
}

/// A stretch of `launches` in 10 ms, after which the program waits for this long.
fn stretch(bound: &HostBound, launches: u32, wait_ms: u64) -> Option<Bound> {
    for _ in 0..launches {
        bound.launch();
    }
    let begun = Nanos(bound.since.load(Ordering::Relaxed));
    let wait = Nanos::from_millis(wait_ms);
    bound.end_stretch(wait, begun + Nanos::from_millis(10) + wait)
}

#[test]
fn queue_is_host_bound_if_most_waits_are_short() {
    let bound = HostBound::default();
    let shows = |wait_ms| (0..REMEMBERED).map(|_| stretch(&bound, 100, wait_ms)).last().unwrap();
    assert_eq!(shows(1), Some(Bound::Host));
    assert_eq!(shows(8), Some(Bound::Device));
    assert_eq!(shows(1), Some(Bound::Host));
    assert_eq!(stretch(&bound, 100, 8), Some(Bound::Host), "one of eight");
    assert_eq!(stretch(&bound, MIN_LAUNCHES - 1, 8), None, "a few launches show nothing");
}

#[test]
fn queue_whose_bursts_took_most_of_the_time_is_device_bound_for_longer_each_time() {
    let bound = HostBound::default();
    let stretches_until = |wanted, busy_ms: u64| {
        (1..1_000).find(|_| {
            if busy_ms > 0 {
                bound.has_deferred.store(true, Ordering::Relaxed);
                bound.bursts.add_to_stretch(Nanos::from_millis(busy_ms));
            }
            stretch(&bound, 100, 0) == Some(wanted)
        })
    };
    stretches_until(Bound::Host, 0).unwrap();
    stretches_until(Bound::Device, 8).unwrap();
    let first = stretches_until(Bound::Host, 0).unwrap();
    assert_eq!(first, FIRST_BACKOFF + 1);
    stretches_until(Bound::Device, 8).unwrap();
    assert_eq!(stretches_until(Bound::Host, 0).unwrap(), 2 * FIRST_BACKOFF + 1);
    stretches_until(Bound::Device, 2);
}

#[test]
fn launches_wait_behind_one_hold_point_until_the_program_waits() {
    let machine = Machine::deferring();
    machine.launch();
    machine.launch();
    assert_eq!(machine.device.take_calls(), [Call::Hold(1), Call::Launch, Call::Launch]);
    assert!(!machine.path.gate().is_ready(), "the other tasks run meanwhile");
    machine
        .path
        .synchronized(|| assert_eq!(machine.device.take_calls(), [Call::Release(1)], "before it waits"));
    machine.launch();
    assert_eq!(machine.device.take_calls(), [Call::Hold(2), Call::Launch]);
}

#[test]
fn nothing_is_held_while_a_thread_waits() {
    let machine = Machine::deferring();
    machine.launch();
    machine.device.take_calls();
    let waiting = machine.link.deferral.begin_wait();
    assert_eq!(machine.device.take_calls(), [Call::Release(1)]);
    machine.launch();
    assert_eq!(
        machine.device.take_calls(),
        [Call::Release(2), Call::Launch],
        "released before it was placed"
    );
    drop(waiting);
    machine.launch();
    assert_eq!(machine.device.take_calls(), [Call::Hold(3), Call::Launch]);
}

#[test]
fn launches_are_deferred_only_for_a_host_bound_leader_with_permission() {
    let deny: [fn(&Machine); 6] = [
        |machine| machine.path.gate().permit_deferral(false),
        |machine| assert!(machine.path.gate().permit_unreported(false)),
        |machine| machine.path.gate().set_bound(Bound::Device),
        |machine| machine.set_order(Order::Peer),
        |machine| machine.link.deferral.set_slack(Nanos::ZERO),
        |machine| machine.link.deferral.forbid(NotDeferred::Collectives),
    ];
    for (number, deny) in deny.into_iter().enumerate() {
        let machine = Machine::deferring();
        deny(&machine);
        machine.launch();
        assert_eq!(machine.device.take_calls(), [Call::Launch], "{number}");
        assert!(machine.path.gate().is_ready(), "{number}");
    }
}

#[test]
fn work_that_was_reported_is_not_any_more_once_launches_are_deferred() {
    let machine = Machine::deferring();
    machine.path.gate().set_bound(Bound::Device);
    machine.launch();
    assert!(machine.path.gate().is_ready());
    let before = machine.link.notifications.load(Ordering::SeqCst);
    machine.path.gate().set_bound(Bound::Host);
    machine.launch();
    assert!(!machine.path.gate().is_ready());
    assert_eq!(
        machine.link.notifications.load(Ordering::SeqCst),
        before + 1,
        "the scheduler releases the others"
    );
}

#[test]
fn next_burst_is_held_when_the_slack_has_passed() {
    let machine = Machine::deferring();
    machine.link.deferral.set_slack(Nanos(1));
    machine.launch();
    machine.device.arrived.store(1, Ordering::SeqCst);
    machine.launch();
    assert_eq!(
        machine.device.take_calls(),
        [Call::Hold(1), Call::Launch, Call::Release(1), Call::Hold(2), Call::Launch]
    );
}

#[test]
fn held_launches_are_released_shortly_before_the_program_is_expected_to_wait() {
    let bound = HostBound::default();
    stretch(&bound, 100, 0);
    stretch(&bound, 100, 0);
    bound.utilization.store(256, Ordering::Relaxed);
    let mut released_at = Vec::new();
    for launch in 1..=100 {
        bound.launch();
        // 0.1 ms each, held from the beginning: a quarter of that is work for the device.
        let held = Nanos::from_micros(100 * launch);
        if bound.reaches_end(held, Nanos(bound.since.load(Ordering::Relaxed)) + held) {
            released_at.push(launch);
        }
    }
    // 2 ms are left, for 2 ms of work and a context switch.
    assert_eq!(released_at, [79], "once");
}

#[test]
fn work_that_is_held_is_limited() {
    let bound = HostBound::default();
    let slack = Nanos::from_millis(10);
    assert_eq!(bound.hold_time(slack), slack, "nothing is known");
    bound.utilization.store(256, Ordering::Relaxed);
    assert_eq!(bound.hold_time(slack), Nanos(4 * MAX_HELD_WORK.0));
}

#[test]
fn timer_thread_releases_launches_of_a_program_that_does_nothing_more() {
    let machine = Machine::leading();
    machine.path.gate().set_bound(Bound::Host);
    machine.link.deferral.set_slack(Nanos::from_millis(20));
    machine.start_timer(|_| thread::yield_now());
    machine.launch();
    while !lock(&machine.device.calls).contains(&Call::Release(1)) {
        thread::yield_now();
    }
    // Not before the slack has passed: the launch was held.
    assert_eq!(machine.device.take_calls()[..2], [Call::Hold(1), Call::Launch]);
}

#[test]
fn held_launches_are_released_before_the_queue_stops_or_loses_its_lead() {
    let machine = Machine::deferring();
    machine.launch();
    machine.device.take_calls();
    machine.set_order(Order::Drain);
    assert_eq!(machine.device.take_calls(), [Call::Release(1), Call::Stop]);
    let machine = Machine::deferring();
    machine.launch();
    machine.device.take_calls();
    machine.set_order(Order::Throttled);
    machine.path.report_unreported();
    assert_eq!(machine.device.take_calls(), [Call::Release(1)]);
    assert!(machine.path.gate().is_ready());
}

#[test]
fn program_that_launches_on_two_queues_is_not_deferred_for_a_while() {
    let machine = Machine::deferring();
    let other = Machine::leading();
    other.path.gate().set_bound(Bound::Host);
    let path = LaunchPath { link: Arc::clone(&machine.link) as _, ..other.path };
    machine.launch();
    path.launch(|| ());
    assert_eq!(machine.device.take_calls(), [Call::Hold(1), Call::Launch, Call::Release(1)]);
    assert_eq!(other.device.take_calls(), []);
    machine.launch();
    assert_eq!(machine.device.take_calls(), [Call::Launch]);
}

#[test]
fn device_time_of_deferred_launches_is_that_of_their_bursts() {
    let machine = Machine::deferring();
    machine.launch();
    thread::sleep(Duration::from_millis(20));
    let begun = Nanos::now();
    machine.path.synchronized(|| ());
    let burst = Nanos::now() - begun;
    assert!(machine.path.gate().unreported_time() <= burst, "the time until the release does not count");
}

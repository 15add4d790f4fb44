use std::time::Duration;

use super::*;
use crate::gate::NoScheduler;
use crate::hal::{HalError, Progress};
use crate::ids::DeviceId;
use crate::level::{Capabilities, Level, LevelCost};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use crate::window::Limit;

/// Notes how it is stopped.
struct Device {
    capabilities: Capabilities,
    told: Mutex<Vec<&'static str>>,
    /// What is launched while it is stopped waits there.
    holds: bool,
    /// Placing a marker returns only once the queue was let go on, as in a driver whose queue is full.
    is_full: bool,
    refuses: bool,
    marked: AtomicU64,
}

impl Device {
    fn note(&self, what: &'static str) {
        lock(&self.told).push(what);
    }
}

impl HwQueue for Device {
    fn device(&self) -> DeviceId {
        DeviceId(1)
    }
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn mark(&self) -> Result<Marker, HalError> {
        self.note("mark");
        while self.is_full && !lock(&self.told).contains(&"restore") {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(self.marked.fetch_add(1, Ordering::SeqCst) + 1)
    }
    fn progress(&self) -> Progress {
        Progress::default()
    }
    fn accepts_launches_while_stopped(&self) -> bool {
        self.holds
    }
    fn wait(&self, _: Marker, _: Duration) -> Result<bool, HalError> {
        Ok(false)
    }
    fn synchronize(&self) -> Result<(), HalError> {
        Ok(())
    }
    fn preempt(&self, _: Level) -> Result<(), HalError> {
        self.note("preempt");
        if self.refuses {
            let (device, why) = (String::new(), "it does not want to".to_owned());
            return Err(HalError::Driver { device, what: "stopping", why });
        }
        Ok(())
    }
    fn trigger_context_switch(&self) {
        self.note("trigger_context_switch");
    }
    fn set_has_work(&self, has_work: bool) {
        self.note(if has_work { "work" } else { "no work" });
    }
    fn restore(&self) -> Result<(), HalError> {
        self.note("restore");
        Ok(())
    }
}

fn device() -> Device {
    let capabilities = Capabilities::block_only("d", "").with_interrupt(Ok(LevelCost::default()));
    let (told, marked) = (Mutex::default(), AtomicU64::new(0));
    Device { capabilities, told, holds: false, is_full: false, refuses: false, marked }
}

fn launch_path(device: Device) -> (Arc<Device>, LaunchPath) {
    let device = Arc::new(device);
    let gate = Shared::from(Arc::new(Gate::default()));
    let launch_path =
        LaunchPath::new(device.clone(), gate, Arc::new(NoScheduler), LevelRequest::Auto).unwrap();
    (device, launch_path)
}

#[test]
fn who_waits_inside_the_driver_does_not_keep_the_queue_from_going_on() {
    let (device, launch_path) = launch_path(Device { holds: true, is_full: true, ..device() });
    launch_path.gate().give(Order::Drain);
    launch_path.enforce().unwrap();
    let launch_path = Arc::new(launch_path);
    let launching = std::thread::spawn({
        let launch_path = Arc::clone(&launch_path);
        move || launch_path.launch(|| ())
    });
    while !lock(&device.told).contains(&"mark") {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(launch_path.gate().is_ready(), "who waits there has work");
    // On a thread of its own: it would wait for ever.
    let (sender, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        launch_path.set_limit(Some(Limit::Budget(Nanos::from_millis(1))));
        launch_path.set_level(LevelRequest::Auto).unwrap();
        launch_path.gate().give(Order::Leader);
        launch_path.enforce().unwrap();
        sender.send(launch_path.limit()).unwrap();
    });
    let limit = done.recv_timeout(Duration::from_secs(30)).expect("the order is carried out");
    assert_eq!(limit, Limit::Budget(Nanos::from_millis(1)));
    launching.join().unwrap();
}

#[test]
fn a_device_is_summoned_for_what_is_large_by_whoever_leads_and_has_nothing_there() {
    let (device, launch_path) = launch_path(Device { holds: true, ..device() });
    let summons = || lock(&device.told).iter().filter(|told| **told == "trigger_context_switch").count();
    launch_path.launch_large(|| ());
    assert_eq!(summons(), 0, "nobody else is there");
    launch_path.gate().give(Order::Leader);
    launch_path.launch_large(|| assert_eq!(summons(), 1, "before it is launched"));
    launch_path.launch_large(|| ());
    assert_eq!(summons(), 1, "the device is there already");
    for order in [Order::Peer, Order::Throttled, Order::Yield] {
        launch_path.begin_wait().over();
        launch_path.gate().give(order);
        launch_path.launch_large(|| ());
        assert_eq!(summons(), 1, "{order:?}");
    }
}

/// Its program would stand still until the next order, though the device could hold its launches.
#[test]
fn what_comes_before_the_device_was_told_does_not_wait_for_that() {
    let (device, launch_path) = launch_path(Device { holds: true, ..device() });
    launch_path.gate().give(Order::Throttled);
    launch_path.enforce().unwrap();
    launch_path.gate().give(Order::Yield);
    launch_path.launch(|| device.note("launch"));
    assert_eq!(lock(&device.told)[1..], ["work", "launch", "mark"], "what comes next stands behind it");
    launch_path.enforce().unwrap();
    launch_path.launch(|| device.note("launch"));
    assert_eq!(
        lock(&device.told)[4..],
        ["work", "preempt", "work", "mark", "launch", "mark"],
        "it stands itself"
    );
}

#[test]
fn a_device_that_refuses_leaves_it_to_the_gate() {
    let (device, launch_path) = launch_path(Device { holds: true, refuses: true, ..device() });
    launch_path.gate().give(Order::Drain);
    launch_path.enforce().unwrap_err();
    let launch_path = Arc::new(launch_path);
    let launching = std::thread::spawn({
        let (launch_path, device) = (Arc::clone(&launch_path), Arc::clone(&device));
        move || launch_path.launch(|| device.note("launch"))
    });
    while launch_path.gate().counts().holds == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!lock(&device.told).contains(&"launch"));
    launch_path.gate().give(Order::Free);
    launching.join().unwrap();
}

#[test]
fn a_queue_that_stands_at_a_marker_has_work() {
    let (_device, launch_path) = launch_path(Device { holds: true, is_full: true, ..device() });
    launch_path.gate().give(Order::Drain);
    launch_path.enforce().unwrap();
    launch_path.gate().give(Order::Throttled);
    launch_path.enforce().unwrap();
    assert!(!launch_path.gate().is_ready());
    launch_path.mark().expect("a marker");
    assert!(launch_path.gate().is_ready());
    assert_eq!(launch_path.gate().counts().passes, 0, "and yet nothing was launched");
}

#[test]
fn a_queue_that_has_come_to_its_end_while_it_was_stopped_has_no_work() {
    let (device, launch_path) = launch_path(device());
    for order in [Order::Leader, Order::Yield, Order::Drain] {
        launch_path.gate().give(Order::Leader);
        launch_path.enforce().unwrap();
        launch_path.launch(|| ());
        let wait = launch_path.begin_wait();
        launch_path.gate().give(order);
        launch_path.enforce().unwrap();
        let stopped = order.stops();
        let last = || *lock(&device.told).iter().rfind(|told| told.ends_with("work")).unwrap();
        assert!(!stopped || last() == "work", "{order:?}");
        wait.over();
        assert!(!stopped || last() == "no work", "{order:?}");
    }
}

/// Launches and waits by turns until the end of the work is kept back.
fn come_back_soon(launch_path: &LaunchPath) {
    let is_kept_back = (0..100_000).any(|_| {
        launch_path.launch(|| ());
        launch_path.begin_wait().over();
        launch_path.gate().is_ready()
    });
    assert!(is_kept_back, "a machine on which nothing is ever done within a quarter of a millisecond?");
}

#[test]
fn the_ends_of_a_leading_queue_that_comes_back_soon_are_kept_back_until_it_stays_away() {
    let (_device, launch_path) = launch_path(device());
    launch_path.gate().give(Order::Leader);
    for _ in 0..2 {
        launch_path.launch(|| ());
        launch_path.begin_wait().over();
        assert!(!launch_path.gate().is_ready(), "it is not known yet to come back soon");
        come_back_soon(&launch_path);
        std::thread::sleep(Duration::from_millis(1));
        launch_path.report_deferred_idle();
        assert!(!launch_path.gate().is_ready(), "it has stayed away");
    }
    come_back_soon(&launch_path);
    assert!(launch_path.poll_idle(), "whoever asks is told");
    assert!(!launch_path.gate().is_ready());
}

#[test]
fn whether_work_comes_in_pieces_is_known_from_the_last_time_there_was_any() {
    let (_device, launch_path) = launch_path(device());
    launch_path.gate().give(Order::Leader);
    let work = |pieces: usize| {
        std::thread::sleep(Duration::from_millis(1));
        for _ in 0..pieces {
            launch_path.launch(|| ());
            launch_path.begin_wait().over();
        }
        launch_path.gate().is_sync_bound()
    };
    assert!(!work(2));
    // More than once: on a busy machine gaps may be long that should be short.
    assert!((0..1_000).any(|_| work(10) && work(1)), "as the last time");
    assert!(!work(1));
}

#[test]
fn nothing_is_kept_back_from_equals_or_once_a_queue_leads_no_more() {
    let (_device, launch_path) = launch_path(device());
    for order in [Order::Peer, Order::Throttled, Order::Drain] {
        launch_path.gate().give(Order::Leader);
        come_back_soon(&launch_path);
        launch_path.gate().give(order);
        launch_path.report_deferred_idle();
        assert!(!launch_path.gate().is_ready(), "{order:?}");
    }
    for _ in 0..100 {
        launch_path.gate().give(Order::Peer);
        launch_path.launch(|| ());
        launch_path.begin_wait().over();
        assert!(!launch_path.gate().is_ready());
    }
}

/// Else what went through another gate could be taken for what went through this one.
#[test]
fn what_was_kept_back_says_nothing_about_another_gate() {
    let (_device, launch_path) = launch_path(device());
    launch_path.gate().give(Order::Leader);
    come_back_soon(&launch_path);
    let passes = launch_path.gate().counts().passes;
    let other = Arc::new(Gate::default());
    launch_path.move_to(Shared::from(Arc::clone(&other)));
    other.give(Order::Throttled);
    while other.counts().passes < passes {
        other.mark_busy(&NoScheduler);
    }
    launch_path.report_deferred_idle();
    assert!(other.is_ready());
}

#[test]
fn a_queue_that_nobody_has_counted_is_not_taken_for_idle() {
    let (device, launch_path) = launch_path(device());
    let told = |order| {
        launch_path.gate().give(order);
        launch_path.enforce().unwrap();
        std::mem::take(&mut *lock(&device.told))
    };
    assert_eq!(told(Order::Drain), ["work", "preempt"], "what was launched until now went uncounted");
    assert!(launch_path.gate().take_uncounted());
    assert_eq!(told(Order::Leader), ["no work", "restore"]);
    assert_eq!(told(Order::Drain), ["no work", "preempt"]);
    told(Order::Free);
    assert_eq!(told(Order::Drain), ["work", "preempt"]);
}

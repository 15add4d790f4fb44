use std::time::Duration;

use super::*;
use crate::gate::NoScheduler;
use crate::hal::{HalError, Progress};
use crate::ids::DeviceId;
use crate::level::{Capabilities, Level, LevelCost};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use crate::window::Limit;

/// Records the calls of its queue.
#[allow(clippy::struct_excessive_bools, reason = "each is a property that a device has or lacks")]
struct RecordingDevice {
    capabilities: Capabilities,
    calls: Mutex<Vec<&'static str>>,
    accepts_launches: bool,
    /// `mark` returns only once the queue was resumed, as in a driver whose queue is full.
    is_full: bool,
    rejects_preempt: bool,
    /// Only the launching thread may mark the queue, whose markers complete at once.
    is_marked_by_launching_thread: bool,
    marked: AtomicU64,
}

impl RecordingDevice {
    fn record(&self, call: &'static str) {
        lock(&self.calls).push(call);
    }
}

impl HwQueue for RecordingDevice {
    fn device(&self) -> DeviceId {
        DeviceId(1)
    }
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn mark(&self) -> Result<Marker, HalError> {
        self.record("mark");
        while self.is_full && !lock(&self.calls).contains(&"restore") {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(self.marked.fetch_add(1, Ordering::SeqCst) + 1)
    }
    fn progress(&self) -> Progress {
        let completed =
            if self.is_marked_by_launching_thread { self.marked.load(Ordering::SeqCst) } else { 0 };
        Progress { marker: completed, at: None }
    }
    fn can_mark_from_any_thread(&self) -> bool {
        !self.is_marked_by_launching_thread
    }
    fn accepts_launches_while_stopped(&self) -> bool {
        self.accepts_launches
    }
    fn wait(&self, _: Marker, _: Duration) -> Result<bool, HalError> {
        Ok(false)
    }
    fn synchronize(&self) -> Result<(), HalError> {
        Ok(())
    }
    fn preempt(&self, _: Level) -> Result<(), HalError> {
        self.record("preempt");
        if self.rejects_preempt {
            let (device, why) = (String::new(), "not permitted".to_owned());
            return Err(HalError::Driver { device, what: "stopping", why });
        }
        Ok(())
    }
    fn trigger_context_switch(&self) {
        self.record("trigger_context_switch");
    }
    fn set_has_work(&self, has_work: bool) {
        self.record(if has_work { "work" } else { "no work" });
    }
    fn restore(&self) -> Result<(), HalError> {
        self.record("restore");
        Ok(())
    }
}

fn device() -> RecordingDevice {
    let capabilities = Capabilities::block_only("d", "").with_interrupt(Ok(LevelCost::default()));
    let (calls, marked) = (Mutex::default(), AtomicU64::new(0));
    RecordingDevice {
        capabilities,
        calls,
        accepts_launches: false,
        is_full: false,
        rejects_preempt: false,
        is_marked_by_launching_thread: false,
        marked,
    }
}

fn launch_path(device: RecordingDevice) -> (Arc<RecordingDevice>, LaunchPath) {
    let device = Arc::new(device);
    let gate = Shared::from(Arc::new(Gate::default()));
    let launch_path =
        LaunchPath::new(device.clone(), gate, Arc::new(NoScheduler), LevelRequest::Auto).unwrap();
    (device, launch_path)
}

#[test]
fn thread_blocked_inside_the_driver_does_not_keep_the_queue_from_resuming() {
    let (device, launch_path) =
        launch_path(RecordingDevice { accepts_launches: true, is_full: true, ..device() });
    launch_path.gate().set_order(Order::Drain);
    launch_path.enforce().unwrap();
    let launch_path = Arc::new(launch_path);
    let launching = std::thread::spawn({
        let launch_path = Arc::clone(&launch_path);
        move || launch_path.launch(|| ())
    });
    while !lock(&device.calls).contains(&"mark") {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(launch_path.gate().is_ready(), "a thread that blocks in the driver counts as work");
    // On a thread of its own: with the fault it would block indefinitely.
    let (sender, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        launch_path.set_limit(Some(Limit::Budget(Nanos::from_millis(1))));
        launch_path.set_level(LevelRequest::Auto).unwrap();
        launch_path.gate().set_order(Order::Leader);
        launch_path.enforce().unwrap();
        sender.send(launch_path.limit()).unwrap();
    });
    let limit = done.recv_timeout(Duration::from_secs(30)).expect("the order is enforced");
    assert_eq!(limit, Limit::Budget(Nanos::from_millis(1)));
    launching.join().unwrap();
}

#[test]
fn large_launch_of_an_idle_leader_triggers_a_context_switch() {
    let (device, launch_path) = launch_path(RecordingDevice { accepts_launches: true, ..device() });
    let switches = || lock(&device.calls).iter().filter(|call| **call == "trigger_context_switch").count();
    launch_path.launch_large(|| ());
    assert_eq!(switches(), 0, "the task is alone");
    launch_path.gate().set_order(Order::Leader);
    launch_path.launch_large(|| assert_eq!(switches(), 1, "before it is launched"));
    launch_path.launch_large(|| ());
    assert_eq!(switches(), 1, "the queue has work on the device already");
    for order in [Order::Peer, Order::Throttled, Order::Yield] {
        launch_path.begin_wait().finish();
        launch_path.gate().set_order(order);
        launch_path.launch_large(|| ());
        assert_eq!(switches(), 1, "{order:?}");
    }
}

/// Else the program would be stalled until the next order, although the device accepts its launches.
#[test]
fn launch_before_the_device_was_stopped_does_not_wait_for_the_enforcer() {
    let (device, launch_path) = launch_path(RecordingDevice { accepts_launches: true, ..device() });
    launch_path.gate().set_order(Order::Throttled);
    launch_path.enforce().unwrap();
    launch_path.gate().set_order(Order::Yield);
    launch_path.launch(|| device.record("launch"));
    assert_eq!(lock(&device.calls)[1..], ["work", "launch", "mark"], "the next launch has to stop behind it");
    launch_path.enforce().unwrap();
    launch_path.launch(|| device.record("launch"));
    assert_eq!(
        lock(&device.calls)[4..],
        ["work", "preempt", "work", "mark", "launch", "mark"],
        "the launch waits on the device"
    );
}

#[test]
fn launches_wait_at_the_gate_if_the_device_rejects_a_stop() {
    let (device, launch_path) =
        launch_path(RecordingDevice { accepts_launches: true, rejects_preempt: true, ..device() });
    launch_path.gate().set_order(Order::Drain);
    launch_path.enforce().unwrap_err();
    let launch_path = Arc::new(launch_path);
    let launching = std::thread::spawn({
        let (launch_path, device) = (Arc::clone(&launch_path), Arc::clone(&device));
        move || launch_path.launch(|| device.record("launch"))
    });
    while launch_path.gate().counts().holds == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!lock(&device.calls).contains(&"launch"));
    launch_path.gate().set_order(Order::Free);
    launching.join().unwrap();
}

#[test]
fn queue_with_a_marker_counts_as_busy() {
    let (_device, launch_path) =
        launch_path(RecordingDevice { accepts_launches: true, is_full: true, ..device() });
    launch_path.gate().set_order(Order::Drain);
    launch_path.enforce().unwrap();
    launch_path.gate().set_order(Order::Throttled);
    launch_path.enforce().unwrap();
    assert!(!launch_path.gate().is_ready());
    launch_path.mark().expect("a marker");
    assert!(launch_path.gate().is_ready());
    assert_eq!(launch_path.gate().counts().passes, 0, "no launch was counted");
}

#[test]
fn queue_that_the_watcher_cannot_mark_becomes_idle_after_a_marker_without_a_launch() {
    let (_device, launch_path) =
        launch_path(RecordingDevice { is_marked_by_launching_thread: true, ..device() });
    launch_path.gate().set_order(Order::Leader);
    launch_path.enforce().unwrap();
    launch_path.launch(|| ());
    launch_path.mark().expect("a marker");
    assert!(launch_path.poll_idle());
    assert!(!launch_path.gate().is_ready());
}

#[test]
fn device_learns_that_a_stopped_queue_became_idle() {
    let (device, launch_path) = launch_path(device());
    for order in [Order::Leader, Order::Yield, Order::Drain] {
        launch_path.gate().set_order(Order::Leader);
        launch_path.enforce().unwrap();
        launch_path.launch(|| ());
        let wait = launch_path.begin_wait();
        launch_path.gate().set_order(order);
        launch_path.enforce().unwrap();
        let is_stopped = order.stops();
        let last = || *lock(&device.calls).iter().rfind(|call| call.ends_with("work")).unwrap();
        assert!(!is_stopped || last() == "work", "{order:?}");
        wait.finish();
        assert!(!is_stopped || last() == "no work", "{order:?}");
    }
}

/// Launches and waits alternately until the report of an idle gap is deferred.
fn make_short_gaps(launch_path: &LaunchPath) {
    let is_deferred = (0..100_000).any(|_| {
        launch_path.launch(|| ());
        launch_path.begin_wait().finish();
        launch_path.gate().is_ready()
    });
    assert!(is_deferred, "the machine is too slow for gaps below 250 us");
}

#[test]
fn short_gaps_of_a_leader_are_not_reported_until_one_becomes_long() {
    let (_device, launch_path) = launch_path(device());
    launch_path.gate().set_order(Order::Leader);
    for _ in 0..2 {
        launch_path.launch(|| ());
        launch_path.begin_wait().finish();
        assert!(!launch_path.gate().is_ready(), "no short gap has been seen");
        make_short_gaps(&launch_path);
        std::thread::sleep(Duration::from_millis(1));
        launch_path.report_deferred_idle();
        assert!(!launch_path.gate().is_ready(), "the gap has become long");
    }
    make_short_gaps(&launch_path);
    assert!(launch_path.poll_idle(), "polling reports the gap");
    assert!(!launch_path.gate().is_ready());
}

#[test]
fn sync_bound_state_is_that_of_the_last_work() {
    let (_device, launch_path) = launch_path(device());
    launch_path.gate().set_order(Order::Leader);
    let run_work = |pieces: usize| {
        std::thread::sleep(Duration::from_millis(1));
        for _ in 0..pieces {
            launch_path.launch(|| ());
            launch_path.begin_wait().finish();
        }
        launch_path.gate().is_sync_bound()
    };
    assert!(!run_work(2));
    // More than once: on a loaded machine a short gap may become long.
    assert!((0..1_000).any(|_| run_work(10) && run_work(1)), "as the work before");
    assert!(!run_work(1));
}

#[test]
fn gaps_are_reported_to_peers_and_once_a_queue_no_longer_leads() {
    let (_device, launch_path) = launch_path(device());
    for order in [Order::Peer, Order::Throttled, Order::Drain] {
        launch_path.gate().set_order(Order::Leader);
        make_short_gaps(&launch_path);
        launch_path.gate().set_order(order);
        launch_path.report_deferred_idle();
        assert!(!launch_path.gate().is_ready(), "{order:?}");
    }
    for _ in 0..100 {
        launch_path.gate().set_order(Order::Peer);
        launch_path.launch(|| ());
        launch_path.begin_wait().finish();
        assert!(!launch_path.gate().is_ready());
    }
}

/// Else an epoch of the old gate could be mistaken for one of the new gate.
#[test]
fn deferred_report_belongs_to_its_gate() {
    let (_device, launch_path) = launch_path(device());
    launch_path.gate().set_order(Order::Leader);
    make_short_gaps(&launch_path);
    let passes = launch_path.gate().counts().passes;
    let other = Arc::new(Gate::default());
    launch_path.move_to(Shared::from(Arc::clone(&other)));
    other.set_order(Order::Throttled);
    while other.counts().passes < passes {
        other.mark_busy(&NoScheduler);
    }
    launch_path.report_deferred_idle();
    assert!(other.is_ready());
}

#[test]
fn queue_with_uncounted_launches_counts_as_busy() {
    let (device, launch_path) = launch_path(device());
    let calls_for = |order| {
        launch_path.gate().set_order(order);
        launch_path.enforce().unwrap();
        std::mem::take(&mut *lock(&device.calls))
    };
    assert_eq!(calls_for(Order::Drain), ["work", "preempt"], "launches until now were not counted");
    assert!(launch_path.gate().take_uncounted());
    assert_eq!(calls_for(Order::Leader), ["no work", "restore"]);
    assert_eq!(calls_for(Order::Drain), ["no work", "preempt"]);
    calls_for(Order::Free);
    assert_eq!(calls_for(Order::Drain), ["work", "preempt"]);
}

#[test]
fn first_launch_without_a_decision_is_counted_and_the_next_one_does_not_wait() {
    let (_, launch_path) = launch_path(device());
    launch_path.gate().mark_undecided();
    launch_path.launch(|| ());
    // The scheduler, which was late, finds that the queue is busy.
    assert!(launch_path.gate().is_ready());
    assert_eq!(launch_path.gate().counts().passes, 1);
    launch_path.launch(|| assert!(launch_path.gate().is_free()));
    assert_eq!(launch_path.gate().counts().passes, 1);
}

#[test]
fn first_launch_of_a_task_that_is_alone_is_not_counted() {
    let (_, launch_path) = launch_path(device());
    launch_path.gate().mark_undecided();
    std::thread::scope(|scope| {
        scope.spawn(|| launch_path.gate().mark_decided());
        // It may time out on a machine without an idle CPU.
        let is_decided = launch_path.gate().wait_until_decided();
        launch_path.launch(|| ());
        assert!(!is_decided || launch_path.gate().counts().passes == 0);
    });
}

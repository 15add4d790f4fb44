use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use crate::command::Worker;
use crate::gate::SchedulerLink;
use crate::hal::{HalError, HwQueue, Marker, Progress};
use crate::ids::DeviceId;
use crate::level::{Capabilities, LevelCost, LevelRequest};
use crate::sync::Shared;

#[test]
fn requests_of_few_launches_are_expected_after_three_of_them() {
    let history = RequestHistory::default();
    for request in 1..=5 {
        assert_eq!(history.is_in_one_piece(), request > 3, "before request {request}");
        (0..MAX_LAUNCHES).for_each(|_| history.launch());
        history.complete();
    }
    history.short_gap();
    (0..5).for_each(|_| history.complete());
    assert!(!history.is_in_one_piece(), "the work after a short gap belongs to the same request");
}

#[test]
fn request_of_many_launches_is_reported_from_the_first_launch_too_many() {
    let history = RequestHistory::default();
    for _ in 0..3 {
        history.launch();
        history.complete();
    }
    (0..MAX_LAUNCHES).for_each(|_| history.launch());
    assert!(history.is_in_one_piece());
    history.launch();
    assert!(!history.is_in_one_piece());
    history.complete();
    assert!(!history.is_in_one_piece(), "the request was not in one piece");
}

/// A device, and whether it preempts by time slice.
struct TestDevice(Capabilities, bool);

impl HwQueue for TestDevice {
    fn device(&self) -> DeviceId {
        DeviceId(1)
    }
    fn capabilities(&self) -> &Capabilities {
        &self.0
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
        Ok(())
    }
    fn restore(&self) -> Result<(), HalError> {
        Ok(())
    }
    fn preempts_by_time_slice(&self) -> bool {
        self.1
    }
}

/// Counts notifications, by whether they may preempt the calling thread.
#[derive(Default)]
struct Notifications {
    preempting: AtomicUsize,
    harmless: AtomicUsize,
}

impl SchedulerLink for Notifications {
    fn notify(&self) {
        self.preempting.fetch_add(1, Ordering::SeqCst);
    }
    fn notify_without_preemption(&self) {
        self.harmless.fetch_add(1, Ordering::SeqCst);
    }
    fn is_alive(&self) -> bool {
        true
    }
}

impl Notifications {
    fn take(&self) -> (usize, usize) {
        (self.preempting.swap(0, Ordering::SeqCst), self.harmless.swap(0, Ordering::SeqCst))
    }
}

fn leader() -> (Arc<Notifications>, LaunchPath) {
    leader_on(true)
}

/// A leader on a device that preempts by time slice, or on one that does not.
fn leader_on(has_time_slices: bool) -> (Arc<Notifications>, LaunchPath) {
    let capabilities = Capabilities::block_only("d", "").with_interrupt(Ok(LevelCost::default()));
    let link = Arc::new(Notifications::default());
    let gate = Shared::from(Arc::new(Gate::default()));
    let hw = Arc::new(TestDevice(capabilities, has_time_slices));
    let path = LaunchPath::new(hw, gate, Arc::clone(&link) as _, LevelRequest::Auto).unwrap();
    path.gate().set_order(Order::Leader);
    path.enforce().unwrap();
    (link, path)
}

/// A request of one launch, 1 ms after the previous one.
fn request(path: &LaunchPath) {
    std::thread::sleep(Duration::from_millis(1));
    path.launch(|| ());
    path.begin_wait().finish();
}

#[test]
fn leader_notifies_after_its_launch_without_being_preempted() {
    let (link, path) = leader();
    path.launch(|| assert_eq!(link.take(), (0, 0), "before the driver is called"));
    assert_eq!(link.take(), (0, 1));
    path.begin_wait().finish();
    assert_eq!(link.take(), (0, 1), "the queue is idle");
    path.gate().set_order(Order::Throttled);
    path.launch(|| assert_eq!(link.take(), (1, 0), "another task may have to make room"));
}

#[test]
fn leader_without_time_slices_notifies_directly() {
    let (link, path) = leader_on(false);
    path.launch(|| assert_eq!(link.take(), (0, 0), "before the driver is called"));
    assert_eq!(link.take(), (1, 0));
    path.begin_wait().finish();
    assert_eq!(link.take(), (1, 0), "the queue is idle");
}

/// Else the scheduler would not hold the other tasks while the device runs the leader's command.
#[test]
fn leader_notifies_before_a_launch_that_waits_for_the_device() {
    for order in [Order::Leader, Order::Peer] {
        let (link, path) = leader();
        path.gate().set_order(order);
        path.launch_and_finish(|| {
            assert_eq!(link.take(), (0, 1), "{order:?}");
            assert!(path.gate().is_ready());
            path.notify_of_blocked_launch();
            assert_eq!(link.take(), (0, 0), "the scheduler was notified");
        });
        assert_eq!(link.take(), (0, 1), "the queue is idle");
    }
}

#[test]
fn leader_notifies_before_it_calls_a_callback_command() {
    for has_thread in [true, false] {
        let (link, path) = leader();
        let path = Arc::new(path);
        let worker =
            if has_thread { Worker::start(Arc::clone(&path)).unwrap() } else { Worker::without_thread() };
        let (sender, notifications) = std::sync::mpsc::channel();
        let command = {
            let link = Arc::clone(&link);
            move || sender.send(link.take()).unwrap()
        };
        worker.submit(&path, Box::new(command)).unwrap();
        assert_eq!(notifications.recv().unwrap(), (0, 1), "with a thread: {has_thread}");
        worker.finish();
    }
}

#[test]
fn requests_in_one_piece_are_not_reported_if_that_is_permitted() {
    let (link, path) = leader();
    (0..10).for_each(|_| request(&path));
    assert_eq!(link.take(), (0, 20), "no permission");
    path.gate().permit_unreported(true);
    (0..10).for_each(|_| request(&path));
    assert_eq!(link.take(), (0, 0));
    assert!(!path.gate().is_ready());
    assert!(path.gate().unreported_time() > Nanos::ZERO, "the time of the requests is counted");
    assert_eq!(path.gate().counts().passes, 20, "the launches are counted");
    std::thread::sleep(Duration::from_millis(1));
    (0..MAX_LAUNCHES).for_each(|_| path.launch(|| ()));
    assert_eq!(link.take(), (0, 0));
    assert!(!path.gate().is_ready());
    path.launch(|| ());
    assert_eq!(link.take(), (0, 1), "too many launches for one piece");
    assert!(path.gate().is_ready());
    path.begin_wait().finish();
    assert_eq!(link.take(), (0, 1));
    assert!(!path.gate().is_ready());
}

#[test]
fn unreported_work_is_reported_once_the_queue_no_longer_leads() {
    let changes: [fn(&Gate); 2] =
        [|gate| gate.set_order(Order::Yield), |gate| assert!(gate.permit_unreported(false))];
    for change in changes {
        let (link, path) = leader();
        path.gate().permit_unreported(true);
        (0..4).for_each(|_| request(&path));
        std::thread::sleep(Duration::from_millis(1));
        path.launch(|| ());
        path.report_unreported();
        assert!(!path.gate().is_ready(), "it leads");
        link.take();
        change(path.gate());
        path.report_unreported();
        assert!(path.gate().is_ready());
        assert_eq!(link.take(), (1, 0));
        path.begin_wait().finish();
        assert!(!path.gate().is_ready());
        assert_ne!(link.take(), (0, 0), "the scheduler was notified that the queue is busy");
    }
}

#[test]
fn leader_without_its_time_slice_reports() {
    let (link, path) = leader();
    path.gate().permit_unreported(true);
    (0..4).for_each(|_| request(&path));
    link.take();
    // The enforcer thread has not run since the queue leads again.
    path.gate().set_order(Order::Throttled);
    path.enforce().unwrap();
    path.gate().set_order(Order::Leader);
    request(&path);
    assert_eq!(link.take(), (0, 2));
}

#[test]
fn launch_that_blocks_is_reported_by_another_thread() {
    let (link, path) = leader();
    path.launch(|| {
        path.notify_of_blocked_launch();
        assert_eq!(link.take(), (1, 0));
    });
    link.take();
    path.notify_of_blocked_launch();
    assert_eq!(link.take(), (0, 0), "the launch has returned");
}

#[test]
fn large_launch_is_reported_before_it_where_the_device_has_no_time_slices() {
    let (link, path) = leader_on(false);
    path.launch_large(|| assert_eq!(link.take(), (1, 0), "the other tasks run until they are held"));
    assert_eq!(link.take(), (0, 0), "it is reported once");
    let (link, path) = leader_on(true);
    path.launch_large(|| assert_eq!(link.take(), (0, 0), "the device preempts the other tasks"));
    assert_eq!(link.take(), (0, 1));
}

use std::time::Duration;

use super::*;
use crate::gate::Unlinked;
use crate::hal::Progress;
use crate::ids::DeviceId;
use crate::level::{Capabilities, LevelCost};

/// Notes how it is stopped.
struct Device {
    capabilities: Capabilities,
    told: Mutex<Vec<&'static str>>,
    /// Placing a marker returns only once the queue was let go on, as in a driver whose queue is full.
    is_full: bool,
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
    fn mark(&self, _: Marker) -> Result<(), HalError> {
        self.note("mark");
        while self.is_full && !lock(&self.told).contains(&"restore") {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
    fn progress(&self) -> Progress {
        Progress::default()
    }
    fn holds_what_is_launched(&self) -> bool {
        self.is_full
    }
    fn wait(&self, _: Marker, _: Duration) -> Result<bool, HalError> {
        Ok(false)
    }
    fn synchronize(&self) -> Result<(), HalError> {
        Ok(())
    }
    fn preempt(&self, _: Level) -> Result<(), HalError> {
        self.note("preempt");
        Ok(())
    }
    fn has_work(&self, has_work: bool) {
        self.note(if has_work { "work" } else { "no work" });
    }
    fn restore(&self) -> Result<(), HalError> {
        self.note("restore");
        Ok(())
    }
}

fn lane(is_full: bool) -> (Arc<Device>, Lane) {
    let capabilities = Capabilities::block_only("d", "").with_interrupt(Ok(LevelCost::default()));
    let device = Arc::new(Device { capabilities, told: Mutex::default(), is_full });
    let gate = Shared::from(Arc::new(Gate::default()));
    let lane = Lane::new(device.clone(), gate, Arc::new(Unlinked), LevelRequest::Auto).unwrap();
    (device, lane)
}

#[test]
fn who_waits_inside_the_driver_does_not_keep_the_queue_from_going_on() {
    let (device, lane) = lane(true);
    lane.gate().give(Order::Stop);
    lane.enforce().unwrap();
    let lane = Arc::new(lane);
    let launching = std::thread::spawn({
        let lane = Arc::clone(&lane);
        move || lane.launch(|| ())
    });
    while !lock(&device.told).contains(&"mark") {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(lane.gate().is_ready(), "who waits there has work");
    // On a thread of its own: it would wait for ever.
    let (sender, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        lane.set_limit(Some(Limit::Budget(Nanos::from_millis(1))));
        lane.set_level(LevelRequest::Auto).unwrap();
        lane.gate().give(Order::Watched);
        lane.enforce().unwrap();
        sender.send(lane.limit()).unwrap();
    });
    let limit = done.recv_timeout(Duration::from_secs(30)).expect("the order is carried out");
    assert_eq!(limit, Limit::Budget(Nanos::from_millis(1)));
    launching.join().unwrap();
}

#[test]
fn a_queue_that_stands_at_a_marker_has_work() {
    let (_device, lane) = lane(true);
    lane.gate().give(Order::Stop);
    lane.enforce().unwrap();
    lane.gate().give(Order::Paced);
    lane.enforce().unwrap();
    assert!(!lane.gate().is_ready());
    lane.mark().expect("a marker");
    assert!(lane.gate().is_ready());
    assert_eq!(lane.gate().counts().passes, 0, "and yet nothing was launched");
}

#[test]
fn a_queue_that_has_come_to_its_end_while_it_was_stopped_has_no_work() {
    let (device, lane) = lane(false);
    for order in [Order::Watched, Order::Hold, Order::Stop] {
        lane.gate().give(Order::Watched);
        lane.enforce().unwrap();
        lane.launch(|| ());
        let wait = lane.begin_wait();
        lane.gate().give(order);
        lane.enforce().unwrap();
        let stopped = order.stops();
        let last = || *lock(&device.told).iter().rfind(|told| told.ends_with("work")).unwrap();
        assert!(!stopped || last() == "work", "{order:?}");
        wait.over();
        assert!(!stopped || last() == "no work", "{order:?}");
    }
}

#[test]
fn a_queue_that_nobody_has_counted_is_not_taken_for_idle() {
    let (device, lane) = lane(false);
    for order in [Order::Stop, Order::Watched, Order::Stop, Order::Free] {
        lane.gate().give(order);
        lane.enforce().unwrap();
    }
    let told = ["work", "preempt", "no work", "restore", "no work", "preempt", "no work", "restore"];
    assert_eq!(*lock(&device.told), told);
}

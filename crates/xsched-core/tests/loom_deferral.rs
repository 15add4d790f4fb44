//! Interleavings of a thread that defers a launch with threads that wait, forbid deferring, or release launches in time, explored by
//! loom.
//!
//! Run with `LOOM_MAX_PREEMPTIONS=3 RUSTFLAGS="--cfg loom" cargo test -p xsched-core --release --test loom_deferral`.
#![cfg(loom)]

use std::sync::Arc;

use loom::sync::Mutex;
use loom::thread;
use xsched_core::sync::Shared;
use xsched_core::{
    Bound, Capabilities, Deferral, DeviceId, Gate, HalError, HoldPoint, HwQueue, LaunchPath, Level,
    LevelCost, LevelRequest, Marker, Nanos, NotDeferred, Order, Progress, SchedulerLink,
};

/// A device that waits at hold points.
struct Device {
    capabilities: Capabilities,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Default)]
struct State {
    placed: HoldPoint,
    released: HoldPoint,
}

impl State {
    /// Whether what was launched before now is held.
    fn holds(self) -> bool {
        self.placed > self.released
    }
}

impl Device {
    fn state(&self) -> State {
        *self.state.lock().unwrap()
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
        true
    }
    fn can_defer(&self) -> bool {
        true
    }
    fn defer(&self, point: HoldPoint) -> Result<(), HalError> {
        let mut state = self.state.lock().unwrap();
        state.placed = state.placed.max(point);
        Ok(())
    }
    fn release_deferred(&self, point: HoldPoint) {
        let mut state = self.state.lock().unwrap();
        state.released = state.released.max(point);
    }
}

#[derive(Default)]
struct Link(Deferral);

impl SchedulerLink for Link {
    fn notify(&self) {}
    fn is_alive(&self) -> bool {
        true
    }
    fn deferral(&self) -> Option<&Deferral> {
        Some(&self.0)
    }
}

/// A host-bound leader that may defer its launches.
fn leader(link: &Arc<Link>) -> (Arc<Device>, Arc<LaunchPath>) {
    let capabilities = Capabilities::block_only("the model", "").with_interrupt(Ok(LevelCost::default()));
    let device = Arc::new(Device { capabilities, state: Mutex::default() });
    let gate = Shared::from(Arc::new(Gate::default()));
    gate.set_order(Order::Leader);
    let _ = gate.take_uncounted();
    gate.permit_unreported(true);
    gate.permit_deferral(true);
    gate.set_bound(Bound::Host);
    let path =
        LaunchPath::new(Arc::clone(&device) as _, gate, Arc::clone(link) as _, LevelRequest::Auto).unwrap();
    path.enforce().unwrap();
    (device, Arc::new(path))
}

fn link(slack: Nanos) -> Arc<Link> {
    let link = Arc::new(Link::default());
    link.0.set_slack(slack);
    link
}

const LONG: Nanos = Nanos::from_secs(1_000);

#[test]
fn nothing_that_a_thread_waits_for_is_held() {
    loom::model(|| {
        let link = link(LONG);
        link.0.assume_timer();
        let (device, path) = leader(&link);
        let waiting = {
            let (device, link) = (Arc::clone(&device), Arc::clone(&link));
            thread::spawn(move || {
                let waiting = link.0.begin_wait();
                // The call of the driver waits for this.
                let placed = device.state().placed;
                drop(waiting);
                placed
            })
        };
        path.launch(|| ());
        let placed = waiting.join().unwrap();
        assert!(device.state().released >= placed, "the thread waits for a held launch");
    });
}

#[test]
fn nothing_is_held_after_deferring_was_forbidden_or_switched_off() {
    for forbid in [(|deferral| deferral.forbid(NotDeferred::Collectives)) as fn(&Deferral), |deferral| {
        deferral.set_slack(Nanos::ZERO)
    }] {
        loom::model(move || {
            let link = link(LONG);
            link.0.assume_timer();
            let (device, path) = leader(&link);
            let forbidding = {
                let link = Arc::clone(&link);
                thread::spawn(move || forbid(&link.0))
            };
            path.launch(|| ());
            forbidding.join().unwrap();
            assert!(!device.state().holds());
        });
    }
}

#[test]
fn timer_thread_does_not_exit_while_launches_are_held() {
    loom::model(|| {
        // Less than the clock's resolution.
        let link = link(Nanos(1));
        let (device, path) = leader(&link);
        let timer = {
            let link = Arc::clone(&link);
            thread::spawn(move || link.0.run_timer(|_| thread::yield_now()))
        };
        path.launch(|| ());
        timer.join().unwrap();
        assert!(!device.state().holds());
    });
}

#[test]
fn launches_of_two_queues_are_all_released_by_a_wait() {
    loom::model(|| {
        let link = link(LONG);
        link.0.assume_timer();
        let (first, second) = (leader(&link), leader(&link));
        let other = {
            let path = Arc::clone(&second.1);
            thread::spawn(move || path.launch(|| ()))
        };
        first.1.launch(|| ());
        other.join().unwrap();
        drop(link.0.begin_wait());
        assert!(!first.0.state().holds() && !second.0.state().holds());
    });
}

#[test]
fn two_threads_that_launch_on_one_queue_leave_nothing_held_after_a_wait() {
    loom::model(|| {
        let link = link(LONG);
        link.0.assume_timer();
        let (device, path) = leader(&link);
        let other = {
            let path = Arc::clone(&path);
            thread::spawn(move || path.launch(|| ()))
        };
        path.launch(|| ());
        other.join().unwrap();
        drop(link.0.begin_wait());
        assert!(!device.state().holds());
    });
}

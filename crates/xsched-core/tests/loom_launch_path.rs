//! Interleavings of launching threads, the enforcer thread and a moving queue, explored by loom.
//!
//! Run with `LOOM_MAX_PREEMPTIONS=3 RUSTFLAGS="--cfg loom" cargo test -p xsched-core --release --test loom_launch_path`.
//! Loom has no time-outs: a lost wake-up shows as a deadlock.
#![cfg(loom)]

use std::sync::Arc;
use std::time::Duration;

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;
use xsched_core::sync::Shared;
use xsched_core::{
    Capabilities, DeviceId, Gate, HalError, HwQueue, LaunchPath, Level, LevelCost, LevelRequest, Limit,
    Marker, NoScheduler, Order, Progress, QueueId, Resume, Suspend, XQueue,
};

/// A device that stalls at markers while it is stopped, and whose commands complete as soon as they run.
struct Device {
    capabilities: Capabilities,
    accepts_launches: bool,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Default)]
struct State {
    is_stopped: bool,
    has_work: bool,
    /// How often the device was stopped.
    stops: u32,
    placed: Marker,
    /// The last marker that was placed before the device stopped.
    placed_before_stop: Marker,
    completed: Marker,
    launches: u32,
}

impl State {
    /// Whether what is launched now waits at a marker.
    fn is_stalled(self) -> bool {
        self.is_stopped && self.placed > self.placed_before_stop
    }
}

impl Device {
    fn new(level: Level, accepts_launches: bool) -> Arc<Self> {
        let levels = Capabilities::block_only("the model", "level 1 is tested");
        let capabilities =
            if level == Level::Block { levels } else { levels.with_deactivate(Ok(LevelCost::default())) };
        // As `HwQueue::set_has_work` requires: a queue has work until the first call.
        let state = State { has_work: true, ..State::default() };
        Arc::new(Self { capabilities, accepts_launches, state: Mutex::new(state) })
    }

    fn state(&self) -> State {
        *self.state.lock().unwrap()
    }

    fn launch(&self) -> State {
        let mut state = self.state.lock().unwrap();
        state.launches += 1;
        *state
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
        let mut state = self.state.lock().unwrap();
        state.placed += 1;
        if !state.is_stopped {
            state.completed = state.placed;
        }
        Ok(state.placed)
    }
    fn progress(&self) -> Progress {
        Progress { marker: self.state().completed, at: None }
    }
    fn wait(&self, marker: Marker, _: Duration) -> Result<bool, HalError> {
        thread::yield_now();
        Ok(self.state().completed >= marker)
    }
    fn synchronize(&self) -> Result<(), HalError> {
        Ok(())
    }
    fn preempt(&self, _: Level) -> Result<(), HalError> {
        let mut state = self.state.lock().unwrap();
        state.stops += 1;
        state.placed_before_stop = state.placed;
        state.is_stopped = true;
        Ok(())
    }
    fn restore(&self) -> Result<(), HalError> {
        let mut state = self.state.lock().unwrap();
        state.completed = state.placed;
        state.is_stopped = false;
        Ok(())
    }
    fn set_has_work(&self, has_work: bool) {
        self.state.lock().unwrap().has_work = has_work;
    }
    fn accepts_launches_while_stopped(&self) -> bool {
        self.accepts_launches
    }
}

fn gate(order: Order) -> Shared<Gate> {
    let gate = Shared::from(Arc::new(Gate::default()));
    gate.set_order(order);
    // The watcher thread does this before the first decision: from now on every launch is counted.
    let _ = gate.take_uncounted();
    gate
}

fn launch_path(device: &Arc<Device>, order: Order) -> Arc<LaunchPath> {
    let hw: Arc<dyn HwQueue> = device.clone();
    let launch_path = LaunchPath::new(hw, gate(order), Arc::new(NoScheduler), LevelRequest::Auto).unwrap();
    Arc::new(launch_path)
}

fn order(launch_path: &LaunchPath, order: Order) {
    launch_path.gate().set_order(order);
    launch_path.enforce().unwrap();
}

/// Launches once on a thread of the program.
fn launch(launch_path: &Arc<LaunchPath>, device: &Arc<Device>) -> thread::JoinHandle<()> {
    let (launch_path, device) = (Arc::clone(launch_path), Arc::clone(device));
    thread::spawn(move || {
        launch_path.launch(|| device.launch());
    })
}

/// Every kind of device: level 1, level 2, and level 2 with launches that wait on the device.
const DEVICES: [(Level, bool); 3] =
    [(Level::Block, false), (Level::Deactivate, false), (Level::Deactivate, true)];

#[test]
fn held_thread_resumes_after_the_order_that_releases_it() {
    for (level, accepts_launches) in DEVICES {
        loom::model(move || {
            let device = Device::new(level, accepts_launches);
            let path = launch_path(&device, Order::Drain);
            path.enforce().unwrap();
            let held = launch(&path, &device);
            order(&path, Order::Leader);
            held.join().unwrap();
            assert_eq!(device.state().launches, 1);
            assert!(!device.state().is_stopped);
        });
    }
}

#[test]
fn thread_with_a_full_window_resumes_after_the_order_that_releases_it() {
    loom::model(|| {
        let device = Device::new(Level::Deactivate, true);
        let path = launch_path(&device, Order::Drain);
        path.set_limit(Limit::count(1, 1).ok());
        path.enforce().unwrap();
        path.launch(|| device.launch());
        // The window is full: this thread waits at the gate.
        let held = launch(&path, &device);
        order(&path, Order::Leader);
        held.join().unwrap();
        assert_eq!(device.state().launches, 2);
    });
}

#[test]
fn thread_that_launches_while_its_queue_is_stopped_and_resumed_launches_once() {
    for (level, accepts_launches) in DEVICES {
        loom::model(move || {
            let device = Device::new(level, accepts_launches);
            let path = launch_path(&device, Order::Leader);
            let launching = launch(&path, &device);
            order(&path, Order::Yield);
            order(&path, Order::Throttled);
            launching.join().unwrap();
            assert_eq!(device.state().launches, 1);
            assert!(!device.state().is_stopped && !path.is_preempted());
        });
    }
}

#[test]
fn suspended_queue_launches_nothing_until_it_is_resumed() {
    for (level, accepts_launches) in DEVICES {
        loom::model(move || {
            let device = Device::new(level, accepts_launches);
            let gate = gate(Order::Leader);
            gate.count_all();
            let hw: Arc<dyn HwQueue> = device.clone();
            let queue = XQueue::new(QueueId(1), hw, gate, Arc::new(NoScheduler), LevelRequest::Auto).unwrap();
            let queue = Arc::new(queue);
            let is_suspended = Arc::new(AtomicBool::new(false));
            let launching = {
                let (queue, is_suspended) = (Arc::clone(&queue), Arc::clone(&is_suspended));
                thread::spawn(move || {
                    // Checked after the launch, here and below: a panic inside would unwind through the launch path.
                    let was_suspended = queue.launch(|| is_suspended.load(Ordering::SeqCst));
                    assert!(!was_suspended, "launched while suspended");
                })
            };
            queue.suspend(Suspend::default()).unwrap();
            is_suspended.store(true, Ordering::SeqCst);
            assert_eq!(device.state().is_stopped, level > Level::Block);
            is_suspended.store(false, Ordering::SeqCst);
            queue.resume(Resume::default()).unwrap();
            launching.join().unwrap();
            assert!(!device.state().is_stopped);
        });
    }
}

/// The first launch of a new queue, which moves to another scheduler meanwhile: only the new one decides.
#[test]
fn first_launch_waits_for_the_first_order_also_when_its_queue_moves() {
    loom::model(|| {
        let device = Device::new(Level::Block, false);
        let old = gate(Order::Free);
        old.mark_undecided();
        let hw: Arc<dyn HwQueue> = device.clone();
        let path = LaunchPath::new(hw, old, Arc::new(NoScheduler), LevelRequest::Auto).unwrap();
        let path = Arc::new(path);
        let launching = launch(&path, &device);
        let new = gate(Order::Free);
        new.mark_undecided();
        path.move_to(new.clone());
        new.set_order(Order::Yield);
        new.mark_decided();
        assert_eq!(device.state().launches, 0, "launched before the first order, which stops it");
        new.set_order(Order::Throttled);
        launching.join().unwrap();
        assert_eq!(device.state().launches, 1);
    });
}

/// Where threads wait at the gate, no thread is inside once the gate was seen empty after the order.
#[test]
fn drained_queue_launches_nothing_once_its_gate_was_empty() {
    for level in [Level::Block, Level::Deactivate] {
        loom::model(move || {
            let device = Device::new(level, false);
            let path = launch_path(&device, Order::Leader);
            let is_drained = Arc::new(AtomicBool::new(false));
            let launching = {
                let (path, is_drained) = (Arc::clone(&path), Arc::clone(&is_drained));
                thread::spawn(move || {
                    let was_drained = path.launch(|| is_drained.load(Ordering::SeqCst));
                    assert!(!was_drained, "launched while drained");
                })
            };
            order(&path, Order::Drain);
            while path.gate().is_occupied() {
                thread::yield_now();
            }
            is_drained.store(true, Ordering::SeqCst);
            is_drained.store(false, Ordering::SeqCst);
            order(&path, Order::Leader);
            launching.join().unwrap();
        });
    }
}

/// Where launches wait on the device, each lies behind a marker that was placed after the device stopped. The device is
/// stopped twice: a marker of the first stop does not hold launches in the second.
#[test]
fn launch_on_a_stopped_device_waits_behind_a_marker_of_that_stop() {
    loom::model(|| {
        let device = Device::new(Level::Deactivate, true);
        let path = launch_path(&device, Order::Drain);
        path.enforce().unwrap();
        assert!(path.launch(|| device.launch()).is_stalled());
        let launching = {
            let (path, device) = (Arc::clone(&path), Arc::clone(&device));
            thread::spawn(move || {
                let before = device.state();
                let now = path.launch(|| device.launch());
                let has_stopped_before = before.is_stopped && now.is_stopped && before.stops == now.stops;
                assert!(!has_stopped_before || now.is_stalled(), "runs on a stopped device");
            })
        };
        order(&path, Order::Leader);
        order(&path, Order::Drain);
        launching.join().unwrap();
        order(&path, Order::Free);
        assert!(!device.state().is_stopped);
    });
}

#[test]
fn queue_that_moves_to_another_scheduler_leaves_no_stop_and_no_thread_behind() {
    for (level, accepts_launches) in DEVICES {
        for next in [Order::Free, Order::Leader] {
            loom::model(move || {
                let device = Device::new(level, accepts_launches);
                let path = launch_path(&device, Order::Drain);
                path.enforce().unwrap();
                let held = launch(&path, &device);
                path.move_to(gate(Order::Free));
                order(&path, next);
                held.join().unwrap();
                assert_eq!(device.state().launches, 1);
                assert!(!device.state().is_stopped && !path.is_preempted(), "a stop was left behind");
            });
        }
    }
}

/// The process replaces the old page by zeros once no thread is inside or held there. A thread that has read the address of
/// the old gate may use it at any time later.
#[test]
fn queue_launches_once_although_its_old_gate_is_replaced_by_zeros() {
    for (level, accepts_launches) in DEVICES {
        for first in [Order::Free, Order::Leader, Order::Drain] {
            loom::model(move || {
                let device = Device::new(level, accepts_launches);
                let old = gate(first);
                let hw: Arc<dyn HwQueue> = device.clone();
                let path = LaunchPath::new(hw, old.clone(), Arc::new(NoScheduler), LevelRequest::Auto);
                let path = Arc::new(path.unwrap());
                path.enforce().unwrap();
                let launching = launch(&path, &device);
                path.move_to(gate(Order::Free));
                if !old.is_used() {
                    old.replace_by_zeros();
                }
                order(&path, Order::Leader);
                launching.join().unwrap();
                assert_eq!(device.state().launches, 1);
                assert!(!device.state().is_stopped && !path.is_preempted(), "a stop was left behind");
                assert!(!old.is_occupied(), "a thread counts as inside the old gate");
            });
        }
    }
}

/// The same while the enforcer thread acts on the old scheduler's order at any time.
#[test]
fn queue_that_moves_while_its_old_order_is_enforced_leaves_no_stop_behind() {
    let mut model = loom::model::Builder::new();
    // A third preemption takes a minute with three threads.
    model.preemption_bound = Some(2);
    for (level, accepts_launches) in DEVICES {
        model.check(move || {
            let device = Device::new(level, accepts_launches);
            let path = launch_path(&device, Order::Drain);
            let held = launch(&path, &device);
            let enforcer = {
                let path = Arc::clone(&path);
                thread::spawn(move || path.enforce().unwrap())
            };
            path.move_to(gate(Order::Free));
            order(&path, Order::Leader);
            held.join().unwrap();
            enforcer.join().unwrap();
            assert_eq!(device.state().launches, 1);
            assert!(!device.state().is_stopped && !path.is_preempted(), "a stop was left behind");
        });
    }
}

/// The new scheduler's first order may stop the queue as well.
#[test]
fn thread_held_at_the_old_gate_waits_at_the_new_one() {
    loom::model(|| {
        let device = Device::new(Level::Block, false);
        let path = launch_path(&device, Order::Yield);
        let is_allowed = Arc::new(AtomicBool::new(false));
        let held = {
            let (path, is_allowed) = (Arc::clone(&path), Arc::clone(&is_allowed));
            thread::spawn(move || {
                let was_allowed = path.launch(|| is_allowed.load(Ordering::SeqCst));
                assert!(was_allowed, "launched against the new order");
            })
        };
        path.move_to(gate(Order::Yield));
        is_allowed.store(true, Ordering::SeqCst);
        order(&path, Order::Leader);
        held.join().unwrap();
    });
}

/// Suspending waits for threads that are inside, also inside a gate from which the queue has moved away.
#[test]
fn suspending_after_a_move_waits_for_threads_inside_the_old_gate() {
    loom::model(|| {
        let device = Device::new(Level::Block, false);
        let old = gate(Order::Leader);
        old.count_all();
        let hw: Arc<dyn HwQueue> = device.clone();
        let queue = XQueue::new(QueueId(1), hw, old, Arc::new(NoScheduler), LevelRequest::Auto).unwrap();
        let queue = Arc::new(queue);
        let is_suspended = Arc::new(AtomicBool::new(false));
        let launching = {
            let (queue, is_suspended) = (Arc::clone(&queue), Arc::clone(&is_suspended));
            thread::spawn(move || {
                let was_suspended = queue.launch(|| is_suspended.load(Ordering::SeqCst));
                assert!(!was_suspended, "launched while suspended");
            })
        };
        queue.launch_path().move_to(gate(Order::Leader));
        queue.suspend(Suspend::default()).unwrap();
        is_suspended.store(true, Ordering::SeqCst);
        is_suspended.store(false, Ordering::SeqCst);
        queue.resume(Resume::default()).unwrap();
        launching.join().unwrap();
    });
}

/// A stopped queue without work must not stall what the program does there uncounted, such as copies.
#[test]
fn device_learns_that_a_queue_became_idle_while_it_was_being_stopped() {
    loom::model(|| {
        let device = Device::new(Level::Deactivate, false);
        let path = launch_path(&device, Order::Leader);
        path.launch(|| device.launch());
        let waiting = {
            let path = Arc::clone(&path);
            thread::spawn(move || path.begin_wait().finish())
        };
        order(&path, Order::Drain);
        waiting.join().unwrap();
        assert!(!path.gate().is_ready());
        assert!(!device.state().has_work, "the device still stalls for work that has completed");
    });
}

/// Two threads enforce while the order changes: the device follows the last order.
#[test]
fn device_follows_the_last_order_whichever_thread_enforces_it() {
    loom::model(|| {
        let device = Device::new(Level::Deactivate, false);
        let path = launch_path(&device, Order::Drain);
        let enforcer = {
            let path = Arc::clone(&path);
            thread::spawn(move || path.enforce().unwrap())
        };
        path.set_level(LevelRequest::Exactly(Level::Block)).unwrap();
        path.set_level(LevelRequest::Auto).unwrap();
        order(&path, Order::Free);
        enforcer.join().unwrap();
        assert!(!device.state().is_stopped && !path.is_preempted());
    });
}

/// Counts the notifications of the scheduler.
#[derive(Default)]
struct Notifications(AtomicUsize);

impl xsched_core::SchedulerLink for Notifications {
    fn notify(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
    fn is_alive(&self) -> bool {
        true
    }
}

/// A scheduler that decides only when it is notified still releases a thread that waits.
#[test]
fn scheduler_is_notified_of_a_thread_that_waits_on_a_stopped_queue() {
    for (level, accepts_launches) in DEVICES {
        loom::model(move || {
            let device = Device::new(level, accepts_launches);
            let link = Arc::new(Notifications::default());
            let hw: Arc<dyn HwQueue> = device.clone();
            let path = LaunchPath::new(hw, gate(Order::Drain), link.clone(), LevelRequest::Auto).unwrap();
            let path = Arc::new(path);
            path.enforce().unwrap();
            let held = launch(&path, &device);
            while link.0.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            assert!(path.gate().is_ready(), "notified before the reason could be seen");
            order(&path, Order::Leader);
            held.join().unwrap();
        });
    }
}

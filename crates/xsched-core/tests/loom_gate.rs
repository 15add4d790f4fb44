//! Every interleaving of the gate, explored by loom.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p xsched-core --release --test loom_gate`.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;
use xsched_core::{Gate, NoScheduler, Order, SchedulerLink};

/// Launches once, as a thread of the program does. Returns the order that allowed it.
fn launch(gate: &Gate, link: &dyn SchedulerLink, real: impl FnOnce()) -> Order {
    let order = gate.enter(link);
    gate.mark_busy(link);
    real();
    gate.leave();
    order
}

#[test]
fn held_thread_is_always_woken() {
    loom::model(|| {
        let gate = Arc::new(Gate::default());
        gate.set_order(Order::Yield);
        let held = {
            let gate = Arc::clone(&gate);
            thread::spawn(move || launch(&gate, &NoScheduler, || {}))
        };
        gate.set_order(Order::Throttled);
        // Loom reports a deadlock here if the wake-up was lost.
        assert_eq!(held.join().unwrap(), Order::Throttled);
    });
}

#[test]
fn thread_held_by_scheduler_and_program_is_woken_by_the_last_release() {
    loom::model(|| {
        let gate = Arc::new(Gate::default());
        gate.set_order(Order::Yield);
        gate.close();
        let held = {
            let gate = Arc::clone(&gate);
            thread::spawn(move || launch(&gate, &NoScheduler, || {}))
        };
        let program = {
            let gate = Arc::clone(&gate);
            thread::spawn(move || gate.open())
        };
        gate.set_order(Order::Free);
        program.join().unwrap();
        held.join().unwrap();
    });
}

#[test]
fn nothing_is_launched_between_close_and_open_once_the_gate_is_empty() {
    loom::model(|| {
        let gate = Arc::new(Gate::default());
        gate.count_all();
        let suspended = Arc::new(AtomicBool::new(false));
        let runs = Arc::new(AtomicUsize::new(0));
        let program = {
            let (gate, suspended, runs) = (Arc::clone(&gate), Arc::clone(&suspended), Arc::clone(&runs));
            thread::spawn(move || {
                launch(&gate, &NoScheduler, || {
                    assert!(!suspended.load(Ordering::SeqCst), "launched while suspended");
                    runs.fetch_add(1, Ordering::SeqCst);
                });
            })
        };
        gate.close();
        gate.wait_until_empty(|| false);
        suspended.store(true, Ordering::SeqCst);
        suspended.store(false, Ordering::SeqCst);
        gate.open();
        program.join().unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), 1, "launched exactly once");
    });
}

#[test]
fn two_queues_with_alternating_time_slices_never_run_at_once() {
    loom::model(|| {
        let gates = Arc::new([Gate::default(), Gate::default()]);
        gates.iter().for_each(Gate::count_all);
        gates[1].close();
        let running = Arc::new(AtomicUsize::new(0));
        let programs: Vec<_> = (0..2)
            .map(|me| {
                let (gates, running) = (Arc::clone(&gates), Arc::clone(&running));
                thread::spawn(move || {
                    launch(&gates[me], &NoScheduler, || {
                        assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "both run");
                        running.fetch_sub(1, Ordering::SeqCst);
                    });
                })
            })
            .collect();
        // The second queue starts only after the first has stopped.
        gates[0].close();
        gates[0].wait_until_empty(|| false);
        gates[1].open();
        gates[1].close();
        gates[1].wait_until_empty(|| false);
        gates[0].open();
        // The second queue is resumed after the first has launched.
        let mut programs = programs.into_iter();
        programs.next().unwrap().join().unwrap();
        gates[1].open();
        programs.next().unwrap().join().unwrap();
    });
}

/// Counts notifications.
struct Notifications(AtomicUsize);

impl SchedulerLink for Notifications {
    fn notify(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
    fn is_alive(&self) -> bool {
        true
    }
}

#[test]
fn scheduler_that_decides_when_notified_releases_the_held_thread() {
    loom::model(|| {
        let gate = Arc::new(Gate::default());
        gate.set_order(Order::Yield);
        let link = Arc::new(Notifications(AtomicUsize::new(0)));
        let program = {
            let (gate, link) = (Arc::clone(&gate), Arc::clone(&link));
            thread::spawn(move || launch(&gate, &*link, || {}))
        };
        while link.0.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        assert!(gate.is_ready(), "notified before the reason could be seen");
        gate.set_order(Order::Leader);
        program.join().unwrap();
    });
}

#[test]
fn queue_with_work_is_never_marked_idle() {
    loom::model(|| {
        let gate = Arc::new(Gate::default());
        gate.set_order(Order::Leader);
        let link = Arc::new(Notifications(AtomicUsize::new(0)));
        launch(&gate, &*link, || {});
        // This thread has synchronized with the device; another thread launches meanwhile.
        let epoch = gate.epoch();
        let other = {
            let (gate, link) = (Arc::clone(&gate), Arc::clone(&link));
            thread::spawn(move || launch(&gate, &*link, || {}))
        };
        gate.mark_idle(epoch, &*link);
        other.join().unwrap();
        assert!(gate.is_ready(), "the second launch was lost");
    });
}

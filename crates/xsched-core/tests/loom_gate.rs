//! Every interleaving of the gate, explored by loom.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p xsched-core --release --test loom_gate`.
#![cfg(loom)]

use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
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
fn first_launch_obeys_the_first_order() {
    for first in [Order::Leader, Order::Yield] {
        loom::model(move || {
            let gate = Arc::new(Gate::default());
            gate.mark_undecided();
            assert!(!gate.is_free());
            let launched = Arc::new(AtomicBool::new(false));
            let launching = {
                let (gate, launched) = (Arc::clone(&gate), Arc::clone(&launched));
                thread::spawn(move || {
                    gate.wait_until_decided();
                    launch(&gate, &NoScheduler, || launched.store(true, Ordering::SeqCst))
                })
            };
            gate.set_order(first);
            gate.mark_decided();
            if first.stops() {
                assert!(!launched.load(Ordering::SeqCst), "launched before the first order, which stops it");
                gate.set_order(Order::Throttled);
                assert_eq!(launching.join().unwrap(), Order::Throttled);
            } else {
                assert_eq!(launching.join().unwrap(), first, "launched before its first order");
            }
        });
    }
}

#[test]
fn first_launch_resumes_when_its_queue_leaves_the_scheduler() {
    loom::model(|| {
        let gate = Arc::new(Gate::default());
        gate.mark_undecided();
        let launching = {
            let gate = Arc::clone(&gate);
            thread::spawn(move || assert!(gate.wait_until_decided(), "loom has no time-outs"))
        };
        let scheduler = {
            let gate = Arc::clone(&gate);
            // Its order and its decision come at any time, also after the queue has left.
            thread::spawn(move || {
                gate.set_order(Order::Yield);
                gate.mark_decided();
            })
        };
        gate.retire();
        launching.join().unwrap();
        scheduler.join().unwrap();
        assert!(!gate.is_undecided());
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

/// A scheduler that reads the gate at each notification, and remembers what it saw last.
struct Scheduler {
    gate: Arc<Gate>,
    sees_work: Mutex<bool>,
}

impl SchedulerLink for Scheduler {
    fn notify(&self) {
        let mut sees_work = self.sees_work.lock().unwrap();
        *sees_work = self.gate.is_ready();
    }
    fn is_alive(&self) -> bool {
        true
    }
}

fn gate_and_scheduler() -> (Arc<Gate>, Arc<Scheduler>) {
    let gate = Arc::new(Gate::default());
    gate.set_order(Order::Leader);
    gate.permit_unreported(true);
    let scheduler = Arc::new(Scheduler { gate: Arc::clone(&gate), sees_work: Mutex::new(false) });
    (gate, scheduler)
}

fn mark_busy(gate: &Gate, link: &dyn SchedulerLink, is_unreported: bool) {
    if gate.mark_busy_without_notification(is_unreported) {
        link.notify();
    }
}

#[test]
fn reported_launch_is_seen_beside_launches_that_are_not() {
    loom::model(|| {
        let (gate, scheduler) = gate_and_scheduler();
        let unreported = {
            let (gate, scheduler) = (Arc::clone(&gate), Arc::clone(&scheduler));
            thread::spawn(move || mark_busy(&gate, &*scheduler, true))
        };
        mark_busy(&gate, &*scheduler, false);
        unreported.join().unwrap();
        assert!(*scheduler.sees_work.lock().unwrap(), "the scheduler does not know of the launch");
    });
}

#[test]
fn end_of_work_that_another_thread_reports_is_seen() {
    loom::model(|| {
        let (gate, scheduler) = gate_and_scheduler();
        mark_busy(&gate, &*scheduler, true);
        let enforcer = {
            let (gate, scheduler) = (Arc::clone(&gate), Arc::clone(&scheduler));
            thread::spawn(move || {
                if gate.report_unreported() {
                    scheduler.notify();
                }
            })
        };
        assert!(gate.mark_idle(gate.epoch(), &*scheduler));
        enforcer.join().unwrap();
        assert!(!*scheduler.sees_work.lock().unwrap(), "the scheduler waits for work that has completed");
    });
}

#[test]
fn end_of_reported_work_is_seen_although_the_next_work_is_not_reported() {
    loom::model(|| {
        let (gate, scheduler) = gate_and_scheduler();
        mark_busy(&gate, &*scheduler, false);
        let epoch = gate.epoch();
        let next = {
            let (gate, scheduler) = (Arc::clone(&gate), Arc::clone(&scheduler));
            thread::spawn(move || mark_busy(&gate, &*scheduler, true))
        };
        gate.mark_idle(epoch, &*scheduler);
        next.join().unwrap();
        gate.mark_idle(gate.epoch(), &*scheduler);
        assert!(!*scheduler.sees_work.lock().unwrap(), "the scheduler waits for work that has completed");
    });
}

/// The launching thread decides while it leads and has the permission, and marks the queue busy later.
#[test]
fn work_is_seen_although_the_scheduler_needs_reports_since_the_launch_was_decided() {
    let changes: [fn(&Gate); 3] = [
        |gate| gate.set_order(Order::Throttled),
        |gate| gate.set_order(Order::Yield),
        |gate| assert!(gate.permit_unreported(false)),
    ];
    for change in changes {
        loom::model(move || {
            let (gate, scheduler) = gate_and_scheduler();
            let launching = {
                let (gate, scheduler) = (Arc::clone(&gate), Arc::clone(&scheduler));
                thread::spawn(move || mark_busy(&gate, &*scheduler, !gate.needs_reports()))
            };
            change(&gate);
            // As the enforcer thread does after each change.
            if gate.needs_reports() && gate.report_unreported() {
                scheduler.notify();
            }
            launching.join().unwrap();
            assert!(*scheduler.sees_work.lock().unwrap(), "the scheduler does not know of the launch");
        });
    }
}

/// The leader may keep its work unreported again. The scheduler knows of work that the enforcer thread has found meanwhile.
#[test]
fn work_that_does_not_count_as_unreported_is_seen() {
    loom::model(|| {
        let (gate, scheduler) = gate_and_scheduler();
        let launching = {
            let (gate, scheduler) = (Arc::clone(&gate), Arc::clone(&scheduler));
            thread::spawn(move || mark_busy(&gate, &*scheduler, !gate.needs_reports()))
        };
        gate.set_order(Order::Throttled);
        if gate.needs_reports() && gate.report_unreported() {
            scheduler.notify();
        }
        gate.set_order(Order::Leader);
        launching.join().unwrap();
        assert_eq!(*scheduler.sees_work.lock().unwrap(), gate.is_ready());
    });
}

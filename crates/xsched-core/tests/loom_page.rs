//! Interleavings of a process and its scheduler at the words of their page, and of a process that is bound to another page,
//! explored by loom.
//!
//! Run with `LOOM_MAX_PREEMPTIONS=3 RUSTFLAGS="--cfg loom" cargo test -p xsched-core --release --test loom_page`.
//! Loom has no time-outs: a lost wake-up shows as a deadlock.
#![cfg(loom)]

use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use loom::thread;
use xsched_core::page_protocol::{NotificationFlag, Rebindable, SlotState, StallFlag};
use xsched_core::sync::Futex;
use xsched_core::{Gate, NoScheduler, Order};

/// A page with a notification flag and one value, and how many notifications were sent.
#[derive(Default)]
struct Notified {
    flag: NotificationFlag,
    value: AtomicU32,
    sent: AtomicU32,
    has_ended: AtomicBool,
}

impl Notified {
    fn change(&self, value: u32) {
        self.value.store(value, Ordering::SeqCst);
        if self.flag.notify() {
            self.sent.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A scheduler that reads the page only after notifications has read its last change in the end.
#[test]
fn no_change_of_the_page_is_missed_although_notifications_are_saved() {
    loom::model(|| {
        let page = Arc::new(Notified::default());
        let process = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                page.change(1);
                page.change(2);
                page.has_ended.store(true, Ordering::SeqCst);
            })
        };
        let (mut received, mut read) = (0, 0);
        loop {
            let has_ended = page.has_ended.load(Ordering::SeqCst);
            let sent = page.sent.load(Ordering::SeqCst);
            if received < sent {
                received += 1;
                page.flag.acknowledge();
                read = page.value.load(Ordering::SeqCst);
            } else if has_ended {
                break;
            } else {
                thread::yield_now();
            }
        }
        process.join().unwrap();
        assert_eq!(read, 2, "the scheduler does not know of the last change");
    });
}

#[test]
fn two_threads_allocate_different_slots() {
    loom::model(|| {
        let slots = Arc::new([SlotState::default(), SlotState::default()]);
        let allocate = |slots: &[SlotState; 2]| slots.iter().position(SlotState::try_allocate);
        let other = {
            let slots = Arc::clone(&slots);
            thread::spawn(move || allocate(&slots))
        };
        let (mine, other) = (allocate(&slots), other.join().unwrap());
        assert!(mine.is_some() && other.is_some() && mine != other, "{mine:?} {other:?}");
    });
}

/// The device of a slot is written with relaxed accesses: only the state orders them.
#[test]
fn scheduler_that_finds_a_slot_in_use_reads_its_device() {
    loom::model(|| {
        let slot = Arc::new((SlotState::default(), AtomicU64::new(0)));
        let process = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                let (state, device) = &*slot;
                for number in [1, 2] {
                    assert!(state.try_allocate());
                    device.store(number, Ordering::Relaxed);
                    state.publish();
                    state.release();
                }
            })
        };
        let (state, device) = &*slot;
        if state.is_in_use() {
            assert_ne!(device.load(Ordering::Relaxed), 0, "the slot is not initialized");
        }
        process.join().unwrap();
        assert!(!state.is_in_use());
    });
}

/// A process that was stopped, wherever its watcher thread was, tells the scheduler that it runs.
#[test]
fn stalled_process_notifies_its_scheduler_when_it_runs() {
    loom::model(|| {
        let page = Arc::new((StallFlag::default(), Futex::new(0), AtomicU32::new(0)));
        let watcher = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                let (stalled, orders, notifications) = &*page;
                loop {
                    let seen = orders.word().load(Ordering::SeqCst);
                    if stalled.clear() {
                        notifications.fetch_add(1, Ordering::SeqCst);
                        return;
                    }
                    orders.wait(seen, None);
                }
            })
        };
        let (stalled, orders, notifications) = &*page;
        stalled.set(true);
        orders.bump();
        watcher.join().unwrap();
        assert_eq!((stalled.is_set(), notifications.load(Ordering::SeqCst)), (false, 1));
    });
}

/// What a process is bound to: the futex of a page, and one gate in it.
struct Binding {
    orders: Futex,
    gate: Gate,
}

impl Binding {
    fn new(order: Order) -> Arc<Self> {
        let gate = Gate::default();
        gate.set_order(order);
        Arc::new(Self { orders: Futex::new(0), gate })
    }
}

/// Returns when an enforcer thread, which sleeps until the orders change, has found `wanted` on the page `expected`.
fn follow(process: &Rebindable<Binding>, expected: &Arc<Binding>, wanted: Order) {
    loop {
        let (binding, seen) = process.observe(|binding| &binding.orders);
        if Arc::ptr_eq(&binding, expected) && binding.gate.order() == wanted {
            return;
        }
        binding.orders.wait(seen, None);
    }
}

#[test]
fn thread_that_sleeps_on_the_old_page_finds_the_orders_of_the_new_scheduler() {
    loom::model(|| {
        let (old, new) = (Binding::new(Order::Free), Binding::new(Order::Free));
        let process = Arc::new(Rebindable::new(Arc::clone(&old)));
        let enforcer = {
            let (process, new) = (Arc::clone(&process), Arc::clone(&new));
            thread::spawn(move || follow(&process, &new, Order::Throttled))
        };
        // The new scheduler may write its first order before or after the process is bound to its page.
        let scheduler = {
            let new = Arc::clone(&new);
            thread::spawn(move || {
                new.gate.set_order(Order::Throttled);
                new.orders.bump();
            })
        };
        process.replace(Arc::clone(&new)).orders.bump();
        enforcer.join().unwrap();
        scheduler.join().unwrap();
    });
}

/// The process replaces an old page by zeros. A thread that is about to sleep there, on a value other than zero, does not.
#[test]
fn thread_that_is_about_to_sleep_on_the_old_page_finds_the_new_one_although_the_old_one_became_zeros() {
    loom::model(|| {
        let (old, new) = (Binding::new(Order::Free), Binding::new(Order::Throttled));
        // A process changes the word before it binds to a page.
        for page in [&old, &new] {
            page.orders.word().fetch_add(1, Ordering::SeqCst);
        }
        let process = Arc::new(Rebindable::new(Arc::clone(&old)));
        let enforcer = {
            let (process, new) = (Arc::clone(&process), Arc::clone(&new));
            thread::spawn(move || follow(&process, &new, Order::Throttled))
        };
        process.replace(new).orders.bump();
        old.orders.word().store(0, Ordering::SeqCst);
        old.gate.replace_by_zeros();
        enforcer.join().unwrap();
    });
}

/// The service is lost and its successor's page arrives at the same time: the process ends up bound to the successor.
#[test]
fn loss_of_the_old_scheduler_does_not_undo_the_binding_to_the_new_one() {
    loom::model(|| {
        let (old, new) = (Binding::new(Order::Yield), Binding::new(Order::Free));
        let process = Arc::new(Rebindable::new(Arc::clone(&old)));
        let held = {
            let old = Arc::clone(&old);
            thread::spawn(move || {
                old.gate.enter(&NoScheduler);
                old.gate.leave();
            })
        };
        let lost = {
            let (process, old) = (Arc::clone(&process), Arc::clone(&old));
            thread::spawn(move || {
                process.replace_if(&old, Binding::new(Order::Free));
                old.gate.set_order(Order::Free);
            })
        };
        process.replace(Arc::clone(&new)).orders.bump();
        lost.join().unwrap();
        held.join().unwrap();
        assert!(Arc::ptr_eq(&process.get(), &new));
    });
}

use super::order::{DRAIN, EVICT, LEADER, PEER, THROTTLED};
use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Default)]
struct TestLink {
    notifications: AtomicUsize,
    dead: bool,
}

impl SchedulerLink for TestLink {
    fn notify(&self) {
        self.notifications.fetch_add(1, Ordering::SeqCst);
    }
    fn is_alive(&self) -> bool {
        !self.dead
    }
}

#[test]
fn gate_that_was_free_may_have_uncounted_launches() {
    let gate = Gate::default();
    assert!(gate.take_uncounted() && gate.take_uncounted(), "no launch is counted while the gate is free");
    gate.set_order(Order::Throttled);
    assert!(gate.take_uncounted());
    assert!(!gate.take_uncounted(), "they were accounted for");
    for order in [Order::Leader, Order::Yield, Order::Drain, Order::Peer] {
        gate.set_order(order);
    }
    assert!(!gate.has_uncounted());
    gate.set_order(Order::Free);
    gate.set_order(Order::Yield);
    assert!(gate.has_uncounted());
}

#[test]
fn orders_and_the_programs_own_bits_are_independent() {
    use Order::{Drain, Evict, Free, Leader, Throttled, Yield};
    let gate = Gate::default();
    gate.close();
    for order in [Yield, Throttled, Drain, Yield, Evict, Drain, Free, Drain, Evict, Leader] {
        gate.set_order(order);
        assert_eq!(gate.order(), order);
        assert!(gate.is_closed());
    }
    gate.open();
    assert_eq!(gate.order(), Order::Leader);
    assert!(!gate.is_stopped());
}

#[test]
fn invalid_word_is_read_as_the_strictest_order_in_it() {
    assert_eq!(Order::of(u32::MAX), Order::Drain);
    assert_eq!(Order::of(DRAIN | EVICT | PEER), Order::Free, "they are valid only with another bit");
    assert_eq!(Order::of(LEADER | THROTTLED), Order::Throttled);
    assert_eq!(Order::of(1 << 9), Order::Free);
}

#[test]
fn only_changes_between_busy_and_idle_notify_the_scheduler() {
    let (gate, link) = (Gate::default(), TestLink::default());
    gate.mark_busy(&link);
    gate.mark_busy(&link);
    assert_eq!(link.notifications.load(Ordering::SeqCst), 1);
    let epoch = gate.epoch();
    assert!(gate.mark_idle(epoch, &link));
    assert!(gate.mark_idle(epoch, &link), "repeated");
    assert_eq!(link.notifications.load(Ordering::SeqCst), 2);
}

#[test]
fn work_launched_after_the_epoch_keeps_the_queue_busy() {
    let (gate, link) = (Gate::default(), TestLink::default());
    gate.mark_busy(&link);
    let epoch = gate.epoch();
    gate.mark_busy(&link);
    assert!(!gate.mark_idle(epoch, &link));
    assert!(gate.is_ready());
}

#[test]
fn epoch_does_not_recur_after_the_queue_was_idle() {
    let (gate, link) = (Gate::default(), TestLink::default());
    gate.mark_busy(&link);
    let old = gate.epoch();
    assert!(gate.mark_idle(old, &link));
    gate.mark_busy(&link);
    assert!(!gate.mark_idle(old, &link), "an old epoch must not mark new work idle");
    assert!(gate.is_ready());
}

#[test]
fn dead_scheduler_releases_held_threads() {
    let gate = Gate::default();
    gate.set_order(Order::Yield);
    let link = TestLink { dead: true, ..TestLink::default() };
    assert_eq!(gate.enter(&link), Order::Free);
    assert_eq!(gate.counts().holds, 1);
    assert!(!gate.is_ready());
}

#[test]
fn queue_in_a_reused_slot_counts_from_zero() {
    let (gate, link) = (Gate::default(), TestLink::default());
    gate.mark_busy(&link);
    for _ in 0..5 {
        gate.mark_busy_again(&link);
    }
    gate.add_unreported(Nanos(1));
    gate.reset();
    assert_eq!((gate.counts(), gate.unreported_time()), (GateCounts::default(), Nanos::ZERO));
    gate.mark_busy(&link);
    assert_eq!(gate.counts().passes, 1);
}

#[test]
fn first_launch_waits_for_the_first_order() {
    let gate = Gate::default();
    gate.mark_undecided();
    assert!(!gate.is_free() && gate.is_undecided());
    assert_eq!(gate.order(), Order::Free, "it is not an order");
    let since = Nanos::now();
    std::thread::scope(|scope| {
        let launching = scope.spawn(|| {
            let is_decided = gate.wait_until_decided();
            (is_decided.then(|| gate.order()), Nanos::now() - since)
        });
        gate.set_order(Order::Leader);
        assert!(gate.is_undecided(), "the scheduler may need to know more before its order counts");
        gate.mark_decided();
        let (order, waited) = launching.join().unwrap();
        // A thread that gets no CPU for so long may have given up before the order.
        assert!(order == Some(Order::Leader) || waited >= Nanos::from(FIRST_ORDER_TIMEOUT));
    });
    gate.set_order(Order::Free);
    assert!(gate.is_free());
}

#[test]
fn first_launch_waits_no_longer_than_its_limit_and_only_once() {
    let gate = Gate::default();
    gate.mark_undecided();
    let since = Nanos::now();
    assert!(!gate.wait_until_decided());
    assert!(Nanos::now() - since >= Nanos::from(FIRST_ORDER_TIMEOUT));
    assert!(gate.is_free(), "no further launch waits");
    gate.set_order(Order::Yield);
    assert!(gate.has_uncounted(), "what was launched since then is not counted");
}

#[test]
fn gate_that_a_queue_has_left_holds_no_first_launch() {
    let gate = Gate::default();
    gate.mark_undecided();
    gate.retire();
    assert!(!gate.is_undecided());
    gate.mark_undecided();
    gate.reset();
    assert!(gate.is_free());
}

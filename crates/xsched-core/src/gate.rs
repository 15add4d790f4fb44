//! The gate in front of a queue's launches: one word that says go or stop.
//!
//! ```text
//!   scheduler                        word                       the program's threads
//!   give(Hold) ──────────► [ orders | program's own bits ] ◄──── is_free(): one load, and on
//!   give(Free) ──────────►            │                          enter(): counted, waits while stopped
//!                                     │                          close()/open(): the program suspends itself
//!        is_ready() ◄──── waiting, activity ◄────────────────── "a thread is held", "there is work"
//! ```
//!
//! The scheduler and the program write different bits of the same word, so that the launch path reads one word and
//! neither can undo what the other did. A gate may lie in memory shared with the scheduler's process; neither side
//! trusts the other to keep its bits sane, any value is understood.
//!
//! Two paths lead through:
//! * **free**: nobody competes and the program does not drive the queue itself. One load, nothing written.
//! * **counted**: everything else. The thread is counted while it is *inside*, between the gate and the end of its
//!   launch, so that whoever closes the gate can wait until nobody is.
//!
//! Orders are written with two wait-free steps, never through a state that is freer than both the old and the new.

use std::time::Duration;

use crate::sync::{AtomicU16, AtomicU32, AtomicU64, Futex, Ordering, fence_for_loom};
use crate::time::Nanos;

/// What the scheduler allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The task is alone on its device: launch without counting or reporting anything.
    #[default]
    Free,
    /// Launch, and report when the queue becomes busy or idle: tasks of lower precedence wait for the gaps.
    Leader,
    /// As leader, beside other tasks of the same precedence.
    Peer,
    /// Launch, but keep little work in flight: another task may preempt this one.
    Throttled,
    /// Do not launch: a task of higher precedence runs, and preempts this one by time slice where the device can do that.
    Yield,
    /// As yield, and leave the device at once: the leader is sync-bound and would have to preempt again after each gap.
    Evict,
    /// Do not launch, and report when the device runs nothing of this task: the next task starts after that report, or a user
    /// suspended this one.
    Drain,
}

const LEADER: u32 = 1;
const THROTTLED: u32 = 1 << 1;
const YIELD: u32 = 1 << 2;
/// Only together with `YIELD`.
const DRAIN: u32 = 1 << 3;
/// Only together with `LEADER`.
const PEER: u32 = 1 << 4;
/// Only together with `YIELD`.
const EVICT: u32 = 1 << 5;
const ORDERS: u32 = LEADER | PEER | THROTTLED | YIELD | EVICT | DRAIN;
/// The program suspended this queue itself.
const CLOSED: u32 = 1 << 16;
/// The program drives this queue itself: never take the free path, so that closing can be waited for.
const COUNTED: u32 = 1 << 17;
/// The program wants little in flight whatever the scheduler says.
const THROTTLED_BY_PROGRAM: u32 = 1 << 18;
/// The queue has moved to another gate: a thread that still reads this one must not take the free path.
const RETIRED: u32 = 1 << 19;

impl Order {
    const fn bits(self) -> u32 {
        match self {
            Self::Free => 0,
            Self::Leader => LEADER,
            Self::Peer => LEADER | PEER,
            Self::Throttled => THROTTLED,
            Self::Yield => YIELD,
            Self::Evict => YIELD | EVICT,
            Self::Drain => YIELD | DRAIN,
        }
    }

    /// Whether launches wait.
    #[must_use]
    pub const fn stops(self) -> bool {
        matches!(self, Self::Yield | Self::Evict | Self::Drain)
    }

    /// Understands any word: the strictest bit counts.
    const fn of(word: u32) -> Self {
        if word & YIELD != 0 && word & DRAIN != 0 {
            Self::Drain
        } else if word & YIELD != 0 && word & EVICT != 0 {
            Self::Evict
        } else if word & YIELD != 0 {
            Self::Yield
        } else if word & (THROTTLED | THROTTLED_BY_PROGRAM) != 0 {
            Self::Throttled
        } else if word & LEADER != 0 && word & PEER != 0 {
            Self::Peer
        } else if word & LEADER != 0 {
            Self::Leader
        } else {
            Self::Free
        }
    }
}

/// How the gate reaches its scheduler, if there is one.
pub trait SchedulerLink: Send + Sync {
    /// Something changed that the scheduler should look at. Called on a program's thread: quick, and never blocks.
    fn notify(&self);

    /// A queue that had nothing to do has work: somebody has to see when it falls silent. As quick as ringing.
    fn watch(&self) {}

    /// Whether the scheduler still gives signs of life. Asked only while a thread is held.
    fn alive(&self) -> bool;
}

/// No scheduler: the program alone decides.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoScheduler;

impl SchedulerLink for NoScheduler {
    fn notify(&self) {}
    fn alive(&self) -> bool {
        true
    }
}

/// How long a held thread sleeps before it asks whether the scheduler is alive.
pub const HEARTBEAT: Duration = Duration::from_millis(50);

/// The gate. Lies in the program's memory or in a page shared with the scheduler.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Gate {
    word: Futex,
    /// Threads between the gate and the end of their launch.
    inside: Futex,
    /// Threads held at the gate.
    waiting: AtomicU32,
    /// Zero if launches may have gone through uncounted, until somebody takes note.
    counted: AtomicU16,
    /// Not zero if the work comes in many small pieces that are waited for.
    sync_bound: AtomicU16,
    /// Twice the launches through the counted path, plus one while there is work: see [`Gate::quiet`].
    activity: AtomicU64,
    /// Time threads spent held, in nanoseconds.
    held_ns: AtomicU64,
    /// Times a thread was held.
    holds: AtomicU64,
    /// Launches that were announced once more.
    again: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Gate>() == 64);

/// What a gate counted, for people to look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateCounts {
    /// Launches through the counted path.
    pub passes: u64,
    /// Times a thread was held.
    pub holds: u64,
    /// Time threads spent held.
    pub held: Nanos,
}

/// The state of a queue's work at one moment, to be compared later. Never comes back once it has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Epoch(u64);

/// The bit of an epoch that says there is work.
const BUSY: u64 = 1;

impl Epoch {
    /// There was no work at all.
    #[must_use]
    pub fn is_idle(self) -> bool {
        self.0 & BUSY == 0
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            word: Futex::new(0),
            inside: Futex::new(0),
            waiting: AtomicU32::new(0),
            counted: AtomicU16::new(0),
            sync_bound: AtomicU16::new(0),
            activity: AtomicU64::new(0),
            held_ns: AtomicU64::new(0),
            holds: AtomicU64::new(0),
            again: AtomicU64::new(0),
        }
    }
}

/// The scheduler's side.
impl Gate {
    /// Writes an order and wakes whoever it lets through.
    pub fn give(&self, order: Order) {
        let (set, clear) = (order.bits(), ORDERS & !order.bits());
        // Restrict before relaxing: between the two steps the word is at least as strict as one of the orders.
        // Pairs with the SeqCst load in `enter`.
        let before = self.word.word().fetch_or(set, Ordering::SeqCst);
        let before = before | self.word.word().fetch_and(!clear, Ordering::SeqCst);
        if order == Order::Free {
            // Afterwards: who takes note of it before is told again.
            self.counted.store(0, Ordering::SeqCst);
        }
        if before & YIELD != 0 && set & YIELD == 0 {
            self.word.wake_all();
        }
    }

    /// The order in force.
    #[must_use]
    pub fn order(&self) -> Order {
        Order::of(self.word.word().load(Ordering::SeqCst) & ORDERS)
    }

    /// Whether launches may have gone through uncounted since somebody last took note.
    #[must_use]
    pub fn has_uncounted(&self) -> bool {
        self.counted.load(Ordering::SeqCst) == 0
    }

    /// Takes note of them. Answers whether there may have been any.
    #[must_use]
    pub fn take_uncounted(&self) -> bool {
        let uncounted = self.counted.swap(1, Ordering::SeqCst) == 0;
        if self.order() == Order::Free {
            // There will be more.
            self.counted.store(0, Ordering::SeqCst);
        }
        uncounted
    }

    /// Has work that is not finished, or a thread held here.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        // SeqCst: pairs with the writes in `mark_busy`, `quiet` and `hold_thread`, which ring after writing.
        !self.epoch().is_idle() || self.waiting.load(Ordering::SeqCst) != 0
    }

    /// Whether the program waits for each of many small pieces of work.
    #[must_use]
    pub fn is_sync_bound(&self) -> bool {
        self.sync_bound.load(Ordering::Relaxed) != 0
    }

    /// What happened here so far.
    #[must_use]
    pub fn counts(&self) -> GateCounts {
        GateCounts {
            passes: (self.activity.load(Ordering::Relaxed) >> 1)
                .saturating_sub(self.again.load(Ordering::Relaxed)),
            holds: self.holds.load(Ordering::Relaxed),
            held: Nanos(self.held_ns.load(Ordering::Relaxed)),
        }
    }
}

/// The launch path.
impl Gate {
    /// Whether the launch may go on at once with nothing counted. The only cost of being scheduled while alone.
    #[must_use]
    #[inline]
    pub fn is_free(&self) -> bool {
        // Acquire: what the scheduler did before it freed us happened before our launch. Pairs with `give`.
        self.word.word().load(Ordering::Acquire) == 0
    }

    /// Dependencies until launching is allowed and counts the thread as inside. Every `enter` is followed by one `leave`.
    pub fn enter(&self, link: &dyn SchedulerLink) -> Order {
        self.enter_unless(YIELD | CLOSED, link)
    }

    /// As [`Gate::enter`], but does not wait for the scheduler: for a queue whose device holds what is launched.
    pub fn enter_held(&self, link: &dyn SchedulerLink) -> Order {
        self.enter_unless(CLOSED, link)
    }

    fn enter_unless(&self, stopping: u32, link: &dyn SchedulerLink) -> Order {
        loop {
            // Count first, look second; `close` closes first and looks at the count second. SeqCst on both sides, so
            // one of the two always sees the other.
            self.inside.word().fetch_add(1, Ordering::SeqCst);
            fence_for_loom();
            let word = self.word.word().load(Ordering::SeqCst);
            if word & stopping == 0 {
                return Order::of(word);
            }
            self.leave();
            self.hold_thread(word, stopping, link);
        }
    }

    /// The launch is over, or did not happen.
    pub fn leave(&self) {
        let last = self.inside.word().fetch_sub(1, Ordering::SeqCst) == 1;
        fence_for_loom();
        if last && self.word.word().load(Ordering::SeqCst) & (CLOSED | RETIRED) != 0 {
            self.inside.wake_all();
        }
    }

    /// Says that work is about to be launched. Rings on the edge from idle to ready.
    pub fn mark_busy(&self, link: &dyn SchedulerLink) {
        let mut before = self.activity.load(Ordering::SeqCst);
        loop {
            let after = before.wrapping_add(2) | BUSY;
            match self.activity.compare_exchange_weak(before, after, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break,
                Err(now) => before = now,
            }
        }
        if before & BUSY == 0 {
            link.notify();
            link.watch();
        }
    }

    /// Says it of a launch that was announced already, and had to wait outside.
    pub fn mark_busy_again(&self, link: &dyn SchedulerLink) {
        self.again.fetch_add(1, Ordering::Relaxed);
        self.mark_busy(link);
    }

    /// The state of the work now. Take it before waiting for the device.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        Epoch(self.activity.load(Ordering::SeqCst))
    }

    /// Says that everything launched before `epoch` was taken has completed. Becomes idle, and rings, unless more was
    /// launched since. Answers whether the queue is idle now.
    ///
    /// The caller must have seen, after taking the epoch, that nobody is inside or that the wait covered them.
    pub fn mark_idle(&self, epoch: Epoch, link: &dyn SchedulerLink) -> bool {
        if epoch.is_idle() {
            return self.epoch().is_idle();
        }
        let idle = epoch.0 & !BUSY;
        match self.activity.compare_exchange(epoch.0, idle, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => {
                link.notify();
                true
            }
            Err(now) => now & BUSY == 0,
        }
    }

    /// Says whether the work comes in many small pieces that are waited for. Rings if that is new.
    pub fn set_sync_bound(&self, sync_bound: bool, link: &dyn SchedulerLink) {
        if self.is_sync_bound() != sync_bound {
            // Relaxed: who rings has written before, and who is called reads afterwards.
            self.sync_bound.store(sync_bound.into(), Ordering::Relaxed);
            link.notify();
        }
    }

    /// Whether some thread is between the gate and the end of its launch.
    #[must_use]
    pub fn is_occupied(&self) -> bool {
        self.occupants() != 0
    }

    /// How many threads are between the gate and the end of their launch.
    #[must_use]
    pub fn occupants(&self) -> u32 {
        fence_for_loom();
        self.inside.word().load(Ordering::SeqCst)
    }

    #[cold]
    fn hold_thread(&self, mut seen: u32, stopping: u32, link: &dyn SchedulerLink) {
        if self.waiting.fetch_add(1, Ordering::SeqCst) == 0 && seen & YIELD != 0 {
            link.notify();
        }
        self.holds.fetch_add(1, Ordering::Relaxed);
        let since = Nanos::now();
        // Sleeps only on a word that was itself seen to stop us.
        while seen & stopping != 0 {
            self.word.wait(seen, Some(HEARTBEAT));
            // Nobody stays suspended by a dead scheduler. The program's own suspension is another matter.
            if seen & YIELD != 0 && !link.alive() {
                self.give(Order::Free);
            }
            seen = self.word.word().load(Ordering::SeqCst);
        }
        self.held_ns.fetch_add((Nanos::now() - since).0, Ordering::Relaxed);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The program's own control.
impl Gate {
    /// Whether threads are inside or held: then it cannot become another queue's.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.is_occupied() || self.waiting.load(Ordering::SeqCst) != 0
    }

    /// Forgets everything, for a new queue in the place of an old one that nobody uses any more. Not who is counted: a
    /// thread that comes late takes back what it added.
    pub fn reset(&self) {
        for count in [&self.activity, &self.held_ns, &self.holds] {
            count.store(0, Ordering::SeqCst);
        }
        self.word.word().store(0, Ordering::SeqCst);
        self.counted.store(0, Ordering::SeqCst);
        self.sync_bound.store(0, Ordering::Relaxed);
        self.word.wake_all();
    }

    /// From now on every launch is counted, so that closing can be waited for. For queues the program drives itself.
    pub fn count_all(&self) {
        self.word.word().fetch_or(COUNTED, Ordering::SeqCst);
    }

    /// Whether the program wants its own work in flight limited even when the scheduler does not ask for it.
    pub fn throttle_always(&self, pace: bool) {
        if pace {
            self.word.word().fetch_or(THROTTLED_BY_PROGRAM, Ordering::SeqCst);
        } else {
            self.word.word().fetch_and(!THROTTLED_BY_PROGRAM, Ordering::SeqCst);
        }
    }

    /// Lets no new launch through. May be repeated. Threads that are inside already finish their launch: see
    /// [`Gate::wait_until_empty`].
    pub fn close(&self) {
        self.word.word().fetch_or(CLOSED, Ordering::SeqCst);
        fence_for_loom();
    }

    /// Dependencies until nobody is inside any more, or until `give_up` says so; asked about once a millisecond.
    pub fn wait_until_empty(&self, give_up: impl Fn() -> bool) {
        loop {
            let inside = self.inside.word().load(Ordering::SeqCst);
            if inside == 0 || give_up() {
                return;
            }
            self.inside.wait(inside, Some(Duration::from_millis(1)));
        }
    }

    /// Takes back [`Gate::close`] and wakes whoever waited. May be repeated.
    pub fn open(&self) {
        let before = self.word.word().fetch_and(!CLOSED, Ordering::SeqCst);
        if before & CLOSED != 0 {
            self.word.wake_all();
        }
    }

    /// Takes over what the program itself wanted of another gate.
    pub fn adopt(&self, other: &Self) {
        let own = other.word.word().load(Ordering::SeqCst) & (CLOSED | COUNTED | THROTTLED_BY_PROGRAM);
        self.word.word().fetch_or(own, Ordering::SeqCst);
        self.word.word().fetch_and(!RETIRED, Ordering::SeqCst);
    }

    /// Releases every thread that waits here: the queue has moved to another gate, where they continue.
    pub fn retire(&self) {
        self.word.word().fetch_or(RETIRED, Ordering::SeqCst);
        self.give(Order::Free);
        self.open();
    }

    /// Whether the program or the scheduler stops launches.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.word.word().load(Ordering::SeqCst) & (YIELD | CLOSED) != 0
    }

    /// Whether the program itself stopped launches.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.word.word().load(Ordering::SeqCst) & CLOSED != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct Notifier {
        rung: AtomicUsize,
        dead: bool,
    }

    impl SchedulerLink for Notifier {
        fn notify(&self) {
            self.rung.fetch_add(1, Ordering::SeqCst);
        }
        fn alive(&self) -> bool {
            !self.dead
        }
    }

    #[test]
    fn whoever_was_free_for_a_moment_has_launched_uncounted() {
        let gate = Gate::default();
        assert!(gate.take_uncounted() && gate.take_uncounted(), "nobody counts while it is free");
        gate.give(Order::Throttled);
        assert!(gate.take_uncounted());
        assert!(!gate.take_uncounted(), "noted");
        for order in [Order::Leader, Order::Yield, Order::Drain, Order::Peer] {
            gate.give(order);
        }
        assert!(!gate.has_uncounted());
        gate.give(Order::Free);
        gate.give(Order::Yield);
        assert!(gate.has_uncounted());
    }

    #[test]
    fn orders_and_the_programs_own_bits_do_not_disturb_each_other() {
        let gate = Gate::default();
        gate.close();
        let (hold, freeze, stop) = (Order::Yield, Order::Evict, Order::Drain);
        for order in
            [hold, Order::Throttled, stop, hold, freeze, stop, Order::Free, stop, freeze, Order::Leader]
        {
            gate.give(order);
            assert_eq!(gate.order(), order);
            assert!(gate.is_closed());
        }
        gate.open();
        assert_eq!(gate.order(), Order::Leader);
        assert!(!gate.is_stopped());
    }

    #[test]
    fn rubbish_in_the_word_is_read_as_the_strictest_order_it_contains() {
        assert_eq!(Order::of(u32::MAX), Order::Drain);
        assert_eq!(Order::of(DRAIN | EVICT | PEER), Order::Free, "they say nothing alone");
        assert_eq!(Order::of(LEADER | THROTTLED), Order::Throttled);
        assert_eq!(Order::of(1 << 9), Order::Free);
    }

    #[test]
    fn only_edges_ring() {
        let (gate, notifier) = (Gate::default(), Notifier::default());
        gate.mark_busy(&notifier);
        gate.mark_busy(&notifier);
        assert_eq!(notifier.rung.load(Ordering::SeqCst), 1);
        let epoch = gate.epoch();
        assert!(gate.mark_idle(epoch, &notifier));
        assert!(gate.mark_idle(epoch, &notifier), "said twice");
        assert_eq!(notifier.rung.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn work_launched_after_the_epoch_keeps_the_queue_ready() {
        let (gate, notifier) = (Gate::default(), Notifier::default());
        gate.mark_busy(&notifier);
        let epoch = gate.epoch();
        gate.mark_busy(&notifier);
        assert!(!gate.mark_idle(epoch, &notifier));
        assert!(gate.is_ready());
    }

    #[test]
    fn an_epoch_does_not_come_back_after_the_queue_was_idle() {
        let (gate, notifier) = (Gate::default(), Notifier::default());
        gate.mark_busy(&notifier);
        let old = gate.epoch();
        assert!(gate.mark_idle(old, &notifier));
        gate.mark_busy(&notifier);
        assert!(!gate.mark_idle(old, &notifier), "what was waited for long ago says nothing about new work");
        assert!(gate.is_ready());
    }

    #[test]
    fn a_dead_scheduler_frees_whoever_it_held() {
        let gate = Gate::default();
        gate.give(Order::Yield);
        let dead = Notifier { dead: true, ..Notifier::default() };
        assert_eq!(gate.enter(&dead), Order::Free);
        assert_eq!(gate.counts().holds, 1);
        assert!(!gate.is_ready());
    }
}

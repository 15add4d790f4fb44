//! The gate in front of a queue's launches: one word that allows or stops them.
//!
//! ```text
//!   scheduler                        word                        threads of the program
//!   set_order(Yield) ────► [ order | program's own bits ] ◄───── is_free(): one load, nothing written
//!   set_order(Free) ─────►            │                          enter(): counted, waits while stopped
//!                                     │                          close()/open(): the program suspends the queue
//!        is_ready() ◄──── waiting, activity ◄─────────────────── a thread is held, the queue has work
//! ```
//!
//! The scheduler and the program write different bits of the same word: the launch path reads one word, and neither side
//! overwrites bits of the other side. A gate may lie in memory that is shared with the scheduler's process. Neither side
//! trusts the values of the other side: every value of the word has a meaning.
//!
//! A launch takes one of two paths:
//! * **free**: the task is alone on its device and the program does not suspend the queue. One load, nothing written.
//! * **counted**: everything else. The thread counts as *inside* from the gate to the end of its launch, so that a thread
//!   that closes the gate can wait until no thread is inside.
//!
//! An order is written in two wait-free steps. The word between them is at least as strict as the old or the new order.

mod order;
mod undecided;
mod unreported;

use std::time::Duration;

use crate::deferral::Deferral;
use crate::sync::{AtomicU16, AtomicU32, AtomicU64, Futex, Ordering, fence_for_loom};
use crate::time::Nanos;
pub use order::Order;
use order::{CLOSED, COUNTED, ORDERS, RETIRED, THROTTLED_BY_PROGRAM, UNDECIDED, YIELD};
pub use undecided::FIRST_ORDER_TIMEOUT;

/// How a gate notifies its scheduler.
pub trait SchedulerLink: Send + Sync {
    /// Requests a decision of the scheduler: a queue became busy or idle, or a thread is held. Runs on a thread of the
    /// program, so that it must be quick and must not block.
    fn notify(&self);

    /// As [`SchedulerLink::notify`], for a thread of a leading task: must not wake a thread that can preempt the calling
    /// thread. On a machine without an idle CPU the calling thread would wait for a CPU for several milliseconds.
    fn notify_without_preemption(&self) {
        self.notify();
        self.watch();
    }

    /// Wakes the watcher thread: a queue that was idle has work, and its end has to be detected. Must be quick and must not
    /// block.
    fn watch(&self) {}

    /// Whether the scheduler is alive. Called only while a thread is held.
    fn is_alive(&self) -> bool;

    /// The deferred launches of the process. None if launches cannot be deferred.
    fn deferral(&self) -> Option<&Deferral> {
        None
    }
}

/// No scheduler: only the program stops its queues.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoScheduler;

impl SchedulerLink for NoScheduler {
    fn notify(&self) {}
    fn is_alive(&self) -> bool {
        true
    }
}

/// How often a held thread checks that the scheduler is alive.
pub const HEARTBEAT: Duration = Duration::from_millis(50);

/// The gate of one queue. Lies in the program's memory or in a page that is shared with the scheduler.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Gate {
    word: Futex,
    /// Threads between the gate and the end of their launch.
    inside: Futex,
    /// Threads held at the gate.
    waiting: AtomicU32,
    /// Zero while launches may have been made uncounted that the watcher thread has not accounted for.
    counted: AtomicU16,
    /// Not zero if the queue is sync-bound.
    sync_bound: AtomicU16,
    /// Twice the number of counted launches, plus one while the queue is busy: see [`Gate::mark_idle`].
    activity: AtomicU64,
    /// Time threads spent held, in nanoseconds.
    held_ns: AtomicU64,
    /// Times a thread was held.
    holds: AtomicU64,
    /// How often a launch marked the queue busy again after its first time.
    repeated: AtomicU64,
    /// Time the queue was busy without a report to the scheduler, in nanoseconds.
    unreported_ns: AtomicU64,
    /// Not zero if the work that the queue has is not reported to the scheduler.
    unreported: AtomicU16,
    /// Not zero if the scheduler permits a leader not to report its work.
    permits_unreported: AtomicU16,
    /// Not zero if the scheduler permits a leader to defer its launches.
    permits_deferral: AtomicU16,
    /// What limits the queue: see [`Gate::bound`].
    bound: AtomicU16,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Gate>() == 64);

/// Statistics of a gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GateCounts {
    /// Counted launches.
    pub passes: u64,
    /// Times a thread was held.
    pub holds: u64,
    /// Time threads spent held.
    pub held: Nanos,
}

/// The state of a queue's work at one point in time. An epoch never recurs, so that the completion of an old one cannot
/// mark newer work idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Epoch(u64);

/// What [`Gate::mark_idle_without_notification`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusyEnd {
    /// More was launched meanwhile.
    StillBusy,
    /// The queue was idle before.
    AlreadyIdle,
    /// The queue is idle now. The scheduler was notified that the queue is busy.
    Reported,
    /// The queue is idle now. The scheduler was not notified that the queue is busy.
    Unreported,
}

/// What limits the work of a queue between its first launch and the end of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Bound {
    /// The device: the queue has work when the next command is launched.
    Device = 1,
    /// The host: the device is idle when the next command is launched.
    Host = 2,
}

impl Bound {
    /// Every other number means that it is not known.
    const fn of(number: u16) -> Option<Self> {
        match number {
            1 => Some(Self::Device),
            2 => Some(Self::Host),
            _ => None,
        }
    }
}

/// The bit of an epoch that is set while the queue is busy.
const BUSY: u64 = 1;

impl Epoch {
    /// Whether the queue was idle.
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
            repeated: AtomicU64::new(0),
            unreported_ns: AtomicU64::new(0),
            unreported: AtomicU16::new(0),
            permits_unreported: AtomicU16::new(0),
            permits_deferral: AtomicU16::new(0),
            bound: AtomicU16::new(0),
        }
    }
}

/// The scheduler's side.
impl Gate {
    /// Writes an order and wakes the threads that it releases.
    pub fn set_order(&self, order: Order) {
        let (set, clear) = (order.bits(), ORDERS & !order.bits());
        // Restrict before relaxing: between the two steps the word is at least as strict as one of the orders.
        // Pairs with the SeqCst load in `enter`.
        let before = self.word.word().fetch_or(set, Ordering::SeqCst);
        let before = before | self.word.word().fetch_and(!clear, Ordering::SeqCst);
        if order == Order::Free {
            // After the order: a thread that accounted for uncounted launches before this has to do so again.
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

    /// Whether uncounted launches may have been made since the last [`Gate::take_uncounted`].
    #[must_use]
    pub fn has_uncounted(&self) -> bool {
        self.counted.load(Ordering::SeqCst) == 0
    }

    /// Returns whether uncounted launches may have been made; the caller accounts for them.
    #[must_use]
    pub fn take_uncounted(&self) -> bool {
        let uncounted = self.counted.swap(1, Ordering::SeqCst) == 0;
        if self.order() == Order::Free {
            // More may follow.
            self.counted.store(0, Ordering::SeqCst);
        }
        uncounted
    }

    /// Whether the queue is busy with work that is reported, or a thread is held at the gate.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        // SeqCst: pairs with the writes in `mark_busy`, `mark_idle` and `hold_thread`, which notify after writing.
        let is_busy = !self.epoch().is_idle() && self.unreported.load(Ordering::SeqCst) == 0;
        is_busy || self.waiting.load(Ordering::SeqCst) != 0
    }

    /// Whether the queue is sync-bound: the program waits for each small piece of its work.
    #[must_use]
    pub fn is_sync_bound(&self) -> bool {
        self.sync_bound.load(Ordering::Relaxed) != 0
    }

    /// What limits the work of the queue, as measured while it led.
    #[must_use]
    pub fn bound(&self) -> Option<Bound> {
        Bound::of(self.bound.load(Ordering::Relaxed))
    }

    /// The gate's statistics.
    #[must_use]
    pub fn counts(&self) -> GateCounts {
        GateCounts {
            passes: (self.activity.load(Ordering::Relaxed) >> 1)
                .saturating_sub(self.repeated.load(Ordering::Relaxed)),
            holds: self.holds.load(Ordering::Relaxed),
            held: Nanos(self.held_ns.load(Ordering::Relaxed)),
        }
    }
}

/// The launch path.
impl Gate {
    /// Whether a launch may proceed uncounted. This load is the only cost of a launch while the task is alone on its device.
    #[must_use]
    #[inline]
    pub fn is_free(&self) -> bool {
        // Acquire, with the writes in `set_order`: what the scheduler did before the order happened before this launch.
        self.word.word().load(Ordering::Acquire) == 0
    }

    /// Waits until launching is allowed and counts the thread as inside. Every `enter` needs one [`Gate::leave`].
    pub fn enter(&self, link: &dyn SchedulerLink) -> Order {
        self.enter_unless(YIELD | CLOSED, link)
    }

    /// As [`Gate::enter`], but does not wait for the scheduler's order: for a queue whose device accepts launches while it is
    /// stopped.
    pub fn enter_despite_order(&self, link: &dyn SchedulerLink) -> Order {
        self.enter_unless(CLOSED, link)
    }

    fn enter_unless(&self, stopping: u32, link: &dyn SchedulerLink) -> Order {
        loop {
            // This thread counts itself first and reads the word second; `close` writes the word first and reads the count
            // second. SeqCst on both sides: at least one of the two threads sees the write of the other thread.
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

    /// The launch has returned, or was not made.
    pub fn leave(&self) {
        let last = self.inside.word().fetch_sub(1, Ordering::SeqCst) == 1;
        fence_for_loom();
        if last && self.word.word().load(Ordering::SeqCst) & (CLOSED | RETIRED) != 0 {
            self.inside.wake_all();
        }
    }

    /// Marks the queue busy before a launch. Notifies the scheduler if the queue was idle.
    pub fn mark_busy(&self, link: &dyn SchedulerLink) {
        if self.mark_busy_without_notification(false) {
            link.notify();
            link.watch();
        }
    }

    /// As [`Gate::mark_busy`], but the caller notifies the scheduler, after its launch, if this returns true.
    ///
    /// `is_unreported`: the scheduler need not know of this launch.
    #[must_use]
    pub fn mark_busy_without_notification(&self, is_unreported: bool) -> bool {
        let mut before = self.activity.load(Ordering::SeqCst);
        let mut has_set_flag = false;
        loop {
            if before & BUSY == 0 {
                // Before the queue becomes busy: the scheduler must not read the value of an earlier busy period.
                self.unreported.store(is_unreported.into(), Ordering::SeqCst);
                has_set_flag = true;
            }
            let after = before.wrapping_add(2) | BUSY;
            match self.activity.compare_exchange_weak(before, after, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break,
                Err(now) => before = now,
            }
        }
        fence_for_loom();
        if before & BUSY == 0 {
            // The scheduler may have withdrawn the permission since the caller decided. The enforcer thread then looks for
            // unreported work, but it may have looked before the flag was set, or before the queue was busy.
            return !is_unreported
                || self.unreported.load(Ordering::SeqCst) == 0
                || (self.needs_reports() && self.report_unreported());
        }
        if has_set_flag {
            // Another launch began this busy period at the same time, and either thread may have overwritten the flag of the
            // other: the work is reported.
            self.unreported.store(0, Ordering::SeqCst);
            return true;
        }
        !is_unreported && self.report_unreported()
    }

    /// As [`Gate::mark_busy`], for a launch that was counted before and had to leave the gate and wait.
    pub fn mark_busy_again(&self, link: &dyn SchedulerLink) {
        self.count_as_repeated();
        self.mark_busy(link);
    }

    /// The launch that is about to mark the queue busy was counted before.
    pub(crate) fn count_as_repeated(&self) {
        self.repeated.fetch_add(1, Ordering::Relaxed);
    }

    /// The present epoch. Read it before waiting for the device.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        Epoch(self.activity.load(Ordering::SeqCst))
    }

    /// Marks the queue idle and notifies the scheduler, unless more was launched since `epoch`. Returns whether the queue is
    /// idle.
    ///
    /// Everything launched before `epoch` was read must have completed. The caller must have checked, after reading the epoch,
    /// that no thread was inside, or that its wait covered the launches of the threads inside.
    pub fn mark_idle(&self, epoch: Epoch, link: &dyn SchedulerLink) -> bool {
        let end = self.mark_idle_without_notification(epoch);
        if end == BusyEnd::Reported {
            link.notify();
        }
        end != BusyEnd::StillBusy
    }

    /// As [`Gate::mark_idle`], but the caller notifies the scheduler if this returns [`BusyEnd::Reported`].
    pub fn mark_idle_without_notification(&self, epoch: Epoch) -> BusyEnd {
        if epoch.is_idle() {
            return if self.epoch().is_idle() { BusyEnd::AlreadyIdle } else { BusyEnd::StillBusy };
        }
        // Before the exchange: a launch that changes this afterwards changes the epoch too.
        let is_unreported = self.unreported.load(Ordering::SeqCst) != 0;
        fence_for_loom();
        let idle = epoch.0 & !BUSY;
        match self.activity.compare_exchange(epoch.0, idle, Ordering::SeqCst, Ordering::SeqCst) {
            // Another thread may have reported the work since then, without a launch.
            Ok(_) if is_unreported && self.unreported.swap(0, Ordering::SeqCst) != 0 => BusyEnd::Unreported,
            Ok(_) => BusyEnd::Reported,
            Err(now) if now & BUSY == 0 => BusyEnd::AlreadyIdle,
            Err(_) => BusyEnd::StillBusy,
        }
    }

    /// Sets whether the queue is sync-bound. The caller notifies the scheduler if this returns true.
    #[must_use]
    pub fn set_sync_bound(&self, sync_bound: bool) -> bool {
        // Relaxed: the notification orders this write before the scheduler's read.
        self.sync_bound.swap(sync_bound.into(), Ordering::Relaxed) != u16::from(sync_bound)
    }

    /// Sets what limits the work of the queue.
    pub fn set_bound(&self, bound: Bound) {
        self.bound.store(bound as u16, Ordering::Relaxed);
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
        threads_of(self.inside.word().load(Ordering::SeqCst))
    }

    #[cold]
    fn hold_thread(&self, mut seen: u32, stopping: u32, link: &dyn SchedulerLink) {
        if self.waiting.fetch_add(1, Ordering::SeqCst) == 0 && seen & YIELD != 0 {
            link.notify();
        }
        self.holds.fetch_add(1, Ordering::Relaxed);
        let since = Nanos::now();
        // Sleep only on a word that stops this thread.
        while seen & stopping != 0 {
            self.word.wait(seen, Some(HEARTBEAT));
            // A dead scheduler holds no thread. The program's own suspension stays.
            if seen & YIELD != 0 && !link.is_alive() {
                self.set_order(Order::Free);
            }
            seen = self.word.word().load(Ordering::SeqCst);
        }
        self.held_ns.fetch_add((Nanos::now() - since).0, Ordering::Relaxed);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The number of threads inside, from the word that counts them. A thread may enter a former gate just before its page is
/// replaced by zeros and leave it just after that: then the count is below zero, and means that no thread is inside.
fn threads_of(inside: u32) -> u32 {
    if inside > i32::MAX.unsigned_abs() { 0 } else { inside }
}

/// The program's side.
impl Gate {
    /// Whether threads are inside or held: then the gate cannot be given to another queue.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.is_occupied() || self.waiting.load(Ordering::SeqCst) != 0
    }

    /// Clears the gate for a new queue in the slot of an old one that no thread uses any more.
    ///
    /// The counts of threads inside and held stay: a thread that still leaves subtracts what it added.
    pub fn reset(&self) {
        for count in [&self.activity, &self.held_ns, &self.holds, &self.repeated, &self.unreported_ns] {
            count.store(0, Ordering::SeqCst);
        }
        self.word.word().store(0, Ordering::SeqCst);
        self.counted.store(0, Ordering::SeqCst);
        for flag in self.flags() {
            flag.store(0, Ordering::Relaxed);
        }
        self.word.wake_all();
    }

    /// From now on every launch is counted, so that [`Gate::close`] can be waited for: the program suspends this queue itself.
    pub fn count_all(&self) {
        self.word.word().fetch_or(COUNTED, Ordering::SeqCst);
    }

    /// Sets whether the in-flight window is limited whatever the order.
    pub fn throttle_always(&self, is_limited: bool) {
        if is_limited {
            self.word.word().fetch_or(THROTTLED_BY_PROGRAM, Ordering::SeqCst);
        } else {
            self.word.word().fetch_and(!THROTTLED_BY_PROGRAM, Ordering::SeqCst);
        }
    }

    /// Stops new launches. May be repeated. Threads that are inside finish their launch: see [`Gate::wait_until_empty`].
    pub fn close(&self) {
        self.word.word().fetch_or(CLOSED, Ordering::SeqCst);
        fence_for_loom();
    }

    /// Waits until no thread is inside or `give_up` returns true. Calls `give_up` about once a millisecond.
    pub fn wait_until_empty(&self, give_up: impl Fn() -> bool) {
        loop {
            let inside = self.inside.word().load(Ordering::SeqCst);
            if threads_of(inside) == 0 || give_up() {
                return;
            }
            self.inside.wait(inside, Some(Duration::from_millis(1)));
        }
    }

    /// Undoes [`Gate::close`] and wakes the threads that wait. May be repeated.
    pub fn open(&self) {
        let before = self.word.word().fetch_and(!CLOSED, Ordering::SeqCst);
        if before & CLOSED != 0 {
            self.word.wake_all();
        }
    }

    /// Takes over the program's own bits of another gate.
    pub fn adopt(&self, other: &Self) {
        let own = other.word.word().load(Ordering::SeqCst) & (CLOSED | COUNTED | THROTTLED_BY_PROGRAM);
        self.word.word().fetch_or(own, Ordering::SeqCst);
        self.word.word().fetch_and(!RETIRED, Ordering::SeqCst);
    }

    /// Releases every thread that waits here: the queue has moved to another gate, where they continue.
    pub fn retire(&self) {
        self.word.word().fetch_or(RETIRED, Ordering::SeqCst);
        self.set_order(Order::Free);
        self.mark_decided();
        self.open();
    }

    /// As if the page of this gate were replaced by zeros while threads use it. Other builds replace the memory.
    #[cfg(loom)]
    pub fn replace_by_zeros(&self) {
        for word in [self.word.word(), self.inside.word(), &self.waiting] {
            word.store(0, Ordering::SeqCst);
        }
        for count in [&self.activity, &self.held_ns, &self.holds, &self.repeated, &self.unreported_ns] {
            count.store(0, Ordering::SeqCst);
        }
        for flag in self.flags().into_iter().chain([&self.counted]) {
            flag.store(0, Ordering::SeqCst);
        }
    }

    fn flags(&self) -> [&AtomicU16; 5] {
        [&self.sync_bound, &self.unreported, &self.permits_unreported, &self.permits_deferral, &self.bound]
    }

    /// Whether the program suspends this queue itself.
    #[must_use]
    pub fn counts_all(&self) -> bool {
        self.word.word().load(Ordering::SeqCst) & COUNTED != 0
    }

    /// Whether launches are stopped, by the scheduler or by the program.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.word.word().load(Ordering::SeqCst) & (YIELD | CLOSED) != 0
    }

    /// Whether the program has stopped launches.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.word.word().load(Ordering::SeqCst) & CLOSED != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

//! Deferred launches: the launches of a host-bound leader wait on the device until the program waits for them.
//!
//! ```text
//!   program   l l l l l l l l w           l l l l l l l l w             l launches, w waits for the queue
//!   queue     H───────────────┐           H───────────────┐             H hold point, behind which launches stay
//!   device    ░░░░░░░░░░░░░░░░░████████   ░░░░░░░░░░░░░░░░░████████     ░ other tasks, █ a burst of this one
//! ```
//!
//! A program that launches its kernels one by one often leaves the device idle between them. Holding the other tasks for its whole
//! request would waste most of the device, and running them would cost a context switch in each gap. Deferred launches run
//! in bursts, with one context switch each, and the program does not notice: it launches the next kernels meanwhile.
//!
//! * One queue of a process is deferred at a time. A program that launches on several queues is not deferred.
//! * A launch is held for the slack at most. The launching thread checks that, and a timer thread for the time when it does not
//!   launch.
//! * No thread waits for a held launch: each function by which a program can wait for the device first calls
//!   [`Deferral::begin_wait`]. While a thread waits, no launch is held.
//! * Work whose progress another program or the CPU can see without waiting is not deferred: see [`Deferral::forbid`].

mod bursts;
mod reasons;

use std::sync::Arc;

pub(crate) use self::bursts::Bursts;
pub use self::reasons::NotDeferred;
use crate::hal::HwQueue;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering, fence_for_loom, lock};
use crate::time::Nanos;

/// How long a launch may be held unless the program sets another time.
pub const DEFAULT_SLACK: Nanos = Nanos::from_millis(2);
/// The longest time for which a launch may be held.
pub const MAX_SLACK: Nanos = Nanos::from_millis(20);
/// How much work for the device is held at most, as far as the bursts before show: it delays the program when it waits.
pub(crate) const MAX_HELD_WORK: Nanos = Nanos::from_millis(1);
/// What the device takes to switch to a process.
pub(crate) const CONTEXT_SWITCH: Nanos = Nanos::from_micros(200);
/// For how long no launch is deferred after the process launched on two queues, or the timer thread was late.
const PAUSE: Nanos = Nanos::from_secs(1);
/// The timer thread is late if it releases a launch this long after the slack has passed. On a machine whose CPUs are busy
/// deferred launches would wait for that thread.
const MAX_LATENESS: Nanos = Nanos::from_millis(1);
/// How often the timer thread checks at most.
const MIN_TIMER_INTERVAL: Nanos = Nanos::from_micros(100);
/// How long the timer thread runs on after the last hold. Loom has no clock.
const TIMER_EXIT_DELAY: Nanos = if cfg!(loom) { Nanos::ZERO } else { Nanos::from_secs(2) };

/// After this many consecutive holds that the timer thread ended, with no launch in the last half of the slack, the program seems to
/// wait in a way that is not seen, or a tool waits for each of its launches.
const MAX_TIMEOUTS: u32 = 4;

/// The number of a hold point on its queue. Numbers wrap around.
pub type HoldPoint = u32;

/// The states of the timer thread.
mod timer {
    /// It does not run.
    pub(super) const NONE: u32 = 0;
    /// A launch could have been deferred if it ran.
    pub(super) const WANTED: u32 = 1;
    /// It is being started.
    pub(super) const STARTING: u32 = 2;
    /// It runs.
    pub(super) const RUNS: u32 = 3;
}

/// The deferred launches of one process.
#[derive(Default)]
pub struct Deferral {
    /// How long a launch may be held, in nanoseconds; 0: not at all.
    slack: AtomicU64,
    /// Why no launch may be deferred: bit n for [`NotDeferred`] n.
    reasons: AtomicU32,
    /// Threads inside calls that wait for the device.
    waiting: AtomicU32,
    /// When the held launches have to be released, in nanoseconds; 0 if none are held. Written with `held` locked.
    deadline: AtomicU64,
    /// Held for short times, never during a call of the driver.
    held: Mutex<Option<Held>>,
    /// The queue whose launches are held: the address of its [`Bursts`]; 0 if none is. Written with `held` locked.
    queue: AtomicUsize,
    /// Until then no launch is deferred.
    paused_until: AtomicU64,
    /// See [`timer`].
    timer: AtomicU32,
    /// Consecutive holds that the timer thread has ended, and that the program seemed to wait for.
    timeouts: AtomicU32,
    /// When launches were last held for the first time.
    last_hold: AtomicU64,
}

/// The hold point behind which launches wait.
struct Held {
    hw: Arc<dyn HwQueue>,
    bursts: Arc<Bursts>,
    point: HoldPoint,
}

impl Deferral {
    /// Sets how long a launch may be held; zero: none is deferred.
    pub fn set_slack(&self, slack: Nanos) {
        self.slack.store(slack.0, Ordering::SeqCst);
        fence_for_loom();
        if slack == Nanos::ZERO {
            self.release();
        }
    }

    /// How long a launch may be held.
    #[must_use]
    pub fn slack(&self) -> Nanos {
        Nanos(self.slack.load(Ordering::Relaxed))
    }

    /// From now on no launch of the process is deferred.
    pub fn forbid(&self, reason: NotDeferred) {
        if self.reasons.load(Ordering::SeqCst) & reason.bit() == 0 {
            self.reasons.fetch_or(reason.bit(), Ordering::SeqCst);
            fence_for_loom();
            self.release();
        }
    }

    /// Why no launch may be deferred: the bits of [`NotDeferred`].
    #[must_use]
    pub fn reasons(&self) -> u32 {
        let no_slack = if self.slack() == Nanos::ZERO { NotDeferred::NoSlack.bit() } else { 0 };
        self.reasons.load(Ordering::SeqCst) | no_slack
    }

    /// Whether a launch may be deferred now.
    pub(crate) fn is_allowed(&self, now: Nanos) -> bool {
        self.slack() != Nanos::ZERO
            && self.reasons.load(Ordering::Relaxed) == 0
            && now >= Nanos(self.paused_until.load(Ordering::Relaxed))
            && (self.timer.load(Ordering::Relaxed) == timer::RUNS || self.request_timer())
    }

    #[cold]
    fn request_timer(&self) -> bool {
        // Fails if it was requested before.
        let _ = self.timer.compare_exchange(timer::NONE, timer::WANTED, Ordering::SeqCst, Ordering::Relaxed);
        false
    }

    fn pause(&self, now: Nanos) {
        self.paused_until.store((now + PAUSE).0, Ordering::Relaxed);
    }

    /// Holds what `hw` is launched from now on behind its next hold point, which the caller has to place: the number is returned.
    /// None if a thread waits, or the program launches on several queues.
    pub(crate) fn hold(
        &self,
        hw: &Arc<dyn HwQueue>,
        bursts: &Arc<Bursts>,
        now: Nanos,
        hold_time: Nanos,
    ) -> Option<HoldPoint> {
        if let Some(other) = self.release_if(|_| true)
            && !Arc::ptr_eq(&other.bursts, bursts)
        {
            self.pause(now);
            return None;
        }
        let mut held = lock(&self.held);
        if held.is_some() {
            // Another thread launches at the same time: what it holds is released at the next opportunity.
            return None;
        }
        let point = bursts.next_point();
        *held = Some(Held { hw: Arc::clone(hw), bursts: Arc::clone(bursts), point });
        self.queue.store(Arc::as_ptr(bursts).addr(), Ordering::Relaxed);
        self.last_hold.store(now.0, Ordering::Relaxed);
        // The deadline is written first and the words below are read second; a thread that waits, forbids deferring or is the timer
        // thread, which exits, writes its word first and reads the deadline second. SeqCst on both sides: one of the two threads
        // releases the launches.
        self.deadline.store((now + hold_time).0.max(1), Ordering::SeqCst);
        drop(held);
        fence_for_loom();
        if self.waiting.load(Ordering::SeqCst) != 0
            || self.reasons.load(Ordering::SeqCst) != 0
            || self.timer.load(Ordering::SeqCst) != timer::RUNS
            || self.slack.load(Ordering::SeqCst) == 0
        {
            self.release();
            return None;
        }
        Some(point)
    }

    /// Since when and until when the launches of this queue are held; none if they are not.
    #[inline]
    pub(crate) fn hold_of(&self, bursts: &Arc<Bursts>) -> Option<(Nanos, Nanos)> {
        let deadline = self.deadline.load(Ordering::SeqCst);
        // A queue that has just begun to hold belongs to this thread, or another thread launches on it at the same time.
        let is_this = self.queue.load(Ordering::Relaxed) == Arc::as_ptr(bursts).addr();
        (deadline != 0 && is_this).then(|| (Nanos(self.last_hold.load(Ordering::Relaxed)), Nanos(deadline)))
    }

    /// Whether launches are held.
    #[must_use]
    #[inline]
    pub fn is_holding(&self) -> bool {
        self.deadline.load(Ordering::SeqCst) != 0
    }

    /// The calling thread is about to wait for the device: releases what is held. Until the returned value is dropped no launch is
    /// held.
    #[must_use]
    #[inline]
    pub fn begin_wait(&self) -> WaitingThread<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        fence_for_loom();
        if self.is_holding() {
            self.release();
        }
        WaitingThread(self)
    }

    /// Releases what is held.
    pub fn release(&self) {
        if self.release_if(|_| true).is_some() {
            self.timeouts.store(0, Ordering::Relaxed);
        }
    }

    /// Releases what is held if it is of this queue.
    pub(crate) fn release_queue(&self, bursts: &Arc<Bursts>) {
        self.release_if(|held| Arc::ptr_eq(&held.bursts, bursts));
    }

    /// Releases what is held if `condition` holds. Returns it, so that a queue of which this is the last handle is dropped without
    /// the lock.
    fn release_if(&self, condition: impl FnOnce(&Held) -> bool) -> Option<Held> {
        let mut held = lock(&self.held);
        let released = held.take_if(|held| condition(held));
        if let Some(released) = &released {
            self.end_hold(released);
        }
        released
    }

    /// The caller has taken `held` out, and still has it locked.
    fn end_hold(&self, held: &Held) {
        self.deadline.store(0, Ordering::SeqCst);
        self.queue.store(0, Ordering::Relaxed);
        held.hw.release_deferred(held.point);
        held.bursts.released(Nanos::now());
    }

    /// Releases what is held if its slack has passed. Returns when to call this again; none if the timer thread may exit.
    fn release_overdue(&self, now: Nanos) -> Option<Nanos> {
        let deadline = Nanos(self.deadline.load(Ordering::SeqCst));
        if deadline > now {
            return Some(deadline);
        }
        if deadline != Nanos::ZERO {
            // It may be another hold by now.
            let is_due = |_: &Held| Nanos(self.deadline.load(Ordering::SeqCst)) == deadline;
            if let Some(held) = self.release_if(is_due) {
                let is_quiet = now - held.bursts.launched_at() >= Nanos(self.slack().0 / 2);
                let timeouts = if is_quiet { self.timeouts.load(Ordering::Relaxed) + 1 } else { 0 };
                self.timeouts.store(timeouts, Ordering::Relaxed);
                if timeouts >= MAX_TIMEOUTS || now > deadline + MAX_LATENESS {
                    self.timeouts.store(0, Ordering::Relaxed);
                    self.pause(now);
                }
            }
        }
        let is_needed = now < Nanos(self.last_hold.load(Ordering::Relaxed)) + TIMER_EXIT_DELAY;
        is_needed.then(|| now + self.slack().max(MIN_TIMER_INTERVAL))
    }

    /// Whether the timer thread has to be started. The caller starts it, or calls [`Deferral::timer_not_started`].
    #[must_use]
    pub fn take_timer_request(&self) -> bool {
        self.timer.load(Ordering::Relaxed) == timer::WANTED
            && self
                .timer
                .compare_exchange(timer::WANTED, timer::STARTING, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
    }

    /// The timer thread could not be started.
    pub fn timer_not_started(&self) {
        self.timer.store(timer::NONE, Ordering::SeqCst);
    }

    /// As if the timer thread ran, which does nothing here.
    #[cfg(loom)]
    pub fn assume_timer(&self) {
        self.timer.store(timer::RUNS, Ordering::SeqCst);
    }

    /// The body of the timer thread, of which there is one at most. `sleep_until` lets it sleep.
    pub fn run_timer(&self, mut sleep_until: impl FnMut(Nanos)) {
        self.last_hold.store(Nanos::now().0, Ordering::Relaxed);
        self.timer.store(timer::RUNS, Ordering::SeqCst);
        loop {
            while let Some(at) = self.release_overdue(Nanos::now()) {
                sleep_until(at);
            }
            self.timer.store(timer::NONE, Ordering::SeqCst);
            fence_for_loom();
            // See `hold`. Another timer thread may be requested by now.
            let continues = self.is_holding()
                && self
                    .timer
                    .compare_exchange(timer::NONE, timer::RUNS, Ordering::SeqCst, Ordering::Relaxed)
                    .is_ok();
            if !continues {
                return;
            }
        }
    }
}

/// A thread that waits for the device.
pub struct WaitingThread<'a>(&'a Deferral);

impl Drop for WaitingThread<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

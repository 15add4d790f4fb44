//! What a queue's device was ordered to do, and how far it has carried that out: one word and one table of transitions.
//!
//! The scheduler's order is the gate's word. The device follows it with a delay, because a call of the driver takes time and
//! may be rejected. [`DeviceState`] is the device's side: the order it was given last, the level at which it stops the queue,
//! and the phase of that stop. Only the thread that holds the enforcement lock changes it; launching threads read it with
//! one load.
//!
//! Transitions of the phase. A *target* is what the gate's word requires at the requested level:
//!
//! | phase      | target: run                 | target: stop                | target at another level   | call completed     | call rejected      |
//! |------------|-----------------------------|-----------------------------|---------------------------|--------------------|--------------------|
//! | `Running`  | `Running`                   | `Stopping`, call `preempt`  | as *run* or *stop*, there | -                  | -                  |
//! | `Stopping` | -                           | -                           | -                         | `Stopped`          | `Running`, refused |
//! | `Stopped`  | `Resuming`, call `restore`  | `Stopped`                   | `Resuming`, call `restore`| -                  | -                  |
//! | `Resuming` | -                           | -                           | -                         | `Running`, resumed | `Stopped`, refused |
//!
//! `-` leaves the state as it is: the enforcement lock serializes targets and calls, so these events do not occur.
//!
//! Two rules complete the table:
//! * The device is given a new order before the call, except on the way to another level, where the order is given with that
//!   level. An order that permits launches again after one that stopped them resumes the queue.
//! * `refused` means that the device rejected the last call. It ends with the next call that completes, and with the next
//!   order or level that needs no call.

use crate::gate::Order;
use crate::level::Level;
use crate::sync::{AtomicU32, Ordering};

/// How far the device has carried out the last stop or resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The device runs the queue.
    Running,
    /// `preempt` was called and has not returned. What is launched from now on lies behind the point where the queue stops.
    Stopping,
    /// The device has stopped the queue.
    Stopped,
    /// `restore` was called and has not returned.
    Resuming,
}

/// The device's side of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceState {
    /// The level at which the device stops the queue. Changes only in [`Phase::Running`].
    pub(super) level: Level,
    pub(super) phase: Phase,
    /// The order that the device was given last; [`Order::Free`] below [`Level::Interrupt`].
    pub(super) order: Order,
    /// The device accepts launches while the queue is stopped at this level: they wait there instead of at the gate.
    pub(super) accepts_launches: bool,
    /// The device rejected the last call, so that launches wait at the gate.
    pub(super) has_refused: bool,
}

/// What the gate's word requires of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) level: Level,
    pub(super) order: Order,
    pub(super) is_stop: bool,
    pub(super) accepts_launches: bool,
}

/// What can happen to a [`DeviceState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The gate's word or the requested level was read.
    Target(Target),
    /// The call that the last transition required has returned without an error.
    CallCompleted,
    /// The call that the last transition required has returned an error.
    CallRejected,
}

/// A function of [`crate::HwQueue`] that changes the phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Preempt(Level),
    Restore,
}

/// The state after an event, and what the enforcing thread does, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transition {
    /// Give the device the order of the new state.
    pub(super) gives_order: bool,
    /// Store this.
    pub(super) state: DeviceState,
    /// The queue has resumed: the time until now does not count as work.
    pub(super) has_resumed: bool,
    /// Call this, and pass the result to [`DeviceState::next`].
    pub(super) call: Option<Call>,
}

impl Target {
    /// What an order and the program's own suspension require at a level.
    ///
    /// `preempts_by_time_slice`: the device itself preempts a queue that has the order [`Order::Yield`], so that no stop is
    /// needed.
    pub(super) fn new(
        level: Level,
        order: Order,
        is_closed: bool,
        preempts_by_time_slice: bool,
        accepts_launches: bool,
    ) -> Self {
        let at_interrupt = level == Level::Interrupt;
        let yields_by_time_slice = order == Order::Yield && at_interrupt && preempts_by_time_slice;
        Self {
            level,
            order: if at_interrupt { order } else { Order::Free },
            // Level 1 is the gate alone: the device has nothing to do.
            is_stop: level > Level::Block && (is_closed || (order.stops() && !yields_by_time_slice)),
            accepts_launches: level > Level::Block && accepts_launches,
        }
    }
}

impl DeviceState {
    /// A queue that runs and was given no order yet.
    pub(super) fn new(level: Level, accepts_launches: bool) -> Self {
        let accepts_launches = level > Level::Block && accepts_launches;
        Self { level, phase: Phase::Running, order: Order::Free, accepts_launches, has_refused: false }
    }

    /// Whether launches on a stopped queue wait on the device instead of at the gate.
    #[inline]
    pub(super) fn holds_launches(self) -> bool {
        self.accepts_launches && !self.has_refused
    }

    /// Whether the device has been ordered to stop the queue or to preempt it: what is launched now does not run until the
    /// order changes.
    #[inline]
    pub(super) fn is_ordered_to_stop(self) -> bool {
        matches!(self.phase, Phase::Stopping | Phase::Stopped) || self.order.stops()
    }

    /// Whether the device has stopped the queue.
    #[inline]
    pub(super) fn is_stopped(self) -> bool {
        matches!(self.phase, Phase::Stopped | Phase::Resuming)
    }

    /// The table at the top of this file.
    pub(super) fn next(self, event: Event) -> Transition {
        match (self.phase, event) {
            (Phase::Running, Event::Target(target)) if target.is_stop => {
                self.to(Phase::Stopping, Some(Call::Preempt(target.level))).with_target(target)
            }
            (Phase::Running, Event::Target(target)) => self.to(Phase::Running, None).with_target(target),
            (Phase::Stopping, Event::CallCompleted) => self.to(Phase::Stopped, None).with_refused(false),
            (Phase::Stopping, Event::CallRejected) => self.to(Phase::Running, None).with_refused(true),
            (Phase::Stopped, Event::Target(target)) if target.level != self.level => {
                self.to(Phase::Resuming, Some(Call::Restore))
            }
            (Phase::Stopped, Event::Target(target)) if target.is_stop => {
                self.to(Phase::Stopped, None).with_target(target)
            }
            (Phase::Stopped, Event::Target(target)) => {
                self.to(Phase::Resuming, Some(Call::Restore)).with_target(target)
            }
            (Phase::Resuming, Event::CallCompleted) => {
                self.to(Phase::Running, None).with_refused(false).with_resumed()
            }
            (Phase::Resuming, Event::CallRejected) => self.to(Phase::Stopped, None).with_refused(true),
            (Phase::Running | Phase::Stopped, Event::CallCompleted | Event::CallRejected)
            | (Phase::Stopping | Phase::Resuming, Event::Target(_)) => self.to(self.phase, None),
        }
    }

    fn to(self, phase: Phase, call: Option<Call>) -> Transition {
        Transition { gives_order: false, state: Self { phase, ..self }, has_resumed: false, call }
    }
}

impl Transition {
    fn with_target(mut self, target: Target) -> Self {
        let before = self.state;
        self.gives_order = before.order != target.order;
        self.has_resumed = before.order.stops() && !target.order.stops();
        let is_change = self.gives_order || before.level != target.level;
        self.state = DeviceState {
            level: target.level,
            order: target.order,
            accepts_launches: target.accepts_launches,
            has_refused: before.has_refused && (self.call.is_some() || !is_change),
            ..before
        };
        self
    }

    fn with_refused(mut self, has_refused: bool) -> Self {
        self.state.has_refused = has_refused;
        self
    }

    fn with_resumed(mut self) -> Self {
        self.has_resumed = true;
        self
    }
}

const ACCEPTS_LAUNCHES: u32 = 1 << 8;
const HAS_REFUSED: u32 = 1 << 9;

/// A [`DeviceState`] in one atomic word: level in bits 0 and 1, phase in 2 and 3, order in 4 to 6.
pub(super) struct DeviceWord(AtomicU32);

impl DeviceWord {
    pub(super) fn new(state: DeviceState) -> Self {
        Self(AtomicU32::new(encode(state)))
    }

    /// `SeqCst`: with the store below, see `LaunchPath::mark_idle`.
    #[inline]
    pub(super) fn load(&self) -> DeviceState {
        decode(self.0.load(Ordering::SeqCst))
    }

    /// Only for the thread that holds the enforcement lock.
    pub(super) fn store(&self, state: DeviceState) {
        self.0.store(encode(state), Ordering::SeqCst);
    }
}

fn encode(state: DeviceState) -> u32 {
    let phase = match state.phase {
        Phase::Running => 0,
        Phase::Stopping => 1,
        Phase::Stopped => 2,
        Phase::Resuming => 3,
    };
    let order = match state.order {
        Order::Free => 0,
        Order::Leader => 1,
        Order::Peer => 2,
        Order::Throttled => 3,
        Order::Yield => 4,
        Order::Evict => 5,
        Order::Drain => 6,
    };
    let flags = if state.accepts_launches { ACCEPTS_LAUNCHES } else { 0 }
        | if state.has_refused { HAS_REFUSED } else { 0 };
    u32::from(state.level.number()) | phase << 2 | order << 4 | flags
}

#[inline]
fn decode(word: u32) -> DeviceState {
    DeviceState {
        level: match word & 3 {
            3 => Level::Interrupt,
            2 => Level::Deactivate,
            _ => Level::Block,
        },
        phase: match word >> 2 & 3 {
            0 => Phase::Running,
            1 => Phase::Stopping,
            2 => Phase::Stopped,
            _ => Phase::Resuming,
        },
        order: match word >> 4 & 7 {
            0 => Order::Free,
            1 => Order::Leader,
            2 => Order::Peer,
            3 => Order::Throttled,
            4 => Order::Yield,
            5 => Order::Evict,
            _ => Order::Drain,
        },
        accepts_launches: word & ACCEPTS_LAUNCHES != 0,
        has_refused: word & HAS_REFUSED != 0,
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

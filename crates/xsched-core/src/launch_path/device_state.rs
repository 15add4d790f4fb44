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

    /// SeqCst: with the store below, see `LaunchPath::mark_idle`.
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
mod tests {
    use super::*;

    const ORDERS: [Order; 7] =
        [Order::Free, Order::Leader, Order::Peer, Order::Throttled, Order::Yield, Order::Evict, Order::Drain];
    const PHASES: [Phase; 4] = [Phase::Running, Phase::Stopping, Phase::Stopped, Phase::Resuming];
    const BOTH: [bool; 2] = [false, true];

    fn all_states() -> impl Iterator<Item = DeviceState> {
        PHASES.into_iter().flat_map(|phase| {
            Level::ALL.into_iter().flat_map(move |level| {
                ORDERS.into_iter().flat_map(move |order| {
                    BOTH.into_iter().flat_map(move |accepts_launches| {
                        BOTH.into_iter().map(move |has_refused| DeviceState {
                            level,
                            phase,
                            order,
                            accepts_launches,
                            has_refused,
                        })
                    })
                })
            })
        })
    }

    fn all_targets() -> impl Iterator<Item = Target> {
        Level::ALL.into_iter().flat_map(|level| {
            ORDERS.into_iter().flat_map(move |order| {
                BOTH.into_iter().flat_map(move |is_stop| {
                    BOTH.into_iter().map(move |accepts_launches| Target {
                        level,
                        order,
                        is_stop,
                        accepts_launches,
                    })
                })
            })
        })
    }

    /// The columns of the table.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Column {
        Run,
        Stop,
        OtherLevel,
        Completed,
        Rejected,
    }

    /// What the table calls.
    #[derive(Debug, PartialEq)]
    enum Calls {
        Nothing,
        Preempt,
        Restore,
    }

    use Calls::{Nothing, Preempt, Restore};
    use Column::{Completed, OtherLevel, Rejected, Run, Stop};
    use Phase::{Resuming, Running, Stopped, Stopping};

    /// The table once more, as rows: phase, column, new phase, call.
    const TABLE: [(Phase, Column, Phase, Calls); 19] = [
        (Running, Run, Running, Nothing),
        (Running, Stop, Stopping, Preempt),
        (Running, Completed, Running, Nothing),
        (Running, Rejected, Running, Nothing),
        (Stopping, Run, Stopping, Nothing),
        (Stopping, Stop, Stopping, Nothing),
        (Stopping, OtherLevel, Stopping, Nothing),
        (Stopping, Completed, Stopped, Nothing),
        (Stopping, Rejected, Running, Nothing),
        (Stopped, Run, Resuming, Restore),
        (Stopped, Stop, Stopped, Nothing),
        (Stopped, OtherLevel, Resuming, Restore),
        (Stopped, Completed, Stopped, Nothing),
        (Stopped, Rejected, Stopped, Nothing),
        (Resuming, Run, Resuming, Nothing),
        (Resuming, Stop, Resuming, Nothing),
        (Resuming, OtherLevel, Resuming, Nothing),
        (Resuming, Completed, Running, Nothing),
        (Resuming, Rejected, Stopped, Nothing),
    ];

    fn column(state: DeviceState, event: Event) -> Column {
        match event {
            // A queue that runs goes to another level as it goes to its own.
            Event::Target(target) if target.level != state.level && state.phase != Running => OtherLevel,
            Event::Target(target) if target.is_stop => Stop,
            Event::Target(_) => Run,
            Event::CallCompleted => Completed,
            Event::CallRejected => Rejected,
        }
    }

    #[test]
    fn every_state_and_event_is_in_the_table() {
        let events: Vec<Event> =
            all_targets().map(Event::Target).chain([Event::CallCompleted, Event::CallRejected]).collect();
        let mut used = 0_u32;
        for state in all_states() {
            for event in &events {
                let (row, (_, _, phase, calls)) = TABLE
                    .iter()
                    .enumerate()
                    .find(|(_, (from, when, ..))| (*from, *when) == (state.phase, column(state, *event)))
                    .expect("every pair has a row");
                used |= 1 << row;
                let transition = state.next(*event);
                assert_eq!(transition.state.phase, *phase, "{state:?} {event:?}");
                let call = match transition.call {
                    None => Nothing,
                    Some(Call::Restore) => Restore,
                    Some(Call::Preempt(level)) => {
                        assert_eq!(level, transition.state.level, "{state:?} {event:?}");
                        Preempt
                    }
                };
                assert_eq!(call, *calls, "{state:?} {event:?}");
            }
        }
        assert_eq!(used, (1 << TABLE.len()) - 1, "every row is used");
    }

    #[test]
    fn order_and_level_follow_the_target_unless_the_level_changes_while_stopped() {
        for state in all_states() {
            for target in all_targets() {
                let transition = state.next(Event::Target(target));
                let after = transition.state;
                let accepted = match state.phase {
                    Running => true,
                    Stopped => target.level == state.level,
                    Stopping | Resuming => false,
                };
                let expected = if accepted {
                    (target.level, target.order, target.accepts_launches)
                } else {
                    (state.level, state.order, state.accepts_launches)
                };
                assert_eq!(
                    (after.level, after.order, after.accepts_launches),
                    expected,
                    "{state:?} {target:?}"
                );
                assert_eq!(transition.gives_order, after.order != state.order, "{state:?} {target:?}");
                let resumes = state.order.stops() && !after.order.stops();
                assert_eq!(transition.has_resumed, resumes, "{state:?} {target:?}");
            }
        }
    }

    #[test]
    fn refusal_lasts_until_a_call_completes_or_none_is_needed() {
        for state in all_states() {
            let rejected = state.next(Event::CallRejected).state;
            let completed = state.next(Event::CallCompleted);
            match state.phase {
                Stopping | Resuming => {
                    assert!(rejected.has_refused && !completed.state.has_refused, "{state:?}");
                    assert_eq!(completed.has_resumed, state.phase == Resuming, "{state:?}");
                    assert!(!rejected.holds_launches(), "launches wait at the gate: {state:?}");
                }
                Running | Stopped => {
                    assert_eq!((rejected, completed.state), (state, state));
                    assert!(!completed.has_resumed);
                }
            }
            for target in all_targets() {
                let transition = state.next(Event::Target(target));
                let is_unchanged =
                    (transition.state.level, transition.state.order) == (state.level, state.order);
                let lasts = state.has_refused && (transition.call.is_some() || is_unchanged);
                assert_eq!(transition.state.has_refused, lasts, "{state:?} {target:?}");
            }
        }
    }

    #[test]
    fn repeating_a_target_does_nothing_once_it_was_carried_out() {
        for state in all_states().filter(|state| matches!(state.phase, Running | Stopped)) {
            for target in all_targets() {
                let mut state = state;
                // At most a restore to change the level, and then a stop.
                for _ in 0..2 {
                    state = state.next(Event::Target(target)).state;
                    state = state.next(Event::CallCompleted).state;
                }
                let again = state.next(Event::Target(target));
                assert_eq!((again.state, again.call, again.gives_order), (state, None, false));
                assert_eq!(state.is_stopped(), target.is_stop);
            }
        }
    }

    #[test]
    fn target_stops_the_device_only_above_level_1_and_not_where_time_slices_preempt() {
        for level in Level::ALL {
            for order in ORDERS {
                for (is_closed, by_time_slice) in BOTH.into_iter().flat_map(|a| BOTH.map(|b| (a, b))) {
                    let target = Target::new(level, order, is_closed, by_time_slice, true);
                    let stops = match (level, order) {
                        (Level::Block, _) => false,
                        (Level::Interrupt, Order::Yield) => is_closed || !by_time_slice,
                        (_, Order::Yield | Order::Evict | Order::Drain) => true,
                        _ => is_closed,
                    };
                    assert_eq!(target.is_stop, stops, "{level} {order:?} {is_closed} {by_time_slice}");
                    let given = if level == Level::Interrupt { order } else { Order::Free };
                    assert_eq!(target.order, given, "time slices are level 3");
                    assert_eq!(target.accepts_launches, level > Level::Block);
                }
            }
        }
    }

    #[test]
    fn every_state_fits_the_word() {
        for state in all_states() {
            assert_eq!(decode(encode(state)), state);
        }
    }
}

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
            assert_eq!((after.level, after.order, after.accepts_launches), expected, "{state:?} {target:?}");
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
            let is_unchanged = (transition.state.level, transition.state.order) == (state.level, state.order);
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

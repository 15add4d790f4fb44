//! Which commands wait for which queues. Unlike in other interfaces, a command can wait for an event that nothing has been launched to
//! signal: the program signals the event itself, or launches the command that does later.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::vendor::{self, Event, List, Queue};
use crate::event_wait_lists;
use crate::hooks::call;

/// What the commands about to be launched wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Waits {
    /// For nothing outside their queue.
    No,
    /// For work on another queue that was launched.
    ForQueue,
    /// For the program, which signals the event or launches what does.
    ForProgram,
}

#[derive(Default)]
struct Recorded {
    waits: Vec<Event>,
    signals: Vec<Event>,
}

struct Dependencies {
    /// The commands of regular lists.
    lists: BTreeMap<usize, Recorded>,
    /// The queue whose last launch signals the event. It may be destroyed.
    signaled_by: BTreeMap<usize, Queue>,
}

static DEPENDENCIES: Mutex<Dependencies> =
    Mutex::new(Dependencies { lists: BTreeMap::new(), signaled_by: BTreeMap::new() });

fn dependencies() -> MutexGuard<'static, Dependencies> {
    DEPENDENCIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A command is appended to a regular list.
pub(crate) fn record(list: List, waits: &[Event], signal: Event) {
    let mut dependencies = dependencies();
    let recorded = dependencies.lists.entry(list.addr()).or_default();
    for event in waits {
        if !recorded.signals.contains(event) && !recorded.waits.contains(event) {
            recorded.waits.push(*event);
        }
    }
    if !signal.is_none() && !recorded.signals.contains(&signal) {
        recorded.signals.push(signal);
    }
}

/// A regular list is reset or destroyed.
pub(crate) fn forget_list(list: List) {
    dependencies().lists.remove(&list.addr());
}

/// An event is reset or destroyed.
pub(crate) fn forget_event(event: Event) {
    dependencies().signaled_by.remove(&event.addr());
}

/// Regular lists are about to be executed on a queue, in this order.
pub(crate) fn execute(queue: Queue, lists: &[List]) -> Waits {
    let mut dependencies = dependencies();
    let dependencies = &mut *dependencies;
    let recorded = lists.iter().filter_map(|list| dependencies.lists.get(&list.addr()));
    let launched =
        recorded.map(|list| launched(&mut dependencies.signaled_by, queue, &list.waits, &list.signals));
    launched.max().unwrap_or(Waits::No)
}

/// A command is about to be appended to an immediate list.
pub(crate) fn append(list: List, waits: &[Event], signal: Event) -> Waits {
    let signals = if signal.is_none() { &[][..] } else { &[signal] };
    launched(&mut dependencies().signaled_by, list, waits, signals)
}

fn launched(
    signaled_by: &mut BTreeMap<usize, Queue>,
    queue: Queue,
    waits: &[Event],
    signals: &[Event],
) -> Waits {
    // SAFETY: the program passes the same events to the vendor's function.
    let is_pending = |event: &&Event| unsafe { call!(vendor::QUERY_EVENT, **event) }.is_err();
    let waits = waits.iter().filter(is_pending).map(|event| match signaled_by.get(&event.addr()) {
        Some(signaler) if *signaler == queue => Waits::No,
        Some(signaler) if !event_wait_lists::waits_for_program(signaler.addr()) => Waits::ForQueue,
        _ => Waits::ForProgram,
    });
    let waits = waits.max().unwrap_or(Waits::No);
    signaled_by.extend(signals.iter().map(|event| (event.addr(), queue)));
    waits
}

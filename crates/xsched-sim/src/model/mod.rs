//! The device as plain data: what was submitted, what is running, and since when.
//!
//! ```text
//!   context 0 (process 4711)          context 1 (process 4712)
//!   ├ queue 0  [run 5ms][mark 1]      └ queue 2  [run 1ms][run 1ms][mark 1]
//!   └ queue 1  [wait q0:1][run 1ms]
//!        │ oldest head first               │
//!        └────────── round robin ──────────┘
//!                        ▼
//!        ┌─ switch ─┬─ running, until the time slice ends ┐
//!   ─────┴──────────┴─────────────────────────────────────┴─▶ model time
//! ```
//!
//! The model uses no clock and no lock. [`Model::advance`] moves it exactly, event by event, to a given time; every
//! other operation changes what the next events will be. Completion times are therefore those of the model and do not
//! depend on when a process reads them.
//!
//! Rules of the device's own scheduler:
//! - Within a context, commands run in the order of submission; a command that has started completes before another
//!   starts. Queues that are stopped, or whose head waits for a marker, are skipped.
//! - Contexts with something to run share the device in time slices, round robin. A context without eligible work
//!   gives up the rest of its time slice at once.
//! - A context switch costs [`crate::Config::switch_cost`], during which nothing runs.
//! - Markers and satisfied waits take no device time: they complete as soon as they reach the head, even in a stopped
//!   queue. So the marker behind the command that a deactivated queue still completes is reported.
//!
//! The model lies in memory that a killed process may have left half written. It consists of integers only, every index
//! is checked or masked where it is used, and [`Model::repair`] makes it consistent again.

mod bounds;
mod commands;
mod log;
mod preempt;
mod repair;
mod schedule;
mod set;

#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod tests;

use xsched_core::{DeviceId, LevelCost, Nanos};

use crate::config::Config;
pub use bounds::Usage;
use log::Log;
pub use log::{Span, SpanKind};
use set::QueueSet;

/// The maximum number of contexts of a device.
pub(crate) const MAX_CONTEXTS: usize = 64;
/// The maximum number of queues of a device, over all contexts.
pub(crate) const MAX_QUEUES: usize = 256;
/// The number of entries of a queue's ring of commands.
const RING_ENTRIES: usize = 1024;
/// The same as a 64-bit position.
pub(crate) const QUEUE_CAPACITY: u64 = RING_ENTRIES as u64;

/// Marks the absence of a queue or context.
const NONE: u32 = u32::MAX;
/// The minimum time slice: bounds the number of events per unit of time.
const SHORTEST_SLICE: Nanos = Nanos::from_micros(10);

/// What the device is doing. Stored as a word because the model holds integers only.
mod phase {
    pub(super) const IDLE: u32 = 0;
    pub(super) const SWITCHING: u32 = 1;
    pub(super) const RUNNING: u32 = 2;
}

/// The states of a context's slot.
mod slot {
    pub(super) const FREE: u32 = 0;
    pub(super) const LIVE: u32 = 1;
    /// Its process has exited or detached; its usage is kept until the slot is reused.
    pub(super) const GONE: u32 = 2;
}

/// The id of a context or queue. The generation distinguishes it from earlier and later users of the same slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// What can be submitted to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Use the device for this long.
    Run(Nanos),
    /// Report this number.
    Mark(u64),
    /// Wait until that queue has reported this number or has been removed.
    Wait { queue: SlotId, marker: u64 },
}

/// Why a queue operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueError {
    /// The queue or context has been removed.
    Removed,
    /// The queue has no room.
    Full,
}

/// [`Work`] as integers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Command {
    kind: u32,
    queue: u32,
    generation: u32,
    unused: u32,
    /// What is left to run, or the number of the marker.
    amount: u64,
    /// The order of submission over all queues.
    sequence: u64,
}

impl Command {
    const RUN: u32 = 0;
    const MARK: u32 = 1;
    const WAIT: u32 = 2;

    fn new(work: Work, sequence: u64) -> Self {
        let command = Self { kind: Self::RUN, queue: NONE, generation: 0, unused: 0, amount: 0, sequence };
        match work {
            Work::Run(length) => Self { amount: length.0, ..command },
            Work::Mark(marker) => Self { kind: Self::MARK, amount: marker, ..command },
            Work::Wait { queue, marker } => Self {
                kind: Self::WAIT,
                queue: queue.index,
                generation: queue.generation,
                amount: marker,
                ..command
            },
        }
    }

    fn work(&self) -> Work {
        match self.kind {
            Self::MARK => Work::Mark(self.amount),
            Self::WAIT => Work::Wait {
                queue: SlotId { index: self.queue, generation: self.generation },
                marker: self.amount,
            },
            _ => Work::Run(Nanos(self.amount)),
        }
    }
}

/// One attached process.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Context {
    state: u32,
    generation: u32,
    pub(crate) pid: u32,
    unused: u32,
    /// When the process was started: with the pid it identifies the process permanently.
    pub(crate) started: u64,
    pub(crate) busy: Nanos,
    queues: QueueSet,
}

/// One hardware queue; its commands are in [`Model::rings`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Queue {
    open: u32,
    generation: u32,
    context: u32,
    /// Set once the queue was closed: its slot is freed when the queue is empty.
    closing: u32,
    /// The command at the head has started.
    has_started: u32,
    /// The preemption level that is in effect: 0, 2 or 3.
    stopped: u32,
    /// The preemption level that takes effect at `change_at`.
    change_to: u32,
    unused: u32,
    /// [`Nanos::MAX`] if no change is pending.
    change_at: Nanos,
    /// How many commands have left the ring, and how many were submitted in all.
    head: u64,
    tail: u64,
    /// How many commands have completed.
    finished: u64,
    marker: u64,
    marker_at: Nanos,
    busy: Nanos,
}

/// [`Config`] as integers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Settings {
    device: DeviceId,
    slice: Nanos,
    switch_cost: Nanos,
    deactivate: LevelWords,
    interrupt: LevelWords,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct LevelWords {
    offered: u64,
    preempt: Nanos,
    restore: Nanos,
}

impl LevelWords {
    fn new(cost: Option<LevelCost>) -> Self {
        let LevelCost { preempt, restore } = cost.unwrap_or_default();
        Self { offered: u64::from(cost.is_some()), preempt, restore }
    }

    fn cost(self) -> Option<LevelCost> {
        (self.offered != 0).then_some(LevelCost { preempt: self.preempt, restore: self.restore })
    }
}

/// The whole device. All zero is a device without contexts that has not been configured.
#[repr(C)]
pub(crate) struct Model {
    settings: Settings,
    now: Nanos,
    phase: u32,
    /// The queue whose head runs, in phase `RUNNING`.
    running: u32,
    /// The context that has the device or had it last.
    current: u32,
    /// The context whose owner was checked last, at `owner_checked_at`.
    last_owner_checked: u32,
    /// When the phase began.
    since: Nanos,
    slice_end: Nanos,
    next_sequence: u64,
    owner_checked_at: Nanos,
    /// The attached contexts, one bit each.
    live: u64,
    /// Queues whose head waits for a marker.
    waiting: QueueSet,
    /// Queues with a pending change of preemption level.
    changing: QueueSet,
    /// Queues that have reported a marker since [`Model::take_reports`].
    reported: QueueSet,
    contexts: [Context; MAX_CONTEXTS],
    queues: [Queue; MAX_QUEUES],
    log: Log,
    rings: [[Command; RING_ENTRIES]; MAX_QUEUES],
}

const _: () = assert!(size_of::<Command>() == 32 && QUEUE_CAPACITY.is_power_of_two());
const _: () = assert!(MAX_CONTEXTS == 64, "the set of live contexts is one word");

impl Model {
    /// Initializes an all-zero model as a device at time `now`.
    pub(crate) fn set_up(&mut self, config: &Config, now: Nanos) {
        self.settings = Settings {
            device: config.device,
            slice: config.slice.max(SHORTEST_SLICE),
            switch_cost: config.switch_cost,
            deactivate: LevelWords::new(config.deactivate),
            interrupt: LevelWords::new(config.interrupt),
        };
        self.now = now;
        self.current = NONE;
        self.running = NONE;
    }

    /// The configuration that the device was created with.
    pub(crate) fn config(&self) -> Config {
        Config {
            device: self.settings.device,
            slice: self.settings.slice,
            switch_cost: self.settings.switch_cost,
            deactivate: self.settings.deactivate.cost(),
            interrupt: self.settings.interrupt.cost(),
        }
    }

    /// The time the model has been advanced to.
    pub(crate) fn now(&self) -> Nanos {
        self.now
    }

    /// The log of spans.
    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// A queue by index. Masked: an index out of range means corrupt memory, which must not cause a panic.
    fn queue(&self, index: u32) -> &Queue {
        &self.queues[index as usize % MAX_QUEUES]
    }

    fn queue_mut(&mut self, index: u32) -> &mut Queue {
        &mut self.queues[index as usize % MAX_QUEUES]
    }

    fn context(&self, index: u32) -> &Context {
        &self.contexts[index as usize % MAX_CONTEXTS]
    }

    fn context_mut(&mut self, index: u32) -> &mut Context {
        &mut self.contexts[index as usize % MAX_CONTEXTS]
    }

    fn command(&self, queue: u32, position: u64) -> &Command {
        &self.rings[queue as usize % MAX_QUEUES][ring_slot(position)]
    }

    fn command_mut(&mut self, queue: u32, position: u64) -> &mut Command {
        &mut self.rings[queue as usize % MAX_QUEUES][ring_slot(position)]
    }

    /// The command at the head of a queue, if it has any.
    fn head(&self, queue: u32) -> Option<&Command> {
        let q = self.queue(queue);
        // An impossible length counts as empty: a corrupt one must not keep the device busy indefinitely.
        let holds = q.open != 0 && (1..=QUEUE_CAPACITY).contains(&q.tail.saturating_sub(q.head));
        holds.then(|| self.command(queue, q.head))
    }

    /// The attached contexts, lowest index first.
    pub(crate) fn live_contexts(&self) -> impl Iterator<Item = u32> + use<> {
        let mut left = self.live;
        std::iter::from_fn(move || {
            let lowest = (left != 0).then(|| left.trailing_zeros())?;
            left &= left - 1;
            Some(lowest)
        })
    }
}

fn ring_slot(position: u64) -> usize {
    usize::try_from(position % QUEUE_CAPACITY).unwrap_or(0)
}

/// The index of a slot as 32 bits; all tables have far fewer than 2^32 slots.
fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(NONE)
}

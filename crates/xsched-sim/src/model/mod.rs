//! The device as plain data: what was submitted, what is being done, and since when.
//!
//! ```text
//!   context 0 (process 4711)          context 1 (process 4712)
//!   ├ queue 0  [run 5ms][mark 1]      └ queue 2  [run 1ms][run 1ms][mark 1]
//!   └ queue 1  [wait q0:1][run 1ms]
//!        │ oldest head first               │
//!        └────────── round robin ──────────┘
//!                        ▼
//!        ┌─ switch ─┬─ running, cut when the slice ends ─┐
//!   ─────┴──────────┴────────────────────────────────────┴──▶ model time
//! ```
//!
//! Nothing here knows a clock, a lock or a process. [`Model::advance`] moves the model from its last event to a given
//! time, event by event and exactly; everything else changes what the next events will be. Times of completion are
//! therefore those of the model, whoever looks and however late.
//!
//! Rules of the native scheduler:
//! - Within a context the command that was submitted first goes first; one that has begun is finished before another
//!   begins. Queues that are stopped, or whose head waits for a marker, are skipped.
//! - Contexts with something to run take turns of one slice. A context that runs dry gives its turn away at once.
//! - Changing to another context costs [`crate::Config::switch_cost`], during which nothing runs.
//! - Markers and fulfilled waits take no device time: they are done the moment they reach the head, even of a stopped
//!   queue. So the marker behind a command that a deactivated queue may still finish is reported.
//!
//! The model lives in memory that a killed process may have left half written. It consists of integers only, every
//! index is checked or masked where it is used, and [`Model::repair`] makes the parts agree again.

mod bounds;
mod commands;
mod log;
mod preempt;
mod repair;
mod schedule;
mod set;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use xsched_core::{DeviceId, LevelCost, Nanos};

use crate::config::Config;
pub use bounds::Usage;
use log::Log;
pub use log::{Span, SpanKind};
use set::QueueSet;

/// How many contexts a device holds.
pub(crate) const CONTEXTS: usize = 64;
/// How many queues a device holds, over all contexts.
pub(crate) const QUEUES: usize = 256;
/// How many commands a queue holds.
const PLACES: usize = 1024;
/// The same, to count with.
pub(crate) const RING: u64 = PLACES as u64;

/// No queue, no context.
const NONE: u32 = u32::MAX;
/// The shortest slice: bounds the number of events per unit of time.
const SHORTEST_SLICE: Nanos = Nanos::from_micros(10);

/// What the device is doing. Kept as a word because the model holds integers only.
mod phase {
    pub(super) const IDLE: u32 = 0;
    pub(super) const SWITCHING: u32 = 1;
    pub(super) const RUNNING: u32 = 2;
}

/// Whether a slot of the table of contexts is taken.
mod slot {
    pub(super) const FREE: u32 = 0;
    pub(super) const LIVE: u32 = 1;
    /// Its process is gone; its accounts are kept until the slot is needed again.
    pub(super) const GONE: u32 = 2;
}

/// A context or queue, with the number of the life of its slot: an old name never means a new thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) index: u32,
    pub(crate) life: u32,
}

/// What can be put into a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Use the device for so long.
    Run(Nanos),
    /// Report this number.
    Mark(u64),
    /// Go on once that queue has reported this number, or is gone.
    Wait { queue: Name, marker: u64 },
}

/// Why the model did not take something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The queue or context is not there any more.
    Gone,
    /// The queue has no room now.
    Full,
}

/// [`Work`] as integers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Command {
    kind: u32,
    queue: u32,
    life: u32,
    unused: u32,
    /// What is left to run, or the number of the marker.
    amount: u64,
    /// Its place in the order of submission over all queues.
    sequence: u64,
}

impl Command {
    const RUN: u32 = 0;
    const MARK: u32 = 1;
    const WAIT: u32 = 2;

    fn new(work: Work, sequence: u64) -> Self {
        let command = Self { kind: Self::RUN, queue: NONE, life: 0, unused: 0, amount: 0, sequence };
        match work {
            Work::Run(length) => Self { amount: length.0, ..command },
            Work::Mark(marker) => Self { kind: Self::MARK, amount: marker, ..command },
            Work::Wait { queue, marker } => {
                Self { kind: Self::WAIT, queue: queue.index, life: queue.life, amount: marker, ..command }
            }
        }
    }

    fn work(&self) -> Work {
        match self.kind {
            Self::MARK => Work::Mark(self.amount),
            Self::WAIT => {
                Work::Wait { queue: Name { index: self.queue, life: self.life }, marker: self.amount }
            }
            _ => Work::Run(Nanos(self.amount)),
        }
    }
}

/// One attached process.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Context {
    state: u32,
    life: u32,
    pub(crate) pid: u32,
    unused: u32,
    /// When the process was started: with the pid it names a process for good.
    pub(crate) started: u64,
    pub(crate) busy: Nanos,
    queues: QueueSet,
}

/// One hardware queue; its commands lie in [`Model::rings`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Queue {
    open: u32,
    life: u32,
    context: u32,
    /// Set once its owner let go of it: it is freed when it has run dry.
    closing: u32,
    /// The head has used the device already.
    begun: u32,
    /// The level that is in effect: 0, 2 or 3.
    stopped: u32,
    /// The level that will be in effect at `change_at`.
    change_to: u32,
    unused: u32,
    /// [`Nanos::MAX`] when no change is under way.
    change_at: Nanos,
    /// How many commands have left the ring, and how many were ever put in.
    head: u64,
    tail: u64,
    /// How many commands have run to their end.
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

/// The whole device. All zero is a device without contexts whose settings have yet to be given.
#[repr(C)]
pub(crate) struct Model {
    settings: Settings,
    now: Nanos,
    phase: u32,
    /// The queue whose head runs, in phase `RUNNING`.
    running: u32,
    /// The context whose turn it is or last was.
    current: u32,
    /// The context whose owner was looked after last, at `inspected`.
    last_inspected: u32,
    /// When the phase began.
    since: Nanos,
    slice_end: Nanos,
    next_sequence: u64,
    inspected: Nanos,
    /// The contexts that live, one bit each.
    live: u64,
    /// Queues whose head waits for a marker.
    waiting: QueueSet,
    /// Queues with a change of level under way.
    changing: QueueSet,
    /// Queues that have reported a marker since [`Model::take_reports`].
    reported: QueueSet,
    contexts: [Context; CONTEXTS],
    queues: [Queue; QUEUES],
    log: Log,
    rings: [[Command; PLACES]; QUEUES],
}

const _: () = assert!(size_of::<Command>() == 32 && RING.is_power_of_two());
const _: () = assert!(CONTEXTS == 64, "the set of live contexts is one word");

impl Model {
    /// Makes an all-zero model a device at time `now`.
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

    /// What the device was made with.
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

    /// The spans so far.
    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// A queue by number. Masked: a number out of range is rubbish, and rubbish must not panic.
    fn queue(&self, index: u32) -> &Queue {
        &self.queues[index as usize % QUEUES]
    }

    fn queue_mut(&mut self, index: u32) -> &mut Queue {
        &mut self.queues[index as usize % QUEUES]
    }

    fn context(&self, index: u32) -> &Context {
        &self.contexts[index as usize % CONTEXTS]
    }

    fn context_mut(&mut self, index: u32) -> &mut Context {
        &mut self.contexts[index as usize % CONTEXTS]
    }

    fn command(&self, queue: u32, position: u64) -> &Command {
        &self.rings[queue as usize % QUEUES][ring_slot(position)]
    }

    fn command_mut(&mut self, queue: u32, position: u64) -> &mut Command {
        &mut self.rings[queue as usize % QUEUES][ring_slot(position)]
    }

    /// The command at the head of a queue, if it has any.
    fn head(&self, queue: u32) -> Option<&Command> {
        let q = self.queue(queue);
        // A length that cannot be counts as none: a scribbled one must not keep the device busy for ever.
        let holds = q.open != 0 && (1..=RING).contains(&q.tail.saturating_sub(q.head));
        holds.then(|| self.command(queue, q.head))
    }

    /// The contexts that live now, lowest first.
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
    usize::try_from(position % RING).unwrap_or(0)
}

/// The number of a slot in one of the tables, all of which have far fewer than 2^32.
fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(NONE)
}

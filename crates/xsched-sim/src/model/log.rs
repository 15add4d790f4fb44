//! The timeline: a ring of the newest spans of device time.

use xsched_core::Nanos;

/// How many spans the ring keeps.
const SPANS: usize = 65_536;
/// The same as a 64-bit count.
pub(crate) const LOG_CAPACITY: u64 = SPANS as u64;

/// What the device did during a span, and how that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SpanKind {
    /// A command ran to completion.
    Finished = 0,
    /// A command ran until the context's time slice ended; it resumes later.
    Sliced = 1,
    /// A command ran until its queue was interrupted; it resumes once the queue is restored.
    Interrupted = 2,
    /// A command ran until its process exited or detached.
    Abandoned = 3,
    /// No command: the device switched to this context.
    Switch = 4,
}

impl SpanKind {
    fn from_word(word: u32) -> Self {
        match word {
            1 => Self::Sliced,
            2 => Self::Interrupted,
            3 => Self::Abandoned,
            4 => Self::Switch,
            _ => Self::Finished,
        }
    }
}

/// One contiguous interval of device time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its start, in model time.
    pub start: Nanos,
    /// Its end.
    pub end: Nanos,
    /// The process that it belonged to.
    pub pid: u32,
    /// The context that it belonged to: the same number as in [`crate::Usage`].
    pub context: u32,
    /// The queue whose command ran; none during a switch.
    pub queue: Option<u32>,
    /// What the device did, and why that ended.
    pub kind: SpanKind,
}

/// A span as it lies in shared memory: integers only, so that any contents are valid.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Record {
    start: Nanos,
    end: Nanos,
    pid: u32,
    context: u32,
    queue: u32,
    kind: u32,
}

/// The ring. `written` counts all spans so far; the newest [`LOG_CAPACITY`] of them are kept.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Log {
    written: u64,
    records: [Record; SPANS],
}

impl Log {
    pub(crate) fn push(&mut self, span: Span) {
        self.records[slot(self.written)] = Record {
            start: span.start,
            end: span.end,
            pid: span.pid,
            context: span.context,
            queue: span.queue.unwrap_or(super::NONE),
            kind: span.kind as u32,
        };
        self.written = self.written.wrapping_add(1);
    }

    /// Appends the spans written since `cursor` to `out`; returns the new cursor and how many spans were overwritten
    /// before they were read.
    pub(crate) fn read_since(&self, cursor: u64, out: &mut Vec<Span>) -> (u64, u64) {
        let behind = self.written.saturating_sub(cursor);
        let dropped = behind.saturating_sub(LOG_CAPACITY);
        let first = self.written - (behind - dropped);
        out.extend((first..self.written).map(|n| {
            let record = &self.records[slot(n)];
            Span {
                start: record.start,
                end: record.end,
                pid: record.pid,
                context: record.context,
                queue: (record.queue != super::NONE).then_some(record.queue),
                kind: SpanKind::from_word(record.kind),
            }
        }));
        (self.written, dropped)
    }
}

fn slot(n: u64) -> usize {
    usize::try_from(n % LOG_CAPACITY).unwrap_or(0)
}

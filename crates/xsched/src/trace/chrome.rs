//! The Chrome trace event format, which Perfetto reads: one JSON object per event.

use std::io::{self, Write};

/// The track of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Track {
    /// The process, which groups tracks.
    pub(super) pid: u32,
    /// The track in the group: a task, a queue, or 0 for the scheduler.
    pub(super) task: u64,
}

/// What a slice belongs to. Slices of tasks and queues have the same names: searches in a trace distinguish them by this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Category {
    Scheduler,
    Task,
    Queue,
}

impl Category {
    fn name(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler",
            Self::Task => "task",
            Self::Queue => "queue",
        }
    }
}

/// Writes a trace, event by event. Times are nanoseconds since the trace began.
pub(super) struct Chrome<W> {
    out: W,
    written: u64,
}

impl<W: Write> Chrome<W> {
    pub(super) fn new(mut out: W) -> io::Result<Self> {
        out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        Ok(Self { out, written: 0 })
    }

    /// Names a process and sets its sort index.
    pub(super) fn name_process(&mut self, pid: u32, name: &str, sort_index: i64) -> io::Result<()> {
        self.metadata("process_name", Track { pid, task: 0 }, "name", &quoted(name))?;
        self.metadata("process_sort_index", Track { pid, task: 0 }, "sort_index", &sort_index.to_string())
    }

    /// Names a track.
    pub(super) fn name_track(&mut self, track: Track, name: &str) -> io::Result<()> {
        self.metadata("thread_name", track, "name", &quoted(name))
    }

    fn metadata(&mut self, kind: &str, track: Track, key: &str, value: &str) -> io::Result<()> {
        self.begin('M', track, kind)?;
        // Some readers expect a time in every event.
        write!(self.out, ",\"ts\":0,\"args\":{{\"{key}\":{value}}}}}")
    }

    /// An event with a duration.
    pub(super) fn slice(
        &mut self,
        track: Track,
        category: Category,
        name: &str,
        begin: u64,
        length: u64,
    ) -> io::Result<()> {
        self.begin('X', track, name)?;
        let (category, begin, length) = (category.name(), micros(begin), micros(length));
        write!(self.out, ",\"cat\":\"{category}\",\"ts\":{begin},\"dur\":{length}}}")
    }

    /// An event without a duration.
    pub(super) fn instant(&mut self, track: Track, name: &str, at: u64) -> io::Result<()> {
        self.begin('i', track, name)?;
        write!(self.out, ",\"s\":\"t\",\"ts\":{}}}", micros(at))
    }

    /// Launches of a kernel from this time on.
    pub(super) fn kernel(
        &mut self,
        track: Track,
        name: &str,
        symbol: &str,
        at: u64,
        launches: u64,
    ) -> io::Result<()> {
        self.begin('i', track, name)?;
        let symbol = quoted(symbol);
        write!(
            self.out,
            ",\"cat\":\"kernel\",\"s\":\"t\",\"ts\":{},\"args\":{{\"launches\":{launches},\"symbol\":{symbol}}}}}",
            micros(at)
        )
    }

    /// New values of counters.
    pub(super) fn counter(
        &mut self,
        pid: u32,
        name: &str,
        at: u64,
        numbers: &[(&str, u64)],
    ) -> io::Result<()> {
        self.begin('C', Track { pid, task: 0 }, name)?;
        write!(self.out, ",\"ts\":{},\"args\":{{", micros(at))?;
        for (index, (name, number)) in numbers.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(self.out, "{comma}{}:{number}", quoted(name))?;
        }
        self.out.write_all(b"}}")
    }

    fn begin(&mut self, kind: char, track: Track, name: &str) -> io::Result<()> {
        let comma = if self.written == 0 { "" } else { "," };
        self.written += 1;
        let Track { pid, task } = track;
        let name = quoted(name);
        write!(self.out, "{comma}\n{{\"ph\":\"{kind}\",\"pid\":{pid},\"tid\":{task},\"name\":{name}")
    }

    /// Ends the file, with metadata of the whole trace.
    pub(super) fn finish(mut self, facts: &[(&str, &str)]) -> io::Result<W> {
        self.out.write_all(b"\n],\"otherData\":{")?;
        for (index, (name, fact)) in facts.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(self.out, "{comma}{}:{}", quoted(name), quoted(fact))?;
        }
        self.out.write_all(b"}}\n")?;
        self.out.flush()?;
        Ok(self.out)
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The format counts microseconds; three decimals keep every nanosecond.
fn micros(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

//! The trace event format that Chrome introduced and Perfetto reads: one JSON object per thing that happened.

use std::io::{self, Write};

/// Which line of the picture something belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Track {
    /// The group of lines: a process.
    pub(super) pid: u32,
    /// The line in it: a task, a queue, or 0 for the scheduler.
    pub(super) task: u64,
}

/// Writes a trace, one thing at a time. Times are nanoseconds since the trace began.
pub(super) struct Chrome<W> {
    out: W,
    written: u64,
}

impl<W: Write> Chrome<W> {
    pub(super) fn new(mut out: W) -> io::Result<Self> {
        out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        Ok(Self { out, written: 0 })
    }

    /// Names a process, and says where among the others it stands.
    pub(super) fn name_process(&mut self, pid: u32, name: &str, place: i64) -> io::Result<()> {
        self.metadata("process_name", Track { pid, task: 0 }, "name", &quoted(name))?;
        self.metadata("process_sort_index", Track { pid, task: 0 }, "sort_index", &place.to_string())
    }

    /// Names one line of a process.
    pub(super) fn name_track(&mut self, track: Track, name: &str) -> io::Result<()> {
        self.metadata("thread_name", track, "name", &quoted(name))
    }

    fn metadata(&mut self, what: &str, track: Track, key: &str, value: &str) -> io::Result<()> {
        self.begin('M', track, what)?;
        write!(self.out, ",\"args\":{{\"{key}\":{value}}}}}")
    }

    /// Something that lasted.
    pub(super) fn slice(&mut self, track: Track, name: &str, begin: u64, length: u64) -> io::Result<()> {
        self.begin('X', track, name)?;
        write!(self.out, ",\"ts\":{},\"dur\":{}}}", micros(begin), micros(length))
    }

    /// Something that happened at one moment.
    pub(super) fn instant(&mut self, track: Track, name: &str, at: u64) -> io::Result<()> {
        self.begin('i', track, name)?;
        write!(self.out, ",\"s\":\"t\",\"ts\":{}}}", micros(at))
    }

    /// Numbers from this moment on.
    pub(super) fn counter(
        &mut self,
        pid: u32,
        name: &str,
        at: u64,
        numbers: &[(&str, u64)],
    ) -> io::Result<()> {
        self.begin('C', Track { pid, task: 0 }, name)?;
        write!(self.out, ",\"ts\":{},\"args\":{{", micros(at))?;
        for (place, (name, number)) in numbers.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
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

    /// Ends the file, with facts about the whole of it.
    pub(super) fn finish(mut self, facts: &[(&str, &str)]) -> io::Result<W> {
        self.out.write_all(b"\n],\"otherData\":{")?;
        for (place, (name, fact)) in facts.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
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

/// The format counts microseconds; three digits behind the point keep every nanosecond.
fn micros(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

//! From events to slices.
//!
//! ```text
//!   events    Ready      Hold          Run            Idle
//!               │          │             │              │
//!   task     ───█ running █▒▒▒ held ▒▒▒▒█ running ██████───
//!                          ▲ preempted
//! ```
//!
//! A task runs unless it was told to hold. What it was doing when the recording began is taken from the service's
//! status; what it is doing when the recording ends lasts until then. Memory grows with the tasks that live, not with
//! what they do.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use xsched_core::DeviceId;
use xsched_ipc::protocol::{Event, Status, TaskState, What};

use super::chrome::{Chrome, Track};

struct Task {
    pid: u32,
    device: u64,
    ready: bool,
    held: bool,
    /// Since when it does what it does.
    since: u64,
}

impl Task {
    fn doing(&self) -> Option<&'static str> {
        match (self.ready, self.held) {
            (true, false) => Some("running"),
            (true, true) => Some("held"),
            (false, _) => None,
        }
    }
}

/// Writes a trace as events come in.
pub(crate) struct Converter<W> {
    file: Chrome<W>,
    /// Process of the service: the scheduler's own tracks are under it.
    service: u32,
    version: String,
    /// The time on the clock of the events that is the trace's zero.
    origin: u64,
    /// No event counts as earlier than the one before it.
    latest: u64,
    tasks: BTreeMap<u64, Task>,
    named: BTreeSet<u32>,
    /// Devices whose numbers have changed since they were last written.
    stale: BTreeSet<u64>,
    events: u64,
    lost: u64,
}

impl<W: Write> Converter<W> {
    /// Begins a trace with what the service does at this moment.
    pub(crate) fn new(out: W, status: &Status) -> io::Result<Self> {
        let mut file = Chrome::new(out)?;
        file.name_process(status.pid, "xsched scheduler", -1)?;
        file.name_track(Track { pid: status.pid, task: 0 }, "rounds")?;
        let mut converter = Self {
            file,
            service: status.pid,
            version: status.version.clone(),
            origin: status.now_ns,
            latest: status.now_ns,
            tasks: BTreeMap::new(),
            named: BTreeSet::new(),
            stale: BTreeSet::new(),
            events: 0,
            lost: 0,
        };
        for task in &status.tasks {
            converter.meet(task.task, task.pid, task.device, Some(&task.name))?;
            let held = matches!(task.state, TaskState::Held | TaskState::Suspended);
            converter.turn(task.task, Some(task.state != TaskState::Idle), Some(held))?;
        }
        Ok(converter)
    }

    /// Events so far, and those that were lost.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.events, self.lost)
    }

    /// Adds what has happened. Events from before the beginning are part of the status already.
    pub(crate) fn event(&mut self, event: &Event) -> io::Result<()> {
        if event.at_ns < self.origin {
            return Ok(());
        }
        self.events += 1;
        if event.at_ns > self.latest {
            self.settle()?;
            self.latest = event.at_ns;
        }
        let scheduler = Track { pid: self.service, task: 0 };
        let at = self.latest - self.origin;
        match &event.what {
            What::Round(took) => self.file.slice(scheduler, "round", at, *took),
            What::Policy(name) => self.file.instant(scheduler, &format!("policy {name}"), at),
            What::Came(name) => self.meet(event.task, event.pid, event.device, Some(name)),
            What::Gone => {
                self.turn(event.task, Some(false), None)?;
                self.tasks.remove(&event.task);
                if !self.tasks.values().any(|task| task.pid == event.pid) {
                    // The number may be another program's next time.
                    self.named.remove(&event.pid);
                }
                Ok(())
            }
            what => {
                self.meet(event.task, event.pid, event.device, None)?;
                match what {
                    What::Ready => self.turn(event.task, Some(true), None),
                    What::Idle => self.turn(event.task, Some(false), None),
                    What::Run => self.turn(event.task, None, Some(false)),
                    _ => self.turn(event.task, None, Some(true)),
                }
            }
        }
    }

    /// Some events are missing here. What tasks do from now on is not known until they are heard of again.
    pub(crate) fn lost(&mut self, events: u64) -> io::Result<()> {
        if events == 0 {
            return Ok(());
        }
        self.lost += events;
        let tasks: Vec<u64> = self.tasks.keys().copied().collect();
        for task in tasks {
            self.turn(task, Some(false), None)?;
        }
        let at = self.latest - self.origin;
        let track = Track { pid: self.service, task: 0 };
        self.file.instant(track, &format!("{events} events lost"), at)
    }

    /// Ends the trace at this time.
    pub(crate) fn finish(mut self, now_ns: u64) -> io::Result<W> {
        self.settle()?;
        self.latest = self.latest.max(now_ns);
        let tasks: Vec<u64> = self.tasks.keys().copied().collect();
        for task in tasks {
            self.turn(task, Some(false), None)?;
        }
        self.settle()?;
        let (events, lost) = (self.events.to_string(), self.lost.to_string());
        self.file.finish(&[("xsched", &self.version), ("events", &events), ("events lost", &lost)])
    }

    /// Makes sure that a task is known, and named as well as can be.
    fn meet(&mut self, task: u64, pid: u32, device: u64, name: Option<&str>) -> io::Result<()> {
        let name = name.filter(|name| !name.is_empty());
        if name.is_some() || !self.named.contains(&pid) {
            self.named.insert(pid);
            let name = name.map_or_else(|| format!("process {pid}"), str::to_owned);
            self.file.name_process(pid, &name, 0)?;
        }
        if !self.tasks.contains_key(&task) {
            self.tasks.insert(task, Task { pid, device, ready: false, held: false, since: self.latest });
            let name = format!("task {task} on {}", DeviceId(device));
            self.file.name_track(Track { pid, task }, &name)?;
        }
        Ok(())
    }

    /// A task does something else from now on.
    fn turn(&mut self, number: u64, ready: Option<bool>, held: Option<bool>) -> io::Result<()> {
        let (now, origin) = (self.latest, self.origin);
        let Some(task) = self.tasks.get_mut(&number) else { return Ok(()) };
        let before = task.doing();
        task.ready = ready.unwrap_or(task.ready);
        task.held = held.unwrap_or(task.held);
        let after = task.doing();
        if before == after {
            return Ok(());
        }
        let (track, begin) = (Track { pid: task.pid, task: number }, task.since);
        task.since = now;
        self.stale.insert(task.device);
        // What begins and ends in the same moment was decided over before it took effect.
        if let Some(what) = before.filter(|_| begin < now) {
            self.file.slice(track, what, begin - origin, now - begin)?;
            if (what, after) == ("running", Some("held")) {
                self.file.instant(track, "preempted", now - origin)?;
            }
        }
        Ok(())
    }

    /// Writes the numbers of the devices as they are after all that happened at one moment.
    fn settle(&mut self) -> io::Result<()> {
        for device in std::mem::take(&mut self.stale) {
            let count = |what| {
                let here =
                    self.tasks.values().filter(|task| task.device == device && task.doing() == Some(what));
                here.count() as u64
            };
            let numbers = [("running", count("running")), ("held", count("held"))];
            let name = format!("tasks on {}", DeviceId(device));
            self.file.counter(self.service, &name, self.latest - self.origin, &numbers)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

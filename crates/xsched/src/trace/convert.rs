//! From events to slices.
//!
//! ```text
//!   events    Ready      Hold          Run            Idle
//!               │          │             │              │
//!   task     ───█ running █▒▒▒ held ▒▒▒▒█ running ██████───
//!                          ▲ preempted
//! ```
//!
//! A queue has a line of its own, drawn the same way: its own work, under the orders of its task. Launches are a number
//! per queue that grows.
//!
//! A task runs unless it was told to hold. What it was doing when the recording began is taken from the service's
//! status; what it is doing when the recording ends lasts until then. Memory grows with the tasks and queues that live,
//! not with what they do.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use xsched_core::DeviceId;
use xsched_ipc::protocol::{Event, EventKind, Status, TaskState};

use super::chrome::{Chrome, Track};

/// Tracks of queues have numbers from here on, tasks have their own. Perfetto wants them to fit 32 bits, which the
/// handles of queues do not.
const QUEUE_TRACKS: u64 = 1 << 30;

struct Task {
    pid: u32,
    device: u64,
    line: Line,
    /// Those that were heard of, by their handles.
    queues: BTreeMap<u64, Queue>,
}

struct Queue {
    track: Track,
    line: Line,
    /// Launches since the recording began.
    launches: u64,
}

/// What a task or a queue does.
struct Line {
    ready: bool,
    held: bool,
    /// Since when it does what it does.
    since: u64,
}

/// What something with work does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Running,
    Held,
}

impl Doing {
    fn of_task(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Held => "held",
        }
    }

    /// Other words than those of tasks, so that a search finds either.
    fn of_queue(self) -> &'static str {
        match self {
            Self::Running => "runs",
            Self::Held => "waits",
        }
    }
}

impl Line {
    fn doing(&self) -> Option<Doing> {
        match (self.ready, self.held) {
            (true, false) => Some(Doing::Running),
            (true, true) => Some(Doing::Held),
            (false, _) => None,
        }
    }

    /// Does something else from now on. Answers what it did until now, and since when. What begins and ends in the
    /// same moment was decided over before it took effect.
    fn turn(&mut self, ready: Option<bool>, held: Option<bool>, now: u64) -> Option<(Doing, u64)> {
        let (before, since) = (self.doing(), self.since);
        self.ready = ready.unwrap_or(self.ready);
        self.held = held.unwrap_or(self.held);
        if before == self.doing() {
            return None;
        }
        self.since = now;
        before.filter(|_| since < now).map(|before| (before, since))
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
    /// Queues that were given a track so far.
    queue_tracks: u64,
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
            queue_tracks: 0,
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
        for queue in &status.queues {
            if queue.ready {
                converter.turn_queue(queue.task, queue.handle, true)?;
            } else if queue.suspended && converter.tasks.get(&queue.task).is_some_and(|task| !task.line.ready)
            {
                // A task without work may have been told to hold all the same.
                converter.turn(queue.task, None, Some(true))?;
            }
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
        match &event.kind {
            EventKind::Decision(took) => self.file.slice(scheduler, "round", at, *took),
            EventKind::PolicyChanged(name) => self.file.instant(scheduler, &format!("policy {name}"), at),
            EventKind::TaskAdded(name) => self.meet(event.task, event.pid, event.device, Some(name)),
            EventKind::TaskRemoved => {
                self.end(event.task)?;
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
                    EventKind::Busy => self.turn(event.task, Some(true), None),
                    EventKind::Idle => self.turn(event.task, Some(false), None),
                    EventKind::Running => self.turn(event.task, None, Some(false)),
                    EventKind::QueueBusy(queue) => self.turn_queue(event.task, *queue, true),
                    EventKind::QueueIdle(queue) => self.turn_queue(event.task, *queue, false),
                    EventKind::Launched { queue, count } => self.launched(event.task, *queue, *count),
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
            self.end(task)?;
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
            self.end(task)?;
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
            let line = Line { ready: false, held: false, since: self.latest };
            self.tasks.insert(task, Task { pid, device, line, queues: BTreeMap::new() });
            let name = format!("task {task} on {}", DeviceId(device));
            self.file.name_track(Track { pid, task }, &name)?;
        }
        Ok(())
    }

    /// A queue of a task that is known, named if it was not before.
    fn queue(&mut self, number: u64, handle: u64) -> io::Result<Option<&mut Queue>> {
        let Some(task) = self.tasks.get_mut(&number) else { return Ok(None) };
        if !task.queues.contains_key(&handle) {
            let track = Track { pid: task.pid, task: QUEUE_TRACKS + self.queue_tracks };
            self.queue_tracks += 1;
            let line = Line { ready: false, held: task.line.held, since: self.latest };
            task.queues.insert(handle, Queue { track, line, launches: 0 });
            self.file.name_track(track, &format!("queue {handle:#x} of task {number}"))?;
        }
        Ok(task.queues.get_mut(&handle))
    }

    /// A task does something else from now on, and if it is held or let go so do its queues.
    fn turn(&mut self, number: u64, ready: Option<bool>, held: Option<bool>) -> io::Result<()> {
        let (now, origin) = (self.latest, self.origin);
        let Some(task) = self.tasks.get_mut(&number) else { return Ok(()) };
        let before = task.line.doing();
        let done = task.line.turn(ready, held, now);
        let after = task.line.doing();
        if before != after {
            self.stale.insert(task.device);
        }
        if let Some((what, since)) = done {
            let track = Track { pid: task.pid, task: number };
            self.file.slice(track, what.of_task(), since - origin, now - since)?;
            if (what, after) == (Doing::Running, Some(Doing::Held)) {
                self.file.instant(track, "preempted", now - origin)?;
            }
        }
        for queue in task.queues.values_mut().filter(|_| held.is_some()) {
            if let Some((what, since)) = queue.line.turn(None, held, now) {
                self.file.slice(queue.track, what.of_queue(), since - origin, now - since)?;
            }
        }
        Ok(())
    }

    /// A queue has work from now on, or has none.
    fn turn_queue(&mut self, task: u64, handle: u64, ready: bool) -> io::Result<()> {
        let (now, origin) = (self.latest, self.origin);
        let Some(queue) = self.queue(task, handle)? else { return Ok(()) };
        let track = queue.track;
        if let Some((what, since)) = queue.line.turn(Some(ready), None, now) {
            self.file.slice(track, what.of_queue(), since - origin, now - since)?;
        }
        Ok(())
    }

    /// A queue was seen to have launched so many more.
    fn launched(&mut self, task: u64, handle: u64, count: u64) -> io::Result<()> {
        let at = self.latest - self.origin;
        let Some(queue) = self.queue(task, handle)? else { return Ok(()) };
        queue.launches = queue.launches.saturating_add(count);
        let (pid, launches) = (queue.track.pid, queue.launches);
        let name = format!("launches of queue {handle:#x} of task {task}");
        self.file.counter(pid, &name, at, &[("launches", launches)])
    }

    /// Nothing is known of a task and its queues from now on.
    fn end(&mut self, number: u64) -> io::Result<()> {
        let queues: Option<Vec<u64>> =
            self.tasks.get(&number).map(|task| task.queues.keys().copied().collect());
        for queue in queues.unwrap_or_default() {
            self.turn_queue(number, queue, false)?;
        }
        self.turn(number, Some(false), None)
    }

    /// Writes the numbers of the devices as they are after all that happened at one moment.
    fn settle(&mut self) -> io::Result<()> {
        for device in std::mem::take(&mut self.stale) {
            let count = |what| {
                let here = self
                    .tasks
                    .values()
                    .filter(|task| task.device == device && task.line.doing() == Some(what));
                here.count() as u64
            };
            let numbers = [("running", count(Doing::Running)), ("held", count(Doing::Held))];
            let name = format!("tasks on {}", DeviceId(device));
            self.file.counter(self.service, &name, self.latest - self.origin, &numbers)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

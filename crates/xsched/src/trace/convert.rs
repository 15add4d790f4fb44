//! Converts events to slices.
//!
//! ```text
//!   events     Busy       Held        Running          Idle
//!               │          │             │              │
//!   task     ───█ running █▒▒▒ held ▒▒▒▒█ running ██████───
//!                          ▲ preempted
//! ```
//!
//! A queue has a track of its own, drawn the same way: its own work, under the orders of its task. Launches are a counter
//! per queue, and the device memory of the task's process is one per task. Kernels are instants in the track of their queue: one for all
//! launches of a kernel within 10 ms.
//!
//! A task with work runs unless it is held or its process does not run. The state at the beginning of the recording is taken from the service's
//! status; the last state lasts until the end of the recording. Memory grows with the number of tasks and queues, not with
//! the number of events.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use xsched_core::DeviceId;
use xsched_ipc::protocol::{Event, EventKind, Status, TaskState};

use super::activity::{Activity, Change, WorkState};
use super::chrome::{Category, Chrome, Track};
use super::symbol::readable;

/// The first track number of queues; tasks use their task numbers. Perfetto limits track numbers to 32 bits, and the handles
/// of queues are larger.
const QUEUE_TRACKS: u64 = 1 << 30;

struct Task {
    pid: u32,
    device: u64,
    activity: Activity,
    /// The queues seen in events, by their handles.
    queues: BTreeMap<u64, Queue>,
}

struct Queue {
    track: Track,
    activity: Activity,
    /// Launches since the recording began.
    launches: u64,
}

impl WorkState {
    /// The name of slices, the same for tasks and queues: the words of `xsched ps`.
    fn slice_name(self) -> &'static str {
        let state = match self {
            Self::Running => TaskState::Running,
            Self::Held => TaskState::Held,
            Self::Stalled => TaskState::Stalled,
        };
        state.name()
    }
}

/// Writes a trace as events arrive.
pub(crate) struct Converter<W> {
    file: Chrome<W>,
    /// Process of the service: the scheduler's own tracks are under it.
    service: u32,
    version: String,
    /// The time of the events' clock at which the trace begins.
    origin: u64,
    /// The latest time so far: an event never counts as earlier than its predecessor.
    latest: u64,
    /// When the last round ended, since the trace began. Slices of one track may not overlap.
    rounds_end: u64,
    tasks: BTreeMap<u64, Task>,
    /// Number of queues that have a track.
    queue_tracks: u64,
    named_processes: BTreeSet<u32>,
    /// Devices whose counters have changed since they were last written.
    changed_devices: BTreeSet<u64>,
    events: u64,
    lost: u64,
}

impl<W: Write> Converter<W> {
    /// Begins a trace with the status of the service.
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
            rounds_end: 0,
            tasks: BTreeMap::new(),
            queue_tracks: 0,
            named_processes: BTreeSet::new(),
            changed_devices: BTreeSet::new(),
            events: 0,
            lost: 0,
        };
        for task in &status.tasks {
            converter.ensure_task(task.task, task.pid, task.device, Some(&task.name))?;
            if let Some(grant) = &task.grant {
                let track = Track { pid: task.pid, task: task.task };
                converter.file.instant(track, &grant_text(grant, &task.labels), 0)?;
            }
            let held = matches!(task.state, TaskState::Held | TaskState::Suspended | TaskState::Parked);
            converter.change(task.task, Change::HasWork(task.state != TaskState::Idle))?;
            converter.change(task.task, Change::Held(held))?;
            converter.change(task.task, Change::Stalled(task.state == TaskState::Stalled))?;
        }
        for queue in &status.queues {
            if queue.ready {
                converter.set_queue_busy(queue.task, queue.handle, true)?;
            } else if queue.suspended
                && converter.tasks.get(&queue.task).is_some_and(|task| !task.activity.has_work)
            {
                // A task without work can be held as well.
                converter.change(queue.task, Change::Held(true))?;
            }
        }
        Ok(converter)
    }

    /// The numbers of events written and lost.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.events, self.lost)
    }

    /// Adds an event. The status already contains events from before the beginning.
    pub(crate) fn event(&mut self, event: &Event) -> io::Result<()> {
        if event.at_ns < self.origin {
            return Ok(());
        }
        self.events += 1;
        if event.at_ns > self.latest {
            self.write_device_counters()?;
            self.latest = event.at_ns;
        }
        let scheduler = Track { pid: self.service, task: 0 };
        let at = self.latest - self.origin;
        match &event.kind {
            EventKind::Decision(duration) => {
                let begin = at.max(self.rounds_end);
                self.rounds_end = begin.saturating_add(*duration);
                self.file.slice(scheduler, Category::Scheduler, "round", begin, *duration)
            }
            EventKind::PolicyChanged(name) => self.file.instant(scheduler, &format!("policy {name}"), at),
            EventKind::TaskAdded(name) => self.ensure_task(event.task, event.pid, event.device, Some(name)),
            EventKind::TaskRemoved => {
                self.end_states(event.task)?;
                self.tasks.remove(&event.task);
                if !self.tasks.values().any(|task| task.pid == event.pid) {
                    // The kernel may reuse the process ID.
                    self.named_processes.remove(&event.pid);
                }
                Ok(())
            }
            kind => {
                self.ensure_task(event.task, event.pid, event.device, None)?;
                match kind {
                    EventKind::Busy => self.change(event.task, Change::HasWork(true)),
                    EventKind::Idle => self.change(event.task, Change::HasWork(false)),
                    EventKind::Running => self.change(event.task, Change::Held(false)),
                    EventKind::Stalled(stalled) => self.change(event.task, Change::Stalled(*stalled)),
                    EventKind::QueueBusy(queue) => self.set_queue_busy(event.task, *queue, true),
                    EventKind::QueueIdle(queue) => self.set_queue_busy(event.task, *queue, false),
                    EventKind::JobChanged(job) => {
                        let track = Track { pid: event.pid, task: event.task };
                        let text = if job.is_empty() { "no job".to_owned() } else { format!("job {job}") };
                        self.file.instant(track, &text, at)
                    }
                    EventKind::GrantChanged { name, labels } => {
                        let track = Track { pid: event.pid, task: event.task };
                        self.file.instant(track, &grant_text(name, labels), at)
                    }
                    EventKind::Launched { queue, count } => self.add_launches(event.task, *queue, *count),
                    EventKind::Kernel { queue, name, count, began_ns } => {
                        self.add_kernel(event.task, *queue, name, *count, *began_ns)
                    }
                    EventKind::Memory(bytes) => self.set_memory(event.task, event.pid, event.device, *bytes),
                    _ => self.change(event.task, Change::Held(true)),
                }
            }
        }
    }

    /// Records that events are missing. The states of all tasks are unknown until their next events.
    pub(crate) fn lost(&mut self, events: u64) -> io::Result<()> {
        if events == 0 {
            return Ok(());
        }
        self.lost = self.lost.saturating_add(events);
        let tasks: Vec<u64> = self.tasks.keys().copied().collect();
        for task in tasks {
            self.end_states(task)?;
        }
        let at = self.latest - self.origin;
        let track = Track { pid: self.service, task: 0 };
        self.file.instant(track, &format!("{events} events lost"), at)
    }

    /// Ends the trace at this time.
    pub(crate) fn finish(mut self, now_ns: u64) -> io::Result<W> {
        self.write_device_counters()?;
        self.latest = self.latest.max(now_ns);
        let tasks: Vec<u64> = self.tasks.keys().copied().collect();
        for task in tasks {
            self.end_states(task)?;
        }
        self.write_device_counters()?;
        let (events, lost) = (self.events.to_string(), self.lost.to_string());
        self.file.finish(&[("xsched", &self.version), ("events", &events), ("events lost", &lost)])
    }

    /// Adds the task if it is new, and names its process.
    fn ensure_task(&mut self, task: u64, pid: u32, device: u64, name: Option<&str>) -> io::Result<()> {
        let name = name.filter(|name| !name.is_empty());
        if name.is_some() || !self.named_processes.contains(&pid) {
            self.named_processes.insert(pid);
            let name = name.map_or_else(|| format!("process {pid}"), str::to_owned);
            self.file.name_process(pid, &name, 0)?;
        }
        if !self.tasks.contains_key(&task) {
            let activity = Activity::idle(self.latest);
            self.tasks.insert(task, Task { pid, device, activity, queues: BTreeMap::new() });
            let name = format!("task {task} on {}", DeviceId(device));
            self.file.name_track(Track { pid, task }, &name)?;
        }
        Ok(())
    }

    /// A queue of a known task; a new queue gets a named track.
    fn queue(&mut self, number: u64, handle: u64) -> io::Result<Option<&mut Queue>> {
        let Some(task) = self.tasks.get_mut(&number) else { return Ok(None) };
        if !task.queues.contains_key(&handle) {
            let track = Track { pid: task.pid, task: QUEUE_TRACKS + self.queue_tracks };
            self.queue_tracks += 1;
            let Activity { held, stalled, .. } = task.activity;
            let activity = Activity { has_work: false, held, stalled, since: self.latest };
            task.queues.insert(handle, Queue { track, activity, launches: 0 });
            self.file.name_track(track, &format!("queue {handle:#x} of task {number}"))?;
        }
        Ok(task.queues.get_mut(&handle))
    }

    /// Changes the state of a task, and that of its queues unless each has work of its own.
    fn change(&mut self, number: u64, change: Change) -> io::Result<()> {
        let (now, origin) = (self.latest, self.origin);
        let Some(task) = self.tasks.get_mut(&number) else { return Ok(()) };
        let before = task.activity.state();
        let ended = task.activity.apply(change, now);
        let after = task.activity.state();
        if before != after {
            self.changed_devices.insert(task.device);
        }
        if let Some((state, since)) = ended {
            let track = Track { pid: task.pid, task: number };
            self.file.slice(track, Category::Task, state.slice_name(), since - origin, now - since)?;
            if (state, after) == (WorkState::Running, Some(WorkState::Held)) {
                self.file.instant(track, "preempted", now - origin)?;
            }
        }
        for queue in task.queues.values_mut().filter(|_| !matches!(change, Change::HasWork(_))) {
            if let Some((state, since)) = queue.activity.apply(change, now) {
                self.file.slice(
                    queue.track,
                    Category::Queue,
                    state.slice_name(),
                    since - origin,
                    now - since,
                )?;
            }
        }
        Ok(())
    }

    /// Marks a queue busy or idle.
    fn set_queue_busy(&mut self, task: u64, handle: u64, busy: bool) -> io::Result<()> {
        let (now, origin) = (self.latest, self.origin);
        let Some(queue) = self.queue(task, handle)? else { return Ok(()) };
        let track = queue.track;
        if let Some((state, since)) = queue.activity.apply(Change::HasWork(busy), now) {
            self.file.slice(track, Category::Queue, state.slice_name(), since - origin, now - since)?;
        }
        Ok(())
    }

    /// Adds to the launches of a queue.
    fn add_launches(&mut self, task: u64, handle: u64, count: u64) -> io::Result<()> {
        let at = self.latest - self.origin;
        let Some(queue) = self.queue(task, handle)? else { return Ok(()) };
        queue.launches = queue.launches.saturating_add(count);
        let (pid, launches) = (queue.track.pid, queue.launches);
        let name = format!("launches of queue {handle:#x} of task {task}");
        self.file.counter(pid, &name, at, &[("launches", launches)])
    }

    /// A queue has launched a kernel. The event follows the first launch, which may be from before the trace began.
    fn add_kernel(
        &mut self,
        task: u64,
        handle: u64,
        symbol: &str,
        count: u64,
        began_ns: u64,
    ) -> io::Result<()> {
        let at = began_ns.clamp(self.origin, self.latest) - self.origin;
        let Some(track) = self.queue(task, handle)?.map(|queue| queue.track) else { return Ok(()) };
        if symbol.is_empty() {
            // The user may not see it.
            return Ok(());
        }
        self.file.kernel(track, &readable(symbol), symbol, at, count)
    }

    /// The process of a task has so many bytes on the device.
    fn set_memory(&mut self, task: u64, pid: u32, device: u64, bytes: u64) -> io::Result<()> {
        let name = format!("memory of task {task} on {}", DeviceId(device));
        self.file.counter(pid, &name, self.latest - self.origin, &[("bytes", bytes)])
    }

    /// Ends the states of a task and its queues.
    fn end_states(&mut self, number: u64) -> io::Result<()> {
        let queues: Option<Vec<u64>> =
            self.tasks.get(&number).map(|task| task.queues.keys().copied().collect());
        for queue in queues.unwrap_or_default() {
            self.set_queue_busy(number, queue, false)?;
        }
        self.change(number, Change::HasWork(false))
    }

    /// Writes the counters of changed devices, after all events of one time.
    fn write_device_counters(&mut self) -> io::Result<()> {
        for device in std::mem::take(&mut self.changed_devices) {
            let count = |state| {
                let tasks = self
                    .tasks
                    .values()
                    .filter(|task| task.device == device && task.activity.state() == Some(state));
                tasks.count() as u64
            };
            let numbers = [
                ("running", count(WorkState::Running)),
                ("held", count(WorkState::Held)),
                ("stalled", count(WorkState::Stalled)),
            ];
            let name = format!("tasks on {}", DeviceId(device));
            self.file.counter(self.service, &name, self.latest - self.origin, &numbers)?;
        }
        Ok(())
    }
}

/// The text of a change of the grant, with its labels: `grant slurm-123 job=123`.
fn grant_text(name: &str, labels: &BTreeMap<String, String>) -> String {
    if name.is_empty() {
        return "no grant".to_owned();
    }
    let labels = labels.iter().map(|(name, value)| format!(" {name}={value}"));
    format!("grant {name}{}", labels.collect::<String>())
}

#[cfg(test)]
mod tests;

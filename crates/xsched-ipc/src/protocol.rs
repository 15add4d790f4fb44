//! The messages on the service's socket. One packet is one message in JSON, so that versions can be distinguished.
//!
//! ```text
//!   process ── Join ──────────────► service        tool ── Status, Set, Policy ... ──► service
//!           ◄─ Welcome + page fd ──                     ◄─ Status, Done, Refused ─────
//!           ── one byte ──────────►
//! ```
//!
//! A packet of one byte is a notification: the page has changed. No message contains the identity of its sender: the service
//! gets the peer's process and user from the kernel.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use xsched_core::{Deadline, HintError, Hints, Laxity, Nanos, Priority, Share};

use crate::environment::validate_name;
pub use crate::grant::{Grant, GrantStatus};
use crate::memory::MemoryLimit;

/// The version of the protocol. Incremented with every incompatible change.
pub const PROTOCOL: u32 = 4;

/// The hints that are requested for a task. Fields that are none are not changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HintRequest {
    /// The priority, -256 to 255.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// The share, in percent of the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<i64>,
    /// The deadline in microseconds from the arrival of the work; -1 removes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_us: Option<i64>,
    /// The laxity: microseconds, priority before, priority after; -1 microseconds removes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub laxity: Option<(i64, i64, i64)>,
}

impl HintRequest {
    /// This request, overridden by the fields that `other` has.
    #[must_use]
    pub fn with(self, other: &Self) -> Self {
        Self {
            priority: other.priority.or(self.priority),
            share: other.share.or(self.share),
            deadline_us: other.deadline_us.or(self.deadline_us),
            laxity: other.laxity.or(self.laxity),
        }
    }

    /// Applies the request to `hints`. Fails without a change if one value is out of range.
    pub fn applied_to(&self, mut hints: Hints) -> Result<Hints, HintError> {
        if let Some(priority) = self.priority {
            hints.priority = Priority::new(priority)?;
        }
        if let Some(percent) = self.share {
            hints.share = Share::new(percent)?;
        }
        match self.deadline_us {
            None => {}
            Some(-1) => hints.deadline = None,
            Some(us) => hints.deadline = Some(Deadline::from_micros(us)?),
        }
        match self.laxity {
            None => {}
            Some((-1, ..)) => hints.laxity = None,
            Some((us, lax, critical)) => hints.laxity = Some(Laxity::new(us, lax, critical)?),
        }
        Ok(hints)
    }

    /// The request that results in these hints, whatever the previous hints.
    #[must_use]
    pub fn from_hints(hints: Hints) -> Self {
        let micros = |span: Nanos| i64::try_from(span.0 / 1_000).unwrap_or(i64::MAX);
        Self {
            priority: Some(hints.priority.get().into()),
            share: Some(hints.share.percent().into()),
            deadline_us: Some(hints.deadline.map_or(-1, |deadline| micros(deadline.get()))),
            laxity: Some(hints.laxity.map_or((-1, 0, 0), |laxity| {
                (micros(laxity.span), laxity.lax.get().into(), laxity.critical.get().into())
            })),
        }
    }
}

/// The settings of a queue: preemption level and limit of work in flight. Fields that are none are not changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The preemption level, 1 to 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<i64>,
    /// The maximum number of commands in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<i64>,
    /// The number of commands from one marker to the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<i64>,
}

/// How many job keys a process can have.
pub const MAX_JOB_KEYS: usize = 64;

/// What identifies a job. Processes of one user with an equal key are members of one job: they are held and resumed together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Hash)]
#[serde(rename_all = "snake_case")]
pub enum JobKey {
    /// A name that the user or the cluster manager gave: 1 to 64 characters.
    Name(String),
    /// What the program's launcher set in the environment, for example `torchrun 10.0.0.1:29500`: 1 to 64 characters.
    Launcher(String),
    /// A communicator: a hash of the unique id that its ranks share, in 32 hexadecimal digits.
    Communicator(String),
}

impl JobKey {
    /// Fails with a message for the user if the key is not valid.
    pub fn validate(&self) -> Result<(), String> {
        match self {
            Self::Name(text) | Self::Launcher(text) => validate_name(text).map(drop),
            Self::Communicator(digits)
                if digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_hexdigit()) =>
            {
                Ok(())
            }
            Self::Communicator(_) => Err("a communicator has 32 hexadecimal digits".to_owned()),
        }
    }

    /// What status reports show as the job.
    #[must_use]
    pub fn label(&self) -> String {
        match self {
            Self::Name(text) | Self::Launcher(text) => text.clone(),
            Self::Communicator(digits) => format!("comm-{}", digits.get(..8).unwrap_or(digits)),
        }
    }
}

/// How many kernels a process reports in one request.
pub const MAX_KERNELS: usize = 64;

/// Launches of one kernel on one queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelLaunches {
    /// The queue's slot in the page.
    pub slot: usize,
    /// The name that the driver returned.
    pub name: String,
    /// The number of launches.
    pub count: u64,
    /// How long ago the first of them was.
    pub age_ns: u64,
}

/// The processes that a request applies to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// One process.
    Pid(u32),
    /// Every process with this name, given by its user or by its executable.
    Name(String),
}

/// For whom a connection acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Caller {
    /// A user, by the user id that the kernel reported. The groups of the calling process are not known.
    User(u32),
    /// No known user: may read what every user may read, and change nothing.
    Unknown,
}

/// A request to the service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", content = "args", rename_all = "snake_case")]
pub enum Request {
    /// Schedule the sending process. The reply is [`Reply::Welcome`] with the descriptor of its page.
    Join {
        /// [`PROTOCOL`] of the library in the process.
        protocol: u32,
        /// The version of the library in the process, for messages.
        version: String,
        /// The name that the user gave the process.
        name: Option<String>,
        /// The requested hints.
        hint_request: HintRequest,
        /// The token of a grant.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grant_token: Option<String>,
        /// What the processes of one `xsched run --memory` have in common: their limit of device memory counts for all of them
        /// together. 1 to 64 characters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memory_group: Option<Box<str>>,
    },
    /// Change the hints of the joined process that sends this.
    Hint(HintRequest),
    /// Give a queue of the joined process that sends this hints of its own.
    QueueHint {
        /// The queue's slot in the page.
        slot: usize,
        /// The requested hints.
        hint_request: HintRequest,
    },
    /// Set the jobs of the joined process that sends this, in place of the previous ones. At most [`MAX_JOB_KEYS`]. The service
    /// joins processes of the same user only.
    Jobs(Vec<JobKey>),
    /// The kernels that the joined process that sends this has launched, if a tool traces them. At most [`MAX_KERNELS`].
    Kernels(Vec<KernelLaunches>),
    /// Report the service, its tasks and its queues.
    Status,
    /// Change the hints of processes.
    Set {
        /// The processes.
        target: Target,
        /// The requested hints.
        hint_request: HintRequest,
    },
    /// Change the hints of the process that sends this, on whichever connection it joined. The reply is
    /// [`Reply::PreviousHints`]. A process in a container does not know its process id on the host.
    SetOwn(HintRequest),
    /// Give one queue hints of its own, which makes it a task of its own.
    SetQueue {
        /// The queue, by [`QueueStatus::handle`].
        queue: u64,
        /// The requested hints.
        hint_request: HintRequest,
    },
    /// Suspend processes.
    Suspend(Target),
    /// Resume suspended processes.
    Resume(Target),
    /// Move the device memory of processes to the host, and hold them. The reply is [`Reply::Parking`].
    Park(Target),
    /// Move the device memory of parked processes back. The reply is [`Reply::Parking`].
    Unpark(Target),
    /// Report how far the movement of memory of processes is. The reply is [`Reply::Parking`].
    Parking(Target),
    /// Change the policy and its parameters. Fields that are none are not changed. The reply is [`Reply::Policy`].
    Policy {
        /// The short or the long name of a policy.
        name: Option<String>,
        /// The time slice.
        timeslice_us: Option<i64>,
        /// The number of tasks that KEDF runs at the same time.
        k: Option<usize>,
    },
    /// Change the settings of one queue. The service forwards them to its process.
    Configure {
        /// The queue, by [`QueueStatus::handle`].
        queue: u64,
        /// The new settings.
        settings: Settings,
    },
    /// Set the process that owns the window with the input focus.
    Focus(Option<u32>),
    /// Send [`Reply::Events`] on this connection until it is closed.
    Trace,
    /// Also send [`EventKind::Kernel`] on this connection, which traces. Programs look up the names of their kernels meanwhile.
    TraceKernels,
    /// Report the metrics in the text format of Prometheus.
    Metrics,
    /// Do not exit for idleness while the sending process exists: it is about to execute a program that joins with its first
    /// queue.
    Expect,
    /// Check whether these hints would be granted to a program that the sending process is about to execute. The reply is
    /// [`Reply::Done`], or [`Reply::Refused`] with what would be granted instead, and why.
    Check {
        /// The path of the program.
        executable: String,
        /// The hints that it will request.
        hint_request: HintRequest,
        /// The token that it will send.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grant_token: Option<String>,
    },
    /// Handle the further requests on this connection with the rights of this caller alone. For programs that pass on the requests
    /// of other users, such as the HTTP interface. Administrators only; the connection never regains their rights.
    ActFor(Caller),
    /// Give rights to the processes of a job. Replaces the grant of the same name. Administrators only.
    Grant(Grant),
    /// End the grant of this name. Administrators only.
    Revoke(String),
    /// List the grants. The reply is [`Reply::Grants`]: all of them for administrators, their own for other users.
    Grants,
    /// Suspend or resume the processes of a grant, also those that join later. Administrators only.
    SuspendGrant {
        /// The name of the grant.
        name: String,
        /// Suspend them; else resume them.
        is_suspended: bool,
    },
    /// Shut the service down.
    Stop,
}

/// Where a limit of device memory is from. A process has at most one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemorySource {
    /// `xsched run --memory`: the process has the limit from its environment, and shares it with the processes of the same run.
    Run,
    /// A grant: the processes of the grant share it.
    Grant,
    /// A rule of the service's configuration, for one process.
    Rule,
}

/// A limit of device memory that the service gives to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryTerms {
    /// Where the limit is from. It replaces the previous one from there.
    pub source: MemorySource,
    /// The limit. None for [`MemorySource::Run`], or if a grant limits nothing any more.
    pub limit: Option<MemoryLimit>,
    /// The number of the process in its group, if the packet carries the descriptor of the memory that the group shares.
    pub member: u64,
}

/// A reply of the service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", content = "args", rename_all = "snake_case")]
pub enum Reply {
    /// The process is scheduled. The packet carries the descriptor of its page.
    Welcome {
        /// The version of the service, for messages.
        version: String,
        /// A message for the user if requested hints were clamped: what was requested, what was granted and why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// Sent to a joined process without a request, and before [`Reply::Welcome`]: a limit of its device memory. If the limit counts for
    /// several processes together, the packet carries the descriptor of the memory that they share.
    Memory(MemoryTerms),
    /// The request was carried out.
    Done,
    /// The hints of the process before the request. None: the process has not joined, and nothing was changed.
    PreviousHints(Option<HintRequest>),
    /// The request was refused and nothing was changed.
    Refused {
        /// A message for the user.
        why: String,
    },
    /// The service, its tasks and its queues. Long lists need several packets, all but the last with `more`.
    Status(Status),
    /// Sent to a joined process without a request: change the settings of one of its queues.
    Configure {
        /// The queue's slot in the page.
        slot: usize,
        /// The new settings.
        settings: Settings,
    },
    /// Where the device memory of processes is.
    Parking(Vec<ParkingStatus>),
    /// The current policy.
    Policy {
        /// Its short name, for example `HPF`.
        name: String,
        /// The time slice.
        timeslice_us: u64,
        /// The number of tasks that KEDF runs at the same time.
        k: usize,
    },
    /// The metrics in the text format of Prometheus. A long text needs several packets, all but the last with `more`.
    Metrics {
        /// The text, or its next complete lines.
        text: String,
        /// More lines follow in the next packet.
        more: bool,
    },
    /// The grants, by name. A long list needs several packets, all but the last with `more`.
    Grants {
        /// The grants, or the next of them.
        grants: Vec<GrantStatus>,
        /// More follow in the next packet.
        more: bool,
    },
    /// Events of the scheduler.
    Events {
        /// In the order of time.
        events: Vec<Event>,
        /// The number of events lost before these, because the connection was full.
        lost: u64,
    },
}

/// The service and all that it schedules, at one time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The version of the service.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// The short name of the policy.
    pub policy: String,
    /// The monotonic clock: rates are computed from two statuses.
    pub now_ns: u64,
    /// The number of decisions that the scheduler has made.
    pub rounds: u64,
    /// The tasks, by device.
    pub tasks: Vec<TaskStatus>,
    /// The queues, by process.
    pub queues: Vec<QueueStatus>,
    /// Devices that unscheduled processes keep busy: tasks there have ordinary time slices while no leader has work.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unscheduled: Vec<UnscheduledProcess>,
    /// More tasks and queues follow in the next packet.
    pub more: bool,
}

/// An unscheduled process that keeps a device busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnscheduledProcess {
    /// The device.
    pub device: u64,
    /// The process; of several the one that uses the device most.
    pub pid: u32,
}

/// The state of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// It has no work.
    #[default]
    Idle,
    /// It has work and may run.
    Running,
    /// It has work and is held.
    Held,
    /// It was suspended by request.
    Suspended,
    /// Its process does not run: it was stopped or frozen, or is in a debugger. Other tasks are not held for it.
    Stalled,
    /// The device memory of its process is in memory of the host, or is moving there or back.
    Parked,
}

impl TaskState {
    /// All states.
    pub const ALL: [Self; 6] =
        [Self::Idle, Self::Running, Self::Held, Self::Suspended, Self::Stalled, Self::Parked];

    /// Its name, as in the glossary.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Running => "running",
            Self::Held => "held",
            Self::Suspended => "suspended",
            Self::Stalled => "stalled",
            Self::Parked => "parked",
        }
    }
}

/// What limits a task, as far as the scheduler knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskKind {
    /// It waits for each small piece of its work before it launches the next.
    SyncBound,
    /// Its host limits it: the device is idle for most of the time from its first launch until it waits.
    HostBound,
    /// The device limits it.
    GpuBound,
}

impl TaskKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::SyncBound, Self::HostBound, Self::GpuBound];

    /// Its name, as in the glossary.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SyncBound => "sync-bound",
            Self::HostBound => "host-bound",
            Self::GpuBound => "GPU-bound",
        }
    }
}

/// One task. Counters never decrease.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskStatus {
    /// Its identifier.
    pub task: u64,
    /// Its process id.
    pub pid: u32,
    /// The user of its process.
    pub uid: u32,
    /// The name that its user gave it, else the name of its executable. Empty if the requesting user may not see it.
    pub name: String,
    /// Its command line. Empty if the requesting user may not see it.
    pub cmdline: String,
    /// Its device: the number in a [`xsched_core::DeviceId`].
    pub device: u64,
    /// The task is one queue with hints of its own.
    pub own: bool,
    /// Its priority.
    pub priority: i16,
    /// The share that was requested, in percent of the device.
    pub share: u8,
    /// Its deadline in microseconds, if it has one.
    pub deadline_us: Option<u64>,
    /// Its laxity in microseconds, if it has one.
    pub laxity_us: Option<u64>,
    /// Its state.
    pub state: TaskState,
    /// What limited its last work, if that is known. Observed only while several tasks use the device.
    #[serde(default)]
    pub kind: Option<TaskKind>,
    /// Why its launches are not deferred although it is host-bound. Empty if they are.
    #[serde(default)]
    pub not_deferred: Vec<String>,
    /// The number of its queues.
    pub queues: u32,
    /// The number of counted launches. Launches of a task alone on its device are not counted.
    pub launches: u64,
    /// The time during which it had work and was allowed to run.
    pub used_ns: u64,
    /// The estimated time during which it was busy while it was alone on its device, from samples; not part of `used_ns`. None if no
    /// sample was taken: it was never alone, or its device cannot be sampled.
    #[serde(default)]
    pub sampled_ns: Option<u64>,
    /// The time during which it had work and was held.
    pub held_ns: u64,
    /// The estimated time that the device was idle while it had work and was allowed to run, from samples.
    #[serde(default)]
    pub wasted_ns: u64,
    /// How often it was preempted while it had work.
    pub preemptions: u64,
    /// The 99th percentile of its waits for the device, if it ever waited.
    pub wait_p99_us: Option<u64>,
    /// The job that it is a member of, if it has one and the requesting user may see it.
    #[serde(default)]
    pub job: Option<String>,
    /// The grant of its process, if it has one and the requesting user may see it.
    #[serde(default)]
    pub grant: Option<String>,
    /// The labels of the grant.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The device memory that its process has allocated on its device. None if the process has allocated none there, or its platform
    /// does not count it.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// The most that `memory_bytes` was.
    #[serde(default)]
    pub memory_peak_bytes: Option<u64>,
    /// What the process may allocate on the device, together with the processes that have the same limit. None without a limit.
    #[serde(default)]
    pub memory_limit_bytes: Option<u64>,
    /// Whether the device memory of the process can be moved to the host, and where it is. None if it was not started with
    /// `--swap`.
    #[serde(default)]
    pub parking: Option<ParkingStatus>,
}

/// Where the device memory of a process is that was started with `--swap`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkingStatus {
    /// The process id.
    pub pid: u32,
    /// It is parked, or was ordered to park.
    pub is_parked: bool,
    /// It has carried out the last order, or has given it up.
    pub is_settled: bool,
    /// How much memory can be moved.
    pub movable_bytes: u64,
    /// How much of that is in memory of the host.
    pub moved_bytes: u64,
    /// How many threads of the process are held because its memory is not on the device.
    #[serde(default)]
    pub held_threads: u32,
    /// The kinds of memory that stay on the device.
    #[serde(default)]
    pub stays: Vec<String>,
    /// Why it has not carried out the last order.
    #[serde(default)]
    pub failure: Option<String>,
}

/// One scheduled queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStatus {
    /// Its identifier in this service.
    pub handle: u64,
    /// Its task.
    pub task: u64,
    /// Its process id.
    pub pid: u32,
    /// Its device.
    pub device: u64,
    /// Its preemption level.
    pub level: u8,
    /// The maximum number of commands in flight; 0 if the in-flight window is measured in time.
    pub threshold: u32,
    /// The number of commands from one marker to the next; 0 if the in-flight window is measured in time.
    pub batch_size: u32,
    /// It has work.
    pub ready: bool,
    /// It is held or suspended.
    pub suspended: bool,
}

/// An event of the scheduler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The time, on the monotonic clock.
    pub at_ns: u64,
    /// The task; 0 for an event of the scheduler itself.
    pub task: u64,
    /// The process id of the task.
    pub pid: u32,
    /// The device of the task.
    pub device: u64,
    /// The kind of event.
    pub kind: EventKind,
}

/// The kinds of events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The task was created; the name of its process.
    TaskAdded(String),
    /// The task was removed.
    TaskRemoved,
    /// The task has become busy.
    Busy,
    /// The task has become idle.
    Idle,
    /// The task may run.
    Running,
    /// The task is held.
    Held,
    /// The process of the task does not run (true), or runs again.
    Stalled(bool),
    /// A queue of the task, by [`QueueStatus::handle`], has become busy.
    QueueBusy(u64),
    /// A queue of the task has become idle.
    QueueIdle(u64),
    /// A queue of the task has launched. Launches of a task alone on its device are not counted.
    Launched {
        /// The queue, by [`QueueStatus::handle`].
        queue: u64,
        /// The number of launches since the last such event of this queue.
        count: u64,
    },
    /// A queue of the task has launched a kernel, as far as the driver knows its name. Follows the launches by up to a second.
    Kernel {
        /// The queue, by [`QueueStatus::handle`].
        queue: u64,
        /// The name; empty if the receiver may not see it.
        name: String,
        /// The number of launches.
        count: u64,
        /// The time of the first of them.
        began_ns: u64,
    },
    /// The scheduler has made a decision; its duration in nanoseconds.
    Decision(u64),
    /// The process of the task has so many bytes on the device of the task.
    Memory(u64),
    /// The policy was changed to this one.
    PolicyChanged(String),
    /// The task is a member of this job from now on; empty if of none.
    JobChanged(String),
    /// The process of the task has this grant from now on.
    GrantChanged {
        /// The name of the grant; empty if it has none.
        name: String,
        /// The labels of the grant.
        labels: BTreeMap<String, String>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_decoded_as_encoded() {
        let hint_request =
            HintRequest { priority: Some(-3), laxity: Some((5, 1, 2)), ..HintRequest::default() };
        for request in [
            Request::Join {
                protocol: PROTOCOL,
                version: "1".into(),
                name: None,
                hint_request: hint_request.clone(),
                grant_token: None,
                memory_group: None,
            },
            Request::Grant(Grant { name: "a".into(), ..Grant::default() }),
            Request::Revoke("a".into()),
            Request::Hint(hint_request.clone()),
            Request::QueueHint { slot: 3, hint_request: hint_request.clone() },
            Request::Set { target: Target::Name("a".into()), hint_request },
            Request::SetOwn(HintRequest::default()),
            Request::Suspend(Target::Pid(7)),
            Request::Policy { name: Some("fair".into()), timeslice_us: None, k: None },
            Request::Focus(None),
            Request::ActFor(Caller::User(1000)),
            Request::ActFor(Caller::Unknown),
            Request::Jobs(vec![JobKey::Name("a".into()), JobKey::Communicator("0".repeat(32))]),
            Request::Kernels(vec![KernelLaunches { slot: 1, name: "gemm".into(), count: 2, age_ns: 3 }]),
            Request::TraceKernels,
            Request::Status,
        ] {
            let text = serde_json::to_string(&request).unwrap();
            assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request, "{text}");
        }
        let status = Reply::Status(Status { tasks: vec![TaskStatus::default()], ..Status::default() });
        let text = serde_json::to_string(&status).unwrap();
        assert_eq!(serde_json::from_str::<Reply>(&text).unwrap(), status, "{text}");
    }

    #[test]
    fn invalid_job_keys_are_rejected() {
        let launcher = |text: &str| JobKey::Launcher(text.to_owned()).validate();
        assert!(launcher("torchrun 1").is_ok() && launcher("").is_err() && launcher("two\nlines").is_err());
        let communicator = |digits: &str| JobKey::Communicator(digits.to_owned()).validate();
        assert!(communicator(&"aF".repeat(16)).is_ok());
        assert!(communicator(&"x".repeat(32)).is_err() && communicator("12").is_err());
    }

    #[test]
    fn request_with_a_value_out_of_range_changes_nothing() {
        let hint_request = HintRequest { priority: Some(7), share: Some(900), ..HintRequest::default() };
        let error = hint_request.applied_to(Hints::default()).unwrap_err();
        assert_eq!(error.field, "share");
        let back = HintRequest { deadline_us: Some(-1), ..HintRequest::default() };
        let hints = Hints { deadline: Some(Deadline::from_micros(5).unwrap()), ..Hints::default() };
        assert_eq!(back.applied_to(hints).unwrap().deadline, None);
    }
}

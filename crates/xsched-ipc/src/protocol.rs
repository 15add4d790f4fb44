//! What is said over the socket. One packet, one message; JSON, so that versions can tell each other apart.
//!
//! ```text
//!   program ── Join ──────────────► service        tool ── Status, Set, Policy ... ──► service
//!           ◄─ Welcome + page fd ──                     ◄─ Status, Done, Refused ─────
//!           ── (one byte: look!) ──►
//! ```
//!
//! A packet of one byte is a ring of the doorbell. Who is asking is never part of a message: the service takes the
//! peer's process and user from the kernel.

use serde::{Deserialize, Serialize};
use xsched_core::{Deadline, HintError, Hints, Laxity, Nanos, Priority, Share};

/// Grows when old and new can no longer understand each other.
pub const PROTOCOL: u32 = 2;

/// What a task would like, or what is to be changed: only what is given counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HintRequest {
    /// -256 to 255.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// Percent of the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<i64>,
    /// Microseconds from becoming ready; -1 takes it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_us: Option<i64>,
    /// Microseconds, priority before, priority after; a span of -1 takes it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub laxity: Option<(i64, i64, i64)>,
}

impl HintRequest {
    /// These, with what `other` says in their place.
    #[must_use]
    pub fn with(self, other: &Self) -> Self {
        Self {
            priority: other.priority.or(self.priority),
            share: other.share.or(self.share),
            deadline_us: other.deadline_us.or(self.deadline_us),
            laxity: other.laxity.or(self.laxity),
        }
    }

    /// What becomes of `hints` with these hint_request. Refuses all if one is out of range.
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

    /// The hint_request that lead to these hints, whatever went before.
    #[must_use]
    pub fn for_all_of(hints: Hints) -> Self {
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

/// How a queue is preempted and how much of it may be in flight: only what is given counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// 1 to 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<i64>,
    /// Commands in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<i64>,
    /// Commands from one marker to the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<i64>,
}

/// Whom a command means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// One process.
    Pid(u32),
    /// Every program that was given this name, or whose executable has it.
    Name(String),
}

/// What is asked of the service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", content = "with", rename_all = "snake_case")]
pub enum Request {
    /// A program wants to be scheduled; answered with [`Reply::Welcome`] and the descriptor of its page.
    Join {
        /// [`PROTOCOL`] of the program's library.
        protocol: u32,
        /// Version of the program's library, for people.
        version: String,
        /// What the program was named by its user, if it was.
        name: Option<String>,
        /// What it would like.
        hint_request: HintRequest,
    },
    /// A joined program changes its own hint_request.
    Hint(HintRequest),
    /// A joined program gives one of its queues hint_request of its own.
    QueueHint {
        /// The queue's slot in the page.
        slot: usize,
        /// What it would like.
        hint_request: HintRequest,
    },
    /// Everything there is to see.
    Status,
    /// Changes somebody's hint_request.
    Set {
        /// Whose.
        target: Target,
        /// To what.
        hint_request: HintRequest,
    },
    /// Changes the hint_request of the process that asks, on whichever connection it joined; answered with [`Reply::PreviousHints`]. A
    /// process in a container does not know the number the service knows it by.
    SetOwn(HintRequest),
    /// Gives one queue hint_request of its own, and with them a task of its own.
    SetQueue {
        /// The queue, by [`QueueStatus::handle`].
        queue: u64,
        /// To what.
        hint_request: HintRequest,
    },
    /// Holds all of a program's launches until it is resumed.
    Suspend(Target),
    /// Takes that back.
    Resume(Target),
    /// Changes the policy and its settings; what is not given stays. Nothing given: just tells.
    Policy {
        /// Either name of a policy.
        name: Option<String>,
        /// Length of a turn.
        timeslice_us: Option<i64>,
        /// Tasks at once under KEDF.
        k: Option<usize>,
    },
    /// Changes how one queue is preempted and how much of it is in flight; handed on to its program.
    Configure {
        /// The queue, by [`QueueStatus::handle`].
        queue: u64,
        /// To what.
        settings: Settings,
    },
    /// Says which process owns the window that has the focus.
    Focus(Option<u32>),
    /// From now on this connection is sent [`Reply::Events`] until it is closed.
    Trace,
    /// The metrics as Prometheus reads them.
    Metrics,
    /// The asking process is about to become a program that joins with its first queue, which may take a while: the
    /// service is needed for as long as that process lives.
    Expect,
    /// Ends the service: a successor is about to take its place, or nobody needs it any more.
    Stop,
}

/// What the service answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", content = "with", rename_all = "snake_case")]
pub enum Reply {
    /// The program is scheduled; its page comes with this packet.
    Welcome {
        /// Version of the service, for people.
        version: String,
        /// What of its hint_request the program was not given, and why, in words for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    /// It was done.
    Done,
    /// It was done; this is what the program wished for before. Nothing: it has not joined, and nothing was changed.
    PreviousHints(Option<HintRequest>),
    /// It was not done, and why, in words for people.
    Refused {
        /// The reason.
        why: String,
    },
    /// Everything there is to see. Long lists come in several packets, all but the last with `more`.
    Status(Status),
    /// To a joined program, unasked: somebody changed the settings of one of its queues.
    Configure {
        /// The queue's slot in the page.
        slot: usize,
        /// To what.
        settings: Settings,
    },
    /// The policy at work.
    Policy {
        /// Short name: `HPF`.
        name: String,
        /// Length of a turn.
        timeslice_us: u64,
        /// Tasks at once under KEDF.
        k: usize,
    },
    /// The metrics as Prometheus reads them. A long text comes in several packets, all but the last with `more`.
    Metrics {
        /// The text, or the next whole lines of it.
        text: String,
        /// More lines follow in the next packet.
        more: bool,
    },
    /// What has happened.
    Events {
        /// In the order it happened.
        events: Vec<Event>,
        /// How many were lost because nobody read them in time.
        lost: u64,
    },
}

/// The service and all that it schedules, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the service.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Short name of the policy.
    pub policy: String,
    /// Monotonic clock at this moment: rates come from the difference of two.
    pub now_ns: u64,
    /// Rounds the scheduler has made.
    pub rounds: u64,
    /// The tasks, by device.
    pub tasks: Vec<TaskStatus>,
    /// The queues, by program.
    pub queues: Vec<QueueStatus>,
    /// More tasks and queues follow in the next packet.
    pub more: bool,
}

/// What a task is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Has no work.
    #[default]
    Idle,
    /// Has work and may run.
    Running,
    /// Has work and is held.
    Held,
    /// A person suspended it.
    Suspended,
}

/// One task, for people and programs to look at. Counters only grow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskStatus {
    /// Its number.
    pub task: u64,
    /// Its process.
    pub pid: u32,
    /// The user its process belongs to.
    pub uid: u32,
    /// What its user named it, else its executable. Empty if the asker may not know.
    pub name: String,
    /// Its command line. Empty if the asker may not know.
    pub cmdline: String,
    /// Its device, as [`xsched_core::DeviceId`] numbers it.
    pub device: u64,
    /// Made for one queue that has hint_request of its own.
    pub own: bool,
    /// Importance.
    pub priority: i16,
    /// Percent of the device.
    pub share: u8,
    /// Microseconds, if it has a deadline.
    pub deadline_us: Option<u64>,
    /// Microseconds, if it has a laxity.
    pub laxity_us: Option<u64>,
    /// What it is doing.
    pub state: TaskState,
    /// Queues under control.
    pub queues: u32,
    /// Launches that were counted. Alone on its device a task is not counted.
    pub launches: u64,
    /// Device time it was allowed to use while it had work.
    pub used_ns: u64,
    /// Time it had work and was held.
    pub held_ns: u64,
    /// Times it was stopped while it had work.
    pub preemptions: u64,
    /// 99th percentile of the waits for the device, if it ever waited.
    pub wait_p99_us: Option<u64>,
}

/// One queue under control.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStatus {
    /// Its number in this service.
    pub handle: u64,
    /// Its task.
    pub task: u64,
    /// Its process.
    pub pid: u32,
    /// Its device.
    pub device: u64,
    /// The level it is preempted at.
    pub level: u8,
    /// Commands in flight at most; 0 while the window is measured in time.
    pub threshold: u32,
    /// Commands from one marker to the next; 0 while the window is measured in time.
    pub batch_size: u32,
    /// Has work.
    pub ready: bool,
    /// Held.
    pub suspended: bool,
}

/// Something that happened in the scheduler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, on the monotonic clock.
    pub at_ns: u64,
    /// To which task; 0 for the scheduler itself.
    pub task: u64,
    /// Its process.
    pub pid: u32,
    /// Its device.
    pub device: u64,
    /// What.
    pub kind: EventKind,
}

/// What can happen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A task appeared, with the name of its program.
    TaskAdded(String),
    /// A task is gone.
    TaskRemoved,
    /// It has work.
    Busy,
    /// It has no work any more.
    Idle,
    /// It may run.
    Running,
    /// It is held.
    Held,
    /// One of its queues, by [`QueueStatus::handle`], has work.
    QueueBusy(u64),
    /// One of its queues has no work any more.
    QueueIdle(u64),
    /// One of its queues was seen to have launched. Alone on its device a task is not counted.
    Launched {
        /// The queue, by [`QueueStatus::handle`].
        queue: u64,
        /// Launches since the last such event of this queue.
        count: u64,
    },
    /// The scheduler decided; it took so many nanoseconds.
    Decision(u64),
    /// The policy was changed.
    PolicyChanged(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_journey() {
        let hint_request =
            HintRequest { priority: Some(-3), laxity: Some((5, 1, 2)), ..HintRequest::default() };
        for request in [
            Request::Join {
                protocol: PROTOCOL,
                version: "1".into(),
                name: None,
                hint_request: hint_request.clone(),
            },
            Request::Hint(hint_request.clone()),
            Request::QueueHint { slot: 3, hint_request: hint_request.clone() },
            Request::Set { target: Target::Name("a".into()), hint_request },
            Request::SetOwn(HintRequest::default()),
            Request::Suspend(Target::Pid(7)),
            Request::Policy { name: Some("fair".into()), timeslice_us: None, k: None },
            Request::Focus(None),
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
    fn wishes_out_of_range_change_nothing() {
        let hint_request = HintRequest { priority: Some(7), share: Some(900), ..HintRequest::default() };
        let error = hint_request.applied_to(Hints::default()).unwrap_err();
        assert_eq!(error.field, "share");
        let back = HintRequest { deadline_us: Some(-1), ..HintRequest::default() };
        let hints = Hints { deadline: Some(Deadline::from_micros(5).unwrap()), ..Hints::default() };
        assert_eq!(back.applied_to(hints).unwrap().deadline, None);
    }
}

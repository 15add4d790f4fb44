//! The timeline of the last minute: which task ran when, from the scheduler's events.
//!
//! ```text
//!   recorded   ├──────────────────────┤            ├─────────
//!   task 1     ███ running ███▒▒held▒▒   no events   ████████
//!   samples    │   0.62    │   0.60   │    0.58     │  0.61
//! ```
//!
//! Events are recorded within a budget ([`feed`](super::feed)). Where none are recorded, the samples of the status still say how much
//! of the time each task had the device.
//!
//! Spans, recorded periods and samples have one sequence number, so that a page requests only what it has not received.

use std::collections::{BTreeMap, HashMap, VecDeque};

use serde_json::{Value, json};
use xsched_ipc::protocol::{Event, EventKind, Status, TaskState};

use super::waits::Waits;
use crate::rates::Rates;
use crate::trace::activity::{Activity, Change, WorkState};

/// How far back the timeline goes.
const HISTORY_NS: u64 = 60_000_000_000;
/// The most spans that are kept: bounds the memory and the size of a response.
const MAX_SPANS: usize = 40_000;

/// A time during which a task had one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    sequence: u64,
    task: u64,
    state: WorkState,
    from_ns: u64,
    to_ns: u64,
    /// The task ran, and was held before its work was complete.
    preempted: bool,
}

/// A time during which events were recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Period {
    sequence: u64,
    from_ns: u64,
    to_ns: u64,
}

/// The utilization of tasks between two statuses.
struct Sample {
    sequence: u64,
    from_ns: u64,
    to_ns: u64,
    utilization: Vec<(u64, f64)>,
}

struct Task {
    activity: Activity,
    waits: Waits,
}

/// What happened in the last minute.
#[derive(Default)]
pub(super) struct Timeline {
    tasks: BTreeMap<u64, Task>,
    spans: VecDeque<Span>,
    periods: VecDeque<Period>,
    samples: VecDeque<Sample>,
    /// When the present recording began.
    recording_since: Option<u64>,
    /// The latest time so far: an event never counts as earlier than its predecessor.
    latest: u64,
    sequence: u64,
    lost: u64,
}

impl Timeline {
    /// Begins to record. The states at the beginning are those of the status, which contains all earlier events.
    pub(super) fn begin(&mut self, status: &Status) {
        self.end(status.now_ns);
        self.latest = status.now_ns;
        self.recording_since = Some(status.now_ns);
        // Waits outlast a pause of the recording, states do not.
        self.tasks.retain(|number, _| status.tasks.iter().any(|task| task.task == *number));
        for task in &status.tasks {
            let known = self.task(task.task);
            known.activity = Activity {
                has_work: task.state != TaskState::Idle,
                held: matches!(task.state, TaskState::Held | TaskState::Suspended | TaskState::Parked),
                stalled: task.state == TaskState::Stalled,
                since: status.now_ns,
            };
        }
        for queue in status.queues.iter().filter(|queue| queue.suspended) {
            // A task without work can be held as well.
            if let Some(task) = self.tasks.get_mut(&queue.task) {
                task.activity.held = true;
            }
        }
    }

    /// Forgets everything: the service is another one, with other task numbers. Sequence numbers continue.
    pub(super) fn clear(&mut self) {
        *self = Self { sequence: self.sequence, ..Self::default() };
    }

    /// Adds an event of the recording.
    pub(super) fn event(&mut self, event: &Event) {
        let Some(since) = self.recording_since else { return };
        if event.at_ns < since {
            return;
        }
        self.latest = self.latest.max(event.at_ns);
        match &event.kind {
            EventKind::TaskAdded(_) => {
                self.task(event.task);
            }
            EventKind::TaskRemoved => {
                self.change(event.task, Change::HasWork(false));
                self.tasks.remove(&event.task);
            }
            EventKind::Busy => self.change(event.task, Change::HasWork(true)),
            EventKind::Idle => self.change(event.task, Change::HasWork(false)),
            EventKind::Running => self.change(event.task, Change::Held(false)),
            EventKind::Held => self.change(event.task, Change::Held(true)),
            EventKind::Stalled(stalled) => self.change(event.task, Change::Stalled(*stalled)),
            _ => {}
        }
    }

    /// Events are missing: the states of all tasks are unknown. Returns whether the recording has to begin again.
    pub(super) fn lost(&mut self, events: u64) -> bool {
        self.lost = self.lost.saturating_add(events);
        events > 0
    }

    /// Ends the recording at this time.
    pub(super) fn end(&mut self, now_ns: u64) {
        let Some(from_ns) = self.recording_since else { return };
        self.latest = self.latest.max(now_ns);
        let tasks: Vec<u64> = self.tasks.keys().copied().collect();
        for task in tasks {
            self.change(task, Change::HasWork(false));
        }
        self.recording_since = None;
        let (sequence, to_ns) = (self.next_sequence(), self.latest);
        self.periods.push_back(Period { sequence, from_ns, to_ns });
    }

    /// Adds the utilization between two statuses, and removes what is older than a minute.
    pub(super) fn sample(&mut self, from_ns: u64, to_ns: u64, rates: &HashMap<u64, Rates>) {
        let sequence = self.next_sequence();
        let utilization = rates.iter().map(|(task, rates)| (*task, rates.utilization)).collect();
        self.samples.push_back(Sample { sequence, from_ns, to_ns, utilization });
        let oldest = to_ns.saturating_sub(HISTORY_NS);
        while self.spans.front().is_some_and(|span| span.to_ns < oldest) {
            self.spans.pop_front();
        }
        while self.periods.front().is_some_and(|period| period.to_ns < oldest) {
            self.periods.pop_front();
        }
        while self.samples.front().is_some_and(|sample| sample.to_ns < oldest) {
            self.samples.pop_front();
        }
    }

    /// What was added after this sequence number, and what has not ended.
    pub(super) fn to_json(&self, after: u64) -> Value {
        let us = |ns: u64| ns / 1_000;
        let spans: Vec<_> = self
            .spans
            .iter()
            .skip(self.spans.partition_point(|span| span.sequence <= after))
            .map(|span| {
                json!([
                    span.task,
                    code(span.state),
                    us(span.from_ns),
                    us(span.to_ns),
                    u8::from(span.preempted)
                ])
            })
            .collect();
        let open: Vec<_> = self
            .tasks
            .iter()
            .filter(|_| self.recording_since.is_some())
            .filter_map(|(task, known)| {
                Some(json!([task, code(known.activity.state()?), us(known.activity.since)]))
            })
            .collect();
        let periods = self.periods.iter().filter(|period| period.sequence > after);
        let samples = self.samples.iter().filter(|sample| sample.sequence > after);
        json!({
            "sequence": self.sequence,
            "spans": spans,
            "open": open,
            "recorded": periods.map(|period| [us(period.from_ns), us(period.to_ns)]).collect::<Vec<_>>(),
            "recording_since": self.recording_since.map(us),
            "recorded_to": us(self.latest),
            "samples": samples
                .map(|sample| json!([us(sample.from_ns), us(sample.to_ns), sample.utilization]))
                .collect::<Vec<_>>(),
            "lost": self.lost,
        })
    }

    /// The recent waits of every task that has waited.
    pub(super) fn waits_to_json(&self) -> Value {
        let waits =
            self.tasks.iter().filter_map(|(task, known)| Some((task.to_string(), known.waits.to_json()?)));
        Value::Object(waits.collect())
    }

    fn task(&mut self, number: u64) -> &mut Task {
        let now = self.latest;
        self.tasks
            .entry(number)
            .or_insert_with(|| Task { activity: Activity::idle(now), waits: Waits::default() })
    }

    fn change(&mut self, number: u64, change: Change) {
        let now = self.latest;
        let task = self.task(number);
        let ended = task.activity.apply(change, now);
        let after = task.activity.state();
        let Some((state, from_ns)) = ended else { return };
        if (state, after) == (WorkState::Held, Some(WorkState::Running)) {
            task.waits.push(now - from_ns);
        }
        let preempted = (state, after) == (WorkState::Running, Some(WorkState::Held));
        let sequence = self.next_sequence();
        if self.spans.len() == MAX_SPANS {
            self.spans.pop_front();
        }
        self.spans.push_back(Span { sequence, task: number, state, from_ns, to_ns: now, preempted });
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }
}

/// The number of a state in a response.
fn code(state: WorkState) -> u8 {
    match state {
        WorkState::Running => 0,
        WorkState::Held => 1,
        WorkState::Stalled => 2,
    }
}

#[cfg(test)]
mod tests {
    use xsched_ipc::protocol::{QueueStatus, TaskStatus};

    use super::*;

    const US: u64 = 1_000;

    fn status(now_us: u64, tasks: &[(u64, TaskState)]) -> Status {
        let task = |(task, state): &(u64, TaskState)| TaskStatus {
            task: *task,
            state: *state,
            ..TaskStatus::default()
        };
        Status { now_ns: now_us * US, tasks: tasks.iter().map(task).collect(), ..Status::default() }
    }

    fn event(at_us: u64, task: u64, kind: EventKind) -> Event {
        Event { at_ns: at_us * US, task, pid: 1, device: 1, kind }
    }

    #[test]
    fn events_become_spans_waits_and_preemptions() {
        let mut timeline = Timeline::default();
        timeline.begin(&status(100, &[(1, TaskState::Running), (2, TaskState::Idle)]));
        timeline.event(&event(50, 1, EventKind::Idle));
        timeline.event(&event(110, 2, EventKind::Busy));
        timeline.event(&event(110, 1, EventKind::Held));
        timeline.event(&event(130, 2, EventKind::Idle));
        timeline.event(&event(130, 1, EventKind::Running));
        timeline.event(&event(131, 0, EventKind::Decision(7)));
        let json = timeline.to_json(0);
        // Task 1 was preempted after 10 us, waited for 20 us and runs; the event from before the status changes nothing.
        assert_eq!(json["spans"], json!([[1, 0, 100, 110, 1], [2, 0, 110, 130, 0], [1, 1, 110, 130, 0]]));
        assert_eq!(json["open"], json!([[1, 0, 130]]));
        assert_eq!(timeline.waits_to_json()["1"]["p50_us"], 20);
        assert_eq!(timeline.waits_to_json().get("2"), None);
    }

    #[test]
    fn page_receives_each_span_once() {
        let mut timeline = Timeline::default();
        timeline.begin(&status(0, &[(1, TaskState::Running)]));
        timeline.event(&event(10, 1, EventKind::Idle));
        let first = timeline.to_json(0);
        assert_eq!(first["spans"].as_array().unwrap().len(), 1);
        let after = first["sequence"].as_u64().unwrap();
        timeline.event(&event(20, 1, EventKind::Busy));
        assert_eq!(timeline.to_json(after)["spans"], json!([]));
        assert_eq!(timeline.to_json(after)["open"], json!([[1, 0, 20]]));
        timeline.event(&event(30, 1, EventKind::Idle));
        assert_eq!(timeline.to_json(after)["spans"], json!([[1, 0, 20, 30, 0]]));
    }

    #[test]
    fn time_without_a_recording_has_no_spans_and_no_waits() {
        let mut timeline = Timeline::default();
        timeline.begin(&status(0, &[(1, TaskState::Held)]));
        timeline.end(10 * US);
        timeline.event(&event(15, 1, EventKind::Running));
        timeline.begin(&status(20, &[(1, TaskState::Running)]));
        timeline.end(30 * US);
        let json = timeline.to_json(0);
        assert_eq!(json["spans"], json!([[1, 1, 0, 10, 0], [1, 0, 20, 30, 0]]));
        assert_eq!(json["recorded"], json!([[0, 10], [20, 30]]));
        assert_eq!(json["recording_since"], Value::Null);
        assert_eq!(timeline.waits_to_json(), json!({}), "the end of a recording is not the end of a wait");
    }

    #[test]
    fn task_without_work_can_be_held() {
        let mut timeline = Timeline::default();
        let queue = QueueStatus { task: 1, suspended: true, ..QueueStatus::default() };
        timeline.begin(&Status { queues: vec![queue], ..status(0, &[(1, TaskState::Idle)]) });
        timeline.event(&event(10, 1, EventKind::Busy));
        timeline.event(&event(15, 1, EventKind::Running));
        assert_eq!(timeline.to_json(0)["spans"], json!([[1, 1, 10, 15, 0]]));
    }

    #[test]
    fn one_minute_and_a_bounded_number_of_spans_are_kept() {
        let mut timeline = Timeline::default();
        timeline.begin(&status(0, &[(1, TaskState::Idle)]));
        for number in 0..50_000 {
            timeline.event(&event(2 * number, 1, EventKind::Busy));
            timeline.event(&event(2 * number + 1, 1, EventKind::Idle));
        }
        assert_eq!(timeline.spans.len(), MAX_SPANS);
        timeline.end(100_000 * US);
        timeline.sample(
            0,
            100_000 * US,
            &HashMap::from([(1, Rates { utilization: 0.5, ..Rates::default() })]),
        );
        assert_eq!(timeline.to_json(0)["samples"], json!([[0, 100_000, [[1, 0.5]]]]));
        timeline.sample(2 * HISTORY_NS, 3 * HISTORY_NS, &HashMap::new());
        assert_eq!((timeline.spans.len(), timeline.periods.len(), timeline.samples.len()), (0, 0, 1));
    }
}

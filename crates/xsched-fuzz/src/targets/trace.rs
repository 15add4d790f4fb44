//! The conversion of events to a trace: every sequence of events makes valid JSON.

use xsched_ipc::protocol::{Event, EventKind, QueueStatus, Status, TaskState, TaskStatus};

use super::Run;
use super::steps::Steps;

#[allow(dead_code, unused_imports, reason = "only the converter runs here")]
#[path = "../../../xsched/src/trace/mod.rs"]
mod converter;

use converter::Converter;

pub(super) fn start() -> Run {
    Box::new(|input| {
        let mut steps = Steps(input);
        let status = status(&mut steps);
        let mut converter = Converter::new(Vec::new(), &status).expect("writing to memory");
        while let Some(kind) = steps.next() {
            if kind == 0xff {
                converter.lost(steps.number()).expect("writing to memory");
            } else {
                let event = event(kind, &mut steps);
                converter.event(&event).expect("writing to memory");
            }
        }
        let (events, _) = converter.counts();
        let file = converter.finish(steps.number()).expect("writing to memory");
        let text = std::str::from_utf8(&file).expect("a trace is text");
        serde_json::from_str::<serde::de::IgnoredAny>(text).expect("a trace is JSON");
        assert!(events == 0 || text.lines().count() > 1);
    })
}

fn status(steps: &mut Steps<'_>) -> Status {
    let task = |steps: &mut Steps<'_>| TaskStatus {
        task: steps.number(),
        pid: steps.byte().into(),
        device: steps.number(),
        name: steps.text(),
        state: [TaskState::Idle, TaskState::Running, TaskState::Held, TaskState::Suspended][steps.below(4)],
        ..TaskStatus::default()
    };
    let queue = |steps: &mut Steps<'_>| QueueStatus {
        handle: steps.number(),
        task: steps.number(),
        ready: steps.flag(),
        suspended: steps.flag(),
        ..QueueStatus::default()
    };
    Status {
        version: steps.text(),
        pid: steps.byte().into(),
        now_ns: steps.number(),
        tasks: (0..steps.below(4)).map(|_| task(steps)).collect(),
        queues: (0..steps.below(4)).map(|_| queue(steps)).collect(),
        ..Status::default()
    }
}

fn event(kind: u8, steps: &mut Steps<'_>) -> Event {
    let kind = match kind % 14 {
        0 => EventKind::TaskAdded(steps.text()),
        1 => EventKind::TaskRemoved,
        2 => EventKind::Busy,
        3 => EventKind::Idle,
        4 => EventKind::Running,
        5 => EventKind::Held,
        6 => EventKind::QueueBusy(steps.number()),
        7 => EventKind::QueueIdle(steps.number()),
        8 => EventKind::Launched { queue: steps.number(), count: steps.number() },
        9 => EventKind::Decision(steps.number()),
        10 => EventKind::PolicyChanged(steps.text()),
        11 => EventKind::JobChanged(steps.text()),
        12 => EventKind::Kernel {
            queue: steps.number(),
            name: steps.text(),
            count: steps.number(),
            began_ns: steps.number(),
        },
        _ => EventKind::GrantChanged { name: steps.text(), labels: [(steps.text(), steps.text())].into() },
    };
    Event {
        at_ns: steps.number(),
        task: steps.number(),
        pid: steps.byte().into(),
        device: steps.number(),
        kind,
    }
}

//! Synthetic events, and the slices and counters expected from them.

use serde_json::Value;
use xsched_ipc::protocol::{QueueStatus, TaskStatus};

use super::*;

#[path = "../../../tests/common/trace_format.rs"]
mod trace_format;

const DEVICE: u64 = 0x2_0000_0030;

fn event(at_ns: u64, task: u64, what: EventKind) -> Event {
    Event { at_ns, task, pid: 100 + u32::try_from(task).unwrap(), device: DEVICE, kind: what }
}

fn status(tasks: &[(u64, TaskState)]) -> Status {
    let tasks = tasks.iter().map(|(task, state)| TaskStatus {
        task: *task,
        pid: 100 + u32::try_from(*task).unwrap(),
        name: format!("program {task}"),
        device: DEVICE,
        state: *state,
        ..TaskStatus::default()
    });
    Status { pid: 7, now_ns: 1_000, tasks: tasks.collect(), ..Status::default() }
}

/// The whole trace of these events, recorded from 1000 to 9000.
fn trace(status: &Status, events: &[Event]) -> Vec<Value> {
    let mut converter = Converter::new(Vec::new(), status).unwrap();
    for event in events {
        converter.event(event).unwrap();
    }
    read(converter)
}

fn read(converter: Converter<Vec<u8>>) -> Vec<Value> {
    let text = String::from_utf8(converter.finish(9_000).unwrap()).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let events = value["traceEvents"].as_array().unwrap().clone();
    trace_format::assert_valid(&events);
    events
}

/// Slices of one task: what, begin and end in nanoseconds of the trace.
fn slices(trace: &[Value], task: u64) -> Vec<(String, u64, u64)> {
    let here = trace.iter().filter(|event| event["ph"] == "X" && event["tid"] == task);
    here.map(|slice| {
        let begin = ns(&slice["ts"]);
        (slice["name"].as_str().unwrap().to_owned(), begin, begin + ns(&slice["dur"]))
    })
    .collect()
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small positive numbers")]
fn ns(micros: &Value) -> u64 {
    (micros.as_f64().unwrap() * 1000.0).round() as u64
}

fn slice(what: &str, begin: u64, end: u64) -> (String, u64, u64) {
    (what.to_owned(), begin, end)
}

fn named<'a>(trace: &'a [Value], name: &str) -> Vec<&'a Value> {
    trace.iter().filter(|event| event["name"] == name).collect()
}

#[test]
fn task_runs_is_held_and_runs_again() {
    let trace = trace(
        &status(&[]),
        &[
            event(2_000, 1, EventKind::TaskAdded("train".into())),
            event(2_000, 1, EventKind::Busy),
            event(3_001, 1, EventKind::Held),
            event(4_000, 1, EventKind::Running),
            event(6_000, 1, EventKind::Idle),
            event(7_000, 1, EventKind::TaskRemoved),
        ],
    );
    let wanted =
        [slice("running", 1_000, 2_001), slice("held", 2_001, 3_000), slice("running", 3_000, 5_000)];
    assert_eq!(slices(&trace, 1), wanted);
    let preempted = named(&trace, "preempted");
    assert_eq!(preempted.len(), 1);
    assert_eq!((ns(&preempted[0]["ts"]), &preempted[0]["ph"]), (2_001, &Value::from("i")));
}

#[test]
fn states_have_the_words_of_ps_on_the_rows_of_tasks_and_queues() {
    let states = [TaskState::Running, TaskState::Held, TaskState::Stalled];
    let names = [WorkState::Running, WorkState::Held, WorkState::Stalled].map(WorkState::slice_name);
    assert_eq!(names, states.map(TaskState::name));
    let events = [event(2_000, 1, EventKind::Busy), event(2_000, 1, EventKind::QueueBusy(9))];
    let trace = trace(&status(&[]), &events);
    let categories: Vec<_> = named(&trace, "running").iter().map(|slice| slice["cat"].as_str()).collect();
    assert_eq!(categories, [Some("queue"), Some("task")]);
}

#[test]
fn task_whose_process_does_not_run_is_stalled() {
    let events = [
        event(2_000, 1, EventKind::Busy),
        event(2_000, 1, EventKind::QueueBusy(9)),
        event(3_000, 1, EventKind::Stalled(true)),
        event(4_000, 1, EventKind::Stalled(false)),
        event(5_000, 1, EventKind::Idle),
    ];
    let trace = trace(&status(&[(2, TaskState::Stalled)]), &events);
    let wanted =
        [slice("running", 1_000, 2_000), slice("stalled", 2_000, 3_000), slice("running", 3_000, 4_000)];
    assert_eq!(slices(&trace, 1), wanted);
    let queue = slices(&trace, track(&trace, "queue 0x9 of task 1"));
    assert_eq!(queue[1], slice("stalled", 2_000, 3_000));
    assert_eq!(slices(&trace, 2), [slice("stalled", 0, 8_000)]);
}

/// The number of the track with this name.
fn track(trace: &[Value], name: &str) -> u64 {
    let tracks = named(trace, "thread_name");
    let found = tracks.iter().find(|event| event["args"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {name}: {tracks:?}"))["tid"].as_u64().unwrap()
}

#[test]
fn queues_have_their_own_work_and_the_order_of_their_task() {
    let trace = trace(
        &status(&[]),
        &[
            event(2_000, 1, EventKind::Busy),
            event(2_000, 1, EventKind::QueueBusy(0x1_0000_0000)),
            event(3_000, 1, EventKind::Held),
            event(4_000, 1, EventKind::QueueBusy(0x1_0000_0001)),
            event(5_000, 1, EventKind::Running),
            event(6_000, 1, EventKind::QueueIdle(0x1_0000_0000)),
            event(7_000, 1, EventKind::TaskRemoved),
        ],
    );
    let first = track(&trace, "queue 0x100000000 of task 1");
    let second = track(&trace, "queue 0x100000001 of task 1");
    assert!(u32::try_from(second).is_ok(), "readers want 32 bits");
    let wanted =
        [slice("running", 1_000, 2_000), slice("held", 2_000, 4_000), slice("running", 4_000, 5_000)];
    assert_eq!(slices(&trace, first), wanted);
    assert_eq!(slices(&trace, second), [slice("held", 3_000, 4_000), slice("running", 4_000, 6_000)]);
    assert_eq!(named(&trace, "preempted").len(), 1, "it is the task that is preempted");
}

#[test]
fn launches_of_a_queue_are_summed() {
    let launched = |at, task, queue, count| event(at, task, EventKind::Launched { queue, count });
    let trace = trace(
        &status(&[(1, TaskState::Running)]),
        &[launched(2_000, 1, 0x10, 3), launched(2_500, 1, 0x11, u64::MAX), launched(3_000, 1, 0x10, 40)],
    );
    let counters = named(&trace, "launches of queue 0x10 of task 1");
    let numbers: Vec<_> = counters
        .iter()
        .map(|event| (ns(&event["ts"]), event["args"]["launches"].as_u64(), event["pid"].as_u64()))
        .collect();
    assert_eq!(numbers, [(1_000, Some(3), Some(101)), (2_000, Some(43), Some(101))]);
    assert_eq!(named(&trace, "launches of queue 0x11 of task 1").len(), 1);
}

#[test]
fn queues_begin_with_the_state_in_the_status() {
    let queue = |handle, task, ready, suspended| QueueStatus {
        handle,
        task,
        ready,
        suspended,
        ..QueueStatus::default()
    };
    let status = Status {
        queues: vec![
            queue(0x10, 1, true, false),
            queue(0x11, 1, false, false),
            queue(0x20, 2, true, true),
            queue(0x30, 3, false, true),
            queue(0x40, 99, true, true),
        ],
        ..status(&[(1, TaskState::Running), (2, TaskState::Held), (3, TaskState::Idle)])
    };
    let trace =
        trace(&status, &[event(5_000, 3, EventKind::Busy), event(5_000, 3, EventKind::QueueBusy(0x30))]);
    assert_eq!(slices(&trace, track(&trace, "queue 0x10 of task 1")), [slice("running", 0, 8_000)]);
    assert_eq!(slices(&trace, track(&trace, "queue 0x20 of task 2")), [slice("held", 0, 8_000)]);
    assert_eq!(slices(&trace, track(&trace, "queue 0x30 of task 3")), [slice("held", 4_000, 8_000)]);
    assert_eq!(slices(&trace, 3), [slice("held", 4_000, 8_000)]);
    assert_eq!(named(&trace, "thread_name").len(), 1 + 3 + 3, "idle and homeless queues have no track");
}

#[test]
fn states_that_outlast_the_recording_fill_the_trace() {
    let trace = trace(
        &status(&[
            (1, TaskState::Running),
            (2, TaskState::Held),
            (3, TaskState::Idle),
            (4, TaskState::Suspended),
        ]),
        &[event(500, 1, EventKind::Idle), event(5_000, 2, EventKind::Running)],
    );
    assert_eq!(
        slices(&trace, 1),
        [slice("running", 0, 8_000)],
        "what was before the beginning does not count"
    );
    assert_eq!(slices(&trace, 2), [slice("held", 0, 4_000), slice("running", 4_000, 8_000)]);
    assert_eq!(slices(&trace, 3), []);
    assert_eq!(slices(&trace, 4), [slice("held", 0, 8_000)]);
}

#[test]
fn task_held_when_it_becomes_busy_never_ran() {
    let trace = trace(
        &status(&[(1, TaskState::Idle)]),
        &[event(2_000, 1, EventKind::Busy), event(2_000, 1, EventKind::Held)],
    );
    assert_eq!(slices(&trace, 1), [slice("held", 1_000, 8_000)]);
    assert_eq!(named(&trace, "preempted").len(), 0);
}

#[test]
fn rounds_and_policies_are_on_the_track_of_the_scheduler() {
    let trace = trace(
        &status(&[]),
        &[
            event(2_000, 0, EventKind::Decision(1_500)),
            event(4_000, 0, EventKind::PolicyChanged("UP".into())),
        ],
    );
    let round = named(&trace, "round")[0];
    assert_eq!((&round["pid"], ns(&round["ts"]), ns(&round["dur"])), (&Value::from(7), 1_000, 1_500));
    assert_eq!(named(&trace, "policy UP")[0]["pid"], 7);
}

#[test]
fn number_of_running_tasks_is_a_counter() {
    let trace = trace(
        &status(&[(1, TaskState::Running)]),
        &[
            event(2_000, 2, EventKind::Busy),
            event(2_000, 1, EventKind::Held),
            event(3_000, 2, EventKind::Idle),
            event(3_000, 1, EventKind::Running),
        ],
    );
    let counters = named(&trace, "tasks on 0000:00:06.0");
    let numbers: Vec<_> = counters
        .iter()
        .map(|event| (ns(&event["ts"]), event["args"]["running"].as_u64(), event["args"]["held"].as_u64()))
        .collect();
    let wanted = [(0, 1, 0), (1_000, 1, 1), (2_000, 1, 0), (8_000, 0, 0)];
    assert_eq!(numbers, wanted.map(|(at, running, held)| (at, Some(running), Some(held))));
}

#[test]
fn names_are_escaped_and_written_once() {
    let name = "a \"quoted\"\n\\name";
    let trace = trace(
        &status(&[]),
        &[
            event(2_000, 1, EventKind::TaskAdded(name.into())),
            event(3_000, 1, EventKind::Busy),
            event(4_000, 2, EventKind::Busy),
        ],
    );
    let processes: Vec<_> =
        named(&trace, "process_name").into_iter().map(|event| &event["args"]["name"]).collect();
    assert_eq!(processes, ["xsched scheduler", name, "process 102"]);
    let tracks: Vec<_> =
        named(&trace, "thread_name").into_iter().map(|event| &event["args"]["name"]).collect();
    assert_eq!(tracks, ["rounds", "task 1 on 0000:00:06.0", "task 2 on 0000:00:06.0"]);
}

#[test]
fn lost_events_end_all_states() {
    let mut converter = Converter::new(Vec::new(), &status(&[(1, TaskState::Running)])).unwrap();
    converter.event(&event(2_000, 1, EventKind::QueueBusy(0x10))).unwrap();
    converter.event(&event(3_000, 2, EventKind::Busy)).unwrap();
    converter.lost(0).unwrap();
    converter.lost(17).unwrap();
    converter.event(&event(5_000, 1, EventKind::Busy)).unwrap();
    assert_eq!(converter.counts(), (3, 17));
    let trace = read(converter);
    assert_eq!(slices(&trace, 1), [slice("running", 0, 2_000), slice("running", 4_000, 8_000)]);
    assert_eq!(slices(&trace, 2), []);
    assert_eq!(slices(&trace, track(&trace, "queue 0x10 of task 1")), [slice("running", 1_000, 2_000)]);
    assert_eq!(ns(&named(&trace, "17 events lost")[0]["ts"]), 2_000);
}

#[test]
fn numbers_of_lost_events_do_not_overflow() {
    let mut converter = Converter::new(Vec::new(), &status(&[])).unwrap();
    converter.lost(u64::MAX).unwrap();
    converter.lost(u64::MAX).unwrap();
    assert_eq!(converter.counts(), (0, u64::MAX));
}

/// For any sequence of events the file is valid JSON, slices of a task do not overlap, and no task is kept.
#[test]
fn random_events_give_no_overlapping_slices() {
    let mut seed = 1_u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let events: Vec<Event> = (0..5_000)
        .map(|_| {
            let what = match random(11) {
                0 => EventKind::TaskAdded(format!("name {}", random(3))),
                1 => EventKind::TaskRemoved,
                2 | 3 => EventKind::Busy,
                4 => EventKind::Idle,
                5 => EventKind::Running,
                6 => EventKind::Held,
                7 => EventKind::QueueBusy(random(3)),
                8 => EventKind::QueueIdle(random(3)),
                9 => EventKind::Launched { queue: random(3), count: random(100) },
                _ => EventKind::Decision(random(50)),
            };
            event(900 + random(7_000), 1 + random(4), what)
        })
        .collect();
    let trace = trace(&status(&[(2, TaskState::Held)]), &events);
    let queues = named(&trace, "thread_name").into_iter().filter_map(|event| event["tid"].as_u64());
    let queues = queues.filter(|track| *track >= QUEUE_TRACKS);
    for track in (1..=4).chain(queues) {
        let slices = slices(&trace, track);
        assert!(!slices.is_empty() || track >= QUEUE_TRACKS);
        for pair in slices.windows(2) {
            assert!(pair[0].1 < pair[0].2 && pair[0].2 <= pair[1].1, "{pair:?}");
        }
        assert!(slices.last().is_none_or(|last| last.2 <= 8_000));
    }
}

#[test]
fn removed_tasks_are_dropped() {
    let mut converter = Converter::new(Vec::new(), &status(&[])).unwrap();
    for task in 1..=1_000 {
        for what in [
            EventKind::TaskAdded("a".into()),
            EventKind::Busy,
            EventKind::QueueBusy(task),
            EventKind::TaskRemoved,
        ] {
            converter.event(&event(1_000 + task, task, what)).unwrap();
        }
    }
    assert_eq!((converter.tasks.len(), converter.named_processes.len()), (0, 0));
}

#[test]
fn grants_are_shown_with_their_labels_from_the_beginning_and_when_they_change() {
    let labels = BTreeMap::from([("job".to_owned(), "7".to_owned())]);
    let mut status = status(&[(1, TaskState::Running)]);
    (status.tasks[0].grant, status.tasks[0].labels) = (Some("slurm-7".to_owned()), labels.clone());
    let changed = |name: &str, labels| EventKind::GrantChanged { name: name.to_owned(), labels };
    let trace = trace(
        &status,
        &[event(2_000, 1, changed("", BTreeMap::new())), event(3_000, 1, changed("slurm-8", labels))],
    );
    for text in ["grant slurm-7 job=7", "no grant", "grant slurm-8 job=7"] {
        assert_eq!(named(&trace, text).len(), 1, "{text}");
    }
}

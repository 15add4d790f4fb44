//! Properties of the metrics that users rely on.

use std::collections::BTreeSet;

use super::*;
use crate::protocol::QueueStatus;

fn nonzero_counters() -> Counters {
    let counters = Counters::default();
    counters.decision(Nanos(900));
    counters.notify();
    counters.orders(3);
    counters.join();
    counters.leave();
    counters.request();
    counters.refusal();
    counters.policy_change();
    counters.events_lost(7);
    counters.connected();
    counters.connected();
    counters.disconnected();
    counters
}

fn busy_status() -> Status {
    let states = [TaskState::Idle, TaskState::Running, TaskState::Held, TaskState::Suspended];
    let tasks = states.into_iter().zip(1..).map(|(state, number)| TaskStatus {
        task: number,
        pid: 100,
        uid: 1000,
        name: format!("train {number}"),
        cmdline: "python train.py".into(),
        device: 0x2_0000_0030,
        own: false,
        priority: -5,
        share: 30,
        deadline_us: Some(2_500),
        laxity_us: Some(1),
        state,
        queues: 2,
        launches: 12,
        used_ns: 1_500_000_000,
        held_ns: 20,
        preemptions: 4,
        wait_p99_us: Some(80),
    });
    Status {
        version: "0.1.0".into(),
        pid: 1,
        policy: "HPF".into(),
        now_ns: 1,
        rounds: 1,
        tasks: tasks.collect(),
        queues: vec![QueueStatus::default()],
        more: false,
    }
}

fn samples(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| line.rsplit_once(' ').unwrap())
}

#[test]
fn every_metric_is_nonzero_in_a_busy_service() {
    let text = render(&busy_status(), &nonzero_counters());
    for (series, value) in samples(&text) {
        assert!(value.parse::<f64>().unwrap() != 0.0, "{series} is zero");
    }
}

#[test]
fn every_metric_is_zero_in_an_idle_service() {
    let text = render(&Status::default(), &Counters::default());
    assert!(!text.contains("xsched_task_priority{"), "{text}");
    for (series, value) in samples(&text).filter(|(series, _)| !series.starts_with("xsched_info")) {
        assert_eq!(value, "0", "{series}");
    }
}

#[test]
fn the_documentation_lists_exactly_the_metrics_there_are() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let documentation = std::fs::read_to_string(file).unwrap();
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let name = cells.next()?.strip_suffix('`')?;
        name.starts_with("xsched_").then(|| format!("{name} {}", cells.next().unwrap_or_default()))
    };
    let documented: BTreeSet<String> = documentation.lines().filter_map(row).collect();
    let text = render(&busy_status(), &nonzero_counters());
    let rendered: BTreeSet<String> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).map(str::to_owned).collect();
    assert_eq!(documented, rendered);
}

#[test]
fn names_and_units_follow_the_prometheus_conventions() {
    let text = render(&busy_status(), &nonzero_counters());
    let mut seen = BTreeSet::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        assert!(seen.insert(name), "{name} is declared twice");
        assert!(name.starts_with("xsched_"), "{name}");
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name} is a {kind}");
    }
    let families: BTreeSet<_> = seen.iter().map(|name| name.trim_end_matches("_total")).collect();
    assert_eq!(families.len(), seen.len(), "OpenMetrics names counters without _total");
    for (series, _) in samples(&text) {
        let name = series.split('{').next().unwrap();
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
        assert!(seen.contains(family.unwrap_or(name)), "{series} was not declared");
    }
}

#[test]
fn decisions_are_counted_in_their_bucket() {
    let counters = Counters::default();
    for took in [Nanos(0), Nanos::from_micros(1), Nanos(1_001), Nanos::from_millis(5_000)] {
        counters.decision(took);
    }
    let text = render(&Status::default(), &counters);
    for line in [
        "xsched_round_seconds_bucket{le=\"0.000001\"} 2",
        "xsched_round_seconds_bucket{le=\"0.000002\"} 3",
        "xsched_round_seconds_bucket{le=\"0.1\"} 3",
        "xsched_round_seconds_bucket{le=\"+Inf\"} 4",
        "xsched_round_seconds_sum 5.000002001",
        "xsched_round_seconds_count 4",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[test]
fn name_cannot_inject_a_line() {
    let mut status = busy_status();
    status.tasks.truncate(1);
    status.tasks[0].name = "a\"} 1\nxsched_info 7\\".into();
    let text = render(&status, &Counters::default());
    assert!(!text.contains("\nxsched_info 7"));
    assert!(text.contains(r#"name="a\"} 1\nxsched_info 7\\",device="0000:00:06.0""#), "{text}");
}

#[test]
fn order_of_tasks_in_the_status_does_not_change_the_text() {
    let mut reversed = busy_status();
    reversed.tasks.reverse();
    assert_eq!(render(&reversed, &nonzero_counters()), render(&busy_status(), &nonzero_counters()));
}

#[test]
fn long_text_is_split_into_packets_of_complete_lines() {
    let mut status = busy_status();
    let task = status.tasks[0].clone();
    status.tasks = (1..=500)
        .map(|number| TaskStatus { task: number, name: "\"\u{1}".repeat(20), ..task.clone() })
        .collect();
    let text = render(&status, &nonzero_counters());
    let replies = replies(&text);
    assert!(replies.len() > 1);
    let mut joined = String::new();
    for (index, reply) in replies.iter().enumerate() {
        assert!(serde_json::to_vec(reply).unwrap().len() <= MAX_PACKET_SIZE);
        let Reply::Metrics { text, more } = reply else { panic!("{reply:?}") };
        assert!(text.ends_with('\n'));
        assert_eq!(*more, index + 1 < replies.len());
        joined.push_str(text);
    }
    assert_eq!(joined, text);
    assert_eq!(super::replies("").len(), 1, "a request without a reply");
}

//! Properties of the metrics that users rely on.

use std::collections::BTreeSet;

use super::*;
use crate::protocol::{ParkingStatus, QueueStatus, UnscheduledProcess};

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
    let states = TaskState::ALL;
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
        kind: Some(crate::protocol::TaskKind::SyncBound),
        queues: 2,
        launches: 12,
        used_ns: 1_500_000_000,
        sampled_ns: Some(2_500_000_000),
        not_deferred: Vec::new(),
        held_ns: 20,
        wasted_ns: 10,
        preemptions: 4,
        wait_p99_us: Some(80),
        job: None,
        grant: None,
        labels: std::collections::BTreeMap::new(),
        memory_bytes: Some(3 << 30),
        memory_peak_bytes: Some(4 << 30),
        memory_limit_bytes: Some(5 << 30),
        parking: Some(ParkingStatus {
            movable_bytes: 4 << 30,
            moved_bytes: 1 << 30,
            ..ParkingStatus::default()
        }),
    });
    Status {
        unscheduled: vec![UnscheduledProcess { device: 0x2_0000_0030, pid: 7 }; 2],
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
fn grant_and_its_labels_are_labels_of_the_info_metric_alone() {
    let mut status = busy_status();
    status.tasks.truncate(1);
    status.tasks[0].grant = Some("slurm-7".into());
    let labels = [("job", "7"), ("pid", "1"), ("user", "a\"b\n")];
    status.tasks[0].labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let text = render(&status, &Counters::default());
    let expected = r#",state="idle",kind="sync-bound",grant="slurm-7",label_job="7",label_pid="1",label_user="a\"b\n"} 1"#;
    let with_grant: Vec<_> = text.lines().filter(|line| line.contains("slurm-7")).collect();
    assert_eq!(with_grant.len(), 1, "{with_grant:?}");
    assert!(with_grant[0].starts_with("xsched_task_info{") && with_grant[0].ends_with(expected), "{text}");
    assert!(!text.lines().any(|line| line.contains("label_job") && !line.starts_with("xsched_task_info{")));
}

#[test]
fn task_that_cannot_be_sampled_has_no_sampled_time() {
    let mut status = busy_status();
    status.tasks.truncate(1);
    status.tasks[0].sampled_ns = None;
    let text = render(&status, &Counters::default());
    assert!(!text.contains("\nxsched_task_sampled_seconds_total{"), "{text}");
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

/// A search through all tasks for each device took 16 times as long for 4 times as many tasks.
#[test]
fn rendering_time_is_proportional_to_the_number_of_tasks_on_as_many_devices() {
    let one = busy_status().tasks[0].clone();
    let shortest_time = |tasks: u64| {
        let tasks = (0..tasks).map(|device| TaskStatus { device, task: device, ..one.clone() }).collect();
        let status = Status { tasks, ..busy_status() };
        let mut text = MetricsText::default();
        let times = (0..20).map(|_| {
            let began = Nanos::now();
            scheduled(&mut text, &status);
            Nanos::now() - began
        });
        times.min().unwrap()
    };
    // A comparison of times, repeated because other programs may have the CPU during one of them.
    let compare = || (shortest_time(1_000), shortest_time(4_000));
    let times: Vec<_> = std::iter::repeat_with(compare).take(5).collect();
    assert!(times.iter().any(|(few, many)| many.0 < 10 * few.0), "for 1000 and 4000 tasks: {times:?}");
}

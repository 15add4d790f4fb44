//! The metrics in the text format 0.0.4 of Prometheus.
//!
//! The service counts events in [`Counters`]; tasks and queues are in [`Status`]. [`render`] writes both as text, and [`replies`]
//! splits the text into packets. `docs/metrics.md` explains every metric.
//!
//! The labels of a task do not change while it exists. Its priority and its state change: they are values, or labels of
//! `xsched_task_info` alone. A counter whose labels change would start a new series.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};

use xsched_core::{DeviceId, Nanos};

use crate::grant::MAX_LABELS;
use crate::protocol::{Reply, Status, TaskState, TaskStatus};
use crate::socket::MAX_PACKET_SIZE;

/// The `Content-Type` of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The upper bounds of the histogram of decision times.
const DECISION_BOUNDS: [Nanos; 12] = [
    Nanos::from_micros(1),
    Nanos::from_micros(2),
    Nanos::from_micros(5),
    Nanos::from_micros(10),
    Nanos::from_micros(20),
    Nanos::from_micros(50),
    Nanos::from_micros(100),
    Nanos::from_micros(200),
    Nanos::from_micros(500),
    Nanos::from_millis(1),
    Nanos::from_millis(10),
    Nanos::from_millis(100),
];

/// A counter. Relaxed everywhere: nothing depends on the order in which two counters change.
#[derive(Debug, Default)]
struct Count(AtomicU64);

impl Count {
    fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of the service since its start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Decisions by duration; the last bucket is for those above every bound.
    decisions: [Count; DECISION_BOUNDS.len() + 1],
    decision_ns: Count,
    notifications: Count,
    orders: Count,
    joins: Count,
    leaves: Count,
    requests: Count,
    refusals: Count,
    policy_changes: Count,
    events_lost: Count,
    connected: Count,
    disconnected: Count,
}

impl Counters {
    /// The scheduler has made a decision; `took` is the time from reading the pages to writing the last order.
    pub fn decision(&self, took: Nanos) {
        let bucket = DECISION_BOUNDS.iter().position(|bound| took <= *bound).unwrap_or(DECISION_BOUNDS.len());
        self.decisions[bucket].add(1);
        self.decision_ns.add(took.0);
    }

    /// A process has notified the service.
    pub fn notify(&self) {
        self.notifications.add(1);
    }

    /// Orders were written to pages.
    pub fn orders(&self, written: u64) {
        self.orders.add(written);
    }

    /// A process has joined.
    pub fn join(&self) {
        self.joins.add(1);
    }

    /// A process has left or exited.
    pub fn leave(&self) {
        self.leaves.add(1);
    }

    /// A request was received.
    pub fn request(&self) {
        self.requests.add(1);
    }

    /// The reply to a request was [`Reply::Refused`].
    pub fn refusal(&self) {
        self.refusals.add(1);
    }

    /// The policy or its parameters were changed.
    pub fn policy_change(&self) {
        self.policy_changes.add(1);
    }

    /// Events were lost because a tracer did not read them in time.
    pub fn events_lost(&self, events: u64) {
        self.events_lost.add(events);
    }

    /// A connection was accepted.
    pub fn connected(&self) {
        self.connected.add(1);
    }

    /// An accepted connection was closed.
    pub fn disconnected(&self) {
        self.disconnected.add(1);
    }
}

/// All metrics of a service at one time. `status` must be complete, not the first packet of several.
#[must_use]
pub fn render(status: &Status, counters: &Counters) -> String {
    let mut text = MetricsText::default();
    text.family("xsched_info", "gauge", "The version of the service and its policy. Always 1.");
    text.sample("", &[("version", &status.version), ("policy", &status.policy)], 1);
    service(&mut text, status, counters);
    decisions(&mut text, counters);
    scheduled(&mut text, status);
    unscheduled(&mut text, status);
    tasks(&mut text, status);
    text.text
}

fn service(text: &mut MetricsText, status: &Status, counters: &Counters) {
    for (name, help, count) in [
        ("xsched_notifications_total", "Notifications from processes.", &counters.notifications),
        ("xsched_orders_written_total", "Orders written to the pages of processes.", &counters.orders),
        ("xsched_joins_total", "Processes that joined.", &counters.joins),
        ("xsched_leaves_total", "Processes that left or exited.", &counters.leaves),
        ("xsched_requests_total", "Requests on the socket of the service.", &counters.requests),
        ("xsched_rejections_total", "Rejected requests.", &counters.refusals),
        ("xsched_policy_changes_total", "Changes of the policy or its parameters.", &counters.policy_changes),
        (
            "xsched_trace_events_lost_total",
            "Events that a tracer did not read in time.",
            &counters.events_lost,
        ),
        ("xsched_connections_total", "Accepted connections.", &counters.connected),
    ] {
        text.family(name, "counter", help);
        text.sample("", &[], count.get());
    }
    text.family("xsched_connections_open", "gauge", "Open connections of processes and tools.");
    text.sample("", &[], counters.connected.get().saturating_sub(counters.disconnected.get()));
    text.family("xsched_queues", "gauge", "Scheduled queues.");
    text.sample("", &[], status.queues.len());
}

fn decisions(text: &mut MetricsText, counters: &Counters) {
    text.family(
        "xsched_round_seconds",
        "histogram",
        "Time of one decision, from reading the pages to writing the last order.",
    );
    let mut cumulative = 0;
    for (bound, count) in DECISION_BOUNDS.iter().zip(&counters.decisions) {
        cumulative += count.get();
        text.sample("_bucket", &[("le", &seconds(bound.0).to_string())], cumulative);
    }
    cumulative += counters.decisions[DECISION_BOUNDS.len()].get();
    text.sample("_bucket", &[("le", "+Inf")], cumulative);
    text.sample("_sum", &[], seconds(counters.decision_ns.get()));
    text.sample("_count", &[], cumulative);
}

/// The number of tasks in each state, by device.
fn scheduled(text: &mut MetricsText, status: &Status) {
    // One pass over the tasks: there may be thousands of them, on as many devices.
    let mut devices: BTreeMap<u64, [u32; TaskState::ALL.len()]> = BTreeMap::new();
    for task in &status.tasks {
        let counts = devices.entry(task.device).or_default();
        for (count, state) in counts.iter_mut().zip(TaskState::ALL) {
            *count += u32::from(task.state == state);
        }
    }
    text.family("xsched_tasks", "gauge", "Tasks by device and state.");
    for (device, counts) in devices {
        let name = DeviceId(device).to_string();
        for (count, state) in counts.into_iter().zip(TaskState::ALL) {
            text.sample("", &[("device", &name), ("state", state_label(state))], count);
        }
    }
}

/// The devices that unscheduled processes keep busy.
fn unscheduled(text: &mut MetricsText, status: &Status) {
    text.family(
        "xsched_device_unscheduled",
        "gauge",
        "1 for each device that an unscheduled process keeps busy beside the tasks.",
    );
    let devices: BTreeSet<u64> = status.unscheduled.iter().map(|process| process.device).collect();
    for device in devices {
        text.sample("", &[("device", &DeviceId(device).to_string())], 1);
    }
}

fn state_label(state: TaskState) -> &'static str {
    match state {
        TaskState::Idle => "idle",
        TaskState::Running => "running",
        TaskState::Held => "held",
        TaskState::Suspended => "suspended",
        TaskState::Stalled => "stalled",
        TaskState::Parked => "parked",
    }
}

/// The value of a metric, which some tasks do not have.
type Value = fn(&TaskStatus) -> Option<f64>;

const TASK_METRICS: &[(&str, &str, &str, Value)] = &[
    ("xsched_task_priority", "gauge", "Priority, -256 to 255.", |task| Some(task.priority.into())),
    ("xsched_task_share_ratio", "gauge", "Requested share of the device, 0 to 1.", |task| {
        Some(f64::from(task.share) / 100.0)
    }),
    ("xsched_task_deadline_seconds", "gauge", "Deadline, of tasks that have one.", |task| {
        task.deadline_us.map(|us| us as f64 / 1e6)
    }),
    ("xsched_task_laxity_seconds", "gauge", "Laxity, of tasks that have one.", |task| {
        task.laxity_us.map(|us| us as f64 / 1e6)
    }),
    ("xsched_task_queues", "gauge", "Scheduled queues of the task.", |task| Some(task.queues.into())),
    (
        "xsched_task_launches_total",
        "counter",
        "Counted launches. Launches of a task alone on its device are not counted.",
        |task| Some(task.launches as f64),
    ),
    (
        "xsched_task_used_seconds_total",
        "counter",
        "Time the task was busy and allowed to run while other tasks used its device.",
        |task| Some(seconds(task.used_ns)),
    ),
    (
        "xsched_task_sampled_seconds_total",
        "counter",
        "Time the task was busy while alone on its device, estimated from samples; if it can be sampled.",
        |task| task.sampled_ns.map(seconds),
    ),
    ("xsched_task_held_seconds_total", "counter", "Time the task was busy and held.", |task| {
        Some(seconds(task.held_ns))
    }),
    (
        "xsched_task_wasted_seconds_total",
        "counter",
        "Time the device was idle while the task was busy and not held, estimated from samples.",
        |task| Some(seconds(task.wasted_ns)),
    ),
    ("xsched_task_preemptions_total", "counter", "Times the task was preempted while busy.", |task| {
        Some(task.preemptions as f64)
    }),
    (
        "xsched_task_wait_p99_seconds",
        "gauge",
        "99th percentile of the task's waits for the device, if it ever waited.",
        |task| task.wait_p99_us.map(|us| us as f64 / 1e6),
    ),
    (
        "xsched_task_memory_bytes",
        "gauge",
        "Device memory that the task's process has allocated on its device, if it is counted.",
        |task| task.memory_bytes.map(|bytes| bytes as f64),
    ),
    ("xsched_task_memory_peak_bytes", "gauge", "The most that xsched_task_memory_bytes was.", |task| {
        task.memory_peak_bytes.map(|bytes| bytes as f64)
    }),
    (
        "xsched_task_memory_limit_bytes",
        "gauge",
        "Device memory that the processes with the limit of the task may allocate together on its device, if it has one.",
        |task| task.memory_limit_bytes.map(|bytes| bytes as f64),
    ),
    (
        "xsched_task_memory_movable_bytes",
        "gauge",
        "Device memory of the task's process that can be moved to the host, of programs started with --swap.",
        |task| task.parking.as_ref().map(|parking| parking.movable_bytes as f64),
    ),
    (
        "xsched_task_memory_moved_bytes",
        "gauge",
        "How much of xsched_task_memory_movable_bytes is in memory of the host.",
        |task| task.parking.as_ref().map(|parking| parking.moved_bytes as f64),
    ),
];

fn tasks(text: &mut MetricsText, status: &Status) {
    let mut tasks: Vec<_> = status.tasks.iter().collect();
    tasks.sort_by_key(|task| task.task);
    let labels: Vec<[String; 4]> = tasks
        .iter()
        .map(|task| {
            [
                task.task.to_string(),
                task.pid.to_string(),
                task.name.clone(),
                DeviceId(task.device).to_string(),
            ]
        })
        .collect();
    let names = ["task", "pid", "name", "device"];
    text.family(
        "xsched_task_info",
        "gauge",
        "The user, priority, state, kind and grant of the task beside the labels of all its metrics. Always 1.",
    );
    for (task, labels) in tasks.iter().zip(&labels) {
        let (uid, priority) = (task.uid.to_string(), task.priority.to_string());
        let mut all: Vec<(&str, &str)> = names.into_iter().zip(labels.iter().map(String::as_str)).collect();
        all.extend([("uid", uid.as_str()), ("priority", &priority), ("state", state_label(task.state))]);
        if let Some(kind) = task.kind {
            all.push(("kind", kind.name()));
        }
        if let Some(grant) = &task.grant {
            all.push(("grant", grant));
        }
        // The prefix keeps them apart from the labels above, and from those that Prometheus adds: `job`, `namespace`, `pod`.
        let grant_labels: Vec<(String, &String)> = task
            .labels
            .iter()
            .take(MAX_LABELS)
            .map(|(name, value)| (format!("label_{name}"), value))
            .collect();
        all.extend(grant_labels.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        text.sample("", &all, 1);
    }
    for (name, kind, help, value) in TASK_METRICS {
        text.family(name, kind, help);
        for (task, labels) in tasks.iter().zip(&labels) {
            if let Some(value) = value(task) {
                let labels: Vec<_> = names.into_iter().zip(labels.iter().map(String::as_str)).collect();
                text.sample("", &labels, value);
            }
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The text, written one metric family after the other.
#[derive(Default)]
struct MetricsText {
    text: String,
    family: &'static str,
}

impl MetricsText {
    fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.family = name;
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl fmt::Display) {
        self.text.push_str(self.family);
        self.text.push_str(suffix);
        for (index, (name, value)) in labels.iter().enumerate() {
            self.text.push(if index == 0 { '{' } else { ',' });
            let _ = write!(self.text, "{name}=\"");
            for character in value.chars() {
                match character {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    other => self.text.push(other),
                }
            }
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }
}

/// Splits the text into packets of complete lines.
#[must_use]
pub fn replies(text: &str) -> Vec<Reply> {
    // The JSON around the text of a packet is shorter than 256 bytes.
    let max_length = MAX_PACKET_SIZE - 256;
    let mut packets = vec![String::new()];
    let mut used = 0;
    for line in text.split_inclusive('\n') {
        let length = json_length(line);
        if used + length > max_length {
            packets.push(String::new());
            used = 0;
        }
        if let Some(packet) = packets.last_mut() {
            packet.push_str(line);
            used += length;
        }
    }
    let last = packets.len() - 1;
    let reply = |(index, text)| Reply::Metrics { text, more: index < last };
    packets.into_iter().enumerate().map(reply).collect()
}

/// An upper bound of the length of a text in JSON, in bytes.
fn json_length(text: &str) -> usize {
    text.bytes()
        .map(|byte| match byte {
            b'"' | b'\\' | b'\n' => 2,
            0..0x20 | 0x7f => 6,
            _ => 1,
        })
        .sum()
}

#[cfg(test)]
mod tests;

//! The metrics, as Prometheus reads them: text format 0.0.4.
//!
//! The service counts what happens in [`Counters`]; what it schedules is in [`Status`]; [`render`] makes a page of the
//! two, and [`replies`] the packets that carry it. `docs/metrics.md` explains every metric to those who read them.
//!
//! A task is labelled by what does not change while it lives. Its priority and what else a person may change are
//! values, or labels of `xsched_task_info` alone: a counter whose labels change ends and begins anew at zero.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};

use xsched_core::{DeviceId, Nanos};

use crate::protocol::{Reply, Status, TaskState, TaskStatus};
use crate::socket::MAX_PACKET_SIZE;

/// What `Content-Type` a page of metrics has.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of the buckets that rounds are counted in.
const ROUND_BOUNDS: [Nanos; 12] = [
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

/// One number that only grows. Relaxed everywhere: nothing is concluded from one counter about another.
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

/// What the service has done since it began. Whoever does something says so here, at the place where it is done.
#[derive(Debug, Default)]
pub struct Counters {
    /// Rounds by how long they took; the last is for those longer than every bound.
    rounds: [Count; ROUND_BOUNDS.len() + 1],
    round_ns: Count,
    rings: Count,
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
    /// The scheduler made one round, from looking at the pages to the last order written, and it took so long.
    pub fn round(&self, took: Nanos) {
        let bucket = ROUND_BOUNDS.iter().position(|bound| took <= *bound).unwrap_or(ROUND_BOUNDS.len());
        self.rounds[bucket].add(1);
        self.round_ns.add(took.0);
    }

    /// A program rang the doorbell.
    pub fn notify(&self) {
        self.rings.add(1);
    }

    /// So many run or hold words were changed in pages.
    pub fn orders(&self, written: u64) {
        self.orders.add(written);
    }

    /// A program was taken in.
    pub fn join(&self) {
        self.joins.add(1);
    }

    /// A program that had been taken in is gone.
    pub fn leave(&self) {
        self.leaves.add(1);
    }

    /// Something was asked of the service, whatever the answer.
    pub fn request(&self) {
        self.requests.add(1);
    }

    /// The answer was [`Reply::Refused`].
    pub fn refusal(&self) {
        self.refusals.add(1);
    }

    /// Another policy, or other settings for it, took effect.
    pub fn policy_change(&self) {
        self.policy_changes.add(1);
    }

    /// So many events did not reach somebody who traces, because they were not read in time.
    pub fn events_lost(&self, events: u64) {
        self.events_lost.add(events);
    }

    /// A connection was accepted.
    pub fn connected(&self) {
        self.connected.add(1);
    }

    /// A connection that had been accepted is closed.
    pub fn disconnected(&self) {
        self.disconnected.add(1);
    }
}

/// All metrics of a service at one moment. `status` must be whole, not the first packet of several.
#[must_use]
pub fn render(status: &Status, counters: &Counters) -> String {
    let mut page = Page::default();
    page.family("xsched_info", "gauge", "The service: its version and the policy at work. Always 1.");
    page.sample("", &[("version", &status.version), ("policy", &status.policy)], 1);
    service(&mut page, status, counters);
    rounds(&mut page, counters);
    scheduled(&mut page, status);
    tasks(&mut page, status);
    page.text
}

fn service(page: &mut Page, status: &Status, counters: &Counters) {
    for (name, help, count) in [
        ("xsched_rings_total", "Times programs rang the doorbell.", &counters.rings),
        ("xsched_orders_written_total", "Run and hold words changed in programs' pages.", &counters.orders),
        ("xsched_joins_total", "Programs taken in.", &counters.joins),
        ("xsched_leaves_total", "Programs that are gone.", &counters.leaves),
        ("xsched_requests_total", "Requests over the service's socket.", &counters.requests),
        ("xsched_refusals_total", "Requests that were refused.", &counters.refusals),
        ("xsched_policy_changes_total", "Changes of the policy or its settings.", &counters.policy_changes),
        ("xsched_trace_events_lost_total", "Events not read in time by who traces.", &counters.events_lost),
        ("xsched_connections_total", "Connections accepted.", &counters.connected),
    ] {
        page.family(name, "counter", help);
        page.sample("", &[], count.get());
    }
    page.family("xsched_connections_open", "gauge", "Connections open now, of programs and of tools.");
    page.sample("", &[], counters.connected.get().saturating_sub(counters.disconnected.get()));
    page.family("xsched_queues", "gauge", "Queues under control.");
    page.sample("", &[], status.queues.len());
}

fn rounds(page: &mut Page, counters: &Counters) {
    page.family(
        "xsched_round_seconds",
        "histogram",
        "Time of one round of the scheduler, from looking at the pages to the last order written.",
    );
    let mut so_far = 0;
    for (bound, count) in ROUND_BOUNDS.iter().zip(&counters.rounds) {
        so_far += count.get();
        page.sample("_bucket", &[("le", &seconds(bound.0).to_string())], so_far);
    }
    so_far += counters.rounds[ROUND_BOUNDS.len()].get();
    page.sample("_bucket", &[("le", "+Inf")], so_far);
    page.sample("_sum", &[], seconds(counters.round_ns.get()));
    page.sample("_count", &[], so_far);
}

/// How many tasks do what, on each device.
fn scheduled(page: &mut Page, status: &Status) {
    let mut devices: Vec<u64> = status.tasks.iter().map(|task| task.device).collect();
    devices.sort_unstable();
    devices.dedup();
    page.family("xsched_tasks", "gauge", "Tasks by device and by what they are doing.");
    for device in devices {
        for state in [TaskState::Idle, TaskState::Running, TaskState::Held, TaskState::Suspended] {
            let here = status.tasks.iter().filter(|task| task.device == device && task.state == state);
            let name = DeviceId(device).to_string();
            page.sample("", &[("device", &name), ("state", word(state))], here.count());
        }
    }
}

fn word(state: TaskState) -> &'static str {
    match state {
        TaskState::Idle => "idle",
        TaskState::Running => "running",
        TaskState::Held => "held",
        TaskState::Suspended => "suspended",
    }
}

/// A value that some tasks do not have.
type Value = fn(&TaskStatus) -> Option<f64>;

const TASK_METRICS: &[(&str, &str, &str, Value)] = &[
    ("xsched_task_priority", "gauge", "Importance, -256 to 255.", |task| Some(task.priority.into())),
    ("xsched_task_share_ratio", "gauge", "Share of the device asked for, 0 to 1.", |task| {
        Some(f64::from(task.share) / 100.0)
    }),
    ("xsched_task_deadline_seconds", "gauge", "Deadline, of tasks that have one.", |task| {
        task.deadline_us.map(|us| us as f64 / 1e6)
    }),
    ("xsched_task_laxity_seconds", "gauge", "Laxity, of tasks that have one.", |task| {
        task.laxity_us.map(|us| us as f64 / 1e6)
    }),
    ("xsched_task_queues", "gauge", "Queues of the task under control.", |task| Some(task.queues.into())),
    (
        "xsched_task_launches_total",
        "counter",
        "Launches counted; alone on its device a task is not counted.",
        |task| Some(task.launches as f64),
    ),
    (
        "xsched_task_used_seconds_total",
        "counter",
        "Device time the task was allowed to use while it had work.",
        |task| Some(seconds(task.used_ns)),
    ),
    ("xsched_task_held_seconds_total", "counter", "Time the task had work and was held.", |task| {
        Some(seconds(task.held_ns))
    }),
    ("xsched_task_preemptions_total", "counter", "Times the task was stopped while it had work.", |task| {
        Some(task.preemptions as f64)
    }),
    (
        "xsched_task_wait_p99_seconds",
        "gauge",
        "99th percentile of the task's waits for the device, if it ever waited.",
        |task| task.wait_p99_us.map(|us| us as f64 / 1e6),
    ),
];

fn tasks(page: &mut Page, status: &Status) {
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
    page.family(
        "xsched_task_info",
        "gauge",
        "The task: its user, priority and state beside what all its metrics have. Always 1.",
    );
    for (task, labels) in tasks.iter().zip(&labels) {
        let (uid, priority) = (task.uid.to_string(), task.priority.to_string());
        let mut all: Vec<(&str, &str)> = names.into_iter().zip(labels.iter().map(String::as_str)).collect();
        all.extend([("uid", uid.as_str()), ("priority", &priority), ("state", word(task.state))]);
        page.sample("", &all, 1);
    }
    for (name, kind, help, value) in TASK_METRICS {
        page.family(name, kind, help);
        for (task, labels) in tasks.iter().zip(&labels) {
            if let Some(value) = value(task) {
                let labels: Vec<_> = names.into_iter().zip(labels.iter().map(String::as_str)).collect();
                page.sample("", &labels, value);
            }
        }
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The text as it grows, one family after the other.
#[derive(Default)]
struct Page {
    text: String,
    family: &'static str,
}

impl Page {
    fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.family = name;
        // Writing into a string cannot fail, here and below.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl fmt::Display) {
        self.text.push_str(self.family);
        self.text.push_str(suffix);
        for (place, (name, content)) in labels.iter().enumerate() {
            self.text.push(if place == 0 { '{' } else { ',' });
            let _ = write!(self.text, "{name}=\"");
            for character in content.chars() {
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

/// The packets that carry a page of metrics: whole lines, each packet short enough to be sent.
#[must_use]
pub fn replies(text: &str) -> Vec<Reply> {
    // What JSON puts around a packet's text is far shorter than this.
    let room = MAX_PACKET_SIZE - 256;
    let mut packets = vec![String::new()];
    let mut taken = 0;
    for line in text.split_inclusive('\n') {
        let length = json_length(line);
        if taken + length > room {
            packets.push(String::new());
            taken = 0;
        }
        if let Some(packet) = packets.last_mut() {
            packet.push_str(line);
            taken += length;
        }
    }
    let last = packets.len() - 1;
    let reply = |(place, text)| Reply::Metrics { text, more: place < last };
    packets.into_iter().enumerate().map(reply).collect()
}

/// Bytes a text has in JSON, or a little more.
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

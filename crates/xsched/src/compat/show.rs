//! The output of `xcli`.

use serde::Deserialize;
use xsched_core::DeviceId;
use xsched_policy::POLICIES;

use crate::term;

/// The response to `GET /xqueues`.
#[derive(Default, Deserialize)]
pub(super) struct Queues {
    xqueues: Vec<Queue>,
    processes: Vec<Process>,
}

#[derive(Default, Deserialize)]
struct Queue {
    handle: u64,
    device: u64,
    level: i64,
    pid: i64,
    threshold: i64,
    batch_size: i64,
    ready: bool,
    suspended: bool,
}

#[derive(Default, Deserialize)]
struct Process {
    pid: i64,
    cmdline: String,
}

const HEADINGS: [&str; 8] = ["XQUEUE", "PID", "DEVICE", "LEVEL", "THRESHOLD", "BATCH", "STATE", "COMMAND"];

/// The queues as a table, one line each, sorted by process and handle.
pub(super) fn table(queues: &Queues) -> String {
    let mut sorted: Vec<&Queue> = queues.xqueues.iter().collect();
    sorted.sort_by_key(|queue| (queue.pid, queue.handle));
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    rows.extend(sorted.into_iter().map(|queue| {
        let process = queues.processes.iter().find(|process| process.pid == queue.pid);
        [
            format!("{:#x}", queue.handle),
            queue.pid.to_string(),
            DeviceId(queue.device).to_string(),
            queue.level.to_string(),
            limit(queue.threshold),
            limit(queue.batch_size),
            state(queue).to_owned(),
            term::printable(process.map_or("", |process| &process.cmdline)),
        ]
    }));
    let widths: [usize; 8] =
        std::array::from_fn(|column| rows.iter().map(|row| term::width(&row[column])).max().unwrap_or(0));
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A number of commands; 0 means that the in-flight window is measured in time.
fn limit(commands: i64) -> String {
    if commands == 0 { "time".to_owned() } else { commands.to_string() }
}

fn state(queue: &Queue) -> &'static str {
    match (queue.ready, queue.suspended) {
        (true, false) => "running",
        (true, true) => "held",
        (false, false) => "idle",
        (false, true) => "suspended",
    }
}

/// A policy by its number.
pub(super) fn policy(number: u64) -> String {
    match POLICIES.iter().find(|policy| u64::from(policy.number) == number) {
        Some(policy) => format!("{} ({}): {}", policy.name, policy.plain, policy.summary),
        None => format!("unknown policy {number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_table_has_aligned_columns() {
        let queue = Queue { device: 0x2_0000_0030, level: 1, pid: 7, ready: true, ..Queue::default() };
        let queues = Queues {
            xqueues: vec![
                Queue { handle: 0x20, suspended: true, ..queue },
                Queue { handle: 0x3, threshold: 16, batch_size: 8, pid: 7, device: 0x30, ..Queue::default() },
            ],
            processes: vec![Process { pid: 7, cmdline: "a\u{1b}[2J b".to_owned() }],
        };
        assert_eq!(
            table(&queues),
            "XQUEUE  PID  DEVICE        LEVEL  THRESHOLD  BATCH  STATE  COMMAND\n\
             0x3     7    0000:00:06.0  0      16         8      idle   a?[2J b\n\
             0x20    7    0000:00:06.0  1      time       time   held   a?[2J b\n"
        );
        assert_eq!(table(&Queues::default()).lines().count(), 1);
    }

    #[test]
    fn policy_is_printed_with_both_names() {
        assert!(policy(6).starts_with("SPUP (quota): "));
        assert_eq!(policy(99), "unknown policy 99");
    }
}

//! The output of `xcli`: what the original C++ XSched prints, for the scripts that parse it.

use std::fmt::Write as _;

use serde::Deserialize;
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
    ready: bool,
    suspended: bool,
}

#[derive(Default, Deserialize)]
struct Process {
    pid: i64,
    cmdline: String,
}

impl Queues {
    /// The preemption level of a queue, if it exists.
    pub(super) fn level(&self, handle: u64) -> Option<i64> {
        self.xqueues.iter().find(|queue| queue.handle == handle).map(|queue| queue.level)
    }
}

const COLUMNS: usize = 7;
const HEADINGS: [&str; COLUMNS] = ["PID", "DEV", "XQUEUE", "STAT", "SCHED", "LV", "CMD"];
/// The original C++ XSched prints so much of a command line.
const MAX_COMMAND_LENGTH: usize = 60;

/// The queues as the table that the original C++ XSched prints, sorted by process and handle.
pub(super) fn table(queues: &Queues) -> String {
    let mut sorted: Vec<&Queue> = queues.xqueues.iter().collect();
    sorted.sort_by_key(|queue| (queue.pid, queue.handle));
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    rows.extend(sorted.into_iter().map(|queue| {
        let process = queues.processes.iter().find(|process| process.pid == queue.pid);
        let command = term::printable(process.map_or("", |process| &process.cmdline));
        [
            queue.pid.to_string(),
            format!("{}({:#x})", device_kind(queue.device), queue.device),
            format!("{:#x}", queue.handle),
            if queue.ready { "RDY" } else { "BLK" }.to_owned(),
            if queue.suspended { "SUS" } else { "RUN" }.to_owned(),
            queue.level.to_string(),
            command.chars().take(MAX_COMMAND_LENGTH).collect(),
        ]
    }));
    let widths: [usize; COLUMNS] =
        std::array::from_fn(|column| rows.iter().map(|row| term::width(&row[column])).max().unwrap_or(0));
    let dashes: Vec<_> = widths.iter().map(|width| "-".repeat(width + 2)).collect();
    let line = format!("+{}+\n", dashes.join("+"));
    let mut text = line.clone();
    for (number, row) in rows.iter().enumerate() {
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            let spaces = width - term::width(cell);
            // All is centered but the command lines.
            let left = if column + 1 == COLUMNS && number > 0 { 0 } else { spaces / 2 };
            let _ = write!(text, "| {}{cell}{} ", " ".repeat(left), " ".repeat(spaces - left));
        }
        text.push_str("|\n");
        text.push_str(&line);
    }
    text
}

/// The kind of a device, in the upper half of its number.
fn device_kind(device: u64) -> &'static str {
    match device >> 32 {
        1 => "CPU",
        2 => "GPU",
        3 => "NPU",
        4 => "FPGA",
        5 => "ASIC",
        6 => "MCA",
        _ => "Unknown",
    }
}

/// The policy with this number and all policies, as the original C++ XSched prints them.
pub(super) fn policies(current: u64) -> String {
    let current = POLICIES.iter().find(|policy| u64::from(policy.number) == current);
    let mut text = format!("Current policy: \n  {}\n", current.map_or("Unknown", |policy| policy.name));
    text.push_str("Available policies: \n");
    for policy in POLICIES {
        let _ = writeln!(text, "  {}", policy.name);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_table_is_that_of_the_original() {
        let queue = Queue { device: 0x2_0000_0030, level: 1, pid: 7, ready: true, ..Queue::default() };
        let queues = Queues {
            xqueues: vec![
                Queue { handle: 0x20, suspended: true, ..queue },
                Queue { handle: 0x3, pid: 7, device: 0x30, ..Queue::default() },
            ],
            processes: vec![Process { pid: 7, cmdline: "a\u{1b}[2J b".to_owned() }],
        };
        let line = "+-----+------------------+--------+------+-------+----+---------+\n";
        let expected = [
            "",
            "| PID |       DEV        | XQUEUE | STAT | SCHED | LV |   CMD   |\n",
            "|  7  |  Unknown(0x30)   |  0x3   | BLK  |  RUN  | 0  | a?[2J b |\n",
            "|  7  | GPU(0x200000030) |  0x20  | RDY  |  SUS  | 1  | a?[2J b |\n",
        ];
        assert_eq!(table(&queues), expected.map(|row| format!("{row}{line}")).concat());
        assert_eq!(table(&Queues::default()).lines().count(), 3);
        assert_eq!((queues.level(0x20), queues.level(1)), (Some(1), None));
    }

    #[test]
    fn long_command_lines_are_cut() {
        let queues = Queues {
            xqueues: vec![Queue { pid: 7, ..Queue::default() }],
            processes: vec![Process { pid: 7, cmdline: "x".repeat(61) }],
        };
        assert!(table(&queues).contains(&format!("| {} |", "x".repeat(60))));
    }

    #[test]
    fn current_and_available_policies_are_printed() {
        let text = policies(6);
        assert!(
            text.starts_with("Current policy: \n  SPUP\nAvailable policies: \n  HPF\n  HHPF\n"),
            "{text}"
        );
        assert!(policies(99).starts_with("Current policy: \n  Unknown\n"));
    }
}

//! `xsched ps`.

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use xsched_core::parse_time;
use xsched_core::{DeviceId, Nanos};
use xsched_ipc::protocol::{Status, TaskStatus};

use crate::rates::{self, Rates};
use crate::term::{self, Glyphs, NO_VALUE};
use crate::tool::ToolConnection;

/// List the tasks that are being scheduled.
///
/// A task is all queues of one process on one device, or one queue with hints of its own. STATE is idle, running, held
/// (it has work, and the scheduler keeps it from running) or suspended (by request). UTIL is the utilization: the part of
/// the sample during which the task had its device. HELD is the part of the sample during which it was held. PREEMPT counts how
/// often it was preempted since it appeared. P99 WAIT is the 99th percentile of the time its work waited for the device.
/// LAUNCH/S is counted only while several tasks use the device.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Show whole command lines.
    #[arg(short, long, conflicts_with = "json")]
    wide: bool,

    /// Print one JSON object: everything that the scheduler reports, with the rates of every task.
    #[arg(long)]
    json: bool,

    /// How long to sample for UTIL, HELD and LAUNCH/S, such as 200ms or 5s.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = sample)]
    sample: Duration,
}

/// The length of a sample.
fn sample(text: &str) -> Result<Duration, String> {
    let Nanos(ns) = parse_time(text)?;
    let length = Duration::from_nanos(ns);
    if (Duration::from_millis(1)..=Duration::from_secs(3600)).contains(&length) {
        Ok(length)
    } else {
        Err(format!("`{text}` is out of range: allowed is 1ms to 3600s"))
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let tool = ToolConnection::connect()?;
    let old = tool.status()?;
    thread::sleep(args.sample);
    let mut new = tool.status()?;
    new.tasks.sort_by_key(|task| (task.device, -task.priority, task.pid, task.task));
    let rates = rates::between(&old, &new);
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &as_json(&new, &rates)?).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        let columns = if args.wide { None } else { term::size().0 };
        write!(out, "{}", table(&new, &rates, args.wide, columns.map(usize::from), Glyphs::of_locale()))?;
    }
    Ok(())
}

/// The status as the service reports it, with the rates of each task added.
fn as_json(status: &Status, rates: &HashMap<u64, Rates>) -> anyhow::Result<Value> {
    let mut value = serde_json::to_value(status)?;
    if let Some(fields) = value.as_object_mut() {
        // Only the socket's protocol splits the status into several packets.
        fields.remove("more");
    }
    for (task, value) in status.tasks.iter().zip(value["tasks"].as_array_mut().into_iter().flatten()) {
        value["rates"] = json!(rates.get(&task.task));
    }
    Ok(value)
}

const HEADINGS: [&str; 10] =
    ["PID", "NAME", "DEVICE", "PRIO", "STATE", "UTIL", "LAUNCH/S", "HELD", "PREEMPT", "P99 WAIT"];
/// The columns of text, aligned left; the columns of numbers are aligned right.
const TEXT_COLUMNS: [usize; 3] = [NAME, 2, 4];
const NAME: usize = 1;
const MIN_NAME_WIDTH: usize = 8;

/// The tasks as a table, or one line if there are none. Names are cut if the table is wider than `columns`.
fn table(
    status: &Status,
    rates: &HashMap<u64, Rates>,
    wide: bool,
    columns: Option<usize>,
    glyphs: &Glyphs,
) -> String {
    if status.tasks.is_empty() {
        return "no task is scheduled: `xsched run -- PROGRAM` starts a program under the scheduler\n"
            .to_owned();
    }
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    rows.extend(status.tasks.iter().map(|task| cells(task, rates.get(&task.task))));
    let mut widths: [usize; 10] =
        std::array::from_fn(|i| rows.iter().map(|row| term::width(&row[i])).max().unwrap_or(0));
    let total = widths.iter().sum::<usize>() + widths.len() - 1;
    if let Some(columns) = columns.filter(|columns| *columns < total) {
        let room = widths[NAME].saturating_sub(total - columns);
        widths[NAME] = room.max(MIN_NAME_WIDTH.min(widths[NAME]));
    }
    let commands = status.tasks.iter().map(|task| term::printable(&task.cmdline));
    let commands = std::iter::once("COMMAND".to_owned()).chain(commands);
    let mut text = String::new();
    for (row, command) in rows.iter().zip(commands) {
        let mut line = row
            .iter()
            .enumerate()
            .map(|(i, cell)| {
                aligned(&term::fit(cell, widths[i], glyphs), widths[i], TEXT_COLUMNS.contains(&i))
            })
            .collect::<Vec<_>>()
            .join(" ");
        if wide {
            line.push_str("  ");
            line.push_str(&command);
        }
        let line = line.trim_end();
        text.push_str(&columns.map_or_else(|| line.to_owned(), |columns| term::fit(line, columns, glyphs)));
        text.push('\n');
    }
    text
}

fn cells(task: &TaskStatus, rates: Option<&Rates>) -> [String; 10] {
    let rate = |show: fn(&Rates) -> String| rates.map_or(NO_VALUE.to_owned(), show);
    [
        task.pid.to_string(),
        term::name(task),
        DeviceId(task.device).to_string(),
        task.priority.to_string(),
        term::state(task.state).to_owned(),
        rate(|rates| term::percent(rates.utilization)),
        rate(|rates| rates.launches_per_s.map_or(NO_VALUE.to_owned(), term::per_second)),
        rate(|rates| term::percent(rates.held)),
        task.preemptions.to_string(),
        task.wait_p99_us.map_or(NO_VALUE.to_owned(), term::duration),
    ]
}

fn aligned(text: &str, width: usize, left: bool) -> String {
    let gap = " ".repeat(width.saturating_sub(term::width(text)));
    if left { format!("{text}{gap}") } else { format!("{gap}{text}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xsched_ipc::protocol::TaskState;

    fn status() -> Status {
        let serve = TaskStatus {
            task: 1,
            pid: 41,
            name: "serve".into(),
            cmdline: "python serve.py --port 80".into(),
            device: 0x2_0000_0030,
            priority: 100,
            state: TaskState::Running,
            preemptions: 2,
            wait_p99_us: Some(180),
            ..TaskStatus::default()
        };
        let train = TaskStatus {
            task: 2,
            pid: 123_456,
            name: "train-a-very-large-model".into(),
            priority: -100,
            state: TaskState::Suspended,
            wait_p99_us: None,
            ..serve.clone()
        };
        Status { tasks: vec![serve, train], ..Status::default() }
    }

    fn shown(columns: Option<usize>) -> String {
        let rates =
            Rates { utilization: 0.784, held: 0.0, launches_per_s: Some(1234.0), preemptions_per_s: 1.0 };
        table(&status(), &HashMap::from([(1, rates)]), false, columns, Glyphs::UNICODE)
    }

    #[test]
    fn narrow_terminal_cuts_names() {
        let text = shown(Some(80));
        let expected = "
   PID NAME      DEVICE       PRIO STATE     UTIL LAUNCH/S HELD PREEMPT P99 WAIT
    41 serve     0000:00:06.0  100 running    78%     1.2k   0%       2    180us
123456 train-a-… 0000:00:06.0 -100 suspended    -        -    -       2        -
";
        assert_eq!(text, expected.trim_start_matches('\n'));
    }

    #[test]
    fn wide_terminal_shows_full_names() {
        assert!(shown(None).contains("123456 train-a-very-large-model 0000"), "{}", shown(None));
    }

    #[test]
    fn sample_length_is_range_checked() {
        assert_eq!(sample("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(sample("0s").unwrap_err(), "`0s` is out of range: allowed is 1ms to 3600s");
    }
}

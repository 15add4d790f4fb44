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
use crate::term::{self, Glyphs, NOTHING};
use crate::tool::Tool;

/// List what is being scheduled.
///
/// SHARE is the part of the time a task had its device, HELD the part it had work and was held at the gate, both over
/// a short sample; PREEMPT is how often it was stopped since it came, P99 WAIT how long its work waited for the device in
/// the worst of a hundred cases. Launches are counted only while a task shares its device with others.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Show whole command lines.
    #[arg(short, long, conflicts_with = "json")]
    wide: bool,

    /// Print one JSON object: all that the scheduler tells, with the rates of every task.
    #[arg(long)]
    json: bool,

    /// How long to watch for the rates, such as 200ms or 5s.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = sample)]
    sample: Duration,
}

/// A span to watch for: long enough to see something, short enough to wait for.
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
    let tool = Tool::connect()?;
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

/// The status as it came, with the rates put into its tasks.
fn as_json(status: &Status, rates: &HashMap<u64, Rates>) -> anyhow::Result<Value> {
    let mut value = serde_json::to_value(status)?;
    if let Some(fields) = value.as_object_mut() {
        // Packets are the socket's affair: here is everything.
        fields.remove("more");
    }
    for (task, value) in status.tasks.iter().zip(value["tasks"].as_array_mut().into_iter().flatten()) {
        value["rates"] = json!(rates.get(&task.task));
    }
    Ok(value)
}

const HEADINGS: [&str; 10] =
    ["PID", "NAME", "DEVICE", "PRIO", "STATE", "SHARE", "LAUNCH/S", "HELD", "PREEMPT", "P99 WAIT"];
/// The columns of words; the others are numbers and stand to the right.
const WORDS: [usize; 3] = [NAME, 2, 4];
const NAME: usize = 1;
const SHORTEST_NAME: usize = 8;

/// The tasks as a table, or a friendly line if there are none. Names give way if it is wider than `columns`.
fn table(
    status: &Status,
    rates: &HashMap<u64, Rates>,
    wide: bool,
    columns: Option<usize>,
    glyphs: &Glyphs,
) -> String {
    if status.tasks.is_empty() {
        return "nothing is scheduled right now: `xsched run -- PROGRAM` starts a program under the scheduler\n"
            .to_owned();
    }
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    rows.extend(status.tasks.iter().map(|task| cells(task, rates.get(&task.task))));
    let mut widths: [usize; 10] =
        std::array::from_fn(|i| rows.iter().map(|row| term::width(&row[i])).max().unwrap_or(0));
    let total = widths.iter().sum::<usize>() + widths.len() - 1;
    if let Some(columns) = columns.filter(|columns| *columns < total) {
        let room = widths[NAME].saturating_sub(total - columns);
        widths[NAME] = room.max(SHORTEST_NAME.min(widths[NAME]));
    }
    let commands = status.tasks.iter().map(|task| term::printable(&task.cmdline));
    let commands = std::iter::once("COMMAND".to_owned()).chain(commands);
    let mut text = String::new();
    for (row, command) in rows.iter().zip(commands) {
        let mut line = row
            .iter()
            .enumerate()
            .map(|(i, cell)| aligned(&term::fit(cell, widths[i], glyphs), widths[i], WORDS.contains(&i)))
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
    let rate = |show: fn(&Rates) -> String| rates.map_or(NOTHING.to_owned(), show);
    [
        task.pid.to_string(),
        term::name(task),
        DeviceId(task.device).to_string(),
        task.priority.to_string(),
        term::state(task.state).to_owned(),
        rate(|rates| term::percent(rates.utilization)),
        rate(|rates| rates.launches_per_s.map_or(NOTHING.to_owned(), term::per_second)),
        rate(|rates| term::percent(rates.held)),
        task.preemptions.to_string(),
        task.wait_p99_us.map_or(NOTHING.to_owned(), term::duration),
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
    fn names_give_way_on_a_narrow_terminal() {
        let text = shown(Some(80));
        let expected = "
   PID NAME     DEVICE       PRIO STATE     SHARE LAUNCH/S HELD PREEMPT P99 WAIT
    41 serve    0000:00:06.0  100 running     78%     1.2k   0%       2    180us
123456 train-a… 0000:00:06.0 -100 suspended     -        -    -       2        -
";
        assert_eq!(text, expected.trim_start_matches('\n'));
    }

    #[test]
    fn nothing_is_cut_where_there_is_room() {
        assert!(shown(None).contains("123456 train-a-very-large-model 0000"), "{}", shown(None));
    }

    #[test]
    fn samples_have_sensible_lengths() {
        assert_eq!(sample("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(sample("0s").unwrap_err(), "`0s` is out of range: allowed is 1ms to 3600s");
    }
}

//! `xsched ps`.

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::thread;
use std::time::Duration;

use xsched_core::parse_time;
use xsched_core::{DeviceId, Nanos};
use xsched_ipc::protocol::{Status, TaskKind, TaskStatus};

use crate::rates::{self, Rates};
use crate::selection::Selection;
use crate::status;
use crate::term::{self, Glyphs, NO_VALUE};
use crate::tool::ToolConnection;
use crate::users;

/// List the tasks that are being scheduled.
///
/// A task is all queues of one process on one device, or one queue with hints of its own. STATE is idle, running, held
/// (it has work, and the scheduler keeps it from running), suspended (by request), stalled (its process does not run: it
/// was stopped or frozen, or is in a debugger; no other task is held for it) or parked (its device memory is in memory of the host, or
/// is moving). UTIL is the utilization: the part of
/// the sample during which the task had its device, with a ~ if it is an estimate because the task is alone on its device. HELD is the part of the sample during which it was held. PREEMPT counts how
/// often it was preempted since it appeared. P99 WAIT is the 99th percentile of the time its work waited for the device.
/// LAUNCH/S is counted only while several tasks use the device. LEVEL is the preemption level: 1 holds launches, 2 also stops
/// queued commands, 3 also the running one. KIND is what limits a task, if that is known: sync-bound (it waits for each small piece
/// of its work), host-bound (the device is idle for most of the time from its first launch until it waits) or GPU-bound. WASTED is the part
/// of the sample during which the task had work and was allowed to run, and the device had none of its work.
/// USER is shown if the tasks belong to several users, and JOB, the job that is held and resumed as a whole, if some task has one. MEM is the
/// device memory that the process has allocated on the device, if some task has any, and the limit after a slash; what is in memory of the
/// host is in parentheses. A narrow terminal shows
/// fewer columns.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Show whole command lines.
    #[arg(short, long, conflicts_with = "json")]
    wide: bool,

    /// Print one JSON object: everything that the scheduler reports, with the rates of every task.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    selection: Selection,

    /// Sort by this column, instead of device and priority.
    #[arg(short, long, value_name = "COLUMN")]
    sort: Option<SortKey>,

    /// How long to sample for UTIL, HELD and LAUNCH/S, such as 200ms or 5s.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = sample)]
    sample: Duration,
}

/// What the tasks can be sorted by.
#[derive(Clone, Copy, clap::ValueEnum)]
enum SortKey {
    Pid,
    Name,
    Device,
    Priority,
    Util,
    Held,
    Preempt,
    Memory,
}

impl SortKey {
    /// Numbers that measure use are sorted from the highest.
    fn sort(self, tasks: &mut [TaskStatus], rates: &HashMap<u64, Rates>) {
        let rate = |task: &TaskStatus, of: fn(&Rates) -> f64| rates.get(&task.task).map_or(0.0, of);
        match self {
            Self::Pid => tasks.sort_by_key(|task| task.pid),
            Self::Name => tasks.sort_by_cached_key(term::name),
            Self::Device => tasks.sort_by_key(|task| task.device),
            Self::Priority => tasks.sort_by_key(|task| -task.priority),
            Self::Util => {
                tasks.sort_by(|a, b| rate(b, |r| r.utilization).total_cmp(&rate(a, |r| r.utilization)));
            }
            Self::Held => tasks.sort_by(|a, b| rate(b, |r| r.held).total_cmp(&rate(a, |r| r.held))),
            Self::Preempt => tasks.sort_by_key(|task| std::cmp::Reverse(task.preemptions)),
            Self::Memory => tasks.sort_by_key(|task| std::cmp::Reverse(task.memory_bytes)),
        }
    }
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
    let rates = rates::between(&old, &new);
    let scheduled = new.tasks.len();
    args.selection.apply(&mut new);
    status::sort(&mut new.tasks);
    if let Some(key) = args.sort {
        key.sort(&mut new.tasks, &rates);
    }
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &status::to_json(&new, &rates)?).map_err(io::Error::from)?;
        writeln!(out)?;
    } else if new.tasks.is_empty() && scheduled > 0 {
        writeln!(out, "none of the {scheduled} tasks matches --user and --device")?;
    } else {
        let columns = if args.wide { None } else { term::size().0 };
        write!(out, "{}", table(&new, &rates, args.wide, columns.map(usize::from), Glyphs::of_locale()))?;
    }
    Ok(())
}

/// A column of the table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    Pid,
    User,
    Name,
    Job,
    Device,
    Level,
    Priority,
    State,
    Kind,
    Utilization,
    Launches,
    Held,
    Wasted,
    Preemptions,
    WaitP99,
    Memory,
}

use Column::{
    Device, Held, Job, Kind, Launches, Level, Memory, Name, Pid, Preemptions, Priority, State, User,
    Utilization, WaitP99, Wasted,
};

const COLUMNS: [Column; 16] = [
    Pid,
    User,
    Name,
    Job,
    Device,
    Level,
    Priority,
    State,
    Kind,
    Utilization,
    Launches,
    Held,
    Wasted,
    Preemptions,
    WaitP99,
    Memory,
];
/// The columns that a narrow terminal does not show, the first to be left out first.
const LEFT_OUT: [Column; 9] = [Level, Wasted, Kind, User, Launches, Preemptions, Job, WaitP99, Memory];
const MIN_NAME_WIDTH: usize = 8;

impl Column {
    fn heading(self) -> &'static str {
        match self {
            Pid => "PID",
            User => "USER",
            Name => "NAME",
            Job => "JOB",
            Device => "DEVICE",
            Level => "LEVEL",
            Priority => "PRIO",
            State => "STATE",
            Kind => "KIND",
            Utilization => "UTIL",
            Launches => "LAUNCH/S",
            Held => "HELD",
            Wasted => "WASTED",
            Preemptions => "PREEMPT",
            WaitP99 => "P99 WAIT",
            Memory => "MEM",
        }
    }

    /// Text is aligned left, numbers are aligned right.
    fn is_text(self) -> bool {
        matches!(self, User | Name | Job | Device | State | Kind)
    }

    fn cell(self, status: &Status, task: &TaskStatus, rates: Option<&Rates>) -> String {
        let rate = |show: fn(&Rates) -> String| rates.map_or(NO_VALUE.to_owned(), show);
        match self {
            Pid => task.pid.to_string(),
            User => users::name_of(task.uid),
            Name => term::name(task),
            Job => task.job.as_deref().map_or(NO_VALUE.to_owned(), term::printable),
            Device => DeviceId(task.device).to_string(),
            Level => status::level(status, task).map_or(NO_VALUE.to_owned(), |level| level.to_string()),
            Priority => task.priority.to_string(),
            State => task.state.name().to_owned(),
            Kind => task.kind.map_or(NO_VALUE, TaskKind::name).to_owned(),
            Utilization => rate(term::utilization),
            Launches => rate(|rates| rates.launches_per_s.map_or(NO_VALUE.to_owned(), term::per_second)),
            Held => rate(|rates| term::percent(rates.held)),
            Wasted => rate(|rates| term::percent(rates.wasted)),
            Preemptions => task.preemptions.to_string(),
            WaitP99 => task.wait_p99_us.map_or(NO_VALUE.to_owned(), term::duration),
            Memory => term::memory(task),
        }
    }
}

/// The tasks as a table, or one line if there are none. If the table is wider than `columns`, names are cut, and then columns are
/// left out.
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
    let has_jobs = status.tasks.iter().any(|task| task.job.is_some());
    let has_memory = status.tasks.iter().any(|task| task.memory_bytes.is_some());
    let has_kinds = status.tasks.iter().any(|task| task.kind.is_some());
    let has_waste = status.tasks.iter().any(|task| task.wasted_ns > 0);
    let has_users = status.tasks.iter().any(|task| task.uid != status.tasks[0].uid);
    let mut shown: Vec<(Column, Vec<String>)> = COLUMNS
        .into_iter()
        .filter(|column| match column {
            Job => has_jobs,
            Memory => has_memory,
            User => has_users,
            Kind => has_kinds,
            Wasted => has_waste,
            _ => true,
        })
        .map(|column| {
            let cells = status.tasks.iter().map(|task| column.cell(status, task, rates.get(&task.task)));
            (column, std::iter::once(column.heading().to_owned()).chain(cells).collect())
        })
        .collect();
    let width_of = |cells: &[String]| cells.iter().map(|cell| term::width(cell)).max().unwrap_or(0);
    // The width without the names, which are cut to the rest.
    let fixed = |shown: &[(Column, Vec<String>)]| {
        shown
            .iter()
            .filter(|(column, _)| *column != Name)
            .map(|(_, cells)| width_of(cells) + 1)
            .sum::<usize>()
    };
    let mut name_width = usize::MAX;
    if let Some(columns) = columns {
        for left_out in LEFT_OUT {
            if fixed(&shown) + MIN_NAME_WIDTH > columns {
                shown.retain(|(column, _)| *column != left_out);
            }
        }
        name_width = columns.saturating_sub(fixed(&shown)).max(MIN_NAME_WIDTH);
    }
    let commands = status.tasks.iter().map(|task| term::printable(&task.cmdline));
    let commands = std::iter::once("COMMAND".to_owned()).chain(commands);
    let mut text = String::new();
    for (row, command) in commands.enumerate() {
        let cells = shown.iter().map(|(column, cells)| {
            let width = if *column == Name { width_of(cells).min(name_width) } else { width_of(cells) };
            aligned(&term::fit(&cells[row], width, glyphs), width, column.is_text())
        });
        let mut line = cells.collect::<Vec<_>>().join(" ");
        if wide {
            line.push_str("  ");
            line.push_str(&command);
        }
        let line = line.trim_end();
        text.push_str(&columns.map_or_else(|| line.to_owned(), |columns| term::fit(line, columns, glyphs)));
        text.push('\n');
    }
    let notes = status.unscheduled.iter().map(term::unscheduled);
    for line in status.tasks.iter().filter_map(term::not_deferred).chain(notes) {
        text.push_str(&columns.map_or_else(|| line.clone(), |columns| term::fit(&line, columns, glyphs)));
        text.push('\n');
    }
    text
}

fn aligned(text: &str, width: usize, left: bool) -> String {
    let gap = " ".repeat(width.saturating_sub(term::width(text)));
    if left { format!("{text}{gap}") } else { format!("{gap}{text}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xsched_ipc::protocol::{QueueStatus, TaskState};

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
        let queue = |task, level| QueueStatus { task, level, ..QueueStatus::default() };
        let queues = vec![queue(1, 3), queue(2, 2), queue(2, 1)];
        Status { tasks: vec![serve, train], queues, ..Status::default() }
    }

    fn shown(columns: Option<usize>) -> String {
        let rates = Rates {
            utilization: 0.784,
            launches_per_s: Some(1234.0),
            preemptions_per_s: 1.0,
            ..Rates::default()
        };
        table(&status(), &HashMap::from([(1, rates)]), false, columns, Glyphs::UNICODE)
    }

    #[test]
    fn narrow_terminal_cuts_names_and_then_leaves_columns_out() {
        let text = shown(Some(88));
        let expected = "
   PID NAME        DEVICE       LEVEL PRIO STATE     UTIL LAUNCH/S HELD PREEMPT P99 WAIT
    41 serve       0000:00:06.0     3  100 running    78%     1.2k   0%       2    180us
123456 train-a-ve… 0000:00:06.0     1 -100 suspended    -        -    -       2        -
";
        assert_eq!(text, expected.trim_start_matches('\n'));
        let text = shown(Some(80));
        let expected = "
   PID NAME      DEVICE       PRIO STATE     UTIL LAUNCH/S HELD PREEMPT P99 WAIT
    41 serve     0000:00:06.0  100 running    78%     1.2k   0%       2    180us
123456 train-a-… 0000:00:06.0 -100 suspended    -        -    -       2        -
";
        assert_eq!(text, expected.trim_start_matches('\n'));
        let text = shown(Some(60));
        let expected = "
   PID NAME            DEVICE       PRIO STATE     UTIL HELD
    41 serve           0000:00:06.0  100 running    78%   0%
";
        assert!(text.starts_with(expected.trim_start_matches('\n')), "{text}");
    }

    #[test]
    fn users_are_shown_if_there_are_several() {
        let mut status = status();
        status.tasks[1].uid = 4_000_000_000;
        let text = table(&status, &HashMap::new(), false, None, Glyphs::UNICODE);
        assert!(text.starts_with("   PID USER       NAME"), "{text}");
        assert!(text.contains("123456 4000000000 train"), "{text}");
    }

    #[test]
    fn tasks_are_sorted_by_the_given_column() {
        let mut tasks = status().tasks;
        let busy = Rates { utilization: 0.5, ..Rates::default() };
        SortKey::Util.sort(&mut tasks, &HashMap::from([(2, busy)]));
        assert_eq!(tasks[0].task, 2);
        SortKey::Pid.sort(&mut tasks, &HashMap::new());
        assert_eq!(tasks[0].task, 1);
    }

    #[test]
    fn kinds_are_shown_if_some_task_has_one() {
        let mut status = status();
        assert!(!table(&status, &HashMap::new(), false, None, Glyphs::UNICODE).contains("KIND"));
        status.tasks[0].kind = Some(TaskKind::SyncBound);
        let text = table(&status, &HashMap::new(), false, None, Glyphs::UNICODE);
        assert!(
            text.contains("STATE     KIND       UTIL") && text.contains("running   sync-bound"),
            "{text}"
        );
        assert!(text.contains("suspended -  "), "{text}");
    }

    #[test]
    fn jobs_are_shown_if_some_task_has_one() {
        let mut status = status();
        status.tasks[1].job = Some("llama".into());
        let text = table(&status, &HashMap::new(), false, None, Glyphs::UNICODE);
        assert!(text.starts_with("   PID NAME                     JOB   DEVICE"), "{text}");
        assert!(text.contains("train-a-very-large-model llama 0000"), "{text}");
        assert!(text.contains("serve                    -     0000"), "{text}");
    }

    #[test]
    fn memory_and_its_limit_are_shown_if_some_task_has_any() {
        let mut status = status();
        status.tasks[0].memory_bytes = Some(3 << 29);
        status.tasks[0].memory_limit_bytes = Some(20 << 30);
        let text = table(&status, &HashMap::new(), false, None, Glyphs::UNICODE);
        let cells = |row| text.lines().nth(row).unwrap().split_whitespace().last().unwrap().to_owned();
        assert_eq!([cells(0), cells(1), cells(2)], ["MEM", "1.5G/20G", "-"], "{text}");
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

//! `xsched set`.

use std::io::{self, Write as _};

use anyhow::Context as _;
use xsched_core::parse_time;
use xsched_core::{Deadline, Laxity, Nanos, Priority, Share};
use xsched_ipc::protocol::{HintRequest, Request, Status, Target, TaskStatus};

use crate::term::{self, Glyphs};
use crate::tool::ToolConnection;

/// Change the priority, share, deadline or laxity of a running program, or suspend it.
///
/// Each hint is used by some policies: the priority by priority, priority-all and fair; the share by share, share-process,
/// quota and lottery; the deadline by deadline; the laxity by laxity. Every user may lower the priority of their own programs.
/// To raise a priority above normal, or to change programs of other users, you must be root or a member of the group
/// `xsched`, unless the service is your own.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("change").required(true).multiple(true))]
pub(crate) struct Args {
    /// The process ID, or the name of all programs to change.
    #[arg(value_name = "PID|NAME", value_parser = target)]
    target: Target,

    /// Priority: -255 to 255, low (-100), normal (0) or high (100). A task of higher priority preempts those of lower
    /// priority; -256 never runs.
    #[arg(short, long, group = "change", value_name = "N", allow_negative_numbers = true)]
    #[arg(value_parser = str::parse::<Priority>)]
    priority: Option<Priority>,

    /// Share: the percentage of the device's time that is requested.
    #[arg(short, long, group = "change", value_name = "PERCENT", allow_negative_numbers = true, value_parser = share)]
    share: Option<Share>,

    /// Deadline: the time from when work arrives until it is to be complete, such as 5ms; or none.
    #[arg(long, group = "change", value_name = "TIME", value_parser = deadline)]
    deadline: Option<Setting<Deadline>>,

    /// Laxity: how long work may wait before it becomes critical, such as 5ms; or none. The task has its own priority before
    /// and the highest priority after, unless both are given: 5ms:-10:50.
    #[arg(long, group = "change", value_name = "TIME[:BEFORE:AFTER]", value_parser = laxity)]
    laxity: Option<Setting<LaxityArg>>,

    /// Suspend it: hold all its launches until it is resumed.
    #[arg(long, group = "change", conflicts_with = "resume")]
    suspend: bool,

    /// Resume it after --suspend.
    #[arg(long, group = "change")]
    resume: bool,
}

/// A new value for a hint, or its removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting<T> {
    Clear,
    To(T),
}

/// A laxity as typed: the time, and the priorities before and after it if given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LaxityArg {
    span_us: i64,
    priorities: Option<(Priority, Priority)>,
}

#[allow(clippy::unnecessary_wraps, reason = "what clap calls a value parser")]
fn target(text: &str) -> Result<Target, String> {
    Ok(text.parse().map_or_else(|_| Target::Name(text.to_owned()), Target::Pid))
}

fn share(text: &str) -> Result<Share, String> {
    let number = text.trim_end_matches('%').trim_end();
    let percent = number.parse().map_err(|_| format!("`{text}` is not a number of percent, 0 to 100"))?;
    Share::new(percent).map_err(|error| error.to_string())
}

fn deadline(text: &str) -> Result<Setting<Deadline>, String> {
    if text.eq_ignore_ascii_case("none") {
        return Ok(Setting::Clear);
    }
    Deadline::from_micros(micros(text)?).map(Setting::To).map_err(|error| error.to_string())
}

fn laxity(text: &str) -> Result<Setting<LaxityArg>, String> {
    if text.eq_ignore_ascii_case("none") {
        return Ok(Setting::Clear);
    }
    let priority = |text: &str| text.parse::<Priority>().map_err(|error| error.to_string());
    let (span, priorities) = match text.split(':').collect::<Vec<_>>()[..] {
        [span] => (span, None),
        [span, before, after] => (span, Some((priority(before)?, priority(after)?))),
        _ => return Err(format!("`{text}` is not TIME or TIME:BEFORE:AFTER, such as 5ms:-10:50")),
    };
    let span_us = micros(span)?;
    Laxity::new(span_us, 0, 0).map_err(|error| error.to_string())?;
    Ok(Setting::To(LaxityArg { span_us, priorities }))
}

fn micros(text: &str) -> Result<i64, String> {
    let Nanos(ns) = parse_time(text)?;
    i64::try_from(ns / 1_000).map_err(|error| error.to_string())
}

impl Args {
    /// Whether the target includes this task.
    fn matches(&self, task: &TaskStatus) -> bool {
        match &self.target {
            Target::Pid(pid) => task.pid == *pid,
            Target::Name(name) => task.name == *name,
        }
    }

    /// What to request for tasks whose current priority is in `status`.
    fn hint_request(&self, status: &Status) -> HintRequest {
        let own_priority = || {
            let priority = self.priority.map(Priority::get);
            let now = status.tasks.iter().find(|task| self.matches(task)).map(|task| task.priority);
            priority.or(now).unwrap_or(Priority::DEFAULT.get())
        };
        HintRequest {
            priority: self.priority.map(|priority| priority.get().into()),
            share: self.share.map(|share| share.percent().into()),
            deadline_us: self.deadline.map(|setting| match setting {
                Setting::Clear => -1,
                Setting::To(deadline) => i64::try_from(deadline.get().0 / 1_000).unwrap_or(i64::MAX),
            }),
            laxity: self.laxity.map(|setting| match setting {
                Setting::Clear => (-1, 0, 0),
                Setting::To(LaxityArg { span_us, priorities: Some((before, after)) }) => {
                    (span_us, before.get().into(), after.get().into())
                }
                Setting::To(LaxityArg { span_us, priorities: None }) => {
                    (span_us, own_priority().into(), Priority::MAX.get().into())
                }
            }),
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let tool = ToolConnection::connect()?;
    let before = tool.status()?;
    let (target, hint_request) = (&args.target, args.hint_request(&before));
    let unchanged = || match target {
        Target::Pid(pid) => format!("pid {pid} was not changed"),
        Target::Name(name) => format!("`{name}` was not changed"),
    };
    let mut requests = Vec::new();
    if hint_request != HintRequest::default() {
        requests.push(Request::Set { target: target.clone(), hint_request });
    }
    if args.suspend {
        requests.push(Request::Suspend(target.clone()));
    }
    if args.resume {
        requests.push(Request::Resume(target.clone()));
    }
    for request in &requests {
        tool.request(request).with_context(unchanged)?;
    }
    let after = tool.status()?;
    let mut out = io::stdout().lock();
    for line in changes(args, &before, &after, Glyphs::of_locale()) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// One line for each program: what was requested, and its value before.
fn changes(args: &Args, before: &Status, after: &Status, glyphs: &Glyphs) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for now in after.tasks.iter().filter(|task| args.matches(task)) {
        let old = before.tasks.iter().find(|old| old.task == now.task);
        let line = format!("{} (pid {}): {}", term::name(now), now.pid, what_changed(args, old, now, glyphs));
        // A program has a task on every device it uses: identical lines are printed once.
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    if lines.is_empty() {
        let target = match &args.target {
            Target::Pid(pid) => format!("pid {pid}"),
            Target::Name(name) => term::printable(name),
        };
        lines.push(format!("{target}: changed; it has no task on a device yet"));
    }
    lines
}

fn what_changed(args: &Args, old: Option<&TaskStatus>, now: &TaskStatus, glyphs: &Glyphs) -> String {
    let span = |us: Option<u64>| us.map_or("none".to_owned(), term::duration);
    let mut parts = Vec::new();
    let mut add = |requested: bool, name: &str, value: &dyn Fn(&TaskStatus) -> String| {
        if requested {
            parts.push(match (old.map(value), value(now)) {
                (Some(old), new) if old != new => format!("{name} {old} {} {new}", glyphs.arrow),
                (Some(_), new) => format!("{name} {new} as before"),
                (None, new) => format!("{name} {new}"),
            });
        }
    };
    add(args.priority.is_some(), "priority", &|task| task.priority.to_string());
    add(args.share.is_some(), "share", &|task| format!("{}%", task.share));
    add(args.deadline.is_some(), "deadline", &|task| span(task.deadline_us));
    add(args.laxity.is_some(), "laxity", &|task| span(task.laxity_us));
    if args.suspend {
        parts.push("suspended".to_owned());
    }
    if args.resume {
        parts.push("resumed".to_owned());
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_a_pid_and_text_is_a_name() {
        assert_eq!(target("42"), Ok(Target::Pid(42)));
        assert_eq!(target("python3"), Ok(Target::Name("python3".into())));
    }

    #[test]
    fn values_out_of_range_are_rejected_with_their_name() {
        assert_eq!(share("30%"), Ok(Share::new(30).unwrap()));
        assert_eq!(share("101").unwrap_err(), "share 101 is out of range: allowed is 0 to 100 (percent)");
        assert_eq!(deadline("5ms"), Ok(Setting::To(Deadline::from_micros(5_000).unwrap())));
        assert_eq!(deadline("none"), Ok(Setting::Clear));
        assert!(deadline("0s").unwrap_err().contains("deadline 0 is out of range"));
        assert_eq!(laxity("5ms"), Ok(Setting::To(LaxityArg { span_us: 5_000, priorities: None })));
        let priorities = Some((Priority::LOW, Priority::new(7).unwrap()));
        assert_eq!(laxity("200us:low:7"), Ok(Setting::To(LaxityArg { span_us: 200, priorities })));
        assert!(laxity("5ms:3").unwrap_err().contains("TIME:BEFORE:AFTER"));
        assert!(laxity("5ms:900:1").unwrap_err().contains("priority 900 is out of range"));
    }
}

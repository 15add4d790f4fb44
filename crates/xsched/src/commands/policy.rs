//! `xsched policy`.

use std::io::{self, Write as _};

use serde::Serialize;
use xsched_core::parse_time;
use xsched_core::{Nanos, Timeslice};
use xsched_ipc::protocol::{Reply, Request};
use xsched_policy::{POLICIES, PolicyInfo, Scope};

use crate::term;
use crate::tool::{Tool, ToolError};

/// Show or change the scheduling policy.
///
/// Without a name, shows the policy at work and all there are. A change takes effect at once for everything that runs.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The policy to use, by either of its names.
    #[arg(value_parser = PolicyInfo::find)]
    name: Option<&'static PolicyInfo>,

    /// How long a turn lasts under the policies that take turns, such as 5ms.
    #[arg(long, value_name = "TIME", value_parser = timeslice)]
    timeslice: Option<Timeslice>,

    /// How many tasks run at once under `deadline`.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    k: Option<u32>,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

fn timeslice(text: &str) -> Result<Timeslice, String> {
    let Nanos(ns) = parse_time(text)?;
    let us = i64::try_from(ns / 1_000).map_err(|error| error.to_string())?;
    Timeslice::from_micros(us).map_err(|error| error.to_string())
}

/// What is at work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct AtWork {
    policy: String,
    timeslice_us: u64,
    k: usize,
}

impl AtWork {
    fn is(&self, info: &PolicyInfo) -> bool {
        self.policy.eq_ignore_ascii_case(info.name)
    }

    /// In words: `priority (HPF), turns of 5ms`.
    fn in_words(&self) -> String {
        let name = PolicyInfo::find(&self.policy)
            .map_or_else(|_| self.policy.clone(), |info| format!("{} ({})", info.plain, info.name));
        let k = if self.policy.eq_ignore_ascii_case("KEDF") {
            format!(", {} at once", self.k)
        } else {
            String::new()
        };
        format!("{name}, turns of {}{k}", term::duration(self.timeslice_us))
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let changes = args.name.is_some() || args.timeslice.is_some() || args.k.is_some();
    let mut out = io::stdout().lock();
    let tool = match Tool::connect() {
        Ok(tool) => tool,
        // Which policies there are can be told without a scheduler.
        Err(error @ ToolError::NoService { .. }) if !changes && !args.json => {
            write!(out, "{}", list(None))?;
            writeln!(out, "\n{error}")?;
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let before = at_work(&tool, None, None, None)?;
    let at_work = if changes {
        let timeslice_us = args.timeslice.map(|slice| i64::try_from(slice.get().0 / 1_000)).transpose()?;
        at_work(&tool, args.name.map(|info| info.name.to_owned()), timeslice_us, args.k)?
    } else {
        before.clone()
    };
    if args.json {
        serde_json::to_writer_pretty(&mut out, &as_json(&at_work)).map_err(io::Error::from)?;
        writeln!(out)?;
    } else if !changes {
        write!(out, "policy: {}\n\n{}", at_work.in_words(), list(Some(&at_work)))?;
    } else if before == at_work {
        writeln!(out, "policy: {}, as before", at_work.in_words())?;
    } else {
        writeln!(out, "policy: {}; before: {}", at_work.in_words(), before.in_words())?;
    }
    Ok(())
}

/// Changes what is given and tells what is at work then.
fn at_work(
    tool: &Tool,
    name: Option<String>,
    timeslice_us: Option<i64>,
    k: Option<u32>,
) -> anyhow::Result<AtWork> {
    let changes = name.is_some() || timeslice_us.is_some() || k.is_some();
    let k = k.map(usize::try_from).transpose()?;
    match tool.request(&Request::Policy { name, timeslice_us, k })? {
        Reply::Policy { name, timeslice_us, k } => Ok(AtWork { policy: name, timeslice_us, k }),
        // A change may be answered with no more than that it was done.
        Reply::Done if changes => at_work(tool, None, None, None),
        _ => Err(tool.unexpected().into()),
    }
}

/// Every policy with its rule, a line each; the one at work is marked.
fn list(at_work: Option<&AtWork>) -> String {
    let mut text = String::new();
    for info in POLICIES {
        let mark = if at_work.is_some_and(|at_work| at_work.is(info)) { '*' } else { ' ' };
        let line = format!("{mark} {:<13}  {:<4}  {}\n", info.plain, info.name, info.summary);
        text.push_str(&line);
    }
    text
}

#[derive(Serialize)]
struct Json<'a> {
    #[serde(flatten)]
    at_work: &'a AtWork,
    policies: Vec<JsonPolicy>,
}

#[derive(Serialize)]
struct JsonPolicy {
    name: &'static str,
    plain: &'static str,
    number: u32,
    scope: &'static str,
    work_conserving: bool,
    summary: &'static str,
    at_work: bool,
}

fn as_json(at_work: &AtWork) -> Json<'_> {
    let policies = POLICIES
        .iter()
        .map(|info| JsonPolicy {
            name: info.name,
            plain: info.plain,
            number: info.number,
            scope: match info.scope {
                Scope::Device => "device",
                Scope::Machine => "machine",
            },
            work_conserving: info.work_conserving,
            summary: info.summary,
            at_work: at_work.is(info),
        })
        .collect();
    Json { at_work, policies }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_at_work_is_marked_and_every_line_fits_a_terminal() {
        let at_work = AtWork { policy: "UP".into(), timeslice_us: 5_000, k: 1 };
        let text = list(Some(&at_work));
        assert_eq!(text.matches('*').count(), 1);
        assert!(text.contains("* share          UP    tasks take turns"), "{text}");
        assert!(text.lines().all(|line| line.len() <= 110), "{text}");
        assert_eq!(at_work.in_words(), "share (UP), turns of 5.0ms");
    }

    #[test]
    fn turns_have_a_range() {
        assert_eq!(timeslice("5ms"), Ok(Timeslice::DEFAULT));
        assert!(timeslice("1us").unwrap_err().contains("timeslice 1 is out of range"));
    }
}

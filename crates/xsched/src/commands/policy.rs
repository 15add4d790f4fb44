//! `xsched policy`.

use std::io::{self, Write as _};

use serde::Serialize;
use xsched_core::parse_time;
use xsched_core::{Nanos, Timeslice};
use xsched_ipc::protocol::{Reply, Request};
use xsched_policy::{POLICIES, PolicyInfo, Scope};

use crate::term;
use crate::tool::{ToolConnection, ToolError};

/// Show or change the scheduling policy.
///
/// Without a name, shows the policy in use and lists all policies. A change takes effect at once for all tasks.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The policy to use, by either of its names.
    #[arg(value_parser = PolicyInfo::find)]
    name: Option<&'static PolicyInfo>,

    /// Time slice of the policies that use one, such as 5ms.
    #[arg(long, value_name = "TIME", value_parser = timeslice)]
    timeslice: Option<Timeslice>,

    /// How many tasks run concurrently under the policy deadline.
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

/// The policy in use and its parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct CurrentPolicy {
    policy: String,
    timeslice_us: u64,
    k: usize,
}

impl CurrentPolicy {
    fn is(&self, info: &PolicyInfo) -> bool {
        self.policy.eq_ignore_ascii_case(info.name)
    }

    /// As text: `priority (HPF), time slice 5ms`.
    fn describe(&self) -> String {
        let name = PolicyInfo::find(&self.policy)
            .map_or_else(|_| self.policy.clone(), |info| format!("{} ({})", info.plain, info.name));
        let k = if self.policy.eq_ignore_ascii_case("KEDF") {
            format!(", {} concurrent", self.k)
        } else {
            String::new()
        };
        format!("{name}, time slice {}{k}", term::duration(self.timeslice_us))
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let changes = args.name.is_some() || args.timeslice.is_some() || args.k.is_some();
    let mut out = io::stdout().lock();
    let tool = match ToolConnection::connect() {
        Ok(tool) => tool,
        // The list of policies needs no service.
        Err(error @ ToolError::NoService { .. }) if !changes && !args.json => {
            write!(out, "{}", list(None))?;
            writeln!(out, "\n{error}")?;
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let before = request_policy(&tool, None, None, None)?;
    let current = if changes {
        let timeslice_us = args.timeslice.map(|slice| i64::try_from(slice.get().0 / 1_000)).transpose()?;
        request_policy(&tool, args.name.map(|info| info.name.to_owned()), timeslice_us, args.k)?
    } else {
        before.clone()
    };
    if args.json {
        serde_json::to_writer_pretty(&mut out, &as_json(&current)).map_err(io::Error::from)?;
        writeln!(out)?;
    } else if !changes {
        write!(out, "policy: {}\n\n{}", current.describe(), list(Some(&current)))?;
    } else if before == current {
        writeln!(out, "policy: {}, as before", current.describe())?;
    } else {
        writeln!(out, "policy: {}; before: {}", current.describe(), before.describe())?;
    }
    Ok(())
}

/// Changes the given settings and returns the policy then in use.
fn request_policy(
    tool: &ToolConnection,
    name: Option<String>,
    timeslice_us: Option<i64>,
    k: Option<u32>,
) -> anyhow::Result<CurrentPolicy> {
    let changes = name.is_some() || timeslice_us.is_some() || k.is_some();
    let k = k.map(usize::try_from).transpose()?;
    match tool.request(&Request::Policy { name, timeslice_us, k })? {
        Reply::Policy { name, timeslice_us, k } => Ok(CurrentPolicy { policy: name, timeslice_us, k }),
        // The reply to a change need not contain the policy.
        Reply::Done if changes => request_policy(tool, None, None, None),
        _ => Err(tool.unexpected().into()),
    }
}

/// Every policy with its summary, one line each; a star marks the policy in use.
fn list(current: Option<&CurrentPolicy>) -> String {
    let mut text = String::new();
    for info in POLICIES {
        let mark = if current.is_some_and(|current| current.is(info)) { '*' } else { ' ' };
        let line = format!("{mark} {:<13}  {:<4}  {}\n", info.plain, info.name, info.summary);
        text.push_str(&line);
    }
    text
}

#[derive(Serialize)]
struct Json<'a> {
    #[serde(flatten)]
    current: &'a CurrentPolicy,
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
    in_use: bool,
}

fn as_json(current: &CurrentPolicy) -> Json<'_> {
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
            in_use: current.is(info),
        })
        .collect();
    Json { current, policies }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_in_use_is_marked_and_lines_are_short() {
        let current = CurrentPolicy { policy: "UP".into(), timeslice_us: 5_000, k: 1 };
        let text = list(Some(&current));
        assert_eq!(text.matches('*').count(), 1);
        assert!(text.contains("* share          UP    time slices in proportion"), "{text}");
        assert!(text.lines().all(|line| line.len() <= 110), "{text}");
        assert_eq!(current.describe(), "share (UP), time slice 5.0ms");
    }

    #[test]
    fn time_slice_is_range_checked() {
        assert_eq!(timeslice("5ms"), Ok(Timeslice::DEFAULT));
        assert!(timeslice("1us").unwrap_err().contains("timeslice 1 is out of range"));
    }
}

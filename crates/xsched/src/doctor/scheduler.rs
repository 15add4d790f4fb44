//! Is there a service, can we talk to it, and what does it see?

use std::collections::BTreeMap;
use std::path::PathBuf;

use xsched_ipc::protocol::Status;
use xsched_policy::PolicyInfo;

use super::{Check, Group, Machine};
use crate::term;
use crate::tool::{ToolConnection, ToolError};

const HERE: Group = Group::Scheduler;
const OUR_VERSION: &str = env!("CARGO_PKG_VERSION");

/// The service: reachable, of our version, and what it schedules.
pub(super) fn service(machine: &Machine) -> Vec<Check> {
    let (at, status) = match connect(machine) {
        Ok(found) => found,
        Err(error) => return vec![unreachable(machine, &error)],
    };
    let mut checks = vec![version(&at, &status)];
    checks.extend(sees(&status));
    checks
}

fn connect(machine: &Machine) -> Result<(PathBuf, Status), ToolError> {
    let tool = ToolConnection::connect_to_first(machine.sockets.clone())?;
    let status = tool.status()?;
    Ok((tool.socket().to_owned(), status))
}

fn unreachable(machine: &Machine, error: &ToolError) -> Check {
    match error {
        ToolError::NoService { looked } => {
            let places: Vec<_> = looked.iter().map(|path| path.display().to_string()).collect();
            let mut what = format!("no scheduler is running (looked at {})", places.join(", "));
            if let Some(left) = looked.iter().find(|path| path.exists()) {
                what = format!("no scheduler is running; {} is left over from one that died", left.display());
            }
            if machine.variable("XSCHED_SOCKET").is_some() {
                what.push_str("; XSCHED_SOCKET rules all other places out");
            } else if machine.uid != 0 && machine.variable("XDG_RUNTIME_DIR").is_none() {
                what.push_str("; this user can start none, for XDG_RUNTIME_DIR is not set");
                let do_next = "set it: `export XDG_RUNTIME_DIR=/run/user/$(id -u)`; or name a place for the socket in \
                               XSCHED_SOCKET";
                return Check::problem(HERE, "service", what, do_next);
            }
            Check::warning(
                HERE,
                "service",
                what,
                "`xsched run` starts one when it is needed; or run `xsched serve`",
            )
        }
        ToolError::NotAllowed { at, .. } => Check::problem(
            HERE,
            "service",
            format!("a scheduler listens at {}, but this user may not talk to it", at.display()),
            "ask to be put into the group `xsched`: `sudo usermod -aG xsched $USER`, then log in again",
        ),
        ToolError::NoReply { .. } => Check::problem(
            HERE,
            "service",
            error.to_string(),
            "look whether it is stopped (`ps`), then end it and start it again; programs run on without it",
        ),
        ToolError::ConnectionFailed { .. } | ToolError::UnexpectedReply { .. } | ToolError::Refused(_) => {
            Check::problem(
                HERE,
                "service",
                error.to_string(),
                format!("restart it so that it is version {OUR_VERSION}, as this program is"),
            )
        }
    }
}

fn version(at: &std::path::Path, status: &Status) -> Check {
    let version = term::printable(&status.version);
    let policy = PolicyInfo::find(&status.policy)
        .map_or_else(|_| term::printable(&status.policy), |info| format!("{} ({})", info.plain, info.name));
    let what = format!("version {version} (pid {}) answers at {}; policy {policy}", status.pid, at.display());
    if version == OUR_VERSION {
        return Check::ok(HERE, "service", what);
    }
    let what = format!("{what}; this program is version {OUR_VERSION}");
    Check::warning(
        HERE,
        "service",
        what,
        "restart the service; programs that run keep running and join again",
    )
}

/// A line for each device that the service knows of.
fn sees(status: &Status) -> Vec<Check> {
    if status.tasks.is_empty() {
        let what = "nothing is scheduled right now: `xsched run -- PROGRAM` starts a program under it";
        return vec![Check::ok(HERE, "sees", what)];
    }
    let mut devices = BTreeMap::<u64, usize>::new();
    for task in &status.tasks {
        *devices.entry(task.device).or_default() += 1;
    }
    let line = |(device, tasks): (u64, usize)| {
        let levels = status.queues.iter().filter(|queue| queue.device == device).map(|queue| queue.level);
        let level = match (levels.clone().min(), levels.max()) {
            (Some(low), Some(high)) if low < high => format!(", queues at level {low} to {high}"),
            (Some(level), _) => format!(", queues at level {level}"),
            _ => String::new(),
        };
        let tasks = if tasks == 1 { "1 task".to_owned() } else { format!("{tasks} tasks") };
        Check::ok(HERE, "sees", format!("{tasks} on {}{level}", term::device(device)))
    };
    devices.into_iter().map(line).collect()
}

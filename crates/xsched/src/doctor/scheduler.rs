//! Whether a service runs, whether this user can connect to it, and its tasks.

use std::collections::BTreeMap;
use std::path::PathBuf;

use xsched_ipc::protocol::{Status, UnscheduledProcess};
use xsched_policy::PolicyInfo;

use super::{Check, Group, Machine};
use crate::term;
use crate::tool::{ToolConnection, ToolError};

const HERE: Group = Group::Scheduler;
const THIS_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Whether the service is reachable and has the version of this program, and its tasks.
pub(super) fn service(machine: &Machine) -> Vec<Check> {
    let (at, status) = match connect(machine) {
        Ok(found) => found,
        Err(error) => return vec![unreachable(machine, &error)],
    };
    let mut checks = vec![version(&at, &status)];
    checks.extend(tasks(&status));
    checks.extend(status.unscheduled.iter().map(unscheduled));
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
            let paths: Vec<_> = looked.iter().map(|path| path.display().to_string()).collect();
            let mut what = format!("no scheduler is running (looked at {})", paths.join(", "));
            if let Some(left) = looked.iter().find(|path| path.exists()) {
                what = format!(
                    "no scheduler is running; {} is left over from a service that died",
                    left.display()
                );
            }
            if machine.variable("XSCHED_SOCKET").is_some() {
                what.push_str("; only the path in XSCHED_SOCKET is searched");
            } else if machine.uid != 0 && machine.variable("XDG_RUNTIME_DIR").is_none() {
                what.push_str("; this user cannot start a service, because XDG_RUNTIME_DIR is not set");
                let do_next = "set it: `export XDG_RUNTIME_DIR=/run/user/$(id -u)`; or set XSCHED_SOCKET to a path for \
                               the socket";
                return Check::problem(HERE, "service", what, do_next);
            }
            Check::warning(
                HERE,
                "service",
                what,
                "`xsched run` starts a service if none runs; or run `xsched serve`",
            )
        }
        ToolError::NotAllowed { at, .. } => Check::problem(
            HERE,
            "service",
            format!("a scheduler listens at {}, but this user may not connect to it", at.display()),
            "join the group `xsched`: `sudo usermod -aG xsched $USER`, then log in again",
        ),
        ToolError::NoReply { .. } | ToolError::NotAccepted { .. } => Check::problem(
            HERE,
            "service",
            error.to_string(),
            "restart it with `xsched serve --replace`, or `systemctl restart xsched`; programs run unscheduled until then",
        ),
        ToolError::ConnectionFailed { .. } | ToolError::UnexpectedReply { .. } | ToolError::Refused(_) => {
            Check::problem(
                HERE,
                "service",
                error.to_string(),
                format!("restart it with version {THIS_VERSION}, that of this program"),
            )
        }
    }
}

fn version(at: &std::path::Path, status: &Status) -> Check {
    let version = term::printable(&status.version);
    let policy = PolicyInfo::find(&status.policy)
        .map_or_else(|_| term::printable(&status.policy), |info| format!("{} ({})", info.plain, info.name));
    let what = format!("version {version} (pid {}) replies at {}; policy {policy}", status.pid, at.display());
    if version == THIS_VERSION {
        return Check::ok(HERE, "service", what);
    }
    let what = format!("{what}; this program is version {THIS_VERSION}");
    Check::warning(
        HERE,
        "service",
        what,
        "restart the service; programs keep running and connect to the new one",
    )
}

fn unscheduled(process: &UnscheduledProcess) -> Check {
    let what = term::unscheduled(process);
    Check::warning(
        HERE,
        "tasks",
        what,
        "start that program with `xsched run` too, so that priorities apply to it",
    )
}

/// One line for each device with tasks.
fn tasks(status: &Status) -> Vec<Check> {
    if status.tasks.is_empty() {
        let what = "no task is scheduled: `xsched run -- PROGRAM` starts a program under the scheduler";
        return vec![Check::ok(HERE, "tasks", what)];
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
        Check::ok(HERE, "tasks", format!("{tasks} on {}{level}", term::device(device)))
    };
    devices.into_iter().map(line).collect()
}

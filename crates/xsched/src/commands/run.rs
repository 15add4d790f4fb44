//! `xsched run`: starts a program with the library preloaded, and a service if none runs.
//!
//! `exec` replaces this process by the program, so that signals, exit status and job control reach the program directly.

mod executable;
pub(crate) mod library;
mod sanitizer;
mod starter;
mod vulkan;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use xsched_core::{Deadline, Laxity, LevelRequest, Limit, Nanos, Priority, Share, parse_size};
use xsched_ipc::environment::{Environment, name, parse_slack, validate_name};
use xsched_ipc::memory::MemoryLimit;

/// Run a program under the scheduler.
///
/// The program needs no change. Its child processes are scheduled too, each as a task of its own. If no service runs,
/// one is started; it exits after 30 seconds without a client.
///
/// The exit status is that of the program, or 125 if xsched itself fails, 126 if the program cannot be run, 127 if it
/// cannot be found.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Priority: -255 to 255, low (-100), normal (0) or high (100). A task of higher priority preempts those of lower
    /// priority; -256 never runs.
    #[arg(short, long, value_name = "N", allow_hyphen_values = true)]
    priority: Option<Priority>,

    /// Share: the percentage of the device's time that is requested, for the policies share, share-process, quota and lottery.
    #[arg(short, long, value_name = "PERCENT", value_parser = share)]
    share: Option<Share>,

    /// Deadline: the time from when work arrives until it is to be complete, such as 5ms, for the policy deadline.
    #[arg(long, value_name = "TIME", value_parser = deadline)]
    deadline: Option<i64>,

    /// Laxity: how long work may wait before it gets the highest priority, such as 2ms, for the policy laxity.
    #[arg(long, value_name = "TIME", value_parser = laxity)]
    laxity: Option<i64>,

    /// Preemption level: 1 preempts between launches, 2 also preempts commands in the hardware queue, 3 also the running
    /// command. auto is the highest level of the device.
    #[arg(long)]
    level: Option<LevelRequest>,

    /// In-flight window: how much work it may have on the device while another task may preempt it, such as 500us. A smaller
    /// window lets other tasks start sooner and costs throughput.
    #[arg(long, value_name = "TIME", value_parser = budget)]
    budget: Option<i64>,

    /// Slack: how long launches of a program that leaves the device idle between its launches may wait for each other, so that the
    /// device switches to the program once for all of them, such as 1ms. 0 switches that off; at most 20ms.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = parse_slack)]
    slack: Option<Nanos>,

    /// Name shown by ps and top, instead of the name of the executable.
    #[arg(long, value_parser = validate_name)]
    name: Option<String>,

    /// Job of the program: the programs of a job are held and resumed together on all devices. Programs that share a
    /// communicator of NCCL or RCCL are a job without this.
    #[arg(long, value_name = "NAME", value_parser = validate_name)]
    job: Option<String>,

    /// Device memory that the program and its children may allocate together on each device, such as 20G, 512M or 50%. Beyond it
    /// allocations fail as if the device were full, and the program sees a device of this size.
    #[arg(short, long, value_name = "SIZE", allow_hyphen_values = true, value_parser = str::parse::<MemoryLimit>)]
    memory: Option<MemoryLimit>,

    /// Back the device memory of the program so that it can be moved to the host and back, by `xsched park` and `xsched unpark`.
    #[arg(long)]
    swap: bool,

    /// Memory of the host that may hold the device memory of the program, such as 20G. Default: it grows by at most half of what is
    /// available.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, requires = "swap", value_parser = parse_size)]
    swap_limit: Option<u64>,

    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// `xsched` itself failed; the same number as `env`, `nice` and `timeout` use.
const OWN_FAILURE: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Returns only if the program could not be run.
pub(crate) fn run(args: &Args) -> ExitCode {
    let library = match library::find() {
        Ok(library) => library,
        Err(error) => {
            warn(format_args!("{error:#}"));
            return OWN_FAILURE.into();
        }
    };
    let Some((program, arguments)) = args.command.split_first() else { return OWN_FAILURE.into() };
    let mut command = Command::new(program);
    command.args(arguments);
    set_environment(&mut command, args);
    let requested = requested_environment(&mut command);
    set_memory_group(&mut command, args, &requested);
    let obstacle = executable::obstacle(program);
    if let Some(obstacle) = &obstacle {
        warn(format_args!("{} will run unscheduled: {obstacle}", program.display()));
    } else {
        match starter::ensure_service() {
            Ok(service) => {
                let path = executable::find_binary(program).map(|(path, ..)| path).unwrap_or_default();
                let Environment { hint_request, grant_token, .. } = requested;
                if let Some(clamped) = starter::clamped_hints(&service, &path, hint_request, grant_token) {
                    warn(format_args!("{clamped}"));
                }
            }
            Err(error) => {
                warn(format_args!("{} runs unscheduled until a service runs: {error:#}", program.display()));
            }
        }
    }
    if executable::find_binary(program).is_some_and(|(path, ..)| sanitizer::is_needed_by(&path)) {
        warn(format_args!(
            "{} is built with the address sanitizer: disabling its check that it is the first library ({})",
            program.display(),
            sanitizer::VARIABLE
        ));
    }
    let (preload, left_out) = library::preload(&library, std::env::var_os("LD_PRELOAD"));
    for other in left_out {
        warn(format_args!(
            "{} is removed from LD_PRELOAD: it hooks the same functions as {}",
            other.display(),
            library.display()
        ));
    }
    if !obstacle.is_some_and(|obstacle| obstacle.rejects_preload()) {
        command.env("LD_PRELOAD", preload);
    }
    command.env("HSA_TOOLS_LIB", library::tools(&library, std::env::var_os("HSA_TOOLS_LIB")));
    command.envs(vulkan::variables(&library, |name| std::env::var_os(name)));
    command.env(sanitizer::VARIABLE, sanitizer::options(std::env::var_os(sanitizer::VARIABLE)));
    let error = command.exec();
    warn(format_args!("cannot run {}: {error}", program.display()));
    let missing = error.kind() == std::io::ErrorKind::NotFound;
    ExitCode::from(if missing { NOT_FOUND } else { NOT_EXECUTABLE })
}

/// The exit status of `xsched run` for an invalid command line; none for other commands, and for `--help`.
pub(crate) fn usage_error_status(arguments: &[OsString], error: &clap::Error) -> Option<ExitCode> {
    let is_run = arguments.get(1).is_some_and(|command| command == "run");
    (is_run && error.use_stderr()).then(|| OWN_FAILURE.into())
}

fn warn(what: std::fmt::Arguments<'_>) {
    crate::cli::message(format_args!("xsched: {what}"));
}

/// Options that are not given stay as they are: nested `xsched run` inherits the hints of the outer one, as with `nice`.
fn set_environment(command: &mut Command, args: &Args) {
    command.env(name::SCHEDULER, "GLB").env(name::AUTO, "ON").env_remove(name::POLICY);
    if let Some(socket) = std::env::var_os(name::SOCKET) {
        // The program may change its working directory before it connects.
        let absolute = std::path::absolute(&socket).map_or(socket, OsString::from);
        command.env(name::SOCKET, absolute);
    }
    let mut set = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            command.env(name, value);
        }
    };
    set(name::PRIORITY, args.priority.map(|priority| priority.to_string()));
    set(name::SHARE, args.share.map(|share| share.percent().to_string()));
    set(name::DEADLINE, args.deadline.map(|us| us.to_string()));
    set(name::LAXITY, args.laxity.map(|us| us.to_string()));
    set(name::LEVEL, args.level.map(|level| level.to_string()));
    set(name::BUDGET, args.budget.map(|us| us.to_string()));
    set(name::SLACK, args.slack.map(|slack| format!("{}us", slack.0 / 1_000)));
    set(name::NAME, args.name.clone());
    set(name::JOB, args.job.clone());
    set(name::MEMORY, args.memory.map(|limit| limit.to_string()));
    set(name::SWAP, args.swap.then(|| "1".to_owned()));
    set(name::SWAP_LIMIT, args.swap_limit.map(|bytes| bytes.to_string()));
}

/// Has the limit of device memory count for the program and its children together. A nested `xsched run` without a limit of its own
/// stays in the group of the outer one.
fn set_memory_group(command: &mut Command, args: &Args, requested: &Environment) {
    let is_new = args.memory.is_some() || (requested.memory.is_some() && requested.memory_group.is_none());
    // Without the file each process has the limit alone.
    if is_new && let Ok(uuid) = std::fs::read_to_string("/proc/sys/kernel/random/uuid") {
        command.env(name::MEMORY_GROUP, uuid.trim());
    }
}

/// What the library will read from the environment of the program. Reports invalid variables and removes them, so that the
/// library does not report them again.
fn requested_environment(command: &mut Command) -> Environment {
    let get = |name: &str| {
        let set =
            command.get_envs().find(|(set, _)| *set == name).map(|(_, value)| value.map(OsStr::to_owned));
        set.unwrap_or_else(|| std::env::var_os(name))?.into_string().ok()
    };
    let mut invalid = Vec::new();
    let environment = Environment::read(get, |name, message| {
        warn(format_args!("{message}"));
        invalid.push(name);
    });
    for name in invalid {
        command.env_remove(name);
    }
    environment
}

fn share(text: &str) -> Result<Share, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    let percent =
        number.parse().map_err(|_| format!("share `{text}` is not a number of percent, 0 to 100"))?;
    Share::new(percent).map_err(|error| error.to_string())
}

fn deadline(text: &str) -> Result<i64, String> {
    let us = micros("deadline", text)?;
    Deadline::from_micros(us).map(|_| us).map_err(|error| error.to_string())
}

fn laxity(text: &str) -> Result<i64, String> {
    let us = micros("laxity", text)?;
    Laxity::new(us, 0, 0).map(|_| us).map_err(|error| error.to_string())
}

fn budget(text: &str) -> Result<i64, String> {
    let us = micros("budget", text)?;
    let budget = Nanos::from_micros(u64::try_from(us).unwrap_or(0));
    Limit::budget(budget).map(|_| us).map_err(|error| error.to_string())
}

/// A time with its unit, in microseconds.
fn micros(field: &str, text: &str) -> Result<i64, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let scale = match unit.trim() {
        "us" | "µs" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => return Err(format!("{field} `{text}` is not a time such as 200us, 5ms or 1.5s")),
    };
    let number: f64 = number.parse().map_err(|_| format!("{field} `{text}` does not begin with a number"))?;
    #[allow(
        clippy::cast_possible_truncation,
        reason = "a value that saturates an i64 is rejected by the caller's range"
    )]
    Ok((number * scale).round() as i64)
}

/// Whether `LD_PRELOAD` can name this path: the loader splits the variable at spaces and colons.
fn can_be_preloaded(path: &OsStr) -> bool {
    use std::os::unix::ffi::OsStrExt as _;
    !path.as_bytes().iter().any(|byte| matches!(byte, b' ' | b':' | b'\t' | b'\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_without_units_are_rejected() {
        assert_eq!(micros("budget", "200us"), Ok(200));
        assert_eq!(micros("budget", "1.5ms"), Ok(1_500));
        assert_eq!(micros("budget", "2 s"), Ok(2_000_000));
        for wrong in ["5", "ms", "5 minutes", "-3ms", "1.2.3s", ""] {
            let error = micros("deadline", wrong).unwrap_err();
            assert!(error.starts_with("deadline `"), "{error}");
        }
    }

    #[test]
    fn values_out_of_range_are_rejected_with_their_name() {
        for (error, expected) in [
            (budget("1us").unwrap_err(), "budget 1.0 us is out of range: allowed is 10 us to 10 s"),
            (share("101").unwrap_err(), "share 101 is out of range: allowed is 0 to 100 (percent)"),
            (
                deadline("0us").unwrap_err(),
                "deadline 0 is out of range: allowed is 1 to 86400000000 (microseconds)",
            ),
        ] {
            assert_eq!(error, expected);
        }
        assert_eq!(share("30%").unwrap().percent(), 30);
    }
}

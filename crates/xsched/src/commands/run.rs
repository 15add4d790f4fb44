//! `xsched run`: starts a program with the library preloaded, and a service if none is there.
//!
//! The program takes the place of this one, so that signals, exit status and job control are its own.

mod executable;
pub(crate) mod library;
mod starter;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use xsched_core::{Deadline, Laxity, LevelRequest, Limit, Nanos, Priority, Share};
use xsched_ipc::environment::{name, plain_name};

/// Run a program under the scheduler.
///
/// The program needs no change. Whatever it starts is scheduled too, each process as a task of its own. Without a
/// service one is started; it ends by itself when nobody has needed it for half a minute.
///
/// Ends with the program's own status, or with 125 if xsched itself fails, 126 if the program cannot be run, 127 if it
/// cannot be found.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Importance: -255 to 255, low (-100), normal (0) or high (100); -256 never runs.
    #[arg(short, long, value_name = "N", allow_hyphen_values = true)]
    priority: Option<Priority>,

    /// Share of the device in percent, for policies that share it.
    #[arg(short, long, value_name = "PERCENT", value_parser = share)]
    share: Option<Share>,

    /// How long a piece of work may take from when it is ready, such as 5ms, for policies that keep deadlines.
    #[arg(long, value_name = "TIME", value_parser = deadline)]
    deadline: Option<i64>,

    /// How long it can wait before it becomes as important as can be, such as 2ms.
    #[arg(long, value_name = "TIME", value_parser = laxity)]
    laxity: Option<i64>,

    /// How deep the device is taken away from it: auto, 1, 2 or 3.
    #[arg(long)]
    level: Option<LevelRequest>,

    /// Work it may have in flight while others wait, such as 500us: less lets others in sooner and costs throughput.
    #[arg(long, value_name = "TIME", value_parser = budget)]
    budget: Option<i64>,

    /// What it is called in lists, instead of the name of its executable.
    #[arg(long, value_parser = plain_name)]
    name: Option<String>,

    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// This program failed, not the one it was to run. As of `env`, `nice` and `timeout`.
const OWN_FAILURE: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Comes back only if the program could not be run.
pub(crate) fn run(args: &Args) -> ExitCode {
    let library = match library::find() {
        Ok(library) => library,
        Err(error) => {
            warn(format_args!("{error:#}"));
            return OWN_FAILURE.into();
        }
    };
    let Some((program, arguments)) = args.command.split_first() else { return OWN_FAILURE.into() };
    if let Some(obstacle) = executable::obstacle(program) {
        warn(format_args!("{} will run unscheduled: {obstacle}", program.display()));
    } else if let Err(error) = starter::make_sure_of_service() {
        warn(format_args!("{} runs unscheduled until there is a service: {error:#}", program.display()));
    }
    let (preload, left_out) = library::preload(&library, std::env::var_os("LD_PRELOAD"));
    for other in left_out {
        warn(format_args!(
            "{} is left out of LD_PRELOAD: a program can have only one scheduler, and {} is it",
            other.display(),
            library.display()
        ));
    }
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", preload);
    command.env("HSA_TOOLS_LIB", library::tools(&library, std::env::var_os("HSA_TOOLS_LIB")));
    set_environment(&mut command, args);
    let error = command.exec();
    warn(format_args!("cannot run {}: {error}", program.display()));
    let missing = error.kind() == std::io::ErrorKind::NotFound;
    ExitCode::from(if missing { NOT_FOUND } else { NOT_EXECUTABLE })
}

/// How `xsched run` ends when what was typed makes no sense; none for the other commands, and for a mere question.
pub(crate) fn misuse(arguments: &[OsString], error: &clap::Error) -> Option<ExitCode> {
    let is_run = arguments.get(1).is_some_and(|command| command == "run");
    (is_run && error.use_stderr()).then(|| OWN_FAILURE.into())
}

fn warn(what: std::fmt::Arguments<'_>) {
    eprintln!("xsched: {what}");
}

/// What is not given stays as it is: whoever is run inside another `xsched run` inherits its hint_request, as with `nice`.
fn set_environment(command: &mut Command, args: &Args) {
    command.env(name::SCHEDULER, "GLB").env(name::AUTO, "ON").env_remove(name::POLICY);
    if let Some(socket) = std::env::var_os(name::SOCKET) {
        // The program may go elsewhere before it joins.
        let absolute = std::path::absolute(&socket).map_or(socket, OsString::from);
        command.env(name::SOCKET, absolute);
    }
    let mut wish = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            command.env(name, value);
        }
    };
    wish(name::PRIORITY, args.priority.map(|priority| priority.to_string()));
    wish(name::SHARE, args.share.map(|share| share.percent().to_string()));
    wish(name::DEADLINE, args.deadline.map(|us| us.to_string()));
    wish(name::LAXITY, args.laxity.map(|us| us.to_string()));
    wish(name::LEVEL, args.level.map(|level| level.to_string()));
    wish(name::BUDGET, args.budget.map(|us| us.to_string()));
    wish(name::NAME, args.name.clone());
    // Who asks for a level wants to be told when the device lacks it.
    if args.level.is_some() && std::env::var_os("XLOG_LEVEL").is_none() {
        wish("XLOG_LEVEL", Some("ERRO".to_owned()));
    }
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

/// A span with its unit, in microseconds.
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
    #[allow(clippy::cast_possible_truncation, reason = "what is too large for an i64 is out of every range")]
    Ok((number * scale).round() as i64)
}

/// Whether a variable of the environment holds a path that can be named in `LD_PRELOAD`.
fn can_be_listed(path: &OsStr) -> bool {
    use std::os::unix::ffi::OsStrExt as _;
    !path.as_bytes().iter().any(|byte| matches!(byte, b' ' | b':' | b'\t' | b'\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(micros("budget", "200us"), Ok(200));
        assert_eq!(micros("budget", "1.5ms"), Ok(1_500));
        assert_eq!(micros("budget", "2 s"), Ok(2_000_000));
        for wrong in ["5", "ms", "5 minutes", "-3ms", "1.2.3s", ""] {
            let error = micros("deadline", wrong).unwrap_err();
            assert!(error.starts_with("deadline `"), "{error}");
        }
    }

    #[test]
    fn what_is_out_of_range_names_the_field_and_the_range() {
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

//! `xcli`: the command-line tool of the original C++ XSched, over HTTP.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use serde_json::json;
use xsched_policy::PolicyInfo;

use super::client::Client;
use super::show::{self, Queues};
use crate::cli;

/// The service passes a new level on to the program, which changes it on a thread of its own.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(1);

/// Show and change the queues of an `xserver`, as `xcli` of the original C++ XSched does.
#[derive(Parser)]
#[command(name = "xcli", version, arg_required_else_help = true)]
struct Args {
    /// Host name or address of the server.
    #[arg(short, long, default_value = "127.0.0.1")]
    addr: String,

    /// Port of the server.
    #[arg(short, long, default_value_t = super::PORT)]
    port: u16,

    /// File with the token of the server, for changes from another machine. The original has no such option.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the queues repeatedly.
    Top {
        /// Updates per second.
        #[arg(short, long, default_value_t = 1.0, value_parser = frequency)]
        freq: f64,
    },
    /// Show the queues.
    List,
    /// Change the preemption level and the in-flight window of a queue.
    #[command(group = clap::ArgGroup::new("setting").required(true).multiple(true))]
    Config {
        /// Handle of the queue, as `list` shows it.
        #[arg(short, long, value_parser = handle)]
        xqueue: u64,
        /// Preemption level, 1 to 3.
        #[arg(short, long, group = "setting")]
        level: Option<i64>,
        /// Limit on commands in flight.
        #[arg(short, long, group = "setting")]
        threshold: Option<i64>,
        /// Commands between two synchronizations.
        #[arg(short, long, group = "setting")]
        batch_size: Option<i64>,
    },
    /// Show or change the policy.
    #[command(group = clap::ArgGroup::new("setting").required(true))]
    Policy {
        /// Show the policy.
        #[arg(short, long, group = "setting")]
        query: bool,
        /// Change the policy.
        #[arg(short, long, group = "setting", requires = "name")]
        set: bool,
        /// The new policy, by either of its names.
        #[arg(short, long, requires = "set")]
        name: Option<String>,
    },
    /// Set a hint for a program or a queue.
    #[command(group = clap::ArgGroup::new("target"))]
    #[command(group = clap::ArgGroup::new("setting").required(true).multiple(true))]
    Hint {
        /// The queue that the hint is for.
        #[arg(short, long, group = "target", value_parser = handle)]
        xqueue: Option<u64>,
        /// The process that the hint is for.
        #[arg(long, group = "target")]
        pid: Option<u32>,
        /// Priority, -256 to 255.
        #[arg(short, long, group = "setting", requires = "target", allow_negative_numbers = true)]
        priority: Option<i64>,
        /// Share of the device's time in percent. The original C++ XSched calls it utilization.
        #[arg(short, long, group = "setting", requires = "target")]
        utilization: Option<i64>,
        /// Time slice of the policy in microseconds.
        #[arg(short, long, group = "setting")]
        timeslice: Option<i64>,
    },
}

fn handle(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16)
        .map_err(|_| "not a hexadecimal queue handle, as `xcli list` shows it".to_owned())
}

fn frequency(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(hz) if (0.01..=100.0).contains(&hz) => Ok(hz),
        _ => Err("not a number from 0.01 to 100".to_owned()),
    }
}

/// The command line of `xcli`.
pub(super) fn definition() -> clap::Command {
    <Args as clap::CommandFactory>::command()
}

/// Parses the command line and runs the command.
pub(super) fn run(arguments: Vec<OsString>) -> ExitCode {
    let Args { addr, port, token_file, command } = Args::parse_from(arguments);
    let result = token(token_file.as_deref())
        .and_then(|token| execute(&Client { address: addr, port, token }, command));
    cli::exit_code("xcli", result)
}

fn token(file: Option<&Path>) -> anyhow::Result<Option<String>> {
    let Some(file) = file else { return Ok(None) };
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let token = text.trim();
    anyhow::ensure!(
        !token.is_empty() && !token.contains(char::is_control),
        "{} contains no token",
        file.display()
    );
    Ok(Some(token.to_owned()))
}

fn execute(client: &Client, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Top { freq } => top(client, Duration::from_secs_f64(1.0 / freq)),
        Command::List => print(&show::table(&queues(client)?)),
        Command::Config { xqueue, level, threshold, batch_size } => {
            let given = [("level", level), ("threshold", threshold), ("batch_size", batch_size)];
            let query: Vec<_> =
                given.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?))).collect();
            client.post(&format!("/config/{xqueue:x}?{}", query.join("&")), "")?;
            let queues = queues_after_change(client, xqueue, level)?;
            print(&format!(
                "Config of XQueue ({xqueue:#x}) set to level: {}, command threshold: {}, command batch size: {}\n  \
                 Note: 0 for level and -1 for threshold and batch size means no change\n\
                 Current XQueue status: \n{}",
                level.unwrap_or(0),
                threshold.unwrap_or(-1),
                batch_size.unwrap_or(-1),
                show::table(&queues)
            ))
        }
        Command::Policy { name: Some(name), .. } => {
            let policy = PolicyInfo::find(&name)?;
            client.post(&format!("/policy?policy={}", policy.number), "")?;
            print(&format!("Policy set to {name}\n"))
        }
        Command::Policy { .. } => print(&show::policies(policy(client)?)),
        Command::Hint { xqueue, pid, priority, utilization, timeslice } => {
            let target = match xqueue {
                Some(handle) => ("handle", json!(handle)),
                None => ("pid", json!(pid)),
            };
            let given =
                [(1, "priority", priority), (2, "utilization", utilization), (3, "timeslice", timeslice)];
            let target_name = match (xqueue, pid) {
                (Some(handle), _) => format!("XQueue {handle:#x}"),
                (None, Some(pid)) => format!("process {pid}"),
                (None, None) => "all".to_owned(),
            };
            for (hint_type, name, value) in given {
                let Some(value) = value else { continue };
                let hint = json!({ "hint_type": hint_type, target.0: target.1, name: value });
                client.post("/hint", &hint.to_string())?;
                print(&match hint_type {
                    1 => format!("Priority of {target_name} set to {value}\n"),
                    2 => format!("Utilization of {target_name} set to {value}\n"),
                    _ => format!("Timeslice set to {value}us\n"),
                })?;
            }
            Ok(())
        }
    }
}

fn queues(client: &Client) -> anyhow::Result<Queues> {
    serde_json::from_value(client.get("/xqueues")?).context("the list of queues in the response is invalid")
}

/// The queues once the program of this one has changed its level, at most [`CHANGE_TIMEOUT`] later.
fn queues_after_change(client: &Client, xqueue: u64, level: Option<i64>) -> anyhow::Result<Queues> {
    let begin = Instant::now();
    loop {
        let listed = queues(client)?;
        let is_changed =
            level.is_none_or(|level| listed.level(xqueue).is_none_or(|current| current == level));
        if is_changed || begin.elapsed() > CHANGE_TIMEOUT {
            return Ok(listed);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn policy(client: &Client) -> anyhow::Result<u64> {
    let response = client.get("/policy")?;
    response["policy"].as_u64().context("the response contains no policy")
}

/// Prints the queues until this process is interrupted or the reader closes the pipe.
fn top(client: &Client, pause: Duration) -> anyhow::Result<()> {
    // Move the cursor to the top left and clear the screen.
    let (before, after) = if io::stdout().is_terminal() { ("\x1b[H\x1b[2J", "") } else { ("", "\n") };
    loop {
        print(&format!("{before}{}{after}", show::table(&queues(client)?)))?;
        thread::sleep(pause);
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn is_accepted(line: &str) -> bool {
        Args::try_parse_from(line.split(' ')).is_ok()
    }

    #[test]
    fn command_lines_of_the_original_are_accepted() {
        Args::command().debug_assert();
        for line in [
            "xcli -a 10.0.0.1 -p 6000 top -f 10",
            "xcli list",
            "xcli config -x 0x7f -l 2 -t 16 -b 8",
            "xcli config -x 7f -t 16",
            "xcli policy -q",
            "xcli policy -s -n UP",
            "xcli hint -x 7f -p -3",
            "xcli hint --pid 12 -u 30 -p 2",
            "xcli hint -t 500",
            "xcli hint --pid 12 -t 500",
        ] {
            assert!(is_accepted(line), "{line}");
        }
        for line in [
            "xcli",
            "xcli config -x 7f",
            "xcli config -l 2",
            "xcli config -x zz -l 2",
            "xcli policy",
            "xcli policy -s",
            "xcli policy -q -s -n UP",
            "xcli hint -p 3",
            "xcli hint -x 7f --pid 12 -p 3",
            "xcli hint -x 7f",
            "xcli top -f 0",
        ] {
            assert!(!is_accepted(line), "{line}");
        }
    }
}

//! `xcli`: the command-line tool of the original C++ XSched, over HTTP.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use serde_json::json;
use xsched_policy::PolicyInfo;

use super::client::Client;
use super::show::{self, Queues};
use crate::cli;

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
    let Args { addr, port, command } = Args::parse_from(arguments);
    cli::exit_code("xcli", execute(&Client { address: addr, port }, command))
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
            print("success\n")
        }
        Command::Policy { name: Some(name), .. } => {
            let policy = PolicyInfo::find(&name)?;
            client.post(&format!("/policy?policy={}", policy.number), "")?;
            print("success\n")
        }
        Command::Policy { .. } => print(&format!("{}\n", policy(client)?)),
        Command::Hint { xqueue, pid, priority, utilization, timeslice } => {
            let target = match xqueue {
                Some(handle) => ("handle", json!(handle)),
                None => ("pid", json!(pid)),
            };
            let given =
                [(1, "priority", priority), (2, "utilization", utilization), (3, "timeslice", timeslice)];
            for (hint_type, name, value) in given {
                if let Some(value) = value {
                    let hint = json!({ "hint_type": hint_type, target.0: target.1, name: value });
                    client.post("/hint", &hint.to_string())?;
                }
            }
            print("success\n")
        }
    }
}

fn queues(client: &Client) -> anyhow::Result<Queues> {
    serde_json::from_value(client.get("/xqueues")?).context("the list of queues in the response is invalid")
}

fn policy(client: &Client) -> anyhow::Result<String> {
    let response = client.get("/policy")?;
    Ok(show::policy(response["policy"].as_u64().context("the response contains no policy")?))
}

/// Prints the queues until this process is interrupted or the reader closes the pipe.
fn top(client: &Client, pause: Duration) -> anyhow::Result<()> {
    // Move the cursor to the top left and clear the screen.
    let (before, after) = if io::stdout().is_terminal() { ("\x1b[H\x1b[2J", "") } else { ("", "\n") };
    loop {
        let frame = format!("{before}policy {}\n\n{}{after}", policy(client)?, show::table(&queues(client)?));
        print(&frame)?;
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

//! The command line: parses it and runs the command.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::{commands, demo};

/// Schedules accelerators preemptively: tasks of high priority run first, other tasks use the idle time.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(commands::run::Args),
    Serve(commands::serve::Args),
    Ps(commands::ps::Args),
    Top(commands::top::Args),
    Set(commands::set::Args),
    Policy(commands::policy::Args),
    Trace(commands::trace::Args),
    Doctor(commands::doctor::Args),
    Config(commands::config::Args),
    Demo(commands::demo::Args),
    Simulate(commands::simulate::Args),
    Bench(commands::bench::Args),
    #[command(hide = true)]
    Manual(commands::manual::Args),
    #[command(hide = true)]
    DemoWorker(demo::worker::Args),
}

/// The definition of the command line, for man pages and completions.
pub(crate) fn definition() -> clap::Command {
    Cli::command()
}

/// Parses a command line, the program's name first, and runs what it names.
pub(crate) fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let command = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli.command,
        Err(error) => {
            let Some(status) = commands::run::usage_error_status(&arguments, &error) else { error.exit() };
            // If stderr is closed, the exit status still reports the error.
            let _ = error.print();
            return status;
        }
    };
    let result = match command {
        Command::Run(args) => return commands::run::run(&args),
        Command::Serve(args) => commands::serve::run(&args),
        Command::Ps(args) => commands::ps::run(&args),
        Command::Top(args) => commands::top::run(&args),
        Command::Set(args) => commands::set::run(&args),
        Command::Policy(args) => commands::policy::run(&args),
        Command::Trace(args) => commands::trace::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Config(args) => commands::config::run(&args),
        Command::Demo(args) => commands::demo::run(&args),
        Command::Simulate(args) => commands::simulate::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Manual(args) => commands::manual::run(&args),
        Command::DemoWorker(args) => demo::worker::run(&args),
    };
    exit_code("xsched", result)
}

/// Prints the error, if any, with the program's `name` in front, and returns the exit status.
pub(crate) fn exit_code(name: &str, result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of a pipe may close it early: `xsched ... | head` is no failure.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

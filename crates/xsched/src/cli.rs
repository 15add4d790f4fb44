//! The command line: parses it and runs the command.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::{commands, demo, examples};

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
    Stop(commands::stop::Args),
    #[command(visible_aliases = ["list", "status"])]
    Ps(commands::ps::Args),
    Top(commands::top::Args),
    Dashboard(commands::dashboard::Args),
    Set(commands::set::Args),
    Suspend(commands::suspend::Args),
    Resume(commands::suspend::ResumeArgs),
    Park(commands::park::Args),
    Unpark(commands::park::UnparkArgs),
    Policy(commands::policy::Args),
    Grant(commands::grant::Args),
    Grants(commands::grants::Args),
    Revoke(commands::revoke::Args),
    Trace(commands::trace::Args),
    Doctor(commands::doctor::Args),
    Config(commands::config::Args),
    Demo(commands::demo::Args),
    Simulate(commands::simulate::Args),
    Bench(commands::bench::Args),
    #[command(hide = true)]
    Manual(commands::manual::Args),
    #[command(hide = true)]
    Complete(commands::complete::Args),
    #[command(hide = true)]
    DemoWorker(demo::worker::Args),
}

/// The definition of the command line, with examples.
pub(crate) fn definition() -> clap::Command {
    let with_examples = |command: clap::Command| match examples::help_section(command.get_name()) {
        Some(section) => command.after_long_help(section),
        None => command,
    };
    with_examples(Cli::command()).mut_subcommands(with_examples)
}

/// Parses a command line, the program's name first, and runs what it names.
pub(crate) fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let parsed = definition().try_get_matches_from(&arguments);
    let command = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
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
        Command::Stop(args) => commands::stop::run(&args),
        Command::Ps(args) => commands::ps::run(&args),
        Command::Top(args) => commands::top::run(&args),
        Command::Dashboard(args) => commands::dashboard::run(&args),
        Command::Set(args) => commands::set::run(&args),
        Command::Suspend(args) => commands::suspend::run(&args),
        Command::Resume(args) => commands::suspend::run_resume(&args),
        Command::Park(args) => commands::park::run(&args),
        Command::Unpark(args) => commands::park::run_unpark(&args),
        Command::Policy(args) => commands::policy::run(&args),
        Command::Grant(args) => commands::grant::run(&args),
        Command::Grants(args) => commands::grants::run(&args),
        Command::Revoke(args) => commands::revoke::run(&args),
        Command::Trace(args) => commands::trace::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
        Command::Config(args) => commands::config::run(&args),
        Command::Demo(args) => commands::demo::run(&args),
        Command::Simulate(args) => commands::simulate::run(&args),
        Command::Bench(args) => commands::bench::run(&args),
        Command::Manual(args) => commands::manual::run(&args),
        Command::Complete(args) => commands::complete::run(&args),
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
            message(format_args!("{name}: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Writes a line to standard error. If no program reads it any more, the command continues without it.
pub(crate) fn message(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

//! The command line: what was typed, and where it goes.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{commands, demo};

/// Decides what an accelerator runs: important work first, the rest in the gaps.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(commands::demo::Args),
    Simulate(commands::simulate::Args),
    #[command(hide = true)]
    DemoWorker(demo::worker::Args),
}

/// Parses the command line and runs what it names.
pub(crate) fn run() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Demo(args) => commands::demo::run(&args),
        Command::DemoWorker(args) => demo::worker::run(&args),
        Command::Simulate(args) => commands::simulate::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads our output may stop reading: `xsched ... | head` is no failure.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xsched: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

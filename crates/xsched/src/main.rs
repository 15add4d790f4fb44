//! The `xsched` program.

mod cli;
mod commands;
mod demo;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}

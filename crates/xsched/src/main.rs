//! The `xsched` program.

#![deny(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "both panic if no program reads the output any more: use `writeln!` and `cli::message`"
)]

mod cli;
mod commands;
mod compat;
mod config;
mod dashboard;
mod demo;
mod device_memory;
mod device_model;
mod doctor;
mod examples;
mod gpu;
mod http;
mod rates;
mod selection;
mod status;
mod term;
mod top;
mod trace;
mod users;

use std::process::ExitCode;

pub(crate) use xsched_ipc::tool;

fn main() -> ExitCode {
    compat::run().unwrap_or_else(|| cli::run(std::env::args_os()))
}

//! The `xsched` program.

mod cli;
mod commands;
mod compat;
mod config;
mod demo;
mod doctor;
mod gpu;
mod http;
mod rates;
mod term;
mod top;
mod trace;

use std::process::ExitCode;

pub(crate) use xsched_ipc::tool;

fn main() -> ExitCode {
    compat::run().unwrap_or_else(|| cli::run(std::env::args_os()))
}

//! The command lines of the two programs of the original C++ XSched, `xserver` and `xcli`. Both are installed as links to
//! `xsched`, which selects the command line by the name it was called by.

mod client;
mod show;
mod xcli;
mod xserver;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

/// The default port of the HTTP interface.
const PORT: u16 = 50_000;

/// Runs `xserver` or `xcli` if this process was called by that name; else returns none.
pub(crate) fn run() -> Option<ExitCode> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match file_name(arguments.first()?)?.to_str()? {
        "xserver" => Some(xserver::run(arguments)),
        "xcli" => Some(xcli::run(arguments)),
        _ => None,
    }
}

fn file_name(program: &OsStr) -> Option<&OsStr> {
    Path::new(program).file_name()
}

/// The definitions of both command lines, for the man pages.
pub(crate) fn definitions() -> [clap::Command; 2] {
    [xserver::definition(), xcli::definition()]
}

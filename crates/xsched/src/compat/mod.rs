//! The command lines of the reference's two programs. This one takes their place when it is called by their names:
//! `xserver` and `xcli` are installed as links to `xsched`.

mod client;
mod show;
mod xcli;
mod xserver;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

/// The port of the reference's HTTP interface.
const PORT: u16 = 50_000;

/// Runs the program this one was called as. None: it was called by its own name.
pub(crate) fn run() -> Option<ExitCode> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match called(arguments.first()?)?.to_str()? {
        "xserver" => Some(xserver::run(arguments)),
        "xcli" => Some(xcli::run(arguments)),
        _ => None,
    }
}

fn called(program: &OsStr) -> Option<&OsStr> {
    Path::new(program).file_name()
}

/// Both command lines, for those who describe them.
pub(crate) fn definitions() -> [clap::Command; 2] {
    [xserver::definition(), xcli::definition()]
}

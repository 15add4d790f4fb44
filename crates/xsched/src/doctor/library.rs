//! Preloading: the library, and other libraries that are preloaded.

use std::path::{Path, PathBuf};

use super::{Check, Group, Machine};
use crate::commands::run::library::{ORIGINAL_XSCHED_LIBRARIES, find_for};

const HERE: Group = Group::Programs;
const LIBRARY: &str = "libxsched.so";

/// Whether `xsched run` finds the library.
pub(super) fn library(machine: &Machine) -> Vec<Check> {
    let Some(program) = &machine.program else {
        let what = "the path of this program is not known, so the library beside it cannot be found";
        return vec![Check::problem(
            HERE,
            LIBRARY,
            what,
            "start `xsched` by its absolute path, or set XSCHED_LIBRARY to the path of the library",
        )];
    };
    let named = machine.variable("XSCHED_LIBRARY").map(PathBuf::from);
    vec![match find_for(program, named) {
        Ok(found) => Check::ok(HERE, LIBRARY, format!("found at {}", found.display())),
        Err(error) => Check::problem(
            HERE,
            LIBRARY,
            format!("{error:#}"),
            "install it beside the program, or build it: `cargo build -p xsched-lib`",
        ),
    }]
}

/// Libraries that are preloaded already.
pub(super) fn preload(machine: &Machine) -> Vec<Check> {
    let mut checks = Vec::new();
    let name = "LD_PRELOAD";
    let value = machine.variable(name).unwrap_or_default();
    let entries: Vec<&str> = value.split([' ', ':']).filter(|entry| !entry.is_empty()).collect();
    let file_name = |entry: &str| Path::new(entry).file_name().and_then(|n| n.to_str().map(str::to_owned));
    let is_other = |entry: &&&str| {
        let file = file_name(entry).unwrap_or_default();
        ORIGINAL_XSCHED_LIBRARIES.iter().any(|prefix| file.starts_with(prefix))
    };
    let is_missing = |entry: &&&str| entry.contains('/') && !machine.has(entry);
    if entries.is_empty() {
        checks.push(Check::ok(HERE, name, "not set"));
    } else if let Some(other) = entries.iter().find(is_other) {
        checks.push(Check::problem(
            HERE,
            name,
            format!("preloads {other}, which hooks the same functions as XSched"),
            "unset LD_PRELOAD: a program can have only one scheduler, and `xsched run` removes this library from it",
        ));
    } else if entries.iter().any(|entry| file_name(entry).is_some_and(|file| file.starts_with(LIBRARY))) {
        checks.push(Check::warning(
            HERE,
            name,
            "preloads XSched into every program that this shell starts",
            "unset LD_PRELOAD; `xsched run` sets it for the program that it starts",
        ));
    } else if let Some(missing) = entries.iter().find(is_missing) {
        checks.push(Check::warning(
            HERE,
            name,
            format!("names {missing}, which does not exist"),
            "remove it from LD_PRELOAD: the loader prints a warning in every program",
        ));
    } else {
        checks.push(Check::ok(HERE, name, format!("{value}; `xsched run` adds its library")));
    }
    if machine.text("/etc/ld.so.preload").is_some_and(|text| !text.trim().is_empty()) {
        let what = "preloads libraries into every program of this machine, ahead of XSched's";
        let do_next = "if launches are not intercepted, check it for a library that hooks the same functions";
        checks.push(Check::warning(HERE, "ld.so.preload", what, do_next));
    }
    checks
}

/// The original C++ XSched is put in front of the vendor's library by `LD_LIBRARY_PATH`. That takes the directory with the stubs.
pub(super) fn search_path(machine: &Machine) -> Vec<Check> {
    let name = "LD_LIBRARY_PATH";
    let value = machine.variable(name).unwrap_or_default();
    let mut found = Vec::new();
    for directory in value.split([':', ';']).filter(|directory| !directory.is_empty()) {
        let has = |file: &str| machine.has(&format!("{directory}/{file}"));
        if has("libcuda.so.1") && has("../libshimcuda.so") {
            let what = format!("{directory} puts XSched in front of the vendors' libraries");
            found.push(match machine.variable("XSCHED_SCHEDULER") {
                Some(_) => Check::ok(HERE, name, what),
                None => Check::warning(
                    HERE,
                    name,
                    format!("{what}, but XSCHED_SCHEDULER is not set: nothing is scheduled"),
                    "`export XSCHED_SCHEDULER=GLB XSCHED_AUTO_XQUEUE=ON`, or use `xsched run` instead of LD_LIBRARY_PATH",
                ),
            });
        } else if has("libshimcuda.so")
            && has("xsched/libcuda.so.1")
            && !value.contains(&format!("{directory}/xsched"))
        {
            found.push(Check::warning(
                HERE,
                name,
                format!("{directory} has the libraries of XSched, but none with a vendor's name: nothing is scheduled by it"),
                format!("put {directory}/xsched in front of LD_LIBRARY_PATH, or use `xsched run` instead of it"),
            ));
        }
    }
    found
}

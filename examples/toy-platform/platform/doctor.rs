//! Whether programs on this machine can use libtoy.

use crate::doctor::{Check, Group, Machine};

const DIRECTORIES: [&str; 3] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib", "/usr/local/lib"];

/// One check, for the vendor's library.
pub(crate) fn probe(machine: &Machine) -> Vec<Check> {
    let installed = DIRECTORIES.into_iter().find(|directory| machine.has(&format!("{directory}/libtoy.so")));
    vec![match installed {
        Some(directory) => Check::ok(Group::Devices, "toy", format!("{directory}/libtoy.so: level 1 works")),
        None => Check::ok(Group::Devices, "toy", "libtoy.so is not installed: no program can use it"),
    }]
}

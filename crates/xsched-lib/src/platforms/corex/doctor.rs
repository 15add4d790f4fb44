//! `CoreX`: the driver library of Iluvatar's GPUs, and the interfaces that it lacks.

use crate::doctor::{Check, Group, Machine};

#[cfg(test)]
mod tests;

const NAME: &str = "CoreX";
/// Where the toolkit is installed by default.
const DIRECTORIES: [&str; 2] = ["/usr/local/corex/lib64", "/usr/local/corex/lib"];

/// One line if the driver library is installed.
pub(crate) fn probe(machine: &Machine) -> Vec<Check> {
    let libraries = DIRECTORIES.map(|directory| format!("{directory}/libcuda.so.1"));
    let describe = |library: String| {
        let what = format!(
            "{library}: programs that call it can be scheduled at level 1 (not tested on hardware); level 2 needs memory waits in \
             streams, which a program finds out, and level 3 NVIDIA's resource manager, which is missing"
        );
        Check::ok(Group::Devices, NAME, what)
    };
    libraries.into_iter().find(|library| machine.has(library)).map(describe).into_iter().collect()
}

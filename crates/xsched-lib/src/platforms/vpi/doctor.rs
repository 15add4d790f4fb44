//! VPI: the library.

use crate::doctor::{Check, Group, Machine};

#[cfg(test)]
mod tests;

const NAME: &str = "VPI";
/// The major versions that exist. Each has a directory of its own.
const VERSIONS: std::ops::RangeInclusive<u32> = 1..=4;
/// The names of the directories on a Jetson and on other machines.
const ARCHITECTURES: [&str; 2] = ["aarch64-linux-gnu", "x86_64-linux-gnu"];

/// One line for each version that is installed.
pub(crate) fn probe(machine: &Machine) -> Vec<Check> {
    let libraries = VERSIONS.flat_map(|version| {
        let file = move |below: &str| format!("/opt/nvidia/vpi{version}/{below}/libnvvpi.so.{version}");
        ARCHITECTURES
            .map(|architecture| file(&format!("lib/{architecture}")))
            .into_iter()
            .chain([file("lib64")])
    });
    let describe = |library: String| {
        let what = format!("{library}: programs can be scheduled at level 1 (not tested on hardware)");
        Check::ok(Group::Devices, NAME, what)
    };
    libraries.filter(|library| machine.has(library)).map(describe).collect()
}

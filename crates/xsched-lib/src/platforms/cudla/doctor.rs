//! cuDLA: the library, and the module of the driver below it.

use crate::doctor::{Check, Group, Machine};

#[cfg(test)]
mod tests;

const NAME: &str = "cuDLA";
/// Where CUDA for Jetson and for Drive has the library.
const LIBRARIES: [&str; 3] = [
    "/usr/local/cuda/lib64/libcudla.so.1",
    "/usr/local/cuda/targets/aarch64-linux/lib/libcudla.so.1",
    "/usr/lib/aarch64-linux-gnu/tegra/libcudla.so.1",
];

/// One line if the library is installed.
pub(crate) fn probe(machine: &Machine) -> Vec<Check> {
    let describe = |library: &str| {
        let what = format!(
            "{library}: tasks in CUDA streams can be scheduled at level 1 (not tested on hardware), those of the standalone mode not"
        );
        Check::ok(Group::Devices, NAME, what)
    };
    LIBRARIES.into_iter().find(|library| machine.has(library)).map(describe).into_iter().collect()
}

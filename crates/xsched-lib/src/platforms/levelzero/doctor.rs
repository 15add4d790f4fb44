//! Level Zero: the loader and its drivers.

use crate::doctor::{Check, Group, Machine};

#[cfg(test)]
mod tests;

const HERE: Group = Group::Devices;
const NAME: &str = "Level Zero";
const LOADER: &str = "libze_loader.so.1";
/// Where distributions install libraries.
const DIRECTORIES: [&str; 4] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib"];
/// The drivers that the loader searches for.
const DRIVERS: [&str; 4] =
    ["libze_intel_gpu.so.1", "libze_intel_gpu_legacy1.so.1", "libze_intel_npu.so.1", "libze_intel_vpu.so.1"];
/// Names other drivers to the loader, separated by commas.
const DRIVERS_VARIABLE: &str = "ZE_ENABLE_ALT_DRIVERS";

/// One line if the loader is installed, and one for each driver that is named and does not exist.
pub(crate) fn probe(machine: &Machine) -> Vec<Check> {
    let installed =
        |file: &str| DIRECTORIES.iter().any(|directory| machine.has(&format!("{directory}/{file}")));
    if !installed(LOADER) {
        return Vec::new();
    }
    let named: Vec<_> =
        machine.variable(DRIVERS_VARIABLE).map(|named| named.split(',').collect()).unwrap_or_default();
    let missing = named.iter().filter(|driver| driver.starts_with('/') && !machine.has(driver));
    let mut checks: Vec<_> = missing
        .map(|driver| {
            let what =
                format!("{DRIVERS_VARIABLE} names {driver}, which does not exist: its devices are not found");
            Check::problem(HERE, NAME, what, format!("correct or unset {DRIVERS_VARIABLE}"))
        })
        .collect();
    let drivers: Vec<_> = if named.is_empty() {
        DRIVERS.into_iter().filter(|driver| installed(driver)).collect()
    } else {
        named
    };
    checks.push(if drivers.is_empty() {
        let what = format!("{LOADER} is installed, but no driver: programs find no device");
        Check::warning(HERE, NAME, what, "install the driver of the GPU (intel-level-zero-gpu) or of the NPU")
    } else {
        let drivers = drivers.join(", ");
        Check::ok(
            HERE,
            NAME,
            format!("{drivers}: programs can be scheduled at level 1 (not tested on hardware)"),
        )
    });
    checks
}

//! Ascend: the library of the toolkit and the devices of the driver.

use crate::doctor::{Check, Group, Machine};

#[cfg(test)]
mod tests;

const HERE: Group = Group::Devices;
const NAME: &str = "Ascend";
const LIBRARY: &str = "libascendcl.so";
/// Where the toolkit is installed by default.
const TOOLKIT: &str = "/usr/local/Ascend/ascend-toolkit/latest";
/// Names the toolkit, after its environment script was read.
const TOOLKIT_VARIABLE: &str = "ASCEND_HOME_PATH";
/// The device through which the driver manages all NPUs.
const DRIVER: &str = "/dev/davinci_manager";

/// One line if the toolkit or the driver is installed, and one if the variable names no toolkit.
pub(crate) fn probe(machine: &Machine) -> Vec<Check> {
    let library_in =
        |directory: &str| ["lib64", "runtime/lib64"].map(|below| format!("{directory}/{below}/{LIBRARY}"));
    let installed = |directory: &str| library_in(directory).into_iter().find(|library| machine.has(library));
    let named = machine.variable(TOOLKIT_VARIABLE);
    let mut checks = Vec::new();
    if let Some(named) = named.filter(|named| installed(named).is_none()) {
        let what = format!("{TOOLKIT_VARIABLE} names {named}, which has no {LIBRARY}");
        checks.push(Check::problem(HERE, NAME, what, format!("correct or unset {TOOLKIT_VARIABLE}")));
    }
    match (named.and_then(installed).or_else(|| installed(TOOLKIT)), machine.has(DRIVER)) {
        (Some(library), true) => {
            let what = format!("{library}: programs can be scheduled at level 1 (not tested on hardware)");
            checks.push(Check::ok(HERE, NAME, what));
        }
        (Some(library), false) => {
            let what = format!("{library} is installed, but {DRIVER} is missing: programs find no NPU");
            checks.push(Check::warning(HERE, NAME, what, "install the driver of the NPU"));
        }
        (None, true) => {
            let what = format!("an NPU is present, but no {LIBRARY} was found in {TOOLKIT}");
            let next = format!("install the CANN toolkit, or set {TOOLKIT_VARIABLE} to its directory");
            checks.push(Check::warning(HERE, NAME, what, next));
        }
        (None, false) => {}
    }
    checks
}

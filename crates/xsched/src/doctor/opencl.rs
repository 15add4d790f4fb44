//! OpenCL: which vendors' libraries are installed.

use super::platform::Platform;
use super::{Check, Group, Machine};

/// One line for all the vendors there are; nothing if there are none.
pub(super) fn opencl(machine: &Machine) -> Vec<Check> {
    let directory = machine.variable("OCL_ICD_VENDORS").unwrap_or("/etc/OpenCL/vendors");
    let vendors: Vec<String> = machine
        .names_in(directory)
        .iter()
        .filter_map(|file| {
            let vendor = file.strip_suffix(".icd")?;
            let library = machine.text(&format!("{directory}/{file}")).unwrap_or_default();
            Some(format!("{vendor} ({})", library.trim()))
        })
        .collect();
    if vendors.is_empty() {
        return Vec::new();
    }
    let vendors = vendors.join(", ");
    vec![if machine.driven.contains(&Platform::OpenCl) {
        Check::ok(Group::Devices, "OpenCL", format!("{vendors}: programs can be scheduled at level 1"))
    } else {
        Platform::OpenCl.cannot_drive_yet(Group::Devices, "OpenCL", &vendors)
    }]
}

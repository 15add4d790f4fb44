//! Vulkan: the installed drivers, and what keeps the layer from being used.

use crate::doctor::{Check, Group, Machine};

#[cfg(test)]
mod tests;

const HERE: Group = Group::Devices;
const NAME: &str = "Vulkan";
/// The directories with a file for each driver.
const DRIVERS: [&str; 3] = ["/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d"];
/// Variables that replace those directories.
const DRIVER_VARIABLES: [&str; 2] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"];
const LAYER: &str = "VK_LAYER_XSCHED_schedule";
const DISABLE: &str = "XSCHED_VULKAN_LAYER_DISABLE";
const DISABLE_LAYERS: &str = "VK_LOADER_LAYERS_DISABLE";

/// One line for all drivers, and one for each problem; none if no driver is installed and no variable is set.
pub(crate) fn probe(machine: &Machine) -> Vec<Check> {
    let mut checks = Vec::new();
    if machine.variable(DISABLE).is_some() {
        let what = format!("{DISABLE} is set: programs that use Vulkan run unscheduled");
        checks.push(Check::warning(HERE, NAME, what, format!("unset {DISABLE}")));
    }
    if let Some(value) = machine.variable(DISABLE_LAYERS).filter(|value| disables_layer(value)) {
        let what = format!("{DISABLE_LAYERS} is {value}: programs that use Vulkan run unscheduled");
        checks.push(Check::warning(HERE, NAME, what, format!("unset {DISABLE_LAYERS}")));
    }
    for variable in DRIVER_VARIABLES {
        let files = machine.variable(variable).unwrap_or_default();
        for file in files.split(':').filter(|file| !file.is_empty() && !machine.has(file)) {
            let what = format!("{variable} names {file}, which does not exist: its devices are not found");
            checks.push(Check::warning(HERE, NAME, what, format!("unset {variable}, or correct the path")));
        }
    }
    let drivers: Vec<_> = DRIVERS.into_iter().flat_map(|directory| drivers(machine, directory)).collect();
    if !drivers.is_empty() {
        let what = format!("{}: programs can be scheduled at level 1", drivers.join(", "));
        checks.push(Check::ok(HERE, NAME, what));
    }
    checks
}

/// Whether a list of patterns, as Vulkan's loader reads it, disables the layer.
fn disables_layer(patterns: &str) -> bool {
    let disables = |pattern: &str| {
        let is_group = matches!(pattern, "*" | "~all~" | "~implicit~");
        is_group || LAYER.contains(pattern.trim_matches('*')) && !pattern.trim_matches('*').is_empty()
    };
    patterns.split(',').map(str::trim).any(disables)
}

/// The names of the drivers in a directory: those of their files.
fn drivers(machine: &Machine, directory: &str) -> Vec<String> {
    let files = machine.names_in(directory).into_iter();
    let name = |file: String| Some(file.strip_suffix(".json")?.split('.').next()?.replace("_icd", ""));
    files.filter_map(name).collect()
}

//! Accelerators on the PCI bus, with or without a driver.

use super::Machine;

/// The addresses of a vendor's display and accelerator devices.
pub(crate) fn accelerators(machine: &Machine, vendor: &str) -> Vec<String> {
    const BUS: &str = "/sys/bus/pci/devices";
    let read =
        |address: &str, file: &str| machine.text(&format!("{BUS}/{address}/{file}")).unwrap_or_default();
    // Class 3 is displays, 0x12 is processing accelerators.
    let is_accelerator = |address: &String| {
        let class = read(address, "class");
        read(address, "vendor").trim() == vendor && (class.starts_with("0x03") || class.starts_with("0x12"))
    };
    machine.names_in(BUS).into_iter().filter(is_accelerator).collect()
}

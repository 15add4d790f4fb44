//! The topology of AMD's compute driver (KFD): the GPUs of the machine, and the partitions of each.
//!
//! A GPU can be divided into up to eight partitions (DPX, TPX, QPX, CPX). Each is a node of the topology with an id of its own,
//! and a device of its own to the scheduler. They share one PCI address. Linux puts the number of the partition into bits 28 to
//! 31 of `location_id`; older versions into the function number of the address, which is 0 for a whole GPU.

use std::path::Path;

use xsched_core::DeviceId;

/// The address of a device: domain, bus, device and function. The number of a partition takes the place of the function number,
/// or of the highest bits of the domain if there is no room.
#[must_use]
pub fn device_address(domain: u32, location: u32) -> u32 {
    let (address, partition) = ((domain << 16) | (location & 0xffff), location >> 28);
    if partition == 0 {
        address
    } else if address.trailing_zeros() >= 3 && partition < 8 {
        address | partition
    } else {
        address | (partition << 28)
    }
}

/// The driver's GPUs at the PCI address that a runtime reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// The topology does not list the address.
    Unknown,
    /// One GPU or partition.
    One {
        /// The driver's id.
        gpu: u32,
        /// Its address as a device.
        address: u32,
    },
    /// Partitions with this address, which the address does not tell apart: id and address of each.
    Several(Vec<(u32, u32)>),
}

/// The files of AMD's compute driver.
pub const DRIVER_FILES: &str = "/sys/class/kfd/kfd";

/// More nodes than this are not looked at.
const MAX_NODES: u32 = 128;

/// The GPUs that the driver lists, as far as this process may see them.
pub struct Topology {
    gpus: Vec<Gpu>,
}

struct Gpu {
    /// The driver's id.
    id: u32,
    properties: String,
}

impl Topology {
    /// The topology of this machine.
    #[must_use]
    pub fn read() -> Self {
        Self::read_from(Path::new(DRIVER_FILES))
    }

    /// The topology in a directory that is like [`DRIVER_FILES`].
    #[must_use]
    pub fn read_from(driver_files: &Path) -> Self {
        let nodes = driver_files.join("topology/nodes");
        let gpu = |node: u32| {
            let file = |name: &str| std::fs::read_to_string(nodes.join(format!("{node}/{name}"))).ok();
            // CPUs have id 0.
            let id = file("gpu_id")?.trim().parse().ok().filter(|id| *id != 0)?;
            Some(Gpu { id, properties: file("properties")? })
        };
        Self { gpus: (0..MAX_NODES).filter_map(gpu).collect() }
    }

    /// The GPU at an address. `address` is what the runtime reports: newer ones put the number of the partition into the function
    /// number, older ones report the same address for all partitions of a GPU.
    #[must_use]
    pub fn gpu_at(&self, address: u32) -> Match {
        let nodes = self.gpus.iter().map(|gpu| {
            (gpu.id, gpu.property("domain").unwrap_or(0), gpu.property("location_id").unwrap_or(0))
        });
        find(address, &nodes.collect::<Vec<_>>())
    }

    /// The driver's id of a device; none if the topology does not list it.
    #[must_use]
    pub fn gpu_of(&self, device: DeviceId) -> Option<u32> {
        match self.gpu_at(device.address()) {
            Match::One { gpu, .. } => Some(gpu),
            Match::Several(partitions) => {
                partitions.into_iter().find(|(_, address)| *address == device.address()).map(|(gpu, _)| gpu)
            }
            Match::Unknown => None,
        }
    }

    /// The number of compute units of a GPU; none if the topology does not list it.
    #[must_use]
    pub fn compute_units(&self, gpu: u32) -> Option<u32> {
        let gpu = self.gpus.iter().find(|known| known.id == gpu)?;
        gpu.property("simd_count")?.checked_div(gpu.property("simd_per_cu")?).filter(|units| *units > 0)
    }
}

impl Gpu {
    fn property(&self, name: &str) -> Option<u32> {
        let value = self.properties.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.trim().parse().ok())
    }
}

fn find(address: u32, nodes: &[(u32, u32, u32)]) -> Match {
    let devices = nodes.iter().map(|(gpu, domain, location)| {
        (*gpu, device_address(*domain, *location), (*domain << 16) | (*location & 0xffff))
    });
    let sharing: Vec<_> = devices.clone().filter(|(.., shared)| *shared == address).collect();
    let exact: Vec<_> = devices.filter(|(_, device, _)| *device == address).collect();
    match (sharing.as_slice(), exact.as_slice()) {
        ([(gpu, address, _)], _) | ([], [(gpu, address, _)]) => Match::One { gpu: *gpu, address: *address },
        ([], _) => Match::Unknown,
        _ => Match::Several(sharing.into_iter().map(|(gpu, device, _)| (gpu, device)).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_partition_has_an_address_of_its_own() {
        assert_eq!(device_address(2, 0xc100), (2 << 16) | 0xc100, "a whole GPU");
        let cpx: Vec<_> = (0..8).map(|partition| device_address(0, (partition << 28) | 0xc100)).collect();
        assert_eq!(cpx, (0xc100..0xc108).collect::<Vec<_>>());
        // A virtual function, whose number is not 0.
        assert_eq!(device_address(0, (3 << 28) | 0xc101), (3 << 28) | 0xc101);
    }

    #[test]
    fn gpu_is_found_by_what_old_and_new_runtimes_report() {
        let whole = [(10, 0, 0xc100), (11, 0, 0xc200)];
        assert_eq!(find(0xc200, &whole), Match::One { gpu: 11, address: 0xc200 });
        assert_eq!(find(0xc300, &whole), Match::Unknown);
        let partitions = [(10, 0, 0xc100), (11, 0, (1 << 28) | 0xc100), (12, 0, (2 << 28) | 0xc100)];
        // A function number identifies the partition; without one, only the driver's id does.
        assert_eq!(find(0xc102, &partitions), Match::One { gpu: 12, address: 0xc102 });
        let all = vec![(10, 0xc100), (11, 0xc101), (12, 0xc102)];
        assert_eq!(find(0xc100, &partitions), Match::Several(all));
        // In a container that may use one partition only, the topology lists this one.
        assert_eq!(find(0xc100, &partitions[2..]), Match::One { gpu: 12, address: 0xc102 });
        // Older versions of Linux.
        let functions = [(10, 0, 0xc100), (11, 0, 0xc101)];
        assert_eq!(find(0xc100, &functions), Match::One { gpu: 10, address: 0xc100 });
        assert_eq!(find(0xc101, &functions), Match::One { gpu: 11, address: 0xc101 });
    }
}

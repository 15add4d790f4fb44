//! The memory of a device, where its driver reports it in a file that every user can read. AMD's does.

use std::path::Path;

use serde::Serialize;
use xsched_core::DeviceId;

/// Bytes of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Memory {
    pub(crate) used: u64,
    pub(crate) total: u64,
}

/// The memory of a device; none if it is not known.
pub(crate) fn of(device: DeviceId) -> Option<Memory> {
    read(Path::new("/sys/bus/pci/devices"), device)
}

impl Memory {
    /// The part that is used, 0 to 1.
    pub(crate) fn used_part(self) -> f64 {
        (self.used as f64 / self.total.max(1) as f64).min(1.0)
    }
}

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        write!(f, "{:.1} of {:.1} GiB", gib(self.used), gib(self.total))
    }
}

fn read(devices: &Path, device: DeviceId) -> Option<Memory> {
    let directory = devices.join(device.to_string());
    let number = |name: &str| std::fs::read_to_string(directory.join(name)).ok()?.trim().parse().ok();
    Some(Memory { used: number("mem_info_vram_used")?, total: number("mem_info_vram_total")? })
}

#[cfg(test)]
mod tests {
    use xsched_core::DeviceKind;

    use super::*;

    #[test]
    fn memory_is_read_from_the_files_of_the_device() {
        let devices = tempfile::tempdir().unwrap();
        let device = DeviceId::new(DeviceKind::Gpu, 0x30);
        let directory = devices.path().join("0000:00:06.0");
        std::fs::create_dir(&directory).unwrap();
        assert_eq!(read(devices.path(), device), None);
        std::fs::write(directory.join("mem_info_vram_used"), "17\n").unwrap();
        assert_eq!(read(devices.path(), device), None);
        std::fs::write(directory.join("mem_info_vram_total"), "4096\n").unwrap();
        let memory = read(devices.path(), device);
        assert_eq!(memory, Some(Memory { used: 17, total: 4096 }));
        assert_eq!(Memory { used: 1 << 30, total: 16 << 30 }.to_string(), "1.0 of 16.0 GiB");
    }
}

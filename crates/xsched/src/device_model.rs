//! The model of a device, where its driver reports it in a file that every user can read.

use std::fs;
use std::path::Path;

use xsched_core::DeviceId;

/// Such as `NVIDIA H200`; none if it is not known.
pub(crate) fn of(device: DeviceId) -> Option<String> {
    read(Path::new("/"), device)
}

fn read(root: &Path, device: DeviceId) -> Option<String> {
    let nvidia = || {
        let text =
            fs::read_to_string(root.join(format!("proc/driver/nvidia/gpus/{device}/information"))).ok()?;
        text.lines().find_map(|line| line.strip_prefix("Model:")).map(|model| model.trim().to_owned())
    };
    let amd = || {
        let text =
            fs::read_to_string(root.join(format!("sys/bus/pci/devices/{device}/product_name"))).ok()?;
        Some(text.trim().to_owned())
    };
    nvidia().or_else(amd).filter(|model| !model.is_empty())
}

#[cfg(test)]
mod tests {
    use xsched_core::DeviceKind;

    use super::*;

    #[test]
    fn models_are_read_from_the_files_of_both_drivers() {
        let root = tempfile::tempdir().unwrap();
        let [nvidia, amd] = [0x30, 0x38].map(|address| DeviceId::new(DeviceKind::Gpu, address));
        assert_eq!(read(root.path(), nvidia), None);
        for (file, text) in [
            ("proc/driver/nvidia/gpus/0000:00:06.0/information", "Model: \t\t NVIDIA H200\nIRQ:   \t\t 11\n"),
            ("sys/bus/pci/devices/0000:00:07.0/product_name", "AMD Instinct MI300X\n"),
        ] {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        assert_eq!(read(root.path(), nvidia).as_deref(), Some("NVIDIA H200"));
        assert_eq!(read(root.path(), amd).as_deref(), Some("AMD Instinct MI300X"));
    }
}

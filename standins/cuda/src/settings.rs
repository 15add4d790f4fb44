//! The configuration, from the environment.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// The maximum number of devices.
pub(crate) const MAX_DEVICES: usize = 8;

/// The configuration; `standin_cuda.h` documents the variables.
#[allow(clippy::struct_excessive_bools, reason = "each is an independent feature")]
pub(crate) struct Settings {
    /// The file that the processes share.
    pub(crate) file: PathBuf,
    pub(crate) devices: usize,
    /// The devices that are visible to the program, in its order.
    pub(crate) visible: Vec<usize>,
    /// The memory of each device, in bytes.
    pub(crate) memory: u64,
    /// The cost of a context switch between processes.
    pub(crate) switch: Duration,
    /// Stream memory operations are supported.
    pub(crate) has_memory_ops: bool,
    /// Their second version, introduced with CUDA 11.7, is supported.
    pub(crate) has_memory_ops_v2: bool,
    /// Processes may set their own time slices.
    pub(crate) timeslices: bool,
    /// The resource manager can disable channels.
    pub(crate) channel_stops: bool,
    /// The resource manager is used at all.
    pub(crate) resource_manager: bool,
}

impl Settings {
    pub(crate) fn get() -> &'static Self {
        static SETTINGS: OnceLock<Settings> = OnceLock::new();
        SETTINGS.get_or_init(|| Self::read(|name| std::env::var(name).ok()))
    }

    fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let without = variable("XSCHED_STANDIN_CUDA_WITHOUT").unwrap_or_default();
        let has = |what: &str| !without.split(',').any(|one| one.trim() == what);
        let number =
            |name: &str, default: u64| variable(name).and_then(|text| text.parse().ok()).unwrap_or(default);
        let default_file = || match variable("XDG_RUNTIME_DIR") {
            Some(directory) => PathBuf::from(directory).join("xsched-standin-cuda"),
            None => format!("/tmp/xsched-standin-cuda-{}", rustix::process::getuid().as_raw()).into(),
        };
        let devices = usize::try_from(number("XSCHED_STANDIN_CUDA_DEVICES", 1)).unwrap_or(1);
        let devices = devices.min(MAX_DEVICES);
        let visible = match variable("CUDA_VISIBLE_DEVICES") {
            Some(chosen) => visible(&chosen, devices),
            None => (0..devices).collect(),
        };
        Self {
            file: variable("XSCHED_STANDIN_CUDA").map_or_else(default_file, PathBuf::from),
            devices,
            visible,
            memory: number("XSCHED_STANDIN_CUDA_MEMORY_MIB", 16 << 10).saturating_mul(1 << 20),
            switch: Duration::from_micros(number("XSCHED_STANDIN_CUDA_SWITCH_US", 180)),
            has_memory_ops: has("memory-waits"),
            has_memory_ops_v2: has("new-waits"),
            timeslices: has("timeslices"),
            channel_stops: has("channel-stops"),
            resource_manager: has("resource-manager"),
        }
    }
}

/// The UUID of a device; its last byte is the device's index.
pub(crate) fn uuid(device: usize) -> [u8; 16] {
    let mut uuid = *b"stand-in GPU\0\0\0\0";
    uuid[15] = u8::try_from(device).unwrap_or(0);
    uuid
}

/// The UUID as nvidia-smi prints it.
fn uuid_text(device: usize) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(uuid(device)));
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    format!("GPU-{}", parts.join("-"))
}

/// Parses `CUDA_VISIBLE_DEVICES`: indexes, or prefixes of UUIDs that match one device. An invalid entry ends the list; a
/// device that is listed twice makes the list empty.
fn visible(chosen: &str, devices: usize) -> Vec<usize> {
    let mut visible = Vec::new();
    for one in chosen.split(',').map(str::trim) {
        let by_name = || {
            let one = one.to_ascii_lowercase();
            let mut matching = (0..devices)
                .filter(|device| one.len() > 4 && uuid_text(*device).to_ascii_lowercase().starts_with(&one));
            matching.next().filter(|_| matching.next().is_none())
        };
        let Some(device) = one.parse().ok().filter(|device| *device < devices).or_else(by_name) else {
            break;
        };
        if visible.contains(&device) {
            return Vec::new();
        }
        visible.push(device);
    }
    visible
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_apply_to_unset_variables() {
        let default = Settings::read(|name| (name == "XDG_RUNTIME_DIR").then(|| "/run/user/7".to_owned()));
        assert_eq!(default.file, PathBuf::from("/run/user/7/xsched-standin-cuda"));
        assert_eq!((default.devices, default.switch), (1, Duration::from_micros(180)));
        assert_eq!(default.visible, [0]);
        assert!(
            default.has_memory_ops
                && default.has_memory_ops_v2
                && default.timeslices
                && default.resource_manager
        );
    }

    #[test]
    fn listed_features_are_disabled() {
        let settings = Settings::read(|name| match name {
            "XSCHED_STANDIN_CUDA_WITHOUT" => Some("timeslices, memory-waits".to_owned()),
            "XSCHED_STANDIN_CUDA_DEVICES" => Some("99".to_owned()),
            _ => None,
        });
        assert!(
            !settings.timeslices
                && !settings.has_memory_ops
                && settings.has_memory_ops_v2
                && settings.resource_manager
        );
        assert_eq!(settings.devices, MAX_DEVICES);
    }

    #[test]
    fn visible_devices_are_selected_and_ordered() {
        let name = uuid_text(2);
        assert_eq!(name, "GPU-7374616e-642d-696e-2047-505500000002");
        for (chosen, expected) in [
            ("2,0", vec![2, 0]),
            (" 1 ", vec![1]),
            ("", vec![]),
            ("-1", vec![]),
            ("1,7,0", vec![1]),
            ("0,0", vec![]),
            (name.as_str(), vec![2]),
            (&format!("{},{name}", uuid_text(1).to_ascii_uppercase().replace("GPU", "gpu")), vec![1, 2]),
            ("GPU-7374", vec![]),
        ] {
            assert_eq!(visible(chosen, 4), expected, "{chosen}");
        }
        assert_eq!(visible("GPU-7374", 1), [0], "a prefix that matches one device");
    }
}

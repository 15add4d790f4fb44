//! What the environment says about the device.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// How many devices there can be.
pub(crate) const MOST_DEVICES: usize = 8;

/// See the head of this file, and `standin_cuda.h` for the names.
#[allow(clippy::struct_excessive_bools, reason = "each is a thing that a machine has or lacks")]
pub(crate) struct Settings {
    /// The file that the processes share.
    pub(crate) file: PathBuf,
    pub(crate) devices: usize,
    /// Those that the program sees, in its order.
    pub(crate) visible: Vec<usize>,
    /// What it costs the device to change from one process to another.
    pub(crate) switch: Duration,
    /// Stream memory waits and writes.
    pub(crate) memory_waits: bool,
    /// Their second form, which came with CUDA 11.7.
    pub(crate) new_waits: bool,
    /// Processes may set their own timeslices.
    pub(crate) timeslices: bool,
    /// The resource manager stops channels.
    pub(crate) channel_stops: bool,
    /// The resource manager is called at all.
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
            |name: &str, usual: u64| variable(name).and_then(|text| text.parse().ok()).unwrap_or(usual);
        let usual_file = || match variable("XDG_RUNTIME_DIR") {
            Some(directory) => PathBuf::from(directory).join("xsched-standin-cuda"),
            None => format!("/tmp/xsched-standin-cuda-{}", rustix::process::getuid().as_raw()).into(),
        };
        let devices = usize::try_from(number("XSCHED_STANDIN_CUDA_DEVICES", 1)).unwrap_or(1);
        let devices = devices.min(MOST_DEVICES);
        let visible = match variable("CUDA_VISIBLE_DEVICES") {
            Some(chosen) => visible(&chosen, devices),
            None => (0..devices).collect(),
        };
        Self {
            file: variable("XSCHED_STANDIN_CUDA").map_or_else(usual_file, PathBuf::from),
            devices,
            visible,
            switch: Duration::from_micros(number("XSCHED_STANDIN_CUDA_SWITCH_US", 180)),
            memory_waits: has("memory-waits"),
            new_waits: has("new-waits"),
            timeslices: has("timeslices"),
            channel_stops: has("channel-stops"),
            resource_manager: has("resource-manager"),
        }
    }
}

/// What every device is called, but for its last byte, which is its number.
pub(crate) fn uuid(device: usize) -> [u8; 16] {
    let mut uuid = *b"stand-in GPU\0\0\0\0";
    uuid[15] = u8::try_from(device).unwrap_or(0);
    uuid
}

/// As people write it.
fn uuid_text(device: usize) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(uuid(device)));
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    format!("GPU-{}", parts.join("-"))
}

/// What `CUDA_VISIBLE_DEVICES` chooses: numbers, or beginnings of names that fit one device. What makes no sense ends the
/// list, and who is named twice ends it all.
fn visible(chosen: &str, devices: usize) -> Vec<usize> {
    let mut visible = Vec::new();
    for one in chosen.split(',').map(str::trim) {
        let by_name = || {
            let one = one.to_ascii_lowercase();
            let mut fitting = (0..devices)
                .filter(|device| one.len() > 4 && uuid_text(*device).to_ascii_lowercase().starts_with(&one));
            fitting.next().filter(|_| fitting.next().is_none())
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
    fn what_is_not_said_is_as_on_a_usual_machine() {
        let usual = Settings::read(|name| (name == "XDG_RUNTIME_DIR").then(|| "/run/user/7".to_owned()));
        assert_eq!(usual.file, PathBuf::from("/run/user/7/xsched-standin-cuda"));
        assert_eq!((usual.devices, usual.switch), (1, Duration::from_micros(180)));
        assert_eq!(usual.visible, [0]);
        assert!(usual.memory_waits && usual.new_waits && usual.timeslices && usual.resource_manager);
    }

    #[test]
    fn what_a_machine_lacks_can_be_listed() {
        let said = Settings::read(|name| match name {
            "XSCHED_STANDIN_CUDA_WITHOUT" => Some("timeslices, memory-waits".to_owned()),
            "XSCHED_STANDIN_CUDA_DEVICES" => Some("99".to_owned()),
            _ => None,
        });
        assert!(!said.timeslices && !said.memory_waits && said.new_waits && said.resource_manager);
        assert_eq!(said.devices, MOST_DEVICES);
    }

    #[test]
    fn a_program_sees_the_devices_it_is_given_in_their_order() {
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
        assert_eq!(visible("GPU-7374", 1), [0], "the beginning of a name, if it fits one");
    }
}

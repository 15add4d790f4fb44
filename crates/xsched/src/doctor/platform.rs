//! Whose programs can be scheduled, and the device that is always there.

use xsched_core::Level;
use xsched_sim::Config;

use super::{Check, Group, Machine};

/// A vendor interface that programs use an accelerator through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Platform {
    /// NVIDIA's.
    Cuda,
    /// AMD's.
    Hip,
    /// Everybody's.
    OpenCl,
}

/// The platforms whose hooks are in this build.
pub(super) const IN_THIS_BUILD: &[Platform] = &[Platform::Cuda, Platform::Hip, Platform::OpenCl];

impl Platform {
    /// As its vendor writes it.
    fn name(self) -> &'static str {
        match self {
            Self::Cuda => "CUDA",
            Self::Hip => "HIP",
            Self::OpenCl => "OpenCL",
        }
    }

    /// What it means that a device is only reached through a platform without hooks.
    pub(super) fn cannot_drive_yet(self, group: Group, name: impl Into<String>, device: &str) -> Check {
        let platform = self.name();
        Check::warning(
            group,
            name,
            format!("{device}: XSched cannot drive it yet, for this build has no hooks for {platform}"),
            format!(
                "nothing breaks: {platform} programs run as if XSched were not there, in the order of the driver; \
                 see what XSched does on the simulated device with `xsched demo`"
            ),
        )
    }
}

/// The simulated device needs nothing.
pub(super) fn simulated(_machine: &Machine) -> Vec<Check> {
    let capabilities = Config::default().capabilities();
    let levels: Vec<_> = Level::ALL
        .iter()
        .filter(|level| capabilities.cost(**level).is_ok())
        .map(|level| level.number().to_string())
        .collect();
    let what = format!("always there; levels {} work: `xsched demo` shows them", levels.join(", "));
    vec![Check::ok(Group::Devices, "simulated", what)]
}

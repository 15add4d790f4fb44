//! AMD's compute driver: versions, settings, and the preemption level that they allow.

use serde_json::json;

use super::HERE;
use super::topology::Gpu;
use crate::doctor::{Check, Machine};

const PARAMETERS: &str = "/sys/module/amdgpu/parameters";

/// The only major version of the driver's interface that exists so far.
const KNOWN_INTERFACE: u32 = 1;
/// `amdgpu.sched_policy`.
const NO_FIRMWARE_SCHEDULER: u32 = 2;

/// The driver and the settings that matter for preemption.
pub(super) struct Driver {
    /// The version of the module, if it is not part of the kernel.
    module: Option<String>,
    kernel: String,
    interface: Option<(u32, u32)>,
    /// The driver saves running waves (CWSR). None if the parameter does not exist.
    saves_waves: Option<bool>,
    /// `amdgpu.sched_policy`: 0 and 1 use the firmware's scheduler, 2 none.
    policy: Option<u32>,
    has_mes: bool,
}

impl Driver {
    pub(super) fn read(machine: &Machine, gpus: &[Gpu]) -> Self {
        let parameter =
            |name: &str| machine.text(&format!("{PARAMETERS}/{name}")).map(|text| text.trim().to_owned());
        let number = |name: &str| parameter(name).and_then(|text| text.parse::<i64>().ok());
        let line = |path: &str| machine.text(path).map(|text| text.trim().to_owned());
        Self {
            module: line("/sys/module/amdgpu/version"),
            kernel: line("/proc/sys/kernel/osrelease").unwrap_or_default(),
            interface: (machine.kfd_version)(&machine.at(super::KFD)),
            saves_waves: number("cwsr_enable").map(|value| value != 0),
            policy: number("sched_policy").and_then(|value| u32::try_from(value).ok()),
            has_mes: gpus.iter().any(Gpu::has_mes) || number("mes") == Some(1),
        }
    }

    fn scheduler(&self) -> &'static str {
        match self.policy {
            Some(NO_FIRMWARE_SCHEDULER) => "the driver itself (amdgpu.sched_policy=2)",
            _ if self.has_mes => "MES, which stops one queue at a time",
            _ => "HWS, which reloads the run list of all processes for each stop",
        }
    }

    /// The highest level that the driver's settings allow.
    pub(super) fn highest_level(&self) -> u32 {
        if self.saves_waves == Some(false) { 1 } else { 3 }
    }

    /// The finding about the driver itself.
    pub(super) fn examine(&self) -> Check {
        let name = "amd driver";
        let module = match &self.module {
            Some(version) => format!("amdgpu {version} on Linux {}", self.kernel),
            None => format!("amdgpu of Linux {}", self.kernel),
        };
        let interface = match self.interface {
            Some((major, minor)) => format!("KFD interface {major}.{minor}"),
            None => "the version of its KFD interface cannot be read".to_owned(),
        };
        let waves = match self.saves_waves {
            Some(true) => "saves running waves",
            Some(false) => "does not save running waves",
            None => "does not say whether it saves running waves",
        };
        let what = format!("{module}: {interface}, {waves}, queues are scheduled by {}", self.scheduler());
        let facts = json!({
            "module_version": self.module, "kernel": self.kernel,
            "kfd_interface": self.interface.map(|(major, minor)| format!("{major}.{minor}")),
            "cwsr_enable": self.saves_waves, "sched_policy": self.policy,
            "queue_scheduler": if self.policy == Some(NO_FIRMWARE_SCHEDULER) { "none" } else if self.has_mes { "MES" } else { "HWS" },
        });
        let check = match self.interface {
            Some((major, _)) if major != KNOWN_INTERFACE => Check::warning(
                HERE,
                name,
                format!("{what}. XSched knows KFD interface {KNOWN_INTERFACE} only"),
                "`scripts/verify --platform hip` measures which levels work; send its report",
            ),
            _ if self.policy == Some(NO_FIRMWARE_SCHEDULER) => Check::warning(
                HERE,
                name,
                format!("{what}. XSched was not tested in this mode"),
                "load amdgpu without sched_policy=2, or measure the levels with `scripts/verify --platform hip`",
            ),
            _ => Check::ok(HERE, name, what),
        };
        check.with_facts(facts)
    }

    /// The finding about a GPU whose files this user can use.
    pub(super) fn examine_level(&self, name: String, device: &str) -> Check {
        if self.saves_waves == Some(false) {
            let what = format!(
                "{device}: level 1 works; the driver does not save running waves (amdgpu.cwsr_enable=0)"
            );
            let do_next = "a running kernel is not preempted: load amdgpu without cwsr_enable=0 for level 3";
            return Check::warning(HERE, name, what, do_next);
        }
        let what = format!(
            "{device}: levels 1, 2 and 3 work. Levels 2 and 3 make the program's queues inactive (KFD) when all its streams \
             have to stop; `scripts/verify --platform hip` measures how long that takes"
        );
        Check::ok(HERE, name, what)
    }
}

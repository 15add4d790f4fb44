//! The devices of the built-in loads, and the command lines of the loads.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use serde_json::Value;
use xsched_sim::{Config, SimDevice};

use super::program::CommandLine;
use crate::commands::run::library;

/// Where the built-in loads run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Platform {
    /// A simulated device, which needs no hardware.
    Simulated,
    /// The first NVIDIA GPU.
    Cuda,
    /// The first AMD GPU, with HIP.
    Hip,
    /// The first OpenCL device.
    Opencl,
}

/// The option of every benchmark with built-in loads.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(super) struct DeviceOption {
    /// Where the built-in loads run. Without it: an NVIDIA or an AMD GPU if there is one, else the simulated device.
    #[arg(long, value_enum)]
    platform: Option<Platform>,
}

/// A device for the built-in loads.
pub(super) struct LoadDevice {
    platform: Platform,
    pub(super) name: String,
    calibration: String,
    /// The simulated device exists as long as its file.
    simulated: Option<SimulatedFile>,
}

struct SimulatedFile {
    path: PathBuf,
    _device: SimDevice,
}

impl Drop for SimulatedFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl LoadDevice {
    /// The device that the user selected, else the best one of the machine.
    pub(super) fn open(option: DeviceOption) -> anyhow::Result<Self> {
        match option.platform {
            Some(Platform::Simulated) => Self::simulated(),
            Some(platform) => Self::real(platform),
            None => Self::real(Platform::Cuda)
                .or_else(|_| Self::real(Platform::Hip))
                .or_else(|_| Self::simulated()),
        }
    }

    fn simulated() -> anyhow::Result<Self> {
        let config = Config::default();
        let path = std::env::temp_dir().join(format!("xsched-bench-device-{}", std::process::id()));
        let device = SimDevice::create_at(&path, &config)
            .with_context(|| format!("cannot create {}", path.display()))?;
        let simulated = Some(SimulatedFile { path, _device: device });
        Ok(Self { platform: Platform::Simulated, name: config.name(), calibration: String::new(), simulated })
    }

    /// Probes in a child process: this process must not use the device.
    fn real(platform: Platform) -> anyhow::Result<Self> {
        library::find().context("programs on a real device cannot be scheduled")?;
        let mut device = Self { platform, name: String::new(), calibration: String::new(), simulated: None };
        let line = device.load("probe", &[])?;
        let (program, arguments) = line.words.split_first().context("the command is empty")?;
        let output = Command::new(program).args(arguments).stdin(Stdio::null()).output()?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            bail!("{}", stderr.trim().trim_start_matches("xsched: "));
        }
        let output: Value = serde_json::from_slice(&output.stdout).context("the probe printed no JSON")?;
        let text = |field: &str| output[field].as_str().unwrap_or_default().to_owned();
        (device.name, device.calibration) = (text("device"), text("calibration"));
        Ok(device)
    }

    pub(super) fn is_simulated(&self) -> bool {
        self.platform == Platform::Simulated
    }

    /// The command line of a load.
    pub(super) fn load(&self, mode: &str, arguments: &[(&str, u64)]) -> anyhow::Result<CommandLine> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let platform = match self.platform {
            Platform::Simulated => "simulated",
            Platform::Cuda => "cuda",
            Platform::Hip => "hip",
            Platform::Opencl => "opencl",
        };
        let mut words = vec![program.into_os_string()];
        words.extend(["bench", "worker", "--platform", platform].map(Into::into));
        if let Some(SimulatedFile { path, .. }) = &self.simulated {
            words.extend(["--device".into(), path.into()]);
        }
        if !self.calibration.is_empty() {
            words.extend(["--calibration".into(), self.calibration.clone().into()]);
        }
        words.push(mode.into());
        for (name, value) in arguments {
            words.extend([(*name).into(), value.to_string().into()]);
        }
        Ok(CommandLine { words, is_simulated: self.is_simulated() })
    }

    /// Requests of 16 commands of 0.5 ms, 20 % of the device's time.
    pub(super) fn service(&self) -> anyhow::Result<CommandLine> {
        self.load("requests", &[("--commands", 16), ("--length-us", 500), ("--period-us", 40_000)])
    }

    /// Steps of 16 commands of 2 ms, without a pause.
    pub(super) fn training(&self) -> anyhow::Result<CommandLine> {
        self.load("busy", &[("--commands", 16), ("--length-us", 2_000)])
    }
}

/// The number in a field of the last line of a load's output.
pub(super) fn number(output: &str, field: &str) -> anyhow::Result<f64> {
    let line = output.lines().last().unwrap_or_default();
    let value: Value = serde_json::from_str(line).with_context(|| format!("a load printed `{line}`"))?;
    value[field].as_f64().with_context(|| format!("a load printed no {field}"))
}

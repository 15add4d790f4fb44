//! NVIDIA GPUs: the driver, the device files, the levels, and MPS.

use super::platform::Platform;
use super::{Check, Group, Machine, pci};

const HERE: Group = Group::Devices;
const VENDOR: &str = "0x10de";

/// Everything about NVIDIA GPUs; nothing if there are none.
pub(super) fn nvidia(machine: &Machine) -> Vec<Check> {
    let Some(version) = machine.text("/proc/driver/nvidia/version") else {
        return pci::accelerators(machine, VENDOR).iter().map(|address| without_driver(address)).collect();
    };
    let driver = Driver::from(version.as_str());
    let gpus = gpus(machine);
    let mut checks = Vec::new();
    if gpus.is_empty() {
        let what = format!("the driver ({}) is loaded but has no GPU", driver.version);
        let do_next = "look for the reason with `dmesg | grep -i nvrm`; in a container, pass the GPU into it";
        checks.push(Check::warning(HERE, "nvidia", what, do_next));
    }
    for gpu in &gpus {
        checks.extend(examine(machine, &driver, gpu));
    }
    if !gpus.is_empty() {
        checks.extend(mps(machine));
    }
    checks
}

fn without_driver(address: &str) -> Check {
    Check::warning(
        HERE,
        format!("nvidia {address}"),
        "on the PCI bus, but its driver is not loaded: no program can use it",
        "install NVIDIA's driver (the open kernel modules), then `sudo modprobe nvidia`; a virtual machine or \
         container must be given the GPU",
    )
}

struct Driver {
    version: String,
    open: bool,
}

impl From<&str> for Driver {
    /// Reads `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build ...`.
    fn from(text: &str) -> Self {
        let line = text.lines().next().unwrap_or_default();
        let is_version = |word: &&str| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit());
        let version = line.split_whitespace().find(is_version).unwrap_or("of unknown version");
        Self { version: version.to_owned(), open: line.contains("Open Kernel Module") }
    }
}

struct Gpu {
    address: String,
    model: String,
    minor: Option<String>,
}

fn gpus(machine: &Machine) -> Vec<Gpu> {
    const GPUS: &str = "/proc/driver/nvidia/gpus";
    machine
        .names_in(GPUS)
        .into_iter()
        .map(|address| {
            let text = machine.text(&format!("{GPUS}/{address}/information")).unwrap_or_default();
            let field = |name: &str| {
                let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_prefix(':'));
                value.map(|value| value.trim().to_owned())
            };
            let model = field("Model").unwrap_or_else(|| "NVIDIA GPU".to_owned());
            Gpu { model, minor: field("Device Minor"), address }
        })
        .collect()
}

fn examine(machine: &Machine, driver: &Driver, gpu: &Gpu) -> Vec<Check> {
    let name = format!("nvidia {}", gpu.address);
    let modules = if driver.open { "open kernel modules" } else { "proprietary kernel modules" };
    let device = format!("{}, driver {} ({modules})", gpu.model, driver.version);
    let minor = gpu.minor.iter().map(|minor| format!("/dev/nvidia{minor}"));
    let files: Vec<_> = minor.chain(["/dev/nvidiactl".to_owned()]).collect();
    if let Some(missing) = files.iter().find(|file| !machine.has(file)) {
        let what = format!("{device}: {missing} is not there, so no program can use it");
        let do_next =
            "run `nvidia-smi` or `nvidia-modprobe -u` once as root; in a container, pass the GPU into it";
        return vec![Check::problem(HERE, name, what, do_next)];
    }
    if let Some(closed) = files.iter().find(|file| !machine.may_use(file)) {
        let what = format!("{device}: this user may not use {closed}");
        return vec![Check::problem(HERE, name, what, machine.how_to_get_at(closed, "video"))];
    }
    if !machine.driven.contains(&Platform::Cuda) {
        return vec![Platform::Cuda.cannot_drive_yet(HERE, name, &device)];
    }
    vec![if driver.open {
        Check::ok(
            HERE,
            name,
            format!(
                "{device}: levels 1 and 3 work, 3 by timeslices: a running kernel gives way to more important work, but a \
                 suspension lets it finish; level 2, stall points in the stream, is not there yet"
            ),
        )
    } else {
        Check::warning(
            HERE,
            name,
            format!("{device}: level 1 works; level 3 is known to work with the open kernel modules only"),
            "a running kernel is not interrupted: expect to wait for it, or install the open kernel modules",
        )
    }]
}

/// Under MPS all programs share one context, so that the GPU cannot be taken from one and given to another.
fn mps(machine: &Machine) -> Vec<Check> {
    let directory = machine.variable("CUDA_MPS_PIPE_DIRECTORY").unwrap_or("/tmp/nvidia-mps");
    if !machine.has(&format!("{directory}/control")) {
        return Vec::new();
    }
    vec![Check::warning(
        HERE,
        "nvidia MPS",
        format!(
            "has run here (pipes in {directory}): its programs share the GPU, and level 3 cannot part them"
        ),
        "if it runs and level 3 matters, end it: `echo quit | nvidia-cuda-mps-control`",
    )]
}

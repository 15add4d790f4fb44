//! NVIDIA GPUs: the driver, the device files, the preemption levels, `CUDA_VISIBLE_DEVICES`, and MPS.

use crate::doctor::{Check, Group, Machine, pci};

#[cfg(test)]
mod tests;

const HERE: Group = Group::Devices;
const VENDOR: &str = "0x10de";

/// The findings about NVIDIA GPUs.
pub(crate) fn probe(machine: &Machine) -> Vec<Check> {
    let Some(version) = machine.text("/proc/driver/nvidia/version") else {
        let mut checks: Vec<_> =
            pci::accelerators(machine, VENDOR).iter().map(|address| without_driver(address)).collect();
        if checks.is_empty() {
            checks.push(Check::absent(HERE, "nvidia", "no NVIDIA GPU on this machine"));
        }
        return checks;
    };
    let driver = Driver::from(version.as_str());
    let gpus = gpus(machine);
    let mut checks = Vec::new();
    if gpus.is_empty() {
        let what = format!("the driver ({}) is loaded but reports no GPU", driver.version);
        let do_next = "find the reason with `dmesg | grep -i nvrm`; in a container, pass the GPU to it";
        checks.push(Check::warning(HERE, "nvidia", what, do_next));
    }
    for gpu in &gpus {
        checks.extend(examine(machine, &driver, gpu));
    }
    if !gpus.is_empty() {
        checks.extend(visible(machine, &gpus));
        checks.extend(mps(machine));
    }
    checks
}

fn without_driver(address: &str) -> Check {
    Check::warning(
        HERE,
        format!("nvidia {address}"),
        "on the PCI bus, but its driver is not loaded: no program can use it",
        "install NVIDIA's driver (the open kernel modules), then `sudo modprobe nvidia`; to a virtual machine or \
         container, pass the GPU",
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
    uuid: Option<String>,
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
            Gpu { model, minor: field("Device Minor"), uuid: field("GPU UUID"), address }
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
        let what = format!("{device}: {missing} does not exist, so no program can use the GPU");
        let do_next =
            "run `nvidia-smi` or `nvidia-modprobe -u` once as root; in a container, pass the GPU to it";
        return vec![Check::problem(HERE, name, what, do_next)];
    }
    if let Some(closed) = files.iter().find(|file| !machine.may_use(file)) {
        let what = format!("{device}: this user may not use {closed}");
        return vec![Check::problem(HERE, name, what, machine.how_to_get_access(closed, "video"))];
    }
    vec![if driver.open {
        Check::ok(
            HERE,
            name,
            format!(
                "{device}: levels 1, 2 and 3 work. Level 2 stalls streams at stop points (CUDA 11.7 and newer); level 3 \
                 preempts a running kernel by time slices, and by disabling the channels of a program that must leave the \
                 device"
            ),
        )
    } else {
        Check::warning(
            HERE,
            name,
            format!(
                "{device}: levels 1 and 2 work. Level 2 stalls streams at stop points (CUDA 11.7 and newer); level 3 needs \
                 the open kernel modules"
            ),
            "a running kernel is not preempted: install the open kernel modules for level 3",
        )
    }]
}

/// The GPUs that `CUDA_VISIBLE_DEVICES` makes visible to programs.
fn visible(machine: &Machine, gpus: &[Gpu]) -> Option<Check> {
    const NAME: &str = "CUDA_VISIBLE_DEVICES";
    let chosen = machine.environment.get(NAME)?;
    let is_pci_order = machine.variable("CUDA_DEVICE_ORDER") == Some("PCI_BUS_ID");
    let same_model = gpus.iter().all(|gpu| gpu.model == gpus[0].model);
    let (mut seen, mut numbers) = (Vec::new(), false);
    for entry in chosen.split(',').map(str::trim) {
        if entry.starts_with("MIG-") {
            seen.push(format!("{entry}: a partition of a GPU, which the driver resolves in each program"));
            continue;
        }
        let number = entry.parse::<usize>().ok().and_then(|number| gpus.get(number));
        numbers |= number.is_some();
        let Some(gpu) = number.or_else(|| by_uuid(entry, gpus)) else {
            let before =
                if seen.is_empty() { "no GPU".to_owned() } else { format!("only {}", seen.join(", ")) };
            let what = format!("`{chosen}`: no GPU here is `{entry}`, so programs see {before}");
            return Some(Check::warning(
                HERE,
                NAME,
                what,
                "unset it, or use the names that `nvidia-smi -L` prints",
            ));
        };
        let is = format!("{entry} is {}", gpu.address);
        if seen.iter().any(|other: &String| other.ends_with(&gpu.address)) {
            let what = format!("`{chosen}` names {} twice, so programs see no GPU", gpu.address);
            return Some(Check::warning(HERE, NAME, what, "name each GPU once"));
        }
        seen.push(is);
    }
    let what = format!("programs see {}", seen.join(", "));
    Some(if numbers && !is_pci_order && !same_model {
        let what = format!("{what} in PCI order, but CUDA numbers the fastest GPU first");
        Check::warning(
            HERE,
            NAME,
            what,
            "`export CUDA_DEVICE_ORDER=PCI_BUS_ID`, or use the names that `nvidia-smi -L` prints",
        )
    } else {
        Check::ok(HERE, NAME, what)
    })
}

/// The GPU whose UUID begins with `entry`, if there is exactly one.
fn by_uuid<'a>(entry: &str, gpus: &'a [Gpu]) -> Option<&'a Gpu> {
    let entry = entry.to_ascii_lowercase();
    let matches =
        |gpu: &&Gpu| gpu.uuid.as_deref().is_some_and(|uuid| uuid.to_ascii_lowercase().starts_with(&entry));
    let mut matching = gpus.iter().filter(matches);
    let first = matching.next().filter(|_| entry.len() > "gpu-".len())?;
    matching.next().is_none().then_some(first)
}

/// Under MPS all programs share one GPU context, so that level 3 cannot preempt one of them.
fn mps(machine: &Machine) -> Vec<Check> {
    let directory = machine.variable("CUDA_MPS_PIPE_DIRECTORY").unwrap_or("/tmp/nvidia-mps");
    if !machine.has(&format!("{directory}/control")) {
        return Vec::new();
    }
    vec![Check::warning(
        HERE,
        "nvidia MPS",
        format!(
            "runs or has run (pipes in {directory}): its programs share one GPU context, so that level 3 cannot preempt one \
             of them; levels 1 and 2 work"
        ),
        "if MPS runs and you need level 3, stop it: `echo quit | nvidia-cuda-mps-control`",
    )]
}

//! AMD GPUs: the compute driver, its topology, the device files.

mod runtimes;
#[cfg(test)]
mod tests;

use crate::doctor::{Check, Group, Machine, pci};

const HERE: Group = Group::Devices;
const VENDOR: &str = "0x1002";
const KFD: &str = "/dev/kfd";

/// The findings about AMD GPUs and runtimes; none if there are none.
pub(crate) fn probe(machine: &Machine) -> Vec<Check> {
    let mut checks = devices(machine);
    checks.extend(runtimes::probe(machine));
    checks
}

fn devices(machine: &Machine) -> Vec<Check> {
    let gpus = gpus(machine);
    if gpus.is_empty() {
        let without_driver = |address: &String| report_without_driver(machine, address);
        return pci::accelerators(machine, VENDOR).iter().map(without_driver).collect();
    }
    gpus.iter().map(|gpu| examine(machine, gpu)).collect()
}

fn report_without_driver(machine: &Machine, address: &str) -> Check {
    let what = if machine.has(KFD) {
        "on the PCI bus, but unknown to the compute driver: ROCm programs cannot use it"
    } else {
        "on the PCI bus, but /dev/kfd does not exist: ROCm programs cannot use it"
    };
    let do_next = "`sudo modprobe amdgpu`, and find the reason with `dmesg | grep -i kfd`; in a container, pass \
                   /dev/kfd and /dev/dri to it";
    Check::warning(HERE, format!("amd {address}"), what, do_next)
}

struct Gpu {
    address: String,
    architecture: String,
    render_file: Option<String>,
}

/// The nodes of the compute driver's topology that are GPUs.
fn gpus(machine: &Machine) -> Vec<Gpu> {
    const NODES: &str = "/sys/class/kfd/kfd/topology/nodes";
    let gpu = |node: String| {
        let text = machine.text(&format!("{NODES}/{node}/properties"))?;
        let value = |name: &str| {
            let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            found.and_then(|value| value.trim().parse::<u32>().ok())
        };
        // Nodes without shaders are CPUs.
        let architecture = value("gfx_target_version").filter(|version| *version > 0)?;
        let (domain, location) = (value("domain").unwrap_or(0), value("location_id").unwrap_or(0));
        let address = format!(
            "{domain:04x}:{:02x}:{:02x}.{}",
            (location >> 8) & 0xff,
            (location >> 3) & 0x1f,
            location & 7
        );
        let render_file = value("drm_render_minor").map(|minor| format!("/dev/dri/renderD{minor}"));
        Some(Gpu { address, architecture: gfx(architecture), render_file })
    };
    machine.names_in(NODES).into_iter().filter_map(gpu).collect()
}

/// `gfx942` from 90402: the last two parts are written as one hexadecimal digit each.
fn gfx(version: u32) -> String {
    format!("gfx{}{:x}{:x}", version / 10_000, version / 100 % 100, version % 100)
}

fn examine(machine: &Machine, gpu: &Gpu) -> Check {
    let name = format!("amd {}", gpu.address);
    let device = format!("{} GPU", gpu.architecture);
    let files: Vec<&str> = std::iter::once(KFD).chain(gpu.render_file.as_deref()).collect();
    if let Some(missing) = files.iter().find(|file| !machine.has(file)) {
        let what = format!("{device}: {missing} does not exist, so no program can use the GPU");
        let do_next = "`sudo modprobe amdgpu`; in a container, pass /dev/kfd and /dev/dri to it";
        return Check::problem(HERE, name, what, do_next);
    }
    if let Some(closed) = files.iter().find(|file| !machine.may_use(file)) {
        let what = format!("{device}: this user may not use {closed}");
        return Check::problem(HERE, name, what, machine.how_to_get_access(closed, "render"));
    }
    if machine.text("/sys/module/amdgpu/parameters/cwsr_enable").is_some_and(|text| text.trim() == "0") {
        let what =
            format!("{device}: level 1 works; the driver does not save running waves (amdgpu.cwsr_enable=0)");
        let do_next = "a running kernel is not preempted: load amdgpu without cwsr_enable=0 for level 3";
        return Check::warning(HERE, name, what, do_next);
    }
    Check::ok(
        HERE,
        name,
        format!(
            "{device}: levels 1, 2 and 3 work. Levels 2 and 3 make the program's queues inactive (KFD) when all its streams \
             have to stop; the time that this takes has not been measured on a GPU"
        ),
    )
}

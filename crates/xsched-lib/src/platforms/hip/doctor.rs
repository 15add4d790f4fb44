//! AMD GPUs: the compute driver, its topology, partitions, device files, clocks, runtimes and the processes on them.
//!
//! `scripts/verify` prints these findings and stores their values, so that their texts exist only here.

mod driver;
mod power;
mod processes;
mod rocm;
mod runtimes;
#[cfg(test)]
mod tests;
mod topology;

use serde_json::json;

use self::driver::Driver;
use self::topology::Gpu;
use crate::doctor::{Check, Group, Machine, pci};

const HERE: Group = Group::Devices;
const VENDOR: &str = "0x1002";
const KFD: &str = "/dev/kfd";

/// The findings about AMD GPUs and runtimes. Without a GPU the runtimes are listed, but not judged.
pub(crate) fn probe(machine: &Machine) -> Vec<Check> {
    let gpus = topology::gpus(machine);
    let mut checks = Vec::new();
    let mut software = examine_software(machine, !gpus.is_empty());
    if gpus.is_empty() {
        let without_driver = |address: &String| report_without_driver(machine, address);
        checks.extend(pci::accelerators(machine, VENDOR).iter().map(without_driver));
        if checks.is_empty() {
            checks.push(Check::absent(HERE, "amd", "no AMD GPU on this machine"));
            software = software.into_iter().map(Check::without_verdict).collect();
        }
    } else {
        let driver = Driver::read(machine, &gpus);
        checks.push(driver.examine());
        checks.extend(topology::whole_gpus(&gpus).map(|gpu| examine(machine, &driver, &gpus, gpu)));
        checks.extend(power::probe(machine, &gpus));
        checks.extend(processes::probe(machine));
    }
    checks.extend(software);
    checks
}

/// The findings about AMD's software on this machine.
fn examine_software(machine: &Machine, has_gpu: bool) -> Vec<Check> {
    let mut checks = rocm::probe(machine, has_gpu);
    checks.extend(runtimes::probe(machine));
    checks
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

/// One finding for each GPU: whether this user can use it, its partitions, and its preemption levels.
fn examine(machine: &Machine, driver: &Driver, all: &[Gpu], gpu: &Gpu) -> Check {
    let name = format!("amd {}", gpu.address);
    let partitions: Vec<&Gpu> = all.iter().filter(|other| other.address == gpu.address).collect();
    let device = format!("{}{}", gpu.title(), topology::describe_partitions(machine, &partitions));
    let facts = json!({
        "model": gpu.model, "architecture": gpu.architecture, "compute_units": gpu.compute_units,
        "accelerator_dies": gpu.dies, "partitions": partitions.len(),
        "compute_partition": topology::pci_file(machine, gpu, "current_compute_partition"),
        "memory_partition": topology::pci_file(machine, gpu, "current_memory_partition"),
        "compute_partitions_available": topology::pci_file(machine, gpu, "available_compute_partition"),
        "firmware": topology::firmware(machine, gpu),
        "render_files": partitions.iter().filter_map(|one| one.render_file.clone()).collect::<Vec<_>>(),
        "kernel_level": driver.highest_level(),
    });
    let render_files = partitions.iter().filter_map(|one| one.render_file.as_deref());
    let files: Vec<&str> = std::iter::once(KFD).chain(render_files).collect();
    let missing: Vec<&str> = files.iter().copied().filter(|file| !machine.has(file)).collect();
    let closed: Vec<&str> = files.iter().copied().filter(|file| !machine.may_use(file)).collect();
    let check = if missing.is_empty() && closed.is_empty() {
        driver.examine_level(name, &device)
    } else if let [first, ..] = missing[..] {
        let what = format!("{device}: {} does not exist, so no program can use the GPU", missing.join(", "));
        let do_next = if first == KFD {
            "`sudo modprobe amdgpu`; in a container, pass /dev/kfd and /dev/dri to it"
        } else {
            "in a container, pass /dev/dri to it; otherwise find the reason with `dmesg | grep -i amdgpu`"
        };
        Check::problem(HERE, name, what, do_next)
    } else {
        let what = format!("{device}: this user may not use {}", closed.join(", "));
        let mut ways: Vec<_> = closed.iter().map(|file| machine.how_to_get_access(file, "render")).collect();
        ways.dedup();
        ways.truncate(2);
        Check::problem(HERE, name, what, ways.join("; and "))
    };
    check.with_facts(facts)
}

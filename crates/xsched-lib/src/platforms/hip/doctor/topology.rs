//! The GPUs and partitions that AMD's compute driver lists.

use serde_json::{Map, Value};

use crate::doctor::Machine;

const NODES: &str = "/sys/class/kfd/kfd/topology/nodes";

/// A GPU, or one partition of a GPU.
pub(super) struct Gpu {
    /// The PCI address, which partitions of one GPU share.
    pub(super) address: String,
    pub(super) architecture: String,
    pub(super) model: Option<String>,
    pub(super) render_file: Option<String>,
    pub(super) compute_units: Option<u32>,
    /// The accelerator dies (XCCs) that belong to the partition.
    pub(super) dies: Option<u32>,
    /// The number of the partition in its GPU.
    pub(super) partition: u32,
}

impl Gpu {
    /// `AMD Instinct MI308X (gfx942)`, or `gfx942 GPU` if the model is not known.
    pub(super) fn title(&self) -> String {
        match &self.model {
            Some(model) => format!("{model} ({})", self.architecture),
            None => format!("{} GPU", self.architecture),
        }
    }

    /// Whether the firmware's MES schedules the queues, one queue at a time. Older GPUs reload the run list of all processes.
    pub(super) fn has_mes(&self) -> bool {
        let digits = self.architecture.trim_start_matches("gfx");
        // The last two characters are the minor version and the stepping.
        digits
            .get(..digits.len().saturating_sub(2))
            .and_then(|major| major.parse().ok())
            .is_some_and(|n: u32| n >= 11)
    }
}

/// The nodes of the compute driver's topology that are GPUs or partitions, in its order.
pub(super) fn gpus(machine: &Machine) -> Vec<Gpu> {
    let mut nodes = machine.names_in(NODES);
    nodes.sort_by_key(|node| node.parse::<u32>().unwrap_or(u32::MAX));
    nodes.into_iter().filter_map(|node| gpu(machine, &node)).collect()
}

/// One entry for each GPU, whatever the number of its partitions.
pub(super) fn whole_gpus(gpus: &[Gpu]) -> impl Iterator<Item = &Gpu> {
    let is_first = |n: usize| gpus[..n].iter().all(|before| before.address != gpus[n].address);
    (0..gpus.len()).filter(move |n| is_first(*n)).map(|n| &gpus[n])
}

fn gpu(machine: &Machine, node: &str) -> Option<Gpu> {
    let text = machine.text(&format!("{NODES}/{node}/properties"))?;
    let value = |name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        found.and_then(|value| value.trim().parse::<u32>().ok())
    };
    // Nodes without shaders are CPUs.
    let architecture = value("gfx_target_version").filter(|version| *version > 0)?;
    let (domain, location) = (value("domain").unwrap_or(0), value("location_id").unwrap_or(0));
    let (bus, slot, function) = ((location >> 8) & 0xff, (location >> 3) & 0x1f, location & 7);
    let at = |function: u32| format!("{domain:04x}:{bus:02x}:{slot:02x}.{function}");
    let is_on_bus = |function: u32| machine.has(&format!("/sys/bus/pci/devices/{}", at(function)));
    // Linux puts the number of a partition into the highest bits, older versions into the function number, which then names no
    // function of the PCI device.
    let partition = location >> 28;
    let is_old = partition == 0 && function != 0 && is_on_bus(0) && !is_on_bus(function);
    let (address, partition) = if is_old { (at(0), function) } else { (at(function), partition) };
    let named = machine.text(&format!("/sys/bus/pci/devices/{address}/product_name"));
    let named = named.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    Some(Gpu {
        model: named.or_else(|| model(value("device_id")?).map(str::to_owned)),
        address,
        architecture: gfx(architecture),
        render_file: value("drm_render_minor").map(|minor| format!("/dev/dri/renderD{minor}")),
        compute_units: value("simd_count")
            .zip(value("simd_per_cu"))
            .and_then(|(all, per)| all.checked_div(per)),
        dies: value("num_xcc"),
        partition,
    })
}

/// `gfx942` from 90402: the last two parts are written as one hexadecimal digit each.
pub(super) fn gfx(version: u32) -> String {
    format!("gfx{}{:x}{:x}", version / 10_000, version / 100 % 100, version % 100)
}

/// The model by its PCI device id.
fn model(device: u32) -> Option<&'static str> {
    Some(match device {
        0x738c | 0x738e => "AMD Instinct MI100",
        0x7408 | 0x740c => "AMD Instinct MI250X",
        0x740f => "AMD Instinct MI210",
        0x74a0 | 0x74b4 => "AMD Instinct MI300A",
        0x74a1 | 0x74a9 | 0x74b5 | 0x74bd => "AMD Instinct MI300X",
        0x74a2 | 0x74a8 | 0x74b6 | 0x74bc => "AMD Instinct MI308X",
        0x74a5 | 0x74b9 => "AMD Instinct MI325X",
        0x75a0 | 0x75b0 => "AMD Instinct MI350X",
        0x75a3 | 0x75b3 => "AMD Instinct MI355X",
        _ => return None,
    })
}

/// One line of a file of the GPU's PCI device.
pub(super) fn pci_file(machine: &Machine, gpu: &Gpu, file: &str) -> Option<String> {
    let text = machine.text(&format!("/sys/bus/pci/devices/{}/{file}", gpu.address))?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// `, 4 partitions (CPX/NPS4)`, or nothing for a GPU without partitions.
pub(super) fn describe_partitions(machine: &Machine, partitions: &[&Gpu]) -> String {
    let [gpu, ..] = partitions else { return String::new() };
    let mode = |file: &str| pci_file(machine, gpu, file);
    let modes: Vec<String> =
        ["current_compute_partition", "current_memory_partition"].into_iter().filter_map(mode).collect();
    let modes = modes.join("/");
    let numbers: std::collections::BTreeSet<u32> = partitions.iter().map(|one| one.partition).collect();
    match (partitions.len(), modes.is_empty()) {
        (1, true) => String::new(),
        (1, false) => format!(", one partition ({modes})"),
        // The library tells partitions apart by their number; all zero means a driver that does not write it.
        (n, _) if numbers.len() < n => {
            format!(", {n} partitions ({modes}) that the driver does not number: they are held together")
        }
        (n, true) => format!(", {n} partitions, each scheduled by itself"),
        (n, false) => format!(", {n} partitions ({modes}), each scheduled by itself"),
    }
}

/// The firmware versions that the driver shows.
pub(super) fn firmware(machine: &Machine, gpu: &Gpu) -> Value {
    let directory = format!("/sys/bus/pci/devices/{}/fw_version", gpu.address);
    let version = |file: String| {
        let version = machine.text(&format!("{directory}/{file}"))?.trim().to_owned();
        let name = file.trim_end_matches("_fw_version").to_owned();
        // Blocks that the GPU does not have are zero.
        let is_present = version.trim_start_matches("0x").chars().any(|digit| digit != '0');
        is_present.then_some((name, Value::String(version)))
    };
    Value::Object(machine.names_in(&directory).into_iter().filter_map(version).collect::<Map<_, _>>())
}

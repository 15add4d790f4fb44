//! The driver's topology files, as Linux shows them under `/sys/devices/virtual/kfd/kfd/topology`.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use crate::GpuNode;

const TOPOLOGY: &str = "devices/virtual/kfd/kfd/topology";
/// The kernel's capability word of these GPUs: queues are in a hardware scheduler, doorbells have 64 bits, memory is
/// coherent, and the debugger is supported.
const CAPABILITY: u32 = 0x2000_0000 | (2 << 12) | 0x0280;

/// What the files describe, in their root directory.
const DESCRIPTION: &str = "machine";

/// Writes the topology of the machine below `root`, which replaces `/sys`. The files appear all at once. Fails, with a message, if
/// they are there and describe another machine: processes that share a machine must agree on the variables that describe it.
pub fn write_topology(root: &Path, nodes: &[GpuNode]) -> io::Result<()> {
    let saves_waves = std::env::var("KFD_STANDIN_CWSR").unwrap_or_else(|_| "1".to_owned());
    let written = write_or_compare(root, nodes, &saves_waves);
    if let Err(error) = &written {
        eprintln!("amd-machine: cannot write the topology {}: {error}", root.display());
    }
    written
}

/// `saves_waves` is the driver's parameter `cwsr_enable`.
fn write_or_compare(root: &Path, nodes: &[GpuNode], saves_waves: &str) -> io::Result<()> {
    let description = format!("cwsr_enable {saves_waves}\n{nodes:#?}\n");
    if !root.exists() {
        let mut draft = root.as_os_str().to_owned();
        draft.push(format!(".{}", std::process::id()));
        let draft = Path::new(&draft);
        write_files(draft, nodes, saves_waves)?;
        std::fs::write(draft.join(DESCRIPTION), &description)?;
        match std::fs::rename(draft, root) {
            // Another process was faster.
            Err(_) if root.exists() => std::fs::remove_dir_all(draft)?,
            result => return result,
        }
    }
    if std::fs::read_to_string(root.join(DESCRIPTION))? == description {
        Ok(())
    } else {
        Err(io::Error::other("it describes another machine; name another ROCR_STANDIN_DEVICE for this one"))
    }
}

fn write_files(root: &Path, nodes: &[GpuNode], saves_waves: &str) -> io::Result<()> {
    let topology = root.join(TOPOLOGY);
    std::fs::create_dir_all(&topology)?;
    std::fs::write(topology.join("generation_id"), "1\n")?;
    std::fs::write(topology.join("system_properties"), "platform_oem 0\nplatform_id 0\nplatform_rev 0\n")?;
    write_cpu(&topology.join("nodes/0"), nodes.len())?;
    for node in nodes {
        write_gpu(&topology.join(format!("nodes/{}", node.node)), node)?;
    }
    std::fs::create_dir_all(root.join("class/kfd"))?;
    std::os::unix::fs::symlink("../../devices/virtual/kfd/kfd", root.join("class/kfd/kfd"))?;
    std::fs::create_dir_all(root.join("module/amdgpu/parameters"))?;
    std::fs::write(root.join("module/amdgpu/parameters/cwsr_enable"), format!("{saves_waves}\n"))?;
    std::fs::write(root.join("module/amdgpu/initstate"), "live\n")
}

fn properties(pairs: &[(&str, u64)]) -> String {
    let mut text = String::new();
    for (name, value) in pairs {
        let _ = writeln!(text, "{name} {value}");
    }
    text
}

fn write_node(place: &Path, gpu_id: u32, name: &str, text: &str, bank: &str) -> io::Result<()> {
    let banks = place.join("mem_banks/0");
    std::fs::create_dir_all(&banks)?;
    for empty in ["caches", "io_links", "p2p_links", "perf"] {
        std::fs::create_dir_all(place.join(empty))?;
    }
    std::fs::write(place.join("gpu_id"), format!("{gpu_id}\n"))?;
    std::fs::write(place.join("name"), format!("{name}\n"))?;
    std::fs::write(place.join("properties"), text)?;
    std::fs::write(banks.join("properties"), bank)
}

fn write_links(place: &Path, from: u32, to: impl Iterator<Item = (u32, u32, u32)>) -> io::Result<()> {
    for (number, (node, kind, weight)) in to.enumerate() {
        let link = place.join(format!("io_links/{number}"));
        std::fs::create_dir_all(&link)?;
        let text = properties(&[
            ("type", kind.into()),
            ("version_major", 0),
            ("version_minor", 0),
            ("node_from", from.into()),
            ("node_to", node.into()),
            ("weight", weight.into()),
            ("min_latency", 0),
            ("max_latency", 0),
            ("min_bandwidth", 0),
            ("max_bandwidth", 0),
            ("recommended_transfer_size", 0),
            ("recommended_sdma_engine_id_mask", 0),
            ("flags", 1),
        ]);
        std::fs::write(link.join("properties"), text)?;
    }
    Ok(())
}

/// `HSA_IOLINK_TYPE_PCIEXPRESS` with the weight of a link to the CPU.
const PCIE: (u32, u32) = (2, 20);

fn write_cpu(place: &Path, gpus: usize) -> io::Result<()> {
    let gpus = u32::try_from(gpus).unwrap_or(0);
    let text = properties(&[
        ("cpu_cores_count", 16),
        ("simd_count", 0),
        ("mem_banks_count", 1),
        ("caches_count", 0),
        ("io_links_count", gpus.into()),
        ("p2p_links_count", 0),
        ("cpu_core_id_base", 0),
        ("simd_id_base", 0),
        ("max_waves_per_simd", 0),
        ("gfx_target_version", 0),
        ("vendor_id", 0),
        ("device_id", 0),
        ("location_id", 0),
        ("domain", 0),
        ("drm_render_minor", 0),
        ("hive_id", 0),
        ("num_xcc", 0),
        ("max_engine_clk_ccompute", 3700),
    ]);
    let bank = properties(&[
        ("heap_type", 0),
        ("size_in_bytes", 64 << 30),
        ("flags", 0),
        ("width", 64),
        ("mem_clk_max", 4800),
    ]);
    write_node(place, 0, "", &text, &bank)?;
    write_links(place, 0, (1..=gpus).map(|node| (node, PCIE.0, PCIE.1)))
}

fn write_gpu(place: &Path, node: &GpuNode) -> io::Result<()> {
    let text = properties(&[
        ("cpu_cores_count", 0),
        ("simd_count", (node.compute_units * GpuNode::SIMD_PER_CU).into()),
        ("mem_banks_count", 1),
        ("caches_count", 0),
        ("io_links_count", 1),
        ("p2p_links_count", 0),
        ("cpu_core_id_base", 0),
        ("simd_id_base", 2_147_487_744 + u64::from(node.node) * 8),
        ("max_waves_per_simd", 8),
        ("lds_size_in_kb", 64),
        ("gds_size_in_kb", 0),
        ("num_gws", 64),
        ("wave_front_size", 64),
        ("array_count", (4 * node.num_xcc).into()),
        ("simd_arrays_per_engine", 1),
        ("cu_per_simd_array", 10),
        ("simd_per_cu", GpuNode::SIMD_PER_CU.into()),
        ("max_slots_scratch_cu", 32),
        ("gfx_target_version", node.isa.target_version().into()),
        ("vendor_id", 0x1002),
        ("device_id", node.isa.chip_id().into()),
        ("location_id", node.location_id.into()),
        ("domain", node.domain.into()),
        ("drm_render_minor", node.drm_render_minor.into()),
        ("hive_id", u64::from(node.location_id & 0xff00)),
        ("num_sdma_engines", 2),
        ("num_sdma_xgmi_engines", 0),
        ("num_sdma_queues_per_engine", 8),
        ("num_cp_queues", 24),
        ("max_engine_clk_fcompute", 1700),
        ("local_mem_size", 0),
        ("fw_version", 0x50),
        ("capability", CAPABILITY.into()),
        ("debug_prop", 1495),
        ("sdma_fw_version", 8),
        ("unique_id", node.unique_id()),
        ("num_xcc", node.num_xcc.into()),
        ("max_engine_clk_ccompute", 3700),
    ]);
    let bank = properties(&[
        ("heap_type", 1),
        ("size_in_bytes", node.memory_bytes),
        ("flags", 0),
        ("width", 4096),
        ("mem_clk_max", 1600),
    ]);
    write_node(place, node.gpu_id, "aldebaran", &text, &bank)?;
    write_links(place, node.node, std::iter::once((0, PCIE.0, PCIE.1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PartitionBits, nodes};

    #[test]
    fn files_of_another_machine_are_rejected_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("gpu.driver/sys");
        let (whole, divided) =
            (nodes(1, "", "", PartitionBits::High), nodes(1, "", "DPX", PartitionBits::High));
        let saves_waves =
            || std::fs::read_to_string(root.join("module/amdgpu/parameters/cwsr_enable")).unwrap();
        write_or_compare(&root, &whole, "1").unwrap();
        write_or_compare(&root, &whole, "1").unwrap();
        assert!(write_or_compare(&root, &whole, "0").is_err(), "the driver has another parameter");
        assert!(write_or_compare(&root, &divided, "1").is_err(), "there are other devices");
        assert_eq!(saves_waves(), "1\n");
        let topology = root.join("class/kfd/kfd/topology/nodes");
        assert!(topology.join("1/properties").exists() && !topology.join("2").exists());
    }
}

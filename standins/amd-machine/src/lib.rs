//! The simulated machine with AMD GPUs that the stand-ins for `ROCr` and the kernel driver present.
//!
//! * `ROCR_STANDIN_DEVICES`: the number of GPUs, 1 if unset.
//! * `ROCR_STANDIN_ISA`: `gfx90a` (the default) or `gfx942`.
//! * `ROCR_STANDIN_PARTITIONS`: the compute and memory partition modes, for example `CPX/NPS4`. `SPX` if unset.
//! * `ROCR_STANDIN_PARTITION_BITS`: where `location_id` has the number of a partition: `high` (the default), in bits 28 to 31,
//!   as current versions of Linux; `function`, in the function number of the PCI address, as older ones.
//! * `ROCR_STANDIN_DEVICE`: the path of the simulated devices' files, which processes share.
//!
//! Partitions are presented as the Linux driver presents them: each is a node of its own with its own `gpu_id` and render
//! node. `location_id` is the PCI address of the GPU and the partition's number.

mod topology;

use std::ffi::OsString;
use std::path::PathBuf;

pub use topology::write_topology;

/// The PCI bus of the first GPU; further GPUs follow.
const FIRST_BUS: u32 = 0xc1;
/// The render node of the first GPU or partition; those of the others follow.
const FIRST_RENDER_MINOR: u32 = 128;
/// The driver's id of the first GPU.
const FIRST_GPU_ID: u32 = 1000;
/// The difference between the driver's ids of two partitions of a GPU.
const PARTITION_ID_STEP: u32 = 100;
/// The number of GPUs of one machine, so that bus numbers stay below 0x100.
const MAX_GPUS: u32 = 32;

/// An instruction set architecture that the GPUs can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// MI200.
    Gfx90a,
    /// MI300.
    Gfx942,
}

impl Isa {
    /// The name of the processor.
    #[must_use]
    pub fn processor(self) -> &'static str {
        match self {
            Self::Gfx90a => "gfx90a",
            Self::Gfx942 => "gfx942",
        }
    }

    /// The target that code objects must match.
    #[must_use]
    pub fn target(self) -> &'static str {
        match self {
            Self::Gfx90a => "amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-",
            Self::Gfx942 => "amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-",
        }
    }

    /// The version in the driver's topology: major, minor and stepping, two decimal digits each.
    #[must_use]
    pub fn target_version(self) -> u32 {
        match self {
            Self::Gfx90a => 9 * 10_000 + 10,
            Self::Gfx942 => 9 * 10_000 + 4 * 100 + 2,
        }
    }

    /// The PCI device id.
    #[must_use]
    pub fn chip_id(self) -> u32 {
        match self {
            Self::Gfx90a => 0x740c,
            Self::Gfx942 => 0x74a1,
        }
    }

    /// The product name.
    #[must_use]
    pub fn product(self) -> &'static str {
        match self {
            Self::Gfx90a => "AMD Instinct MI250X (simulated)",
            Self::Gfx942 => "AMD Instinct MI300X (simulated)",
        }
    }

    fn memory_bytes(self) -> u64 {
        match self {
            Self::Gfx90a => 64 << 30,
            Self::Gfx942 => 192 << 30,
        }
    }
}

/// A compute partition mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeMode {
    /// One partition.
    Spx,
    /// Two partitions.
    Dpx,
    /// Three partitions.
    Tpx,
    /// Four partitions.
    Qpx,
    /// One partition for each of eight dies.
    Cpx,
}

impl ComputeMode {
    /// The number of partitions of a GPU.
    #[must_use]
    pub fn partitions(self) -> u32 {
        match self {
            Self::Spx => 1,
            Self::Dpx => 2,
            Self::Tpx => 3,
            Self::Qpx => 4,
            Self::Cpx => 8,
        }
    }

    /// The number of compute dies of the whole GPU. A GPU with three partitions has six, others have eight.
    fn dies(self) -> u32 {
        if self == Self::Tpx { 6 } else { 8 }
    }
}

/// Where `location_id` has the number of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PartitionBits {
    /// Bits 28 to 31: current versions of Linux.
    High,
    /// The function number of the PCI address: older versions.
    Function,
}

impl PartitionBits {
    fn location_id(self, gpu: u32, partition: u32) -> u32 {
        let shift = if self == Self::High { 28 } else { 0 };
        ((FIRST_BUS + gpu) << 8) | (partition << shift)
    }
}

/// A GPU, or one partition of it.
#[derive(Clone, Debug)]
pub struct GpuNode {
    /// The number of the GPU.
    pub gpu: u32,
    /// The number of the partition; 0 if the GPU has only one.
    pub partition: u32,
    /// How many partitions the GPU has.
    pub partitions: u32,
    /// The number of the node in the driver's topology, after the CPU's node 0.
    pub node: u32,
    /// The driver's id.
    pub gpu_id: u32,
    /// The PCI address as bus, device and function, and the partition's number.
    pub location_id: u32,
    /// The PCI domain.
    pub domain: u32,
    /// The number of the render node.
    pub drm_render_minor: u32,
    /// The instruction set architecture.
    pub isa: Isa,
    /// The number of compute units.
    pub compute_units: u32,
    /// The number of compute dies.
    pub num_xcc: u32,
    /// The size of the memory.
    pub memory_bytes: u64,
}

impl GpuNode {
    /// SIMD units of each compute unit.
    pub const SIMD_PER_CU: u32 = 4;

    /// A number that identifies the GPU, the same for its partitions.
    #[must_use]
    pub fn unique_id(&self) -> u64 {
        0x5853_6368_6564_0000 + u64::from(self.gpu)
    }

    /// The path of the file of the simulated device; none if processes do not share it.
    #[must_use]
    pub fn device_file(&self) -> Option<PathBuf> {
        let mut path: OsString = std::env::var_os("ROCR_STANDIN_DEVICE")?;
        path.push(format!(".{}", self.gpu));
        if self.partitions > 1 {
            path.push(format!(".{}", self.partition));
        }
        Some(path.into())
    }
}

/// The machine that the environment describes.
#[must_use]
pub fn gpu_nodes() -> Vec<GpuNode> {
    let number = std::env::var("ROCR_STANDIN_DEVICES").ok().and_then(|number| number.trim().parse().ok());
    let isa = std::env::var("ROCR_STANDIN_ISA").unwrap_or_default();
    let partitions = std::env::var("ROCR_STANDIN_PARTITIONS").unwrap_or_default();
    let bits = match std::env::var("ROCR_STANDIN_PARTITION_BITS").as_deref() {
        Ok("function") => PartitionBits::Function,
        _ => PartitionBits::High,
    };
    nodes(number.unwrap_or(1), &isa, &partitions, bits)
}

/// Parses a mode such as `CPX/NPS4`. The default is one partition, and one memory region for each GPU.
fn parse_modes(text: &str) -> (ComputeMode, u32) {
    let (compute, memory) = text.trim().split_once('/').unwrap_or((text.trim(), "NPS1"));
    let compute = match compute.to_ascii_uppercase().as_str() {
        "DPX" => ComputeMode::Dpx,
        "TPX" => ComputeMode::Tpx,
        "QPX" => ComputeMode::Qpx,
        "CPX" => ComputeMode::Cpx,
        _ => ComputeMode::Spx,
    };
    let regions = memory.to_ascii_uppercase().strip_prefix("NPS").and_then(|number| number.parse().ok());
    (compute, regions.filter(|regions| (1..=8).contains(regions)).unwrap_or(1))
}

fn nodes(gpus: u32, isa: &str, modes: &str, bits: PartitionBits) -> Vec<GpuNode> {
    let isa = if isa.trim() == "gfx942" { Isa::Gfx942 } else { Isa::Gfx90a };
    let (compute, regions) = parse_modes(modes);
    let partitions = compute.partitions();
    let (units, dies) = match isa {
        Isa::Gfx90a => (104, 1),
        Isa::Gfx942 => (38 * compute.dies(), compute.dies()),
    };
    (0..gpus.min(MAX_GPUS))
        .flat_map(|gpu| (0..partitions).map(move |partition| (gpu, partition)))
        .map(|(gpu, partition)| {
            let index = gpu * partitions + partition;
            GpuNode {
                gpu,
                partition,
                partitions,
                node: 1 + index,
                gpu_id: FIRST_GPU_ID + gpu + PARTITION_ID_STEP * partition,
                location_id: bits.location_id(gpu, partition),
                domain: 0,
                drm_render_minor: FIRST_RENDER_MINOR + index,
                isa,
                compute_units: units / partitions,
                num_xcc: (dies / partitions).max(1),
                // Partitions of one memory region share it: each reports the region's whole size divided among them.
                memory_bytes: isa.memory_bytes() / u64::from(partitions.max(regions)),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_have_ids_of_their_own_at_one_bus() {
        let nodes = nodes(2, "gfx942", "CPX/NPS4", PartitionBits::High);
        assert_eq!(nodes.len(), 16);
        let mut ids: Vec<u32> = nodes.iter().map(|node| node.gpu_id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 16);
        assert!(nodes.iter().all(|node| node.compute_units == 38));
        assert_eq!(nodes[15].node, 16);
        assert_eq!(nodes[15].drm_render_minor, 143);
    }

    #[test]
    fn location_has_the_partition_in_the_high_bits_or_in_the_function_number() {
        let locations =
            |bits| nodes(2, "gfx942", "DPX", bits).iter().map(|node| node.location_id).collect::<Vec<_>>();
        assert_eq!(locations(PartitionBits::High), [0xc100, 0x1000_c100, 0xc200, 0x1000_c200]);
        assert_eq!(locations(PartitionBits::Function), [0xc100, 0xc101, 0xc200, 0xc201]);
    }

    #[test]
    fn modes_divide_dies_and_memory() {
        for (mode, partitions, dies) in
            [("SPX", 1, 8), ("DPX", 2, 4), ("TPX", 3, 2), ("qpx", 4, 2), ("CPX", 8, 1)]
        {
            let nodes = nodes(1, "gfx942", mode, PartitionBits::High);
            assert_eq!(nodes.len(), partitions, "{mode}");
            assert!(nodes.iter().all(|node| node.num_xcc == dies), "{mode}");
        }
        assert_eq!(nodes(1, "", "", PartitionBits::High)[0].memory_bytes, 64 << 30);
        assert_eq!(nodes(1, "gfx942", "SPX/NPS4", PartitionBits::High)[0].memory_bytes, 48 << 30);
    }
}

//! The GPUs of the node, and their slots: each slot is one device to the kubelet.
//!
//! ```text
//!   /dev/nvidia0            ─► GPU nvidia0 ─► nvidia0-slot0, nvidia0-slot1, ...
//!   /sys/class/kfd, /dev/dri ─► GPU amd128  ─► amd128-slot0, ...
//! ```
//!
//! A GPU is healthy while its device node exists. No vendor library is loaded: the agent's image needs none.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::proto::{Device, HEALTHY, NumaNode, TopologyInfo, UNHEALTHY};

/// A GPU of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its name, for example `nvidia0`.
    pub id: String,
    /// Its own device node: the GPU is healthy while this exists.
    pub node: PathBuf,
    /// Further device nodes that its programs need, if they exist when a container starts.
    pub shared_nodes: Vec<PathBuf>,
    /// Environment variables of its containers, for example for NVIDIA's container runtime.
    pub variables: Vec<(String, String)>,
    /// Its NUMA node.
    pub numa: Option<i64>,
}

/// A GPU given on the command line as `PATH=ID`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenGpu {
    path: PathBuf,
    id: String,
}

impl FromStr for GivenGpu {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, id) = text.rsplit_once('=').ok_or("write PATH=ID, for example /dev/nvidia0=nvidia0")?;
        let is_id = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if !path.starts_with('/') {
            return Err(format!("the device node {path:?} is not an absolute path"));
        }
        if id.is_empty() || id.len() > 48 || !id.chars().all(is_id) {
            return Err(format!(
                "the id {id:?} does not consist of 1 to 48 letters, digits, dots, hyphens and underscores"
            ));
        }
        Ok(Self { path: path.into(), id: id.to_owned() })
    }
}

/// Where to find the GPUs.
#[derive(Clone, Debug)]
pub struct GpuSource {
    /// These GPUs; if there are none, those of the machine.
    pub given: Vec<GivenGpu>,
    /// The root directory, `/` except in tests.
    pub root: PathBuf,
}

impl GpuSource {
    /// The GPUs that are present. A given GPU is listed also if its device node is absent.
    #[must_use]
    pub fn find(&self) -> Vec<Gpu> {
        if self.given.is_empty() {
            let mut gpus = self.nvidia();
            gpus.extend(self.amd());
            return gpus;
        }
        let gpu = |given: &GivenGpu| Gpu {
            id: given.id.clone(),
            node: given.path.clone(),
            shared_nodes: Vec::new(),
            variables: Vec::new(),
            numa: None,
        };
        self.given.iter().map(gpu).collect()
    }

    /// A path of the machine.
    fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    fn nvidia(&self) -> Vec<Gpu> {
        let details = self.nvidia_details();
        let shared = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"];
        let mut minors: Vec<u32> = names_in(&self.path("/dev"))
            .iter()
            .filter_map(|name| name.strip_prefix("nvidia")?.parse().ok())
            .collect();
        minors.sort_unstable();
        let gpu = |minor: u32| {
            let (uuid, numa) = details.get(&minor).cloned().unwrap_or_default();
            Gpu {
                id: format!("nvidia{minor}"),
                node: self.path(&format!("/dev/nvidia{minor}")),
                shared_nodes: shared.iter().map(|name| self.path(&format!("/dev/{name}"))).collect(),
                variables: vec![(
                    "NVIDIA_VISIBLE_DEVICES".to_owned(),
                    uuid.unwrap_or_else(|| minor.to_string()),
                )],
                numa,
            }
        };
        minors.into_iter().map(gpu).collect()
    }

    /// UUID and NUMA node by the minor number of the device node, from NVIDIA's driver.
    fn nvidia_details(&self) -> BTreeMap<u32, (Option<String>, Option<i64>)> {
        let directory = self.path("/proc/driver/nvidia/gpus");
        let mut details = BTreeMap::new();
        for address in names_in(&directory) {
            let text =
                std::fs::read_to_string(directory.join(&address).join("information")).unwrap_or_default();
            let field = |name: &str| {
                text.lines().find_map(|line| {
                    Some(line.strip_prefix(name)?.trim_start().strip_prefix(':')?.trim().to_owned())
                })
            };
            let Some(minor) = field("Device Minor").and_then(|minor| minor.parse().ok()) else { continue };
            let numa = self.numa_node(&address.to_ascii_lowercase());
            details.insert(minor, (field("GPU UUID"), numa));
        }
        details
    }

    fn amd(&self) -> Vec<Gpu> {
        let topology = self.path("/sys/class/kfd/kfd/topology/nodes");
        let mut gpus: Vec<(u64, Gpu)> = Vec::new();
        for node in names_in(&topology) {
            let text = std::fs::read_to_string(topology.join(node).join("properties")).unwrap_or_default();
            let property = |name: &str| -> Option<u64> {
                text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
            };
            // CPUs are nodes without compute units.
            let minor = property("drm_render_minor").filter(|minor| *minor > 0);
            let (Some(minor), Some(1..)) = (minor, property("simd_count")) else { continue };
            let location = property("location_id").unwrap_or(0);
            let domain = property("domain").unwrap_or(0);
            let (bus, device, function) = (location >> 8, (location >> 3) & 31, location & 7);
            let address = format!("{domain:04x}:{bus:02x}:{device:02x}.{function}");
            let gpu = Gpu {
                id: format!("amd{minor}"),
                node: self.path(&format!("/dev/dri/renderD{minor}")),
                shared_nodes: vec![self.path("/dev/kfd")],
                variables: Vec::new(),
                numa: self.numa_node(&address),
            };
            gpus.push((minor, gpu));
        }
        gpus.sort_by_key(|(minor, _)| *minor);
        gpus.into_iter().map(|(_, gpu)| gpu).collect()
    }

    fn numa_node(&self, pci_address: &str) -> Option<i64> {
        let file = self.path(&format!("/sys/bus/pci/devices/{pci_address}/numa_node"));
        let node: i64 = std::fs::read_to_string(file).ok()?.trim().parse().ok()?;
        (node >= 0).then_some(node)
    }
}

fn names_in(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

/// The name of a slot.
#[must_use]
pub fn slot_id(gpu: &str, slot: u32) -> String {
    format!("{gpu}-slot{slot}")
}

/// The GPU of a slot.
#[must_use]
pub fn gpu_of_slot(slot: &str) -> Option<&str> {
    let (gpu, number) = slot.rsplit_once("-slot")?;
    number.parse::<u32>().ok().map(|_| gpu)
}

/// The slots of the GPUs that were ever found, with their present health, as the kubelet gets them. A GPU whose device node has
/// gone stays in the list as unhealthy: the kubelet then does not give its slots to new containers.
#[derive(Debug)]
pub struct Inventory {
    source: GpuSource,
    slots_per_gpu: u32,
    gpus: BTreeMap<String, Gpu>,
}

impl Inventory {
    /// An inventory without GPUs.
    #[must_use]
    pub fn new(source: GpuSource, slots_per_gpu: u32) -> Self {
        Self { source, slots_per_gpu, gpus: BTreeMap::new() }
    }

    /// Looks at the machine. Returns the slots.
    pub fn look(&mut self) -> Vec<Device> {
        self.gpus.extend(self.source.find().into_iter().map(|gpu| (gpu.id.clone(), gpu)));
        let device = |gpu: &Gpu, slot| Device {
            id: slot_id(&gpu.id, slot),
            health: if gpu.node.exists() { HEALTHY } else { UNHEALTHY }.to_owned(),
            topology: gpu.numa.map(|id| TopologyInfo { nodes: vec![NumaNode { id }] }),
        };
        let slots = |gpu| (0..self.slots_per_gpu).map(move |slot| device(gpu, slot));
        self.gpus.values().flat_map(slots).collect()
    }

    /// The GPU of a slot.
    #[must_use]
    pub fn gpu(&self, slot: &str) -> Option<&Gpu> {
        self.gpus.get(gpu_of_slot(slot)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let file = root.join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }

    #[test]
    fn gpus_of_both_vendors_are_found_without_their_libraries() {
        let machine = tempfile::tempdir().unwrap();
        let root = machine.path();
        for name in ["dev/nvidia0", "dev/nvidia10", "dev/nvidiactl", "dev/nvidia-uvm", "dev/dri/renderD128"] {
            write(root, name, "");
        }
        write(
            root,
            "proc/driver/nvidia/gpus/0000:3B:00.0/information",
            "Model: \t X\nGPU UUID: \t GPU-1234\nDevice Minor: \t 0\n",
        );
        write(root, "sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
        write(
            root,
            "sys/class/kfd/kfd/topology/nodes/0/properties",
            "cpu_cores_count 8\nsimd_count 0\ndrm_render_minor 0\n",
        );
        write(
            root,
            "sys/class/kfd/kfd/topology/nodes/1/properties",
            "simd_count 256\nlocation_id 768\ndomain 0\ndrm_render_minor 128\n",
        );
        write(root, "sys/bus/pci/devices/0000:03:00.0/numa_node", "-1\n");
        let gpus = GpuSource { given: Vec::new(), root: root.to_owned() }.find();
        let ids: Vec<_> = gpus.iter().map(|gpu| gpu.id.as_str()).collect();
        assert_eq!(ids, ["nvidia0", "nvidia10", "amd128"]);
        assert_eq!(
            gpus[0].variables,
            [("NVIDIA_VISIBLE_DEVICES".to_owned(), "GPU-1234".to_owned())],
            "the UUID, because NVIDIA's runtime numbers GPUs in another order"
        );
        assert_eq!(gpus[1].variables[0].1, "10");
        assert_eq!((gpus[0].numa, gpus[2].numa), (Some(1), None));
        assert_eq!(gpus[2].shared_nodes, [root.join("dev/kfd")]);
    }

    #[test]
    fn gpu_without_its_device_node_is_unhealthy_until_the_node_returns() {
        let machine = tempfile::tempdir().unwrap();
        write(machine.path(), "dev/nvidia0", "");
        let source = GpuSource { given: Vec::new(), root: machine.path().to_owned() };
        let mut inventory = Inventory::new(source, 2);
        let health = |devices: Vec<Device>| {
            devices.into_iter().map(|device| (device.id, device.health == HEALTHY)).collect::<Vec<_>>()
        };
        let both = |is_healthy| {
            vec![("nvidia0-slot0".to_owned(), is_healthy), ("nvidia0-slot1".to_owned(), is_healthy)]
        };
        assert_eq!(health(inventory.look()), both(true));
        std::fs::remove_file(machine.path().join("dev/nvidia0")).unwrap();
        assert_eq!(health(inventory.look()), both(false));
        write(machine.path(), "dev/nvidia0", "");
        assert_eq!(health(inventory.look()), both(true));
    }

    #[test]
    fn invalid_devices_are_rejected_with_the_reason() {
        let error = |text: &str| text.parse::<GivenGpu>().unwrap_err();
        assert!(error("/dev/nvidia0").contains("PATH=ID"));
        assert!(error("nvidia0=a").contains("absolute"));
        assert!(error("/dev/nvidia0=").contains("1 to 48"));
        assert!(error("/dev/nvidia0=a b").contains("1 to 48"));
        assert_eq!("/dev/a=b=c".parse::<GivenGpu>().unwrap().path, Path::new("/dev/a=b"));
    }

    #[test]
    fn slots_name_their_gpu() {
        assert_eq!(gpu_of_slot(&slot_id("a-slot1", 3)), Some("a-slot1"));
        assert_eq!(gpu_of_slot("nvidia0"), None);
        assert_eq!(gpu_of_slot("nvidia0-slotx"), None);
    }
}

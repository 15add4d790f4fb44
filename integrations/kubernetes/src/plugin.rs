//! The device plugin: offers the slots of the GPUs to the kubelet, and says what a container with a slot needs.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};

use crate::gpus::{Inventory, gpu_of_slot};
use crate::progress::Progress;
use crate::proto::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, ContainerPreferredAllocationResponse, Device, DevicePluginOptions,
    DeviceSpec, Empty, ListAndWatchResponse, Mount, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse, device_plugin_server::DevicePlugin,
};

/// How long a container's start waits for the grant of its pod. The kubelet waits 30 s.
const GRANT_TIMEOUT: Duration = Duration::from_secs(5);

/// What this plugin supports.
pub const OPTIONS: DevicePluginOptions =
    DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true };

/// What a container needs besides its devices.
#[derive(Clone, Debug)]
pub struct ContainerFiles {
    /// `libxsched.so` on the host. Its directory is mounted at the same place in the container.
    pub library: PathBuf,
    /// The service's socket on the host. Its directory is mounted at the same place in the container.
    pub socket: PathBuf,
}

/// The device plugin. Clones share their state.
#[derive(Clone, Debug)]
pub struct Plugin {
    inventory: Arc<Mutex<Inventory>>,
    devices: watch::Sender<Vec<Device>>,
    files: ContainerFiles,
    progress: Option<Arc<Progress>>,
}

impl Plugin {
    /// A plugin for these GPUs. Without `progress`, containers start without waiting for a grant.
    #[must_use]
    pub fn new(mut inventory: Inventory, files: ContainerFiles, progress: Option<Arc<Progress>>) -> Self {
        let devices = watch::Sender::new(inventory.look());
        Self { inventory: Arc::new(Mutex::new(inventory)), devices, files, progress }
    }

    /// Looks at the GPUs, and tells the kubelet about changes.
    pub fn look_at_gpus(&self) {
        let found = self.inventory.lock().unwrap_or_else(PoisonError::into_inner).look();
        self.devices.send_if_modified(|devices| {
            if *devices == found {
                return false;
            }
            for device in found.iter().filter(|device| !devices.contains(device)) {
                crate::log(&format!("slot {} is {}", device.id, device.health.to_lowercase()));
            }
            *devices = found;
            true
        });
    }

    /// The number of slots.
    #[must_use]
    pub fn slot_count(&self) -> usize {
        self.devices.borrow().len()
    }

    fn allocate_to(
        &self,
        container: &ContainerAllocateRequest,
    ) -> Result<ContainerAllocateResponse, Box<Status>> {
        let inventory = self.inventory.lock().unwrap_or_else(PoisonError::into_inner);
        let mut nodes: Vec<PathBuf> = Vec::new();
        let mut variables: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for slot in &container.devices_ids {
            let gpu = inventory.gpu(slot).ok_or_else(|| {
                Status::not_found(format!("slot {slot:?} belongs to no GPU that XSched knows on this node"))
            })?;
            let shared = gpu.shared_nodes.iter().filter(|node| node.exists());
            for node in std::iter::once(&gpu.node).chain(shared) {
                if !nodes.contains(node) {
                    nodes.push(node.clone());
                }
            }
            for (name, value) in &gpu.variables {
                let values = variables.entry(name.clone()).or_default();
                if !values.contains(value) {
                    values.push(value.clone());
                }
            }
        }
        let text = |path: &Path| path.display().to_string();
        let mut envs: HashMap<String, String> =
            variables.into_iter().map(|(name, values)| (name, values.join(","))).collect();
        envs.extend([
            ("LD_PRELOAD".to_owned(), text(&self.files.library)),
            ("XSCHED_SOCKET".to_owned(), text(&self.files.socket)),
            ("XSCHED_SCHEDULER".to_owned(), "GLB".to_owned()),
            ("XSCHED_AUTO_XQUEUE".to_owned(), "ON".to_owned()),
        ]);
        // Read-only: a process of root in the container could otherwise replace the socket or the library for all containers.
        // Connecting to a socket needs no write access to its file system.
        let mount = |directory: &Path| Mount {
            container_path: text(directory),
            host_path: text(directory),
            read_only: true,
        };
        let mut directories: Vec<&Path> =
            [&self.files.library, &self.files.socket].into_iter().filter_map(|file| file.parent()).collect();
        directories.dedup();
        let device = |node: &PathBuf| DeviceSpec {
            container_path: text(node),
            host_path: text(node),
            permissions: "rw".to_owned(),
        };
        Ok(ContainerAllocateResponse {
            envs,
            mounts: directories.into_iter().map(mount).collect(),
            devices: nodes.iter().map(device).collect(),
            annotations: HashMap::new(),
        })
    }
}

/// The slots that a container gets by preference: on as many GPUs as it requests slots, and on the GPUs with the most free slots.
fn preferred(request: &ContainerPreferredAllocationRequest) -> Vec<String> {
    let mut chosen = request.must_include_devices_ids.clone();
    let mut free: BTreeMap<&str, Vec<&String>> = BTreeMap::new();
    for slot in request.available_devices_ids.iter().filter(|slot| !chosen.contains(slot)) {
        free.entry(gpu_of_slot(slot).unwrap_or(slot)).or_default().push(slot);
    }
    for slots in free.values_mut() {
        slots.sort_unstable_by(|a, b| b.cmp(a));
    }
    let size = usize::try_from(request.allocation_size).unwrap_or(0);
    while chosen.len() < size {
        let used = |gpu: &str| chosen.iter().filter(|slot| gpu_of_slot(slot) == Some(gpu)).count();
        let best = free.iter_mut().filter(|(_, slots)| !slots.is_empty());
        let best = best.min_by_key(|(gpu, slots)| (used(gpu), usize::MAX - slots.len()));
        let Some(slot) = best.and_then(|(_, slots)| slots.pop()) else { break };
        chosen.push(slot.clone());
    }
    chosen
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(OPTIONS))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let stream = WatchStream::new(self.devices.subscribe());
        Ok(Response::new(Box::pin(stream.map(|devices| Ok(ListAndWatchResponse { devices })))))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let requests = &request.get_ref().container_requests;
        let response = |request| ContainerPreferredAllocationResponse { devices_ids: preferred(request) };
        let container_responses = requests.iter().map(response).collect();
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let requests = &request.get_ref().container_requests;
        let responses: Result<_, _> = requests.iter().map(|container| self.allocate_to(container)).collect();
        Ok(Response::new(AllocateResponse { container_responses: responses.map_err(|status| *status)? }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        if let Some(progress) = &self.progress {
            let slots = &request.get_ref().devices_ids;
            progress.wait_for_grant(slots, GRANT_TIMEOUT).await.map_err(Status::unavailable)?;
        }
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(available: &[&str], must: &[&str], size: i32) -> ContainerPreferredAllocationRequest {
        let owned = |ids: &[&str]| ids.iter().map(|&id| id.to_owned()).collect();
        ContainerPreferredAllocationRequest {
            available_devices_ids: owned(available),
            must_include_devices_ids: owned(must),
            allocation_size: size,
        }
    }

    #[test]
    fn one_slot_is_on_the_gpu_with_the_most_free_slots() {
        let free = ["a-slot1", "b-slot0", "b-slot1", "c-slot0"];
        assert_eq!(preferred(&request(&free, &[], 1)), ["b-slot0"]);
    }

    #[test]
    fn several_slots_are_on_several_gpus() {
        let free = ["a-slot0", "a-slot1", "a-slot2", "b-slot0"];
        assert_eq!(preferred(&request(&free, &[], 2)), ["a-slot0", "b-slot0"]);
        assert_eq!(preferred(&request(&free, &[], 3)), ["a-slot0", "b-slot0", "a-slot1"]);
        assert_eq!(preferred(&request(&free, &["a-slot2"], 2)), ["a-slot2", "b-slot0"]);
        assert_eq!(preferred(&request(&free, &[], 9)).len(), 4);
        assert_eq!(preferred(&request(&free, &[], -1)).len(), 0);
    }
}

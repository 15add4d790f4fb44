//! A kubelet of the test's own: speaks the real gRPC protocol with the plugin over unix sockets.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};
use xsched_kubernetes::proto::device_plugin_client::DevicePluginClient;
use xsched_kubernetes::proto::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use xsched_kubernetes::proto::registration_server::{Registration, RegistrationServer};
use xsched_kubernetes::proto::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse, ContainerDevices,
    ContainerResources, Device, Empty, ListPodResourcesRequest, ListPodResourcesResponse, PodResources,
    PreStartContainerRequest, RegisterRequest,
};
use xsched_kubernetes::registration::connect;

/// How long the plugin may take to do what the test waits for.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

struct Registrations(Mutex<Sender<RegisterRequest>>);

#[tonic::async_trait]
impl Registration for Registrations {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let _ = self.0.lock().unwrap().send(request.into_inner());
        Ok(Response::new(Empty {}))
    }
}

#[derive(Clone, Default)]
struct Resources(Arc<Mutex<Vec<PodResources>>>);

#[tonic::async_trait]
impl PodResourcesLister for Resources {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        let pod_resources = self.0.lock().unwrap().clone();
        Ok(Response::new(ListPodResourcesResponse { pod_resources }))
    }
}

/// A running kubelet.
pub(crate) struct TestKubelet {
    runtime: Runtime,
    directory: PathBuf,
    resources: Resources,
    registrations: Receiver<RegisterRequest>,
    servers: Vec<JoinHandle<()>>,
}

impl TestKubelet {
    /// Starts in a directory of its own.
    pub(crate) fn start(directory: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let (_, registrations) = channel();
        let mut kubelet = Self {
            runtime: runtime.unwrap(),
            directory: directory.to_owned(),
            resources: Resources::default(),
            registrations,
            servers: Vec::new(),
        };
        kubelet.restart();
        kubelet
    }

    /// Starts again as the real one does: it removes every socket in the plugins' directory and creates its own.
    pub(crate) fn restart(&mut self) {
        for server in self.servers.drain(..) {
            server.abort();
            let _ = self.runtime.block_on(server);
        }
        for directory in [self.device_plugins(), self.directory.join("pod-resources")] {
            let _ = std::fs::remove_dir_all(&directory);
            std::fs::create_dir_all(&directory).unwrap();
        }
        let (sender, registrations) = channel();
        self.registrations = registrations;
        let _guard = self.runtime.enter();
        let listen = |path: PathBuf| UnixListenerStream::new(UnixListener::bind(path).unwrap());
        let registration = Server::builder()
            .add_service(RegistrationServer::new(Registrations(Mutex::new(sender))))
            .serve_with_incoming(listen(self.device_plugins().join("kubelet.sock")));
        let resources = Server::builder()
            .add_service(PodResourcesListerServer::new(self.resources.clone()))
            .serve_with_incoming(listen(self.pod_resources()));
        self.servers = vec![
            self.runtime.spawn(async { drop(registration.await) }),
            self.runtime.spawn(async { drop(resources.await) }),
        ];
    }

    /// The directory of the plugins' sockets.
    pub(crate) fn device_plugins(&self) -> PathBuf {
        self.directory.join("device-plugins")
    }

    /// The pod-resources socket.
    pub(crate) fn pod_resources(&self) -> PathBuf {
        self.directory.join("pod-resources/kubelet.sock")
    }

    /// Waits for the next registration.
    pub(crate) fn registration(&self) -> RegisterRequest {
        self.registrations.recv_timeout(TIMEOUT).expect("the plugin registers")
    }

    /// Records that a pod has these slots.
    pub(crate) fn assign(&self, namespace: &str, name: &str, resource: &str, slots: &[String]) {
        let devices = ContainerDevices { resource_name: resource.to_owned(), device_ids: slots.to_vec() };
        let container = ContainerResources { name: "main".to_owned(), devices: vec![devices] };
        let (name, namespace) = (name.to_owned(), namespace.to_owned());
        let pod = PodResources { name, namespace, containers: vec![container] };
        self.resources.0.lock().unwrap().push(pod);
    }

    /// Records that a pod has no slots any more.
    pub(crate) fn release(&self, namespace: &str, name: &str) {
        self.resources.0.lock().unwrap().retain(|pod| pod.name != name || pod.namespace != namespace);
    }

    fn connect(&self, endpoint: &str) -> DevicePluginClient<Channel> {
        let path = self.device_plugins().join(endpoint);
        DevicePluginClient::new(self.runtime.block_on(connect(&path)).unwrap())
    }

    /// The lists of devices that the plugin sends.
    pub(crate) fn watch(&self, endpoint: &str) -> Receiver<Vec<Device>> {
        let mut plugin = self.connect(endpoint);
        let (sender, lists) = channel();
        self.runtime.spawn(async move {
            let mut stream = plugin.list_and_watch(Empty {}).await.unwrap().into_inner();
            while let Ok(Some(response)) = stream.message().await {
                if sender.send(response.devices).is_err() {
                    break;
                }
            }
        });
        lists
    }

    /// What a container with these slots gets.
    pub(crate) fn allocate(
        &self,
        endpoint: &str,
        slots: &[String],
    ) -> Result<ContainerAllocateResponse, Status> {
        let mut plugin = self.connect(endpoint);
        let container = ContainerAllocateRequest { devices_ids: slots.to_vec() };
        let request = AllocateRequest { container_requests: vec![container] };
        let mut response = self.runtime.block_on(plugin.allocate(request))?.into_inner();
        assert_eq!(response.container_responses.len(), 1);
        Ok(response.container_responses.remove(0))
    }

    /// Asks whether a container with these slots may start.
    pub(crate) fn pre_start(&self, endpoint: &str, slots: &[String]) -> Result<(), Status> {
        let mut plugin = self.connect(endpoint);
        let request = PreStartContainerRequest { devices_ids: slots.to_vec() };
        self.runtime.block_on(plugin.pre_start_container(request)).map(drop)
    }
}

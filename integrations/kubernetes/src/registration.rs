//! Serves the device plugin's socket and registers it with the kubelet, again after each restart of the kubelet.
//!
//! ```text
//!   /var/lib/kubelet/device-plugins/kubelet.sock   the kubelet: Register
//!   /var/lib/kubelet/device-plugins/xsched.sock    this plugin: ListAndWatch, Allocate ...
//! ```
//!
//! A kubelet that starts removes every socket in this directory and creates its own again. The plugin looks at both files every
//! second; a kubelet that restarts takes longer than that to be ready.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};

use crate::authority::FilteredStream;
use crate::plugin::{OPTIONS, Plugin};
use crate::proto::{
    DEVICE_PLUGIN_VERSION, RegisterRequest, device_plugin_server::DevicePluginServer,
    registration_client::RegistrationClient,
};

/// How often the plugin looks at the sockets and at the GPUs.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long the kubelet may take to answer.
const KUBELET_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a gRPC server on a unix socket.
pub async fn connect(socket: &Path) -> Result<Channel> {
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The address is not used, but has to be a valid one.
    let endpoint =
        Endpoint::from_static("http://localhost").connect_timeout(KUBELET_TIMEOUT).timeout(KUBELET_TIMEOUT);
    let connection = endpoint.connect_with_connector(connector).await;
    connection.with_context(|| format!("cannot connect to the kubelet at {}", socket.display()))
}

/// Identifies a socket file: a file that was created again differs, also where the file system reuses inode numbers.
type FileIdentity = (u64, u64, i64, i64);

fn identity(path: &Path) -> Option<FileIdentity> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
}

/// Where the plugin serves, and what it offers.
#[derive(Clone, Debug)]
pub struct Registration {
    /// The directory of the kubelet's socket and of the plugin's.
    pub directory: PathBuf,
    /// The file name of the plugin's socket.
    pub endpoint: String,
    /// The resource.
    pub resource: String,
}

/// A server on the plugin's socket. Dropping it stops the server.
struct RunningServer {
    socket: FileIdentity,
    _stop: oneshot::Sender<()>,
}

impl Registration {
    /// Serves and registers the plugin until the program exits.
    pub async fn run(&self, plugin: Plugin) -> Result<()> {
        let mut server: Option<RunningServer> = None;
        let mut registered_with: Option<FileIdentity> = None;
        let mut last_error = String::new();
        let mut interval = tokio::time::interval(POLL_INTERVAL);
        loop {
            interval.tick().await;
            plugin.look_at_gpus();
            if server.as_ref().map(|server| server.socket) != identity(&self.socket()) || server.is_none() {
                // Stop the previous server before the new one binds the same path.
                drop(server.take());
                server = Some(self.serve(plugin.clone())?);
                registered_with = None;
            }
            let kubelet = identity(&self.kubelet());
            if kubelet.is_none() || kubelet == registered_with {
                continue;
            }
            match self.register().await {
                Ok(()) => {
                    registered_with = kubelet;
                    last_error.clear();
                    let count = plugin.slot_count();
                    crate::log(&format!("registered {} with the kubelet: {count} slots", self.resource));
                }
                Err(error) => {
                    let error = format!("cannot register {} with the kubelet: {error:#}", self.resource);
                    if error != last_error {
                        crate::log(&error);
                        last_error = error;
                    }
                }
            }
        }
    }

    fn socket(&self) -> PathBuf {
        self.directory.join(&self.endpoint)
    }

    fn kubelet(&self) -> PathBuf {
        self.directory.join("kubelet.sock")
    }

    fn serve(&self, plugin: Plugin) -> Result<RunningServer> {
        let path = self.socket();
        // A plugin that was killed leaves its socket.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).with_context(|| {
            format!(
                "cannot create the plugin's socket {}: is the kubelet's directory mounted?",
                path.display()
            )
        })?;
        let socket = identity(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let (stop, stopped) = oneshot::channel::<()>();
        let server = Server::builder().add_service(DevicePluginServer::new(plugin)).serve_with_incoming(
            UnixListenerStream::new(listener).map(|stream| stream.map(FilteredStream::new)),
        );
        tokio::spawn(async move {
            tokio::select! {
                result = server => if let Err(error) = result {
                    crate::log(&format!("the device plugin's server failed: {error}"));
                },
                _ = stopped => {}
            }
        });
        Ok(RunningServer { socket, _stop: stop })
    }

    async fn register(&self) -> Result<()> {
        let mut kubelet = RegistrationClient::new(connect(&self.kubelet()).await?);
        let request = RegisterRequest {
            version: DEVICE_PLUGIN_VERSION.to_owned(),
            endpoint: self.endpoint.clone(),
            resource_name: self.resource.clone(),
            options: Some(OPTIONS),
        };
        kubelet.register(request).await.context("the kubelet rejects the registration")?;
        Ok(())
    }
}

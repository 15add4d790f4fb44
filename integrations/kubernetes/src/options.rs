//! The command line.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::Parser;

use crate::agent::{Agent, AgentOptions};
use crate::api_server::{ApiServer, ApiServerOptions};
use crate::gpus::{GivenGpu, GpuSource, Inventory};
use crate::plugin::{ContainerFiles, Plugin};
use crate::pods::PodWatch;
use crate::progress::Progress;
use crate::registration::Registration;
use crate::settings::SettingsFileWatch;

/// XSched on Kubernetes: offers slots of the node's GPUs to pods, and gives each pod the priority, share and memory that its
/// PriorityClass and annotations request within the administrator's limits
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Options {
    /// The name of this node in the cluster
    #[arg(long, env = "NODE_NAME", value_parser = parse_node)]
    node: String,
    /// How many containers can use one GPU at the same time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    slots: u32,
    /// The resource that pods request
    #[arg(long, value_name = "NAME", default_value = "xsched.io/gpu", value_parser = parse_resource)]
    resource: String,
    /// A GPU: its device node and its name. Can be given several times; without it, the GPUs of the machine
    #[arg(long, value_name = "PATH=ID")]
    device: Vec<GivenGpu>,
    /// The service's socket on the host. Its directory is mounted in containers
    #[arg(long, value_name = "PATH", default_value = "/run/xsched/socket", value_parser = parse_file)]
    socket: PathBuf,
    /// The library on the host. Its directory is mounted in containers
    #[arg(long, value_name = "PATH", default_value = "/opt/xsched/lib/libxsched.so", value_parser = parse_file)]
    library: PathBuf,
    /// Priorities of PriorityClasses and limits of namespaces. Changes apply within a second
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// Understand nvidia.com/gpumem, nvidia.com/gpucores and nvidia.com/priority as limits and annotations
    #[arg(long)]
    hami_names: bool,
    /// Start containers also while no service runs. A process of root in such a container is an administrator of the service from
    /// the start of the service until its grant is made, up to a second later
    #[arg(long)]
    start_without_service: bool,
    /// The directory of the kubelet's device plugins
    #[arg(long, value_name = "PATH", default_value = "/var/lib/kubelet/device-plugins")]
    device_plugins: PathBuf,
    /// The kubelet's pod-resources socket
    #[arg(long, value_name = "PATH", default_value = "/var/lib/kubelet/pod-resources/kubelet.sock")]
    pod_resources: PathBuf,
    /// The mount of the control groups
    #[arg(long, value_name = "PATH", default_value = "/sys/fs/cgroup")]
    cgroups: PathBuf,
    /// The API server, if not the one of the cluster that this program runs in
    #[arg(long, value_name = "URL")]
    api_server: Option<String>,
    /// A file with the token for --api-server
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// A file with the certificates for --api-server
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
}

fn parse_node(text: &str) -> Result<String, String> {
    let is_valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    if text.is_empty() || text.len() > 253 || !text.chars().all(is_valid) {
        return Err("a node's name consists of small letters, digits, hyphens and dots".to_owned());
    }
    Ok(text.to_owned())
}

fn parse_resource(text: &str) -> Result<String, String> {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    match text.split_once('/') {
        Some((domain, name))
            if domain.contains('.')
                && !name.is_empty()
                && [domain, name].iter().all(|part| part.chars().all(is_valid)) =>
        {
            Ok(text.to_owned())
        }
        _ => Err("a resource is written as DOMAIN/NAME, for example xsched.io/gpu".to_owned()),
    }
}

fn parse_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.parent() {
        // The whole directory is mounted in containers.
        Some(directory) if path.is_absolute() && directory.parent().is_some() => Ok(path),
        _ => Err("write the absolute path of a file that is not in the root directory".to_owned()),
    }
}

impl Options {
    /// Runs the device plugin and the agent until a signal ends the program.
    pub async fn run(self) -> Result<()> {
        let progress = Arc::new(Progress::new(self.start_without_service));
        let settings = SettingsFileWatch::open(self.settings.as_deref())?;
        let server = ApiServer::new(&ApiServerOptions {
            url: self.api_server,
            token_file: self.token_file,
            ca_file: self.ca_file,
        })?;
        let inventory = Inventory::new(GpuSource { given: self.device, root: "/".into() }, self.slots);
        let files = ContainerFiles { library: self.library, socket: self.socket.clone() };
        let plugin = Plugin::new(inventory, files, Some(progress.clone()));
        if plugin.slot_count() == 0 {
            crate::log("this node has no GPU: looked for /dev/nvidia[0-9]* and /sys/class/kfd");
        }
        let registration = Registration {
            directory: self.device_plugins,
            endpoint: format!("xsched-{}.sock", self.resource.replace('/', "-")),
            resource: self.resource.clone(),
        };
        let pods = Arc::new(PodWatch::new(server.clone(), &self.node, progress.clone()));
        let options = AgentOptions {
            node: self.node,
            resource: self.resource,
            pod_resources: self.pod_resources,
            socket: self.socket,
            cgroups: self.cgroups,
            hami_names: self.hami_names,
        };
        let mut agent = Agent::new(options, settings, server, pods.clone(), progress);
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            result = registration.run(plugin) => result,
            () = pods.run() => bail!("the watch of the pods ended"),
            () = agent.run() => bail!("the agent ended"),
            _ = terminate.recv() => Ok(()),
            result = tokio::signal::ctrl_c() => Ok(result?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_options_are_rejected_with_one_line() {
        let error = |arguments: &[&str]| {
            Options::try_parse_from(["xsched-kubernetes"].iter().chain(arguments)).unwrap_err().to_string()
        };
        for (arguments, message) in [
            (["--slots", "0"], "1..=256"),
            (["--resource", "gpu"], "DOMAIN/NAME"),
            (["--socket", "/socket"], "root directory"),
            (["--library", "lib.so"], "absolute path"),
            (["--device", "/dev/x"], "PATH=ID"),
            (["--node", "a&b"], "small letters"),
        ] {
            let text = error(&arguments);
            assert!(text.contains(message), "{text}");
        }
    }
}

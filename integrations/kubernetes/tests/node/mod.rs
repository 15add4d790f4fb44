//! A node of a cluster: the real agent between a kubelet and an API server of the test's own, with or without a real service.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};
use xsched_kubernetes::proto::{ContainerAllocateResponse, RegisterRequest};

use crate::api_server::{TOKEN, TestApiServer};
use crate::kubelet::{TIMEOUT, TestKubelet};

pub(crate) const RESOURCE: &str = "xsched.io/gpu";

/// Waits until a condition is true.
pub(crate) fn wait_until(condition: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_true() {
        assert!(Instant::now() < deadline, "not within {TIMEOUT:?}: {condition}");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// A node with one GPU, whose device node is a file of the test.
pub(crate) struct TestNode {
    pub(crate) kubelet: TestKubelet,
    pub(crate) api: TestApiServer,
    agent: Option<Child>,
    pub(crate) cgroups: PathBuf,
    pub(crate) options: Vec<String>,
    directory: tempfile::TempDir,
}

impl TestNode {
    /// A node without an agent.
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("gpu"), "").unwrap();
        std::fs::write(directory.path().join("token"), format!("{TOKEN}\n")).unwrap();
        std::fs::create_dir(directory.path().join("run")).unwrap();
        Self {
            kubelet: TestKubelet::start(directory.path()),
            api: TestApiServer::start(),
            agent: None,
            cgroups: directory.path().join("cgroups"),
            options: Vec::new(),
            directory,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn gpu(&self) -> PathBuf {
        self.path("gpu")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("run/socket")
    }

    /// Starts the agent. Returns its registration.
    pub(crate) fn start_agent(&mut self) -> RegisterRequest {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xsched-kubernetes"));
        let path = |path: &Path| path.display().to_string();
        command
            .args(["--node", "node-1", "--slots", "4", "--device", &format!("{}=gpu0", self.gpu().display())])
            .args(["--socket", &path(&self.socket()), "--library", &library().display().to_string()])
            .args(["--device-plugins", &path(&self.kubelet.device_plugins())])
            .args(["--pod-resources", &path(&self.kubelet.pod_resources())])
            .args(["--cgroups", &path(&self.cgroups)])
            .args(["--api-server", &self.api.url(), "--token-file", &path(&self.path("token"))])
            .args(&self.options);
        self.agent = Some(command.stdin(Stdio::null()).spawn().unwrap());
        self.kubelet.registration()
    }

    /// Kills the agent with `SIGKILL`.
    pub(crate) fn kill_agent(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            agent.kill().unwrap();
            agent.wait().unwrap();
        }
    }

    /// Starts a pod as Kubernetes does: the API server knows it, the kubelet assigns slots and calls the plugin. Returns what its
    /// container gets.
    pub(crate) fn start_pod(&self, endpoint: &str, pod: &Value, slot: u32) -> ContainerAllocateResponse {
        let slots = [format!("gpu0-slot{slot}")];
        let name = |key: &str| pod["metadata"][key].as_str().unwrap().to_owned();
        self.api.put(pod.clone());
        let response = self.kubelet.allocate(endpoint, &slots).unwrap();
        self.kubelet.assign(&name("namespace"), &name("name"), RESOURCE, &slots);
        self.kubelet.pre_start(endpoint, &slots).unwrap();
        response
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.kill_agent();
    }
}

/// The directory with `xsched`, `libxsched.so` and `libxsim.so`: `integrations/kubernetes/check` builds them.
pub(crate) fn build_directory() -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/debug");
    std::env::var_os("XSCHED_BUILD").map_or_else(default, PathBuf::from).canonicalize().unwrap()
}

/// The library that containers preload.
pub(crate) fn library() -> PathBuf {
    build_directory().join("libxsched.so")
}

/// A pod of one container with one slot.
pub(crate) fn pod(name: &str, uid: &str, class_value: i64, annotations: &[(&str, &str)]) -> Value {
    let annotations: serde_json::Map<_, _> =
        annotations.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": uid, "annotations": annotations},
        "spec": {"nodeName": "node-1", "priority": class_value, "serviceAccountName": "tester",
                 "containers": [{"name": "main", "resources": {"limits": {RESOURCE: "1"}}}]},
        "status": {"phase": "Running"},
    })
}

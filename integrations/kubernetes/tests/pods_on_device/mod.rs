//! A node with a real service and a simulated device, and pods whose processes run in real control groups.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use xsched_ipc::grant::Grant;
use xsched_ipc::protocol::{Reply, Request, TaskStatus};
use xsched_ipc::tool::ToolConnection;

use crate::node::{TestNode, build_directory, pod, wait_until};
use crate::skipped::skip;
use crate::test_program::TestProgram;

/// The C programs of XSched's own tests, built once.
fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
        std::fs::create_dir_all(&place).unwrap();
        let libraries = build_directory();
        for name in ["work", "requests"] {
            let draft = place.join(format!("{name}.{}", std::process::id()));
            let mut compile = Command::new("cc");
            compile.args(["-std=gnu11", "-O1", "-o"]).arg(&draft);
            compile.arg(repository.join(format!("crates/xsched/tests/programs/{name}.c")));
            compile.arg("-I").arg(repository.join("standins/xsim"));
            compile.arg("-L").arg(&libraries).arg("-lxsim").arg("-ldl");
            compile.arg(format!("-Wl,-rpath,{}", libraries.display()));
            assert!(compile.status().unwrap().success(), "cannot build {name}");
            // Rename atomically: another test process may be running the old file.
            std::fs::rename(&draft, place.join(name)).unwrap();
        }
        place
    })
}

/// A hierarchy of control groups in which the test can create groups.
fn hierarchy() -> Option<PathBuf> {
    let mount = Path::new("/sys/fs/cgroup");
    let mut candidates = vec![mount.to_owned()];
    candidates.extend(["unified", "pids", "freezer", "systemd"].map(|name| mount.join(name)));
    let is_writable = |path: &PathBuf| {
        let probe = path.join(format!("kube-xsched-probe-{}", std::process::id()));
        let created = path.join("cgroup.procs").exists() && std::fs::create_dir(&probe).is_ok();
        let _ = std::fs::remove_dir(&probe);
        created
    };
    candidates.into_iter().find(is_writable)
}

/// The service, the agent and the device.
pub(crate) struct Machine {
    node: TestNode,
    service: Option<Child>,
    endpoint: String,
    hierarchy: PathBuf,
    /// The group of all pods, below the root.
    kubepods: String,
    next_slot: Cell<u32>,
}

impl Machine {
    /// A machine on which nothing runs yet. None if the test cannot create control groups.
    pub(crate) fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let Some(hierarchy) = hierarchy() else {
            skip("cannot create control groups below /sys/fs/cgroup (it needs root)");
            return None;
        };
        programs();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let kubepods = format!("/kubepods-xsched-test-{}-{number}", std::process::id());
        let mut node = TestNode::new();
        node.cgroups = "/sys/fs/cgroup".into();
        let endpoint = String::new();
        Some(Self { node, service: None, endpoint, hierarchy, kubepods, next_slot: Cell::new(0) })
    }

    pub(crate) fn start_service(&mut self) {
        let mut serve = self.unscheduled(&["xsched", "serve", "--quiet", "--policy", "HPF"]);
        self.service = Some(serve.stdin(Stdio::null()).spawn().unwrap());
        wait_until("the service listens", || self.connect().is_some());
    }

    /// Kills the service with `SIGKILL`.
    pub(crate) fn kill_service(&mut self) {
        if let Some(mut service) = self.service.take() {
            service.kill().unwrap();
            service.wait().unwrap();
        }
    }

    /// Removes the grants that the service keeps beside its socket.
    pub(crate) fn forget_grants(&self) {
        std::fs::remove_file(self.node.path("run/socket.grants")).unwrap();
    }

    pub(crate) fn start_agent(&mut self) {
        self.endpoint = self.node.start_agent().endpoint;
    }

    /// Kills the agent with `SIGKILL`.
    pub(crate) fn kill_agent(&mut self) {
        self.node.kill_agent();
    }

    fn connect(&self) -> Option<ToolConnection> {
        ToolConnection::connect_to_first(vec![self.node.socket()]).ok()
    }

    /// Sends a request to the service as an administrator.
    pub(crate) fn request(&self, request: &Request) -> Reply {
        self.connect().expect("the service runs").request(request).unwrap()
    }

    pub(crate) fn grants(&self) -> Vec<Grant> {
        match self.request(&Request::Grants) {
            Reply::Grants { grants, .. } => grants.into_iter().map(|status| status.grant).collect(),
            reply => panic!("the service replied {reply:?}"),
        }
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.grants().into_iter().map(|grant| grant.name).collect()
    }

    pub(crate) fn tasks(&self) -> Vec<TaskStatus> {
        self.connect().expect("the service runs").status().unwrap().tasks
    }

    /// A program on the device, outside of all pods and without the preloaded library.
    pub(crate) fn unscheduled(&self, program: &[&str]) -> Command {
        let mut command = Command::new(find(program[0]));
        command.args(&program[1..]).env("XSIM_DEVICE", self.node.path("device"));
        command.env("XSCHED_SOCKET", self.node.socket());
        command
    }

    /// Creates a pod in the API server, and its control group.
    pub(crate) fn put_pod(&self, name: &str, class_value: i64, annotations: &[(&str, &str)]) -> TestPod {
        let created = TestPod::create(self, name);
        self.node.api.put(pod(name, &created.uid, class_value, annotations));
        created
    }

    /// Starts a pod as Kubernetes does.
    pub(crate) fn start_pod(&self, name: &str, class_value: i64, annotations: &[(&str, &str)]) -> TestPod {
        let mut started = TestPod::create(self, name);
        let slot = self.next_slot.replace(self.next_slot.get() + 1);
        let object = pod(name, &started.uid, class_value, annotations);
        let container = self.node.start_pod(&self.endpoint, &object, slot);
        started.variables = container.envs.into_iter().collect();
        started
    }

    /// Changes the annotations of a pod.
    pub(crate) fn update_pod(&self, changed: &TestPod, class_value: i64, annotations: &[(&str, &str)]) {
        self.node.api.put(pod(&changed.name, &changed.uid, class_value, annotations));
    }

    /// Ends a pod: the API server reports this phase, or deletes the pod.
    pub(crate) fn end_pod(&self, ended: &TestPod, phase: Option<&str>) {
        let mut object: Value = pod(&ended.name, &ended.uid, 0, &[]);
        self.node.kubelet.release("default", &ended.name);
        match phase {
            Some(phase) => {
                object["status"] = json!({"phase": phase});
                self.node.api.put(object);
            }
            None => self.node.api.delete(object),
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill_agent();
        self.kill_service();
        let directory = self.hierarchy.join(&self.kubepods[1..]);
        let _ = std::fs::remove_dir(directory.join("burstable"));
        let _ = std::fs::remove_dir(directory);
    }
}

/// The path of `xsched` or of a program of the tests.
fn find(program: &str) -> PathBuf {
    if program == "xsched" { build_directory().join(program) } else { programs().join(program) }
}

/// A pod with a control group. The group is removed with it.
pub(crate) struct TestPod {
    name: String,
    uid: String,
    cgroup: PathBuf,
    path: String,
    variables: Vec<(String, String)>,
}

impl TestPod {
    /// Creates the control group of a pod.
    pub(crate) fn create(machine: &Machine, name: &str) -> Self {
        let random = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap();
        let uid = random.trim().to_owned();
        let path = format!("{}/burstable/pod{uid}", machine.kubepods);
        let cgroup = machine.hierarchy.join(&path[1..]);
        std::fs::create_dir_all(&cgroup).unwrap();
        Self { name: name.to_owned(), uid, cgroup, path, variables: Vec::new() }
    }

    /// The path of its control group, as in `/proc/PID/cgroup`.
    pub(crate) fn cgroup_path(&self) -> &str {
        &self.path
    }

    /// A program in the pod's container: in its control group, with the variables that the plugin gave it.
    pub(crate) fn command(&self, machine: &Machine, program: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ >\"$0\" && exec env \"$@\""]).arg(self.cgroup.join("cgroup.procs"));
        command.args(self.variables.iter().map(|(name, value)| format!("{name}={value}")));
        command.arg(find(program[0])).args(&program[1..]);
        command.env("XSIM_DEVICE", machine.node.path("device"));
        command.env("XSCHED_SOCKET", machine.node.socket());
        command
    }

    pub(crate) fn spawn(&self, machine: &Machine, program: &[&str]) -> TestProgram {
        TestProgram::spawn(self.command(machine, program))
    }
}

impl Drop for TestPod {
    fn drop(&mut self) {
        // The kernel needs a moment to remove killed processes from the group.
        for _ in 0..1_000 {
            match std::fs::remove_dir(&self.cgroup) {
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                _ => break,
            }
        }
    }
}

//! A test environment: a simulated device, a socket and a service for each test; and the test programs, built once.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use xsched_ipc::protocol::{Reply, Request, Status};
use xsched_ipc::socket::{Connection, Packet};

const XSCHED: &str = env!("CARGO_BIN_EXE_xsched");

/// How long a condition may take to become true.
const CONDITION_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until a condition is true; fails the test after [`CONDITION_TIMEOUT`].
pub(crate) fn wait_until(condition: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + CONDITION_TIMEOUT;
    while !is_true() {
        assert!(Instant::now() < deadline, "not within {CONDITION_TIMEOUT:?}: {condition}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The directory in which cargo places the programs and libraries of this profile.
fn build_directory() -> &'static Path {
    Path::new(XSCHED).parent().expect("a program is in a directory")
}

fn run_checked(what: &str, command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Builds the libraries and the test programs. Returns the directory of the programs.
fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        // Cargo does not build a library for a test that does not link it.
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "-p", "xsched-lib", "-p", "xsim", "--target-dir"]);
        build.arg(build_directory().parent().expect("the profile's directory is in the target directory"));
        // The directory is named after the profile; `dev` is in `debug`.
        let profile = build_directory().file_name().filter(|name| *name != "debug").unwrap_or("dev".as_ref());
        build.arg("--profile").arg(profile);
        run_checked("building the libraries", build.current_dir(env!("CARGO_MANIFEST_DIR")));

        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let programs = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
        std::fs::create_dir_all(&programs).unwrap();
        let linked = ["work", "family", "guest", "events", "requests"].map(|name| (name, true));
        for (name, linked) in linked.into_iter().chain([("opened", false)]) {
            let draft = programs.join(format!("{name}.{}", std::process::id()));
            let mut compile = compiler();
            compile.arg("-o").arg(&draft).arg(source(name));
            compile.arg("-I").arg(here.join("../../standins/xsim"));
            if linked {
                compile.arg("-L").arg(build_directory()).arg("-lxsim");
                compile.arg(format!("-Wl,-rpath,{}", build_directory().display()));
            }
            run_checked(name, compile.arg("-ldl"));
            // Rename atomically: another test process may be running the old file.
            std::fs::rename(&draft, programs.join(name)).unwrap();
        }
        programs
    })
}

/// Builds one more program or library, which only the calling test needs. Returns its path.
#[allow(dead_code, reason = "most tests need only the common programs")]
pub(crate) fn built_program(name: &str, options: &[&str]) -> PathBuf {
    let place = programs();
    let draft = place.join(format!("{name}.{}", std::process::id()));
    let mut compile = compiler();
    compile.arg("-o").arg(&draft).arg(source(name)).args(options);
    run_checked(name, compile.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs")));
    std::fs::rename(&draft, place.join(name)).unwrap();
    place.join(name)
}

fn compiler() -> Command {
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror"]);
    compiler
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"))
}

/// The device, the socket and the service of one test.
pub(crate) struct TestEnvironment {
    directory: tempfile::TempDir,
    socket: PathBuf,
    service: Option<Child>,
}

impl TestEnvironment {
    /// Without a service.
    pub(crate) fn without_service() -> Self {
        programs();
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        Self { directory, socket, service: None }
    }

    /// With a service that accepts connections.
    pub(crate) fn with_service() -> Self {
        let mut env = Self::without_service();
        env.start_service();
        env
    }

    pub(crate) fn start_service(&mut self) {
        self.start_service_under(&[]);
    }

    /// Starts the service with these options.
    #[allow(dead_code, reason = "most tests need none")]
    pub(crate) fn start_service_with(&mut self, options: &[&str]) {
        self.start_service_as(&[], options);
    }

    /// Starts the service with a command line in front of it.
    pub(crate) fn start_service_under(&mut self, under: &[&str]) {
        self.start_service_as(under, &[]);
    }

    fn start_service_as(&mut self, under: &[&str], options: &[&str]) {
        let mut serve = self.direct(&[under, &[XSCHED, "serve", "--quiet"], options].concat());
        self.service = Some(serve.stdin(Stdio::null()).spawn().unwrap());
        wait_until("the service listens", || Connection::to(&self.socket).is_ok());
    }

    /// Kills the service with `SIGKILL`.
    pub(crate) fn kill_service(&mut self) {
        if let Some(mut service) = self.service.take() {
            service.kill().unwrap();
            service.wait().unwrap();
        }
    }

    /// Stops a service that `xsched run` has started.
    pub(crate) fn stop_started_service(&self) {
        Connection::to(&self.socket).unwrap().send(&Request::Stop, None, true).unwrap();
    }

    /// Changes the socket that programs connect to.
    pub(crate) fn move_socket(&mut self, socket: &str) {
        self.socket = socket.into();
    }

    /// The file of the simulated device.
    pub(crate) fn device(&self) -> PathBuf {
        self.directory.path().join("device")
    }

    /// The process of the service.
    pub(crate) fn service(&self) -> Pid {
        Pid::from_child(self.service.as_ref().expect("the service was started"))
    }

    /// How often the service has blocked. It blocks after each notification, until the next.
    pub(crate) fn service_wake_ups(&self) -> usize {
        let file = format!("/proc/{}/status", self.service().as_raw_nonzero());
        let status = std::fs::read_to_string(file).unwrap();
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        count.trim().parse().unwrap()
    }

    /// The socket of the service.
    #[allow(dead_code, reason = "most tests need only connections")]
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// A connection to the service.
    pub(crate) fn connect(&self) -> Connection {
        Connection::to(&self.socket).unwrap()
    }

    /// Sends a request to the service. Returns the reply.
    pub(crate) fn request(&self, request: &Request) -> Reply {
        let service = self.connect();
        service.send(request, None, true).unwrap();
        match service.receive(true).unwrap() {
            Some(Packet::Message(reply, _)) => reply,
            packet => panic!("the service replied {packet:?}"),
        }
    }

    /// The status of the service.
    pub(crate) fn status(&self) -> Status {
        match self.request(&Request::Status) {
            Reply::Status(status) => status,
            reply => panic!("the service replied {reply:?}"),
        }
    }

    /// `xsched` with these arguments, in this environment.
    pub(crate) fn xsched(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(XSCHED);
        command.args(arguments);
        self.set_variables(&mut command);
        command
    }

    /// A program under the scheduler.
    pub(crate) fn run(&self, options: &[&str], program: &[&str]) -> Command {
        let mut command = self.xsched(&["run"]);
        command.args(options).arg("--").args(program);
        command
    }

    /// The same program without the scheduler.
    pub(crate) fn direct(&self, program: &[&str]) -> Command {
        let mut search = OsString::from(programs());
        search.push(":");
        search.push(std::env::var_os("PATH").unwrap_or_default());
        // `Command` searches the PATH of the test, not the one set for the child.
        let found =
            std::env::split_paths(&search).map(|place| place.join(program[0])).find(|file| file.is_file());
        let mut command = Command::new(found.unwrap_or_else(|| program[0].into()));
        command.args(&program[1..]);
        self.set_variables(&mut command);
        command
    }

    /// The same program with the library preloaded without `xsched run`, scheduled by the service.
    pub(crate) fn preloaded(&self, program: &[&str]) -> Command {
        let mut command = self.direct(program);
        command.env("LD_PRELOAD", self.library("libxsched.so"));
        command.env("XSCHED_SCHEDULER", "GLB").env("XSCHED_AUTO_XQUEUE", "ON");
        command
    }

    fn set_variables(&self, command: &mut Command) {
        let mut search = OsString::from(programs());
        search.push(":");
        search.push(std::env::var_os("PATH").unwrap_or_default());
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("XSCHED_") || text == "XLOG_LEVEL" || text == "LD_PRELOAD" {
                command.env_remove(name);
            }
        }
        command.env("PATH", search).env("XSIM_DEVICE", self.device()).env("XSCHED_SOCKET", &self.socket);
    }

    /// Starts a program with its output connected to pipes.
    #[allow(clippy::unused_self, reason = "called like the other methods")]
    pub(crate) fn spawn(&self, mut command: Command) -> Child {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// The path of a library that was built.
    #[allow(clippy::unused_self, reason = "the libraries are built before an environment exists")]
    pub(crate) fn library(&self, name: &str) -> String {
        build_directory().join(name).display().to_string()
    }

    /// Writes an executable file. Returns its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    }

    /// Builds a statically linked program. Returns `None` if the system has no static C library.
    pub(crate) fn static_program(&self) -> Option<String> {
        let source =
            self.file("static.c", "#include <stdio.h>\nint main(void) { puts(\"static\"); return 3; }\n");
        let program = self.directory.path().join("static");
        let made = compiler().arg("-static").arg("-o").arg(&program).arg(source).output().unwrap();
        made.status.success().then(|| program.display().to_string())
    }
}

impl Drop for TestEnvironment {
    fn drop(&mut self) {
        self.kill_service();
    }
}

//! A place of its own for each test: device, socket, service; and the programs, built once for all tests.

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

/// Dependencies until something has happened.
pub(crate) fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(60);
    while !happened() {
        assert!(Instant::now() < patience, "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Where cargo put this profile's programs, and where it will put the libraries.
fn built() -> &'static Path {
    Path::new(XSCHED).parent().expect("a program lies in a directory")
}

fn must(what: &str, command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Builds the libraries and the programs of the tests. Answers where the programs are.
fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        // Cargo builds no library for a test that does not link it, and none is linked here.
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "-p", "xsched-lib", "-p", "xsim", "--target-dir"]);
        build.arg(built().parent().expect("a profile's directory lies in the target directory"));
        // The directory has the name of the profile, but for the first that every project has.
        let profile = built().file_name().filter(|name| *name != "debug").unwrap_or("dev".as_ref());
        build.arg("--profile").arg(profile);
        must("building the libraries", build.current_dir(env!("CARGO_MANIFEST_DIR")));

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
                compile.arg("-L").arg(built()).arg("-lxsim");
                compile.arg(format!("-Wl,-rpath,{}", built().display()));
            }
            must(name, compile.arg("-ldl"));
            // In one step: another process that tests may be using it.
            std::fs::rename(&draft, programs.join(name)).unwrap();
        }
        programs
    })
}

/// Builds one more of the programs or libraries, for a test that needs it alone. Answers where it is.
#[allow(dead_code, reason = "most tests have enough in those that are built for all")]
pub(crate) fn built_program(name: &str, options: &[&str]) -> PathBuf {
    let place = programs();
    let draft = place.join(format!("{name}.{}", std::process::id()));
    let mut compile = compiler();
    compile.arg("-o").arg(&draft).arg(source(name)).args(options);
    must(name, compile.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs")));
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

/// See the head of this file.
pub(crate) struct Stage {
    directory: tempfile::TempDir,
    socket: PathBuf,
    service: Option<Child>,
}

impl Stage {
    /// With nobody to schedule.
    pub(crate) fn without_service() -> Self {
        programs();
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        Self { directory, socket, service: None }
    }

    /// With a service that answers.
    pub(crate) fn with_service() -> Self {
        let mut stage = Self::without_service();
        stage.start_service();
        stage
    }

    pub(crate) fn start_service(&mut self) {
        self.start_service_under(&[]);
    }

    /// With a command in front of it.
    pub(crate) fn start_service_under(&mut self, under: &[&str]) {
        let mut serve = self.direct(&[under, &[XSCHED, "serve", "--quiet"]].concat());
        self.service = Some(serve.stdin(Stdio::null()).spawn().unwrap());
        eventually("the service listens", || Connection::to(&self.socket).is_ok());
    }

    /// As hard as can be.
    pub(crate) fn kill_service(&mut self) {
        if let Some(mut service) = self.service.take() {
            service.kill().unwrap();
            service.wait().unwrap();
        }
    }

    /// Ends a service that `xsched run` has started.
    pub(crate) fn stop_started_service(&self) {
        Connection::to(&self.socket).unwrap().send(&Request::Stop, None, true).unwrap();
    }

    /// Looks for the service elsewhere.
    pub(crate) fn move_socket(&mut self, socket: &str) {
        self.socket = socket.into();
    }

    /// Where the simulated device is, or will be.
    pub(crate) fn device(&self) -> PathBuf {
        self.directory.path().join("device")
    }

    /// The service's process.
    pub(crate) fn service(&self) -> Pid {
        Pid::from_child(self.service.as_ref().expect("it was started"))
    }

    /// What the service answers.
    pub(crate) fn ask(&self, request: &Request) -> Reply {
        let service = Connection::to(&self.socket).unwrap();
        service.send(request, None, true).unwrap();
        match service.receive(true).unwrap() {
            Some(Packet::Message(reply, _)) => reply,
            other => panic!("the service answered {other:?}"),
        }
    }

    /// All that the service shows.
    pub(crate) fn status(&self) -> Status {
        match self.ask(&Request::Status) {
            Reply::Status(status) => status,
            other => panic!("the service answered {other:?}"),
        }
    }

    /// `xsched` with these arguments, in the surroundings of this stage.
    pub(crate) fn xsched(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(XSCHED);
        command.args(arguments);
        self.surround(&mut command);
        command
    }

    /// A program under the scheduler.
    pub(crate) fn run(&self, options: &[&str], program: &[&str]) -> Command {
        let mut command = self.xsched(&["run"]);
        command.args(options).arg("--").args(program);
        command
    }

    /// The same program without.
    pub(crate) fn direct(&self, program: &[&str]) -> Command {
        let mut search = OsString::from(programs());
        search.push(":");
        search.push(std::env::var_os("PATH").unwrap_or_default());
        // The search for the program itself goes by our own PATH, not by the one it is given.
        let found =
            std::env::split_paths(&search).map(|place| place.join(program[0])).find(|file| file.is_file());
        let mut command = Command::new(found.unwrap_or_else(|| program[0].into()));
        command.args(&program[1..]);
        self.surround(&mut command);
        command
    }

    /// The same program with the library preloaded by hand, to be scheduled by the service.
    pub(crate) fn preloaded(&self, program: &[&str]) -> Command {
        let mut command = self.direct(program);
        command.env("LD_PRELOAD", self.library("libxsched.so"));
        command.env("XSCHED_SCHEDULER", "GLB").env("XSCHED_AUTO_XQUEUE", "ON");
        command
    }

    fn surround(&self, command: &mut Command) {
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

    /// Starts a program whose output is kept.
    #[allow(clippy::unused_self, reason = "reads as the others do")]
    pub(crate) fn spawn(&self, mut command: Command) -> Child {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// The path of a library that was built.
    #[allow(clippy::unused_self, reason = "a stage exists only once the libraries are built")]
    pub(crate) fn library(&self, name: &str) -> String {
        built().join(name).display().to_string()
    }

    /// Writes a file that can be run. Answers its path.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    }

    /// A program without a loader; none if the system cannot make one.
    pub(crate) fn static_program(&self) -> Option<String> {
        let source =
            self.file("static.c", "#include <stdio.h>\nint main(void) { puts(\"static\"); return 3; }\n");
        let program = self.directory.path().join("static");
        let made = compiler().arg("-static").arg("-o").arg(&program).arg(source).output().unwrap();
        made.status.success().then(|| program.display().to_string())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.kill_service();
    }
}

//! The shape of PyTorch on AMD GPUs without PyTorch: what `import torch` and its first steps do, in their order, in many
//! libraries with device code of their own that are opened with `RTLD_LOCAL` (see `programs/torch_shape/shape.h`). On the
//! stand-in for AMD's runtime everywhere, and on AMD's real runtimes where their root directories are present.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod hip_environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod rocm_environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod skipped;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use environment::{TestEnvironment, wait_until};
use hip_environment::{HipEnvironment, hip_build};
use rocm_environment::{Rocm, RocmEnvironment};
use rustix::process::{Pid, Signal, kill_process};
use test_program::TestProgram;
use xsched_ipc::protocol::{TaskState, TaskStatus};

/// A program that has not exited after this time is killed, and the test fails.
const HANG_TIMEOUT: Duration = Duration::from_secs(120);

/// How the program exits: through its handlers, by `_exit`, by an uncaught exception, with streams that have work.
const WAYS_TO_EXIT: [&str; 4] = ["return", "os_exit", "uncaught", "left_open"];

/// How XSched says that it intercepts a runtime.
const BY_TABLE: &str = "the runtime's own table";
const BY_NAMES: &str = "the names of its functions";

/// AMD's libraries that the program is linked to where they are present.
const LIBRARIES: [&str; 6] =
    ["librocblas", "libhipblaslt", "libMIOpen", "librocrand", "libhipfft", "librccl"];

fn run_checked(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Builds the program for a runtime: with the host's compiler, or with AMD's in a root directory. Returns its path.
fn build_program(name: &str, files: &[PathBuf], compiler_root: Option<&Path>) -> PathBuf {
    let directory = hip_build().programs.join(name);
    let mut build =
        Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/torch_shape/build.sh"));
    build.arg(&directory).args(files).env("ROOT", compiler_root.map_or(OsStr::new(""), Path::as_os_str));
    run_checked(&mut build);
    directory.join("python")
}

/// The program for the stand-in of the HIP runtime.
fn program_for_standin() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| build_program("standin", &[hip_build().runtime.join("libamdhip64.so.6")], None))
}

/// The first file of a root whose name is `library`, followed by `.so.` and a number.
fn library_in(root: &Path, library: &str) -> Option<PathBuf> {
    let directory = root.join("root/usr/lib/x86_64-linux-gnu");
    (0..10).map(|number| directory.join(format!("{library}.so.{number}"))).find(|file| file.exists())
}

/// The program for one of AMD's real runtimes. Skips the test without AMD's compiler.
fn program_for_runtime(rocm: &RocmEnvironment) -> Option<PathBuf> {
    static PROGRAMS: Mutex<Vec<(Rocm, PathBuf)>> = Mutex::new(Vec::new());
    let compiler_root = rocm.rocm.compiler_root()?;
    let mut programs = PROGRAMS.lock().unwrap();
    if let Some((_, program)) = programs.iter().find(|(built, _)| *built == rocm.rocm) {
        return Some(program.clone());
    }
    let runtime = library_in(rocm.root(), "libamdhip64").expect("the root contains HIP");
    let libraries = LIBRARIES.iter().filter_map(|library| library_in(rocm.root(), library));
    let files: Vec<_> = [runtime.clone()].into_iter().chain(libraries).collect();
    let program = build_program(rocm.rocm.runtime(), &files, Some(&compiler_root));
    // The runtime looks itself up by the name that only development packages install.
    let link = program.with_file_name("libamdhip64.so");
    let _ = std::fs::remove_file(&link);
    let target = Path::new("/usr/lib/x86_64-linux-gnu").join(runtime.file_name().unwrap());
    std::os::unix::fs::symlink(target, link).unwrap();
    build_adapter(&program.with_file_name(ADAPTER));
    programs.push((rocm.rocm, program.clone()));
    Some(program)
}

/// Passes the function table of a runtime that Debian built to tools, as AMD's builds do.
const ADAPTER: &str = "libregister_adapter.so";

fn build_adapter(file: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/hip/register_adapter.c");
    let mut compile = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compile.args(["-std=gnu11", "-O1", "-shared", "-fPIC", "-o"]).arg(file).arg(source);
    // It calls a function of the C++ library, which the program opens with RTLD_LOCAL.
    run_checked(compile.args(["-ldl", "-Wl,--no-as-needed", "-lstdc++"]));
}

/// A machine with a service on which the program runs.
enum Machine {
    Standin { hip: HipEnvironment, interception: &'static str },
    Real { rocm: RocmEnvironment, program: PathBuf, interception: &'static str },
}

impl Machine {
    /// The stand-in for HIP, intercepted through its function table, and by names.
    fn standins() -> Vec<Self> {
        let hip = || HipEnvironment::new(TestEnvironment::with_service()).with("XLOG_LEVEL", "INFO");
        vec![
            Self::Standin { hip: hip(), interception: BY_TABLE },
            Self::Standin { hip: hip().with("HIP_STANDIN_NO_REGISTER", "1"), interception: BY_NAMES },
        ]
    }

    /// AMD's real runtimes, by names as Debian builds them, and through the function table as AMD does.
    fn real() -> Vec<Self> {
        let mut machines = Vec::new();
        for version in Rocm::ALL {
            for interception in [BY_TABLE, BY_NAMES] {
                let Some(rocm) = RocmEnvironment::with_service(version) else { break };
                let Some(program) = program_for_runtime(&rocm) else { break };
                let directory = program.parent().unwrap().display().to_string();
                let rocm = rocm.with_directory(&directory).with("XLOG_LEVEL", "INFO");
                machines.push(Self::Real { rocm, program, interception });
            }
        }
        machines
    }

    fn env(&self) -> &TestEnvironment {
        match self {
            Self::Standin { hip, .. } => &hip.env,
            Self::Real { rocm, .. } => &rocm.env,
        }
    }

    /// How XSched intercepts the runtime.
    fn interception(&self) -> &'static str {
        match self {
            Self::Standin { interception, .. } | Self::Real { interception, .. } => interception,
        }
    }

    /// The program with these arguments, under the scheduler with these options, or without.
    fn command(&self, options: Option<&[&str]>, arguments: &[&str]) -> Command {
        match self {
            Self::Standin { hip, .. } => {
                let words = [&[program_for_standin().to_str().unwrap()], arguments].concat();
                options.map_or_else(|| hip.direct(&words), |options| hip.run(options, &words))
            }
            Self::Real { rocm, program, interception } => {
                let directory = program.parent().unwrap().display();
                // After the stand-ins, which are in the paths that rocm-root sets.
                let script = format!(
                    "export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:{directory} LD_PRELOAD=$LD_PRELOAD:{}; exec \"$@\"",
                    if *interception == BY_TABLE { format!("{directory}/{ADAPTER}") } else { String::new() }
                );
                let scheduler = options
                    .map(|options| [&[env!("CARGO_BIN_EXE_xsched"), "run"], options, &["--"]].concat())
                    .unwrap_or_default();
                let shell = ["bash", "-c", &script, "bash"];
                rocm.direct(&[&shell[..], &scheduler, &[program.to_str().unwrap()], arguments].concat())
            }
        }
    }

    /// How many matrix products of hipBLASLt the device has executed; none without hipBLASLt of HIP 6.4, whose kernels are known.
    fn light_products(&self) -> Option<usize> {
        let Self::Real { rocm, .. } = self else { return None };
        let has_library = rocm.rocm == Rocm::V6 && library_in(rocm.root(), "libhipblaslt").is_some();
        has_library.then(|| {
            let ledger = std::fs::read_to_string(rocm.ledger()).unwrap_or_default();
            ledger.lines().filter(|packet| packet.contains(" Cijk_") && packet.contains("_UserArgs_")).count()
        })
    }

    fn task(&self, name: &str) -> Option<TaskStatus> {
        self.env().status().tasks.into_iter().find(|task| task.name == name)
    }

    fn wait_until_held(&self, name: &str) {
        wait_until("the task is held", || self.task(name).is_some_and(|task| task.state == TaskState::Held));
    }

    /// Starts a program that always has work, and waits for its first round.
    fn spawn_loop(&self, name: &str, priority: &str, more: &[&str]) -> TestProgram {
        // Two rounds are in flight, so that the device has work for 20 ms while the launching thread does not run.
        let arguments = [&["loop", "8", "5000"], more].concat();
        let program =
            TestProgram::spawn(self.command(Some(&["--priority", priority, "--name", name]), &arguments));
        while program.next_line() != "round 0" {}
        program
    }
}

/// What a program left behind.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    status: ExitStatus,
    stdout: String,
}

fn read_all(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = String::new();
        let _ = pipe.read_to_string(&mut text);
        text
    })
}

/// Runs a program to its exit. Returns its outcome and what it wrote to stderr.
fn outcome_of(mut command: Command) -> (Outcome, String) {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (stdout, stderr) = (read_all(child.stdout.take().unwrap()), read_all(child.stderr.take().unwrap()));
    let deadline = Instant::now() + HANG_TIMEOUT;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("hangs: {command:?}: {}{}", stdout.join().unwrap(), stderr.join().unwrap());
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    (Outcome { status, stdout: stdout.join().unwrap() }, stderr.join().unwrap())
}

/// A module whose constructor uses the GPU, while the loader's lock is held, is imported as without the scheduler.
fn assert_same_extension(machine: &Machine) {
    for arguments in [&["extension"][..], &["extension", "1"]] {
        let (direct, errors) = outcome_of(machine.command(None, arguments));
        assert!(direct.stdout.contains("extension: 1, last error 0\n"), "{direct:?} {errors}");
        let (scheduled, log) = outcome_of(machine.command(Some(&["--priority", "high"]), arguments));
        assert_eq!(scheduled, direct, "{}: {log}", machine.interception());
    }
}

fn terminate(program: &mut TestProgram) -> ExitStatus {
    kill_process(Pid::from_child(&program.child), Signal::TERM).unwrap();
    program.child.wait().unwrap()
}

/// Every step has the same result with and without the scheduler, and every way to exit the same status.
fn assert_same_outcomes(machine: &Machine) {
    // What a hook leaves behind at exit does not depend on how it was reached.
    let ways = if machine.interception() == BY_TABLE { &WAYS_TO_EXIT[..] } else { &WAYS_TO_EXIT[..1] };
    for (earlier_ways, way_to_exit) in ways.iter().enumerate() {
        let (direct, errors) = outcome_of(machine.command(None, &["train", way_to_exit]));
        for line in [
            "trained, last error 0",
            "copied: 1, pageable 1, filled 1",
            "forked loaders: status 0, 16 batches right",
            "spawned loaders: status 0 and 0",
        ] {
            assert!(direct.stdout.lines().any(|text| text == line), "{line}: {direct:?} {errors}");
        }
        let (scheduled, log) =
            outcome_of(machine.command(Some(&["--priority", "high"]), &["train", way_to_exit]));
        assert_eq!(scheduled, direct, "{}, {way_to_exit}: {log}", machine.interception());
        // The program, and the child that uses the GPU.
        let line = format!("HIP is scheduled by {}", machine.interception());
        assert_eq!(log.lines().filter(|text| text.ends_with(&line)).count(), 2, "{way_to_exit}: {log}");
        if let Some(products) = machine.light_products() {
            // On two streams of the main thread and one of another, in both runs.
            assert_eq!(products, 2 * 3 * (earlier_ways + 1), "{way_to_exit}: {direct:?}");
        }
    }
}

/// The low-priority program launches nothing while the high-priority one has work, and resumes after its exit.
fn assert_held_while_another_has_work(machine: &Machine) {
    let mut low = machine.spawn_loop("low", "low", &[]);
    let mut high = machine.spawn_loop("high", "high", &[]);
    let listed = machine.env().xsched(&["ps"]).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout);
    assert!(listed.contains(" low ") && listed.contains(" high "), "{listed}");
    machine.wait_until_held("low");
    let before = machine.task("low").unwrap().launches;
    high.lines.try_iter().for_each(drop);
    for _ in 0..10 {
        high.next_line();
    }
    let low_task = machine.task("low").unwrap();
    assert_eq!(low_task.launches, before, "{}: {low_task:?}", machine.interception());
    // Exits through its handlers with work on its streams; then the other one resumes.
    assert_eq!(terminate(&mut high).code(), Some(15), "{}", machine.interception());
    low.lines.try_iter().for_each(drop);
    low.next_line();
    assert_eq!(terminate(&mut low).code(), Some(15), "{}", machine.interception());
}

/// A program that a signal kills in the middle of its work does not hold the others.
fn assert_freed_by_a_killed_program(machine: &Machine) {
    let low = machine.spawn_loop("low", "low", &[]);
    let mut high = machine.spawn_loop("high", "high", &["1"]);
    machine.wait_until_held("low");
    assert_eq!(terminate(&mut high).signal(), Some(Signal::TERM.as_raw()));
    low.lines.try_iter().for_each(drop);
    low.next_line();
}

#[test]
fn every_step_and_exit_is_the_same_under_the_scheduler() {
    Machine::standins().iter().for_each(assert_same_outcomes);
}

#[test]
fn extension_uses_the_gpu_in_its_constructor() {
    Machine::standins().iter().for_each(assert_same_extension);
}

#[test]
fn low_priority_framework_launches_nothing_while_a_high_one_has_work() {
    Machine::standins().iter().for_each(assert_held_while_another_has_work);
}

#[test]
fn framework_killed_by_a_signal_frees_the_others() {
    Machine::standins().iter().take(1).for_each(assert_freed_by_a_killed_program);
}

#[test]
fn every_step_and_exit_is_the_same_on_real_runtimes() {
    Machine::real().iter().for_each(assert_same_outcomes);
}

#[test]
fn extension_uses_the_gpu_in_its_constructor_on_real_runtimes() {
    Machine::real().iter().for_each(assert_same_extension);
}

#[test]
fn low_priority_framework_launches_nothing_on_real_runtimes() {
    Machine::real().iter().for_each(assert_held_while_another_has_work);
}

#[test]
fn framework_killed_by_a_signal_frees_the_others_on_real_runtimes() {
    Machine::real().iter().for_each(assert_freed_by_a_killed_program);
}

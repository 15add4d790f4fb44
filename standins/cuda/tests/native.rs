//! The stand-in by itself: the behaviour of a driver that programs and schedulers can observe.

#[allow(dead_code, reason = "other test targets use the rest")]
#[path = "../../../crates/xsched/tests/measured/mod.rs"]
mod measured;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use measured::{require, retry_comparison};

/// Builds the library and the programs. Returns their directory.
fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
        // The test binary lies in PROFILE/deps; the directory of the dev profile is called debug.
        let test = std::env::current_exe().unwrap();
        let built = test.ancestors().nth(2).expect("the test binary is in the profile's directory");
        let profile = built.file_name().filter(|name| *name != "debug").unwrap_or("dev".as_ref());
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "-p", "xsched-standin-cuda", "--profile"]).arg(profile);
        cargo
            .arg("--target-dir")
            .arg(built.parent().expect("the profile's directory is in the target directory"));
        run_or_panic("building the library", cargo.current_dir(env!("CARGO_MANIFEST_DIR")));
        let programs = place.join("standin-cuda");
        std::fs::create_dir_all(&programs).unwrap();
        let install = |from: &Path, name: &str| {
            // Renamed into place atomically, because a test process that runs at the same time may be using it.
            let draft = programs.join(format!("{name}.{}", std::process::id()));
            std::fs::copy(from, &draft).unwrap();
            std::fs::rename(&draft, programs.join(name)).unwrap();
        };
        install(&built.join("libstandin_cuda.so"), "libcuda.so.1");
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        for name in ["semantics", "resources", "load", "devices", "family", "memory"] {
            let made = programs.join(format!("{name}.made.{}", std::process::id()));
            let mut compile = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
            compile.args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-rdynamic", "-I"]).arg(here);
            compile.arg("-o").arg(&made).arg(here.join(format!("tests/programs/{name}.c")));
            compile.arg(programs.join("libcuda.so.1")).args(["-ldl", "-lpthread"]);
            run_or_panic(name, &mut compile);
            std::fs::rename(&made, programs.join(name)).unwrap();
        }
        programs
    })
}

fn run_or_panic(what: &str, command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A separate machine: its programs share its devices only with each other.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn command(&self, program: &[&str]) -> Command {
        let mut command = Command::new(programs().join(program[0]));
        command.args(&program[1..]);
        command.env("XSCHED_STANDIN_CUDA", self.0.path().join("device"));
        command.env("LD_LIBRARY_PATH", programs()).env_remove("LD_PRELOAD");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    fn start(&self, program: &[&str]) -> Program {
        Program(self.command(program).spawn().unwrap())
    }
}

/// A program that is killed when it is dropped.
struct Program(Child);

impl Program {
    fn lines(&mut self) -> impl Iterator<Item = String> + use<> {
        BufReader::new(self.0.stdout.take().unwrap()).lines().map(Result::unwrap)
    }

    /// The duration of each request in microseconds, sorted.
    fn latencies(mut self) -> Vec<u64> {
        let lines = self.lines().take_while(|line| line != "idle").map(|line| line.parse().unwrap());
        let mut all: Vec<u64> = lines.collect();
        all.sort_unstable();
        all
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn median(all: &[u64]) -> u64 {
    all[all.len() / 2]
}

fn assert_prints(command: &mut Command, expected: &str) {
    let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains(expected), "{out}{err}");
}

#[test]
fn streams_events_memory_operations_and_graphs_follow_cuda_semantics() {
    assert_prints(&mut Machine::new().command(&["semantics"]), "fault");
}

#[test]
fn resource_manager_reports_its_objects_and_performs_control_calls() {
    assert_prints(&mut Machine::new().command(&["resources"]), "done");
}

#[test]
fn features_can_be_disabled() {
    let machine = Machine::new();
    let without = |what: &str, program: &[&str]| {
        let mut command = machine.command(program);
        command.env("XSCHED_STANDIN_CUDA_WITHOUT", what);
        command
    };
    assert_prints(&mut without("resource-manager", &["resources", "none"]), "done");
    assert_prints(&mut without("timeslices", &["resources", "refused"]), "done");
    for feature in ["memory-waits", "new-waits"] {
        let output = without(feature, &["semantics", "streams"]).stderr(Stdio::piped()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(errors.contains("cuStreamWaitValue32_v2") && errors.contains("returned 801"), "{errors}");
    }
}

#[test]
fn machine_can_have_several_devices_and_process_several_contexts() {
    let machine = Machine::new();
    let mut command = machine.command(&["devices"]);
    assert_prints(command.env("XSCHED_STANDIN_CUDA_DEVICES", "2"), "done");
}

#[test]
fn device_memory_is_limited_and_counted_in_all_its_forms() {
    let machine = Machine::new();
    let memory = |arguments: &[&str]| {
        let command = [&["memory"], arguments].concat();
        let mut command = machine.command(&command);
        command.env("XSCHED_STANDIN_CUDA_MEMORY_MIB", "256");
        command
    };
    for arguments in
        [&["forms"][..], &["random", "1", "400"], &["threads", "4"], &["contexts"], &["family"], &["limit"]]
    {
        assert_prints(&mut memory(arguments), "done");
    }
    assert_prints(&mut memory(&["limit"]), "256\n");
}

#[test]
fn child_cannot_use_the_driver_that_its_parent_initialized() {
    assert_prints(&mut Machine::new().command(&["family"]), "done");
}

/// One request of ten kernels, 5 ms in all, every 15 ms.
const REQUESTS: [&str; 6] = ["load", "requests", "40", "10", "500", "15000"];

fn beside(time_slices: Option<(&str, &str)>) -> Vec<u64> {
    let machine = Machine::new();
    let mut low = vec!["load", "batch", "4", "20000"];
    let mut high = REQUESTS.to_vec();
    if let Some((low_slice, high_slice)) = time_slices {
        low.push(low_slice);
        high.push(high_slice);
    }
    let mut batch = machine.start(&low);
    // Kept: the program would be ended by SIGPIPE if the pipe were closed.
    let mut rounds = batch.lines();
    rounds.next().expect("the batch runs");
    let latencies = machine.start(&high).latencies();
    rounds.next().expect("the batch gets the remaining time");
    latencies
}

#[test]
fn time_slices_determine_the_latency_of_requests_beside_a_batch() {
    let measure = || {
        let alone = Machine::new().start(&REQUESTS).latencies();
        let (native, sliced) = (beside(None), beside(Some(("1", "10000"))));
        let [alone, native, sliced] = [alone, native, sliced].map(|all| {
            assert_eq!(all.len(), 40);
            median(&all)
        });
        println!("alone {alone} us, native {native} us, with time slices {sliced} us");
        (alone, native, sliced)
    };
    retry_comparison(measure, |(alone, native, sliced)| {
        // A request needs more than two time slices of 2 ms, and waits for one of the batch before each of them.
        require(2 * native > 3 * alone, || {
            format!("the batch does not slow the requests down: {native} us, alone {alone} us")
        })?;
        require(10 * sliced < 13 * alone, || format!("{sliced} us between {alone} us and {native} us"))
    });
}

#[test]
fn processes_with_minimal_time_slices_starve_each_other() {
    let rounds_of = |slice: &[&str]| {
        let machine = Machine::new();
        let command: Vec<_> = ["load", "batch", "1", "100"].iter().chain(slice).copied().collect();
        let mut both = [machine.start(&command), machine.start(&command)];
        let readers: Vec<_> = both.iter_mut().map(Program::lines).collect();
        let begin = std::time::Instant::now();
        let threads: Vec<_> = readers
            .into_iter()
            .map(|lines| {
                std::thread::spawn(move || {
                    lines.take_while(|_| begin.elapsed() < std::time::Duration::from_millis(500)).count()
                })
            })
            .collect();
        std::thread::sleep(std::time::Duration::from_millis(600));
        drop(both);
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
    };
    let measure = || (rounds_of(&[]), rounds_of(&["1"]));
    retry_comparison(measure, |(default, minimal)| {
        println!("{default} kernels with the default time slices, {minimal} with the minimal");
        require(default > 4 * minimal.max(1), || format!("{default} and {minimal}"))
    });
}

#[test]
fn killed_process_is_removed_from_the_device() {
    let measure = || {
        let machine = Machine::new();
        // A kernel of one hour, with a time slice of one hour.
        let mut holder = machine.start(&["load", "requests", "1", "1", "3600000000", "1", "3600000000"]);
        std::thread::sleep(std::time::Duration::from_millis(200));
        let mut waiting = machine.start(&["load", "requests", "1", "1", "1000", "1"]);
        let mut lines = waiting.lines();
        std::thread::sleep(std::time::Duration::from_millis(300));
        let was_blocked = waiting.0.try_wait().unwrap().is_none();
        holder.0.kill().unwrap();
        holder.0.wait().unwrap();
        assert!(lines.next().unwrap().parse::<u64>().is_ok(), "it must get the device");
        was_blocked
    };
    // On a busy machine the second program may reach the device before the first.
    retry_comparison(measure, |was_blocked| {
        require(was_blocked, || "the second program did not wait for the device".into())
    });
}

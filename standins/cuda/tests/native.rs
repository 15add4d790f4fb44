//! The stand-in by itself: what programs and schedulers can tell of a driver.

#[allow(dead_code, reason = "the other tests that measure use the rest")]
#[path = "../../../crates/xsched/tests/measured/mod.rs"]
mod measured;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use measured::{require, retry_comparison};

/// Builds the library and the programs. Answers the directory they are in.
fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
        // This test lies in a directory of the profile's, and the profile's has its name, but for the usual one.
        let test = std::env::current_exe().unwrap();
        let built = test.ancestors().nth(2).expect("it lies in a directory of the profile's");
        let profile = built.file_name().filter(|name| *name != "debug").unwrap_or("dev".as_ref());
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "-p", "xsched-standin-cuda", "--profile"]).arg(profile);
        cargo.arg("--target-dir").arg(built.parent().expect("that one lies in the target directory"));
        must("building the library", cargo.current_dir(env!("CARGO_MANIFEST_DIR")));
        let programs = place.join("standin-cuda");
        std::fs::create_dir_all(&programs).unwrap();
        let put = |from: &Path, name: &str| {
            // In one step: another process that tests may be using it.
            let draft = programs.join(format!("{name}.{}", std::process::id()));
            std::fs::copy(from, &draft).unwrap();
            std::fs::rename(&draft, programs.join(name)).unwrap();
        };
        put(&built.join("libstandin_cuda.so"), "libcuda.so.1");
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        for name in ["semantics", "resources", "load", "devices", "family"] {
            let made = programs.join(format!("{name}.made.{}", std::process::id()));
            let mut compile = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
            compile.args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-rdynamic", "-I"]).arg(here);
            compile.arg("-o").arg(&made).arg(here.join(format!("tests/programs/{name}.c")));
            compile.arg(programs.join("libcuda.so.1")).args(["-ldl", "-lpthread"]);
            must(name, &mut compile);
            std::fs::rename(&made, programs.join(name)).unwrap();
        }
        programs
    })
}

fn must(what: &str, command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A machine of its own: what runs on it shares its devices with nobody else.
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

    fn start(&self, program: &[&str]) -> Actor {
        Actor(self.command(program).spawn().unwrap())
    }
}

/// A program that is killed at the end of its scene, however that ends.
struct Actor(Child);

impl Actor {
    fn lines(&mut self) -> impl Iterator<Item = String> + use<> {
        BufReader::new(self.0.stdout.take().unwrap()).lines().map(Result::unwrap)
    }

    /// How long its requests took, in microseconds, the shortest first.
    fn latencies(mut self) -> Vec<u64> {
        let told = self.lines().take_while(|line| line != "idle").map(|line| line.parse().unwrap());
        let mut all: Vec<u64> = told.collect();
        all.sort_unstable();
        all
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn middle(all: &[u64]) -> u64 {
    all[all.len() / 2]
}

fn says(command: &mut Command, expected: &str) {
    let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains(expected), "{out}{err}");
}

#[test]
fn it_keeps_the_meaning_of_streams_events_waits_and_graphs() {
    says(&mut Machine::new().command(&["semantics"]), "fault");
}

#[test]
fn its_resource_manager_shows_what_it_has_and_does_what_it_is_asked() {
    says(&mut Machine::new().command(&["resources"]), "done");
}

#[test]
fn a_machine_may_lack_things() {
    let machine = Machine::new();
    let without = |what: &str, program: &[&str]| {
        let mut command = machine.command(program);
        command.env("XSCHED_STANDIN_CUDA_WITHOUT", what);
        command
    };
    says(&mut without("resource-manager", &["resources", "none"]), "done");
    says(&mut without("timeslices", &["resources", "refused"]), "done");
    for lacking in ["memory-waits", "new-waits"] {
        let output = without(lacking, &["semantics", "streams"]).stderr(Stdio::piped()).output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(words.contains("cuStreamWaitValue32_v2") && words.contains("answered 801"), "{words}");
    }
}

#[test]
fn a_machine_may_have_several_devices_and_a_process_several_contexts() {
    let machine = Machine::new();
    let mut command = machine.command(&["devices"]);
    says(command.env("XSCHED_STANDIN_CUDA_DEVICES", "2"), "done");
}

#[test]
fn a_child_cannot_use_what_its_parent_has_begun() {
    says(&mut Machine::new().command(&["family"]), "done");
}

/// One request of ten kernels, 5 ms in all, every 15 ms.
const REQUESTS: [&str; 6] = ["load", "requests", "40", "10", "500", "15000"];

fn beside(slices: Option<(&str, &str)>) -> Vec<u64> {
    let machine = Machine::new();
    let mut low = vec!["load", "batch", "4", "20000"];
    let mut high = REQUESTS.to_vec();
    if let Some((low_slice, high_slice)) = slices {
        low.push(low_slice);
        high.push(high_slice);
    }
    let mut batch = machine.start(&low);
    // Kept: who writes where nobody reads any more is ended.
    let mut rounds = batch.lines();
    rounds.next().expect("it runs");
    let latencies = machine.start(&high).latencies();
    rounds.next().expect("it gets the rest");
    latencies
}

#[test]
fn slices_decide_how_long_requests_take_beside_a_batch() {
    let measure = || {
        let alone = Machine::new().start(&REQUESTS).latencies();
        let (native, sliced) = (beside(None), beside(Some(("1", "10000"))));
        let [alone, native, sliced] = [alone, native, sliced].map(|all| {
            assert_eq!(all.len(), 40);
            middle(&all)
        });
        println!("alone {alone} us, native {native} us, with slices {sliced} us");
        (alone, native, sliced)
    };
    retry_comparison(measure, |(alone, native, sliced)| {
        // It needs more than two slices of 2 ms, and waits for the other's before each of them.
        require(2 * native > 3 * alone, || {
            format!("the batch does no harm: {native} us instead of {alone} us")
        })?;
        require(10 * sliced < 13 * alone, || format!("{sliced} us between {alone} us and {native} us"))
    });
}

#[test]
fn two_with_the_shortest_slices_starve_each_other() {
    let rounds_of = |slice: &[&str]| {
        let machine = Machine::new();
        let command: Vec<_> = ["load", "batch", "1", "100"].iter().chain(slice).copied().collect();
        let mut both = [machine.start(&command), machine.start(&command)];
        let readers: Vec<_> = both.iter_mut().map(Actor::lines).collect();
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
    retry_comparison(measure, |(usual, shortest)| {
        println!("{usual} kernels with the usual slices, {shortest} with the shortest");
        require(usual > 4 * shortest.max(1), || format!("{usual} and {shortest}"))
    });
}

#[test]
fn a_process_that_is_killed_is_off_the_device() {
    let measure = || {
        let machine = Machine::new();
        // A kernel of an hour, and a slice so long that it never ends.
        let mut holder = machine.start(&["load", "requests", "1", "1", "3600000000", "1", "3600000000"]);
        std::thread::sleep(std::time::Duration::from_millis(200));
        let mut waiting = machine.start(&["load", "requests", "1", "1", "1000", "1"]);
        let mut lines = waiting.lines();
        std::thread::sleep(std::time::Duration::from_millis(300));
        let was_blocked = waiting.0.try_wait().unwrap().is_none();
        holder.0.kill().unwrap();
        holder.0.wait().unwrap();
        assert!(lines.next().unwrap().parse::<u64>().is_ok(), "it has the device now");
        was_blocked
    };
    // On a busy machine the second program may reach the device before the first.
    retry_comparison(measure, |was_blocked| require(was_blocked, || "it did not wait for the device".into()));
}

//! Programs for Ascend NPUs as real processes, on the stand-in for `libascendcl.so`. Kernels run on the simulated device.
//!
//! The programs are in C and contain no XSched code, except the one that tests the C interface.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod c_program;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod measured;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use environment::{TestEnvironment, wait_until};
use measured::{percentile, print_latencies, require, retry_comparison};
use test_program::TestProgram;
use xsched_core::{DeviceId, DeviceKind};
use xsched_ipc::protocol::{HintRequest, Reply, Request, Target, TaskState};

/// Many times the length of a step. A program that makes no step in this time is held.
const HELD_AFTER: Duration = Duration::from_millis(200);

/// The directory of the programs and of the stand-in under the vendor's name, built once.
fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    PROGRAMS.get_or_init(build)
}

fn build() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ascend-programs");
    std::fs::create_dir_all(&directory).unwrap();
    let env = TestEnvironment::without_service();
    let target = Path::new(&env.library("libxsched.so")).parent().unwrap().to_owned();
    let profile = target.file_name().filter(|name| *name != "debug").unwrap_or("dev".as_ref());
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "-p", "xsched-standin-ascend", "--profile"]).arg(profile);
    cargo.arg("--target-dir").arg(target.parent().unwrap());
    assert!(cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
    // Renamed atomically, here and below: another test process may be using the old file.
    let draft = directory.join(format!("library.{}", std::process::id()));
    std::fs::copy(env.library("libstandin_ascend.so"), &draft).unwrap();
    std::fs::rename(draft, directory.join("libascendcl.so")).unwrap();
    let libraries = c_program::libraries(&env);
    let interface = [
        "-lpreempt".to_owned(),
        format!("-L{}", libraries.display()),
        format!("-Wl,-rpath,{}", libraries.display()),
    ];
    for name in ["compute", "requests", "waits", "capture", "capi"] {
        let more: &[String] = if name == "capi" { &interface } else { &[] };
        compile(&directory, name, name, more);
    }
    compile(&directory, "compute", "compute_opened", &["-DOPENED".to_owned()]);
    directory
}

fn compile(directory: &Path, from: &str, to: &str, more: &[String]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/ascend/{from}.c"));
    let draft = directory.join(format!("{to}.{}", std::process::id()));
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-I"]).arg(c_program::root().join("include"));
    compiler.arg("-o").arg(&draft).arg(source).args(more);
    compiler.arg(format!("-Wl,-rpath,{}", directory.display()));
    if to == from {
        compiler.arg(format!("-L{}", directory.display())).arg("-lascendcl");
    }
    let output = compiler.arg("-ldl").output().unwrap();
    assert!(output.status.success(), "{from}: {}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(draft, directory.join(to)).unwrap();
}

/// Programs on the stand-in.
struct Ascend {
    env: TestEnvironment,
    programs: &'static Path,
}

impl Ascend {
    fn new(env: TestEnvironment) -> Self {
        Self { env, programs: programs() }
    }

    fn with_service() -> Self {
        Self::new(TestEnvironment::with_service())
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Vec<String> {
        let program = self.programs.join(program).display().to_string();
        [program].into_iter().chain(arguments.iter().map(|argument| (*argument).to_owned())).collect()
    }

    fn direct(&self, program: &str, arguments: &[&str]) -> Command {
        let command = self.command(program, arguments);
        self.env.direct(&command.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn run(&self, options: &[&str], program: &str, arguments: &[&str]) -> Command {
        let command = self.command(program, arguments);
        self.env.run(options, &command.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Runs a program directly and under the scheduler. Both runs must print and return the same.
    fn assert_same(&self, program: &str, arguments: &[&str], variables: &[(&str, &str)]) -> String {
        let observe = |mut command: Command| {
            let output = command.envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap();
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            (text(&output.stdout), text(&output.stderr), output.status)
        };
        let direct = observe(self.direct(program, arguments));
        assert_eq!(direct, observe(self.run(&[], program, arguments)), "{program} {arguments:?}");
        direct.0
    }
}

#[test]
fn linked_and_opened_programs_run_as_unscheduled() {
    let ascend = Ascend::with_service();
    for name in ["compute", "compute_opened"] {
        let output = ascend.assert_same(name, &["5"], &[]);
        assert_eq!(output.matches("correct").count(), 35, "{output}");
        assert!(output.ends_with("stream of another context: 107003\n"), "{output}");
    }
    let output = ascend.assert_same("waits", &["3", "40"], &[]);
    assert_eq!(output.matches("correct").count(), 3, "{output}");
    let without_device = ascend.assert_same("compute", &["1"], &[("XSIM_DEVICE", "/no/such/place/device")]);
    assert_eq!(without_device, "no device: error 507000\n");
}

#[test]
fn all_streams_are_scheduled_on_the_physical_device() {
    let ascend = Ascend::with_service();
    for (name, program, visible) in [("linked", "compute", None), ("opened", "compute_opened", Some("5,3"))] {
        let mut command = ascend.run(&["--name", name], program, &["1000000"]);
        command.envs(visible.map(|visible| ("ASCEND_RT_VISIBLE_DEVICES", visible)));
        let program = TestProgram::spawn(command);
        program.next_line();
        let its_task = || ascend.env.status().tasks.into_iter().find(|task| task.name == name);
        // One in each context, and a default stream.
        wait_until("the program is scheduled", || its_task().is_some_and(|task| task.queues == 3));
        let physical = if visible.is_some() { "Ascend NPU 5" } else { "Ascend NPU 0" };
        assert_eq!(DeviceId(its_task().unwrap().device), DeviceId::named(DeviceKind::Npu, physical));
    }
}

#[test]
fn suspended_program_makes_no_step_until_it_is_resumed() {
    let ascend = Ascend::with_service();
    for kind in ["stream", "default", "model"] {
        let forever = ["1000000", "2", "100", "0", kind];
        let program = TestProgram::spawn(ascend.run(&["--name", kind], "requests", &forever));
        program.next_line();
        // The default stream is known from its first launch on.
        program.next_line();
        let target = Target::Pid(program.pid());
        assert_eq!(ascend.env.request(&Request::Suspend(target.clone())), Reply::Done);
        let its_state =
            || ascend.env.status().tasks.iter().find(|task| task.name == kind).map(|task| task.state);
        wait_until("the program is suspended", || its_state() == Some(TaskState::Suspended));
        while program.lines.recv_timeout(HELD_AFTER).is_ok() {}
        assert_eq!(ascend.env.request(&Request::Resume(target)), Reply::Done);
        for _ in 0..20 {
            assert_ne!(program.next_line(), "wrong");
        }
    }
}

#[test]
fn results_are_correct_under_suspends_and_resumes() {
    const SUSPENDS: usize = 100;
    let ascend = Ascend::with_service();
    let programs = ["low", "high"]
        .map(|priority| TestProgram::spawn(ascend.run(&["--priority", priority], "compute", &["1000000"])));
    for program in &programs {
        program.next_line();
    }
    for n in 0..SUSPENDS {
        let target = Target::Pid(programs[n % 2].pid());
        assert_eq!(ascend.env.request(&Request::Suspend(target.clone())), Reply::Done);
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(ascend.env.request(&Request::Resume(target)), Reply::Done);
    }
    for program in &programs {
        // A wrong result would have ended the program.
        program.lines.try_iter().for_each(drop);
        assert!(program.next_line().ends_with("correct"));
    }
}

/// A stream that waits for an event must not hold the thread of the program that records it, whichever stream has precedence.
#[test]
fn streams_that_wait_for_events_recorded_later_complete() {
    let ascend = Ascend::with_service();
    // Under contention every queue is tracked and limited. The contender pauses, so that queues of low priority run too.
    let busy = ["1000000", "5", "200", "4", "stream"];
    let contender = TestProgram::spawn(ascend.run(&["--name", "contender"], "requests", &busy));
    contender.next_line();
    for high in 0..3 {
        let mut program = TestProgram::spawn(ascend.run(&["--name", "waits"], "waits", &["3", "40", "wait"]));
        assert_eq!(program.next_line(), "ready");
        let pid = program.pid();
        let its_queues = || ascend.env.status().queues.into_iter().filter(|queue| queue.pid == pid);
        wait_until("the service knows both streams", || its_queues().count() == 2);
        for (n, queue) in its_queues().enumerate() {
            // Both are low in the last run, where the contender has precedence.
            let priority = Some(if n == high { 100 } else { -100 });
            let hint_request = HintRequest { priority, ..HintRequest::default() };
            let set = Request::SetQueue { queue: queue.handle, hint_request };
            assert_eq!(ascend.env.request(&set), Reply::Done);
        }
        program.send_newline();
        let expected = [0, 1, 2].map(|round| format!("round {round}: correct"));
        assert_eq!(program.remaining_lines(), expected);
    }
}

#[test]
fn captured_launches_are_not_held() {
    let ascend = Ascend::with_service();
    let mut program = TestProgram::spawn(ascend.run(&["--name", "capture"], "capture", &[]));
    assert_eq!(program.next_line(), "ready");
    let target = Target::Pid(program.pid());
    assert_eq!(ascend.env.request(&Request::Suspend(target.clone())), Reply::Done);
    program.send_newline();
    assert_eq!(program.next_line(), "captured: correct");
    // The captured work itself is.
    assert!(program.lines.recv_timeout(HELD_AFTER).is_err());
    assert_eq!(ascend.env.request(&Request::Resume(target)), Reply::Done);
    assert_eq!(program.remaining_lines(), ["run: correct"]);
}

#[test]
fn unavailable_level_is_reported_and_the_program_runs() {
    let ascend = Ascend::with_service();
    let output = ascend.run(&["--level", "2"], "compute", &["1"]).stdin(Stdio::null()).output().unwrap();
    let warning = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && warning.contains("not 2:"), "{warning}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).matches("correct").count(), 7);
}

#[test]
fn c_interface_works_on_a_stream() {
    let ascend = Ascend::new(TestEnvironment::without_service());
    assert_eq!(c_program::printed(&mut ascend.direct("capi", &[])), "correct\n");
}

/// Requests of 20 kernels of 0.2 ms, 5 ms apart, beside kernels of 1 ms that never pause.
const REQUESTS: [&str; 4] = ["60", "20", "200", "5"];
const BATCH: [&str; 5] = ["1000000", "20", "1000", "0", "stream"];

#[test]
fn latency_beside_a_batch_is_close_to_alone() {
    let ascend = Ascend::with_service();
    let native = Ascend::new(TestEnvironment::without_service());
    let latencies = |command: Command| {
        let lines = TestProgram::spawn(command).remaining_lines();
        let mut latencies: Vec<u64> = lines.iter().filter_map(|line| line.parse().ok()).collect();
        assert_eq!(latencies.len(), 60, "requests");
        latencies.sort_unstable();
        latencies
    };
    let started = |batch: TestProgram| {
        assert_eq!(batch.next_line(), "ready");
        batch
    };
    for kind in ["stream", "default"] {
        let requests = [&REQUESTS[..], &[kind]].concat();
        let measure = || {
            let alone = latencies(native.direct("requests", &requests));
            let beside = {
                let _batch = started(TestProgram::spawn(native.direct("requests", &BATCH)));
                latencies(native.direct("requests", &requests))
            };
            let scheduled = {
                let batch =
                    started(TestProgram::spawn(ascend.run(&["--priority", "low"], "requests", &BATCH)));
                let latencies = latencies(ascend.run(&["--priority", "high"], "requests", &requests));
                // The batch gets the remaining time.
                batch.next_line();
                latencies
            };
            print_latencies(&[("alone", &alone), ("native", &beside), ("scheduled", &scheduled)]);
            [alone, beside, scheduled].map(|latencies| percentile(&latencies, 50))
        };
        retry_comparison(measure, |[alone, native, scheduled]| {
            let describe =
                || format!("{kind}: alone {alone} us, native {native} us, scheduled {scheduled} us");
            require(10 * native > 15 * alone, || {
                format!("the batch does not slow requests: {}", describe())
            })?;
            require(2 * scheduled < alone + native, describe)
        });
    }
}

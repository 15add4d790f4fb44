//! Vulkan programs as real processes on the Vulkan device of this machine. In CI that is Mesa's CPU driver, with real queues and
//! real data.
//!
//! The programs are in C, without any XSched code.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod measured;
mod skipped;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::TryRecvError;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use environment::{TestEnvironment, wait_until};
use measured::{percentile, print_latencies, require, retry_comparison_on_cpu};
use skipped::{record_skipped, skip};
use test_program::TestProgram;
use xsched_core::DeviceKind;
use xsched_ipc::protocol::{Reply, Request, Target, TaskState};

/// The programs, built once, and the CPU for one test at a time. Skips the test if the machine has no Vulkan.
fn programs() -> Option<(MutexGuard<'static, ()>, &'static Programs)> {
    static CPU: Mutex<()> = Mutex::new(());
    static PROGRAMS: OnceLock<Result<Programs, String>> = OnceLock::new();
    let cpu = CPU.lock().unwrap_or_else(PoisonError::into_inner);
    match PROGRAMS.get_or_init(Programs::build) {
        Ok(programs) => Some((cpu, programs)),
        Err(reason) => {
            skip(&format!("{reason} (Debian: mesa-vulkan-drivers, libvulkan-dev)"));
            None
        }
    }
}

struct Programs {
    directory: PathBuf,
}

impl Programs {
    fn build() -> Result<Self, String> {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("vulkan");
        std::fs::create_dir_all(&directory).unwrap();
        let programs = Self { directory };
        for name in ["vk_requests", "vk_calls"] {
            programs.compile(name)?;
        }
        let probe = Command::new(programs.path("vk_requests")).args(["1", "1", "1", "0"]).output().unwrap();
        let output = String::from_utf8_lossy(&probe.stdout).into_owned();
        if probe.status.success() {
            Ok(programs)
        } else {
            Err(format!("no Vulkan device: {}", output.trim()))
        }
    }

    fn compile(&self, name: &str) -> Result<(), String> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
        let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        // Renamed atomically below: another test process may be running the old file.
        let draft = self.path(&format!("{name}.{}", std::process::id()));
        compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-o", &draft]).arg(source);
        let output = compiler.args(["-lvulkan", "-lpthread"]).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            std::fs::rename(draft, self.path(name)).unwrap();
            return Ok(());
        }
        assert!(errors.contains("vulkan/vulkan.h") || errors.contains("-lvulkan"), "{name}: {errors}");
        Err("no Vulkan to compile with".to_owned())
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// The command line of a program that serves requests: how many, submissions per request, steps, milliseconds between requests.
    fn requests(&self, arguments: [&'static str; 4]) -> Vec<String> {
        [self.path("vk_requests")].into_iter().chain(arguments.map(str::to_owned)).collect()
    }
}

fn words(command: &[String]) -> Vec<&str> {
    command.iter().map(String::as_str).collect()
}

/// What a command prints, and its status.
fn observe(mut command: Command) -> (String, String, Option<i32>) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr), output.status.code())
}

/// Endless requests of short submissions.
const FOREVER: [&str; 4] = ["1000000", "1", "100", "0"];

#[test]
fn every_way_to_submit_and_to_wait_works_as_unscheduled() {
    let Some((_cpu, programs)) = programs() else { return };
    let env = TestEnvironment::with_service();
    let command = [&*programs.path("vk_calls"), "5"];
    let (direct, scheduled) = (observe(env.direct(&command)), observe(env.run(&[], &command)));
    assert_eq!(direct, scheduled);
    assert_eq!(direct.0.matches("correct").count(), 8 * 5 + 1, "{}", direct.0);
}

#[test]
fn program_is_scheduled_on_its_device_and_makes_no_step_while_suspended() {
    let Some((_cpu, programs)) = programs() else { return };
    let env = TestEnvironment::with_service();
    let program = TestProgram::spawn(env.run(&["--name", "steps"], &words(&programs.requests(FOREVER))));
    assert_eq!(program.next_line(), "ready");
    let its_task = || env.status().tasks.into_iter().find(|task| task.name == "steps");
    wait_until("the program is scheduled", || its_task().is_some());
    let task = its_task().unwrap();
    assert_eq!(task.queues, 1);
    let summary = observe(env.direct(&["vulkaninfo", "--summary"]));
    if summary.0.contains("PHYSICAL_DEVICE_TYPE_CPU") && summary.0.matches("deviceName").count() == 1 {
        assert_eq!(task.device >> 32, DeviceKind::Cpu as u64);
    }

    let target = Target::Pid(program.pid());
    assert_eq!(env.request(&Request::Suspend(target.clone())), Reply::Done);
    wait_until("the program is suspended", || {
        its_task().map(|task| task.state) == Some(TaskState::Suspended)
    });
    // Many times the length of a step: a program that makes none in this time is held.
    while program.lines.recv_timeout(Duration::from_millis(200)).is_ok() {}
    assert_eq!(program.lines.try_recv(), Err(TryRecvError::Empty), "the program exited");
    assert_eq!(env.request(&Request::Resume(target)), Reply::Done);
    for _ in 0..20 {
        program.next_line();
    }
}

#[test]
fn results_are_correct_under_random_suspends_and_resumes() {
    let Some((_cpu, programs)) = programs() else { return };
    let env = TestEnvironment::with_service();
    let command = programs.requests(["400", "5", "2000", "0"]);
    let running: Vec<_> = ["low", "normal", "high"]
        .iter()
        .map(|priority| TestProgram::spawn(env.run(&["--priority", priority], &words(&command))))
        .collect();
    wait_until("a program is scheduled", || !env.status().tasks.is_empty());
    let (mut random, mut suspends) = (7_u32, 0);
    let end = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < end {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let target = Target::Pid(running[(random >> 8) as usize % running.len()].pid());
        let request = if random >> 31 == 0 { Request::Suspend(target) } else { Request::Resume(target) };
        // The service rejects the request if the program has not submitted yet or has exited.
        suspends += usize::from(env.request(&request) == Reply::Done && random >> 31 == 0);
        std::thread::sleep(Duration::from_micros(u64::from(random >> 16 & 0x7ff)));
    }
    for program in &running {
        env.request(&Request::Resume(Target::Pid(program.pid())));
    }
    for program in running {
        assert_eq!(program.remaining_lines().last().map(String::as_str), Some("correct"));
    }
    assert!(suspends > 10, "too few suspends for a test: {suspends}");
}

#[test]
fn work_that_waits_for_the_program_completes_while_the_task_is_throttled() {
    let Some((_cpu, programs)) = programs() else { return };
    let env = TestEnvironment::with_service();
    // Its pauses leave the device to the other task, which is throttled.
    let leader = programs.requests(["1000000", "2", "5000", "1"]);
    let leader = TestProgram::spawn(env.run(&["--priority", "high", "--name", "leader"], &words(&leader)));
    assert_eq!(leader.next_line(), "ready");
    // One submission in flight at a time, but the program signals the first of eight after the last.
    let mut command = env.run(&["--priority", "low"], &[&programs.path("vk_calls"), "20"]);
    command.env("XSCHED_AUTO_XQUEUE_THRESHOLD", "1").env("XSCHED_AUTO_XQUEUE_BATCH_SIZE", "1");
    leader.lines.try_iter().for_each(drop);
    let lines = TestProgram::spawn(command).remaining_lines();
    let requests = leader.lines.try_iter().count();
    assert_eq!(
        lines.iter().filter(|line| *line == "waits for the program: correct").count(),
        20,
        "{lines:?}"
    );
    assert!(!lines.iter().any(|line| line.contains("wrong")), "{lines:?}");
    // A thread that waits for room gets it only when the leader pauses for long, after thousands of requests.
    println!("{requests} requests of the leader");
    assert!(requests < 20 * 500, "{requests} requests of the leader");
}

#[test]
fn program_runs_unscheduled_without_the_layer() {
    let Some((_cpu, programs)) = programs() else { return };
    let env = TestEnvironment::with_service();
    let command = programs.requests(["3", "2", "100", "0"]);
    let is_complete = |command: Command| {
        let (output, errors, status) = observe(command);
        assert_eq!(
            (output.lines().count(), output.lines().last(), &*errors, status),
            (5, Some("correct"), "", Some(0))
        );
    };
    // The program removes the preloaded library from its environment, as some launchers do: the loader cannot load the layer.
    let mut launcher = vec!["env", "-u", "LD_PRELOAD"];
    launcher.extend(words(&command));
    is_complete(env.run(&[], &launcher));
    // The user disables it.
    let forever = programs.requests(FOREVER);
    let mut disabled = env.run(&["--name", "disabled"], &words(&forever));
    disabled.env("XSCHED_VULKAN_LAYER_DISABLE", "1").env("VK_LOADER_LAYERS_DISABLE", "*XSCHED*");
    let program = TestProgram::spawn(disabled);
    for _ in 0..20 {
        program.next_line();
    }
    assert!(env.status().tasks.is_empty(), "scheduled: {:?}", env.status().tasks);
}

#[test]
fn unavailable_level_is_reported_and_the_program_runs() {
    let Some((_cpu, programs)) = programs() else { return };
    let env = TestEnvironment::with_service();
    let command = programs.requests(["3", "2", "100", "0"]);
    let (output, errors, status) = observe(env.run(&["--level", "2"], &words(&command)));
    assert!(errors.contains("not 2:") && errors.contains("Vulkan cannot stop work"), "{errors}");
    assert_eq!((output.lines().last(), status), (Some("correct"), Some(0)));
}

#[test]
fn vulkaninfo_reports_the_same_devices() {
    let Some((_cpu, _programs)) = programs() else { return };
    if Command::new("vulkaninfo").arg("--summary").output().is_err() {
        return skip("vulkaninfo is not installed (Debian: vulkan-tools)");
    }
    let env = TestEnvironment::with_service();
    let devices = |command: Command| {
        let (output, _, status) = observe(command);
        assert_eq!(status, Some(0));
        output[output.find("\nDevice").expect("a list of devices")..].to_owned()
    };
    let command = ["vulkaninfo"];
    assert_eq!(devices(env.direct(&command)), devices(env.run(&[], &command)));
}

/// Requests of 10 submissions of about 0.3 ms each on two idle cores.
const REQUESTS: [&str; 4] = ["40", "10", "50000", "10"];
/// Endless submissions of the same length.
const BATCH: [&str; 4] = ["1000000", "50", "50000", "0"];
const BATCHES: usize = 2;

#[test]
fn request_latency_beside_batches_is_close_to_alone() {
    let Some((_cpu, programs)) = programs() else { return };
    let (requests, batch) = (programs.requests(REQUESTS), programs.requests(BATCH));
    let (requests, batch) = (words(&requests), words(&batch));
    let (native_env, env) = (TestEnvironment::without_service(), TestEnvironment::with_service());
    let started = |command: Command| {
        let program = TestProgram::spawn(command);
        assert_eq!(program.next_line(), "ready");
        program
    };
    let latencies = |command: Command| {
        let lines = TestProgram::spawn(command).remaining_lines();
        assert_eq!(lines.last().map(String::as_str), Some("correct"));
        let mut all: Vec<u64> = lines.iter().filter_map(|line| line.parse().ok()).collect();
        assert_eq!(all.len(), 40, "requests");
        all.sort_unstable();
        all
    };
    let measure = || {
        let alone = latencies(native_env.direct(&requests));
        let native = {
            let _batches: Vec<_> = (0..BATCHES).map(|_| started(native_env.direct(&batch))).collect();
            latencies(native_env.direct(&requests))
        };
        let batches: Vec<_> =
            (0..BATCHES).map(|_| started(env.run(&["--priority", "low"], &batch))).collect();
        let scheduled = latencies(env.run(&["--priority", "high"], &requests));
        // The batches get the remaining time.
        for batch in &batches {
            batch.next_line();
        }
        print_latencies(&[("alone", &alone), ("native", &native), ("scheduled", &scheduled)]);
        [alone, native, scheduled].map(|sorted| percentile(&sorted, 50))
    };
    // The median, not the tail: other processes may use the machine.
    let compare = |[alone, native, scheduled]: [u64; 3]| {
        let describe = || format!("alone {alone} us, native {native} us, scheduled {scheduled} us");
        require(10 * native > 15 * alone, || {
            format!("the batches do not slow native requests: {}", describe())
        })?;
        require(2 * scheduled < alone + native, || format!("scheduling gains too little: {}", describe()))
    };
    retry_comparison_on_cpu(measure, compare, record_skipped);
}

//! OpenCL programs as real processes on the OpenCL implementation of this machine. In CI that is `PoCL`, which runs
//! kernels on the CPU, with real queues and real data.
//!
//! The programs are in C and in Python, without any XSched code.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod measured;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod opencl_environment;
mod skipped;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use environment::{TestEnvironment, wait_until};
use measured::{require, retry_comparison_on_cpu};
use opencl_environment::{HELD_AFTER, assert_same, exclusive_cpu, programs};
use skipped::{record_skipped, skip};
use test_program::TestProgram;
use xsched_core::{DeviceId, DeviceKind};
use xsched_ipc::protocol::{HintRequest, Reply, Request, Target, TaskState};

#[test]
fn linked_and_opened_programs_run_as_unscheduled() {
    let _cpu = exclusive_cpu();
    let Some(programs) = programs() else { return };
    let env = TestEnvironment::with_service();
    for name in ["cl_compute", "cl_compute_opened"] {
        let output = assert_same(&env, &[&programs.path(name), "9"], &[]);
        assert_eq!(output.matches("correct").count(), 9, "{output}");
    }
    assert_eq!(assert_same(&env, &[&programs.path("cl_graph"), "3"], &[]).lines().count(), 4);
}

#[test]
fn opencl_errors_are_unchanged() {
    let _cpu = exclusive_cpu();
    let Some(programs) = programs() else { return };
    let env = TestEnvironment::with_service();
    let errors = programs.path("cl_errors");
    let output = assert_same(&env, &[&errors], &[]);
    assert!(output.starts_with("no queue: -36\n"), "{output}");
    // OpenCL's loader and the program look up the same name in different libraries.
    assert_eq!(assert_same(&env, &[&programs.path("cl_errors_opened")], &[]), output);
    // Without a driver: `CL_PLATFORM_NOT_FOUND_KHR`.
    let nowhere = [("OCL_ICD_VENDORS", "/no/such/place"), ("XSCHED_OPENCL_LIB", "/no/such/library.so")];
    assert_eq!(assert_same(&env, &[&errors], &nowhere), "no platform: error -1001\n");
    assert_eq!(assert_same(&env, &[&errors], &nowhere[1..]), output, "XSCHED_OPENCL_LIB has no effect");
}

#[test]
fn queues_are_scheduled_on_one_device_for_every_way_to_create_them() {
    let _cpu = exclusive_cpu();
    let Some(programs) = programs() else { return };
    let env = TestEnvironment::with_service();
    let mut devices = Vec::new();
    for (name, queues) in [("cl_compute", 3), ("cl_compute_opened", 3), ("cl_requests", 1)] {
        let arguments = [&programs.path(name), "100000", "1", "1000", "0"];
        let program = TestProgram::spawn(env.run(&["--name", name], &arguments));
        program.next_line();
        let its_task = || env.status().tasks.into_iter().find(|task| task.name == name);
        wait_until("the program is scheduled", || its_task().is_some_and(|task| task.queues == queues));
        devices.extend(its_task().map(|task| task.device));
    }
    assert!(devices.iter().all(|device| *device == devices[0]), "{devices:?}");
    println!("the device is {}", DeviceId(devices[0]));
    if clinfo(&env, "-l").is_some_and(|list| list.contains("Portable Computing Language")) {
        assert_eq!(devices[0] >> 32, DeviceKind::Cpu as u64);
    }
}

#[test]
fn results_are_correct_under_random_suspends_and_resumes() {
    let _cpu = exclusive_cpu();
    let Some(programs) = programs() else { return };
    let env = TestEnvironment::with_service();
    for (processes, rounds) in [(2, "200"), (8, "60")] {
        let program = [&*programs.path("cl_compute"), rounds];
        let running: Vec<_> = (0..processes)
            .map(|n| {
                let priority = ["low", "normal", "high"][n % 3];
                TestProgram::spawn(env.run(&["--priority", priority], &program))
            })
            .collect();
        let mut random = 7_u32;
        let mut suspends = 0;
        wait_until("a program is scheduled", || !env.status().tasks.is_empty());
        let end = Instant::now() + Duration::from_millis(2500);
        while Instant::now() < end {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let target = Target::Pid(running[(random >> 8) as usize % processes].child.id());
            let request = if random >> 31 == 0 { Request::Suspend(target) } else { Request::Resume(target) };
            // The service rejects the request if the program has not launched yet or has exited.
            suspends += usize::from(env.request(&request) == Reply::Done && random >> 31 == 0);
            std::thread::sleep(Duration::from_micros(u64::from(random >> 16 & 0x7ff)));
        }
        for program in &running {
            env.request(&Request::Resume(Target::Pid(program.child.id())));
        }
        for program in running {
            let lines = program.remaining_lines();
            assert!(lines.len().to_string() == rounds && lines.iter().all(|line| line.ends_with("correct")));
        }
        println!("{processes} processes, {suspends} suspends");
        assert!(suspends > 20, "too few suspends for a test: {suspends}");
    }
}

#[test]
fn queues_of_different_priority_that_wait_for_each_other_complete() {
    let _cpu = exclusive_cpu();
    let Some(programs) = programs() else { return };
    let env = TestEnvironment::with_service();
    // Under contention every queue is tracked.
    let busy = [&*programs.path("cl_requests"), "100000", "5", "1000", "2"];
    let _contender = TestProgram::spawn(env.run(&["--name", "contender"], &busy));
    for high in 0..3 {
        let graph = [&*programs.path("cl_graph"), "-w", "3"];
        let mut program = TestProgram::spawn(env.run(&["--name", "graph"], &graph));
        assert_eq!(program.next_line(), "ready");
        let pid = program.child.id();
        let its_queues = || env.status().queues.into_iter().filter(|queue| queue.pid == pid);
        wait_until("the service knows all queues", || its_queues().count() == 3);
        for (n, queue) in its_queues().enumerate() {
            let priority = Some(if n == high { 100 } else { -100 });
            let hint_request = HintRequest { priority, ..HintRequest::default() };
            assert_eq!(env.request(&Request::SetQueue { queue: queue.handle, hint_request }), Reply::Done);
        }
        program.child.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert_eq!(program.remaining_lines(), ["round 0", "round 1", "round 2"]);
    }
}

#[test]
fn unavailable_level_is_reported_and_the_program_runs() {
    let _cpu = exclusive_cpu();
    let Some(programs) = programs() else { return };
    let env = TestEnvironment::with_service();
    let program = [&*programs.path("cl_compute"), "3"];
    let output = env.run(&["--level", "3"], &program).stdin(Stdio::null()).output().unwrap();
    let warning = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && warning.contains("not 3:"), "{warning}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).matches("correct").count(), 3);
}

/// Requests of 20 kernels of about 1 ms each.
const REQUESTS: [&str; 4] = ["40", "20", "10000", "20"];
/// Endless kernels of about 0.1 ms. On two cores three such programs leave a quarter of the CPU to a fourth one.
const BATCH: [&str; 4] = ["1000000", "200", "1000", "0"];
const BATCHES: usize = 3;

/// The sorted latencies of 40 requests, in microseconds.
fn latencies(program: TestProgram) -> Vec<u64> {
    let mut all: Vec<u64> = program.remaining_lines().iter().filter_map(|line| line.parse().ok()).collect();
    assert_eq!(all.len(), 40, "requests");
    all.sort_unstable();
    all
}

#[test]
fn request_latency_beside_batches_is_close_to_alone() {
    let _cpu = exclusive_cpu();
    let Some(programs) = programs() else { return };
    let program = programs.path("cl_requests");
    let command = |arguments: [&'static str; 4]| [&[&*program], &arguments[..]].concat();
    let (requests, batch) = (command(REQUESTS), command(BATCH));

    let (native_env, env) = (TestEnvironment::without_service(), TestEnvironment::with_service());
    let started = |batch: TestProgram| {
        assert_eq!(batch.next_line(), "ready");
        batch
    };
    let measure = || {
        let alone = latencies(TestProgram::spawn(native_env.direct(&requests)));
        let native = {
            let _batches: Vec<_> =
                (0..BATCHES).map(|_| started(TestProgram::spawn(native_env.direct(&batch)))).collect();
            latencies(TestProgram::spawn(native_env.direct(&requests)))
        };
        let scheduled = {
            let low = || started(TestProgram::spawn(env.run(&["--priority", "low"], &batch)));
            let mut batches: Vec<_> = (0..BATCHES).map(|_| low()).collect();
            let latencies = latencies(TestProgram::spawn(env.run(&["--priority", "high"], &requests)));
            // The batches get the remaining time.
            for batch in &mut batches {
                batch.next_line();
            }
            latencies
        };
        for (name, all) in [("alone", &alone), ("native", &native), ("scheduled", &scheduled)] {
            println!("{name:>9}: p50 {:>6} us, p90 {:>6} us, longest {:>6} us", all[20], all[36], all[39]);
        }
        [alone, native, scheduled]
    };
    let compare = |latencies: [Vec<u64>; 3]| {
        // The median, not the tail: other processes may use the machine.
        let [alone, native, scheduled] = latencies.map(|latencies| latencies[20]);
        let describe = || format!("alone {alone} us, native {native} us, scheduled {scheduled} us");
        require(native > 2 * alone, || format!("the batches do not slow native requests: {}", describe()))?;
        require(2 * scheduled < alone + native, || format!("scheduling gains too little: {}", describe()))?;
        require(10 * scheduled <= 15 * alone, describe)
    };
    retry_comparison_on_cpu(measure, compare, record_skipped);
}

/// The shortest latency, and the 10th percentile of the CPU times (that clock sometimes returns too small a value), in
/// microseconds.
fn lowest_costs(measured: &[(u64, u64)]) -> (u64, u64) {
    let sorted = |of: fn(&(u64, u64)) -> u64| {
        let mut all: Vec<_> = measured.iter().map(of).collect();
        all.sort_unstable();
        all
    };
    (sorted(|both| both.0)[0], sorted(|both| both.1)[measured.len() / 10])
}

#[test]
fn scheduling_a_program_alone_has_little_overhead() {
    let _cpu = exclusive_cpu();
    let Some(programs) = programs() else { return };
    let env = TestEnvironment::with_service();
    let program = [&*programs.path("cl_requests"), "20", "50", "1000", "0", "cost"];
    let requests = |mut command: Command| -> Vec<(u64, u64)> {
        // With one thread for kernels the number of free cores does not matter.
        command.env("POCL_MAX_PTHREAD_COUNT", "1");
        let lines = TestProgram::spawn(command).remaining_lines();
        let both =
            |line: &String| line.split_once(' ').map(|(a, b)| (a.parse().unwrap(), b.parse().unwrap()));
        lines.iter().filter_map(both).collect()
    };
    let measure = || {
        let (mut direct, mut scheduled) = (Vec::new(), Vec::new());
        // Alternate, so that both kinds meet the same load on the machine.
        for _ in 0..8 {
            direct.extend(requests(env.direct(&program)));
            scheduled.extend(requests(env.run(&[], &program)));
        }
        assert_eq!((direct.len(), scheduled.len()), (160, 160), "requests");
        (lowest_costs(&direct), lowest_costs(&scheduled))
    };
    let compare = |((direct_us, direct_cpu_us), (scheduled_us, scheduled_cpu_us))| {
        let result = format!(
            "50 kernels: {direct_us} us direct, {scheduled_us} us scheduled; CPU time {direct_cpu_us} us and {scheduled_cpu_us} us"
        );
        println!("{result}");
        let is_cheap = 100 * scheduled_cpu_us <= 110 * direct_cpu_us && 100 * scheduled_us <= 120 * direct_us;
        require(is_cheap, || result)
    };
    retry_comparison_on_cpu(measure, compare, record_skipped);
}

#[test]
fn suspended_program_makes_no_step_until_it_is_resumed() {
    let _cpu = exclusive_cpu();
    let Some(programs) = programs() else { return };
    let env = TestEnvironment::with_service();
    let forever = [&*programs.path("cl_requests"), "1000000", "1", "100", "0"];
    let program = TestProgram::spawn(env.run(&["--name", "steps"], &forever));
    program.next_line();
    let target = Target::Pid(program.child.id());
    assert_eq!(env.request(&Request::Suspend(target.clone())), Reply::Done);
    let its_state = || env.status().tasks.first().map(|task| task.state);
    wait_until("the program is suspended", || its_state() == Some(TaskState::Suspended));
    while program.lines.recv_timeout(HELD_AFTER).is_ok() {}
    assert_eq!(program.lines.try_recv(), Err(TryRecvError::Empty), "the program exited");
    assert_eq!(env.request(&Request::Resume(target)), Reply::Done);
    for _ in 0..20 {
        program.next_line();
    }
}

#[test]
fn command_buffers_are_held_like_kernels_with_correct_results() {
    let _cpu = exclusive_cpu();
    let Some(programs) = programs() else { return };
    let env = TestEnvironment::with_service();
    for (name, named) in [("cl_recorded", "1"), ("cl_recorded_opened", "0")] {
        let program = programs.path(name);
        let output = assert_same(&env, &[&program, "6", "0", named], &[]);
        if output.starts_with("no cl") {
            return skip("this OpenCL has no command buffers");
        }
        assert!(output.contains("round 5\ncorrect\n"), "{output}");

        // At level 1 only the gate holds the program: work that it waits for was launched and completes.
        let program = TestProgram::spawn(env.run(&["--level", "1"], &[&program, "400", "2", named]));
        while program.next_line() != "round 1" {}
        let target = Target::Pid(program.child.id());
        assert_eq!(env.request(&Request::Suspend(target.clone())), Reply::Done);
        // The final read of the data would be held too.
        while let Ok(line) = program.lines.recv_timeout(HELD_AFTER) {
            assert_ne!(line, "round 399", "the suspended program ran to its end");
        }
        assert_eq!(env.status().tasks.first().map(|task| task.state), Some(TaskState::Suspended));
        assert_eq!(env.request(&Request::Resume(target)), Reply::Done);
        assert!(program.remaining_lines().contains(&"correct".to_owned()));
    }
}

/// The output of `clinfo`, the same with and without the scheduler; `None` if it is not installed.
fn clinfo(env: &TestEnvironment, option: &str) -> Option<String> {
    Command::new("clinfo").arg("-l").output().ok()?;
    Some(assert_same(env, &["clinfo", option], &[]))
}

#[test]
fn clinfo_prints_the_same() {
    let _cpu = exclusive_cpu();
    if programs().is_none() {
        return;
    }
    let env = TestEnvironment::with_service();
    match clinfo(&env, "--raw") {
        Some(output) => assert!(output.contains("CL_DEVICE_NAME"), "{output}"),
        None => skip("clinfo is not installed"),
    }
}

/// A usual program with `pyopencl`, which brings its own OpenCL loader.
const PYTHON: &str = r#"
import numpy, pyopencl as cl, pyopencl.array
context = cl.Context([cl.get_platforms()[0].get_devices()[0]])
queue = cl.CommandQueue(context)
a = cl.array.to_device(queue, numpy.arange(50000, dtype=numpy.float32))
b = cl.array.to_device(queue, numpy.ones(50000, dtype=numpy.float32))
for _ in range(50):
    a = a + b
print(a.get()[:3], bool((a.get() == numpy.arange(50000) + 50).all()))
source = "kernel void square(global float *a) { a[get_global_id(0)] *= a[get_global_id(0)]; }"
square = cl.Kernel(cl.Program(context, source).build(), "square")
square(queue, (50000,), None, a.data).wait()
out = numpy.empty(50000, numpy.float32)
cl.enqueue_copy(queue, out, a.data)
print(out[:3])
import sys
print("ready", flush=True)
sys.stdin.readline()
"#;

#[test]
fn pyopencl_works_and_is_scheduled() {
    let _cpu = exclusive_cpu();
    if programs().is_none() {
        return;
    }
    let Some(python) = python_with_pyopencl() else {
        return skip("pyopencl is not installed (scripts/test does it, or set XSCHED_TEST_PYTHON)");
    };
    let env = TestEnvironment::with_service();
    let script = env.file("script.py", PYTHON);
    let command = [&*python, &*script];
    let output = assert_same(&env, &command, &[]);
    assert!(output.starts_with("[50. 51. 52.] True\n[2500. 2601. 2704.]\n"), "{output}");
    let program = TestProgram::spawn(env.run(&["--name", "python"], &command));
    while program.next_line() != "ready" {}
    let tasks = env.status().tasks;
    assert!(tasks.iter().any(|task| task.name == "python"), "not scheduled: {tasks:?}");
}

/// A Python with `pyopencl`: the interpreter in `XSCHED_TEST_PYTHON`, or the virtual environment of `scripts/test`.
fn python_with_pyopencl() -> Option<String> {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/pyopencl/bin/python");
    let named = std::env::var_os("XSCHED_TEST_PYTHON").map(PathBuf::from);
    let python = named.or_else(|| default.is_file().then_some(default))?;
    let probe = Command::new(&python).args(["-c", "import pyopencl"]).output().ok()?;
    probe.status.success().then(|| python.display().to_string())
}

#[test]
fn doctor_reports_the_opencl_configuration() {
    let _cpu = exclusive_cpu();
    if programs().is_none() {
        return;
    }
    let env = TestEnvironment::without_service();
    let doctor = |name: &str, value: &str| {
        let output = env.xsched(&["doctor"]).env(name, value).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let report = doctor("XSCHED_OPENCL_LIB", "/no/such/library.so");
    assert!(report.contains("XSCHED_OPENCL_LIB"), "{report}");
    assert!(report.contains("/no/such/library.so"), "{report}");
    let report = doctor("OCL_ICD_VENDORS", "/no/such/place");
    assert!(report.contains("/no/such/place"), "{report}");
}

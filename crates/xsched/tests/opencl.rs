//! OpenCL programs with real processes on whatever OpenCL this machine has: in CI that is `PoCL`, which runs kernels on
//! the processor, with real queues and real data.
//!
//! The programs are in C and in Python; they know nothing of XSched.

#[allow(dead_code, reason = "the other tests with actors use the rest")]
mod actor;
#[allow(dead_code, reason = "the other tests that measure use the rest")]
mod measured;
#[allow(dead_code, reason = "the other tests on this stage use the rest")]
mod opencl_stage;
#[allow(dead_code, reason = "the other tests on this stage use the rest")]
mod stage;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use actor::Actor;
use measured::{claim, measured_on_the_processor};
use opencl_stage::{QUIET, alone, assert_same, leave_out, programs};
use stage::{Stage, eventually};
use xsched_core::{DeviceId, DeviceKind};
use xsched_ipc::protocol::{HintRequest, Reply, Request, Target, TaskState};

#[test]
fn programs_do_the_same_linked_and_opened() {
    let _alone = alone();
    let Some(programs) = programs() else { return };
    let stage = Stage::with_service();
    for name in ["cl_compute", "cl_compute_opened"] {
        let said = assert_same(&stage, &[&programs.path(name), "9"], &[]);
        assert_eq!(said.matches("right").count(), 9, "{said}");
    }
    assert_eq!(assert_same(&stage, &[&programs.path("cl_graph"), "3"], &[]).lines().count(), 4);
}

#[test]
fn errors_are_opencls_own() {
    let _alone = alone();
    let Some(programs) = programs() else { return };
    let stage = Stage::with_service();
    let errors = programs.path("cl_errors");
    let said = assert_same(&stage, &[&errors], &[]);
    assert!(said.starts_with("no queue: -36\n"), "{said}");
    // Here OpenCL's loader and the program look for the same name, in different libraries.
    assert_eq!(assert_same(&stage, &[&programs.path("cl_errors_opened")], &[]), said);
    // Nowhere to be found: `CL_PLATFORM_NOT_FOUND_KHR`.
    let nowhere = [("OCL_ICD_VENDORS", "/no/such/place"), ("XSCHED_OPENCL_LIB", "/no/such/library.so")];
    assert_eq!(assert_same(&stage, &[&errors], &nowhere), "no platform: error -1001\n");
    assert_eq!(assert_same(&stage, &[&errors], &nowhere[1..]), said, "the variable is of no consequence");
}

#[test]
fn every_way_to_a_queue_is_scheduled_on_one_device() {
    let _alone = alone();
    let Some(programs) = programs() else { return };
    let stage = Stage::with_service();
    let mut devices = Vec::new();
    for (name, queues) in [("cl_compute", 3), ("cl_compute_opened", 3), ("cl_requests", 1)] {
        let arguments = [&programs.path(name), "100000", "1", "1000", "0"];
        let program = Actor::enter(stage.run(&["--name", name], &arguments));
        program.line();
        let its_task = || stage.status().tasks.into_iter().find(|task| task.name == name);
        eventually("it is scheduled", || its_task().is_some_and(|task| task.queues == queues));
        devices.extend(its_task().map(|task| task.device));
    }
    assert!(devices.iter().all(|device| *device == devices[0]), "{devices:?}");
    println!("the device is {}", DeviceId(devices[0]));
    if clinfo(&stage, "-l").is_some_and(|list| list.contains("Portable Computing Language")) {
        assert_eq!(devices[0] >> 32, DeviceKind::Cpu as u64);
    }
}

#[test]
fn results_are_right_under_random_suspends_and_resumes() {
    let _alone = alone();
    let Some(programs) = programs() else { return };
    let stage = Stage::with_service();
    for (processes, rounds) in [(2, "200"), (8, "60")] {
        let program = [&*programs.path("cl_compute"), rounds];
        let actors: Vec<_> = (0..processes)
            .map(|n| {
                let priority = ["low", "normal", "high"][n % 3];
                Actor::enter(stage.run(&["--priority", priority], &program))
            })
            .collect();
        let mut dice = 7_u32;
        let mut suspended = 0;
        eventually("one of them has begun", || !stage.status().tasks.is_empty());
        let end = Instant::now() + Duration::from_millis(2500);
        while Instant::now() < end {
            dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let whom = Target::Pid(actors[(dice >> 8) as usize % processes].child.id());
            let request = if dice >> 31 == 0 { Request::Suspend(whom) } else { Request::Resume(whom) };
            // One that has not begun or has ended cannot be suspended.
            suspended += usize::from(stage.ask(&request) == Reply::Done && dice >> 31 == 0);
            std::thread::sleep(Duration::from_micros(u64::from(dice >> 16 & 0x7ff)));
        }
        for actor in &actors {
            stage.ask(&Request::Resume(Target::Pid(actor.child.id())));
        }
        for actor in actors {
            let said = actor.rest();
            assert!(said.len().to_string() == rounds && said.iter().all(|line| line.ends_with("right")));
        }
        println!("{processes} processes, suspended {suspended} times");
        assert!(suspended > 20, "too quick to mean anything: {suspended}");
    }
}

#[test]
fn queues_of_different_importance_that_wait_for_each_other_do_not_get_stuck() {
    let _alone = alone();
    let Some(programs) = programs() else { return };
    let stage = Stage::with_service();
    // Beside something that keeps every queue's account going.
    let busy = [&*programs.path("cl_requests"), "100000", "5", "1000", "2"];
    let _other = Actor::enter(stage.run(&["--name", "other"], &busy));
    for important in 0..3 {
        let graph = [&*programs.path("cl_graph"), "-w", "3"];
        let mut program = Actor::enter(stage.run(&["--name", "graph"], &graph));
        assert_eq!(program.line(), "ready");
        let pid = program.child.id();
        let its_queues = || stage.status().queues.into_iter().filter(|queue| queue.pid == pid);
        eventually("its queues are known", || its_queues().count() == 3);
        for (n, queue) in its_queues().enumerate() {
            let priority = Some(if n == important { 100 } else { -100 });
            let hint_request = HintRequest { priority, ..HintRequest::default() };
            assert_eq!(stage.ask(&Request::SetQueue { queue: queue.handle, hint_request }), Reply::Done);
        }
        program.child.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert_eq!(program.rest(), ["round 0", "round 1", "round 2"]);
    }
}

#[test]
fn a_missing_level_is_refused_with_the_reason_and_the_program_runs() {
    let _alone = alone();
    let Some(programs) = programs() else { return };
    let stage = Stage::with_service();
    let program = [&*programs.path("cl_compute"), "3"];
    let output = stage.run(&["--level", "3"], &program).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("not 3:"), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).matches("right").count(), 3);
}

/// Requests of 20 kernels of a millisecond or so each.
const REQUESTS: [&str; 4] = ["40", "20", "10000", "20"];
/// A tenth of that each, without an end. On two cores three such programs leave a fourth a quarter of the machine.
const BATCH: [&str; 4] = ["1000000", "200", "1000", "0"];
const BATCHES: usize = 3;

/// How long requests took, in microseconds, the shortest first.
fn latencies(program: Actor) -> Vec<u64> {
    let mut all: Vec<u64> = program.rest().iter().filter_map(|line| line.parse().ok()).collect();
    assert_eq!(all.len(), 40, "requests");
    all.sort_unstable();
    all
}

#[test]
fn requests_take_as_long_beside_batches_as_alone() {
    let _alone = alone();
    let Some(programs) = programs() else { return };
    let program = programs.path("cl_requests");
    let command = |arguments: [&'static str; 4]| [&[&*program], &arguments[..]].concat();
    let (requests, batch) = (command(REQUESTS), command(BATCH));

    let (native_stage, stage) = (Stage::without_service(), Stage::with_service());
    let begun = |batch: Actor| {
        assert_eq!(batch.line(), "ready");
        batch
    };
    measured_on_the_processor(|| {
        let alone = latencies(Actor::enter(native_stage.direct(&requests)));
        let native = {
            let _batches: Vec<_> =
                (0..BATCHES).map(|_| begun(Actor::enter(native_stage.direct(&batch)))).collect();
            latencies(Actor::enter(native_stage.direct(&requests)))
        };
        let scheduled = {
            let low = || begun(Actor::enter(stage.run(&["--priority", "low"], &batch)));
            let mut batches: Vec<_> = (0..BATCHES).map(|_| low()).collect();
            let latencies = latencies(Actor::enter(stage.run(&["--priority", "high"], &requests)));
            // They get the rest.
            for batch in &mut batches {
                batch.line();
            }
            latencies
        };
        for (name, all) in [("alone", &alone), ("native", &native), ("scheduled", &scheduled)] {
            println!("{name:>9}: p50 {:>6} us, p90 {:>6} us, longest {:>6} us", all[20], all[36], all[39]);
        }
        // The middle, not the end of the distribution: this machine may be busy with something else.
        let [alone, native, scheduled] = [&alone, &native, &scheduled].map(|all| all[20]);
        let told = || format!("alone {alone} us, native {native} us, scheduled {scheduled} us");
        claim(native > 2 * alone, || format!("the batches do no harm: {}", told()))?;
        claim(2 * scheduled < alone + native, || format!("no better: {}", told()))?;
        claim(10 * scheduled <= 15 * alone, told)
    });
}

/// How long a request took if nothing came between, and how much of the processor's time the cheapest tenth took, for that
/// clock goes wrong now and then: in microseconds.
fn least(measured: &[(u64, u64)]) -> (u64, u64) {
    let sorted = |of: fn(&(u64, u64)) -> u64| {
        let mut all: Vec<_> = measured.iter().map(of).collect();
        all.sort_unstable();
        all
    };
    (sorted(|both| both.0)[0], sorted(|both| both.1)[measured.len() / 10])
}

#[test]
fn being_scheduled_alone_costs_next_to_nothing() {
    let _alone = alone();
    let Some(programs) = programs() else { return };
    let stage = Stage::with_service();
    let program = [&*programs.path("cl_requests"), "20", "50", "1000", "0", "cost"];
    let requests = |mut command: Command| -> Vec<(u64, u64)> {
        // With one thread for its kernels it does not matter how many cores are free.
        command.env("POCL_MAX_PTHREAD_COUNT", "1");
        let said = Actor::enter(command).rest();
        let both =
            |line: &String| line.split_once(' ').map(|(a, b)| (a.parse().unwrap(), b.parse().unwrap()));
        said.iter().filter_map(both).collect()
    };
    measured_on_the_processor(|| {
        let (mut direct, mut scheduled) = (Vec::new(), Vec::new());
        // In turns, so that both see the machine at its quietest.
        for _ in 0..8 {
            direct.extend(requests(stage.direct(&program)));
            scheduled.extend(requests(stage.run(&[], &program)));
        }
        let ((took, spent), (took_scheduled, spent_scheduled)) = (least(&direct), least(&scheduled));
        let told = format!(
            "50 kernels: {took} us direct, {took_scheduled} us scheduled; of the processor's time {spent} us and {spent_scheduled} us"
        );
        println!("{told}");
        claim(100 * spent_scheduled <= 110 * spent && 100 * took_scheduled <= 120 * took, || told)
    });
}

#[test]
fn a_program_held_by_a_person_stays_held_and_goes_on() {
    let _alone = alone();
    let Some(programs) = programs() else { return };
    let stage = Stage::with_service();
    let forever = [&*programs.path("cl_requests"), "1000000", "1", "100", "0"];
    let program = Actor::enter(stage.run(&["--name", "steps"], &forever));
    program.line();
    let whom = Target::Pid(program.child.id());
    assert_eq!(stage.ask(&Request::Suspend(whom.clone())), Reply::Done);
    let its_state = || stage.status().tasks.first().map(|task| task.state);
    eventually("it is suspended", || its_state() == Some(TaskState::Suspended));
    while program.lines.recv_timeout(QUIET).is_ok() {}
    assert_eq!(program.lines.try_recv(), Err(TryRecvError::Empty), "it ended");
    assert_eq!(stage.ask(&Request::Resume(whom)), Reply::Done);
    for _ in 0..20 {
        program.line();
    }
}

#[test]
fn command_buffers_are_held_like_kernels_and_compute_what_they_should() {
    let _alone = alone();
    let Some(programs) = programs() else { return };
    let stage = Stage::with_service();
    for (name, named) in [("cl_recorded", "1"), ("cl_recorded_opened", "0")] {
        let program = programs.path(name);
        let said = assert_same(&stage, &[&program, "6", "0", named], &[]);
        if said.starts_with("no cl") {
            return leave_out("this OpenCL has no command buffers");
        }
        assert!(said.contains("round 5\nright\n"), "{said}");

        // At level 1, where nothing but the gate holds it: what it waits for while it is held is done.
        let program = Actor::enter(stage.run(&["--level", "1"], &[&program, "400", "2", named]));
        while program.line() != "round 1" {}
        let whom = Target::Pid(program.child.id());
        assert_eq!(stage.ask(&Request::Suspend(whom.clone())), Reply::Done);
        // Reading the data at its end would be held too.
        while let Ok(line) = program.lines.recv_timeout(QUIET) {
            assert_ne!(line, "round 399", "it went on to its end");
        }
        assert_eq!(stage.status().tasks.first().map(|task| task.state), Some(TaskState::Suspended));
        assert_eq!(stage.ask(&Request::Resume(whom)), Reply::Done);
        assert!(program.rest().contains(&"right".to_owned()));
    }
}

/// What `clinfo` says under the scheduler, which must be what it says without; none if it is not here.
fn clinfo(stage: &Stage, option: &str) -> Option<String> {
    Command::new("clinfo").arg("-l").output().ok()?;
    Some(assert_same(stage, &["clinfo", option], &[]))
}

#[test]
fn clinfo_prints_the_same() {
    let _alone = alone();
    if programs().is_none() {
        return;
    }
    let stage = Stage::with_service();
    match clinfo(&stage, "--raw") {
        Some(said) => assert!(said.contains("CL_DEVICE_NAME"), "{said}"),
        None => leave_out("clinfo is not installed"),
    }
}

/// As a user of `pyopencl` writes it, with what is in its package doing the work.
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
    let _alone = alone();
    if programs().is_none() {
        return;
    }
    let Some(python) = python_with_pyopencl() else {
        return leave_out("pyopencl is not installed (scripts/test does it, or set XSCHED_TEST_PYTHON)");
    };
    let stage = Stage::with_service();
    let script = stage.file("script.py", PYTHON);
    let command = [&*python, &*script];
    let said = assert_same(&stage, &command, &[]);
    assert!(said.starts_with("[50. 51. 52.] True\n[2500. 2601. 2704.]\n"), "{said}");
    let program = Actor::enter(stage.run(&["--name", "python"], &command));
    while program.line() != "ready" {}
    let tasks = stage.status().tasks;
    assert!(tasks.iter().any(|task| task.name == "python"), "it has a library of its own: {tasks:?}");
}

/// A Python that has `pyopencl`: the one that is named, else the one that `scripts/test` has made.
fn python_with_pyopencl() -> Option<String> {
    let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/pyopencl/bin/python");
    let named = std::env::var_os("XSCHED_TEST_PYTHON").map(PathBuf::from);
    let python = named.or_else(|| made.is_file().then_some(made))?;
    let tried = Command::new(&python).args(["-c", "import pyopencl"]).output().ok()?;
    tried.status.success().then(|| python.display().to_string())
}

#[test]
fn the_doctor_says_what_opencl_there_is() {
    let _alone = alone();
    if programs().is_none() {
        return;
    }
    let stage = Stage::without_service();
    let doctor = |name: &str, value: &str| {
        let output = stage.xsched(&["doctor"]).env(name, value).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = doctor("XSCHED_OPENCL_LIB", "/no/such/library.so");
    assert!(said.contains("XSCHED_OPENCL_LIB"), "{said}");
    assert!(said.contains("/no/such/library.so"), "{said}");
    let said = doctor("OCL_ICD_VENDORS", "/no/such/place");
    assert!(said.contains("/no/such/place"), "{said}");
}

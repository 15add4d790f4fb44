//! The C interface with a service, and under load.

#[allow(dead_code, reason = "the other tests of the C interface use the rest")]
mod c_program;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod cuda_machine;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod skipped;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use c_program::{LibraryOrder, build, libraries, printed, try_build};
use cuda_machine::CudaMachine;
use environment::{TestEnvironment, wait_until};
use skipped::skip;
use xsched_ipc::protocol::QueueStatus;

/// A program that does a round of work for each line of its input.
struct HintedProgram {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl HintedProgram {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(output.next().unwrap().unwrap(), "ready");
        Self { child, input, output }
    }

    /// Runs one round. Returns what it printed.
    fn run_round(&mut self) -> String {
        self.input.as_mut().unwrap().write_all(b"\n").unwrap();
        self.output.next().unwrap().unwrap()
    }

    fn expect_success(mut self) {
        drop(self.input.take());
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

/// Whether the service has one queue, in a task of its own with a priority of 7.
fn has_its_hint(env: &TestEnvironment) -> bool {
    let status = env.status();
    let [queue] = &status.queues[..] else { return false };
    status.tasks.iter().any(|task| task.task == queue.task && task.own && task.priority == 7)
}

#[test]
fn hints_reach_the_service_and_its_successor() {
    let mut env = TestEnvironment::with_service();
    let program = build(&env, "served.c", LibraryOrder::XschedFirst);
    let mut hinted = HintedProgram::start(env.direct(&[program.to_str().unwrap(), "global"]));
    assert!(has_its_hint(&env), "the hint is in force when the function returns: {:?}", env.status());
    assert_eq!(hinted.run_round(), "10");
    env.kill_service();
    assert_eq!(hinted.run_round(), "20", "the program runs without a service");
    env.start_service();
    wait_until("the hint reaches the new service", || has_its_hint(&env));
    assert_eq!(hinted.run_round(), "30");
    hinted.expect_success();
}

#[test]
fn hint_takes_effect_before_the_next_launch() {
    let env = TestEnvironment::with_service();
    let program = build(&env, "at_once.c", LibraryOrder::XschedFirst);
    let at_once =
        |low: &str| printed(&mut env.direct(&["timeout", "120", program.to_str().unwrap(), "30", low]));
    assert_eq!(at_once("-256"), "90\n", "a priority below every other");
    // Endless commands of programs with a priority between -10 and 10. Two of them, because a task alone is not tracked.
    let mut busy = [(); 2].map(|()| env.spawn(env.run(&[], &["work", "1", "1", "600000000"])));
    let are_busy = |queues: &[QueueStatus]| queues.len() == 2 && queues.iter().all(|queue| queue.ready);
    wait_until("both programs are busy", || are_busy(&env.status().queues));
    assert_eq!(at_once("-10"), "90\n", "a lower priority than the busy programs");
    for program in &mut busy {
        program.kill().unwrap();
        program.wait().unwrap();
    }
}

#[test]
fn stopped_service_is_waited_for_only_once() {
    let env = TestEnvironment::with_service();
    let program = build(&env, "served.c", LibraryOrder::XschedFirst);
    let mut hinted = HintedProgram::start(env.direct(&[program.to_str().unwrap(), "global", "hints"]));
    rustix::process::kill_process(env.service(), rustix::process::Signal::STOP).unwrap();
    let duration = |program: &mut HintedProgram| {
        let started = std::time::Instant::now();
        assert_eq!(program.run_round(), "rejected");
        started.elapsed()
    };
    let (first, second) = (duration(&mut hinted), duration(&mut hinted));
    assert!(second * 4 < first, "{first:?}, then {second:?}");
    rustix::process::kill_process(env.service(), rustix::process::Signal::CONT).unwrap();
    wait_until("the service accepts hints again", || hinted.run_round() == "accepted");
    hinted.expect_success();
}

#[test]
fn scheduled_queue_is_not_scheduled_twice() {
    let env = TestEnvironment::with_service();
    let program = build(&env, "served.c", LibraryOrder::VendorFirst);
    let mut hinted = HintedProgram::start(env.preloaded(&[program.to_str().unwrap(), "adopted"]));
    assert!(has_its_hint(&env), "{:?}", env.status());
    assert_eq!(hinted.run_round(), "10");
    hinted.expect_success();
}

#[test]
fn stream_of_a_driver_opened_by_the_program_can_be_used() {
    let machine = CudaMachine::new(TestEnvironment::without_service());
    let env = &machine.env;
    for first in [LibraryOrder::XschedFirst, LibraryOrder::VendorFirst] {
        let program = build(env, "cuda.c", first);
        let driver = cuda_machine::driver();
        let mut command = env.direct(&[program.to_str().unwrap(), driver.to_str().unwrap()]);
        let output = printed(command.env("XSCHED_STANDIN_CUDA", machine.device()));
        assert_eq!(output, "100 launched\n");
    }
}

#[test]
fn opencl_queue_can_be_used() {
    let env = TestEnvironment::without_service();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/capi/opencl.c");
    let Ok(program) =
        try_build(&env, &source, LibraryOrder::XschedFirst, &["-Wl,--no-as-needed", "-lOpenCL"])
    else {
        return skip("no OpenCL to compile with (Debian: ocl-icd-opencl-dev)");
    };
    let output = env.direct(&[program.to_str().unwrap()]).output().unwrap();
    if output.status.code() == Some(3) {
        return skip("no OpenCL device (Debian: pocl-opencl-icd)");
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "correct\n", "{errors}");
}

/// Makes random calls from 8 threads, under a sanitizer if the compiler has it. The sanitizer checks the program and every
/// allocation and release, but not the reads and writes of the library.
fn make_random_calls(sanitizer: Option<&str>) {
    let env = TestEnvironment::without_service();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/capi/random.c");
    let flag = sanitizer.map(|name| format!("-fsanitize={name}"));
    let more: Vec<_> = ["-std=gnu11"].into_iter().chain(flag.as_deref()).collect();
    let program = match (try_build(&env, &source, LibraryOrder::XschedFirst, &more), sanitizer) {
        (Ok(program), _) => program,
        (Err(_), Some(name)) => {
            return skip(&format!("the compiler has no {name} sanitizer"));
        }
        (Err(output), None) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
    };
    let suppressions = libraries(&env).join("suppressions");
    // The thread sanitizer does not know Rust's locks, so it would report races inside the library.
    std::fs::write(&suppressions, "called_from_lib:libxsched.so\ncalled_from_lib:libxsim.so\n").unwrap();
    let mut command = env.direct(&["timeout", "300", program.to_str().unwrap(), "100000", "8", "1"]);
    command.env("TSAN_OPTIONS", format!("suppressions={}", suppressions.display()));
    let output = printed(&mut command);
    let counts: Vec<u64> = output.lines().filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
    // Valid and invalid calls have both been made.
    assert!(counts[0] > 10_000 && counts[2] > 1_000 && counts[3] > 1_000 && counts[4] > 100, "{output}");
}

#[test]
fn random_calls_do_not_crash() {
    make_random_calls(None);
}

#[test]
fn random_calls_do_not_crash_under_the_address_sanitizer() {
    make_random_calls(Some("address"));
}

#[test]
fn random_calls_do_not_crash_under_the_thread_sanitizer() {
    make_random_calls(Some("thread"));
}

#[test]
fn memory_use_is_constant_over_a_million_commands() {
    let env = TestEnvironment::without_service();
    let program = build(&env, "many.c", LibraryOrder::XschedFirst);
    let output = printed(&mut env.direct(&[program.to_str().unwrap(), "1000000", "4"]));
    println!("a million commands through four queues:\n{output}");
    let figure = |name: &str| -> u64 {
        output.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap()
    };
    let (before, after) = (figure("before"), figure("after"));
    // A leak of a few bytes per command would be many megabytes. The allocator itself may keep some memory.
    assert!(after < before + 4096, "{before} KiB became {after} KiB");
}

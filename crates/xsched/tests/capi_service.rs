//! The C interface beside the service, and under load.

#[allow(dead_code, reason = "the other tests of the C interface use the rest")]
mod cprogram;
#[allow(dead_code, reason = "the other tests on this machine use the rest")]
mod machine;
#[allow(dead_code, reason = "the other tests on this stage use the rest")]
mod stage;

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use cprogram::{First, build, libraries, printed, try_build};
use machine::Machine;
use stage::{Stage, eventually};
use xsched_ipc::protocol::QueueStatus;

/// A program that works when it is told to.
struct Told {
    child: Child,
    to: Option<ChildStdin>,
    from: Lines<BufReader<ChildStdout>>,
}

impl Told {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let to = child.stdin.take();
        let mut from = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(from.next().unwrap().unwrap(), "ready");
        Self { child, to, from }
    }

    fn works(&mut self) -> String {
        self.to.as_mut().unwrap().write_all(b"\n").unwrap();
        self.from.next().unwrap().unwrap()
    }

    fn ends(mut self) {
        drop(self.to.take());
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

/// Whether the service has one queue, in a task of its own with a priority of 7.
fn has_its_hint(stage: &Stage) -> bool {
    let status = stage.status();
    let [queue] = &status.queues[..] else { return false };
    status.tasks.iter().any(|task| task.task == queue.task && task.own && task.priority == 7)
}

#[test]
fn hints_reach_the_service_and_the_one_that_comes_after_it() {
    let mut stage = Stage::with_service();
    let program = build(&stage, "served.c", First::Ours);
    let mut told = Told::start(stage.direct(&[program.to_str().unwrap(), "global"]));
    assert!(has_its_hint(&stage), "it counts when the function has returned: {:?}", stage.status());
    assert_eq!(told.works(), "10");
    stage.kill_service();
    assert_eq!(told.works(), "20", "without a service the program runs on");
    stage.start_service();
    eventually("the hint is told again", || has_its_hint(&stage));
    assert_eq!(told.works(), "30");
    told.ends();
}

#[test]
fn the_next_launch_obeys_a_hint_to_the_service() {
    let stage = Stage::with_service();
    let program = build(&stage, "at_once.c", First::Ours);
    let at_once =
        |low: &str| printed(&mut stage.direct(&["timeout", "120", program.to_str().unwrap(), "30", low]));
    assert_eq!(at_once("-256"), "90\n", "what does not run at all");
    // Commands that do not end, of programs that are more important than -10, and less than 10. What one does that is
    // alone is not counted.
    let mut busy = [(); 2].map(|()| stage.spawn(stage.run(&[], &["work", "1", "1", "600000000"])));
    let are_busy = |queues: &[QueueStatus]| queues.len() == 2 && queues.iter().all(|queue| queue.ready);
    eventually("the others are busy", || are_busy(&stage.status().queues));
    assert_eq!(at_once("-10"), "90\n", "what is less important");
    for other in &mut busy {
        other.kill().unwrap();
        other.wait().unwrap();
    }
}

#[test]
fn a_service_that_stands_still_is_waited_for_once() {
    let stage = Stage::with_service();
    let program = build(&stage, "served.c", First::Ours);
    let mut told = Told::start(stage.direct(&[program.to_str().unwrap(), "global", "hints"]));
    rustix::process::kill_process(stage.service(), rustix::process::Signal::STOP).unwrap();
    let took = |told: &mut Told| {
        let begun = std::time::Instant::now();
        assert_eq!(told.works(), "not heard");
        begun.elapsed()
    };
    let (first, second) = (took(&mut told), took(&mut told));
    assert!(second * 4 < first, "{first:?}, then {second:?}");
    rustix::process::kill_process(stage.service(), rustix::process::Signal::CONT).unwrap();
    eventually("the service is heard again", || told.works() == "heard");
    told.ends();
}

#[test]
fn a_queue_that_is_scheduled_already_is_not_scheduled_twice() {
    let stage = Stage::with_service();
    let program = build(&stage, "served.c", First::Vendors);
    let mut told = Told::start(stage.preloaded(&[program.to_str().unwrap(), "adopted"]));
    assert!(has_its_hint(&stage), "{:?}", stage.status());
    assert_eq!(told.works(), "10");
    told.ends();
}

#[test]
fn a_stream_of_a_driver_that_the_program_opened_itself_can_be_used() {
    let machine = Machine::new(Stage::without_service());
    let stage = &machine.stage;
    for first in [First::Ours, First::Vendors] {
        let program = build(stage, "cuda.c", first);
        let driver = machine::driver();
        let mut command = stage.direct(&[program.to_str().unwrap(), driver.to_str().unwrap()]);
        let output = printed(command.env("XSCHED_STANDIN_CUDA", machine.device()));
        assert_eq!(output, "100 launched\n");
    }
}

#[test]
fn an_opencl_queue_can_be_used() {
    let stage = Stage::without_service();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/capi/opencl.c");
    let Ok(program) = try_build(&stage, &source, First::Ours, &["-Wl,--no-as-needed", "-lOpenCL"]) else {
        assert!(std::env::var_os("CI").is_none(), "no OpenCL to compile with");
        println!("left out: no OpenCL to compile with (Debian: ocl-icd-opencl-dev)");
        return;
    };
    let output = stage.direct(&[program.to_str().unwrap()]).output().unwrap();
    if output.status.code() == Some(3) {
        assert!(std::env::var_os("CI").is_none(), "no OpenCL device");
        println!("left out: no OpenCL device (Debian: pocl-opencl-icd)");
        return;
    }
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "right\n", "{said}");
}

/// Random calls from 8 threads, checked by sanitizers where the compiler has them. They see the program and what passes
/// between it and the library: every allocation and release, but not the library's own reads and writes.
fn call_at_random(sanitizer: Option<&str>) {
    let stage = Stage::without_service();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/capi/random.c");
    let flag = sanitizer.map(|name| format!("-fsanitize={name}"));
    let more: Vec<_> = ["-std=gnu11"].into_iter().chain(flag.as_deref()).collect();
    let program = match (try_build(&stage, &source, First::Ours, &more), sanitizer) {
        (Ok(program), _) => program,
        (Err(_), Some(name)) => {
            eprintln!("the compiler has no {name} sanitizer: not checked");
            return;
        }
        (Err(output), None) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
    };
    let suppressions = libraries(&stage).join("suppressions");
    // Rust's locks are not among those it knows, so what happens inside looks unordered to it.
    std::fs::write(&suppressions, "called_from_lib:libxsched.so\ncalled_from_lib:libxsim.so\n").unwrap();
    let mut command = stage.direct(&["timeout", "300", program.to_str().unwrap(), "100000", "8", "1"]);
    command.env("TSAN_OPTIONS", format!("suppressions={}", suppressions.display()));
    let output = printed(&mut command);
    let counts: Vec<u64> = output.lines().filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
    // Both what works and what does not has been tried.
    assert!(counts[0] > 10_000 && counts[2] > 1_000 && counts[3] > 1_000 && counts[4] > 100, "{output}");
}

#[test]
fn a_hundred_thousand_random_calls_do_no_harm() {
    call_at_random(None);
}

#[test]
fn a_hundred_thousand_random_calls_do_no_harm_under_the_address_sanitizer() {
    call_at_random(Some("address"));
}

#[test]
fn a_hundred_thousand_random_calls_do_no_harm_under_the_thread_sanitizer() {
    call_at_random(Some("thread"));
}

#[test]
fn a_million_commands_through_four_queues_leave_memory_as_it_was() {
    let stage = Stage::without_service();
    let program = build(&stage, "many.c", First::Ours);
    let output = printed(&mut stage.direct(&[program.to_str().unwrap(), "1000000", "4"]));
    println!("a million commands through four queues:\n{output}");
    let figure = |name: &str| -> u64 {
        output.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap()
    };
    let (before, after) = (figure("before"), figure("after"));
    // 900,000 commands of a few bytes each would be many megabytes. What the allocator keeps is not theirs.
    assert!(after < before + 4096, "{before} KiB became {after} KiB");
}

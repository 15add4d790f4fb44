//! Copies and fills of memory in HIP programs, on the stand-ins for AMD's runtime and driver.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod hip_environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use environment::{TestEnvironment, wait_until};
use hip_environment::{HipEnvironment, stdout_of};
use test_program::TestProgram;
use xsched_ipc::protocol::TaskState;

const HIGH_PRIORITY: [&str; 4] = ["--priority", "high", "--name", "high"];
const LOW_PRIORITY: [&str; 4] = ["--priority", "low", "--name", "low"];

#[test]
fn copies_and_fills_have_the_same_effect_as_unscheduled() {
    for table in [true, false] {
        let mut hip = HipEnvironment::new(TestEnvironment::with_service());
        if !table {
            hip = hip.with("HIP_STANDIN_NO_REGISTER", "1");
        }
        // 1.2 ms of work every 5 ms: a program of lower priority is held and resumed all the time.
        let load = ["linked", "requests", "100000", "6", "200", "5"];
        let _load = TestProgram::spawn(hip.run(&["--name", "load"], &load));
        for program in ["linked", "opened", "looked_up", "by_version"] {
            let direct = stdout_of(hip.direct(&[program, "memory"]));
            assert!(
                direct.contains("2 nodes, error 1, last error 1\nat the end: 320, last error 0\n"),
                "{direct}"
            );
            for priority in ["high", "-100"] {
                let scheduled = stdout_of(hip.run(&["--priority", priority], &[program, "memory"]));
                assert_eq!(scheduled, direct, "{program}, {priority}, by table: {table}");
            }
        }
    }
}

/// Starts a program that repeats one operation, and one of higher priority that is never idle. Returns the first, and a
/// function that counts its operations.
fn start_beside_leader(
    hip: &HipEnvironment,
    operation: &str,
) -> (TestProgram, TestProgram, impl Fn() -> usize) {
    let log = hip.env.file("operations", "");
    let mut command = hip.run(&LOW_PRIORITY, &["linked", "memory", operation]);
    command.env("HIP_STANDIN_LOG", &log);
    let low = TestProgram::spawn(command);
    let task = || hip.env.status().tasks.into_iter().find(|task| task.name == "low");
    wait_until("the program is scheduled", || task().is_some());
    // Busy for 60 s without an idle gap.
    let high = TestProgram::spawn(hip.run(&HIGH_PRIORITY, &["opened", "work", "1", "3000", "20000"]));
    (low, high, move || std::fs::read_to_string(&log).unwrap().lines().count())
}

#[test]
fn programs_that_only_copy_or_fill_are_held() {
    let operations = [
        "memset",
        "memset-default",
        "memset-32",
        "memset-2d",
        "memset-3d",
        "copy-device",
        "copy-driver",
        "copy-small",
        "copy-2d",
        "copy-wait",
        "copy-default",
    ];
    for operation in operations {
        let hip = HipEnvironment::new(TestEnvironment::with_service());
        let (_low, high, count) = start_beside_leader(&hip, operation);
        let is_held = || {
            let tasks = hip.env.status().tasks;
            tasks.iter().any(|task| task.name == "low" && task.state == TaskState::Held)
        };
        wait_until("the program is held", is_held);
        wait_until("no operation reaches the runtime", || {
            let before = count();
            // As long as another program needs to start and run.
            stdout_of(hip.direct(&["linked", "work", "1", "3", "100"]));
            count() == before
        });
        drop(high);
        let before = count();
        wait_until("the program resumes", || count() > before);
    }
}

#[test]
fn copies_by_a_copy_engine_are_not_held() {
    let hip = HipEnvironment::new(TestEnvironment::with_service());
    let (low, _high, count) = start_beside_leader(&hip, "copy-large");
    // While its order stops it, a program that launches would be held.
    let is_stopped = || {
        let queues = hip.env.status().queues;
        let mut queues = queues.iter().filter(|queue| queue.pid == low.pid()).peekable();
        queues.peek().is_some() && queues.all(|queue| queue.suspended)
    };
    wait_until("the order stops the program", is_stopped);
    let before = count();
    wait_until("the program copies on", || count() >= before + 40);
    assert!(is_stopped(), "the leader is busy for 60 s");
}

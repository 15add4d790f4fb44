//! The main use of the scheduler: a program that serves requests beside a program that keeps the device busy.
//!
//! Two C programs without any XSched code, the real `xsched run`, the real service, one simulated device.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod measured;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use environment::{TestEnvironment, wait_until};
use measured::{percentile, print_latencies, require, retry_comparison};
use rustix::process::{Pid, Signal, kill_process};
use test_program::TestProgram;
use xsched_ipc::protocol::TaskState;

/// 8 ms of work every 20 ms.
const REQUESTS: [&str; 5] = ["requests", "80", "8", "1000", "20"];
/// Work for two minutes without idle gaps.
const BATCH: [&str; 4] = ["work", "1200", "50", "2000"];
/// The same in steps of one command, each of which prints a line.
const STEPS: [&str; 4] = ["work", "100000", "1", "2000"];

const HIGH_PRIORITY: [&str; 4] = ["--priority", "high", "--name", "high"];
const LOW_PRIORITY: [&str; 4] = ["--priority", "low", "--name", "low"];

/// Many times the length of a step. A program that makes no step in this time is held.
const HELD_AFTER: Duration = Duration::from_millis(100);

fn has_state(env: &TestEnvironment, name: &str, expected: TaskState) -> bool {
    env.status().tasks.iter().any(|task| task.name == name && task.state == expected)
}

#[test]
fn request_latency_beside_a_batch_is_close_to_alone() {
    let measure = || {
        let alone = {
            let env = TestEnvironment::without_service();
            TestProgram::spawn(env.direct(&REQUESTS)).latencies()
        };
        let native = {
            let env = TestEnvironment::without_service();
            let batch = TestProgram::spawn(env.direct(&BATCH));
            batch.next_line();
            TestProgram::spawn(env.direct(&REQUESTS)).latencies()
        };
        let scheduled = {
            let env = TestEnvironment::with_service();
            let batch = TestProgram::spawn(env.run(&LOW_PRIORITY, &BATCH));
            batch.next_line();
            let latencies = TestProgram::spawn(env.run(&HIGH_PRIORITY, &REQUESTS)).latencies();
            // The batch gets the remaining device time.
            batch.next_line();
            latencies
        };
        print_latencies(&[("alone", &alone), ("native", &native), ("scheduled", &scheduled)]);
        [alone, native, scheduled]
    };
    retry_comparison(measure, |latencies| {
        // The median, not the tail: other tests may use the machine.
        let [alone, native, scheduled] = latencies.map(|latencies| percentile(&latencies, 50));
        let describe = || format!("alone {alone} us, native {native} us, scheduled {scheduled} us");
        require(2 * native > 3 * alone, || {
            format!("the batch does not slow native requests: {}", describe())
        })?;
        require(2 * scheduled < alone + native, || format!("scheduling gains too little: {}", describe()))?;
        require(10 * scheduled <= 13 * alone, describe)
    });
}

#[test]
fn killing_the_leader_resumes_the_held_program() {
    let env = TestEnvironment::with_service();
    let low = TestProgram::spawn(env.run(&LOW_PRIORITY, &STEPS));
    low.next_line();
    // Busy for 20 s without an idle gap.
    let mut high = TestProgram::spawn(env.run(&HIGH_PRIORITY, &["work", "1", "1000", "20000"]));
    wait_until("the program is held", || has_state(&env, "low", TaskState::Held));
    loop {
        match low.lines.recv_timeout(HELD_AFTER) {
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => break,
            Err(RecvTimeoutError::Disconnected) => panic!("the program exited"),
        }
    }
    let killed = Instant::now();
    high.kill();
    low.next_line();
    println!("{:?} from the kill to the completion of the next command of 2 ms", killed.elapsed());
    for _ in 0..20 {
        low.next_line();
    }
    wait_until("the service has removed the killed program", || {
        env.status().tasks.iter().all(|task| task.name == "low")
    });
}

#[test]
fn idle_program_stopped_by_a_signal_does_not_hold_the_background() {
    let env = TestEnvironment::with_service();
    let low = TestProgram::spawn(env.run(&LOW_PRIORITY, &STEPS));
    let high = TestProgram::spawn(env.run(&HIGH_PRIORITY, &["requests", "5", "8", "1000", "20"]));
    while high.next_line() != "idle" {}
    wait_until("the program is idle", || has_state(&env, "high", TaskState::Idle));
    let send = |signal| kill_process(Pid::from_child(&high.child), signal).unwrap();
    send(Signal::STOP);
    // Lines from before the signal do not count.
    low.lines.try_iter().for_each(drop);
    for _ in 0..100 {
        low.next_line();
    }
    assert!(has_state(&env, "high", TaskState::Idle), "{:?}", env.status().tasks);
    send(Signal::CONT);
}

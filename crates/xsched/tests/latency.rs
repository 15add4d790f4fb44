//! What the scheduler is for: a program that answers requests, beside one that would have the device to itself.
//!
//! Two programs in C that know nothing of XSched, the real `xsched run`, the real service, one simulated device.

#[allow(dead_code, reason = "the other tests with actors use the rest")]
mod actor;
#[allow(dead_code, reason = "the other tests that measure use the rest")]
mod measured;
#[allow(dead_code, reason = "the other tests on this stage use the rest")]
mod stage;

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use actor::Actor;
use measured::{claim, measured, percentile, tell};
use rustix::process::{Pid, Signal, kill_process};
use stage::{Stage, eventually};
use xsched_ipc::protocol::TaskState;

/// Eight milliseconds of work in every twenty.
const REQUESTS: [&str; 5] = ["requests", "80", "8", "1000", "20"];
/// Work for two minutes without a gap worth the name.
const BATCH: [&str; 4] = ["work", "1200", "50", "2000"];
/// The same in steps of one command, each of which can be seen.
const STEPS: [&str; 4] = ["work", "100000", "1", "2000"];

const IMPORTANT: [&str; 4] = ["--priority", "high", "--name", "high"];
const UNIMPORTANT: [&str; 4] = ["--priority", "low", "--name", "low"];

/// Many times the length of a step: who makes none in this time is held.
const QUIET: Duration = Duration::from_millis(100);

fn is(stage: &Stage, name: &str, expected: TaskState) -> bool {
    stage.status().tasks.iter().any(|task| task.name == name && task.state == expected)
}

#[test]
fn requests_take_as_long_beside_a_batch_as_alone() {
    measured(|| {
        let alone = {
            let stage = Stage::without_service();
            Actor::enter(stage.direct(&REQUESTS)).latencies()
        };
        let native = {
            let stage = Stage::without_service();
            let batch = Actor::enter(stage.direct(&BATCH));
            batch.line();
            Actor::enter(stage.direct(&REQUESTS)).latencies()
        };
        let scheduled = {
            let stage = Stage::with_service();
            let batch = Actor::enter(stage.run(&UNIMPORTANT, &BATCH));
            batch.line();
            let latencies = Actor::enter(stage.run(&IMPORTANT, &REQUESTS)).latencies();
            // It gets the rest.
            batch.line();
            latencies
        };
        tell(&[("alone", &alone), ("native", &native), ("scheduled", &scheduled)]);
        // The middle, not the end of the distribution: this machine may be busy with other tests.
        let [alone, native, scheduled] = [&alone, &native, &scheduled].map(|scene| percentile(scene, 50));
        let told = || format!("alone {alone} us, native {native} us, scheduled {scheduled} us");
        claim(2 * native > 3 * alone, || format!("the batch does no harm: {}", told()))?;
        claim(2 * scheduled < alone + native, || format!("no better: {}", told()))?;
        claim(10 * scheduled <= 13 * alone, told)?;
        Ok(())
    });
}

#[test]
fn whoever_is_held_for_a_program_that_is_killed_runs_on() {
    let stage = Stage::with_service();
    let low = Actor::enter(stage.run(&UNIMPORTANT, &STEPS));
    low.line();
    // Busy for twenty seconds without a gap.
    let mut high = Actor::enter(stage.run(&IMPORTANT, &["work", "1", "1000", "20000"]));
    eventually("it is held", || is(&stage, "low", TaskState::Held));
    loop {
        match low.lines.recv_timeout(QUIET) {
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => break,
            Err(RecvTimeoutError::Disconnected) => panic!("it ended"),
        }
    }
    let killed = Instant::now();
    high.kill();
    low.line();
    println!("{:?} from the kill to the end of the next command of 2 ms", killed.elapsed());
    for _ in 0..20 {
        low.line();
    }
    eventually("the killed one is forgotten", || stage.status().tasks.iter().all(|task| task.name == "low"));
}

#[test]
fn a_program_that_is_stopped_while_it_wants_nothing_holds_nobody() {
    let stage = Stage::with_service();
    let low = Actor::enter(stage.run(&UNIMPORTANT, &STEPS));
    let high = Actor::enter(stage.run(&IMPORTANT, &["requests", "5", "8", "1000", "20"]));
    while high.line() != "idle" {}
    eventually("it is idle", || is(&stage, "high", TaskState::Idle));
    let send = |signal| kill_process(Pid::from_child(&high.child), signal).unwrap();
    send(Signal::STOP);
    // What was done before it was stopped does not count.
    low.lines.try_iter().for_each(drop);
    for _ in 0..100 {
        low.line();
    }
    assert!(is(&stage, "high", TaskState::Idle), "{:?}", stage.status().tasks);
    send(Signal::CONT);
}

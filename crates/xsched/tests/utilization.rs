//! The utilization of a task that is alone on its device, whose launches are not counted.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod cuda_machine;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod hip_environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod measured;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod rocm_environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod skipped;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::time::Instant;

use cuda_machine::CudaMachine;
use environment::{TestEnvironment, wait_until};
use hip_environment::HipEnvironment;
use measured::{require, retry_comparison};
use rocm_environment::{Rocm, RocmEnvironment};
use serde_json::Value;
use test_program::TestProgram;
use xsched_ipc::protocol::TaskStatus;

/// 10 ms of work every 20 ms, for longer than the test.
const HALF_LOAD: [&str; 5] = ["requests", "100000", "10", "1000", "20"];
const SAMPLE: &str = "4s";

fn the_task(env: &TestEnvironment) -> Option<TaskStatus> {
    env.status().tasks.into_iter().next()
}

fn wait_until_sampled(env: &TestEnvironment) {
    wait_until("the task was sampled", || the_task(env).is_some_and(|task| task.sampled_ns.is_some()));
}

fn ps(env: &TestEnvironment, sample: &str) -> Value {
    let output = env.xsched(&["ps", "--json", "--sample", sample]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The utilization that is shown for a program, and the one that it has: it prints the microseconds from the launch of each
/// request to its completion.
fn shown_and_true_load(env: &TestEnvironment, program: &TestProgram) -> (f64, f64) {
    program.next_line();
    wait_until_sampled(env);
    program.lines.try_iter().for_each(drop);
    let began = Instant::now();
    let listing = ps(env, SAMPLE);
    let busy_us: f64 = program.lines.try_iter().map(|line| line.parse::<f64>().unwrap()).sum();
    let true_load = busy_us / 1e6 / began.elapsed().as_secs_f64();
    let task = &listing["tasks"][0];
    assert_eq!(task["launches"], 0, "launches of a task alone are not counted: {task}");
    assert_eq!(task["rates"]["is_sampled"], true, "{task}");
    (task["rates"]["utilization"].as_f64().unwrap(), true_load)
}

fn require_agreement((shown, true_load): (f64, f64)) -> Result<(), String> {
    println!("shown {shown:.3}, true {true_load:.3}");
    let ratio = shown / true_load;
    require((0.8..1.25).contains(&ratio), || format!("shown {shown:.3}, the program had {true_load:.3}"))
}

#[test]
fn task_alone_on_its_device_shows_the_load_that_it_has() {
    let measure = || {
        let env = TestEnvironment::with_service();
        let program = TestProgram::spawn(env.run(&["--name", "alone"], &HALF_LOAD));
        shown_and_true_load(&env, &program)
    };
    retry_comparison(measure, require_agreement);
}

#[test]
fn cuda_program_alone_on_its_gpu_shows_the_load_that_it_has() {
    // On a stream of its own, and on the default stream, which every other stream of the program waits for.
    for how in ["stream", "copy"] {
        let measure = || {
            let machine = CudaMachine::new(TestEnvironment::with_service());
            let program = ["foreground", how, "100000", "10", "1000", "10000"];
            let program = TestProgram::spawn(machine.run(&[], &program));
            shown_and_true_load(&machine.env, &program)
        };
        retry_comparison(measure, require_agreement);
    }
}

#[test]
fn hip_and_hsa_programs_alone_on_their_gpu_show_the_load_that_they_have() {
    for how in ["linked", "hsa"] {
        let measure = || {
            let hip = HipEnvironment::new(TestEnvironment::with_service());
            let program = TestProgram::spawn(hip.run(&[], &[&[how][..], &HALF_LOAD].concat()));
            shown_and_true_load(&hip.env, &program)
        };
        retry_comparison(measure, require_agreement);
    }
}

#[test]
fn program_with_amds_runtime_alone_on_its_gpu_shows_the_load_that_it_has() {
    for rocm in Rocm::ALL {
        let Some(hip) = RocmEnvironment::without_service(rocm) else { continue };
        let Some(program) = hip.compile("rocr_features.hip") else { continue };
        let measure = || {
            let hip = RocmEnvironment::with_service(rocm).expect("the root is there");
            // 10 ms of work, then 10 ms without.
            let words = [program.as_str(), "requests", "100000", "10", "1000", "10"];
            let program = TestProgram::spawn(hip.run(&[], &words));
            shown_and_true_load(&hip.env, &program)
        };
        retry_comparison(measure, require_agreement);
    }
}

#[test]
fn service_that_does_not_want_samples_gets_none() {
    let mut env = TestEnvironment::without_service();
    let config = env.file("config.toml", "[defaults]\nsample_utilization = false\n");
    env.start_service_with(&["--config", &config]);
    let program = TestProgram::spawn(env.run(&[], &HALF_LOAD));
    // More lines than there are samples in the same time.
    (0..100).for_each(|_| drop(program.next_line()));
    let task = the_task(&env).unwrap();
    assert_eq!(task.sampled_ns, None, "{task:?}");
    let text = env.xsched(&["ps", "--sample", "100ms"]).output().unwrap().stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains(" - "), "its utilization is not known: {text}");
}

#[test]
fn idle_task_alone_on_its_device_has_an_estimate_of_zero() {
    let env = TestEnvironment::with_service();
    let program = TestProgram::spawn(env.run(&[], &["requests", "1", "1", "1000", "1"]));
    while program.next_line() != "idle" {}
    wait_until_sampled(&env);
    // The first sample after it became idle adds the time since the one before.
    wait_until("its utilization is zero", || {
        let listing = ps(&env, "500ms");
        let task = &listing["tasks"][0];
        (&task["rates"]["utilization"], &task["state"]) == (&0.0.into(), &"idle".into())
    });
    let text = env.xsched(&["ps", "--sample", "100ms"]).output().unwrap().stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains(" ~0%"), "{text}");
}

#[test]
fn tasks_that_share_a_device_are_counted_and_not_sampled() {
    let env = TestEnvironment::with_service();
    let first = TestProgram::spawn(env.run(&["--name", "first"], &HALF_LOAD));
    let second = TestProgram::spawn(env.run(&["--name", "second"], &HALF_LOAD));
    first.next_line();
    second.next_line();
    wait_until("both are counted", || {
        let tasks = env.status().tasks;
        tasks.len() == 2 && tasks.iter().all(|task| task.launches > 0)
    });
    let listing = ps(&env, SAMPLE);
    for task in listing["tasks"].as_array().unwrap() {
        assert_eq!(task["rates"]["is_sampled"], false, "{task}");
        assert!(task["rates"]["utilization"].as_f64().unwrap() > 0.0, "{task}");
    }
}

//! The built-in loads of `xsched bench` on the stand-ins for NVIDIA's driver and AMD's runtime.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod cuda_machine;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod hip_environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::process::{Command, Stdio};

use cuda_machine::CudaMachine;
use environment::TestEnvironment;
use hip_environment::HipEnvironment;
use serde_json::Value;

/// The output of a command that succeeds.
fn output(mut command: Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The loads run as a benchmark runs them, and the built-in computation prints the same results with and without scheduling.
/// `in_machine` adds the variables of a machine to a command.
fn check_loads(env: &TestEnvironment, platform: &str, in_machine: &dyn Fn(Command) -> Command) {
    let overhead =
        ["bench", "overhead", "--platform", platform, "--launches", "20", "--repetitions", "1", "--json"];
    let results: Value = serde_json::from_str(&output(in_machine(env.xsched(&overhead)))).unwrap();
    let rows = results["rows"].as_array().unwrap();
    assert!(
        rows.len() == 4 && rows.iter().all(|row| row["launch_us"]["median"].as_f64() > Some(0.0)),
        "{results:#}"
    );

    let compute = |commands: &'static str| {
        let worker = [env!("CARGO_BIN_EXE_xsched"), "bench", "worker", "--platform", platform, "compute"];
        [&worker[..], &["--commands", commands, "--length-us", "100"]].concat()
    };
    let native = |commands| output(in_machine(env.xsched(&compute(commands)[1..])));
    let expected = native("40");
    assert!(expected.contains("checksum"), "{expected}");
    assert_ne!(native("41").split("checksum").last(), expected.split("checksum").last());
    assert_eq!(output(in_machine(env.run(&["--level", "1"], &compute("40")))), expected);
}

#[test]
fn cuda_loads_run_and_compute_the_same_results() {
    let machine = CudaMachine::new(TestEnvironment::with_service());
    check_loads(&machine.env, "cuda", &|command| machine.set_variables(command));
}

#[test]
fn hip_loads_run_and_compute_the_same_results() {
    let hip = HipEnvironment::new(TestEnvironment::with_service());
    check_loads(&hip.env, "hip", &|command| hip.set_variables(command));
}

#[test]
fn missing_gpu_is_named() {
    let hip = HipEnvironment::new(TestEnvironment::without_service()).with("HIP_STANDIN_DEVICES", "0");
    let mut bench = hip.set_variables(hip.env.xsched(&["bench", "overhead", "--platform", "hip"]));
    let output = bench.stdin(Stdio::null()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("no AMD GPU on this machine"), "{error}");
}

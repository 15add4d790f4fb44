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

/// The results of a benchmark.
fn results(mut bench: Command) -> Value {
    let output = bench.arg("--json").stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A figure of a program in each scene.
fn figures(results: &Value, program: &str, figure: &str) -> Vec<f64> {
    let rows = results["rows"].as_array().unwrap().iter();
    rows.filter(|row| row["program"] == program).filter_map(|row| row[figure]["median"].as_f64()).collect()
}

/// The computation is held and gives the same results at each level.
fn assert_verifies(results: &Value) {
    let different = figures(results, "program", "different_results");
    assert!(different.len() > 1 && different.iter().all(|different| *different == 0.0), "{results:#}");
    let holds = figures(results, "program", "holds");
    assert!(holds.iter().all(|holds| *holds > 0.0), "{results:#}");
}

#[test]
fn cuda_loads_run_and_compute_the_same_results() {
    let machine = CudaMachine::new(TestEnvironment::without_service());
    let bench = |words: &[&str]| {
        let words = [&["bench", words[0], "--platform", "cuda", "--repetitions", "1"], &words[1..]].concat();
        results(machine.set_variables(machine.env.xsched(&words)))
    };
    assert_verifies(&bench(&["verify"]));
}

#[test]
fn hip_loads_run_and_compute_the_same_results() {
    let hip = HipEnvironment::new(TestEnvironment::without_service());
    let bench = |words: &[&str]| {
        let words = [&["bench", words[0], "--platform", "hip", "--repetitions", "1"], &words[1..]].concat();
        results(hip.set_variables(hip.env.xsched(&words)))
    };
    assert_verifies(&bench(&["verify"]));
}

#[test]
fn missing_gpu_is_named() {
    let hip = HipEnvironment::new(TestEnvironment::without_service()).with("HIP_STANDIN_DEVICES", "0");
    let mut bench = hip.set_variables(hip.env.xsched(&["bench", "overhead", "--platform", "hip"]));
    let output = bench.stdin(Stdio::null()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("no AMD GPU on this machine"), "{error}");
}

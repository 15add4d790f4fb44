//! `xsched bench gpu-worker` on a machine without a GPU, with a driver library of the tests.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use environment::{TestEnvironment, wait_until};
use serde_json::Value;

const XSCHED: &str = env!("CARGO_BIN_EXE_xsched");

/// Builds the driver into a directory.
fn build(directory: &Path) {
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    // Like the vendor's driver, it calls its own functions even if a library is preloaded.
    compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-Wl,-Bsymbolic", "-o"]);
    compiler.arg(directory.join("libcuda.so.1"));
    compiler.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/gpu.c"));
    let output = compiler.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The worker with the driver in this directory.
fn worker(driver: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(XSCHED);
    command.args(["bench", "gpu-worker"]).args(arguments).env("LD_LIBRARY_PATH", driver).stdin(Stdio::null());
    command
}

/// The last line of a worker's output.
fn result(mut command: Command) -> Value {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

/// The output of the demo.
fn result_of(mut demo: Command) -> Value {
    let output = demo.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn missing_driver_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    // Hides a driver of the machine.
    std::fs::write(directory.path().join("libcuda.so.1"), "").unwrap();
    let output = worker(directory.path(), &["calibrate"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.starts_with("xsched: no NVIDIA driver on this machine: "), "{error}");
    assert!(error.contains("libcuda.so.1"), "{error}");
}

#[test]
fn kernels_have_the_requested_length() {
    let driver = tempfile::tempdir().unwrap();
    build(driver.path());
    let calibrated = result(worker(driver.path(), &["calibrate"]));
    assert_eq!(calibrated["gpu"], "GPU of the tests");
    assert_eq!(calibrated["cuda"], "13.0");
    let latency = |kernels: &str, more: &[&str]| {
        let common =
            ["latency", "--kernels", kernels, "--length-us", "3000", "--requests", "9", "--period-ms", "1"];
        let result = result(worker(driver.path(), &[&common, more].concat()));
        assert_eq!(result["n"], 9);
        assert_eq!(result["halves"].as_array().unwrap().len(), 2);
        assert!(result["p50_ms"].as_f64() <= result["max_ms"].as_f64(), "{result}");
        result["p50_ms"].as_f64().unwrap()
    };
    // Compared with each other, with room for a busy machine: both contain the host's time.
    let (one, ten) = (latency("1", &[]), latency("10", &[]));
    assert!(ten > 5.0 * one, "{one} ms for one kernel of 3 ms, {ten} ms for ten");
    // A program that waits for each kernel leaves the GPU idle in its pauses.
    let waited_for = latency("10", &["--gap-us", "2500", "--wait-each"]);
    assert!(waited_for > 1.3 * ten, "{ten} ms for ten kernels, {waited_for} ms with pauses between them");
}

#[test]
fn launches_of_every_length_are_measured() {
    let driver = tempfile::tempdir().unwrap();
    build(driver.path());
    let arguments = ["launch-cost", "--length-us", "0,200", "--launches", "50", "--repeat", "3"];
    let result = result(worker(driver.path(), &arguments));
    let lengths = result["lengths"].as_array().unwrap();
    assert_eq!(lengths.len(), 2);
    let median = |row: &Value, what: &str| row[what]["median"].as_f64().unwrap();
    assert!(median(&lengths[1], "end_to_end_us") > median(&lengths[0], "end_to_end_us"), "{result}");
    assert!(median(&lengths[1], "end_to_end_us") > median(&lengths[1], "host_us"), "{result}");
}

#[test]
fn load_is_scheduled_and_exits_at_end_of_input() {
    let env = TestEnvironment::with_service();
    let driver = tempfile::tempdir().unwrap();
    build(driver.path());
    let program = [XSCHED, "bench", "gpu-worker", "load", "--length-us", "500", "--report-ms", "20"];
    let mut command = env.run(&["--name", "load"], &program);
    command.env("LD_LIBRARY_PATH", driver.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let first: Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
    wait_until("the program is scheduled", || env.status().tasks.iter().any(|task| task.name == "load"));
    drop(child.stdin.take());
    let last: Value = serde_json::from_str(&lines.last().unwrap()).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(last["mode"], "load");
    assert!(last["kernels"].as_u64() > first["kernels"].as_u64(), "{first} {last}");
    assert!(last["gpu_ms_per_s"].as_f64().unwrap() > 0.0, "{last}");
}

#[test]
fn demo_uses_a_working_gpu() {
    // Builds the library that the demo preloads.
    let _env = TestEnvironment::without_service();
    let driver = tempfile::tempdir().unwrap();
    build(driver.path());
    let mut demo = Command::new(XSCHED);
    demo.args(["demo", "--json", "--no-html", "--requests", "10"]).env("LD_LIBRARY_PATH", driver.path());
    let results = result_of(demo);
    assert_eq!(results["device"], "GPU of the tests");
    assert!(results["level"].as_u64() >= Some(1), "not scheduled: {results}");
    for scene in results["scenes"].as_array().unwrap() {
        assert_eq!(scene["foreground"]["n"], 10, "{scene}");
        let utilization = scene["background"]["utilization"].as_f64().unwrap();
        assert_eq!(utilization > 0.0, scene["name"] != "alone", "{scene}");
    }
}

#[test]
fn demo_on_a_requested_gpu_reports_that_there_is_none() {
    let _env = TestEnvironment::without_service();
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("libcuda.so.1"), "").unwrap();
    let demo = |device: &str| {
        let mut demo = Command::new(XSCHED);
        demo.args(["demo", "--json", "--no-html", "--requests", "5", "--device", device]);
        demo.env("LD_LIBRARY_PATH", directory.path());
        demo
    };
    let output = demo("gpu").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.starts_with("xsched: no GPU for the demo: no NVIDIA driver on this machine"), "{error}");
    assert!(output.stdout.is_empty(), "the demo ran");
    assert!(result_of(demo("auto"))["device"].as_str().unwrap().contains("simulated"));
}

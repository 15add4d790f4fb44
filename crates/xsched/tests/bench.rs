//! `xsched bench`.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod measured;

use std::process::{Command, Output, Stdio};

use environment::{TestEnvironment, wait_until};
use measured::{require, retry_comparison};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const XSCHED: &str = env!("CARGO_BIN_EXE_xsched");

/// A background that runs until it is ended.
const BACKGROUND: [&str; 4] = ["work", "100000000", "8", "2000"];

fn xsched(arguments: &[&str]) -> Output {
    Command::new(XSCHED).args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// The output of a benchmark that succeeds.
fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The median of a figure of a row, if it was measured.
fn median_if_measured(results: &Value, scene: &str, program: &str, figure: &str) -> Option<f64> {
    let mut rows = results["rows"].as_array().unwrap().iter();
    let row = rows.find(|row| row["scene"] == scene && row["program"] == program);
    row.and_then(|row| row[figure]["median"].as_f64())
}

/// The median of a figure that is always measured.
fn median(results: &Value, scene: &str, program: &str, figure: &str) -> f64 {
    let value = median_if_measured(results, scene, program, figure);
    value.unwrap_or_else(|| panic!("no {figure} of the {program} in {scene}: {results:#}"))
}

/// Compares two figures. On a busy machine a short window may have too few requests for them: then the comparison fails, and is
/// repeated.
fn compare(
    results: &Value,
    left: Option<f64>,
    right: Option<f64>,
    holds: impl FnOnce(f64, f64) -> bool,
) -> Result<(), String> {
    require(left.zip(right).is_some_and(|(left, right)| holds(left, right)), || format!("{results:#}"))
}

/// `xsched bench corun` with two commands.
fn corun(env: &TestEnvironment, options: &[&str], foreground: &[&str], background: &[&str]) -> Command {
    let mut command = env.xsched(&["bench", "corun"]);
    command.args(options).arg("--").args(foreground).arg("--").args(background).stdin(Stdio::null());
    command
}

#[test]
fn service_benchmark_completes_and_reports_its_cores() {
    let output = xsched(&["bench", "service", "--clients", "4", "--queues", "2", "--rounds", "20", "--json"]);
    let results = json(&output);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("measuring decisions"), "no progress is printed: {stderr}");
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!(results["cpus"].as_u64(), Some(cores as u64));
    assert_eq!(results["watched_by_spinning"].as_bool(), Some(cores >= 4));
    let decision = &results["decision"];
    let times = ["p50_us", "p99_us", "max_us"].map(|key| decision[key].as_f64().unwrap());
    assert!(times[0] > 0.0 && times.is_sorted(), "{decision}");
}

#[test]
fn corun_of_built_in_loads_shows_the_effect_of_scheduling() {
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("new/report");
    let measure = || {
        let options = ["--platform", "simulated", "--seconds", "0.8", "--repetitions", "1", "--json"];
        let path = report.display().to_string();
        let results = json(&xsched(&[&["bench", "corun", "--report", &path], &options[..]].concat()));
        assert_eq!(results["bench"], "corun");
        assert_eq!(results["settings"]["level"], "3 (auto)");
        assert_eq!(results["failures"].as_array().unwrap().len(), 0);
        let page = std::fs::read_to_string(report.join("index.html")).unwrap();
        assert!(page.contains("request p99 (ms)") && page.ends_with("</html>\n"));
        let saved: Value =
            serde_json::from_slice(&std::fs::read(report.join("results.json")).unwrap()).unwrap();
        assert_eq!(saved, results);
        results
    };
    retry_comparison(measure, |results| {
        for scene in ["alone", "native", "xsched"] {
            let rate = |program| median(&results, scene, program, "launches_per_s");
            require(rate("foreground") > 0.0 && rate("background") > 0.0, || format!("{results:#}"))?;
        }
        let p50 = |scene| median_if_measured(&results, scene, "foreground", "request_p50_ms");
        compare(&results, p50("xsched"), p50("native"), |xsched, native| xsched < 0.9 * native)
    });
}

#[test]
fn foreground_that_exits_is_measured_by_its_run_time() {
    let env = TestEnvironment::without_service();
    // The background exits too, and is started again.
    let output = corun(
        &env,
        &["--seconds", "60", "--repetitions", "1", "--json"],
        &["work", "30", "8", "500"],
        &["work", "20", "8", "1000"],
    )
    .output()
    .unwrap();
    let results = json(&output);
    for scene in ["alone", "native", "xsched"] {
        assert!(median(&results, scene, "foreground", "run_time_s") > 0.12, "{results:#}");
        assert!(median(&results, scene, "background", "launches_per_s") >= 0.0, "{results:#}");
    }
}

#[test]
fn failing_command_is_named_with_its_output_and_the_other_results_are_kept() {
    let env = TestEnvironment::without_service();
    let options = ["--seconds", "0.3", "--repetitions", "1"];
    let failing = ["sh", "-c", "echo no such model; exit 3"];
    let output = corun(&env, &options, &failing, &BACKGROUND).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    assert!(text.contains("it failed with exit status: 3"), "{text}");
    assert!(text.contains("sh -c echo no such model; exit 3") && text.contains("| no such model"), "{text}");
    assert!(text.contains("alone  background"), "the background alone is not measured: {text}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("could not be measured"), "{stderr}");
}

#[test]
fn command_that_uses_no_device_and_prints_nothing_is_named() {
    let env = TestEnvironment::without_service();
    let options = ["--seconds", "60", "--repetitions", "1"];
    let output = corun(&env, &options, &["work", "30", "8", "500"], &["true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    assert!(
        text.contains("the background could not be measured: it exited without using a device"),
        "{text}"
    );
    assert!(text.contains("command: true") && text.contains("it printed nothing"), "{text}");
    assert!(text.contains("alone  foreground"), "the foreground alone is not measured: {text}");
}

#[test]
fn invalid_commands_are_rejected_before_anything_runs() {
    let env = TestEnvironment::without_service();
    let error = |arguments: &[&str]| {
        let output = env.xsched(&[&["bench", "corun"], arguments].concat()).output().unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(error(&["--", "work"]).contains("the background is missing"));
    assert!(error(&["--seconds", "0"]).contains("out of range"));
    assert!(error(&["--policy", "fastest"]).contains("fastest"));
    assert!(error(&["--report", "/proc/nothing", "--", "a", "--", "b"]).contains("/proc/nothing"));
}

/// Whether a process exists and has not exited.
fn is_running(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn interrupted_benchmark_leaves_no_process_behind() {
    let env = TestEnvironment::without_service();
    let file = env.file("pids", "");
    // A child that the program itself would leave behind.
    let script = format!("sleep 1000 & echo $! $$ >> {file}; exec work 100000000 8 500");
    let mut bench = corun(&env, &["--seconds", "100"], &["sh", "-c", &script], &BACKGROUND);
    let mut bench = bench.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pids = || std::fs::read_to_string(&file).unwrap();
    wait_until("the foreground runs", || pids().ends_with('\n'));
    kill_process(Pid::from_child(&bench), Signal::INT).unwrap();
    assert_eq!(bench.wait().unwrap().code(), Some(1));
    let pids = pids();
    for pid in pids.split_whitespace() {
        // The signal was sent before the benchmark exited; the kernel may take longer to end the process.
        wait_until("the program has exited", || !is_running(pid));
    }
    let service = format!("{}/xsched-bench-{}", std::env::temp_dir().display(), bench.id());
    assert!(!std::path::Path::new(&service).exists(), "the private service is left behind");
}

/// Runs a benchmark of built-in loads on the simulated device once.
fn simulated(bench: &str, options: &[&str]) -> Value {
    let always = ["bench", bench, "--platform", "simulated", "--repetitions", "1", "--json"];
    let output = xsched(&[&always, options].concat());
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(results["bench"], bench);
    let failures = results["failures"].as_array().unwrap();
    assert_eq!(output.status.success(), failures.is_empty(), "{results:#}");
    // On a busy machine a short window may have no request at all.
    let is_expected = |failure: &Value| failure["reason"] == "completed no request";
    assert!(failures.iter().all(is_expected), "{results:#}");
    results
}

#[test]
fn overhead_compares_launches_without_and_with_scheduling() {
    let results = simulated("overhead", &["--launches", "100"]);
    for scene in ["native", "xsched"] {
        for program in ["shortest kernel", "kernel of 50 us"] {
            assert!(median(&results, scene, program, "launch_us") > 0.0, "{results:#}");
        }
        // 50 us per kernel are at most 20,000 per second.
        let rate = median(&results, scene, "kernel of 50 us", "kernels_per_s");
        assert!(rate > 0.0 && rate <= 20_000.0, "{results:#}");
    }
}

#[test]
fn overhead_of_a_command_is_its_run_time_and_a_failing_one_is_named() {
    let env = TestEnvironment::without_service();
    let overhead = |command: &[&str]| {
        let always = ["bench", "overhead", "--repetitions", "2", "--json", "--"];
        env.xsched(&[&always, command].concat()).stdin(Stdio::null()).output().unwrap()
    };
    let results = json(&overhead(&["work", "5", "4", "1000"]));
    for scene in ["native", "xsched"] {
        assert!(median(&results, scene, "program", "run_time_s") > 0.02, "{results:#}");
    }
    let output = overhead(&["sh", "-c", "echo out of memory; exit 4"]);
    assert_eq!(output.status.code(), Some(1));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(results["failures"][0]["reason"], "failed with exit status: 4");
    assert_eq!(results["failures"][0]["output"], "out of memory");
}

#[test]
fn preemption_is_measured_at_every_level_of_the_device() {
    let measure = || simulated("preempt", &["--length-us", "20000", "--launches", "10"]);
    retry_comparison(measure, |results| {
        let beside = |scene: &str| median(&results, scene, "beside kernels of 20000 us", "p50_us");
        for scene in ["native", "level 1", "level 2"] {
            assert!(beside(scene) > 0.0, "{results:#}");
        }
        assert!(median(&results, "alone", "no background", "p50_us") > 0.0, "{results:#}");
        // Level 3 preempts the running kernel.
        require(beside("level 3") < 20_000.0, || format!("{results:#}"))
    });
}

#[test]
fn shares_are_measured_against_those_requested() {
    let measure = || simulated("share", &["--shares", "80,20", "--seconds", "0.8"]);
    retry_comparison(measure, |results| {
        let measured = |scene, program| median(&results, scene, program, "measured_percent");
        assert!((median(&results, "xsched", "program 1", "requested_percent") - 80.0).abs() < 1e-9);
        let sum = measured("xsched", "program 1") + measured("xsched", "program 2");
        require((sum - 100.0).abs() < 1e-6, || format!("{results:#}"))?;
        require(measured("xsched", "program 1") > measured("native", "program 1") + 10.0, || {
            format!("{results:#}")
        })
    });
}

#[test]
fn scaling_is_measured_by_the_number_of_programs() {
    let measure = || simulated("scale", &["--programs", "1,3", "--seconds", "0.6"]);
    retry_comparison(measure, |results| {
        let p50 = |scene, program| median_if_measured(&results, scene, program, "request_p50_ms");
        let alone = [p50("native", "1 program"), p50("xsched", "1 program")];
        require(alone.iter().all(Option::is_some), || format!("{results:#}"))?;
        compare(&results, p50("xsched", "3 programs"), p50("native", "3 programs"), |xsched, native| {
            xsched < native
        })
    });
}

#[test]
fn verify_compares_what_a_program_prints_with_and_without_scheduling() {
    let env = TestEnvironment::without_service();
    let verify = |command: &[&str]| {
        let always = ["bench", "verify", "--repetitions", "1", "--json", "--"];
        env.xsched(&[&always, command].concat()).stdin(Stdio::null()).output().unwrap()
    };
    let results = json(&verify(&["work", "10", "8", "1000"]));
    for scene in ["native", "level 1", "level 2", "level 3"] {
        assert!(median(&results, scene, "program", "different_results") == 0.0, "{results:#}");
    }
    let output = verify(&["sh", "-c", "work 10 8 1000; date +%N"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("the program printed different results: native"), "{stderr}");
    let output = verify(&["sh", "-c", "work 10 8 1000 > /dev/null"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("no results to compare"), "{stderr}");
}

#[test]
fn built_in_computation_is_verified() {
    let results = simulated("verify", &[]);
    for scene in ["native", "level 1", "level 2", "level 3"] {
        assert!(median(&results, scene, "program", "different_results") == 0.0, "{results:#}");
    }
}

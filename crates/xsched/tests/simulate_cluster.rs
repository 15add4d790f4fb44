//! `xsched simulate --trace` and `--generate-trace` as users run them.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::{contains, starts_with};
use serde_json::Value;

fn simulate() -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("xsched"));
    command.arg("simulate");
    command
}

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/simulations/jobs.csv")
}

fn json(command: &mut Command) -> Value {
    let output = command.arg("--json").assert().success().get_output().stdout.clone();
    serde_json::from_slice(&output).expect("JSON")
}

/// The row of a way of sharing.
fn result<'a>(output: &'a Value, sharing: &str) -> &'a Value {
    let results = output["results"].as_array().unwrap();
    results.iter().find(|row| row["sharing"] == sharing).unwrap_or_else(|| panic!("no {sharing} in {output}"))
}

#[test]
fn example_needs_fewest_gpus_with_preemption() {
    let output = json(simulate().arg("--trace").arg(example()).args(["--level", "1,3"]));
    let gpus = |sharing| result(&output, sharing)["gpus"].as_u64().unwrap();
    let (exclusive, native, level_3) = (gpus("exclusive"), gpus("time slicing"), gpus("XSched level 3"));
    assert!(level_3 < native && native <= exclusive, "{level_3}, {native}, {exclusive}");
    for row in output["results"].as_array().unwrap() {
        assert_eq!(row["meets_targets"], true, "{row}");
        assert!(row["services"]["p99_ratio_max"].as_f64().unwrap() <= 1.2, "{row}");
        assert!(row["batch"]["slowdown_p95"].as_f64().unwrap() <= 1.5001, "{row}");
        assert!(row["gpus_too_few"].as_u64() < row["gpus"].as_u64(), "{row}");
        assert_eq!(row["utilization_over_time"].as_array().unwrap().len(), 120);
    }
    assert_eq!(output["targets"]["service_p99_ratio"], 1.2);
    assert!(output["assumptions"].as_array().unwrap().len() >= 4);
}

#[test]
fn table_and_report_name_targets_and_assumptions() {
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("report.html");
    simulate()
        .arg("--trace")
        .arg(example())
        .args(["--gpus", "64", "--placement", "first-fit", "--report"])
        .arg(&report)
        .assert()
        .success()
        .stderr("")
        .stdout(
            contains("batch jobs and")
                .and(contains("meets targets"))
                .and(contains("time slicing"))
                .and(contains("XSched level 3"))
                .and(contains("placement rule first-fit"))
                .and(contains("Targets: the p99 latency of every service is at most 1.2 times that alone")),
        );
    let page = fs::read_to_string(&report).unwrap();
    assert_eq!(page.matches("<svg").count(), 2);
    assert!(page.contains("<polyline") && page.contains("Targets: "));
}

#[test]
fn generated_trace_is_a_function_of_the_seed_and_can_be_simulated() {
    let directory = tempfile::tempdir().unwrap();
    let generate = |name: &str, seed: &str| {
        let path = directory.path().join(name);
        let options = ["--jobs", "500", "--days", "1", "--seed", seed];
        simulate().arg("--generate-trace").arg(&path).args(options).assert().success().stdout("").stderr("");
        path
    };
    let first = generate("a.csv", "3");
    let text = fs::read_to_string(&first).unwrap();
    assert_eq!(text.lines().count(), 501);
    assert_eq!(text, fs::read_to_string(generate("b.csv", "3")).unwrap());
    assert_ne!(text, fs::read_to_string(generate("c.csv", "4")).unwrap());
    let output = json(simulate().arg("--trace").arg(&first).args(["--gpus", "400", "-p", "exclusive,HPF"]));
    assert_eq!(output["results"].as_array().unwrap().len(), 2);
    assert_eq!(result(&output, "exclusive")["unfinished_jobs"], 0);
}

#[test]
fn ignored_columns_and_missing_memory_are_one_line_each() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jobs.csv");
    fs::write(&path, "arrival,duration,gpus,color,shape\n0,10,1,red,round\n").unwrap();
    let name = path.display();
    let expected = format!(
        "xsched: {name}: ignored columns: color, shape\nxsched: {name}: 1 jobs have no memory and count as needing none\n"
    );
    simulate().arg("--trace").arg(&path).assert().success().stderr(expected);
}

/// Runs with a trace of one job of 16 GPUs. The error must be one line.
fn rejected(options: &[&str], expected: &str) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jobs.csv");
    fs::write(&path, "arrival,duration,gpus,memory\n0,10,16,90\n").unwrap();
    let options = options.iter().map(|option| option.replace("JOBS", path.to_str().unwrap()));
    simulate()
        .args(options)
        .assert()
        .code(1)
        .stdout("")
        .stderr(starts_with("xsched: ").and(contains(expected)))
        .stderr(predicate::function(|stderr: &str| stderr.lines().count() == 1));
}

#[test]
fn bad_input_is_one_clear_line() {
    rejected(&["--trace", "/nonexistent.csv"], "cannot read /nonexistent.csv: No such file");
    rejected(&["--trace", "/dev/null"], "/dev/null: the trace has no jobs");
    rejected(&["--trace", "JOBS", "--gpus", "8"], "line 2: the job needs 16 GPUs, the cluster has 8");
    rejected(&["--trace", "JOBS"], "line 2: the job needs 90 GiB on each GPU, a GPU has 80 GiB");
    rejected(&["--trace", "JOBS", "--gpus", "12"], "--gpus 12 is not a multiple of --gpus-per-node 8");
    rejected(&["--trace", "JOBS", "--gpus", "0"], "--gpus 0 is out of range: allowed is 1 to 200000");
    rejected(&["--trace", "JOBS", "--gpus-per-node", "0"], "--gpus-per-node 0 is out of range");
    rejected(&["--trace", "JOBS", "--gpu-memory=-1"], "--gpu-memory -1 is out of range");
    rejected(
        &["--trace", "JOBS", "--jobs-per-gpu", "9"],
        "--jobs-per-gpu 9 is out of range: allowed is 1 to 6",
    );
    rejected(&["--trace", "JOBS", "--service-p99", "0.9"], "--service-p99 0.9 is out of range");
    rejected(&["--trace", "JOBS", "--batch-slowdown=-2"], "--batch-slowdown -2 is out of range");
    rejected(
        &["--trace", "JOBS", "--placement", "tetris"],
        "unknown placement rule `tetris`: use one of first-fit",
    );
    rejected(
        &["--trace", "JOBS", "--policy", "share"],
        "policy `share` has no model of a cluster: use exclusive",
    );
    rejected(&["--trace", "JOBS", "--level", "4"], "level `4` does not exist: allowed is 1, 2 or 3");
    rejected(&["--trace", "JOBS", "-p", "native", "--level", "2"], "--level needs the policy priority");
    rejected(&["--trace", "JOBS", "--seed", "2"], "--seed needs a TOML file or --generate-trace");
    rejected(&["--trace", "JOBS", "--jobs", "2"], "--jobs needs --generate-trace");
    rejected(&["--trace", "JOBS", "--duration", "1s"], "--duration needs a TOML file");
    rejected(
        &["--trace", "JOBS", "--generate-trace", "x.csv"],
        "--trace and --generate-trace contradict each other",
    );
    rejected(&["x.toml", "--trace", "JOBS", "-p", "native"], "a trace and x.toml contradict each other");
    rejected(&["x.toml", "-p", "native", "--gpus", "8"], "--gpus needs --trace");
    rejected(&["--generate-trace", "/dev/null/x.csv"], "cannot write /dev/null/x.csv: Not a directory");
    rejected(&["--generate-trace", "x.csv", "--jobs", "0"], "--jobs 0 is out of range");
    rejected(&["--generate-trace", "x.csv", "--days=-1"], "--days -1 is out of range");
    rejected(&["--generate-trace", "x.csv", "--gpus", "8"], "--gpus needs --trace");
}

#[test]
fn every_bad_row_is_reported_with_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jobs.csv");
    fs::write(&path, "arrival,duration,gpus\n0,-10,1\n0,10,1\n0,10,none\n").unwrap();
    let expected = format!(
        "xsched: {}: line 2: duration -10 is out of range: allowed is 0 to 3200000000\nline 4: gpus `none` is not a number\n",
        path.display()
    );
    simulate().arg("--trace").arg(&path).assert().code(1).stdout("").stderr(expected);
}

#[test]
fn missing_file_is_still_a_usage_error() {
    simulate().assert().code(2).stderr(contains("FILE"));
}

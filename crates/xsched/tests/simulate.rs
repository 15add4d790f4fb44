//! `xsched simulate` as users run it.

use std::path::PathBuf;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;

fn xsched() -> Command {
    Command::new(assert_cmd::cargo::cargo_bin!("xsched"))
}

fn examples() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/simulations")
}

fn example(name: &str) -> PathBuf {
    examples().join(name)
}

/// Runs the command and parses its output as JSON.
fn json(command: &mut Command) -> serde_json::Value {
    let output = command.arg("--json").assert().success().get_output().stdout.clone();
    serde_json::from_slice(&output).expect("JSON")
}

#[test]
fn every_example_runs_and_the_small_ones_under_every_policy() {
    let mut found = 0;
    for entry in std::fs::read_dir(examples()).unwrap() {
        let path = entry.unwrap().path();
        // Traces of jobs are for `--trace`: tests/simulate_cluster.rs.
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        found += 1;
        let (policies, count) = match path.file_stem().unwrap().to_str() {
            Some("fleet") => ("native,priority-all", 2),
            _ => ("all", xsched_policy::POLICIES.len() + 1),
        };
        // A little longer than the longest warm-up.
        let output = json(xsched().arg("simulate").arg(&path).args(["-p", policies, "--duration", "1010ms"]));
        let reports = output["reports"].as_array().unwrap();
        assert_eq!(reports.len(), count, "{}", path.display());
        assert_eq!(reports[0]["policy"], "native");
        for report in reports {
            assert!(report["all_devices"]["busy_ns"].as_u64().unwrap() > 0, "{}", path.display());
        }
    }
    assert!(found >= 4, "{found} examples");
}

#[test]
fn json_contains_groups_tasks_devices_and_totals() {
    let file = example("serving-beside-training.toml");
    let output = json(xsched().arg("simulate").arg(&file).args(["--policy", "priority", "--duration", "2s"]));
    assert_eq!(output["file"], file.display().to_string());
    let report = &output["reports"][0];
    assert_eq!((report["policy"].as_str(), report["plain"].as_str()), (Some("HPF"), Some("priority")));
    assert_eq!(report["duration_ns"], 2_000_000_000_u64);
    assert_eq!(report["tasks"].as_array().unwrap().len(), 2);
    let serving = &report["task_groups"][0];
    assert_eq!(serving["name"], "serving");
    for field in [
        "jobs",
        "jobs_per_s",
        "used_ns",
        "utilization",
        "held_ns",
        "preemptions",
        "deadline_jobs",
        "deadline_misses",
    ] {
        assert!(serving[field].is_number(), "{field}");
    }
    for field in ["p50_ns", "p90_ns", "p99_ns", "max_ns"] {
        assert!(serving["latency"][field].as_u64().unwrap() > 0, "{field}");
    }
    let gpu = &report["devices"][0];
    let spent = ["busy_ns", "lost_ns", "idle_ns"].map(|field| gpu[field].as_u64().unwrap());
    assert_eq!(spent.iter().sum::<u64>(), 1_500_000_000, "{spent:?}");
}

#[test]
fn tasks_of_a_fleet_are_listed_only_on_request() {
    let fleet = || {
        let mut command = xsched();
        command.arg("simulate").arg(example("fleet.toml")).args(["--policy", "HPF", "--duration", "1010ms"]);
        command
    };
    let table = String::from_utf8(fleet().assert().success().get_output().stdout.clone()).unwrap();
    assert!(table.contains("1,000 devices and 10,000 tasks"), "{table}");
    assert!(table.lines().count() < 20, "{table}");
    assert_eq!(json(&mut fleet())["reports"][0]["tasks"].as_array().unwrap().len(), 0);
    let all = json(fleet().arg("--every-task"));
    assert_eq!(all["reports"][0]["tasks"].as_array().unwrap().len(), 10_000);
}

#[test]
fn table_names_the_policy_the_workload_and_the_units() {
    xsched()
        .arg("simulate")
        .arg(example("three-shares.toml"))
        .args(["--policy", "UP", "--duration", "1s", "--seed", "7"])
        .assert()
        .success()
        .stdout(
            contains("1 device and 3 tasks over 1.00 s of virtual time, seed 7, under share (UP)")
                .and(contains("physics"))
                .and(contains(" ms"))
                .and(contains(" %")),
        )
        .stderr("");
}

#[test]
fn output_depends_only_on_the_seed() {
    let run = |seed: &str| {
        let file = example("serving-beside-training.toml");
        json(xsched().arg("simulate").arg(file).args(["-p", "hpf", "--duration", "2s", "--seed", seed]))
    };
    assert_eq!(run("4"), run("4"));
    assert_ne!(run("4")["reports"][0]["all_tasks"], run("5")["reports"][0]["all_tasks"]);
}

#[test]
fn invalid_file_is_rejected_with_position_and_reason() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bad.toml");
    std::fs::write(&file, "duration = \"1s\"\n[[device]]\nname = \"gpu\"\nlevel = 7\n").unwrap();
    let expected = format!(
        "xsched: {}: line 4: `level`: level 7 does not exist: allowed is 1, 2 or 3\n",
        file.display()
    );
    xsched()
        .arg("simulate")
        .arg(&file)
        .args(["--policy", "hpf"])
        .assert()
        .code(1)
        .stdout("")
        .stderr(expected);
}

#[test]
fn missing_file_is_named() {
    xsched()
        .args(["simulate", "/nonexistent/x.toml", "--policy", "hpf"])
        .assert()
        .code(1)
        .stderr(contains("cannot read /nonexistent/x.toml: No such file or directory"));
}

#[test]
fn unknown_policy_is_rejected_with_the_known_policies() {
    xsched()
        .arg("simulate")
        .arg(example("three-shares.toml"))
        .args(["--policy", "fastest"])
        .assert()
        .code(1)
        .stdout("")
        .stderr(
            contains("unknown policy `fastest`: use one of priority (HPF)")
                .and(contains("native (the device's own time slicing), or all"))
                .and(predicate::function(|stderr: &str| stderr.lines().count() == 1)),
        );
}

#[test]
fn too_short_duration_is_rejected() {
    xsched()
        .arg("simulate")
        .arg(example("fleet.toml"))
        .args(["--policy", "hpf", "--duration", "10ms"])
        .assert()
        .code(1)
        .stderr(contains("fleet.toml: warmup 1.00 s leaves nothing to measure"));
}

//! Runs every target on 300 inputs, and checks that a failure would be seen.

use std::path::Path;

use assert_cmd::Command;
use assert_cmd::cargo::cargo_bin;
use predicates::prelude::*;
use predicates::str::contains;

fn fuzz(arguments: &[&str], output: &Path) -> Command {
    let mut command = Command::new(cargo_bin!("xsched-fuzz"));
    command.args(arguments).arg("--output").arg(output);
    command
}

#[test]
fn no_target_fails_on_its_corpus_and_random_changes() {
    let output = tempfile::tempdir().unwrap();
    let results = tempfile::NamedTempFile::new().unwrap();
    let file = results.path().to_str().unwrap();
    let run = |seed| {
        let arguments = ["all", "--executions", "300", "--seed", seed, "--json", file];
        let run = fuzz(&arguments, output.path()).assert().success();
        String::from_utf8(run.get_output().stdout.clone()).unwrap()
    };
    let text = run("7");
    let recorded: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(recorded["seed"], 7);
    let targets =
        ["message", "service", "page", "http", "config", "simulation", "jobs", "environment", "trace"];
    for (index, target) in targets.into_iter().enumerate() {
        let recorded = &recorded["targets"][index];
        assert_eq!((&recorded["name"], &recorded["executions"]), (&target.into(), &300.into()), "{recorded}");
        assert!(recorded["failure"].is_null() && recorded["cpu_seconds"].as_f64() > Some(0.0), "{recorded}");
        assert!(
            text.lines().any(|line| line.starts_with(target) && line.contains(" 300 executions")),
            "{text}"
        );
    }
    assert!(text.contains("2700 executions") && text.contains("no failure (seed 7)"), "{text}");
    assert_eq!(std::fs::read_dir(output.path()).unwrap().count(), 0, "nothing to replay");
}

#[test]
fn failing_input_is_saved_and_fails_again() {
    let output = tempfile::tempdir().unwrap();
    let corpus = tempfile::tempdir().unwrap();
    std::fs::create_dir(corpus.path().join("check")).unwrap();
    std::fs::write(corpus.path().join("check/start"), "fai").unwrap();
    let corpus = corpus.path().to_str().unwrap();
    // A target that fails on inputs that contain "fail".
    let run =
        fuzz(&["check", "--executions", "10000000", "--corpus", corpus], output.path()).assert().failure();
    let text = String::from_utf8(run.get_output().stdout.clone()).unwrap();
    let saved = std::fs::read_dir(output.path()).unwrap().map(|entry| entry.unwrap().path());
    let saved = saved.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("check-"));
    let saved: Vec<_> = saved.collect();
    assert_eq!(saved.len(), 1, "{text}");
    assert!(std::fs::read(&saved[0]).unwrap().windows(4).any(|window| window == b"fail"));
    fuzz(&["check", "--replay", saved[0].to_str().unwrap()], output.path())
        .assert()
        .failure()
        .stdout(contains("1 executions").and(contains(saved[0].to_str().unwrap())));
}

#[test]
fn same_seed_makes_the_same_inputs() {
    let output = tempfile::tempdir().unwrap();
    let corpus = tempfile::tempdir().unwrap();
    std::fs::create_dir(corpus.path().join("check")).unwrap();
    std::fs::write(corpus.path().join("check/start"), "fai").unwrap();
    let executions = |seed: &str| {
        let arguments = [
            "check",
            "--executions",
            "10000000",
            "--seed",
            seed,
            "--corpus",
            corpus.path().to_str().unwrap(),
        ];
        let run = fuzz(&arguments, output.path()).assert().failure();
        let text = String::from_utf8(run.get_output().stdout.clone()).unwrap();
        text.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(executions("3"), executions("3"), "the failure is found after the same number of executions");
}

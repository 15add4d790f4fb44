//! `xsched demo` as a user or a script runs it.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod measured;

use assert_cmd::Command;
use measured::{require, retry_comparison};
use serde_json::Value;

fn xsched() -> Command {
    Command::cargo_bin("xsched").unwrap()
}

/// Runs the demo on the simulated device. Checks everything but times. Returns its results.
fn run_demo() -> Value {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let output = xsched()
        .args(["demo", "--json", "--device", "simulated", "--requests", "25", "--html"])
        .arg(&page)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(results["level"], 3);
    assert!(results["device"].as_str().unwrap().contains("simulated"));
    for name in ["alone", "native", "xsched"] {
        let foreground = &scene(&results, name)["foreground"];
        assert_eq!(foreground["n"], 25);
        assert!(foreground["p99_us"].as_f64().unwrap() >= p50(&results, name));
    }
    assert_eq!(scene(&results, "alone")["background"]["utilization"], 0.0);
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.contains("<svg") && html.contains("simulated device"));
    results
}

fn scene<'a>(results: &'a Value, name: &str) -> &'a Value {
    let mut scenes = results["scenes"].as_array().unwrap().iter();
    scenes.find(|scene| scene["name"] == name).unwrap_or_else(|| panic!("no scene {name}"))
}

fn p50(results: &Value, name: &str) -> f64 {
    scene(results, name)["foreground"]["p50_us"].as_f64().unwrap()
}

#[test]
fn demo_shows_lower_latency_with_scheduling() {
    retry_comparison(run_demo, |results| {
        // The median, not the tail: other tests may use the machine.
        let [alone, native, scheduled] = ["alone", "native", "xsched"].map(|name| p50(&results, name));
        require(native > 1.5 * alone, || format!("the batch does not slow native requests: {results:#}"))?;
        require(scheduled < 0.5 * (alone + native), || format!("scheduling gains too little: {results:#}"))?;
        let utilization = scene(&results, "xsched")["background"]["utilization"].as_f64().unwrap();
        require(utilization > 0.5, || format!("the background has {utilization} of the device: {results:#}"))
    });
}

#[test]
fn unknown_level_is_rejected_with_the_known_levels() {
    let output = xsched().args(["demo", "--level", "4"]).output().unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("level `4` does not exist: use auto, 1, 2 or 3"), "{error}");
}

#[test]
fn unwritable_page_is_reported_before_anything_runs() {
    let output = xsched().args(["demo", "--requests", "5", "--html", "/nowhere/page.html"]).output().unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("cannot write the report to /nowhere/page.html"), "{error}");
    assert!(output.stdout.is_empty(), "the demo ran");
}

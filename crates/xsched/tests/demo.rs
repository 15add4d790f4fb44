//! The demo as a person or a script runs it.

#[allow(dead_code, reason = "the other tests that measure use the rest")]
mod measured;

use assert_cmd::Command;
use measured::{claim, measured};
use serde_json::Value;

fn xsched() -> Command {
    Command::cargo_bin("xsched").unwrap()
}

#[test]
fn the_demo_shows_that_scheduling_helps() {
    measured(|| {
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
        let scene = |name: &str| {
            let scenes = results["scenes"].as_array().unwrap();
            scenes
                .iter()
                .find(|scene| scene["name"] == name)
                .unwrap_or_else(|| panic!("no scene {name}"))
                .clone()
        };
        let p50 = |name: &str| scene(name)["foreground"]["p50_us"].as_f64().unwrap();
        for name in ["alone", "native", "xsched"] {
            assert_eq!(scene(name)["foreground"]["n"], 25);
            assert!(scene(name)["foreground"]["p99_us"].as_f64().unwrap() >= p50(name));
        }
        // The middle, not the end of the distribution: this machine may be busy with other tests.
        claim(p50("native") > 1.5 * p50("alone"), || format!("no harm: {results:#}"))?;
        claim(p50("xsched") < 0.5 * (p50("alone") + p50("native")), || format!("no better: {results:#}"))?;
        assert_eq!(scene("alone")["background"]["share"], 0.0);
        let share = scene("xsched")["background"]["share"].as_f64().unwrap();
        claim(share > 0.5, || format!("{share} of the background: {results:#}"))?;
        let html = std::fs::read_to_string(page).unwrap();
        assert!(html.contains("<svg") && html.contains("simulated device"));
        Ok(())
    });
}

#[test]
fn levels_that_do_not_exist_are_refused_by_name() {
    let output = xsched().args(["demo", "--level", "4"]).output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("level `4` does not exist: use auto, 1, 2 or 3"), "{said}");
}

#[test]
fn a_page_that_cannot_be_written_is_named_before_anything_runs() {
    let output = xsched().args(["demo", "--requests", "5", "--html", "/nowhere/page.html"]).output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("cannot write the page to /nowhere/page.html"), "{said}");
    assert!(output.stdout.is_empty(), "it ran all the same");
}

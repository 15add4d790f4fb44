//! The results as JSON.
//!
//! One object. Times are in microseconds, utilizations from 0 to 1; a value that was not measured is `null`.
//! ```json
//! {
//!   "device": "NVIDIA H200", "device_note": "", "level": 3,
//!   "versions": [{"name": "xsched", "version": "0.1.0"}],
//!   "workload": {"request_us", "commands_per_request", "load", "background_command_us", "requests"},
//!   "scenes": [{
//!     "name": "alone" | "native" | "xsched",
//!     "ratio_p99": p99 as a multiple of the p99 alone,
//!     "foreground": {"n", "min_us", "p50_us", "p99_us", "max_us", "utilization"},
//!     "background": {"utilization", "of_rest": utilization as a part of the time that the foreground leaves}
//!   }],
//!   "verdict": one sentence
//! }
//! ```

use serde::Serialize;

use super::{Results, Scene, SceneName, Version, Workload, units, verdict};

#[derive(Serialize)]
struct Document<'a> {
    device: &'a str,
    device_note: &'a str,
    level: u8,
    versions: &'a [Version],
    workload: &'a Workload,
    scenes: Vec<SceneDocument>,
    verdict: String,
}

#[derive(Serialize)]
struct SceneDocument {
    name: SceneName,
    ratio_p99: Option<f64>,
    foreground: Foreground,
    background: Background,
}

#[derive(Serialize)]
struct Foreground {
    n: usize,
    min_us: Option<f64>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    max_us: Option<f64>,
    utilization: f64,
}

#[derive(Serialize)]
struct Background {
    utilization: f64,
    of_rest: Option<f64>,
}

/// `results` as one JSON object, indented, without a newline at its end.
pub(crate) fn json(results: &Results) -> serde_json::Result<String> {
    serde_json::to_string_pretty(&Document {
        device: &results.device,
        device_note: &results.device_note,
        level: results.level,
        versions: &results.versions,
        workload: &results.workload,
        scenes: results.scenes.iter().map(|scene| describe(results, scene)).collect(),
        verdict: units::plain(&verdict::sentence(results)),
    })
}

fn describe(results: &Results, scene: &Scene) -> SceneDocument {
    let latencies = scene.latencies();
    SceneDocument {
        name: scene.name,
        ratio_p99: results.ratio_p99(scene).map(to_4_decimals),
        foreground: Foreground {
            n: scene.foreground.len(),
            min_us: latencies.map(|l| to_nanoseconds(l.min)),
            p50_us: latencies.map(|l| to_nanoseconds(l.p50)),
            p99_us: latencies.map(|l| to_nanoseconds(l.p99)),
            max_us: latencies.map(|l| to_nanoseconds(l.max)),
            utilization: to_4_decimals(scene.foreground_utilization),
        },
        background: Background {
            utilization: to_4_decimals(scene.background_utilization),
            of_rest: scene.background_of_rest().map(to_4_decimals),
        },
    }
}

/// Rounds to the resolution of the clock.
fn to_nanoseconds(us: f64) -> f64 {
    (us * 1e3).round() / 1e3
}

fn to_4_decimals(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;
    use serde_json::Value;

    #[test]
    fn json_has_the_documented_keys() {
        let text = json(&sample::realistic()).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["device"], "NVIDIA H200");
        assert_eq!(value["level"], 3);
        let names: Vec<&Value> = value["scenes"].as_array().unwrap().iter().map(|s| &s["name"]).collect();
        assert_eq!(names, ["alone", "native", "xsched"]);
        for scene in value["scenes"].as_array().unwrap() {
            assert_eq!(scene["foreground"]["n"], 100);
            assert!(scene["foreground"]["p50_us"].as_f64().unwrap() > 10_000.0);
            assert!(scene["foreground"]["p99_us"].as_f64() >= scene["foreground"]["p50_us"].as_f64());
            assert!(scene["background"]["utilization"].is_number());
            assert!(scene["ratio_p99"].as_f64().unwrap() >= 1.0);
        }
        assert!(value["scenes"][0]["background"]["of_rest"].is_null());
    }

    #[test]
    fn missing_values_are_null() {
        let value: Value = serde_json::from_str(&json(&sample::empty()).unwrap()).unwrap();
        assert_eq!(value["scenes"][1]["foreground"]["n"], 0);
        assert!(value["scenes"][1]["foreground"]["p99_us"].is_null());
        assert!(value["scenes"][1]["ratio_p99"].is_null());
        assert!(value["verdict"].as_str().unwrap().starts_with("Too little was measured"));
    }
}

//! `xsched bench`.

use assert_cmd::Command;
use serde_json::Value;

#[test]
fn service_benchmark_completes_and_reports_its_cores() {
    let output = Command::cargo_bin("xsched")
        .unwrap()
        .args(["bench", "service", "--clients", "4", "--queues", "2", "--rounds", "20", "--json"])
        .timeout(std::time::Duration::from_secs(120))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("measuring decisions"), "no progress is printed: {stderr}");
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!(results["cpus"].as_u64(), Some(cores as u64));
    assert_eq!(results["watched_by_spinning"].as_bool(), Some(cores >= 4));
    let decision = &results["decision"];
    let times = ["p50_us", "p99_us", "max_us"].map(|key| decision[key].as_f64().unwrap());
    assert!(times[0] > 0.0 && times.is_sorted(), "{decision}");
}

//! `xsched bench gpu-worker`: a GPU program without any scheduling code, to be measured with and without XSched.
//!
//! Prints its results as one line of JSON at the end. Times called `begin` and `end` are seconds of `CLOCK_MONOTONIC`, so that
//! those of several workers can be compared.

mod latency;
mod launch_cost;
mod load;

use std::io::Write as _;

use serde_json::{Value, json};
use xsched_core::Nanos;

use crate::gpu::{Calibration, Gpu, Kernels};

/// Run a GPU workload and print its results.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    mode: Mode,

    /// Output of `calibrate`; without it the kernels are calibrated first.
    #[arg(long, global = true, value_name = "LAUNCH:ROUND")]
    calibration: Option<Calibration>,
}

#[derive(clap::Subcommand)]
enum Mode {
    /// Serve requests and measure how long each takes.
    Latency(latency::Args),
    /// Keep the GPU busy.
    Load(load::Args),
    /// Measure the cost of a launch.
    LaunchCost(launch_cost::Args),
    /// Measure the duration of the kernels, and print the name of the GPU.
    Calibrate,
}

/// The GPU and the kernels.
struct LoadedGpu {
    gpu: &'static Gpu,
    kernels: Kernels,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let gpu = Gpu::open()?;
    let loaded = LoadedGpu { gpu, kernels: Kernels::load(gpu, args.calibration)? };
    match &args.mode {
        Mode::Latency(args) => latency::run(args, &loaded),
        Mode::Load(args) => load::run(args, &loaded),
        Mode::LaunchCost(args) => launch_cost::run(args, &loaded),
        Mode::Calibrate => print_line(&json!({
            "gpu": gpu.name,
            "cuda": format!("{}.{}", gpu.cuda_version / 1000, gpu.cuda_version % 1000 / 10),
            "calibration": loaded.kernels.calibration.to_string(),
            "us_per_launch": loaded.kernels.calibration.us_per_launch,
        })),
    }
}

/// Prints one line and flushes it.
fn print_line(value: &Value) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{value}")?;
    Ok(out.flush()?)
}

/// A time in microseconds.
fn length(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of microseconds"))?;
    if (0.0..=1e7).contains(&number) {
        Ok(number)
    } else {
        Err(format!("`{text}` is out of range: allowed is 0 to 10000000 microseconds"))
    }
}

fn seconds(at: Nanos) -> f64 {
    at.as_secs_f64()
}

/// Rounds to five decimals: further digits are noise.
fn rounded(value: f64) -> f64 {
    (value * 1e5).round() / 1e5
}

/// The nearest-rank percentile of sorted values.
pub(super) fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert!((percentile(&values, 50) - 100.0).abs() < f64::EPSILON);
        assert!((percentile(&values, 99) - 198.0).abs() < f64::EPSILON);
        assert!((percentile(&values, 100) - 200.0).abs() < f64::EPSILON);
        assert!((percentile(&values[..1], 99) - 1.0).abs() < f64::EPSILON);
        assert!(percentile(&[], 99).is_nan());
    }

    #[test]
    fn length_is_range_checked() {
        assert_eq!(length("0"), Ok(0.0));
        assert!(length("-1").unwrap_err().contains("out of range"));
        assert!(length("2ms").unwrap_err().contains("not a number"));
    }
}

//! `xsched bench gpu-worker`: a plain user of the GPU, to be measured with and without the scheduler.
//!
//! Knows nothing of scheduling. What it has seen comes as one line of JSON at the end. Times called `begin` and `end`
//! are seconds of the system's monotonic clock, so that those of several workers can be compared.

mod latency;
mod launch_cost;
mod load;

use std::io::Write as _;

use serde_json::{Value, json};
use xsched_core::Nanos;

use crate::gpu::{Calibration, Gpu, Kernels};

/// Use the GPU in a simple way and say how it went.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    mode: Mode,

    /// What `calibrate` said, to leave the measuring out.
    #[arg(long, global = true, value_name = "LAUNCH:ROUND")]
    calibration: Option<Calibration>,
}

#[derive(clap::Subcommand)]
enum Mode {
    /// Serve requests and measure how long each takes.
    Latency(latency::Args),
    /// Keep the GPU busy.
    Load(load::Args),
    /// Measure what a launch costs.
    LaunchCost(launch_cost::Args),
    /// Measure how long the kernels take, and name the GPU.
    Calibrate,
}

/// The GPU and the kernels.
struct Tools {
    gpu: &'static Gpu,
    kernels: Kernels,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let gpu = Gpu::open()?;
    let tools = Tools { gpu, kernels: Kernels::load(gpu, args.calibration)? };
    match &args.mode {
        Mode::Latency(args) => latency::run(args, &tools),
        Mode::Load(args) => load::run(args, &tools),
        Mode::LaunchCost(args) => launch_cost::run(args, &tools),
        Mode::Calibrate => say(&json!({
            "gpu": gpu.name,
            "cuda": format!("{}.{}", gpu.cuda_version / 1000, gpu.cuda_version % 1000 / 10),
            "calibration": tools.kernels.calibration.to_string(),
            "us_per_launch": tools.kernels.calibration.us_per_launch,
        })),
    }
}

/// One line, at once.
fn say(what: &Value) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{what}")?;
    Ok(out.flush()?)
}

/// A length in microseconds.
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

/// Figures for a person, without digits that mean nothing.
fn rounded(value: f64) -> f64 {
    (value * 1e5).round() / 1e5
}

/// The value that so many of a hundred do not exceed. The values are sorted.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert!((percentile(&values, 50) - 100.0).abs() < f64::EPSILON);
        assert!((percentile(&values, 99) - 198.0).abs() < f64::EPSILON);
        assert!((percentile(&values, 100) - 200.0).abs() < f64::EPSILON);
        assert!((percentile(&values[..1], 99) - 1.0).abs() < f64::EPSILON);
        assert!(percentile(&[], 99).is_nan());
    }

    #[test]
    fn lengths_have_a_range() {
        assert_eq!(length("0"), Ok(0.0));
        assert!(length("-1").unwrap_err().contains("out of range"));
        assert!(length("2ms").unwrap_err().contains("not a number"));
    }
}

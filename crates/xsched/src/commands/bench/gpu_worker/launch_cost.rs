//! The cost of a launch: the host time of the call, and the total time per kernel of many launches back to back.

use std::time::Instant;

use serde_json::{Value, json};

use super::{LoadedGpu, length, percentile, print_line, rounded};

/// This many launches do not fill the hardware queue. Beyond, the host waits for the GPU and its own cost cannot be measured.
const LAUNCHES_WITHOUT_WAITING: u32 = 256;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Lengths of the kernels, such as 0,3,10,50; the kernel of length 0 is empty.
    #[arg(long, value_delimiter = ',', default_value = "0", value_parser = length)]
    length_us: Vec<f64>,
    /// Launches before each synchronization.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    launches: u32,
    #[arg(long, default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeat: u32,
}

pub(super) fn run(args: &Args, loaded: &LoadedGpu) -> anyhow::Result<()> {
    let stream = loaded.gpu.create_stream(None)?;
    let mut rows = Vec::new();
    for length_us in &args.length_us {
        let (mut host, mut total) = (Vec::new(), Vec::new());
        // The first repetition is a warm-up.
        for repeat in 0..=args.repeat {
            let began = Instant::now();
            let mut host_us = 0.0;
            for launch in 1..=args.launches {
                loaded.kernels.launch(&stream, *length_us)?;
                if launch == args.launches.min(LAUNCHES_WITHOUT_WAITING) {
                    host_us = began.elapsed().as_secs_f64() * 1e6 / f64::from(launch);
                }
            }
            stream.synchronize()?;
            if repeat > 0 {
                host.push(host_us);
                total.push(began.elapsed().as_secs_f64() * 1e6 / f64::from(args.launches));
            }
        }
        rows.push(json!({
            "length_us": length_us,
            "host_us": spread(&mut host),
            "end_to_end_us": spread(&mut total),
        }));
    }
    print_line(
        &json!({"mode": "launch-cost", "launches": args.launches, "repeat": args.repeat, "lengths": rows}),
    )
}

fn spread(values: &mut [f64]) -> Value {
    values.sort_by(f64::total_cmp);
    let at = |percent| rounded(percentile(values, percent));
    json!({"n": values.len(), "median": at(50), "low": at(10), "high": at(90)})
}

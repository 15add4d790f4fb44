//! Serves requests at irregular times: each launches some kernels and waits for them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use xsched_core::Nanos;

use super::{LoadedGpu, length, percentile, print_line, rounded, seconds};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Kernels per request.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    kernels: u32,
    /// Length of each kernel.
    #[arg(long, default_value = "20", value_parser = length)]
    length_us: f64,
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    requests: u32,
    /// Mean time from one request to the next.
    #[arg(long, default_value_t = 10)]
    period_ms: u64,
    /// Time that the host spins before each kernel but the first, as a host-bound program does.
    #[arg(long, default_value = "0", value_parser = length)]
    gap_us: f64,
    /// Synchronize after each kernel, as a sync-bound program does.
    #[arg(long)]
    wait_each: bool,
    /// Also print when each request arrived and was complete.
    #[arg(long)]
    each: bool,
    /// Priority of the CUDA stream; lower numbers are higher priorities.
    #[arg(long, allow_hyphen_values = true)]
    stream_priority: Option<i32>,
}

pub(super) fn run(args: &Args, loaded: &LoadedGpu) -> anyhow::Result<()> {
    let stream = loaded.gpu.create_stream(args.stream_priority)?;
    let request = || -> anyhow::Result<f64> {
        let began = Instant::now();
        for kernel in 0..args.kernels {
            if kernel > 0 && args.gap_us > 0.0 {
                let until = Instant::now() + Duration::from_micros(1).mul_f64(args.gap_us);
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
            }
            loaded.kernels.launch(&stream, args.length_us)?;
            if args.wait_each {
                stream.synchronize()?;
            }
        }
        stream.synchronize()?;
        Ok(began.elapsed().as_secs_f64() * 1e3)
    };
    for _ in 0..10 {
        request()?;
    }
    let begin = Nanos::now();
    let mut due = begin;
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut latencies = Vec::with_capacity(args.requests as usize);
    for _ in 0..args.requests {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // Between 0.75 and 1.25 periods, so that requests arrive in every phase of other programs; the same sequence in every run.
        due = (due + Nanos::from_micros(args.period_ms * (750 + random % 501))).max(Nanos::now());
        std::thread::sleep((due - Nanos::now()).into());
        let arrived = Nanos::now();
        latencies.push(request()?);
        if args.each {
            print_line(&json!({"arrived_ns": arrived.0, "done_ns": Nanos::now().0}))?;
        }
    }
    let end = Nanos::now();
    let halves: Vec<Value> = latencies.chunks(latencies.len().div_ceil(2)).map(figures).collect();
    let mut result = figures(&latencies);
    result["mode"] = json!("latency");
    result["kernels"] = json!(args.kernels);
    result["length_us"] = json!(args.length_us);
    result["halves"] = json!(halves);
    result["begin"] = json!(seconds(begin));
    result["end"] = json!(seconds(end));
    print_line(&result)
}

fn figures(latencies: &[f64]) -> Value {
    let mut sorted = latencies.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |percent| rounded(percentile(&sorted, percent));
    let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
    json!({
        "n": sorted.len(),
        "p50_ms": at(50),
        "p90_ms": at(90),
        "p99_ms": at(99),
        "max_ms": at(100),
        "mean_ms": rounded(mean),
    })
}

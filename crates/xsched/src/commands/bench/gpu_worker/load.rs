//! Keeps the GPU busy without a pause.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use xsched_core::Nanos;

use super::{LoadedGpu, length, print_line, rounded, seconds};
use crate::gpu::{Event, Stream};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Length of a kernel.
    #[arg(long, default_value = "2000", value_parser = length)]
    length_us: f64,
    /// Kernels in flight.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    in_flight: u32,
    /// Exit after this time; else when stdin ends.
    #[arg(long)]
    seconds: Option<f64>,
    /// Interval of the reports.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..))]
    report_ms: u64,
    /// Priority of the CUDA stream; lower numbers are higher priorities.
    #[arg(long, allow_hyphen_values = true)]
    stream_priority: Option<i32>,
}

pub(super) fn run(args: &Args, loaded: &LoadedGpu) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    if args.seconds.is_none() {
        let stop = Arc::clone(&stop);
        thread::spawn(move || {
            let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
            stop.store(true, Ordering::SeqCst);
        });
    }
    let stream = loaded.gpu.create_stream(args.stream_priority)?;
    let events = (0..args.in_flight).map(|_| loaded.gpu.create_event()).collect::<Result<Vec<_>, _>>()?;
    let completed = Arc::new(AtomicU64::new(0));
    let begin = Nanos::now();
    let reporter = {
        let (stop, completed) = (Arc::clone(&stop), Arc::clone(&completed));
        let (length_us, every) = (args.length_us, Duration::from_millis(args.report_ms));
        // A thread of its own: the launching thread may be held for any time, and the reports must show that.
        thread::spawn(move || report(&stop, &completed, length_us, every))
    };
    let until = args.seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds.clamp(0.0, 1e6)));
    let result = run_kernels(args, loaded, &stream, &events, &completed, || {
        stop.load(Ordering::SeqCst) || until.is_some_and(|until| Instant::now() >= until)
    });
    let end = Nanos::now();
    stop.store(true, Ordering::SeqCst);
    // The reporter exits within 50 ms, and its lines precede the last one.
    let report_result = reporter.join();
    result?;
    report_result.map_err(|_| anyhow::anyhow!("the reporting thread panicked"))??;
    let kernels = completed.load(Ordering::SeqCst);
    let span = (end - begin).as_secs_f64();
    print_line(&json!({
        "mode": "load",
        "length_us": args.length_us,
        "kernels": kernels,
        "seconds": rounded(span),
        "kernels_per_s": rounded(kernels as f64 / span),
        "gpu_ms_per_s": rounded(kernels as f64 * args.length_us / 1e3 / span),
        "begin": seconds(begin),
        "end": seconds(end),
    }))
}

/// Launches kernels, and waits for the oldest while the limit of kernels is in flight.
fn run_kernels(
    args: &Args,
    loaded: &LoadedGpu,
    stream: &Stream<'_>,
    events: &[Event<'_>],
    completed: &AtomicU64,
    mut is_finished: impl FnMut() -> bool,
) -> anyhow::Result<()> {
    let mut launched = 0_usize;
    let mut done = 0_usize;
    while !is_finished() {
        if launched - done == events.len() {
            events[done % events.len()].wait()?;
        }
        while done < launched && events[done % events.len()].is_complete()? {
            done += 1;
        }
        completed.store(done as u64, Ordering::SeqCst);
        if launched - done == events.len() {
            continue;
        }
        loaded.kernels.launch(stream, args.length_us)?;
        stream.record(&events[launched % events.len()])?;
        launched += 1;
    }
    stream.synchronize()?;
    completed.store(launched as u64, Ordering::SeqCst);
    Ok(())
}

/// Prints the kernels completed since the last line and in total.
fn report(stop: &AtomicBool, completed: &AtomicU64, length_us: f64, every: Duration) -> anyhow::Result<()> {
    let (mut last, mut last_at) = (0, Nanos::now());
    let mut next = Instant::now() + every;
    while !stop.load(Ordering::SeqCst) {
        let left = next.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            thread::sleep(left.min(Duration::from_millis(50)));
            continue;
        }
        next += every;
        let (now, kernels) = (Nanos::now(), completed.load(Ordering::SeqCst));
        let (span, more) = ((now - last_at).as_secs_f64(), (kernels - last) as f64);
        print_line(&json!({
            "at": seconds(now),
            "kernels": kernels,
            "kernels_per_s": rounded(more / span),
            "gpu_ms_per_s": rounded(more * length_us / 1e3 / span),
        }))?;
        (last, last_at) = (kernels, now);
    }
    Ok(())
}

//! Takes all of the GPU that it can get.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use xsched_core::Nanos;

use super::{Tools, length, rounded, say, seconds};
use crate::gpu::{Event, Stream};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Length of a kernel.
    #[arg(long, default_value = "2000", value_parser = length)]
    length_us: f64,
    /// Kernels launched and not finished.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    in_flight: u32,
    /// End after so long; else when the input ends.
    #[arg(long)]
    seconds: Option<f64>,
    /// Time from one line to the next.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..))]
    report_ms: u64,
    /// Of the stream; smaller is more important.
    #[arg(long, allow_hyphen_values = true)]
    stream_priority: Option<i32>,
}

pub(super) fn run(args: &Args, tools: &Tools) -> anyhow::Result<()> {
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
    let stream = tools.gpu.stream(args.stream_priority)?;
    let events = (0..args.in_flight).map(|_| tools.gpu.event()).collect::<Result<Vec<_>, _>>()?;
    let completed = Arc::new(AtomicU64::new(0));
    let begin = Nanos::now();
    let reporter = {
        let (stop, completed) = (Arc::clone(&stop), Arc::clone(&completed));
        let (length_us, every) = (args.length_us, Duration::from_millis(args.report_ms));
        // A thread of its own: the one that launches may be held for any time, and that has to be seen.
        thread::spawn(move || report(&stop, &completed, length_us, every))
    };
    let until = args.seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds.clamp(0.0, 1e6)));
    let worked = work(args, tools, &stream, &events, &completed, || {
        stop.load(Ordering::SeqCst) || until.is_some_and(|until| Instant::now() >= until)
    });
    let end = Nanos::now();
    stop.store(true, Ordering::SeqCst);
    // It ends within one pause, and its lines come before the last one.
    let told = reporter.join();
    worked?;
    told.map_err(|_| anyhow::anyhow!("the thread that reports has failed"))??;
    let kernels = completed.load(Ordering::SeqCst);
    let span = (end - begin).as_secs_f64();
    say(&json!({
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

/// Launches, and waits for the oldest when as many as allowed are in flight.
fn work(
    args: &Args,
    tools: &Tools,
    stream: &Stream<'_>,
    events: &[Event<'_>],
    completed: &AtomicU64,
    mut is_enough: impl FnMut() -> bool,
) -> anyhow::Result<()> {
    let mut launched = 0_usize;
    let mut passed = 0_usize;
    while !is_enough() {
        if launched - passed == events.len() {
            events[passed % events.len()].wait()?;
        }
        while passed < launched && events[passed % events.len()].is_passed()? {
            passed += 1;
        }
        completed.store(passed as u64, Ordering::SeqCst);
        if launched - passed == events.len() {
            continue;
        }
        tools.kernels.launch(stream, args.length_us)?;
        stream.record(&events[launched % events.len()])?;
        launched += 1;
    }
    stream.synchronize()?;
    completed.store(launched as u64, Ordering::SeqCst);
    Ok(())
}

/// Prints what was done since the last line, and in all.
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
        say(&json!({
            "at": seconds(now),
            "kernels": kernels,
            "kernels_per_s": rounded(more / span),
            "gpu_ms_per_s": rounded(more * length_us / 1e3 / span),
        }))?;
        (last, last_at) = (kernels, now);
    }
    Ok(())
}

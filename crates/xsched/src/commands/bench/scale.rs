//! `xsched bench scale`: a foreground beside more and more busy programs.

use std::time::Duration;

use xsched_core::{LevelRequest, Priority};

use super::corun::seconds;
use super::gpu_worker::percentile;
use super::interleave::{Measured, interleave};
use super::loads::{DeviceOption, LoadDevice};
use super::program::CommandLine;
use super::results::{Metric, OutputOptions, Results, Samples};
use super::scene::{Interruption, Role, RunError, Scene};

/// Measure the requests of a program of high priority beside 0, 1, 3, 7 ... busy programs.
///
/// All programs are built-in loads on the same device. One serves requests with priority high, all others always have work and
/// priority low.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    output: OutputOptions,

    #[command(flatten)]
    device: DeviceOption,

    /// Numbers of programs, with the one that is measured.
    #[arg(
        long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,8",
        value_parser = clap::value_parser!(u32).range(1..=60)
    )]
    programs: Vec<u32>,

    /// Length of each measurement, after a warm-up of 0.5 s.
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    seconds: f64,
}

const FOREGROUND: &str = "foreground";
const BACKGROUND: &str = "background";
const P50: Metric = Metric { key: "request_p50_ms", title: "request p50 (ms)" };
const P99: Metric = Metric { key: "request_p99_ms", title: "request p99 (ms)" };

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    args.output.prepare()?;
    let interruption = Interruption::catch()?;
    let device = LoadDevice::open(args.device)?;
    let lines = [device.service()?, device.training()?];
    let scenes: Vec<_> = args
        .programs
        .iter()
        .flat_map(|count| {
            ["native", "xsched"].map(|scene| (format!("{scene}, {count} programs"), (scene, *count)))
        })
        .collect();
    let measure = |(scene, count): &(&str, u32), samples: &mut Samples| {
        measure(scene, *count, args, &lines, &interruption, samples)
    };
    let repetitions = args.output.repetitions;
    let Measured { rows, failures } = interleave(repetitions, &scenes, measure)?;
    let results = Results {
        bench: "scale",
        summary: "A program of high priority beside busy programs".to_owned(),
        repetitions,
        settings: vec![
            ("device", device.name.clone()),
            ("measured", format!("a window of {} s", args.seconds)),
            ("policy", "priority".to_owned()),
        ],
        rows,
        conclusions: Vec::new(),
        failures,
    };
    args.output.finish(&results)
}

fn measure(
    kind: &str,
    count: u32,
    args: &Args,
    [foreground, background]: &[CommandLine; 2],
    interruption: &Interruption,
    samples: &mut Samples,
) -> Result<(), RunError> {
    let scene = Scene::counting(interruption)?;
    let role = |name, line, priority| {
        let priority = if kind == "xsched" { priority } else { Priority::DEFAULT };
        Role { name, line, priority, level: LevelRequest::Auto, share: None, restarts: false }
    };
    let mut actors = Vec::new();
    for _ in 1..count {
        actors.push(scene.start(role(BACKGROUND, background, Priority::LOW))?);
    }
    actors.push(scene.start_and_launch(role(FOREGROUND, foreground, Priority::HIGH))?);
    let (from, to) = scene.window(&mut actors, Duration::from_secs_f64(args.seconds))?;
    let requests = scene.recorder().work(FOREGROUND).request_times_ms(from, to);
    if requests.is_empty() {
        let foreground = actors.last().map(|foreground| foreground.failure("completed no request"));
        return foreground.map_or(Ok(()), Err);
    }
    let program = if count == 1 { "1 program".to_owned() } else { format!("{count} programs") };
    samples.push(kind, &program, P50, percentile(&requests, 50));
    samples.push(kind, &program, P99, percentile(&requests, 99));
    Ok(())
}

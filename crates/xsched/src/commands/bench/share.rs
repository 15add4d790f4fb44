//! `xsched bench share`: shares requested against the utilization that was measured.

use std::time::Duration;

use xsched_core::{LevelRequest, Priority, Share};

use super::corun::seconds;
use super::interleave::{Measured, interleave};
use super::loads::{DeviceOption, LoadDevice};
use super::program::CommandLine;
use super::results::{Metric, OutputOptions, Results, Samples};
use super::scene::{Interruption, Role, RunError, Scene};

/// Measure how exactly programs get the shares that they request.
///
/// Runs one busy program for each share on the same device, without scheduling and with the policy share. The part of a program is
/// that of its kernels among all kernels that were launched; the kernels have the same length.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    output: OutputOptions,

    #[command(flatten)]
    device: DeviceOption,

    /// The shares in percent, one for each program.
    #[arg(
        long, value_name = "PERCENT", value_delimiter = ',', default_value = "75,25", num_args = 1..,
        value_parser = share
    )]
    shares: Vec<Share>,

    /// Length of each measurement, after a warm-up of 0.5 s.
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    seconds: f64,
}

const REQUESTED: Metric = Metric { key: "requested_percent", title: "requested (%)" };
const MEASURED: Metric = Metric { key: "measured_percent", title: "measured (%)" };
/// The busy program of each share: short kernels, so that the parts of a short window are exact.
const LOAD: [(&str, u64); 2] = [("--commands", 16), ("--length-us", 500)];

fn share(text: &str) -> Result<Share, String> {
    let number: i64 = text.parse().map_err(|_| format!("`{text}` is not a number of percent"))?;
    Share::new(number).map_err(|error| error.to_string())
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    anyhow::ensure!(args.shares.len() >= 2, "two shares or more are needed, such as --shares 75,25");
    args.output.prepare()?;
    let interruption = Interruption::catch()?;
    let device = LoadDevice::open(args.device)?;
    let load = device.load("busy", &LOAD)?;
    let names: Vec<String> = (1..=args.shares.len()).map(|number| format!("program {number}")).collect();
    let scenes = ["native", "xsched"].map(|name| (name.to_owned(), name));
    let measure =
        |scene: &&str, samples: &mut Samples| measure(scene, args, &names, &load, &interruption, samples);
    let repetitions = args.output.repetitions;
    let Measured { rows, failures } = interleave(repetitions, &scenes, measure)?;
    let mut results = Results {
        bench: "share",
        summary: "Shares requested and measured".to_owned(),
        repetitions,
        settings: vec![
            ("device", device.name.clone()),
            ("measured", format!("a window of {} s", args.seconds)),
            ("policy", "share".to_owned()),
        ],
        rows,
        conclusions: Vec::new(),
        failures,
    };
    results.conclusions = conclusion(&results, &names).into_iter().collect();
    args.output.finish(&results)
}

fn measure(
    kind: &str,
    args: &Args,
    names: &[String],
    load: &CommandLine,
    interruption: &Interruption,
    samples: &mut Samples,
) -> Result<(), RunError> {
    let scene = match kind {
        "xsched" => Scene::scheduling("share", interruption)?,
        _ => Scene::counting(interruption)?,
    };
    let mut actors = Vec::new();
    for (name, share) in names.iter().zip(&args.shares) {
        let role = Role {
            name,
            line: load,
            priority: Priority::DEFAULT,
            level: LevelRequest::Auto,
            share: Some(*share),
            restarts: false,
        };
        actors.push(scene.start_and_launch(role)?);
    }
    let (from, to) = scene.window(&mut actors, Duration::from_secs_f64(args.seconds))?;
    let launches: Vec<u64> =
        names.iter().map(|name| scene.recorder().work(name).launches(from, to)).collect();
    let total: u64 = launches.iter().sum::<u64>().max(1);
    let requested: f64 = args.shares.iter().map(|share| f64::from(share.percent())).sum();
    for ((name, share), launches) in names.iter().zip(&args.shares).zip(launches) {
        samples.push(kind, name, REQUESTED, f64::from(share.percent()) / requested * 100.0);
        samples.push(kind, name, MEASURED, launches as f64 / total as f64 * 100.0);
    }
    Ok(())
}

/// The largest difference in either scene.
fn conclusion(results: &Results, names: &[String]) -> Option<String> {
    let worst = |scene: &str| {
        let differences = names.iter().map(|name| {
            let median = |metric| results.median(scene, name, metric);
            Some((median(MEASURED)? - median(REQUESTED)?).abs())
        });
        differences.collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::max)
    };
    Some(format!(
        "Under XSched the largest difference between requested and measured is {:.1} percentage points (native: {:.1}).",
        worst("xsched")?,
        worst("native")?
    ))
}

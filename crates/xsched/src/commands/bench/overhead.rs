//! `xsched bench overhead`: a program alone on the device, without and with XSched.

use std::ffi::OsString;

use anyhow::Context as _;
use xsched_core::{LevelRequest, Priority};

use super::interleave::{Measured, interleave};
use super::loads::{DeviceOption, LoadDevice, number};
use super::private_service::PrivateService;
use super::program::{CommandLine, Scheduling};
use super::results::{Metric, OutputOptions, Results, Samples};
use super::scene::{Exited, Interruption, RunError, run_to_exit};
use crate::commands::run::library;

/// Measure what XSched costs a program that is alone on its device.
///
/// Without a command, built-in loads are measured: the host time of a launch, and the kernels per second of launches back to back,
/// for the shortest kernel and for one of 50 us. With a command, its run time is measured; it has to exit by itself.
#[derive(clap::Args)]
#[command(override_usage = "xsched bench overhead [OPTIONS] [-- COMMAND...]")]
pub(super) struct Args {
    #[command(flatten)]
    output: OutputOptions,

    #[command(flatten)]
    device: DeviceOption,

    /// Launches of the built-in loads between two synchronizations; each load makes 12 times as many.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    launches: u32,

    /// A program and its arguments.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const NATIVE: &str = "native";
const XSCHED: &str = "xsched";
const LAUNCH: Metric = Metric { key: "launch_us", title: "launch (us)" };
const RATE: Metric = Metric { key: "kernels_per_s", title: "kernels/s" };
const RUN_TIME: Metric = Metric { key: "run_time_s", title: "run time (s)" };
/// Lengths of the built-in kernels, and their names.
const LENGTHS_US: [(u64, &str); 2] = [(0, "shortest kernel"), (50, "kernel of 50 us")];

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    args.output.prepare()?;
    let interruption = Interruption::catch()?;
    let (programs, device) = if args.command.is_empty() {
        let device = LoadDevice::open(args.device)?;
        let loads = LENGTHS_US.map(|(length_us, name)| {
            let load =
                device.load("launches", &[("--count", args.launches.into()), ("--length-us", length_us)])?;
            anyhow::Ok((name, load))
        });
        (loads.into_iter().collect::<anyhow::Result<Vec<_>>>()?, Some(device))
    } else {
        library::find().context("the command cannot be scheduled")?;
        (vec![("program", CommandLine::of_user(&args.command))], None)
    };
    let service = PrivateService::start()?;
    let scenes: Vec<_> = programs
        .iter()
        .flat_map(|program| {
            [NATIVE, XSCHED].map(|scene| (format!("{scene}, {}", program.0), (scene, program)))
        })
        .collect();
    let measure = |(scene, (name, line)): &(&str, &(&str, CommandLine)), samples: &mut Samples| {
        let scheduling = Scheduling {
            socket: service.socket(),
            name,
            priority: Priority::DEFAULT,
            level: LevelRequest::Auto,
            share: None,
        };
        let scheduling = (*scene == XSCHED).then_some(&scheduling);
        let Exited { run_time, output, .. } = run_to_exit(name, line, scheduling, &interruption)?;
        if device.is_none() {
            samples.push(scene, name, RUN_TIME, run_time.as_secs_f64());
            return Ok(());
        }
        for metric in [LAUNCH, RATE] {
            samples.push(scene, name, metric, number(&output, metric.key)?);
        }
        Ok::<(), RunError>(())
    };
    let repetitions = args.output.repetitions;
    let Measured { rows, failures } = interleave(repetitions, &scenes, measure)?;
    let settings = match &device {
        Some(device) => vec![("device", device.name.clone()), ("launches", args.launches.to_string())],
        None => vec![("command", programs[0].1.text())],
    };
    let mut results = Results {
        bench: "overhead",
        summary: "A program alone on its device, without and with XSched".to_owned(),
        repetitions,
        settings,
        rows,
        conclusions: Vec::new(),
        failures,
    };
    results.conclusions = programs.iter().filter_map(|(name, _)| conclusion(&results, name)).collect();
    args.output.finish(&results)
}

/// The cost of a program in percent, by the figure that matters to it.
fn conclusion(results: &Results, program: &str) -> Option<String> {
    let median = |scene, metric| results.median(scene, program, metric);
    if let (Some(native), Some(xsched)) = (median(NATIVE, RUN_TIME), median(XSCHED, RUN_TIME)) {
        let percent = (xsched / native - 1.0) * 100.0;
        return Some(format!("Under XSched the run time of the program differs by {percent:+.1} %."));
    }
    let launch = median(XSCHED, LAUNCH)? - median(NATIVE, LAUNCH)?;
    let rate = (median(XSCHED, RATE)? / median(NATIVE, RATE)? - 1.0) * 100.0;
    Some(format!(
        "Under XSched a launch of the {program} takes {launch:+.2} us, and the kernels per second differ by {rate:+.1} %."
    ))
}

//! `xsched demo`: shows the effect of XSched in 15 seconds.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use xsched_core::LevelRequest;
use xsched_sim::Config;

use crate::demo::gpu;
use crate::demo::html;
use crate::demo::report::{self, Results, SceneName, Version, Workload};
use crate::demo::scene::{self, Plan};

/// Show the effect of XSched on a latency-critical foreground beside a background that is always busy.
///
/// Runs the same two programs three times: the foreground alone, both as the device schedules them, and both under
/// XSched. Uses an NVIDIA GPU if there is one, else a simulated accelerator, which needs no hardware; the two programs are
/// processes of their own in both cases.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Device to use; auto is a GPU if there is one, else the simulated device.
    #[arg(long, value_enum, default_value_t = Device::Auto)]
    device: Device,

    /// Preemption level: auto, 1, 2 or 3.
    #[arg(long, default_value_t = LevelRequest::Auto)]
    level: LevelRequest,

    /// Requests the foreground serves in each scene.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(5..=100_000))]
    requests: u32,

    /// File to write the HTML report to.
    #[arg(long, value_name = "FILE", default_value = "xsched-demo.html")]
    html: PathBuf,

    /// Write no HTML report.
    #[arg(long, conflicts_with = "html")]
    no_html: bool,

    /// Print the results as one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Device {
    Auto,
    Simulated,
    Gpu,
}

/// The foreground: requests of 16 commands of 0.5 ms, 20 % of the device's time.
const COMMANDS_PER_REQUEST: u32 = 16;
const COMMAND_US: u64 = 500;
const PERIOD_US: u64 = 40_000;
/// The background: steps of 16 commands of 2 ms, without a pause.
const BACKGROUND_COMMAND_US: u64 = 2_000;
const BACKGROUND_BATCH: u32 = 16;

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let config = Config::default();
    let gpu = match args.device {
        Device::Simulated => None,
        Device::Auto => gpu::find().ok(),
        Device::Gpu => Some(gpu::find()?),
    };
    let level = match gpu {
        // Known once the scene has scheduled programs on the GPU.
        Some(_) => None,
        None => Some(config.capabilities().negotiate(args.level)?.number()),
    };
    // Created first, so that an error is reported before the 15 s of measurement.
    let report_file = if args.no_html { None } else { Some(create(&args.html)?) };
    let requests = args.requests as usize;
    let plan = Plan {
        level: args.level,
        requests,
        commands_per_request: COMMANDS_PER_REQUEST,
        command_us: COMMAND_US,
        period_us: PERIOD_US,
        background_command_us: BACKGROUND_COMMAND_US,
        background_batch: BACKGROUND_BATCH,
    };
    let request_us = u64::from(COMMANDS_PER_REQUEST) * COMMAND_US;
    let bar = progress_bar(u64::from(args.requests) * 3);
    let mut scenes = Vec::new();
    for name in [SceneName::Alone, SceneName::Native, SceneName::XSched] {
        bar.set_message(format!("{}: {}", name.as_str(), name.meaning()));
        let progress = || bar.inc(1);
        scenes.push(match &gpu {
            Some(gpu) => gpu.run(name, &plan, progress)?,
            None => scene::run(name, &plan, &config, progress)?,
        });
    }
    bar.finish_and_clear();
    let mut versions = vec![Version::of("xsched", env!("CARGO_PKG_VERSION"))];
    versions.extend(gpu.as_ref().map(|gpu| Version::of("cuda", &gpu.cuda)));
    let results = Results {
        device: gpu.as_ref().map_or_else(|| config.name(), |gpu| gpu.name.clone()),
        device_note: match gpu {
            Some(_) => {
                "a real GPU; latencies as the programs measure them, utilization from the kernels completed"
            }
            None => "simulated in real time, used by real processes",
        }
        .to_owned(),
        level: level
            .or_else(|| gpu.as_ref()?.level())
            .context("the preemption level of the background is not known")?,
        versions,
        workload: Workload {
            request_us: request_us as f64,
            commands_per_request: COMMANDS_PER_REQUEST,
            load: request_us as f64 / PERIOD_US as f64,
            background_command_us: BACKGROUND_COMMAND_US as f64,
            requests,
        },
        scenes,
    };
    print(args, report_file, &results)
}

fn create(path: &Path) -> anyhow::Result<File> {
    File::create(path).with_context(|| format!("cannot write the report to {}", path.display()))
}

fn print(args: &Args, report_file: Option<File>, results: &Results) -> anyhow::Result<()> {
    if let Some(mut file) = report_file {
        file.write_all(html::page(results).as_bytes())
            .with_context(|| format!("cannot write the report to {}", args.html.display()))?;
    }
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{}", report::json(results)?)?;
        return Ok(());
    }
    let colour = out.is_terminal() && std::env::var_os("NO_COLOR").is_none();
    write!(out, "{}", report::table(results, colour))?;
    if !args.no_html {
        writeln!(out, "\nReport: {}", args.html.display())?;
    }
    Ok(())
}

fn progress_bar(length: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {percent:>3} %  {eta:>3} left  {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style)
}

//! `xsched simulate`: runs policies on tasks that a file describes, in virtual time, or plans a cluster for a trace of jobs.

mod cluster;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use xsched_core::Nanos;
use xsched_policy::{POLICIES, PolicyInfo};
use xsched_simulator::{self as simulator, NATIVE, Options, Progress, Report, Spec};

/// Simulate policies on devices and tasks that a file describes, in virtual time.
///
/// Needs no accelerator, and simulates hours in seconds. `examples/simulations` has example files. With --trace, finds how many
/// GPUs a cluster needs for a trace of jobs: exclusive GPUs, time slicing and XSched (docs/simulate-cluster.md).
#[derive(clap::Args)]
pub(crate) struct Args {
    /// TOML file that describes devices and tasks.
    #[arg(required_unless_present_any = ["trace", "generate_trace"])]
    file: Option<PathBuf>,

    /// Policies, by either of their names, separated by commas. Several give a comparison. `all` is every policy, and `native` is
    /// the device's own time slicing without a policy. With --trace: exclusive, native, priority; all of them by default.
    #[arg(
        short,
        long,
        required_unless_present_any = ["trace", "generate_trace"],
        value_delimiter = ',',
        value_name = "NAME"
    )]
    policy: Vec<String>,

    /// Seed of the random numbers, instead of the file's; of a generated trace, by default 1.
    #[arg(long)]
    seed: Option<u64>,

    /// Virtual time to simulate, such as 500ms or 10s, instead of the file's.
    #[arg(long, value_name = "TIME", value_parser = xsched_core::parse_time)]
    duration: Option<Nanos>,

    /// Print everything as JSON instead of tables.
    #[arg(long)]
    json: bool,

    /// With --json, a row for every task even if there are more than 200.
    #[arg(long, requires = "json")]
    every_task: bool,

    #[command(flatten)]
    cluster: cluster::ClusterArgs,
}

#[derive(Serialize)]
struct Output<'a> {
    file: String,
    reports: &'a [Report],
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Some(file) = args.cluster.check(args)? else { return cluster::run(args) };
    let policies = policies(&args.policy)?;
    let spec = read(args, file)?;
    let reports: Vec<_> =
        policies.into_iter().map(|policy| simulate_one(&spec, policy, args.every_task)).collect();
    let mut out = io::stdout().lock();
    if args.json {
        let file = file.display().to_string();
        serde_json::to_writer_pretty(&mut out, &Output { file, reports: &reports })
            .map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        let text = match &reports[..] {
            [report] => simulator::table(report),
            reports => simulator::compare(reports),
        };
        write!(out, "{}\n{text}", file.display())?;
    }
    Ok(())
}

/// The policies that the command line names, without duplicates, in that order.
fn policies(names: &[String]) -> anyhow::Result<Vec<&'static PolicyInfo>> {
    let mut found: Vec<&'static PolicyInfo> = Vec::new();
    for name in names {
        if name.eq_ignore_ascii_case("all") {
            found.push(&NATIVE);
            found.extend(POLICIES);
        } else if name.eq_ignore_ascii_case(NATIVE.name) {
            found.push(&NATIVE);
        } else {
            found.push(PolicyInfo::find(name).map_err(|unknown| {
                anyhow::anyhow!("{unknown}, native (the device's own time slicing), or all")
            })?);
        }
    }
    let mut seen = Vec::new();
    found.retain(|policy| {
        let is_new = !seen.contains(&policy.name);
        seen.push(policy.name);
        is_new
    });
    Ok(found)
}

fn read(args: &Args, path: &Path) -> anyhow::Result<Spec> {
    let file = || path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", file()))?;
    let mut spec = Spec::from_toml(&text).with_context(file)?;
    if let Some(seed) = args.seed {
        spec = spec.with_seed(seed);
    }
    if let Some(duration) = args.duration {
        spec = spec.with_duration(duration).with_context(file)?;
    }
    Ok(spec)
}

fn simulate_one(spec: &Spec, policy: &'static PolicyInfo, every_task: bool) -> Report {
    let progress = Progress::default();
    let options = Options { every_task, progress: Some(&progress), ..Options::default() };
    let name = format!("{policy:?}");
    let state = || (name.clone(), progress.fraction());
    with_progress(state, || simulator::run_with(spec, policy, &options))
}

/// Calls `work`, and shows a progress bar with the message and the fraction of `state` meanwhile, if stderr is a terminal.
fn with_progress<T>(state: impl Fn() -> (String, f64) + Sync, work: impl FnOnce() -> T) -> T {
    if !io::stderr().is_terminal() {
        return work();
    }
    let (done, wait) = mpsc::channel::<()>();
    let state = &state;
    thread::scope(|scope| {
        scope.spawn(move || show_progress(state, &wait));
        let result = work();
        drop(done);
        result
    })
}

/// Shows a progress bar after the first second, until the sender of `done` is dropped.
fn show_progress(state: &dyn Fn() -> (String, f64), done: &mpsc::Receiver<()>) {
    let pause = |length| matches!(done.recv_timeout(length), Err(mpsc::RecvTimeoutError::Timeout));
    if !pause(Duration::from_secs(1)) {
        return;
    }
    let style = ProgressStyle::with_template("{msg} {wide_bar} {percent:>3} %, {eta} left");
    let bar = ProgressBar::new(1000);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    while pause(Duration::from_millis(100)) {
        let (message, fraction) = state();
        bar.set_message(message);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 1000")]
        bar.set_position((fraction * 1000.0) as u64);
    }
    bar.finish_and_clear();
}

//! `xsched simulate --trace`: how many GPUs a trace of jobs needs, by the way in which they are shared.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context as _, bail, ensure};
use serde::Serialize;
use xsched_core::Level;
use xsched_policy::PolicyInfo;
use xsched_simulator::Progress;
use xsched_simulator::cluster::{
    self, ClusterError, Costs, Generated, MAX_CLUSTER_GPUS, MAX_JOBS_PER_GPU, Needed, Outcome, Placement,
    Row, Settings, Targets, Trace,
};

use super::with_progress;
use crate::cli::message;

/// GPUs of a node unless the cluster is smaller.
const GPUS_PER_NODE: u32 = 8;
const GPU_MEMORY_GIB: f32 = 80.0;
const JOBS_PER_GPU: usize = 4;
const GENERATED_JOBS: u64 = 10_000;
const GENERATED_DAYS: f64 = 7.0;

#[derive(clap::Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct ClusterArgs {
    /// CSV file with a job in each row. Prints how many GPUs these jobs need.
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,

    /// Simulate a cluster of so many GPUs instead of searching for the number.
    #[arg(long, value_name = "N")]
    gpus: Option<u32>,

    /// GPUs of a node; by default 8.
    #[arg(long, value_name = "N")]
    gpus_per_node: Option<u32>,

    /// Memory of a GPU in GiB; by default 80.
    #[arg(long, value_name = "GIB")]
    gpu_memory: Option<f32>,

    /// The most jobs that share a GPU; by default 4.
    #[arg(long, value_name = "N")]
    jobs_per_gpu: Option<usize>,

    /// Placement rule: first-fit, pack or spread; by default pack.
    #[arg(long, value_name = "RULE")]
    placement: Option<String>,

    /// Preemption levels of the policy priority, separated by commas; by default 3.
    #[arg(long, value_name = "LEVEL", value_delimiter = ',')]
    level: Vec<String>,

    /// Allowed p99 latency of a service, as a multiple of that alone; by default 1.2.
    #[arg(long, value_name = "RATIO")]
    service_p99: Option<f64>,

    /// Allowed time from arrival to completion of 95 % of batch jobs, as a multiple of their duration; by default 1.5.
    #[arg(long, value_name = "RATIO")]
    batch_slowdown: Option<f64>,

    /// HTML file to write a report with pictures to.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Write a synthetic trace to this file and exit.
    #[arg(long, value_name = "FILE")]
    pub(super) generate_trace: Option<PathBuf>,

    /// Jobs of the synthetic trace; by default 10000.
    #[arg(long, value_name = "N")]
    jobs: Option<u64>,

    /// Days in which the jobs of the synthetic trace arrive; by default 7.
    #[arg(long, value_name = "N")]
    days: Option<f64>,
}

impl ClusterArgs {
    /// Rejects options that do not belong together. Returns the TOML file if no cluster is simulated.
    pub(super) fn check<'a>(&self, args: &'a super::Args) -> anyhow::Result<Option<&'a Path>> {
        let for_trace = [
            ("--gpus", self.gpus.is_some()),
            ("--gpus-per-node", self.gpus_per_node.is_some()),
            ("--gpu-memory", self.gpu_memory.is_some()),
            ("--jobs-per-gpu", self.jobs_per_gpu.is_some()),
            ("--placement", self.placement.is_some()),
            ("--level", !self.level.is_empty()),
            ("--service-p99", self.service_p99.is_some()),
            ("--batch-slowdown", self.batch_slowdown.is_some()),
            ("--report", self.report.is_some()),
        ];
        let for_generation = [("--jobs", self.jobs.is_some()), ("--days", self.days.is_some())];
        let for_file = [("--duration", args.duration.is_some()), ("--every-task", args.every_task)];
        let given = |options: &[(&'static str, bool)]| {
            options.iter().find(|(_, is_given)| *is_given).map(|(name, _)| *name)
        };
        let needs = |option: Option<&str>, what: &str| match option {
            Some(option) => bail!("{option} needs {what}"),
            None => Ok(()),
        };
        match (&args.file, &self.trace, &self.generate_trace) {
            (_, Some(_), Some(_)) => {
                bail!("--trace and --generate-trace contradict each other: one reads a trace, one writes it")
            }
            (Some(file), Some(_), None) | (Some(file), None, Some(_)) => {
                bail!(
                    "a trace and {} contradict each other: a TOML file describes devices, a trace a cluster",
                    file.display()
                )
            }
            (None, Some(_), None) => {
                needs(given(&for_generation), "--generate-trace")?;
                needs(given(&for_file), "a TOML file")?;
                ensure!(
                    args.seed.is_none(),
                    "--seed needs a TOML file or --generate-trace: a trace has no random numbers"
                );
                Ok(None)
            }
            (None, None, Some(_)) => {
                needs(given(&for_trace), "--trace")?;
                needs(given(&for_file), "a TOML file")?;
                ensure!(
                    args.policy.is_empty() && !args.json,
                    "--generate-trace takes only --jobs, --days and --seed"
                );
                Ok(None)
            }
            (file, None, None) => {
                needs(given(&for_trace), "--trace")?;
                needs(given(&for_generation), "--generate-trace")?;
                // The command line requires one of the three.
                Ok(file.as_deref())
            }
        }
    }

    /// The cluster, without its number of GPUs.
    fn settings(&self) -> anyhow::Result<Settings> {
        let per_node =
            self.gpus_per_node.unwrap_or_else(|| GPUS_PER_NODE.min(self.gpus.unwrap_or(u32::MAX).max(1)));
        ensure!(
            (1..=1024).contains(&per_node),
            "--gpus-per-node {per_node} is out of range: allowed is 1 to 1024"
        );
        if let Some(gpus) = self.gpus {
            ensure!(
                (1..=MAX_CLUSTER_GPUS).contains(&gpus),
                "--gpus {gpus} is out of range: allowed is 1 to {MAX_CLUSTER_GPUS}"
            );
            ensure!(
                gpus.is_multiple_of(per_node),
                "--gpus {gpus} is not a multiple of --gpus-per-node {per_node}"
            );
        }
        let memory = self.gpu_memory.unwrap_or(GPU_MEMORY_GIB);
        ensure!(
            memory > 0.0 && memory <= 10_000.0,
            "--gpu-memory {memory} is out of range: allowed is up to 10000 GiB"
        );
        let jobs_per_gpu = self.jobs_per_gpu.unwrap_or(JOBS_PER_GPU);
        ensure!(
            (1..=MAX_JOBS_PER_GPU).contains(&jobs_per_gpu),
            "--jobs-per-gpu {jobs_per_gpu} is out of range: allowed is 1 to {MAX_JOBS_PER_GPU}"
        );
        let mut targets = Targets::default();
        targets.service_p99_ratio = self.service_p99.unwrap_or(targets.service_p99_ratio);
        targets.batch_slowdown = self.batch_slowdown.unwrap_or(targets.batch_slowdown);
        for (option, ratio) in
            [("--service-p99", targets.service_p99_ratio), ("--batch-slowdown", targets.batch_slowdown)]
        {
            ensure!(
                (1.0..=1000.0).contains(&ratio),
                "{option} {ratio} is out of range: allowed is 1 to 1000"
            );
        }
        let placement = match &self.placement {
            Some(name) => name.parse().map_err(anyhow::Error::msg)?,
            None => Placement::Pack,
        };
        Ok(Settings {
            costs: Costs::exclusive(),
            gpus: self.gpus.unwrap_or(per_node),
            gpus_per_node: per_node,
            gpu_memory_gib: memory,
            jobs_per_gpu,
            placement,
            targets,
        })
    }

    fn levels(&self) -> anyhow::Result<Vec<Level>> {
        let level = |text: &String| {
            let level = text.trim().parse().ok().and_then(Level::from_number);
            level.with_context(|| format!("level `{text}` does not exist: allowed is 1, 2 or 3"))
        };
        if self.level.is_empty() {
            Ok(vec![Level::Interrupt])
        } else {
            self.level.iter().map(level).collect()
        }
    }

    /// The ways of sharing to compare, with their names.
    fn ways(&self, policies: &[String]) -> anyhow::Result<Vec<(String, Costs)>> {
        let all = ["exclusive".to_owned(), "native".to_owned(), "priority".to_owned()];
        let levels = self.levels()?;
        let mut ways: Vec<(String, Costs)> = Vec::new();
        let mut has_priority = false;
        for name in if policies.is_empty() { &all } else { policies } {
            let is = |other: &str| name.eq_ignore_ascii_case(other);
            let mut found = Vec::new();
            if is("exclusive") {
                found.push(("exclusive".to_owned(), Costs::exclusive()));
            } else if is("native") {
                found.push(("time slicing".to_owned(), Costs::time_slices()));
            } else if PolicyInfo::find(name).is_ok_and(|policy| policy.plain == "priority") {
                has_priority = true;
                let of_level =
                    |level: &Level| (format!("XSched level {}", level.number()), Costs::xsched(*level));
                found.extend(levels.iter().map(of_level));
            } else {
                bail!("policy `{name}` has no model of a cluster: use exclusive, native or priority");
            }
            found.retain(|(name, _)| ways.iter().all(|(other, _)| other != name));
            ways.append(&mut found);
        }
        ensure!(has_priority || self.level.is_empty(), "--level needs the policy priority");
        Ok(ways)
    }
}

#[derive(Serialize)]
struct Output<'a> {
    trace: String,
    workload: String,
    targets: Targets,
    gpus_per_node: u32,
    gpu_memory_gib: f32,
    jobs_per_gpu: usize,
    placement: &'a str,
    ignored_columns: &'a [String],
    jobs_without_memory: usize,
    results: Vec<OneResult<'a>>,
    assumptions: &'a [String],
}

#[derive(Serialize)]
struct OneResult<'a> {
    sharing: &'a str,
    #[serde(flatten)]
    outcome: &'a Outcome,
    /// With a search: the largest number of GPUs that was found to be too few, and the simulations it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    gpus_too_few: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    simulations: Option<u32>,
}

pub(super) fn run(args: &super::Args) -> anyhow::Result<()> {
    let own = &args.cluster;
    if let Some(path) = &own.generate_trace {
        return generate(own, path, args.seed.unwrap_or(1));
    }
    // The command line has one of the two.
    let Some(path) = &own.trace else { return Ok(()) };
    let settings = own.settings()?;
    let ways = own.ways(&args.policy)?;
    let file = || path.display().to_string();
    let input = File::open(path).with_context(|| format!("cannot read {}", file()))?;
    let trace = Trace::read(BufReader::with_capacity(1 << 20, input)).with_context(file)?;
    if !trace.ignored_columns.is_empty() {
        message(format_args!("xsched: {}: ignored columns: {}", file(), trace.ignored_columns.join(", ")));
    }
    if trace.without_memory > 0 {
        message(format_args!(
            "xsched: {}: {} jobs have no memory and count as needing none",
            file(),
            trace.without_memory
        ));
    }
    let all: Vec<_> = ways.iter().map(|(_, costs)| Settings { costs: *costs, ..settings.clone() }).collect();
    let results = simulate(&trace, &all, own.gpus.is_none()).with_context(file)?;
    let names: Vec<_> = ways.into_iter().map(|(name, _)| name).collect();
    let (workload, assumptions) = (cluster::workload(&trace), cluster::assumptions(&names, &all));
    let rows: Vec<_> = names
        .into_iter()
        .zip(&results)
        .map(|(name, found)| Row { name, outcome: found.outcome.clone() })
        .collect();
    if let Some(report) = &own.report {
        let title = format!("GPUs for {workload}");
        std::fs::write(report, cluster::report(&title, &rows, &assumptions))
            .with_context(|| format!("cannot write {}", report.display()))?;
    }
    let is_search = own.gpus.is_none();
    let mut out = io::stdout().lock();
    if args.json {
        let one = rows.iter().zip(&results).map(|(row, found)| OneResult {
            sharing: &row.name,
            outcome: &row.outcome,
            gpus_too_few: is_search.then_some(found.gpus_too_few),
            simulations: is_search.then_some(found.simulations),
        });
        let output = Output {
            trace: file(),
            workload,
            targets: settings.targets,
            gpus_per_node: settings.gpus_per_node,
            gpu_memory_gib: settings.gpu_memory_gib,
            jobs_per_gpu: settings.jobs_per_gpu,
            placement: settings.placement.name(),
            ignored_columns: &trace.ignored_columns,
            jobs_without_memory: trace.without_memory,
            results: one.collect(),
            assumptions: &assumptions,
        };
        serde_json::to_writer_pretty(&mut out, &output).map_err(io::Error::from)?;
        writeln!(out)?;
        return Ok(());
    }
    writeln!(out, "{}\n{workload}\n\n{}", file(), cluster::table(&rows, is_search))?;
    for line in assumptions {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn generate(own: &ClusterArgs, path: &Path, seed: u64) -> anyhow::Result<()> {
    let (jobs, days) = (own.jobs.unwrap_or(GENERATED_JOBS), own.days.unwrap_or(GENERATED_DAYS));
    ensure!((1..=20_000_000).contains(&jobs), "--jobs {jobs} is out of range: allowed is 1 to 20000000");
    ensure!(
        days > 0.0 && days <= 3650.0,
        "--days {days} is out of range: allowed is more than 0 and up to 3650"
    );
    let cannot = || format!("cannot write {}", path.display());
    let file = BufWriter::new(File::create(path).with_context(cannot)?);
    cluster::generate(&Generated { jobs, days, seed }, file).with_context(cannot)
}

/// Simulates or searches all ways of sharing, several at a time.
fn simulate(trace: &Trace, all: &[Settings], is_search: bool) -> Result<Vec<Needed>, ClusterError> {
    let progress: Vec<_> = all.iter().map(|_| Progress::default()).collect();
    let results: Vec<_> = all.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(settings) = all.get(index) else { return };
            let result = if is_search {
                cluster::needed_gpus(trace, settings, &progress[index])
            } else {
                cluster::run(trace, settings, &progress[index]).map(|outcome| Needed {
                    outcome,
                    gpus_too_few: 0,
                    simulations: 1,
                })
            };
            *results[index].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        }
    };
    let state = || {
        let runs: u64 = progress.iter().map(Progress::runs).sum();
        let running = progress.iter().map(Progress::fraction).filter(|part| *part > 0.0 && *part < 1.0);
        (format!("{runs} simulations complete, the current one:"), running.fold(0.0, f64::max))
    };
    with_progress(state, || {
        let threads = thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get).min(all.len());
        thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(work);
            }
            work();
        });
    });
    let result = |result: Mutex<Option<_>>| result.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.into_iter().filter_map(result).collect()
}

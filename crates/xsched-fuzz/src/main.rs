//! Runs everything that reads untrusted input on random input: `cargo run -p xsched-fuzz -- all --seconds 20`.
//!
//! A target is a function of bytes; a panic, a crash or an execution of more than [`HANG_TIMEOUT`] is a failure. Inputs are made from the
//! files in `corpus/TARGET` by random changes, repeatably: the same seed makes the same inputs. The failing input is saved to a
//! file, and `--replay FILE` runs it again.
//!
//! * [`engine`]: the loop, the saved inputs and the watchdog.
//! * [`mutate`]: random numbers and random changes.
//! * [`coverage`]: which branches an input reached, if the build has counters (`scripts/fuzz`).
//! * [`targets`]: one file per target.

// The tests of the included sources belong to their own crate, and need what is around them there.
#![cfg(not(test))]

mod coverage;
mod engine;
mod mutate;
mod targets;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser as _;

pub(crate) use xsched_ipc::tool;

use engine::{Limit, Outcome};
use targets::{TARGETS, Target};

/// An execution that takes longer is a failure.
const HANG_TIMEOUT: Duration = Duration::from_secs(20);

/// Run the parsers and the scheduler of XSched on random input.
#[derive(clap::Parser)]
struct Args {
    /// A target, `all`, or `list`.
    target: String,

    /// Stop after this time, divided among the targets.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,

    /// Stop after this many executions of each target, whatever the time.
    #[arg(long)]
    executions: Option<u64>,

    /// The same seed makes the same inputs.
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Run the inputs in these files once, instead of random ones.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    replay: Vec<PathBuf>,

    /// Directory with a directory of inputs for each target.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))]
    corpus: PathBuf,

    /// Directory for failing inputs.
    #[arg(long, default_value = "target/fuzz-failures")]
    output: PathBuf,

    /// Write the executions of each target to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Add inputs that reach new branches to the corpus. Needs a build with counters: see scripts/fuzz.
    #[arg(long)]
    grow: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xsched-fuzz: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Returns whether no input failed.
fn run(args: &Args) -> anyhow::Result<bool> {
    if args.target == "list" {
        for target in TARGETS {
            println!("{:<12} {}", target.name, target.about);
        }
        return Ok(true);
    }
    let selected: Vec<&Target> =
        TARGETS.iter().filter(|target| args.target == "all" || target.name == args.target).collect();
    let selected = if args.target == targets::CHECK.name { vec![&targets::CHECK] } else { selected };
    anyhow::ensure!(
        !selected.is_empty(),
        "there is no target `{}`: `xsched-fuzz list` lists them",
        args.target
    );
    anyhow::ensure!(args.seconds.is_finite() && args.seconds >= 0.0, "--seconds is not a time");
    let limit = match args.executions {
        Some(executions) => Limit::Executions(executions),
        None => Limit::Time(Duration::from_secs_f64(args.seconds / selected.len() as f64)),
    };
    let (mut total, mut seconds, mut done) = (0, 0.0, Vec::new());
    for target in &selected {
        let outcome = if args.replay.is_empty() {
            engine::fuzz(target, args.seed, limit, &args.corpus, &args.output, args.grow)?
        } else {
            engine::replay(target, &args.replay, &args.output)?
        };
        let Outcome { executions, took, cpu, failure, inputs } = outcome;
        total += executions;
        seconds += took.as_secs_f64();
        let rate = |time: Duration| executions as f64 / time.as_secs_f64().max(1e-9);
        println!(
            "{:<12} {executions:>12} executions, {:>8.0} a second, {:>8.0} a second of CPU time, {inputs} inputs",
            target.name,
            rate(took),
            rate(cpu)
        );
        if let Some(file) = &args.json {
            done.push(serde_json::json!({
                "name": target.name, "about": target.about, "executions": executions, "seconds": took.as_secs_f64(),
                "cpu_seconds": cpu.as_secs_f64(), "inputs": inputs, "failure": failure,
            }));
            // After each target: a run that is ended leaves what it has done.
            write_json(file, &serde_json::json!({ "seed": args.seed, "targets": done }))?;
        }
        if let Some(failure) = failure {
            println!("{}: {failure}", target.name);
            return Ok(false);
        }
    }
    println!("{:<12} {total:>12} executions in {seconds:.1} s, no failure (seed {})", "total", args.seed);
    Ok(true)
}

fn write_json(file: &Path, document: &serde_json::Value) -> anyhow::Result<()> {
    let text = format!("{document:#}\n");
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

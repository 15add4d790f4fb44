//! `xsched bench verify`: a program prints the same results with and without XSched.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Context as _;
use xsched_core::{Level, LevelRequest, Priority};

use super::interleave::{Measured, interleave};
use super::loads::{DeviceOption, LoadDevice};
use super::program::{CommandLine, Fnv};
use super::results::{Metric, OutputOptions, Results, Row, Samples};
use super::scene::{Actor, Exited, Interruption, ProgramFailure, Role, RunError, Scene, run_to_exit};
use crate::commands::run::library;

/// Check that a program prints the same results with and without XSched.
///
/// The program runs without XSched, and at each level with low priority beside a second instance of itself with high priority, which
/// preempts it again and again. What it prints to stdout has to be the same in all runs, to the bit. Without a command, a built-in
/// computation runs.
#[derive(clap::Args)]
#[command(override_usage = "xsched bench verify [OPTIONS] [-- COMMAND...]")]
pub(super) struct Args {
    #[command(flatten)]
    output: OutputOptions,

    #[command(flatten)]
    device: DeviceOption,

    /// A program and its arguments; it has to exit by itself and to print its results.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const PROGRAM: &str = "program";
const COMPETITOR: &str = "second instance";
const DIFFERENT: Metric = Metric { key: "different_results", title: "different results" };
const HOLDS: Metric = Metric { key: "holds", title: "times held" };
const RUN_TIME: Metric = Metric { key: "run_time_s", title: "run time (s)" };
/// The built-in computation.
const LOAD: [(&str, u64); 2] = [("--commands", 200), ("--length-us", 1_000)];
const LEVEL_TRIES: u32 = 10;
/// The longest that the program may take beside its second instance.
const TIMEOUT: Duration = Duration::from_secs(3_600);

#[derive(Clone, Copy, Debug)]
enum Kind {
    Native,
    Level(Level),
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    args.output.prepare()?;
    let interruption = Interruption::catch()?;
    let (line, device) = if args.command.is_empty() {
        let device = LoadDevice::open(args.device)?;
        (device.load("compute", &LOAD)?, Some(device))
    } else {
        library::find().context("the command cannot be scheduled")?;
        (CommandLine::of_user(&args.command), None)
    };
    let (reference, level) = reference(&line, &interruption)?;
    let levels = Level::ALL.iter().copied().filter(|known| known.number() <= level);
    let scenes: Vec<_> = std::iter::once(("native".to_owned(), Kind::Native))
        .chain(levels.map(|level| (format!("level {}", level.number()), Kind::Level(level))))
        .collect();
    let measure = |kind: &Kind, samples: &mut Samples| {
        let (name, checksum) = match kind {
            Kind::Native => {
                let exited = run_to_exit(PROGRAM, &line, None, &interruption)?;
                samples.push("native", PROGRAM, RUN_TIME, exited.run_time.as_secs_f64());
                ("native".to_owned(), exited.stdout_checksum)
            }
            Kind::Level(level) => preempted(*level, &line, &interruption, samples)?,
        };
        samples.push(&name, PROGRAM, DIFFERENT, if checksum == reference { 0.0 } else { 1.0 });
        Ok::<(), RunError>(())
    };
    let repetitions = args.output.repetitions;
    let Measured { rows, failures } = interleave(repetitions, &scenes, measure)?;
    let mut settings: Vec<_> = device.iter().map(|device| ("device", device.name.clone())).collect();
    settings.push(("command", line.text()));
    let mut results = Results {
        bench: "verify",
        summary: "The results of a program without and with XSched".to_owned(),
        repetitions,
        settings,
        rows,
        conclusions: Vec::new(),
        failures,
    };
    let different = scenes_with_different_results(&results);
    results.conclusions = vec![match different.as_slice() {
        [] => "All runs printed the same results.".to_owned(),
        scenes if scenes.iter().any(|scene| scene == "native") => {
            "The program prints different results without XSched: choose one whose results do not vary."
                .to_owned()
        }
        scenes => format!("Results that differ from those without XSched: {}.", scenes.join(", ")),
    }];
    args.output.finish(&results)?;
    anyhow::ensure!(different.is_empty(), "the program printed different results: {}", different.join(", "));
    Ok(())
}

/// The checksum of the results without XSched, and the level that the program gets which requests none.
fn reference(line: &CommandLine, interruption: &Interruption) -> anyhow::Result<(Fnv, u8)> {
    let find = || {
        let Exited { stdout_checksum, .. } = run_to_exit(PROGRAM, line, None, interruption)?;
        // A program that has exited before its level was read has no queue any longer.
        for _ in 0..LEVEL_TRIES {
            let scene = Scene::counting(interruption)?;
            let role = role(PROGRAM, line, Priority::DEFAULT, LevelRequest::Auto);
            let _running = scene.start_and_launch(role)?;
            if let Some(level) = scene.level()? {
                return Ok((stdout_checksum, level));
            }
        }
        Err(anyhow::anyhow!("`{}` exits too soon to find its preemption level", line.text()).into())
    };
    let (checksum, level) = find().map_err(|error| match error {
        RunError::Fatal(error) => error,
        RunError::Program(failure) => {
            let ProgramFailure { command, reason, output, .. } = failure;
            let output = if output.is_empty() { "it printed nothing".to_owned() } else { output };
            anyhow::anyhow!("`{command}` cannot be verified, because it {reason}: {output}")
        }
    })?;
    anyhow::ensure!(
        checksum != Fnv::EMPTY,
        "`{}` printed nothing to stdout, so there are no results to compare",
        line.text()
    );
    Ok((checksum, level))
}

fn role<'a>(name: &'a str, line: &'a CommandLine, priority: Priority, level: LevelRequest) -> Role<'a> {
    Role { name, line, priority, level, share: None, restarts: name == COMPETITOR }
}

/// Runs the program beside a second instance that preempts it. Returns the name of the scene and the checksum of the results.
fn preempted(
    level: Level,
    line: &CommandLine,
    interruption: &Interruption,
    samples: &mut Samples,
) -> Result<(String, Fnv), RunError> {
    let name = format!("level {}", level.number());
    let scene = Scene::scheduling("priority", interruption)?;
    let request = LevelRequest::Exactly(level);
    let mut actors = vec![
        scene.start_and_launch(role(COMPETITOR, line, Priority::HIGH, request))?,
        scene.start(role(PROGRAM, line, Priority::LOW, request))?,
    ];
    scene.wait(&mut actors, TIMEOUT, |actors| actors.iter().any(Actor::has_ended))?;
    let [_, program] = actors.as_mut_slice() else { return Ok((name, Fnv::EMPTY)) };
    let run_time = program.elapsed();
    if !program.check()? {
        return Err(program.failure(format!("did not exit within {TIMEOUT:?}")));
    }
    samples.push(&name, PROGRAM, RUN_TIME, run_time.as_secs_f64());
    samples.push(&name, PROGRAM, HOLDS, scene.recorder().work(PROGRAM).holds() as f64);
    Ok((name, program.stdout_checksum()))
}

/// The scenes in which a run printed other results than the first one.
fn scenes_with_different_results(results: &Results) -> Vec<String> {
    let differs = |row: &&Row| {
        row.figure(DIFFERENT).is_some_and(|estimate| estimate.samples.iter().any(|sample| *sample > 0.0))
    };
    results.rows.iter().filter(differs).map(|row| row.scene.clone()).collect()
}

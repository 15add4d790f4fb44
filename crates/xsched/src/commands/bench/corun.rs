//! `xsched bench corun`: two programs alone, together as the device schedules them, and together under XSched.
//!
//! ```text
//!   background starts ── it launches ── foreground starts ── it launches ── warm-up ── window of --seconds      (a service)
//!   background starts ── it launches ── warm-up ── foreground starts ─────────────── foreground exits           (a job)
//! ```

use std::cell::Cell;
use std::ffi::OsString;
use std::time::Duration;

use anyhow::Context as _;
use xsched_core::{LevelRequest, Nanos, Priority};
use xsched_policy::PolicyInfo;

use super::gpu_worker::percentile;
use super::interleave::{Measured, interleave};
use super::loads::{DeviceOption, LoadDevice};
use super::program::CommandLine;
use super::recorder::Work;
use super::results::{Failure, Metric, OutputOptions, Results, Samples};
use super::scene::{Actor, Interruption, LAST_COUNT_DELAY, Role, RunError, Scene, WARM_UP, now};
use crate::cli::message;
use crate::commands::run::library;

/// Measure two programs alone, together without scheduling, and together under XSched.
///
/// Runs any two commands, or built-in loads without commands. The work of the programs is counted by the preloaded library: their
/// launches, and how long their requests take. A request begins with a launch on an idle device queue and ends when the queue is idle
/// again. If the foreground exits by itself within --seconds, its run time is measured too. A background that exits with status 0 is
/// started again.
///
/// The scenes alone and native use the library and a service that holds no program, in order to count the work; `xsched bench
/// overhead` measures what that costs. All scenes use a private service: a running one is not disturbed. A command that fails is
/// reported with its output, and the scenes without it are measured; the exit status is 1 then.
#[derive(clap::Args)]
#[command(override_usage = "xsched bench corun [OPTIONS] [-- FOREGROUND... -- BACKGROUND...]")]
pub(super) struct Args {
    #[command(flatten)]
    output: OutputOptions,

    #[command(flatten)]
    device: DeviceOption,

    /// Length of each measurement, after the first launches and a warm-up of 0.5 s.
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    seconds: f64,

    /// Preemption level of both programs under XSched: auto, 1, 2 or 3.
    #[arg(long, default_value_t = LevelRequest::Auto)]
    level: LevelRequest,

    /// The policy under XSched; the foreground has priority high and the background low.
    #[arg(long, value_name = "NAME", default_value = "priority", value_parser = policy)]
    policy: &'static PolicyInfo,

    /// The foreground and the background, as two commands separated by `--`.
    #[arg(last = true, value_name = "COMMAND")]
    commands: Vec<OsString>,
}

const FOREGROUND: &str = "foreground";
const BACKGROUND: &str = "background";

const LAUNCHES: Metric = Metric { key: "launches_per_s", title: "launches/s" };
const REQUEST_P50: Metric = Metric { key: "request_p50_ms", title: "request p50 (ms)" };
const REQUEST_P99: Metric = Metric { key: "request_p99_ms", title: "request p99 (ms)" };
const RUN_TIME: Metric = Metric { key: "run_time_s", title: "run time (s)" };

/// The shortest window beside which the background is compared with a foreground that exits sooner.
const MIN_WINDOW: Duration = Duration::from_secs(1);
/// With fewer requests in a window there are no percentiles.
const MIN_REQUESTS: usize = 10;
/// A foreground that exits by itself may take this many times its first run time.
const MAX_SLOWDOWN: u32 = 50;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    ForegroundAlone,
    BackgroundAlone,
    Native,
    XSched,
}

impl Kind {
    const ALL: [(&'static str, Self); 4] = [
        ("foreground alone", Self::ForegroundAlone),
        ("background alone", Self::BackgroundAlone),
        ("native", Self::Native),
        ("xsched", Self::XSched),
    ];

    /// The scene of its rows.
    fn scene(self) -> &'static str {
        match self {
            Self::ForegroundAlone | Self::BackgroundAlone => "alone",
            Self::Native => "native",
            Self::XSched => "xsched",
        }
    }
}

/// What is measured of the foreground.
#[derive(Clone, Copy, Debug)]
enum Span {
    Window,
    /// It exits by itself, after this time alone.
    UntilExit(Duration),
}

struct Plan<'a> {
    args: &'a Args,
    lines: [CommandLine; 2],
    span: Span,
    interruption: Interruption,
    /// The preemption level that the programs had under XSched.
    level: Cell<Option<u8>>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    args.output.prepare()?;
    let interruption = Interruption::catch()?;
    let commands = split(&args.commands)?;
    if commands.is_some() {
        library::find().context("the commands cannot be scheduled")?;
    }
    let device = if commands.is_none() { Some(LoadDevice::open(args.device)?) } else { None };
    let lines = match (&commands, &device) {
        (Some(commands), _) => commands.map(CommandLine::of_user),
        (None, Some(device)) => [device.service()?, device.training()?],
        (None, None) => anyhow::bail!("there is neither a command nor a device"),
    };
    let mut plan = Plan { args, lines, span: Span::Window, interruption, level: Cell::new(None) };
    message(format_args!(
        "xsched: measuring the foreground alone once, to find out whether it exits by itself"
    ));
    let mut scenes: Vec<_> = Kind::ALL.map(|(name, kind)| (name.to_owned(), kind)).into();
    let mut failures = Vec::new();
    match plan.find_span() {
        Ok(span) => plan.span = span,
        Err(RunError::Fatal(error)) => return Err(error),
        Err(RunError::Program(failure)) => {
            failures.push(Failure { scene: "foreground alone".to_owned(), failure });
            scenes.retain(|(_, kind)| *kind == Kind::BackgroundAlone);
        }
    }
    let repetitions = args.output.repetitions;
    let Measured { rows, failures: more } =
        interleave(repetitions, &scenes, |kind, samples| plan.measure(*kind, samples))?;
    failures.extend(more);
    let mut results = Results {
        bench: "corun",
        summary: "Two programs alone, native and under XSched".to_owned(),
        repetitions,
        settings: plan.settings(device.as_ref()),
        rows,
        conclusions: Vec::new(),
        failures,
    };
    results.conclusions = conclusions(&results);
    args.output.finish(&results)
}

/// The two commands; none if there are no commands.
fn split(words: &[OsString]) -> anyhow::Result<Option<[&[OsString]; 2]>> {
    if words.is_empty() {
        return Ok(None);
    }
    let parts: Vec<_> = words.split(|word| word == "--").collect();
    match parts.as_slice() {
        [foreground, background] if !foreground.is_empty() && !background.is_empty() => {
            Ok(Some([foreground, background]))
        }
        [_, _, ..] => anyhow::bail!(
            "two commands are needed, such as `-- python serve.py -- python train.py`; put a command that contains `--` in a script"
        ),
        _ => anyhow::bail!(
            "the background is missing: write `--` between two commands, such as `-- python serve.py -- python train.py`"
        ),
    }
}

impl Plan<'_> {
    fn role(&self, name: &'static str, kind: Kind) -> Role<'_> {
        let [foreground, background] = &self.lines;
        let (line, priority) =
            if name == FOREGROUND { (foreground, Priority::HIGH) } else { (background, Priority::LOW) };
        let is_scheduled = kind == Kind::XSched;
        Role {
            name,
            line,
            priority: if is_scheduled { priority } else { Priority::DEFAULT },
            level: if is_scheduled { self.args.level } else { LevelRequest::Auto },
            share: None,
            // A foreground that exits is the end of the measurement.
            restarts: name == BACKGROUND,
        }
    }

    fn window(&self) -> Duration {
        Duration::from_secs_f64(self.args.seconds)
    }

    /// How long the background is measured alone: as long as beside a foreground that exits.
    fn window_of_background(&self) -> Duration {
        match self.span {
            Span::Window => self.window(),
            Span::UntilExit(alone) => alone.max(MIN_WINDOW).min(self.window()),
        }
    }

    /// Runs the foreground alone until it exits, for as long as a measurement takes.
    fn find_span(&self) -> Result<Span, RunError> {
        let scene = Scene::counting(&self.interruption)?;
        let mut actors = [scene.start_and_launch(self.role(FOREGROUND, Kind::ForegroundAlone))?];
        scene.wait(&mut actors, WARM_UP + self.window(), |actors| actors[0].has_ended())?;
        let [foreground] = &mut actors;
        let elapsed = foreground.elapsed();
        Ok(if foreground.check()? { Span::UntilExit(elapsed) } else { Span::Window })
    }

    fn measure(&self, kind: Kind, samples: &mut Samples) -> Result<(), RunError> {
        let scene = match kind {
            Kind::XSched => Scene::scheduling(self.args.policy.plain, &self.interruption)?,
            _ => Scene::counting(&self.interruption)?,
        };
        let mut actors = Vec::new();
        if kind != Kind::ForegroundAlone {
            actors.push(scene.start_and_launch(self.role(BACKGROUND, kind))?);
        }
        let (from, to) = match self.span {
            Span::UntilExit(alone) if kind != Kind::BackgroundAlone => {
                scene.wait(&mut actors, WARM_UP, |_| false)?;
                let from = now();
                actors.push(scene.start(self.role(FOREGROUND, kind))?);
                let run_time = wait_for_exit(&scene, &mut actors, alone * MAX_SLOWDOWN + self.window())?;
                let to = now();
                samples.push(kind.scene(), FOREGROUND, RUN_TIME, run_time.as_secs_f64());
                scene.wait(&mut actors, LAST_COUNT_DELAY, |_| false)?;
                (from, to)
            }
            _ => {
                if kind != Kind::BackgroundAlone {
                    actors.push(scene.start_and_launch(self.role(FOREGROUND, kind))?);
                }
                let length =
                    if kind == Kind::BackgroundAlone { self.window_of_background() } else { self.window() };
                scene.window(&mut actors, length)?
            }
        };
        if kind == Kind::XSched {
            self.level.set(scene.level()?);
        }
        // The foreground, which was started last, is listed first.
        for actor in actors.iter().rev() {
            let work = scene.recorder().work(actor.role.name);
            self.push(samples, kind, actor.role.name, &work, (from, to));
        }
        let lost = scene.recorder().lost();
        if lost > 0 {
            message(format_args!(
                "xsched: {lost} events of the service were lost: launches and requests are incomplete"
            ));
        }
        Ok(())
    }

    /// Adds what the service has counted.
    fn push(
        &self,
        samples: &mut Samples,
        kind: Kind,
        program: &str,
        work: &Work,
        (from, to): (Nanos, Nanos),
    ) {
        // The run time of a foreground that exits says more than its launches, which include its start.
        if program == BACKGROUND || matches!(self.span, Span::Window) {
            let rate = work.launches(from, to) as f64 / (to - from).as_secs_f64();
            samples.push(kind.scene(), program, LAUNCHES, rate);
        }
        let requests = work.request_times_ms(from, to);
        // A background that always has work has no requests.
        if program == FOREGROUND && requests.len() >= MIN_REQUESTS {
            samples.push(kind.scene(), program, REQUEST_P50, percentile(&requests, 50));
            samples.push(kind.scene(), program, REQUEST_P99, percentile(&requests, 99));
        }
    }

    fn settings(&self, device: Option<&LoadDevice>) -> Vec<(&'static str, String)> {
        let level = match (self.level.get(), self.args.level) {
            (Some(level), LevelRequest::Auto) => format!("{level} (auto)"),
            (_, requested) => requested.to_string(),
        };
        let span = match self.span {
            Span::Window => format!("a window of {} s", self.args.seconds),
            Span::UntilExit(_) => "until the foreground exits".to_owned(),
        };
        let mut settings: Vec<_> = device.iter().map(|device| ("device", device.name.clone())).collect();
        let [foreground, background] = self.lines.each_ref().map(CommandLine::text);
        settings.extend([
            (
                FOREGROUND,
                if device.is_some() { "16 commands of 0.5 ms every 40 ms".to_owned() } else { foreground },
            ),
            (
                BACKGROUND,
                if device.is_some() { "commands of 2 ms without a pause".to_owned() } else { background },
            ),
            ("measured", span),
            ("policy", self.args.policy.plain.to_owned()),
            ("level", level),
        ]);
        settings
    }
}

/// Waits until the last program has exited, and returns its run time.
fn wait_for_exit(scene: &Scene, actors: &mut [Actor<'_>], limit: Duration) -> Result<Duration, RunError> {
    let has_exited = |actors: &[Actor<'_>]| actors.last().is_none_or(Actor::has_ended);
    scene.wait(actors, limit, has_exited)?;
    let [.., last] = actors else { return Ok(Duration::ZERO) };
    let elapsed = last.elapsed();
    if last.check()? { Ok(elapsed) } else { Err(last.failure(format!("did not exit within {limit:.0?}"))) }
}

/// What the figures mean for each program, if all scenes were measured.
fn conclusions(results: &Results) -> Vec<String> {
    let against_alone = |scene, program, metric| {
        let alone = results.median("alone", program, metric).filter(|alone| *alone > 0.0)?;
        Some(results.median(scene, program, metric)? / alone)
    };
    let both = |program, metric| {
        Some((against_alone("xsched", program, metric)?, against_alone("native", program, metric)?))
    };
    let slowdown = [(RUN_TIME, "run time"), (REQUEST_P99, "request p99")]
        .into_iter()
        .find_map(|(metric, name)| Some((name, both(FOREGROUND, metric)?)));
    let kept = |program| {
        both(program, LAUNCHES).map(|(xsched, native)| {
            format!(
                "Under XSched the {program} launches {:.0} % as often as alone (native: {:.0} %).",
                xsched * 100.0,
                native * 100.0
            )
        })
    };
    let foreground = match slowdown {
        Some((name, (xsched, native))) => Some(format!(
            "Under XSched the foreground's {name} is {xsched:.2} times that alone (native: {native:.2} times)."
        )),
        None => kept(FOREGROUND),
    };
    let is_uncertain = [RUN_TIME, REQUEST_P99, LAUNCHES]
        .into_iter()
        .find_map(|metric| results.intervals_overlap(("native", "xsched"), FOREGROUND, metric))
        .unwrap_or(false);
    let caution = "The intervals of native and xsched overlap: use more --repetitions, or a quieter machine.";
    foreground.into_iter().chain(kept(BACKGROUND)).chain(is_uncertain.then(|| caution.to_owned())).collect()
}

/// A length of a measurement.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
    if (0.1..=3600.0).contains(&number) {
        Ok(number)
    } else {
        Err(format!("`{text}` is out of range: allowed is 0.1 to 3600 seconds"))
    }
}

fn policy(name: &str) -> Result<&'static PolicyInfo, String> {
    PolicyInfo::find(name).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn commands_are_separated_by_two_hyphens() {
        let both = words("python serve.py -- ./train --steps 3");
        let [foreground, background] = split(&both).unwrap().unwrap();
        assert_eq!((foreground.len(), background.len()), (2, 3));
        assert!(split(&[]).unwrap().is_none());
        let error = |text| split(&words(text)).unwrap_err().to_string();
        assert!(error("python serve.py").contains("the background is missing"));
        assert!(error("a -- b -- c").contains("in a script"));
        assert!(error("-- b").contains("two commands are needed"));
    }

    #[test]
    fn seconds_are_range_checked() {
        assert_eq!(seconds("2.5"), Ok(2.5));
        assert!(seconds("0").unwrap_err().contains("out of range"));
        assert!(seconds("nan").unwrap_err().contains("out of range"));
        assert!(seconds("1m").unwrap_err().contains("not a number"));
    }
}

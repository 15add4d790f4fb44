//! `xsched bench preempt`: how soon a program of high priority gets the device from a busy one, by level and kernel length.

use std::time::Duration;

use xsched_core::{Level, LevelRequest, Priority};

use super::interleave::{Measured, interleave};
use super::loads::{DeviceOption, LoadDevice, number};
use super::program::CommandLine;
use super::results::{Metric, OutputOptions, Results, Samples};
use super::scene::{Actor, Interruption, Role, RunError, Scene, WARM_UP};

/// Measure how soon a launch of high priority runs beside a busy program of low priority.
///
/// The foreground launches the shortest kernel and waits for it, at irregular intervals. The background always has kernels of the
/// given length. The time from the launch until the kernel is complete contains everything: the decision of the service, the stop of the
/// background and the foreground's own kernel, whose time alone is the first row.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    output: OutputOptions,

    #[command(flatten)]
    device: DeviceOption,

    /// Lengths of the background's kernels in microseconds.
    #[arg(
        long, value_name = "US", value_delimiter = ',', default_value = "200,2000,10000",
        value_parser = clap::value_parser!(u64).range(1..=10_000_000)
    )]
    length_us: Vec<u64>,

    /// Launches of the foreground in each measurement.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    launches: u32,
}

const FOREGROUND: &str = "foreground";
const BACKGROUND: &str = "background";
const P50: Metric = Metric { key: "p50_us", title: "launch to completion p50 (us)" };
const P99: Metric = Metric { key: "p99_us", title: "p99 (us)" };
/// Between two launches of the foreground.
const PERIOD_US: u64 = 10_000;
/// The background launches so many kernels before each synchronization.
const KERNELS_IN_FLIGHT: u64 = 8;
/// The longest that the foreground may take, beyond its own pauses.
const FOREGROUND_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Alone,
    Native,
    Level(Level),
}

impl Kind {
    fn name(self) -> String {
        match self {
            Self::Alone => "alone".to_owned(),
            Self::Native => "native".to_owned(),
            Self::Level(level) => format!("level {}", level.number()),
        }
    }
}

struct Plan {
    foreground: CommandLine,
    interruption: Interruption,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    args.output.prepare()?;
    let interruption = Interruption::catch()?;
    let device = LoadDevice::open(args.device)?;
    let latency = [("--count", args.launches.into()), ("--length-us", 0), ("--period-us", PERIOD_US)];
    let plan = Plan { foreground: device.load("latency", &latency)?, interruption };
    let mut backgrounds = Vec::new();
    for length_us in &args.length_us {
        let load = [("--commands", KERNELS_IN_FLIGHT), ("--length-us", *length_us)];
        backgrounds.push((format!("beside kernels of {length_us} us"), device.load("busy", &load)?));
    }
    let levels = plan.levels(&backgrounds[0].1)?;
    let kinds: Vec<_> =
        std::iter::once(Kind::Native).chain(levels.iter().copied().map(Kind::Level)).collect();
    let mut scenes = vec![("alone".to_owned(), (Kind::Alone, None))];
    for background in &backgrounds {
        for kind in &kinds {
            scenes.push((format!("{} {}", kind.name(), background.0), (*kind, Some(background))));
        }
    }
    let measure = |(kind, background): &(Kind, Option<&(String, CommandLine)>), samples: &mut Samples| {
        let name = background.map_or("no background", |(name, _)| name);
        plan.measure(*kind, name, background.map(|(_, line)| line), samples)
    };
    let repetitions = args.output.repetitions;
    let Measured { rows, failures } = interleave(repetitions, &scenes, measure)?;
    let found: Vec<_> = levels.iter().map(|level| level.number().to_string()).collect();
    let results = Results {
        bench: "preempt",
        summary: "The shortest kernel of high priority beside a busy program".to_owned(),
        repetitions,
        settings: vec![
            ("device", device.name.clone()),
            ("levels", found.join(", ")),
            ("launches", args.launches.to_string()),
        ],
        rows,
        conclusions: Vec::new(),
        failures,
    };
    args.output.finish(&results)
}

/// How a program is scheduled in a scene.
fn role<'a>(name: &'a str, line: &'a CommandLine, kind: Kind) -> Role<'a> {
    let (priority, level) = match kind {
        Kind::Level(level) => {
            let priority = if name == FOREGROUND { Priority::HIGH } else { Priority::LOW };
            (priority, LevelRequest::Exactly(level))
        }
        _ => (Priority::DEFAULT, LevelRequest::Auto),
    };
    Role { name, line, priority, level, share: None, restarts: false }
}

impl Plan {
    /// The levels of the device: those up to the one that a load gets which requests none.
    fn levels(&self, load: &CommandLine) -> anyhow::Result<Vec<Level>> {
        let scene = Scene::counting(&self.interruption)?;
        let level = match scene.start_and_launch(role(BACKGROUND, load, Kind::Native)) {
            Ok(_running) => scene.level()?.unwrap_or(1),
            Err(RunError::Fatal(error)) => return Err(error),
            Err(RunError::Program(failure)) => {
                anyhow::bail!("the load {}: {}", failure.reason, failure.output)
            }
        };
        Ok(Level::ALL.iter().copied().filter(|known| known.number() <= level).collect())
    }

    fn measure(
        &self,
        kind: Kind,
        name: &str,
        background: Option<&CommandLine>,
        samples: &mut Samples,
    ) -> Result<(), RunError> {
        let scene = Scene::counting(&self.interruption)?;
        let mut actors = Vec::new();
        if let Some(line) = background {
            actors.push(scene.start_and_launch(role(BACKGROUND, line, kind))?);
            scene.wait(&mut actors, WARM_UP, |_| false)?;
        }
        actors.push(scene.start(role(FOREGROUND, &self.foreground, kind))?);
        let has_ended = |actors: &[Actor<'_>]| actors.last().is_none_or(Actor::has_ended);
        scene.wait(&mut actors, FOREGROUND_TIMEOUT, has_ended)?;
        let Some(foreground) = actors.last_mut() else { return Ok(()) };
        if !foreground.check()? {
            return Err(foreground.failure(format!("did not exit within {FOREGROUND_TIMEOUT:?}")));
        }
        let output = foreground.output();
        for metric in [P50, P99] {
            samples.push(&kind.name(), name, metric, number(&output, metric.key)?);
        }
        Ok(())
    }
}

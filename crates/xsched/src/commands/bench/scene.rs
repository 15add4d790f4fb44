//! One measured run: a private service, the programs, and a window of time.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use xsched_core::{DeviceId, LevelRequest, Nanos, Priority, Share};

use super::client::BenchClient;
use super::private_service::PrivateService;
use super::program::{CommandLine, Fnv, Program, Scheduling};
use super::recorder::Recorder;

const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How long a program may take until its first launch: it may load a model, or compile kernels.
const FIRST_LAUNCH_TIMEOUT: Duration = Duration::from_secs(300);
/// Before a window begins, so that all programs run at full speed.
pub(super) const WARM_UP: Duration = Duration::from_millis(500);
/// The service counts launches every 10 ms: the last ones of a window are reported after it.
pub(super) const LAST_COUNT_DELAY: Duration = Duration::from_millis(25);
/// A policy that holds no task beside tasks of the same priority.
const COUNTING_POLICY: &str = "priority";

/// Whether the user has interrupted this program. The programs that run are ended before it exits.
#[derive(Clone)]
pub(super) struct Interruption(Arc<AtomicBool>);

impl Interruption {
    /// Catches the signals from now on.
    pub(super) fn catch() -> anyhow::Result<Self> {
        let is_interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&is_interrupted))?;
        }
        Ok(Self(is_interrupted))
    }

    pub(super) fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(!self.0.load(Ordering::SeqCst), "interrupted");
        Ok(())
    }
}

/// Why a run has no result.
#[derive(Debug)]
pub(super) enum RunError {
    /// A program failed. The other runs can still be measured.
    Program(ProgramFailure),
    /// No further run can be measured.
    Fatal(anyhow::Error),
}

impl From<anyhow::Error> for RunError {
    fn from(error: anyhow::Error) -> Self {
        Self::Fatal(error)
    }
}

/// A program that could not be measured.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub(super) struct ProgramFailure {
    /// The program's name in the results.
    pub(super) program: String,
    pub(super) command: String,
    pub(super) reason: String,
    /// The end of its output.
    pub(super) output: String,
}

/// What one program is to be started with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Role<'a> {
    pub(super) name: &'a str,
    pub(super) line: &'a CommandLine,
    pub(super) priority: Priority,
    pub(super) level: LevelRequest,
    pub(super) share: Option<Share>,
    /// The program is started again when it has exited with status 0.
    pub(super) restarts: bool,
}

/// A program of a scene, with its role.
pub(super) struct Actor<'a> {
    pub(super) role: Role<'a>,
    program: Program,
}

impl Actor<'_> {
    /// The failure of this program for this reason.
    pub(super) fn failure(&self, reason: impl Into<String>) -> RunError {
        RunError::Program(ProgramFailure {
            program: self.role.name.to_owned(),
            command: self.role.line.text(),
            reason: reason.into(),
            output: self.program.output(),
        })
    }

    /// Whether the program has exited and is not to be started again.
    pub(super) fn has_ended(&self) -> bool {
        !self.role.restarts && self.program.has_exited()
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.program.elapsed()
    }

    /// The end of what the program has printed.
    pub(super) fn output(&self) -> String {
        self.program.output()
    }

    /// A checksum of what the program has printed to stdout.
    pub(super) fn stdout_checksum(&self) -> Fnv {
        self.program.stdout_checksum()
    }

    /// Fails if the program has exited with another status than 0. Returns whether it has exited.
    pub(super) fn check(&mut self) -> Result<bool, RunError> {
        if !self.program.has_exited() {
            return Ok(false);
        }
        let output = self.program.output();
        let status = self.program.exit_status().map_err(anyhow::Error::from)?;
        if status.success() {
            return Ok(true);
        }
        Err(RunError::Program(ProgramFailure {
            program: self.role.name.to_owned(),
            command: self.role.line.text(),
            reason: format!("failed with {status}"),
            output,
        }))
    }
}

/// A private service that records the work of its programs.
pub(super) struct Scene {
    // Declared first, and so ended first: the recorder reads from the service.
    recorder: Recorder,
    /// An idle client on each device that the programs use. Without it a program alone on its device would be free, and the
    /// launches of a free task are not counted.
    counters: RefCell<HashMap<u64, BenchClient>>,
    service: PrivateService,
    interruption: Interruption,
}

impl Scene {
    /// The programs are scheduled with this policy.
    pub(super) fn scheduling(policy: &str, interruption: &Interruption) -> anyhow::Result<Self> {
        interruption.check()?;
        let service = PrivateService::start_with(Some(policy))?;
        let recorder = Recorder::start(service.socket())?;
        Ok(Self { recorder, counters: RefCell::default(), service, interruption: interruption.clone() })
    }

    /// The work of the programs is counted. They have the same priority, and none is held.
    pub(super) fn counting(interruption: &Interruption) -> anyhow::Result<Self> {
        Self::scheduling(COUNTING_POLICY, interruption)
    }

    pub(super) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// The lowest preemption level of the queues that exist now.
    pub(super) fn level(&self) -> anyhow::Result<Option<u8>> {
        let tool = crate::tool::ToolConnection::connect_to_first(vec![self.service.socket().to_owned()])?;
        let status = tool.status()?;
        let own = status.queues.iter().filter(|queue| queue.pid != std::process::id());
        Ok(own.map(|queue| queue.level).min())
    }

    /// Starts a program.
    pub(super) fn start<'a>(&self, role: Role<'a>) -> Result<Actor<'a>, RunError> {
        let Role { name, line, priority, level, share, .. } = role;
        let scheduling = Scheduling { socket: self.service.socket(), name, priority, level, share };
        let program = Program::start(line, Some(&scheduling)).map_err(|error| {
            RunError::Program(ProgramFailure {
                program: name.to_owned(),
                command: line.text(),
                reason: format!("{error:#}"),
                output: String::new(),
            })
        })?;
        Ok(Actor { role, program })
    }

    /// Places a counter on each device that the program uses.
    fn count_launches(&self, name: &str) -> anyhow::Result<()> {
        let mut counters = self.counters.borrow_mut();
        for device in self.recorder.devices(name) {
            if let Entry::Vacant(entry) = counters.entry(device) {
                let lowest = Priority::MIN.get().into();
                entry.insert(BenchClient::join(self.service.socket(), lowest, [DeviceId(device)])?);
            }
        }
        Ok(())
    }

    /// Waits until the program has launched or has exited.
    pub(super) fn wait_for_launch(&self, actor: &mut Actor<'_>) -> Result<(), RunError> {
        let deadline = Instant::now() + FIRST_LAUNCH_TIMEOUT;
        while !self.recorder.has_launched(actor.role.name) {
            self.interruption.check()?;
            self.count_launches(actor.role.name)?;
            if actor.check()? {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(actor.failure(format!("launched nothing within {FIRST_LAUNCH_TIMEOUT:?}")));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Starts a program and waits for its first launch.
    pub(super) fn start_and_launch<'a>(&self, role: Role<'a>) -> Result<Actor<'a>, RunError> {
        let mut actor = self.start(role)?;
        self.wait_for_launch(&mut actor)?;
        // The launches of a program that exits soon may not have been counted.
        if self.recorder.devices(role.name).is_empty() {
            return Err(actor.failure("exited without using a device that XSched schedules"));
        }
        Ok(actor)
    }

    /// Waits until the programs run at full speed and then for this time. Returns the window. Fails if a program exits that is not to be
    /// started again.
    pub(super) fn window(
        &self,
        actors: &mut [Actor<'_>],
        length: Duration,
    ) -> Result<(Nanos, Nanos), RunError> {
        let has_ended = |actors: &[Actor<'_>]| actors.iter().any(Actor::has_ended);
        self.wait(actors, WARM_UP, has_ended)?;
        let from = now();
        self.wait(actors, length, has_ended)?;
        let to = now();
        self.wait(actors, LAST_COUNT_DELAY, has_ended)?;
        match actors.iter().find(|actor| actor.has_ended()) {
            Some(actor) => {
                Err(actor.failure("exited before the end of the measurement: choose other --seconds"))
            }
            None => Ok((from, to)),
        }
    }

    /// Waits for this time, or until `is_over`. Fails if a program fails.
    pub(super) fn wait(
        &self,
        actors: &mut [Actor<'_>],
        span: Duration,
        mut is_over: impl FnMut(&[Actor<'_>]) -> bool,
    ) -> Result<(), RunError> {
        let end = Instant::now() + span;
        while Instant::now() < end && !is_over(actors) {
            self.interruption.check()?;
            for actor in actors.iter_mut() {
                self.count_launches(actor.role.name)?;
                if actor.check()? && actor.role.restarts {
                    *actor = self.start(actor.role)?;
                }
            }
            let left = end.saturating_duration_since(Instant::now());
            std::thread::sleep(POLL_INTERVAL.min(left));
        }
        Ok(())
    }
}

/// What a program that has exited left.
pub(super) struct Exited {
    pub(super) run_time: Duration,
    /// The end of its output.
    pub(super) output: String,
    pub(super) stdout_checksum: Fnv,
}

/// Runs a program until it exits.
pub(super) fn run_to_exit(
    name: &str,
    line: &CommandLine,
    scheduling: Option<&Scheduling<'_>>,
    interruption: &Interruption,
) -> Result<Exited, RunError> {
    interruption.check()?;
    let fail = |reason: String, output: String| {
        let (program, command) = (name.to_owned(), line.text());
        RunError::Program(ProgramFailure { program, command, reason, output })
    };
    let mut program =
        Program::start(line, scheduling).map_err(|error| fail(format!("{error:#}"), String::new()))?;
    while !program.has_exited() {
        interruption.check()?;
        std::thread::sleep(POLL_INTERVAL);
    }
    let (run_time, output) = (program.elapsed(), program.output());
    let status = program.exit_status().map_err(anyhow::Error::from)?;
    if status.success() {
        Ok(Exited { run_time, output, stdout_checksum: program.stdout_checksum() })
    } else {
        Err(fail(format!("failed with {status}"), output))
    }
}

/// The time on the clock of the service's events.
pub(super) fn now() -> Nanos {
    Nanos::now()
}

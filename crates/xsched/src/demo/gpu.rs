//! The demo on a real GPU: the same two programs, with kernels of a chosen length instead of simulated commands.
//!
//! Both are `xsched bench gpu-worker`, which has no scheduling code. In the scene with XSched they are started by `xsched run`, as
//! every program, and scheduled by a private service.

use std::cell::Cell;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::Value;
use xsched_core::LevelRequest;

use super::report::{Request, Scene, SceneName};
use super::scene::Plan;
use crate::commands::bench::PrivateService;
use crate::commands::run::library;

/// A usable GPU.
pub(crate) struct Gpu {
    pub(crate) name: String,
    pub(crate) cuda: String,
    calibration: String,
    /// The preemption level of the scheduled background, once known.
    level: Cell<Option<u8>>,
}

/// Calibrates the kernels on the first GPU. In a child process: this process must not use the GPU.
pub(crate) fn find() -> anyhow::Result<Gpu> {
    library::find().context("programs on a GPU cannot be scheduled")?;
    let output = this_program()?.args(["bench", "gpu-worker", "calibrate"]).stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("no GPU for the demo: {}", stderr.trim().trim_start_matches("xsched: "));
    }
    let output: Value = serde_json::from_slice(&output.stdout).context("the calibration printed no JSON")?;
    let text = |field: &str| {
        output[field]
            .as_str()
            .map(str::to_owned)
            .with_context(|| format!("the calibration printed no {field}"))
    };
    Ok(Gpu {
        name: text("gpu")?,
        cuda: text("cuda")?,
        calibration: text("calibration")?,
        level: Cell::new(None),
    })
}

fn this_program() -> anyhow::Result<Command> {
    Ok(Command::new(std::env::current_exe().context("cannot find this program's own file")?))
}

impl Gpu {
    /// The preemption level that XSched used, once known.
    pub(crate) fn level(&self) -> Option<u8> {
        self.level.get()
    }

    /// Runs one scene. Calls `progress` after every request.
    pub(crate) fn run(&self, name: SceneName, plan: &Plan, progress: impl FnMut()) -> anyhow::Result<Scene> {
        let service = (name == SceneName::XSched).then(PrivateService::start).transpose()?;
        let socket = service.as_ref().map(PrivateService::socket);
        let background = match name {
            SceneName::Alone => None,
            _ => Some(self.background(plan, socket)?),
        };
        if let (Some(background), Some(socket)) = (&background, socket) {
            self.level.set(Some(background.program.scheduled_level(socket)?));
        }
        let requests = self.serve(plan, socket, progress)?;
        let (from, to) = (requests[0].0, requests[requests.len() - 1].1);
        let done = background.map(|background| background.kernels_between(from, to)).transpose()?;
        let span_us = (to - from) * 1e6;
        let request_us = f64::from(plan.commands_per_request) * plan.command_us as f64;
        let since_start = |at: f64| (at - from) * 1e6;
        Ok(Scene {
            name,
            foreground: requests
                .iter()
                .map(|(arrived, done)| Request {
                    arrived_us: since_start(*arrived),
                    done_us: since_start(*done),
                })
                .collect(),
            background_utilization: done.unwrap_or(0.0) * plan.background_command_us as f64 / span_us,
            foreground_utilization: requests.len() as f64 * request_us / span_us,
            // A GPU does not report which program ran when.
            timeline: Vec::new(),
        })
    }

    fn worker(
        &self,
        mode: &str,
        arguments: &[(&str, u64)],
        priority: &str,
        level: LevelRequest,
        socket: Option<&Path>,
    ) -> anyhow::Result<Program> {
        let mut command = this_program()?;
        if let Some(socket) = socket {
            command.args(["run", "--priority", priority, "--level", &level.to_string(), "--"]);
            command.arg(std::env::current_exe()?).env("XSCHED_SOCKET", socket);
        }
        command.args(["bench", "gpu-worker", mode, "--calibration", &self.calibration]);
        for (name, value) in arguments {
            command.args([name, value.to_string().as_str()]);
        }
        if mode == "latency" {
            command.arg("--each");
        }
        Program::start(command)
    }

    /// Runs the latency-critical program. Returns both times of every request, in seconds.
    fn serve(
        &self,
        plan: &Plan,
        socket: Option<&Path>,
        mut progress: impl FnMut(),
    ) -> anyhow::Result<Vec<(f64, f64)>> {
        let arguments = [
            ("--kernels", plan.commands_per_request.into()),
            ("--length-us", plan.command_us),
            ("--requests", plan.requests as u64),
            ("--period-ms", plan.period_us / 1000),
        ];
        let mut program = self.worker("latency", &arguments, "high", plan.level, socket)?;
        let mut requests = Vec::with_capacity(plan.requests);
        for line in program.lines()? {
            let output: Value =
                serde_json::from_str(&line?).context("the demo's foreground printed no JSON")?;
            if let (Some(arrived), Some(done)) = (output["arrived_ns"].as_f64(), output["done_ns"].as_f64()) {
                requests.push((arrived / 1e9, done / 1e9));
                progress();
            }
        }
        if requests.len() != plan.requests || !program.child.wait()?.success() {
            bail!("the demo's foreground served {} of {} requests", requests.len(), plan.requests);
        }
        Ok(requests)
    }

    /// Starts the program that is always busy, and returns when it runs.
    fn background(&self, plan: &Plan, socket: Option<&Path>) -> anyhow::Result<Background> {
        let arguments = [
            ("--length-us", plan.background_command_us),
            ("--in-flight", plan.background_batch.into()),
            ("--report-ms", 20),
        ];
        let mut program = self.worker("load", &arguments, "low", plan.level, socket)?;
        let reports = Arc::new(Mutex::new(Vec::new()));
        let lines = program.lines()?;
        let collected = Arc::clone(&reports);
        // Reads without a pause, so that the program never blocks on a full pipe.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let output: Value = serde_json::from_str(&line).unwrap_or_default();
                if let (Some(at), Some(kernels)) = (output["at"].as_f64(), output["kernels"].as_f64()) {
                    collected.lock().unwrap_or_else(PoisonError::into_inner).push((at, kernels));
                }
            }
        });
        let background = Background { program, reports };
        background
            .wait_until("did not run", |reports| reports.last().is_some_and(|(_, kernels)| *kernels > 0.0))?;
        Ok(background)
    }
}

struct Background {
    program: Program,
    /// Times and the number of kernels completed by then.
    reports: Arc<Mutex<Vec<(f64, f64)>>>,
}

impl Background {
    fn wait_until(
        &self,
        failure: &str,
        mut condition: impl FnMut(&[(f64, f64)]) -> bool,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !condition(&self.reports.lock().unwrap_or_else(PoisonError::into_inner)) {
            if Instant::now() > deadline {
                bail!("the demo's background {failure} within 20 s");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Kernels completed in this span, interpolated between reports.
    fn kernels_between(self, from: f64, to: f64) -> anyhow::Result<f64> {
        self.wait_until("printed no report", |reports| reports.last().is_some_and(|(at, _)| *at >= to))?;
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(completed_at(&reports, to) - completed_at(&reports, from))
    }
}

fn completed_at(reports: &[(f64, f64)], at: f64) -> f64 {
    let (before, after) = reports.split_at(reports.partition_point(|(when, _)| *when <= at));
    match (before.last(), after.first()) {
        (Some((earlier, done)), Some((later, more))) => {
            done + (more - done) * (at - earlier) / (later - earlier)
        }
        (Some((_, done)), None) | (None, Some((_, done))) => *done,
        (None, None) => 0.0,
    }
}

/// A process that is killed on drop.
struct Program {
    child: Child,
}

impl Program {
    fn start(mut command: Command) -> anyhow::Result<Self> {
        // Nothing is written to stdin. It ends if this process is killed, and the program exits then.
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(Self { child: command.spawn().context("cannot start a program of the demo")? })
    }

    fn lines(&mut self) -> anyhow::Result<std::io::Lines<BufReader<ChildStdout>>> {
        Ok(BufReader::new(self.child.stdout.take().context("a program of the demo has no stdout")?).lines())
    }

    /// The preemption level of its queues in the private service.
    fn scheduled_level(&self, socket: &Path) -> anyhow::Result<u8> {
        let mut ps = this_program()?;
        ps.args(["ps", "--json", "--sample", "1ms"]).env("XSCHED_SOCKET", socket).stdin(Stdio::null());
        let status: Value =
            serde_json::from_slice(&ps.output()?.stdout).context("`xsched ps` printed no JSON")?;
        let queues = status["queues"].as_array().map(Vec::as_slice).unwrap_or_default();
        let own = queues.iter().filter(|queue| queue["pid"].as_u64() == Some(self.child.id().into()));
        let levels = own.filter_map(|queue| queue["level"].as_u64());
        let level = levels.max().context("the demo's background is not scheduled")?;
        Ok(u8::try_from(level)?)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both fail only if the process has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_interpolated_between_reports() {
        let reports = [(1.0, 0.0), (2.0, 10.0), (4.0, 50.0)];
        for (at, done) in [(0.5, 0.0), (1.0, 0.0), (1.5, 5.0), (2.0, 10.0), (3.0, 30.0), (9.0, 50.0)] {
            assert!((completed_at(&reports, at) - done).abs() < 1e-9, "{at}");
        }
        assert!(completed_at(&[], 1.0).abs() < 1e-9);
    }
}

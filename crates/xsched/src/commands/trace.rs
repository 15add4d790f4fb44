//! `xsched trace`: records the scheduler's decisions.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use indicatif::ProgressBar;
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGINT, SIGTERM};
use xsched_core::Nanos;
use xsched_core::parse_time;
use xsched_ipc::protocol::{Reply, Request};

use crate::tool::{ToolConnection, ToolError};
use crate::trace::Converter;

/// Record a trace of the scheduler's decisions for Perfetto.
///
/// Every program has its tasks as tracks, with slices while a task runs and while it is held, and an instant event for each
/// preemption. Below them are its queues, with slices while a queue is busy and while it is held, and a counter of its
/// launches, sampled at least every 10 ms. The scheduler has a track of its rounds, and for each device counters of the tasks
/// that run and that are held. Open the file at <https://ui.perfetto.dev>.
///
/// Launches of a program that is alone on its device are not counted: its order is free, and free launches report nothing.
///
/// With a command, records while it runs and exits with its status. Without, records until Ctrl-C or for --duration.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// File to write.
    #[arg(short, long, value_name = "FILE", default_value = "xsched-trace.json")]
    output: PathBuf,

    /// How long to record, such as 500ms or 10s.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    duration: Option<Nanos>,

    /// A program to run under the scheduler.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// How often to check for signals, the command and the time limit.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// How long the command may take to start a service.
const SERVICE_START_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    // `xsched run` starts a service if none runs, so a missing service is no error if there is a command.
    let tool = match ToolConnection::connect() {
        Err(ToolError::NoService { .. }) if !args.command.is_empty() => None,
        tool => Some(tool?),
    };
    let file = File::create(&args.output).with_context(|| cannot_write(&args.output))?;
    let mut recording = Recording::new(args.duration)?;
    let result = recording.run(tool, args, file);
    // Reap the command, however the recording ended.
    match (recording.wait_for_command()?, result) {
        (None, result) => result,
        (Some(status), result) => {
            if let Err(error) = result {
                eprintln!("xsched: {error:#}");
            }
            match exit_code(status) {
                0 => Ok(()),
                code => std::process::exit(code),
            }
        }
    }
}

fn cannot_write(file: &Path) -> String {
    format!("cannot write {}", file.display())
}

fn report(file: &Path, events: u64, lost: u64) {
    let missing = if lost == 0 { String::new() } else { format!(", {lost} more were lost") };
    eprintln!("{events} events in {}{missing}; open it at https://ui.perfetto.dev", file.display());
}

/// The exit status as a shell reports it: that of the program, or 128 plus the signal that killed it.
fn exit_code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

/// Starts the command under the scheduler, with `xsched run` unless it is an `xsched` command itself.
fn spawn(command: &[OsString]) -> anyhow::Result<Option<Child>> {
    let [program, arguments @ ..] = command else { return Ok(None) };
    let is_xsched = Path::new(program).file_name().is_some_and(|name| name == "xsched");
    let mut child = if is_xsched {
        Command::new(program)
    } else {
        let mut child = Command::new(std::env::current_exe().context("cannot find this program itself")?);
        child.args(["run", "--"]).arg(program);
        child
    };
    let child = child.args(arguments).spawn();
    Ok(Some(child.with_context(|| format!("cannot start {}", program.to_string_lossy()))?))
}

struct Recording {
    began: Instant,
    limit: Option<Duration>,
    /// SIGINT was received.
    interrupted: Arc<AtomicBool>,
    /// SIGTERM was received.
    terminated: Arc<AtomicBool>,
    child: Option<Child>,
    /// The exit status of the child.
    status: Option<ExitStatus>,
}

impl Recording {
    fn new(limit: Option<Nanos>) -> anyhow::Result<Self> {
        let flag = |signal| {
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal, Arc::clone(&flag)).context("cannot watch for signals")?;
            anyhow::Ok(flag)
        };
        Ok(Self {
            began: Instant::now(),
            limit: limit.map(|Nanos(ns)| Duration::from_nanos(ns)),
            interrupted: flag(SIGINT)?,
            terminated: flag(SIGTERM)?,
            child: None,
            status: None,
        })
    }

    /// Starts the command and records. The file is complete afterwards, even if the service exits first.
    fn run(&mut self, tool: Option<ToolConnection>, args: &Args, file: File) -> anyhow::Result<()> {
        let tool = if let Some(tool) = tool {
            // Subscribe before the command starts: its first launch is in the trace.
            tool.send(&Request::Trace)?;
            self.child = spawn(&args.command)?;
            tool
        } else {
            self.child = spawn(&args.command)?;
            let tool = self.wait_for_service()?;
            tool.send(&Request::Trace)?;
            tool
        };
        let status = ToolConnection::connect_to_first(vec![tool.socket().to_owned()])?.status()?;
        let written = || cannot_write(&args.output);
        let mut converter = Converter::new(BufWriter::new(file), &status).with_context(written)?;
        if self.child.is_none() && self.limit.is_none() {
            eprintln!("recording until Ctrl-C");
        }
        let end = self.record(&tool, &mut converter);
        let (events, lost) = converter.counts();
        converter.finish(Nanos::now().0).and_then(|mut out| out.flush()).with_context(written)?;
        report(&args.output, events, lost);
        end
    }

    /// Whether the recording has to end.
    fn is_over(&mut self) -> io::Result<bool> {
        let terminated = self.terminated.swap(false, Ordering::Relaxed);
        if let Some(child) = &mut self.child {
            // The terminal sends SIGINT to the command as well, which decides what to do. SIGTERM reaches this process only.
            if terminated {
                let _ = rustix::process::kill_process(Pid::from_child(child), Signal::TERM);
            }
            if let Some(status) = child.try_wait()? {
                self.status = Some(status);
                self.child = None;
                return Ok(true);
            }
        } else if terminated || self.interrupted.load(Ordering::Relaxed) {
            return Ok(true);
        }
        Ok(self.limit.is_some_and(|limit| self.began.elapsed() >= limit))
    }

    /// Waits for the service that the command starts.
    fn wait_for_service(&mut self) -> anyhow::Result<ToolConnection> {
        loop {
            match ToolConnection::connect() {
                Err(ToolError::NoService { .. })
                    if !self.is_over()? && self.began.elapsed() < SERVICE_START_TIMEOUT =>
                {
                    thread::sleep(CHECK_INTERVAL / 10);
                }
                tool => return Ok(tool?),
            }
        }
    }

    fn record<W: Write>(
        &mut self,
        tool: &ToolConnection,
        converter: &mut Converter<W>,
    ) -> anyhow::Result<()> {
        let line =
            if io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        let mut checked = Instant::now();
        let mut over = false;
        loop {
            // Events that were sent before the end belong to the trace.
            let pause = if over { Duration::ZERO } else { self.wait_limit() };
            let reply = if tool.wait(pause)? { Some(tool.next_reply()?) } else { None };
            let nothing = reply.is_none();
            match reply {
                Some(Reply::Events { events, lost }) => {
                    converter.lost(lost)?;
                    for event in &events {
                        converter.event(event)?;
                    }
                }
                Some(Reply::Done) => {}
                Some(_) => return Err(tool.unexpected().into()),
                None if over => break,
                None => {}
            }
            if !over && (nothing || checked.elapsed() >= CHECK_INTERVAL) {
                checked = Instant::now();
                over = self.is_over()?;
                let (events, lost) = converter.counts();
                line.set_message(format!("{events} events, {lost} lost, {:.0?}", self.began.elapsed()));
                line.tick();
            }
        }
        line.finish_and_clear();
        Ok(())
    }

    /// How long to wait for events until the next check.
    fn wait_limit(&self) -> Duration {
        let left = self.limit.map(|limit| limit.saturating_sub(self.began.elapsed()));
        left.map_or(CHECK_INTERVAL, |left| left.min(CHECK_INTERVAL))
    }

    /// Waits for the command, if there is one, and returns its exit status.
    fn wait_for_command(mut self) -> io::Result<Option<ExitStatus>> {
        self.limit = None;
        while self.child.is_some() {
            self.is_over()?;
            thread::sleep(CHECK_INTERVAL / 10);
        }
        Ok(self.status)
    }
}

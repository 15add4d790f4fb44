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

use crate::cli::message;
use crate::tool::{ToolConnection, ToolError};
use crate::trace::{Converter, PageWriter};

/// Record a trace of the scheduler's decisions for Perfetto.
///
/// Every program has its tasks as tracks, with slices while a task runs and while it is held, and an instant event for each
/// preemption. Below them are its queues, with slices while a queue is busy and while it is held, and a counter of its
/// launches, sampled at least every 10 ms. The kernels that a queue launches are instant events with their names and numbers, where the
/// driver knows the names (CUDA 12.3 or newer, HIP, OpenCL). The scheduler has a track of its rounds, and for each device counters of the tasks
/// that run and that are held. Open the file at <https://ui.perfetto.dev>, or write a page with --html and open it in a browser.
///
/// Launches of a program that is alone on its device are neither counted nor named: its order is free, and free launches report nothing.
///
/// With a command, records while it runs and exits with its status, or with 1 if the command succeeds and the trace cannot be
/// written. Without, records until Ctrl-C or for --duration.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// File to write [default: xsched-trace.json, or xsched-trace.html with --html].
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Write a page that shows the timeline in any browser. It loads nothing.
    #[arg(long)]
    html: bool,

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

impl Args {
    fn output(&self) -> &Path {
        let default = if self.html { "xsched-trace.html" } else { "xsched-trace.json" };
        self.output.as_deref().unwrap_or(Path::new(default))
    }
}

/// The file, and what is written around the trace.
enum Output {
    Perfetto(BufWriter<File>),
    Page(PageWriter<BufWriter<File>>),
}

impl Output {
    fn begin(file: File, html: bool) -> io::Result<Self> {
        let file = BufWriter::new(file);
        Ok(if html { Self::Page(PageWriter::begin(file)?) } else { Self::Perfetto(file) })
    }

    fn end(self) -> io::Result<()> {
        match self {
            Self::Perfetto(mut file) => file.flush(),
            Self::Page(page) => page.end(),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Perfetto(file) => file.write(bytes),
            Self::Page(page) => page.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Perfetto(file) => file.flush(),
            Self::Page(page) => page.flush(),
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    // `xsched run` starts a service if none runs, so a missing service is no error if there is a command.
    let tool = match ToolConnection::connect() {
        Err(ToolError::NoService { .. }) if !args.command.is_empty() => None,
        tool => Some(tool?),
    };
    let output = args.output();
    let file = File::create(output).with_context(|| cannot_write(output))?;
    let mut recording = Recording::new(args.duration)?;
    let result = recording.run(tool, args, file);
    // Reap the command, however the recording ended.
    match (recording.wait_for_command()?, result) {
        (None, result) => result,
        (Some(status), result) => {
            // The status of the command, unless only the recording has failed.
            match (exit_code(status), result) {
                (0, result) => result,
                (code, result) => {
                    if let Err(error) = result {
                        message(format_args!("xsched: {error:#}"));
                    }
                    std::process::exit(code)
                }
            }
        }
    }
}

fn cannot_write(file: &Path) -> String {
    format!("cannot write {}", file.display())
}

fn report(args: &Args, events: u64, lost: u64) {
    let place = if args.html { "in a browser" } else { "at https://ui.perfetto.dev" };
    let missing = if lost == 0 { String::new() } else { format!(", {lost} more were lost") };
    message(format_args!("{events} events in {}{missing}; open it {place}", args.output().display()));
}

/// Subscribes to events, with the names of kernels.
fn request_events(tool: &ToolConnection) -> Result<(), ToolError> {
    tool.send(&Request::Trace)?;
    tool.send(&Request::TraceKernels)
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
            request_events(&tool)?;
            self.child = spawn(&args.command)?;
            tool
        } else {
            self.child = spawn(&args.command)?;
            let tool = self.wait_for_service()?;
            request_events(&tool)?;
            tool
        };
        let status = ToolConnection::connect_to_first(vec![tool.socket().to_owned()])?.status()?;
        // Events have the times of the service's clock, which may differ from the clock of this process.
        let (service_time, read_at) = (Nanos(status.now_ns), Instant::now());
        let written = || cannot_write(args.output());
        let output = Output::begin(file, args.html).with_context(written)?;
        let mut converter = Converter::new(output, &status).with_context(written)?;
        if self.child.is_none() && self.limit.is_none() {
            message(format_args!("recording until Ctrl-C"));
        }
        let end = self.record(&tool, &mut converter);
        let (events, lost) = converter.counts();
        let ended_at = service_time + Nanos::from(read_at.elapsed());
        converter.finish(ended_at.0).and_then(Output::end).with_context(written)?;
        report(args, events, lost);
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

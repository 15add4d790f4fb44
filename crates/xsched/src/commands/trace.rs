//! `xsched trace`: records what the scheduler does.

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

use crate::tool::{Tool, ToolError};
use crate::trace::Converter;

/// Record what the scheduler does, for Perfetto to show.
///
/// Every program has its tasks as tracks, with slices while they run and while they are held, and a mark where they
/// were preempted. Below them are its queues, with slices while they run and while they wait, and the number of launches
/// of each, looked at every 10 ms or more often. The scheduler has its rounds, and for each device the numbers of tasks
/// that run and are held. Open the file at <https://ui.perfetto.dev>.
///
/// Launches of a program that is alone on its device are not counted: it is free, and nobody stands at the gate.
///
/// With a command, records while it runs, and ends with its exit status. Without, until Ctrl-C or for --duration.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to write the trace.
    #[arg(short, long, value_name = "FILE", default_value = "xsched-trace.json")]
    output: PathBuf,

    /// How long to record, such as 500ms or 10s.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    duration: Option<Nanos>,

    /// A program to run under the scheduler meanwhile.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// How often to look at anything but events.
const PAUSE: Duration = Duration::from_millis(100);
/// For a service to appear that the command starts.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    // A command brings its own service if there is none: only then is it no error that nobody is there yet.
    let tool = match Tool::connect() {
        Err(ToolError::NoService { .. }) if !args.command.is_empty() => None,
        tool => Some(tool?),
    };
    let file = File::create(&args.output).with_context(|| cannot_write(&args.output))?;
    let mut recording = Recording::new(args.duration)?;
    let result = recording.make(tool, args, file);
    // Nobody else waits for the command, however the recording ended.
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

/// As a shell tells it: that of the program, or 128 and the signal that ended it.
fn exit_code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

/// Starts the command under the scheduler; `xsched` itself knows how to do that.
fn spawn(command: &[OsString]) -> anyhow::Result<Option<Child>> {
    let [program, arguments @ ..] = command else { return Ok(None) };
    let own = Path::new(program).file_name().is_some_and(|name| name == "xsched");
    let mut child = if own {
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
    /// Somebody at the terminal interrupts us.
    interrupted: Arc<AtomicBool>,
    /// Somebody wants us to end.
    terminated: Arc<AtomicBool>,
    child: Option<Child>,
    /// How the child ended.
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

    /// Starts the command and records. The file is whole afterwards, even if the service ends before.
    fn make(&mut self, tool: Option<Tool>, args: &Args, file: File) -> anyhow::Result<()> {
        let tool = if let Some(tool) = tool {
            // Listening before the command starts: its first launch is in the trace.
            tool.send(&Request::Trace)?;
            self.child = spawn(&args.command)?;
            tool
        } else {
            self.child = spawn(&args.command)?;
            let tool = self.await_service()?;
            tool.send(&Request::Trace)?;
            tool
        };
        let status = Tool::connect_to_first(vec![tool.at().to_owned()])?.status()?;
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

    /// Whether there is no reason to go on.
    fn is_over(&mut self) -> io::Result<bool> {
        let terminated = self.terminated.swap(false, Ordering::Relaxed);
        if let Some(child) = &mut self.child {
            // An interrupt from the terminal reaches the command as well, and it decides what that means. Other
            // requests to end reach only us.
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

    /// Dependencies for the service that the command starts.
    fn await_service(&mut self) -> anyhow::Result<Tool> {
        loop {
            match Tool::connect() {
                Err(ToolError::NoService { .. }) if !self.is_over()? && self.began.elapsed() < PATIENCE => {
                    thread::sleep(PAUSE / 10);
                }
                tool => return Ok(tool?),
            }
        }
    }

    fn record<W: Write>(&mut self, tool: &Tool, converter: &mut Converter<W>) -> anyhow::Result<()> {
        let line =
            if io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        let mut looked = Instant::now();
        let mut over = false;
        loop {
            // What has been sent by the time it is over still belongs to the trace.
            let pause = if over { Duration::ZERO } else { self.pause() };
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
            if !over && (nothing || looked.elapsed() >= PAUSE) {
                looked = Instant::now();
                over = self.is_over()?;
                let (events, lost) = converter.counts();
                line.set_message(format!("{events} events, {lost} lost, {:.0?}", self.began.elapsed()));
                line.tick();
            }
        }
        line.finish_and_clear();
        Ok(())
    }

    /// How long to wait for events until something else is due.
    fn pause(&self) -> Duration {
        let left = self.limit.map(|limit| limit.saturating_sub(self.began.elapsed()));
        left.map_or(PAUSE, |left| left.min(PAUSE))
    }

    /// Dependencies for the command, if there is one: its exit status.
    fn wait_for_command(mut self) -> io::Result<Option<ExitStatus>> {
        self.limit = None;
        while self.child.is_some() {
            self.is_over()?;
            thread::sleep(PAUSE / 10);
        }
        Ok(self.status)
    }
}

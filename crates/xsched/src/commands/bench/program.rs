//! A measured program: a command in a process group of its own, whose output is kept for reports of failures.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use xsched_core::{LevelRequest, Priority, Share};
use xsched_ipc::environment::name;

/// The end of the output that a report of a failure quotes.
const OUTPUT_TAIL: usize = 2_000;
/// Between the request to terminate and the kill.
const TERMINATION_TIMEOUT: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// For the last output of a program that has exited: another process may keep its pipe open.
const LAST_OUTPUT_TIMEOUT: Duration = Duration::from_millis(500);

/// A command line to measure.
#[derive(Clone, Debug)]
pub(super) struct CommandLine {
    pub(super) words: Vec<OsString>,
    /// A load on the simulated device, which joins the service itself. Other programs do so by the preloaded library.
    pub(super) is_simulated: bool,
}

impl CommandLine {
    /// A command of the user.
    pub(super) fn of_user(words: &[OsString]) -> Self {
        Self { words: words.to_vec(), is_simulated: false }
    }

    /// As it would be typed, without quotation marks.
    pub(super) fn text(&self) -> String {
        let words: Vec<_> = self.words.iter().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }
}

/// How a scheduled program is started.
#[derive(Clone, Debug)]
pub(super) struct Scheduling<'a> {
    /// The socket of the service.
    pub(super) socket: &'a Path,
    /// The name by which the recorder knows the program.
    pub(super) name: &'a str,
    pub(super) priority: Priority,
    pub(super) level: LevelRequest,
    pub(super) share: Option<Share>,
}

/// What is kept of a program's output.
struct Output {
    /// The last bytes of stdout and stderr.
    tail: Vec<u8>,
    /// A checksum of all of stdout.
    checksum: Fnv,
    open_pipes: u32,
}

/// A checksum of bytes: FNV-1a with 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fnv(pub(super) u64);

impl Fnv {
    pub(super) const EMPTY: Self = Self(0xcbf2_9ce4_8422_2325);

    pub(super) fn update(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// A running program. Dropping it ends its process group.
pub(super) struct Program {
    child: Child,
    output: Arc<Mutex<Output>>,
    started: Instant,
    /// Known once the process was reaped. Its group may not exist any longer then.
    status: Option<ExitStatus>,
}

impl Program {
    /// Starts the program without XSched, or scheduled.
    pub(super) fn start(line: &CommandLine, scheduling: Option<&Scheduling<'_>>) -> anyhow::Result<Self> {
        let mut command = match scheduling {
            Some(scheduling) => scheduled(line, scheduling)?,
            None => unscheduled(line)?,
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        // SAFETY: the closure runs in the forked child and makes one system call, which is async-signal-safe.
        unsafe {
            // If this process is killed, the program must not run on. The signal stays set across exec.
            command.pre_exec(|| Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let mut child = command.spawn().with_context(|| format!("cannot run `{}`", line.text()))?;
        let output = Output { tail: Vec::new(), checksum: Fnv::EMPTY, open_pipes: 2 };
        let output = Arc::new(Mutex::new(output));
        if let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) {
            read(stdout, &output, true);
            read(stderr, &output, false);
        }
        Ok(Self { child, output, started: Instant::now(), status: None })
    }

    fn group(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.child.id()).ok()?)
    }

    /// Whether the process has exited. It is not reaped: until then its group keeps its number.
    pub(super) fn has_exited(&self) -> bool {
        if self.status.is_some() {
            return true;
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        self.group().is_none_or(|pid| !matches!(waitid(WaitId::Pid(pid), options), Ok(None)))
    }

    /// The time since the program was started.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// The exit status of a process that has exited. Ends the processes that it has left behind in its group.
    pub(super) fn exit_status(&mut self) -> std::io::Result<ExitStatus> {
        if let Some(status) = self.status {
            return Ok(status);
        }
        self.signal(Signal::KILL);
        let status = self.child.wait()?;
        self.status = Some(status);
        Ok(status)
    }

    /// The end of what the program has printed.
    pub(super) fn output(&self) -> String {
        let output = self.complete_output();
        String::from_utf8_lossy(&output.tail).trim_end().to_owned()
    }

    /// A checksum of what a program that has exited has printed to stdout.
    pub(super) fn stdout_checksum(&self) -> Fnv {
        self.complete_output().checksum
    }

    /// All output of a program that has exited, or what a running program has printed so far.
    fn complete_output(&self) -> MutexGuard<'_, Output> {
        let deadline = Instant::now() + LAST_OUTPUT_TIMEOUT;
        loop {
            let output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
            if output.open_pipes == 0 || !self.has_exited() || Instant::now() > deadline {
                return output;
            }
            drop(output);
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group() {
            // Fails only if all processes of the group have exited.
            let _ = kill_process_group(group, signal);
        }
    }
}

/// Reads a pipe on a thread without a pause, so that the program never blocks on a full one.
fn read(mut pipe: impl Read + Send + 'static, output: &Arc<Mutex<Output>>, is_stdout: bool) {
    let output = Arc::clone(output);
    std::thread::spawn(move || {
        let mut buffer = [0; 4_096];
        while let Ok(count @ 1..) = pipe.read(&mut buffer) {
            let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
            if is_stdout {
                output.checksum.update(&buffer[..count]);
            }
            output.tail.extend_from_slice(&buffer[..count]);
            let excess = output.tail.len().saturating_sub(OUTPUT_TAIL);
            output.tail.drain(..excess);
        }
        output.lock().unwrap_or_else(PoisonError::into_inner).open_pipes -= 1;
    });
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.status.is_some() {
            return;
        }
        self.signal(Signal::TERM);
        let deadline = Instant::now() + TERMINATION_TIMEOUT;
        while !self.has_exited() && Instant::now() < deadline {
            std::thread::sleep(POLL_INTERVAL);
        }
        // Fails only if the process was reaped elsewhere.
        let _ = self.exit_status();
    }
}

fn unscheduled(line: &CommandLine) -> anyhow::Result<Command> {
    let (program, arguments) = line.words.split_first().context("the command is empty")?;
    let mut command = Command::new(program);
    command.args(arguments);
    Ok(command)
}

fn scheduled(line: &CommandLine, scheduling: &Scheduling<'_>) -> anyhow::Result<Command> {
    let Scheduling { socket, name: task, priority, level, share } = scheduling;
    let mut command = if line.is_simulated {
        let mut command = unscheduled(line)?;
        command.env(name::SCHEDULER, "GLB").env(name::AUTO, "ON").env(name::NAME, task);
        command.env(name::PRIORITY, priority.to_string()).env(name::LEVEL, level.to_string());
        if let Some(share) = share {
            command.env(name::SHARE, share.percent().to_string());
        }
        command
    } else {
        let mut command =
            Command::new(std::env::current_exe().context("cannot find this program's own file")?);
        command.args(["run", "--name", task, "--level", &level.to_string()]);
        command.arg(format!("--priority={priority}"));
        if let Some(share) = share {
            command.args(["--share", &share.percent().to_string()]);
        }
        command.arg("--").args(&line.words);
        command
    };
    command.env(name::SOCKET, socket);
    Ok(command)
}

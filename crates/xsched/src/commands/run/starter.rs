//! Starts a service where there is none.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use xsched_ipc::protocol::Request;

use crate::tool::{Tool, ToolError};

/// How long a service may take to answer for the first time.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);
/// How long it stays when nobody needs it any more.
const IDLE_EXIT: &str = "30";

/// Comes back when a service answers, which is started if need be.
pub(super) fn make_sure_of_service() -> anyhow::Result<()> {
    match Tool::connect() {
        Ok(service) => return answers(&service, PATIENCE),
        // Theirs, not ours to replace.
        Err(error @ ToolError::NotAllowed { .. }) => return Err(error.into()),
        Err(_) => {}
    }
    let deadline = Instant::now() + PATIENCE;
    start()?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match Tool::connect() {
            Ok(service) => return answers(&service, left),
            Err(_) if left.is_zero() => bail!("one was started and does not answer"),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

fn answers(service: &Tool, patience: Duration) -> anyhow::Result<()> {
    // This process becomes the program, which may take minutes until it uses its device.
    service.send(&Request::Expect)?;
    if !service.wait(patience)? {
        bail!("the one at {} does not answer", service.at().display());
    }
    service.next_reply()?;
    Ok(())
}

/// Starts a service that belongs to nobody: in a session of its own, and not as a child of the program that is about
/// to take our place.
fn start() -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(program);
    command
        .args(["serve", "--idle-exit", IDLE_EXIT, "--quiet"])
        .current_dir("/")
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // SAFETY: the new process makes three system calls here, all of which may be made after a fork: `setsid`, a fork
    // whose parent ends at once, and the end of that.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            match libc::fork() {
                -1 => Err(std::io::Error::last_os_error()),
                0 => Ok(()),
                _ => libc::_exit(0),
            }
        });
    }
    let mut child = command.spawn().context("cannot start one")?;
    child.wait().context("cannot start one")?;
    Ok(())
}

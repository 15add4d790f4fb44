//! Starts a service if none runs.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use xsched_ipc::protocol::{HintRequest, Request};

use crate::tool::{ToolConnection, ToolError};

/// How long a service may take to send its first reply.
const FIRST_REPLY_TIMEOUT: Duration = Duration::from_secs(2);
const CONNECT_RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// Seconds without a client after which the service exits.
const IDLE_EXIT: &str = "30";

/// Starts a service if none runs, and returns when it replies.
pub(super) fn ensure_service() -> anyhow::Result<ToolConnection> {
    match ToolConnection::connect() {
        Ok(service) => return wait_for_reply(service, FIRST_REPLY_TIMEOUT),
        // A service runs, and this user may not use it, or it does not respond: a second one could not start.
        Err(error @ (ToolError::NotAllowed { .. } | ToolError::NotAccepted { .. })) => {
            return Err(error.into());
        }
        Err(_) => {}
    }
    let deadline = Instant::now() + FIRST_REPLY_TIMEOUT;
    start()?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match ToolConnection::connect() {
            Ok(service) => return wait_for_reply(service, left),
            Err(_) if left.is_zero() => bail!("a service was started and does not reply"),
            Err(_) => std::thread::sleep(CONNECT_RETRY_INTERVAL),
        }
    }
}

fn wait_for_reply(service: ToolConnection, timeout: Duration) -> anyhow::Result<ToolConnection> {
    // `Expect` keeps the service from exiting while idle: the program may take minutes until its first launch.
    service.send(&Request::Expect)?;
    if !service.wait(timeout)? {
        return Err(ToolError::NoReply { at: service.socket().to_owned() }.into());
    }
    service.next_reply()?;
    Ok(service)
}

/// Which of the requested hints the service will not grant, and why. None if it grants all of them, or does not say: an earlier
/// service does not know this request.
pub(super) fn clamped_hints(
    service: &ToolConnection,
    executable: &Path,
    hint_request: HintRequest,
    grant_token: Option<String>,
) -> Option<String> {
    let executable = executable.display().to_string();
    service.send(&Request::Check { executable, hint_request, grant_token }).ok()?;
    let has_reply = service.wait(FIRST_REPLY_TIMEOUT).unwrap_or(false);
    match has_reply.then(|| service.next_reply()) {
        Some(Err(ToolError::Refused(why))) => Some(why),
        _ => None,
    }
}

/// Starts a service as a daemon: in a session of its own, and not as a child of this process, which is about to become the
/// program.
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
    // SAFETY: the closure runs in the forked child and only makes the system calls `setsid`, `fork` and `_exit`, all of
    // which are async-signal-safe.
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
    let mut child = command.spawn().context("cannot start a service")?;
    child.wait().context("cannot start a service")?;
    Ok(())
}

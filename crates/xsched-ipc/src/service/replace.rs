//! Replaces the running service.
//!
//! ```text
//!   lock of the replacement ─► the running service shuts down ─► the new one binds ─► it runs
//!                                            ▲                        │ another service runs
//!                                            └────────────────────────┘
//! ```
//!
//! After the running service has shut down, `xsched run` finds no service and may start one before the new one has bound the
//! socket. That one is shut down too. A second lock makes sure that no two processes replace each other's service in turn.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::listen::{StartError, acquire_lock, make_directory};
use super::{Options, Service};
use crate::protocol::{Reply, Request};
use crate::socket::{Connection, Packet, SocketError};
use crate::socket_lock::{SocketLock, SocketOwner};

/// How long the running service may take to exit after it has replied.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a service may take to reply to the request to shut down. One that works does it within microseconds.
const STOP_REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a killed service may take to exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long services that were started meanwhile are shut down.
const REPLACE_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause before the next attempt. A service needs about 0.1 ms from locking its socket to listening.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// How a service was shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutDown {
    /// No process listens at the socket.
    NotFound,
    /// It has shut down by itself.
    Done,
    /// It did not respond, and this process was killed.
    Killed(i32),
}

impl Service {
    /// Shuts down the service at the socket, if there is one, and creates a new one. A service that does not respond is killed,
    /// if this user may do that; `report_killed` gets the number of its process.
    pub fn replace(options: &Options, mut report_killed: impl FnMut(i32)) -> Result<Self, StartError> {
        let socket = &options.socket;
        make_directory(socket, options.is_system_wide)?;
        let _lock = lock_replacement(socket, &mut report_killed)?;
        let deadline = Instant::now() + REPLACE_TIMEOUT;
        // Since when a process holds the lock of the service and does not listen. One that starts or exits does so for less than a
        // millisecond, unless it is stopped.
        let mut held_since: Option<Instant> = None;
        loop {
            let shut_down = match request_shutdown(socket, SHUTDOWN_TIMEOUT)? {
                ShutDown::NotFound
                    if held_since.is_some_and(|since| since.elapsed() >= STOP_REPLY_TIMEOUT) =>
                {
                    kill_owner(socket)?
                }
                shut_down => shut_down,
            };
            if shut_down != ShutDown::NotFound {
                held_since = None;
            }
            if let ShutDown::Killed(pid) = shut_down {
                report_killed(pid);
            }
            match Self::bind(options.clone()) {
                Err(StartError::Running(path)) if Instant::now() >= deadline => {
                    return Err(not_shut_down(&path, "another one was started each time".to_owned()));
                }
                Err(StartError::Running(_)) => {}
                bound => return bound,
            }
            held_since.get_or_insert_with(Instant::now);
            std::thread::sleep(RETRY_INTERVAL);
        }
    }
}

/// Acquires the lock of the process that replaces the service. Kills a process that was stopped while it held the lock: it would
/// block every later replacement.
fn lock_replacement(socket: &Path, report_killed: impl FnOnce(i32)) -> Result<SocketLock, StartError> {
    let mut path = socket.as_os_str().to_owned();
    path.push(".replace");
    let path = PathBuf::from(path);
    // No version has created this file so that other users could lock it, so a held lock is always respected.
    let lock = || acquire_lock(&path, || true, StartError::BeingReplaced(socket.to_owned()));
    let locked = lock();
    if matches!(locked, Err(StartError::BeingReplaced(_)))
        && let Some(owner) = SocketOwner::of(&path).filter(SocketOwner::is_stopped)
    {
        owner.kill(KILL_TIMEOUT).map_err(|why| not_shut_down(socket, why))?;
        report_killed(owner.pid());
        return lock();
    }
    locked
}

fn not_shut_down(socket: &Path, why: String) -> StartError {
    StartError::NotShutDown { path: socket.to_owned(), why }
}

/// Has the service at `socket`, if there is one, shut down, and waits until it has released the socket. A service that does not
/// respond is killed, if this user may do that.
pub fn request_shutdown(socket: &Path, timeout: Duration) -> Result<ShutDown, StartError> {
    let responds = match Connection::to(socket) {
        Ok(connection) => ask_to_stop(&connection, timeout).map_err(|why| not_shut_down(socket, why))?,
        Err(SocketError::NotAccepted) => false,
        Err(_) => return Ok(ShutDown::NotFound),
    };
    if responds { Ok(ShutDown::Done) } else { kill_owner(socket) }
}

/// Kills the process of a service that does not respond.
fn kill_owner(socket: &Path) -> Result<ShutDown, StartError> {
    let unknown = "it does not respond, and only its user or root can find and end its process";
    let owner = SocketOwner::of(socket).ok_or_else(|| not_shut_down(socket, unknown.to_owned()))?;
    owner.kill(KILL_TIMEOUT).map_err(|why| not_shut_down(socket, why))?;
    Ok(ShutDown::Killed(owner.pid()))
}

/// Sends the request to stop and waits until the service has closed the connection. Returns false if it does not respond, and
/// an error if it refuses.
fn ask_to_stop(connection: &Connection, timeout: Duration) -> Result<bool, String> {
    match connection.send(&Request::Stop, None, false) {
        Ok(()) => {}
        // It exits, and has not accepted the connection.
        Err(SocketError::Closed) => return Ok(true),
        Err(error) => return Err(error.to_string()),
    }
    let began = Instant::now();
    let mut deadline = began + STOP_REPLY_TIMEOUT.min(timeout);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let remaining = rustix::time::Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut wait = [rustix::event::PollFd::new(connection, rustix::event::PollFlags::IN)];
        match rustix::event::poll(&mut wait, Some(&remaining)) {
            Ok(0) => return Ok(false),
            Ok(_) | Err(Errno::INTR) => {}
            Err(why) => return Err(why.to_string()),
        }
        match connection.receive::<Reply>(false) {
            Ok(Some(Packet::Message(Reply::Refused { why }, _))) => return Err(why),
            // The service closes its connections after it has released the socket.
            Err(SocketError::Closed) => return Ok(true),
            Ok(_) => deadline = began + timeout,
            Err(error) => return Err(error.to_string()),
        }
    }
}

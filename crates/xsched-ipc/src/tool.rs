//! A tool's connection to the service: sends requests and receives replies.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::protocol::{GrantStatus, Reply, Request, Status};
use crate::socket::{self, Connection, Packet, SocketError};
use crate::socket_lock::SocketOwner;

/// How long a tool waits for a reply. A service that works replies within microseconds.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// No service listens at any of the sockets.
    #[error(
        "no scheduler is running (looked at {}): start one with `xsched serve`, or let `xsched run` do it",
        join(looked)
    )]
    NoService {
        /// The sockets that were tried.
        looked: Vec<PathBuf>,
    },
    /// This user may not connect to the service.
    #[error(
        "this user may not connect to the scheduler at {}: {why}; join the group `xsched`, or start a scheduler of your own with \
         `xsched serve`",
        at.display()
    )]
    NotAllowed {
        /// Its socket.
        at: PathBuf,
        /// The error of the system call.
        why: Errno,
    },
    /// The service refused the request.
    #[error("{0}")]
    Refused(String),
    /// The service did not reply.
    #[error("the scheduler at {} does not reply{}", at.display(), advice(at))]
    NoReply {
        /// Its socket.
        at: PathBuf,
    },
    /// The service does not accept the connection.
    #[error("the scheduler at {} does not accept connections{}", at.display(), advice(at))]
    NotAccepted {
        /// Its socket.
        at: PathBuf,
    },
    /// The connection failed.
    #[error("the scheduler at {}: {why}", at.display())]
    ConnectionFailed {
        /// Its socket.
        at: PathBuf,
        /// The error.
        why: SocketError,
    },
    /// The reply does not match the request.
    #[error(
        "the scheduler at {} sent a reply of another type than requested: it has another version, restart it with `xsched serve \
         --replace`",
        at.display()
    )]
    UnexpectedReply {
        /// Its socket.
        at: PathBuf,
    },
}

/// What is known about a service that does not respond, and what to do.
fn advice(at: &Path) -> String {
    let found = match SocketOwner::of(at) {
        Some(owner) => format!("its process {} {}", owner.pid(), owner.state()),
        None => "it is stopped or overloaded".to_owned(),
    };
    format!(": {found}; replace it with `xsched serve --replace`")
}

fn join(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// A connection to the service.
#[derive(Debug)]
pub struct ToolConnection {
    connection: Connection,
    at: PathBuf,
}

impl ToolConnection {
    /// Connects to this user's service, else to the machine's.
    pub fn connect() -> Result<Self, ToolError> {
        Self::connect_to_first(socket::candidates())
    }

    /// Connects to the service at `at`. Fails after `timeout` if it accepts no connections. For programs that must not wait.
    pub fn connect_within(at: &Path, timeout: Duration) -> Result<Self, ToolError> {
        Self::connect_each(vec![at.to_owned()], timeout)
    }

    /// Connects to the first of `candidates` at which a service listens.
    pub fn connect_to_first(candidates: Vec<PathBuf>) -> Result<Self, ToolError> {
        Self::connect_each(candidates, socket::CONNECT_TIMEOUT)
    }

    fn connect_each(candidates: Vec<PathBuf>, timeout: Duration) -> Result<Self, ToolError> {
        let mut failure = None;
        for at in &candidates {
            match Connection::to_within(at, timeout) {
                Ok(connection) => return Ok(Self { connection, at: at.clone() }),
                Err(SocketError::System { why: why @ (Errno::ACCESS | Errno::PERM), .. }) => {
                    failure.get_or_insert(ToolError::NotAllowed { at: at.clone(), why });
                }
                Err(SocketError::NotAccepted) => {
                    failure.get_or_insert(ToolError::NotAccepted { at: at.clone() });
                }
                // There is no service, or only the socket of a service that was killed.
                Err(_) => {}
            }
        }
        Err(failure.unwrap_or(ToolError::NoService { looked: candidates }))
    }

    /// The socket of the service.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.at
    }

    /// Sends a request without waiting; [`next_reply`](Self::next_reply) receives its replies.
    pub fn send(&self, request: &Request) -> Result<(), ToolError> {
        match self.connection.send(request, None, true) {
            // The service has closed the connection. What it sent before, such as a refusal, can still be received.
            Ok(()) | Err(SocketError::Closed) => Ok(()),
            // The time limit of the connection is over.
            Err(SocketError::System { why: Errno::AGAIN, .. }) => {
                Err(ToolError::NoReply { at: self.at.clone() })
            }
            Err(why) => Err(self.failed(why)),
        }
    }

    /// Sends a request and waits for the reply. A refusal is an error.
    pub fn request(&self, request: &Request) -> Result<Reply, ToolError> {
        self.send(request)?;
        if !self.wait(REPLY_TIMEOUT)? {
            return Err(ToolError::NoReply { at: self.at.clone() });
        }
        self.next_reply()
    }

    /// Waits until [`next_reply`](Self::next_reply) does not block, or the time is over. Returns whether there is a reply.
    pub fn wait(&self, timeout: Duration) -> Result<bool, ToolError> {
        // Fails only for a duration too long to represent: then there is no limit.
        let timeout = Timespec::try_from(timeout).ok();
        let mut fds = [PollFd::new(&self.connection, PollFlags::IN)];
        loop {
            match poll(&mut fds, timeout.as_ref()) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::INTR) => {}
                Err(why) => return Err(self.failed(SocketError::System { what: "wait for a reply", why })),
            }
        }
    }

    /// Waits for the next reply without a limit. A refusal is an error.
    pub fn next_reply(&self) -> Result<Reply, ToolError> {
        loop {
            match self.connection.receive(true).map_err(|why| self.failed(why))? {
                Some(Packet::Message(Reply::Refused { why }, _)) => return Err(ToolError::Refused(why)),
                Some(Packet::Message(reply, _)) => return Ok(reply),
                Some(Packet::Notification) | None => {}
            }
        }
    }

    /// The complete status, from as many packets as it needs.
    pub fn status(&self) -> Result<Status, ToolError> {
        let mut status = self.as_status(self.request(&Request::Status)?)?;
        while status.more {
            if !self.wait(REPLY_TIMEOUT)? {
                return Err(ToolError::NoReply { at: self.at.clone() });
            }
            let rest = self.as_status(self.next_reply()?)?;
            status.tasks.extend(rest.tasks);
            status.queues.extend(rest.queues);
            status.more = rest.more;
        }
        Ok(status)
    }

    /// All grants that this user may see, from as many packets as they need.
    pub fn grants(&self) -> Result<Vec<GrantStatus>, ToolError> {
        let mut all = Vec::new();
        let mut reply = self.request(&Request::Grants)?;
        loop {
            let Reply::Grants { grants, more } = reply else { return Err(self.unexpected()) };
            all.extend(grants);
            if !more {
                return Ok(all);
            }
            if !self.wait(REPLY_TIMEOUT)? {
                return Err(ToolError::NoReply { at: self.at.clone() });
            }
            reply = self.next_reply()?;
        }
    }

    fn as_status(&self, reply: Reply) -> Result<Status, ToolError> {
        match reply {
            Reply::Status(status) => Ok(status),
            _ => Err(self.unexpected()),
        }
    }

    /// The error for a reply that does not match the request.
    #[must_use]
    pub fn unexpected(&self) -> ToolError {
        ToolError::UnexpectedReply { at: self.at.clone() }
    }

    fn failed(&self, why: SocketError) -> ToolError {
        ToolError::ConnectionFailed { at: self.at.clone(), why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_without_service_names_the_sockets_and_what_to_do() {
        let looked = vec![PathBuf::from("/nowhere/a"), PathBuf::from("/nowhere/b")];
        let error = ToolConnection::connect_to_first(looked).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no scheduler is running (looked at /nowhere/a, /nowhere/b): start one with `xsched serve`, or let \
             `xsched run` do it"
        );
    }

    #[test]
    fn refusal_of_a_connection_that_is_closed_already_is_received() {
        let (tool, service) = socket::pair();
        let why = "too many connections".to_owned();
        service.send(&Reply::Refused { why }, None, true).unwrap();
        drop(service);
        let tool = ToolConnection { connection: tool, at: PathBuf::from("/nowhere") };
        assert_eq!(tool.request(&Request::Status).unwrap_err().to_string(), "too many connections");
        assert!(matches!(
            tool.request(&Request::Status),
            Err(ToolError::ConnectionFailed { why: SocketError::Closed, .. })
        ));
    }
}

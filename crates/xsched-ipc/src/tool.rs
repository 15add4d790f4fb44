//! A tool's end of the service's socket: ask, and be answered.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::protocol::{Reply, Request, Status};
use crate::socket::{self, Connection, Packet, SocketError};

/// A service that is alive answers within microseconds; one that takes this long hangs.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why the service did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// Nobody listens anywhere.
    #[error(
        "no scheduler is running (looked at {}): start one with `xsched serve`, or let `xsched run` do it",
        join(looked)
    )]
    NoService {
        /// Where it could have been.
        looked: Vec<PathBuf>,
    },
    /// Somebody listens, and we may not talk to them.
    #[error("this user may not talk to the scheduler at {}: {why} (is the user in the group `xsched`?)", at.display())]
    NotAllowed {
        /// Its socket.
        at: PathBuf,
        /// What the system said.
        why: Errno,
    },
    /// The service said no.
    #[error("{0}")]
    Refused(String),
    /// The service said nothing.
    #[error("the scheduler at {} has not answered for {} s: is it stopped or overloaded?", at.display(), PATIENCE.as_secs())]
    NoReply {
        /// Its socket.
        at: PathBuf,
    },
    /// The connection failed.
    #[error("the scheduler at {}: {why}", at.display())]
    ConnectionFailed {
        /// Its socket.
        at: PathBuf,
        /// How.
        why: SocketError,
    },
    /// The service answered something else.
    #[error("the scheduler at {} gave an answer that does not fit the question: is it of another version?", at.display())]
    UnexpectedReply {
        /// Its socket.
        at: PathBuf,
    },
}

fn join(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// A connection to the service.
#[derive(Debug)]
pub struct Tool {
    connection: Connection,
    at: PathBuf,
}

impl Tool {
    /// Connects to this user's service, else to the machine's.
    pub fn connect() -> Result<Self, ToolError> {
        Self::connect_to_first(socket::candidates())
    }

    /// Connects to the first of `candidates` at which somebody listens.
    pub fn connect_to_first(candidates: Vec<PathBuf>) -> Result<Self, ToolError> {
        let mut not_allowed = None;
        for at in &candidates {
            match Connection::to(at) {
                Ok(connection) => return Ok(Self { connection, at: at.clone() }),
                Err(SocketError::System { why: why @ (Errno::ACCESS | Errno::PERM), .. }) => {
                    not_allowed.get_or_insert(ToolError::NotAllowed { at: at.clone(), why });
                }
                // A service that is not there, or whose socket outlived it.
                Err(_) => {}
            }
        }
        Err(not_allowed.unwrap_or(ToolError::NoService { looked: candidates }))
    }

    /// The socket of the service that answers.
    #[must_use]
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// Asks for what is answered over and over; [`next`](Self::next_reply) takes the answers.
    pub fn send(&self, request: &Request) -> Result<(), ToolError> {
        self.connection.send(request, None, true).map_err(|why| self.broken(why))
    }

    /// Asks, and waits for the answer. A refusal is an error.
    pub fn request(&self, request: &Request) -> Result<Reply, ToolError> {
        self.send(request)?;
        if !self.wait(PATIENCE)? {
            return Err(ToolError::NoReply { at: self.at.clone() });
        }
        self.next_reply()
    }

    /// Dependencies at most `patience` for something to [`next`](Self::next_reply); whether there is.
    pub fn wait(&self, patience: Duration) -> Result<bool, ToolError> {
        // The only failure is a span too long to count: then there is no limit.
        let timeout = Timespec::try_from(patience).ok();
        let mut fds = [PollFd::new(&self.connection, PollFlags::IN)];
        loop {
            match poll(&mut fds, timeout.as_ref()) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::INTR) => {}
                Err(why) => return Err(self.broken(SocketError::System { what: "waiting", why })),
            }
        }
    }

    /// The next thing the service says, however long that takes. A refusal is an error.
    pub fn next_reply(&self) -> Result<Reply, ToolError> {
        loop {
            match self.connection.receive(true).map_err(|why| self.broken(why))? {
                Some(Packet::Message(Reply::Refused { why }, _)) => return Err(ToolError::Refused(why)),
                Some(Packet::Message(reply, _)) => return Ok(reply),
                Some(Packet::Notification) | None => {}
            }
        }
    }

    /// Everything there is to see, gathered from as many packets as it takes.
    pub fn status(&self) -> Result<Status, ToolError> {
        let mut status = self.as_status(self.request(&Request::Status)?)?;
        while status.more {
            if !self.wait(PATIENCE)? {
                return Err(ToolError::NoReply { at: self.at.clone() });
            }
            let rest = self.as_status(self.next_reply()?)?;
            status.tasks.extend(rest.tasks);
            status.queues.extend(rest.queues);
            status.more = rest.more;
        }
        Ok(status)
    }

    fn as_status(&self, reply: Reply) -> Result<Status, ToolError> {
        match reply {
            Reply::Status(status) => Ok(status),
            _ => Err(self.unexpected()),
        }
    }

    /// The error for an answer that does not fit the question.
    #[must_use]
    pub fn unexpected(&self) -> ToolError {
        ToolError::UnexpectedReply { at: self.at.clone() }
    }

    fn broken(&self, why: SocketError) -> ToolError {
        ToolError::ConnectionFailed { at: self.at.clone(), why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_anywhere_says_where_and_what_to_do() {
        let looked = vec![PathBuf::from("/nowhere/a"), PathBuf::from("/nowhere/b")];
        let error = Tool::connect_to_first(looked).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no scheduler is running (looked at /nowhere/a, /nowhere/b): start one with `xsched serve`, or let \
             `xsched run` do it"
        );
    }
}

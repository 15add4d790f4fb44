//! The program's end of the connection to the service.
//!
//! Its descriptor lies in somebody else's table: programs that become daemons close whatever they find there, and get
//! the number again for a file of their own. So before the number is used it is looked whether it still is ours.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::hinting::{HintFailure, PATIENCE};
use crate::program::lock;
use crate::protocol::Request;
use crate::socket::{Connection, SocketError};

/// Which socket a descriptor stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) fd: RawFd,
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl Identity {
    fn of(fd: BorrowedFd<'_>) -> Option<Self> {
        let stat = rustix::fs::fstat(fd).ok()?;
        Some(Self { fd: fd.as_raw_fd(), device: stat.st_dev, inode: stat.st_ino })
    }

    /// Whether the number still stands for what it stood for. One system call, no lock.
    pub(crate) fn holds(self) -> bool {
        // SAFETY: borrowed for one system call that changes nothing; a number that stands for nothing is an error there.
        Self::of(unsafe { BorrowedFd::borrow_raw(self.fd) }) == Some(self)
    }
}

/// A connection whose descriptor may be taken away.
pub(crate) struct Line {
    connection: ManuallyDrop<Connection>,
    identity: Identity,
    /// Who waits for the answers to come, in the order of their requests. The service answers each, in order.
    asked: Mutex<VecDeque<Option<Sender<Answer>>>>,
    /// The service has let somebody wait in vain, and has not answered since: nobody waits for it a second time.
    silent: AtomicBool,
}

/// Done, or why not.
pub(crate) type Answer = Result<(), String>;

impl Line {
    pub(crate) fn new(connection: Connection) -> Result<Self, SocketError> {
        let identity = Identity::of(connection.as_fd()).ok_or(SocketError::Closed)?;
        // A service that reads nothing any more must not keep the program in a send.
        let _ = set_socket_timeout(&connection, Timeout::Send, Some(PATIENCE));
        let connection = ManuallyDrop::new(connection);
        Ok(Self { connection, identity, asked: Mutex::default(), silent: AtomicBool::new(false) })
    }

    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// The connection; closed if the program has closed it.
    pub(crate) fn connection(&self) -> Result<&Connection, SocketError> {
        if self.identity.holds() { Ok(&self.connection) } else { Err(SocketError::Closed) }
    }

    /// Asks for something and waits for the answer, which whoever listens passes on to [`Line::answered`]. The service
    /// answers once the orders that follow have been given.
    pub(crate) fn ask(&self, request: &Request) -> Result<(), HintFailure> {
        let (tell, told) = channel();
        let patient = !self.silent.load(Ordering::SeqCst);
        match self.send(request, Some(tell), patient) {
            Ok(()) if patient => {}
            Ok(()) => return Err(HintFailure::NoReply),
            Err(SocketError::System { why: Errno::AGAIN, .. }) => return Err(self.in_vain()),
            // Lost meanwhile: what was asked for is kept, and asked again with the next service.
            Err(_) => return Ok(()),
        }
        match told.recv_timeout(PATIENCE) {
            Ok(answer) => answer.map_err(HintFailure::Refused),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => Ok(()),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => Err(self.in_vain()),
        }
    }

    fn in_vain(&self) -> HintFailure {
        self.silent.store(true, Ordering::SeqCst);
        HintFailure::NoReply
    }

    /// Asks for something without waiting for the answer.
    pub(crate) fn tell(&self, request: &Request) {
        // A service that is gone hears it from us when it is back.
        let _ = self.send(request, None, true);
    }

    fn send(
        &self,
        request: &Request,
        tell: Option<Sender<Answer>>,
        patient: bool,
    ) -> Result<(), SocketError> {
        let mut asked = lock(&self.asked);
        self.connection()?.send(request, None, patient)?;
        asked.push_back(tell);
        Ok(())
    }

    /// The service has answered.
    pub(crate) fn answered(&self, answer: Answer) {
        self.silent.store(false, Ordering::SeqCst);
        // Nobody may wait any more.
        if let Some(Some(tell)) = lock(&self.asked).pop_front() {
            let _ = tell.send(answer);
        }
    }

    /// No answer will come.
    pub(crate) fn fall_silent(&self) {
        lock(&self.asked).clear();
    }

    /// Ends the connection for both sides, and for whoever waits on it.
    pub(crate) fn hang_up(&self) {
        if let Ok(connection) = self.connection() {
            connection.hang_up();
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.identity.holds() {
            // SAFETY: dropped here and nowhere else, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.connection) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::{FromRawFd, OwnedFd};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn a_number_that_became_the_programs_is_left_alone() {
        let ((ours, _service), (theirs, _peer)) = (pair(), pair());
        let line = Line::new(Connection::from_fd(ours)).unwrap();
        assert!(line.connection().is_ok());
        // The program closes our descriptor and gets its number for a socket of its own.
        // SAFETY: the number is taken over here, and `line` is about to notice.
        let mut number: OwnedFd = unsafe { FromRawFd::from_raw_fd(line.identity().fd) };
        rustix::io::dup2(&theirs, &mut number).unwrap();
        assert!(matches!(line.connection(), Err(SocketError::Closed)));
        drop(line);
        assert!(Identity::of(number.as_fd()).is_some(), "the program's socket was closed");
    }
}

//! The process's end of the connection to the service.
//!
//! The descriptor is in the table of a program that does not know of it. A program that becomes a daemon closes all
//! descriptors, and the kernel may reuse the number for a file of the program. So every use of the number is preceded by a
//! check that it still refers to this socket.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::hinting::{HintFailure, SERVICE_REPLY_TIMEOUT};
use crate::protocol::Request;
use crate::scheduled_process::lock;
use crate::socket::{Connection, SocketError};

/// The socket that a descriptor refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketIdentity {
    pub(crate) fd: RawFd,
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl SocketIdentity {
    fn of(fd: BorrowedFd<'_>) -> Option<Self> {
        let stat = rustix::fs::fstat(fd).ok()?;
        Some(Self { fd: fd.as_raw_fd(), device: stat.st_dev, inode: stat.st_ino })
    }

    /// Whether the descriptor still refers to this socket. One system call, no lock.
    pub(crate) fn is_current(self) -> bool {
        // SAFETY: borrowed for one system call that changes nothing; it fails if the descriptor is closed.
        Self::of(unsafe { BorrowedFd::borrow_raw(self.fd) }) == Some(self)
    }
}

/// A connection whose descriptor the program may close.
pub(crate) struct ServiceConnection {
    connection: ManuallyDrop<Connection>,
    identity: SocketIdentity,
    /// One entry for each request without a reply; none if no thread waits for it. The service replies in order.
    pending: Mutex<VecDeque<Option<Sender<RequestResult>>>>,
    /// A request timed out, and the service has not replied since: no thread waits for it a second time.
    is_unresponsive: AtomicBool,
}

/// Done, or the reason of the refusal.
pub(crate) type RequestResult = Result<(), String>;

impl ServiceConnection {
    pub(crate) fn new(connection: Connection) -> Result<Self, SocketError> {
        let identity = SocketIdentity::of(connection.as_fd()).ok_or(SocketError::Closed)?;
        // A service that does not read must not block the program in a send.
        let _ = set_socket_timeout(&connection, Timeout::Send, Some(SERVICE_REPLY_TIMEOUT));
        let connection = ManuallyDrop::new(connection);
        Ok(Self { connection, identity, pending: Mutex::default(), is_unresponsive: AtomicBool::new(false) })
    }

    pub(crate) fn identity(&self) -> SocketIdentity {
        self.identity
    }

    /// The connection, or [`SocketError::Closed`] if the program has closed its descriptor.
    pub(crate) fn connection(&self) -> Result<&Connection, SocketError> {
        if self.identity.is_current() { Ok(&self.connection) } else { Err(SocketError::Closed) }
    }

    /// Sends a request and waits for the reply, which the receiving thread hands to [`ServiceConnection::on_reply`]. The
    /// service replies after it has written the orders that follow from the request.
    pub(crate) fn request(&self, request: &Request) -> Result<(), HintFailure> {
        let (sender, receiver) = channel();
        let waits = !self.is_unresponsive.load(Ordering::SeqCst);
        match self.send_request(request, Some(sender), waits) {
            Ok(()) if waits => {}
            Ok(()) => return Err(HintFailure::NoReply),
            Err(SocketError::System { why: Errno::AGAIN, .. }) => return Err(self.mark_unresponsive()),
            // The connection is lost: the request is kept, and sent again to the next service.
            Err(_) => return Ok(()),
        }
        match receiver.recv_timeout(SERVICE_REPLY_TIMEOUT) {
            Ok(result) => result.map_err(HintFailure::Refused),
            Err(RecvTimeoutError::Disconnected) => Ok(()),
            Err(RecvTimeoutError::Timeout) => Err(self.mark_unresponsive()),
        }
    }

    fn mark_unresponsive(&self) -> HintFailure {
        self.is_unresponsive.store(true, Ordering::SeqCst);
        HintFailure::NoReply
    }

    /// Sends a request without waiting for the reply.
    pub(crate) fn post(&self, request: &Request) {
        // If the service is gone, the process sends it again to the next one.
        let _ = self.send_request(request, None, true);
    }

    /// Sends a request if the socket has room for it.
    pub(crate) fn post_if_room(&self, request: &Request) {
        let _ = self.send_request(request, None, false);
    }

    fn send_request(
        &self,
        request: &Request,
        reply_to: Option<Sender<RequestResult>>,
        waits: bool,
    ) -> Result<(), SocketError> {
        let mut pending = lock(&self.pending);
        self.connection()?.send(request, None, waits)?;
        pending.push_back(reply_to);
        Ok(())
    }

    /// The service has replied to the oldest pending request.
    pub(crate) fn on_reply(&self, result: RequestResult) {
        self.is_unresponsive.store(false, Ordering::SeqCst);
        if let Some(Some(reply_to)) = lock(&self.pending).pop_front() {
            // Fails if the requesting thread has timed out.
            let _ = reply_to.send(result);
        }
    }

    /// No reply will come: wakes all threads that wait for one.
    pub(crate) fn cancel_pending(&self) {
        lock(&self.pending).clear();
    }

    /// Closes the connection in both directions and wakes the thread that receives from it.
    pub(crate) fn shut_down(&self) {
        if let Ok(connection) = self.connection() {
            connection.shut_down();
        }
    }
}

impl Drop for ServiceConnection {
    fn drop(&mut self) {
        if self.identity.is_current() {
            // SAFETY: `drop` runs once, and nothing uses the connection afterwards.
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
    fn descriptor_number_reused_by_the_program_is_not_touched() {
        let ((ours, _service), (theirs, _peer)) = (pair(), pair());
        let connection = ServiceConnection::new(Connection::from_fd(ours)).unwrap();
        assert!(connection.connection().is_ok());
        // The program closes our descriptor, and the kernel reuses its number for a socket of the program.
        // SAFETY: `number` owns the descriptor from here on; `connection` finds that it refers to another socket.
        let mut number: OwnedFd = unsafe { FromRawFd::from_raw_fd(connection.identity().fd) };
        rustix::io::dup2(&theirs, &mut number).unwrap();
        assert!(matches!(connection.connection(), Err(SocketError::Closed)));
        drop(connection);
        assert!(SocketIdentity::of(number.as_fd()).is_some(), "the program's socket was closed");
    }
}

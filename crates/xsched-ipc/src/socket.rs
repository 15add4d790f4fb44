//! Packets on a unix socket, some with a descriptor.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The maximum size of a packet.
pub const MAX_PACKET_SIZE: usize = 64 * 1024;

/// How long a tool waits until the service accepts its connection, and until there is room for a request. A service that works
/// does both within microseconds.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The packet that is a notification.
const NOTIFICATION: &[u8] = b"!";

/// Why a message could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The peer has closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// The queue of connections that the service has not accepted is full.
    #[error("the service does not accept connections: it is stopped or overloaded")]
    NotAccepted,
    /// A system call failed.
    #[error("cannot {what}: {why}")]
    System {
        /// The operation.
        what: &'static str,
        /// The error of the system call.
        why: Errno,
    },
    /// A packet is not a valid message.
    #[error("invalid packet: {0}")]
    Malformed(String),
}

fn system(what: &'static str) -> impl FnOnce(Errno) -> SocketError {
    move |why| match why {
        Errno::PIPE | Errno::CONNRESET => SocketError::Closed,
        why => SocketError::System { what, why },
    }
}

/// A received packet.
#[derive(Debug)]
pub enum Packet<T> {
    /// A notification.
    Notification,
    /// A message, and the descriptor that the packet carried.
    Message(T, Option<OwnedFd>),
}

/// One end of a connection.
#[derive(Debug)]
pub struct Connection(OwnedFd);

impl Connection {
    /// Wraps an accepted connection.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Connects to a service, with [`CONNECT_TIMEOUT`].
    pub fn to(path: &Path) -> Result<Self, SocketError> {
        Self::to_within(path, CONNECT_TIMEOUT)
    }

    /// Connects to a service. If it accepts no connections, or later has no room for a message, fails after `timeout`.
    pub fn to_within(path: &Path, timeout: Duration) -> Result<Self, SocketError> {
        let fd = socket()?;
        let address = SocketAddrUnix::new(path).map_err(system("use the path of the socket"))?;
        // Without it, connecting blocks as long as the service is stopped and enough clients wait for it.
        set_socket_timeout(&fd, Timeout::Send, Some(timeout)).map_err(system("set a timeout"))?;
        loop {
            match rustix::net::connect(&fd, &address) {
                Ok(()) => return Ok(Self(fd)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(SocketError::NotAccepted),
                Err(why) => return Err(system("connect")(why)),
            }
        }
    }

    /// Sends a notification. Never blocks. If the socket is full, a notification is pending anyway.
    pub fn notify(&self) {
        let _ = rustix::net::send(&self.0, NOTIFICATION, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Closes the connection in both directions and wakes threads that receive from it, even if the descriptor is duplicated.
    pub fn shut_down(&self) {
        // Fails only if the peer has closed the connection.
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }

    /// Sends a message. With `wait` false, fails if the socket is full.
    pub fn send(
        &self,
        message: &impl Serialize,
        fd: Option<BorrowedFd<'_>>,
        wait: bool,
    ) -> Result<(), SocketError> {
        let text = serde_json::to_vec(message).map_err(|error| SocketError::Malformed(error.to_string()))?;
        self.send_packet(&text, fd, wait)
    }

    /// Sends an encoded message.
    pub(crate) fn send_packet(
        &self,
        packet: &[u8],
        fd: Option<BorrowedFd<'_>>,
        wait: bool,
    ) -> Result<(), SocketError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
        if !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let flags = if wait { SendFlags::NOSIGNAL } else { SendFlags::NOSIGNAL | SendFlags::DONTWAIT };
        rustix::net::sendmsg(&self.0, &[IoSlice::new(packet)], &mut ancillary, flags)
            .map(drop)
            .map_err(system("send"))
    }

    /// Waits for the next packet. With `wait` false, returns none if there is none.
    pub fn receive<T: DeserializeOwned>(&self, wait: bool) -> Result<Option<Packet<T>>, SocketError> {
        // A program under a memory limit must not abort here: it runs unscheduled instead.
        let mut text = Vec::new();
        text.try_reserve_exact(MAX_PACKET_SIZE).map_err(|_| system("allocate a packet")(Errno::NOMEM))?;
        text.resize(MAX_PACKET_SIZE, 0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags =
            if wait { RecvFlags::CMSG_CLOEXEC } else { RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT };
        let got = loop {
            match rustix::net::recvmsg(&self.0, &mut [IoSliceMut::new(&mut text)], &mut ancillary, flags) {
                Ok(got) => break got,
                // The peer has closed the connection with packets unread. The kernel reports this once, before the packets that the
                // peer sent earlier.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(why) => return Err(system("receive")(why)),
            }
        };
        let mut fd = None;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                // Descriptors beyond the first are closed as they are dropped.
                fd = fds.fold(fd, |first, next| first.or(Some(next)));
            }
        }
        match &text[..got.bytes] {
            [] => Err(SocketError::Closed),
            NOTIFICATION => Ok(Some(Packet::Notification)),
            text => {
                let message = serde_json::from_slice(text)
                    .map_err(|error| SocketError::Malformed(error.to_string()))?;
                Ok(Some(Packet::Message(message, fd)))
            }
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Creates a socket of the type that the service and its peers use.
pub fn socket() -> Result<OwnedFd, SocketError> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(system("create a socket"))
}

/// The sockets at which a service may listen, in the order to try: this user's, then the machine's. If `XSCHED_SOCKET` is set,
/// only that one.
#[must_use]
pub fn candidates() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os("XSCHED_SOCKET").filter(|path| !path.is_empty()) {
        return vec![path.into()];
    }
    let user = std::env::var_os("XDG_RUNTIME_DIR").map(|dir| Path::new(&dir).join("xsched/socket"));
    user.into_iter().chain([PathBuf::from("/run/xsched/socket")]).collect()
}

/// Two connected ends.
#[cfg(test)]
pub(crate) fn pair() -> (Connection, Connection) {
    let (a, b) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    (Connection(a), Connection(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Reply, Request};

    #[test]
    fn messages_notifications_and_descriptors_arrive_in_order() {
        let (program, service) = pair();
        assert!(service.receive::<Request>(false).unwrap().is_none());
        program.send(&Request::Status, None, true).unwrap();
        program.notify();
        let Some(Packet::Message(Request::Status, None)) = service.receive(true).unwrap() else { panic!() };
        let Some(Packet::<Request>::Notification) = service.receive(true).unwrap() else { panic!() };
        let page = crate::Page::create().unwrap();
        service.send(&Reply::Welcome { version: "1".into(), note: None }, page.fd(), true).unwrap();
        let Some(Packet::Message(Reply::Welcome { .. }, Some(fd))) = program.receive(true).unwrap() else {
            panic!()
        };
        crate::Page::attach(&fd).unwrap();
    }

    #[test]
    fn malformed_packets_and_closed_connections_are_different_errors() {
        let (program, service) = pair();
        rustix::net::send(&program.0, b"malformed", SendFlags::empty()).unwrap();
        assert!(matches!(service.receive::<Request>(true), Err(SocketError::Malformed(_))));
        drop(program);
        assert!(matches!(service.receive::<Request>(true), Err(SocketError::Closed)));
        assert!(matches!(service.send(&Reply::Done, None, true), Err(SocketError::Closed)));
        service.notify();
    }

    #[test]
    fn packets_arrive_although_the_sender_closed_the_connection_with_packets_unread() {
        let (program, service) = pair();
        program.send(&Request::Status, None, true).unwrap();
        service.send(&Reply::Done, None, true).unwrap();
        drop(service);
        assert!(matches!(program.receive(true), Ok(Some(Packet::Message(Reply::Done, None)))));
        assert!(matches!(program.receive::<Reply>(true), Err(SocketError::Closed)));
    }
}

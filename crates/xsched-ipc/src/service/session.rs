//! The sessions of the service: one for each connection, with its peer, its role and the packets that wait to be sent.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use xsched_core::Nanos;

use super::peer::Peer;
use super::{ACCEPT_RETRY_DELAY, LISTENER, PIDFD, SOCKET, Service};
use crate::coordinator::ClientId;
use crate::protocol::{PROTOCOL, Reply, Request};
use crate::socket::{Connection, SocketError};

/// The maximum number of open connections of one user.
const MAX_CONNECTIONS_PER_USER: usize = 1_024;
/// How many connections are accepted before other events are handled.
const MAX_ACCEPTS_PER_EVENT: usize = 16;

/// The purpose of a connection.
pub(super) enum Role {
    /// A tool that sends requests.
    Tool,
    /// A scheduled process.
    Process(JoinedProcess),
    /// A tool that receives events; the number of events lost since the last that it received.
    Tracer(u64),
}

/// A scheduled process.
pub(super) struct JoinedProcess {
    pub(super) client: ClientId,
    pub(super) pid: u32,
    /// The name that its user gave it.
    pub(super) given_name: Option<String>,
    /// The file name of its executable.
    pub(super) file_name: String,
    /// Its command line. Empty until it was read.
    pub(super) command_line: String,
    /// Becomes readable when the process exits, even if a child has inherited the socket.
    pub(super) pidfd: Option<OwnedFd>,
}

impl JoinedProcess {
    /// The name in status reports.
    pub(super) fn name(&self) -> &str {
        self.given_name.as_deref().unwrap_or(&self.file_name)
    }
}

pub(super) struct Session {
    pub(super) connection: Connection,
    pub(super) peer: Peer,
    pub(super) role: Role,
    /// Packets that wait for room in the socket. Nothing is received from the peer until they are sent.
    outgoing: VecDeque<Vec<u8>>,
}

impl Session {
    pub(super) fn process(&self) -> Option<&JoinedProcess> {
        if let Role::Process(process) = &self.role { Some(process) } else { None }
    }

    /// Sends a packet. Returns false if the socket is full.
    fn try_send(&self, packet: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<bool, SocketError> {
        match self.connection.send_packet(packet, fd, false) {
            Ok(()) => Ok(true),
            Err(SocketError::System { why: Errno::AGAIN, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// All sessions. An index is reused when its session has ended; a generation number distinguishes the sessions.
#[derive(Default)]
pub(super) struct Sessions {
    /// The generation of each index, and its session.
    entries: Vec<(u32, Option<Session>)>,
    free: Vec<usize>,
    count: usize,
    /// The number of scheduled processes.
    pub(super) process_count: usize,
}

impl Sessions {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.entries.iter().filter_map(|(_, session)| session.as_ref())
    }

    /// The sessions with their indices.
    pub(super) fn enumerate(&self) -> impl Iterator<Item = (usize, &Session)> {
        self.entries.iter().enumerate().filter_map(|(index, (_, session))| Some((index, session.as_ref()?)))
    }

    pub(super) fn get(&self, index: usize) -> Option<&Session> {
        self.entries.get(index)?.1.as_ref()
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Session> {
        self.entries.get_mut(index)?.1.as_mut()
    }

    fn insert(&mut self, session: Session) -> usize {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push((0, None));
            self.entries.len() - 1
        });
        let (generation, entry) = &mut self.entries[index];
        *generation = generation.wrapping_add(1);
        *entry = Some(session);
        self.count += 1;
        index
    }

    fn remove(&mut self, index: usize) -> Option<Session> {
        let session = self.entries.get_mut(index)?.1.take()?;
        self.free.push(index);
        self.count -= 1;
        Some(session)
    }

    /// The token by which epoll identifies a descriptor of the session.
    fn token(&self, index: usize, kind: u64) -> EventData {
        EventData::new_u64(u64::from(self.entries[index].0) << 32 | (index as u64) << 2 | kind)
    }

    /// The index of the session that a token identifies, if it has not ended.
    fn index(&self, token: u64) -> Option<usize> {
        let index = usize::try_from(token & 0xffff_ffff).ok()? >> 2;
        let (generation, session) = self.entries.get(index)?;
        (u64::from(*generation) == token >> 32 && session.is_some()).then_some(index)
    }
}

impl Service {
    /// Accepts new connections.
    pub(super) fn accept(&mut self, now: Nanos) {
        for _ in 0..MAX_ACCEPTS_PER_EVENT {
            match self.listener.accept() {
                Ok(Some(fd)) => self.add_session(fd),
                Ok(None) => return,
                Err(_) => {
                    // No descriptors or no memory: retried after a delay.
                    let _ = epoll::delete(&self.epoll, &self.listener);
                    self.accept_due = Some(now + ACCEPT_RETRY_DELAY);
                    return;
                }
            }
        }
    }

    pub(super) fn resume_accepting(&mut self) {
        let _ = epoll::add(&self.epoll, &self.listener, EventData::new_u64(LISTENER), EventFlags::IN);
    }

    fn add_session(&mut self, fd: OwnedFd) {
        let Ok(peer) = Peer::of(fd.as_fd()) else { return };
        let connection = Connection::from_fd(fd);
        let count = self.connections.entry(peer.uid).or_default();
        if *count >= MAX_CONNECTIONS_PER_USER && peer.uid != 0 {
            let why = format!(
                "user {} already has {MAX_CONNECTIONS_PER_USER} connections to the service, which is the maximum: close some",
                peer.uid
            );
            let _ = connection.send(&Reply::Refused { why }, None, false);
            return;
        }
        *count += 1;
        let session = Session { connection, peer, role: Role::Tool, outgoing: VecDeque::new() };
        let index = self.sessions.insert(session);
        self.counters.connected();
        let token = self.sessions.token(index, SOCKET);
        let watched = self
            .sessions
            .get(index)
            .map(|session| epoll::add(&self.epoll, &session.connection, token, EventFlags::IN));
        if !matches!(watched, Some(Ok(()))) {
            self.close(index);
        }
    }

    /// A scheduled process has exited.
    pub(super) fn process_ended(&mut self, token: u64) {
        if let Some(index) = self.sessions.index(token) {
            self.close(index);
        }
    }

    pub(super) fn socket_event(&mut self, token: u64, flags: EventFlags, now: Nanos) {
        let Some(index) = self.sessions.index(token) else { return };
        if flags.contains(EventFlags::OUT) {
            self.send_queued(index);
        }
        if flags.contains(EventFlags::IN) {
            self.receive(index, now);
        } else if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            self.close(index);
        }
    }

    /// Receives one packet. If there are more, epoll reports the socket again after the other sockets.
    fn receive(&mut self, index: usize, now: Nanos) {
        let Some(session) = self.sessions.get(index) else { return };
        let length = match rustix::net::recv(&session.connection, &mut *self.packet, RecvFlags::DONTWAIT) {
            // The kernel closes descriptors that the peer sends: this call has no buffer for them.
            Ok((_, length)) => length.min(self.packet.len()),
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => 0,
        };
        if let Role::Process(process) = &session.role {
            // Any packet implies a notification: a notification is not sent if the socket is full.
            self.coordinator.look_at(process.client, now);
            self.is_decision_due = true;
        }
        match &self.packet[..length] {
            [] => self.close(index),
            b"!" => self.counters.notify(),
            text => match serde_json::from_slice::<Request>(text) {
                Ok(request) => self.handle(index, request, now),
                Err(error) => {
                    let version = env!("CARGO_PKG_VERSION");
                    let why = format!(
                        "this is not a valid request for xsched {version} (protocol {PROTOCOL}): {error}; install the same version \
                         of the program and the service"
                    );
                    self.reply(index, &Reply::Refused { why });
                    self.close(index);
                }
            },
        }
    }

    /// Sends a reply now, or queues it until the socket has room. A scheduled process that does not read its replies loses
    /// them: the service has to receive its notifications.
    pub(super) fn reply(&mut self, index: usize, reply: &Reply) {
        self.reply_with(index, reply, None);
    }

    pub(super) fn reply_with(&mut self, index: usize, reply: &Reply, fd: Option<BorrowedFd<'_>>) -> bool {
        if matches!(reply, Reply::Refused { .. }) {
            self.counters.refusal();
        }
        let Ok(packet) = serde_json::to_vec(reply) else { return false };
        let Some(session) = self.sessions.get_mut(index) else { return false };
        if !session.outgoing.is_empty() {
            session.outgoing.push_back(packet);
            return true;
        }
        match session.try_send(&packet, fd) {
            Ok(true) => true,
            Ok(false) if session.process().is_some() || fd.is_some() => false,
            Ok(false) => {
                session.outgoing.push_back(packet);
                self.watch(index, EventFlags::OUT);
                true
            }
            // The next receive finds the connection closed.
            Err(_) => false,
        }
    }

    /// Sends a reply unless the socket is full. Returns whether it was sent.
    pub(super) fn send_if_room(&mut self, index: usize, reply: &Reply) -> bool {
        let Ok(packet) = serde_json::to_vec(reply) else { return false };
        self.sessions.get(index).is_some_and(|session| {
            session.outgoing.is_empty() && session.try_send(&packet, None).unwrap_or(false)
        })
    }

    /// The socket has room: sends queued packets.
    fn send_queued(&mut self, index: usize) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        while let Some(packet) = session.outgoing.pop_front() {
            match session.try_send(&packet, None) {
                Ok(true) => {}
                Ok(false) => {
                    session.outgoing.push_front(packet);
                    return;
                }
                Err(_) => {
                    self.close(index);
                    return;
                }
            }
        }
        self.watch(index, EventFlags::IN);
    }

    fn watch(&self, index: usize, flags: EventFlags) {
        if let Some(session) = self.sessions.get(index) {
            let _ =
                epoll::modify(&self.epoll, &session.connection, self.sessions.token(index, SOCKET), flags);
        }
    }

    /// Has epoll report the exit of a scheduled process.
    pub(super) fn watch_process(&self, index: usize, pidfd: &OwnedFd) -> bool {
        epoll::add(&self.epoll, pidfd, self.sessions.token(index, PIDFD), EventFlags::IN).is_ok()
    }

    /// Requests the command line of the process of a session.
    pub(super) fn request_command_line(&self, index: usize, pid: u32) {
        self.command_lines.request(self.sessions.token(index, SOCKET).u64(), pid);
    }

    pub(super) fn store_command_lines(&mut self) {
        for (token, command_line) in self.command_lines.take_results() {
            if let Some(index) = self.sessions.index(token)
                && let Some(Role::Process(process)) =
                    self.sessions.get_mut(index).map(|session| &mut session.role)
            {
                process.command_line = command_line;
            }
        }
    }

    /// Ends a session. The next decision gives the device time of a scheduled process to other tasks.
    pub(super) fn close(&mut self, index: usize) {
        let Some(session) = self.sessions.remove(index) else { return };
        // If a child process has a copy of the descriptor, closing it does not remove it from epoll.
        let _ = epoll::delete(&self.epoll, &session.connection);
        match &session.role {
            Role::Process(process) => {
                if let Some(pidfd) = &process.pidfd {
                    let _ = epoll::delete(&self.epoll, pidfd);
                }
                self.coordinator.remove_client(process.client);
                self.sessions.process_count -= 1;
                self.counters.leave();
                self.is_decision_due = true;
            }
            Role::Tracer(_) => self.stop_tracing(),
            Role::Tool => {}
        }
        self.counters.disconnected();
        if let Some(count) = self.connections.get_mut(&session.peer.uid) {
            *count -= 1;
            if *count == 0 {
                self.connections.remove(&session.peer.uid);
            }
        }
        if self.sessions.is_empty() {
            self.empty_since = Nanos::now();
        }
    }
}

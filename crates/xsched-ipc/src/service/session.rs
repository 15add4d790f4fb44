//! The sessions of the service: one for each connection, with its peer, its role and the packets that wait to be sent.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::net::sockopt::set_socket_send_buffer_size;
use xsched_core::{Hints, Nanos};

use super::grants::{GrantId, ProcessGroups, TokenHash};
use super::listings::PendingListing;
use super::memory_groups::ProcessMemory;
use super::metrics_renderer::SharedPacket;
use super::peer::Peer;
use super::{ACCEPT_RETRY_DELAY, LISTENER, PIDFD, SOCKET, Service};
use crate::coordinator::ClientId;
use crate::protocol::{HintRequest, PROTOCOL, Reply, Request};
use crate::socket::{Connection, MAX_PACKET_SIZE, SocketError};

/// How many connections are accepted before other events are handled.
const MAX_ACCEPTS_PER_EVENT: usize = 4;
/// The kernel's buffer for packets that a client has not read: one packet of the maximum size. The kernel doubles it.
const SEND_BUFFER_SIZE: usize = MAX_PACKET_SIZE;

/// The purpose of a connection.
pub(super) enum Role {
    /// A tool that sends requests.
    Tool,
    /// A scheduled process.
    Process(Box<JoinedProcess>),
    /// A tool that receives events.
    Tracer {
        /// The number of events lost since the last that it received.
        lost: u64,
        /// It also receives the names of kernels.
        names_kernels: bool,
    },
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
    /// Its control groups when it joined.
    pub(super) groups: ProcessGroups,
    /// The hash of the token that it joined with.
    pub(super) token: Option<TokenHash>,
    /// Its grant.
    pub(super) grant: Option<GrantId>,
    /// Its hints without grant and request.
    pub(super) base: Hints,
    /// What was requested for it, by itself and by others.
    pub(super) hint_request: HintRequest,
    /// How many keys of jobs it has.
    pub(super) job_keys: usize,
    /// Whose device memory counts together with its own.
    pub(super) memory: ProcessMemory,
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
    /// The generation of the grants in which it was found what the peer is confined to.
    pub(super) confined_at: Option<u64>,
    /// The peer whose rights requests on this connection have, if not those of `peer`.
    pub(super) acts_for: Option<Peer>,
    pub(super) role: Role,
    /// The listing that it waits for. Nothing is received from the peer until it is complete.
    pub(super) listing: Option<PendingListing>,
    /// Packets that wait for room in the socket. Nothing is received from the peer until they are sent.
    outgoing: VecDeque<SharedPacket>,
    /// Since when the peer has read nothing of what waits for it.
    pub(super) blocked_since: Option<Nanos>,
    /// A request of a scheduled process that was received and not handled yet. Nothing more is received until it is.
    deferred: Option<Box<[u8]>>,
    /// The events that epoll reports for its socket.
    watched: EventFlags,
}

impl Session {
    /// The peer whose rights requests on this connection have.
    pub(super) fn caller(&self) -> Peer {
        self.acts_for.unwrap_or(self.peer)
    }

    pub(super) fn process(&self) -> Option<&JoinedProcess> {
        if let Role::Process(process) = &self.role { Some(process) } else { None }
    }

    /// Whether the peer has not received the reply to its last request.
    fn awaits_reply(&self) -> bool {
        self.listing.is_some() || !self.outgoing.is_empty()
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

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Session> {
        self.entries.iter_mut().filter_map(|(_, session)| session.as_mut())
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

    /// The token by which epoll identifies the socket of the session.
    pub(super) fn socket_token(&self, index: usize) -> u64 {
        self.token(index, SOCKET).u64()
    }

    /// The index of the session that a token identifies, if it has not ended.
    pub(super) fn index(&self, token: u64) -> Option<usize> {
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
                    let _ = epoll::delete(&self.tools_epoll, &self.listener);
                    self.accept_due = Some(now + ACCEPT_RETRY_DELAY);
                    return;
                }
            }
        }
    }

    pub(super) fn resume_accepting(&mut self) {
        let _ = epoll::add(&self.tools_epoll, &self.listener, EventData::new_u64(LISTENER), EventFlags::IN);
    }

    fn add_session(&mut self, fd: OwnedFd) {
        let Ok(peer) = Peer::of(fd.as_fd()) else { return };
        let connection = Connection::from_fd(fd);
        if let Err(why) = self.usages.add_connection(peer.uid) {
            self.counters.refusal();
            let _ = connection.send(&Reply::Refused { why }, None, false);
            return;
        }
        // Fails only if the system has less memory than that.
        let _ = set_socket_send_buffer_size(&connection, SEND_BUFFER_SIZE);
        let watched = EventFlags::IN;
        let session = Session {
            connection,
            peer,
            confined_at: None,
            acts_for: None,
            role: Role::Tool,
            listing: None,
            outgoing: VecDeque::new(),
            blocked_since: None,
            deferred: None,
            watched,
        };
        let index = self.sessions.insert(session);
        self.watchdog.set_used(true);
        self.counters.connected();
        let token = self.sessions.token(index, SOCKET);
        let added = self
            .sessions
            .get(index)
            .map(|session| epoll::add(&self.tools_epoll, &session.connection, token, watched));
        if !matches!(added, Some(Ok(()))) {
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
            if self.sessions.get(index).is_some_and(Session::awaits_reply) {
                // It sends requests without reading the replies: its next request waits.
                self.watch(index, EventFlags::empty());
            } else {
                self.receive(index, now);
            }
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
        let process = session.process().map(|process| process.client);
        if let Some(client) = process {
            // Any packet implies a notification: a notification is not sent if the socket is full.
            self.coordinator.look_at(client, now);
            self.is_decision_due = true;
        }
        match &self.packet[..length] {
            [] => self.close(index),
            b"!" => self.counters.notify(),
            request => {
                let request = request.into();
                if process.is_some() {
                    self.defer(index, request);
                } else {
                    self.handle_packet(index, &request, now);
                }
            }
        }
    }

    /// Has a request of a scheduled process wait until the notifications and the orders of this round are done.
    fn defer(&mut self, index: usize, request: Box<[u8]>) {
        let token = self.sessions.socket_token(index);
        let Some(session) = self.sessions.get_mut(index) else { return };
        session.deferred = Some(request);
        self.deferred_requests.push(session.peer.uid, token);
        self.watch(index, EventFlags::empty());
    }

    /// Handles the next request of a scheduled process. Returns whether there was one.
    pub(super) fn handle_deferred_request(&mut self, now: Nanos) -> bool {
        while let Some((_, token)) = self.deferred_requests.next() {
            if let Some(index) = self.sessions.index(token)
                && let Some(request) =
                    self.sessions.get_mut(index).and_then(|session| session.deferred.take())
            {
                self.watch(index, EventFlags::IN);
                self.handle_packet(index, &request, now);
                return true;
            }
        }
        false
    }

    fn handle_packet(&mut self, index: usize, packet: &[u8], now: Nanos) {
        match serde_json::from_slice::<Request>(packet) {
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
        match fd {
            // A descriptor is passed at once or not at all.
            Some(_) => self.sessions.get(index).is_some_and(|session| {
                session.outgoing.is_empty() && session.try_send(&packet, fd).unwrap_or(false)
            }),
            None => self.send_or_queue(index, &packet.into()),
        }
    }

    /// Sends a packet now, or queues it until the socket has room.
    pub(super) fn send_or_queue(&mut self, index: usize, packet: &SharedPacket) -> bool {
        let Some(session) = self.sessions.get(index) else { return false };
        if !session.outgoing.is_empty() {
            return self.queue(index, Arc::clone(packet));
        }
        match session.try_send(packet, None) {
            Ok(true) => true,
            Ok(false) if session.process().is_some() => false,
            Ok(false) => self.queue(index, Arc::clone(packet)),
            // The next receive finds the connection closed.
            Err(_) => false,
        }
    }

    /// Queues a packet until the socket has room. Closes the connection if its user has too many bytes that are not read.
    fn queue(&mut self, index: usize, packet: SharedPacket) -> bool {
        let Some(session) = self.sessions.get_mut(index) else { return false };
        if self.usages.add_unread(session.peer.uid, packet.len()) {
            session.outgoing.push_back(packet);
            self.block(index);
            true
        } else {
            self.close(index);
            false
        }
    }

    /// The socket of a tool is full. Epoll reports when it has room; if the tool reads nothing meanwhile, the connection is closed
    /// after the timeout.
    pub(super) fn block(&mut self, index: usize) {
        let now = Nanos::now();
        let due = now + Nanos::from(self.options.unread_timeout);
        if let Some(session) = self.sessions.get_mut(index) {
            session.blocked_since.get_or_insert(now);
            self.unread_due.get_or_insert(due);
            self.timer.wake_at(self.unread_due);
        }
        self.watch(index, EventFlags::OUT);
    }

    /// Closes the connections whose peers have read nothing for the timeout.
    pub(super) fn close_blocked(&mut self, now: Nanos) {
        let timeout = Nanos::from(self.options.unread_timeout);
        let blocked = |(index, session): (usize, &Session)| Some((index, session.blocked_since? + timeout));
        let (over, later): (Vec<_>, Vec<_>) =
            self.sessions.enumerate().filter_map(blocked).partition(|(_, due)| *due <= now);
        for (index, _) in over {
            self.close(index);
        }
        self.unread_due = later.iter().map(|(_, due)| *due).min();
    }

    /// Sends a packet. Returns false if the socket is full.
    pub(super) fn send_now(&self, index: usize, packet: &[u8]) -> Result<bool, SocketError> {
        self.sessions.get(index).map_or(Err(SocketError::Closed), |session| session.try_send(packet, None))
    }

    /// Whether a session is that of a scheduled process.
    pub(super) fn is_scheduled_process(&self, index: usize) -> bool {
        self.sessions.get(index).is_some_and(|session| session.process().is_some())
    }

    /// Sends a packet unless the socket is full. Returns whether it was sent.
    pub(super) fn send_packet_if_room(&self, index: usize, packet: &[u8]) -> bool {
        self.sessions
            .get(index)
            .is_some_and(|session| !session.awaits_reply() && session.try_send(packet, None).unwrap_or(false))
    }

    /// The socket has room: sends queued packets, or continues a listing.
    fn send_queued(&mut self, index: usize) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        if session.listing.as_ref().is_some_and(|listing| listing.is_blocked) {
            return self.resume_listing(index);
        }
        while let Some(packet) = session.outgoing.pop_front() {
            match session.try_send(&packet, None) {
                Ok(true) => {
                    session.blocked_since = Some(Nanos::now());
                    self.usages.remove_unread(session.peer.uid, packet.len());
                }
                Ok(false) => {
                    session.outgoing.push_front(packet);
                    return;
                }
                Err(_) => {
                    session.outgoing.push_front(packet);
                    self.close(index);
                    return;
                }
            }
        }
        session.blocked_since = None;
        self.watch(index, EventFlags::IN);
    }

    /// Has epoll report these events of a session's socket, besides the end of the connection.
    pub(super) fn watch(&mut self, index: usize, flags: EventFlags) {
        let is_process = self.is_scheduled_process(index);
        let epoll = if is_process { &self.epoll } else { &self.tools_epoll };
        let token = EventData::new_u64(self.sessions.socket_token(index));
        if let Some(session) = self.sessions.get_mut(index)
            && std::mem::replace(&mut session.watched, flags) != flags
        {
            let _ = epoll::modify(epoll, &session.connection, token, flags);
        }
    }

    /// Has epoll report the socket of a process that has joined before those of tools. Returns whether that succeeded.
    pub(super) fn watch_as_process(&self, index: usize) -> bool {
        let Some(session) = self.sessions.get(index) else { return false };
        let token = self.sessions.token(index, SOCKET);
        epoll::add(&self.epoll, &session.connection, token, session.watched).is_ok()
            && epoll::delete(&self.tools_epoll, &session.connection).is_ok()
    }

    /// Has epoll report the exit of a scheduled process.
    pub(super) fn watch_process(&self, index: usize, pidfd: &OwnedFd) -> bool {
        epoll::add(&self.epoll, pidfd, self.sessions.token(index, PIDFD), EventFlags::IN).is_ok()
    }

    /// Requests the command line of the process of a session.
    pub(super) fn request_command_line(&self, index: usize, pid: u32) {
        self.command_lines.request(self.sessions.socket_token(index), pid);
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
        let epoll = if session.process().is_some() { &self.epoll } else { &self.tools_epoll };
        let _ = epoll::delete(epoll, &session.connection);
        let uid = session.peer.uid;
        self.usages.remove_unread(uid, session.outgoing.iter().map(|packet| packet.len()).sum());
        match &session.role {
            Role::Process(process) => {
                if let Some(pidfd) = &process.pidfd {
                    let _ = epoll::delete(&self.epoll, pidfd);
                }
                self.coordinator.remove_client(process.client);
                self.leave_memory_groups(&process.memory);
                self.sessions.process_count -= 1;
                // Cannot fail: the user has fewer keys then.
                let _ = self.usages.replace_job_keys(uid, process.job_keys, 0);
                self.usages.remove_process(uid);
                self.counters.leave();
                self.is_decision_due = true;
            }
            Role::Tracer { .. } => self.stop_tracing(),
            Role::Tool => {}
        }
        self.counters.disconnected();
        self.usages.remove_connection(uid);
        if self.sessions.is_empty() {
            self.empty_since = Nanos::now();
            self.watchdog.set_used(false);
        }
    }
}

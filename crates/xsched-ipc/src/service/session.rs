//! One connection: who is at its other end, what it is used for, and what it still has to be sent.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use xsched_core::Nanos;

use super::peer::Peer;
use super::{LISTENER, PIDFD, REST, SOCKET, Service};
use crate::coordinator::ClientId;
use crate::protocol::{PROTOCOL, Reply, Request};
use crate::socket::{Connection, SocketError};

/// How many connections one user may have at once.
const CONNECTIONS_PER_USER: usize = 1_024;
/// How many connections are accepted before others have their turn.
const ACCEPTED_AT_ONCE: usize = 16;

/// What a connection is used for.
pub(super) enum Role {
    /// Questions.
    Asking,
    /// A program that is being scheduled.
    Program(Program),
    /// Somebody reads events. So many were lost since the last that arrived.
    Tracing(u64),
}

/// A program that is being scheduled.
pub(super) struct Program {
    pub(super) client: ClientId,
    pub(super) process: u32,
    /// What its user named it.
    pub(super) given_name: Option<String>,
    /// The file name of its executable.
    pub(super) file_name: String,
    /// Empty until it is known.
    pub(super) command_line: String,
    /// Shows its death, even if a child still has the socket.
    pub(super) pidfd: Option<OwnedFd>,
}

impl Program {
    /// What people know it by.
    pub(super) fn name(&self) -> &str {
        self.given_name.as_deref().unwrap_or(&self.file_name)
    }
}

pub(super) struct Session {
    pub(super) connection: Connection,
    pub(super) peer: Peer,
    pub(super) role: Role,
    /// Packets the other side has not made room for yet. Nothing is read from it until they are gone.
    outgoing: VecDeque<Vec<u8>>,
}

impl Session {
    pub(super) fn program(&self) -> Option<&Program> {
        if let Role::Program(program) = &self.role { Some(program) } else { None }
    }

    /// Sends a packet if there is room for it.
    fn try_send(&self, packet: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<bool, SocketError> {
        match self.connection.send_packet(packet, fd, false) {
            Ok(()) => Ok(true),
            Err(SocketError::System { why: Errno::AGAIN, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// All connections. A place is used again when its session has ended; the number of times tells them apart.
#[derive(Default)]
pub(super) struct Sessions {
    places: Vec<(u32, Option<Session>)>,
    free: Vec<usize>,
    count: usize,
    /// How many of them are programs.
    pub(super) programs: usize,
}

impl Sessions {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.places.iter().filter_map(|(_, session)| session.as_ref())
    }

    /// The places that are taken.
    pub(super) fn taken(&self) -> impl Iterator<Item = (usize, &Session)> {
        self.places.iter().enumerate().filter_map(|(place, (_, session))| Some((place, session.as_ref()?)))
    }

    pub(super) fn get(&self, place: usize) -> Option<&Session> {
        self.places.get(place)?.1.as_ref()
    }

    pub(super) fn get_mut(&mut self, place: usize) -> Option<&mut Session> {
        self.places.get_mut(place)?.1.as_mut()
    }

    fn insert(&mut self, session: Session) -> usize {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() - 1
        });
        let (times, empty) = &mut self.places[place];
        *times = times.wrapping_add(1);
        *empty = Some(session);
        self.count += 1;
        place
    }

    fn remove(&mut self, place: usize) -> Option<Session> {
        let session = self.places.get_mut(place)?.1.take()?;
        self.free.push(place);
        self.count -= 1;
        Some(session)
    }

    /// What epoll calls a descriptor of the session.
    fn token(&self, place: usize, kind: u64) -> EventData {
        EventData::new_u64(u64::from(self.places[place].0) << 32 | (place as u64) << 2 | kind)
    }

    /// The place a token means, if its session has not ended.
    fn place(&self, token: u64) -> Option<usize> {
        let place = usize::try_from(token & 0xffff_ffff).ok()? >> 2;
        let (times, session) = self.places.get(place)?;
        (u64::from(*times) == token >> 32 && session.is_some()).then_some(place)
    }
}

impl Service {
    /// Takes in new connections.
    pub(super) fn accept(&mut self, now: Nanos) {
        for _ in 0..ACCEPTED_AT_ONCE {
            match self.listener.accept() {
                Ok(Some(fd)) => self.welcome_connection(fd),
                Ok(None) => return,
                Err(_) => {
                    // No descriptors or no memory. Asking again at once would only burn time.
                    let _ = epoll::delete(&self.epoll, &self.listener);
                    self.rest_over = Some(now + REST);
                    return;
                }
            }
        }
    }

    pub(super) fn listen_again(&mut self) {
        let _ = epoll::add(&self.epoll, &self.listener, EventData::new_u64(LISTENER), EventFlags::IN);
    }

    fn welcome_connection(&mut self, fd: OwnedFd) {
        let Ok(peer) = Peer::of(fd.as_fd()) else { return };
        let connection = Connection::from_fd(fd);
        let count = self.users.entry(peer.uid).or_default();
        if *count >= CONNECTIONS_PER_USER && peer.uid != 0 {
            let why =
                format!("user {} has {CONNECTIONS_PER_USER} connections to the scheduler already", peer.uid);
            let _ = connection.send(&Reply::Refused { why }, None, false);
            return;
        }
        *count += 1;
        let session = Session { connection, peer, role: Role::Asking, outgoing: VecDeque::new() };
        let place = self.sessions.insert(session);
        self.counters.connected();
        let token = self.sessions.token(place, SOCKET);
        let watched = self
            .sessions
            .get(place)
            .map(|session| epoll::add(&self.epoll, &session.connection, token, EventFlags::IN));
        if !matches!(watched, Some(Ok(()))) {
            self.close(place);
        }
    }

    /// A program's end shows here before its socket is closed, if it is.
    pub(super) fn process_ended(&mut self, token: u64) {
        if let Some(place) = self.sessions.place(token) {
            self.close(place);
        }
    }

    pub(super) fn socket_event(&mut self, token: u64, flags: EventFlags, now: Nanos) {
        let Some(place) = self.sessions.place(token) else { return };
        if flags.contains(EventFlags::OUT) {
            self.send_on(place);
        }
        if flags.contains(EventFlags::IN) {
            self.receive(place, now);
        } else if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            self.close(place);
        }
    }

    /// Takes one packet. If there are more, epoll says so again, after the others had their turn.
    fn receive(&mut self, place: usize, now: Nanos) {
        let Some(session) = self.sessions.get(place) else { return };
        let length = match rustix::net::recv(&session.connection, &mut *self.packet, RecvFlags::DONTWAIT) {
            // Descriptors that somebody sends along are closed by the kernel, as there is no room for them here.
            Ok((_, length)) => length.min(self.packet.len()),
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => 0,
        };
        if let Role::Program(program) = &session.role {
            // Whatever it sends, it may have rung as well: a ring that found the socket full was not sent.
            self.coordinator.look_at(program.client, now);
            self.news = true;
        }
        match &self.packet[..length] {
            [] => self.close(place),
            b"!" => self.counters.notify(),
            text => match serde_json::from_slice::<Request>(text) {
                Ok(request) => self.answer(place, request, now),
                Err(error) => {
                    let version = env!("CARGO_PKG_VERSION");
                    let why = format!("not understood by xsched {version} (protocol {PROTOCOL}): {error}");
                    self.reply(place, &Reply::Refused { why });
                    self.close(place);
                }
            },
        }
    }

    /// Sends an answer, now or as soon as there is room. Programs that do not read their answers lose them: they must
    /// be heard when they ring.
    pub(super) fn reply(&mut self, place: usize, reply: &Reply) {
        self.reply_with(place, reply, None);
    }

    pub(super) fn reply_with(&mut self, place: usize, reply: &Reply, fd: Option<BorrowedFd<'_>>) -> bool {
        if matches!(reply, Reply::Refused { .. }) {
            self.counters.refusal();
        }
        let Ok(packet) = serde_json::to_vec(reply) else { return false };
        let Some(session) = self.sessions.get_mut(place) else { return false };
        if !session.outgoing.is_empty() {
            session.outgoing.push_back(packet);
            return true;
        }
        match session.try_send(&packet, fd) {
            Ok(true) => true,
            Ok(false) if session.program().is_some() || fd.is_some() => false,
            Ok(false) => {
                session.outgoing.push_back(packet);
                self.watch(place, EventFlags::OUT);
                true
            }
            // Its end will be seen where it is read.
            Err(_) => false,
        }
    }

    /// Sends events to whoever traces. Whoever is slow loses them.
    pub(super) fn send_if_room(&mut self, place: usize, reply: &Reply) -> bool {
        let Ok(packet) = serde_json::to_vec(reply) else { return false };
        self.sessions.get(place).is_some_and(|session| {
            session.outgoing.is_empty() && session.try_send(&packet, None).unwrap_or(false)
        })
    }

    /// There is room again.
    fn send_on(&mut self, place: usize) {
        let Some(session) = self.sessions.get_mut(place) else { return };
        while let Some(packet) = session.outgoing.pop_front() {
            match session.try_send(&packet, None) {
                Ok(true) => {}
                Ok(false) => {
                    session.outgoing.push_front(packet);
                    return;
                }
                Err(_) => {
                    self.close(place);
                    return;
                }
            }
        }
        self.watch(place, EventFlags::IN);
    }

    fn watch(&self, place: usize, flags: EventFlags) {
        if let Some(session) = self.sessions.get(place) {
            let _ =
                epoll::modify(&self.epoll, &session.connection, self.sessions.token(place, SOCKET), flags);
        }
    }

    /// Has epoll tell of the end of a program's process.
    pub(super) fn watch_process(&self, place: usize, pidfd: &OwnedFd) -> bool {
        epoll::add(&self.epoll, pidfd, self.sessions.token(place, PIDFD), EventFlags::IN).is_ok()
    }

    /// Asks for the command line of the program at a place.
    pub(super) fn ask_for_name(&self, place: usize, pid: u32) {
        self.names.ask(self.sessions.token(place, SOCKET).u64(), pid);
    }

    pub(super) fn take_names(&mut self) {
        for (token, command_line) in self.names.answers() {
            if let Some(place) = self.sessions.place(token)
                && let Some(Role::Program(program)) =
                    self.sessions.get_mut(place).map(|session| &mut session.role)
            {
                program.command_line = command_line;
            }
        }
    }

    /// Ends a session. A program's place is given to others in the round that follows.
    pub(super) fn close(&mut self, place: usize) {
        let Some(session) = self.sessions.remove(place) else { return };
        // A child may still have the socket open: then closing our end does not remove it from epoll by itself.
        let _ = epoll::delete(&self.epoll, &session.connection);
        match &session.role {
            Role::Program(program) => {
                if let Some(pidfd) = &program.pidfd {
                    let _ = epoll::delete(&self.epoll, pidfd);
                }
                self.coordinator.remove_client(program.client);
                self.sessions.programs -= 1;
                self.counters.leave();
                self.news = true;
            }
            Role::Tracing(_) => self.stop_tracing(),
            Role::Asking => {}
        }
        self.counters.disconnected();
        if let Some(count) = self.users.get_mut(&session.peer.uid) {
            *count -= 1;
            if *count == 0 {
                self.users.remove(&session.peer.uid);
            }
        }
        if self.sessions.is_empty() {
            self.empty_since = Nanos::now();
        }
    }
}

//! The HTTP server: one thread, a bounded number of connections, and a time limit for each step of an exchange.
//!
//! ```text
//!   accepted ──► reading ──(request complete, invalid or timed out)──► writing ──► draining ──► closed
//! ```
//!
//! After the response the connection is drained for up to 1 s: closing a socket with unread data makes the kernel reset the
//! connection, and the client could lose the response.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use xsched_ipc::protocol::Caller;

use super::caller;
use super::message::{self, Request, Response};

/// Limits on connections and time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Open connections; one more closes the connection with the earliest deadline.
    pub(super) connections: usize,
    /// For a request to arrive, and again for its response to be sent.
    pub(super) exchange_timeout: Duration,
    /// For the client to close its side after the response.
    pub(super) drain_timeout: Duration,
    /// Connections that are accepted in one second; further ones wait in the kernel's queue.
    pub(super) accepts_per_second: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            exchange_timeout: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(1),
            // A page needs two, and scripts less than this. Most requests to the ports of a service take time of its scheduler.
            accepts_per_second: 2_000,
        }
    }
}

/// How long to wait after `accept` failed, for example because no descriptors are left.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The time over which connections are counted for [`Limits::accepts_per_second`].
const ACCEPT_PERIOD: Duration = Duration::from_millis(1_000 / ACCEPT_PERIODS_PER_SECOND as u64);
const ACCEPT_PERIODS_PER_SECOND: u32 = 20;

/// Counts the accepted connections of a period.
struct AcceptPace {
    /// The most in one period.
    limit: u32,
    period_end: Instant,
    accepted: u32,
}

impl AcceptPace {
    fn new(limits: Limits, now: Instant) -> Self {
        let limit = (limits.accepts_per_second / ACCEPT_PERIODS_PER_SECOND).max(1);
        Self { limit, period_end: now + ACCEPT_PERIOD, accepted: 0 }
    }

    /// Counts a connection. Returns when the next one may be accepted, if that is later.
    fn count(&mut self, now: Instant) -> Option<Instant> {
        if now >= self.period_end {
            (self.period_end, self.accepted) = (now + ACCEPT_PERIOD, 0);
        }
        self.accepted += 1;
        (self.accepted >= self.limit).then_some(self.period_end)
    }
}

/// A TCP or Unix socket that accepts connections.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    fn accept(&self) -> io::Result<Stream> {
        let stream = match self {
            Self::Tcp(listener) => Stream::Tcp(listener.accept()?.0),
            Self::Unix(listener) => Stream::Unix(listener.accept()?.0),
        };
        match &stream {
            Stream::Tcp(stream) => stream.set_nonblocking(true)?,
            Stream::Unix(stream) => stream.set_nonblocking(true)?,
        }
        Ok(stream)
    }

    /// Makes `accept` return at once if no connection is pending.
    pub(super) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => listener.set_nonblocking(true),
            Self::Unix(listener) => listener.set_nonblocking(true),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
        }
    }

    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(from),
            Self::Unix(stream) => stream.write(from),
        }
    }

    fn shut_down_writing(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

impl Stream {
    /// The user at the other end.
    fn caller(&self) -> Caller {
        match self {
            Self::Tcp(stream) => caller::of_tcp(stream),
            Self::Unix(stream) => rustix::net::sockopt::socket_peercred(stream)
                .map_or(Caller::Unknown, |peer| Caller::User(peer.uid.as_raw())),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Reading,
    Writing,
    Draining,
    Closed,
}

struct Client {
    stream: Stream,
    caller: Caller,
    stage: Stage,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    deadline: Instant,
}

/// Makes the response to a request of a caller.
pub(super) type Handler = Box<dyn Fn(&Request, Caller) -> Response + Send>;

/// Listening sockets, limits, and the handler of the requests.
pub(super) struct Server {
    pub(super) listeners: Vec<Listener>,
    pub(super) limits: Limits,
    pub(super) handler: Handler,
}

impl Server {
    /// Serves until the process exits.
    pub(super) fn run(&self) {
        let mut clients: Vec<Client> = Vec::new();
        let mut accept_again_at: Option<Instant> = None;
        let mut pace = AcceptPace::new(self.limits, Instant::now());
        loop {
            let now = Instant::now();
            accept_again_at = accept_again_at.filter(|until| *until > now);
            let listening = if accept_again_at.is_none() { self.listeners.len() } else { 0 };
            let wake = clients.iter().map(|client| client.deadline).chain(accept_again_at).min();
            let ready = wait(
                &self.listeners[..listening],
                &clients,
                wake.map(|wake| wake.saturating_duration_since(now)),
            );
            let (ready_listeners, ready_clients) = ready.split_at(listening);

            let now = Instant::now();
            for (client, ready) in clients.iter_mut().zip(ready_clients) {
                if *ready {
                    self.advance(client, now);
                }
                if client.deadline <= now {
                    self.time_out(client, now);
                }
            }
            clients.retain(|client| client.stage != Stage::Closed);
            for (listener, ready) in self.listeners.iter().zip(ready_listeners) {
                if *ready {
                    match listener.accept() {
                        Ok(stream) => {
                            self.add_client(&mut clients, stream, now);
                            accept_again_at = pace.count(now);
                        }
                        Err(error) if is_transient(&error) => {}
                        Err(_) => accept_again_at = Some(now + ACCEPT_RETRY_DELAY),
                    }
                }
            }
        }
    }

    fn add_client(&self, clients: &mut Vec<Client>, stream: Stream, now: Instant) {
        if clients.len() >= self.limits.connections {
            // A well-behaved client completes long before its deadline, so the earliest deadline is a slow client's.
            if let Some(oldest) = (0..clients.len()).min_by_key(|index| clients[*index].deadline) {
                clients.swap_remove(oldest);
            }
        }
        clients.push(Client {
            // As early as possible: a client that sends its request and closes the connection at once remains unknown.
            caller: stream.caller(),
            stream,
            stage: Stage::Reading,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            deadline: now + self.limits.exchange_timeout,
        });
    }

    fn advance(&self, client: &mut Client, now: Instant) {
        let result = match client.stage {
            Stage::Reading => self.read(client, now),
            Stage::Writing => self.write(client, now),
            Stage::Draining => drain(client),
            Stage::Closed => Ok(()),
        };
        match result {
            Err(error) if !is_transient(&error) => client.stage = Stage::Closed,
            _ => {}
        }
    }

    fn read(&self, client: &mut Client, now: Instant) -> io::Result<()> {
        let mut piece = [0; 4096];
        let got = client.stream.read(&mut piece)?;
        if got == 0 {
            client.stage = Stage::Closed;
            return Ok(());
        }
        client.input.extend_from_slice(&piece[..got]);
        match message::parse(&client.input) {
            Ok(None) => Ok(()),
            Ok(Some(request)) => self.respond(client, &(self.handler)(&request, client.caller), now),
            Err(response) => self.respond(client, &response, now),
        }
    }

    fn respond(&self, client: &mut Client, response: &Response, now: Instant) -> io::Result<()> {
        client.input = Vec::new();
        client.output = response.to_bytes();
        client.stage = Stage::Writing;
        client.deadline = now + self.limits.exchange_timeout;
        self.write(client, now)
    }

    fn write(&self, client: &mut Client, now: Instant) -> io::Result<()> {
        client.sent += client.stream.write(&client.output[client.sent..])?;
        if client.sent == client.output.len() {
            client.output = Vec::new();
            client.stage = Stage::Draining;
            client.deadline = now + self.limits.drain_timeout;
            client.stream.shut_down_writing()?;
        }
        Ok(())
    }

    fn time_out(&self, client: &mut Client, now: Instant) {
        // A client that has sent nothing gets no response.
        if client.stage != Stage::Reading || client.input.is_empty() {
            client.stage = Stage::Closed;
            return;
        }
        let response = Response::error(408, "the request took too long to arrive");
        if self.respond(client, &response, now).is_err_and(|error| !is_transient(&error)) {
            client.stage = Stage::Closed;
        }
    }
}

fn drain(client: &mut Client) -> io::Result<()> {
    if client.stream.read(&mut [0; 4096])? == 0 {
        client.stage = Stage::Closed;
    }
    Ok(())
}

/// Whether the operation is to be repeated when the socket is ready again.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted)
}

/// Waits until a socket is ready, or until `limit`. Returns which are ready, listeners first.
fn wait(listeners: &[Listener], clients: &[Client], limit: Option<Duration>) -> Vec<bool> {
    let mut fds: Vec<PollFd<'_>> =
        listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)).collect();
    fds.extend(clients.iter().map(|client| {
        let flags = if client.stage == Stage::Writing { PollFlags::OUT } else { PollFlags::IN };
        PollFd::from_borrowed_fd(client.stream.as_fd(), flags)
    }));
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    // If the wait fails or is interrupted, no socket is ready and the caller waits again.
    let _ = poll(&mut fds, limit.as_ref());
    fds.iter().map(|fd| !fd.revents().is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_beyond_the_limit_of_a_period_wait_for_the_next() {
        let begin = Instant::now();
        let limits = Limits { accepts_per_second: 3 * ACCEPT_PERIODS_PER_SECOND, ..Limits::default() };
        let mut pace = AcceptPace::new(limits, begin);
        assert_eq!((pace.count(begin), pace.count(begin)), (None, None));
        let next = begin + ACCEPT_PERIOD;
        assert_eq!(pace.count(begin), Some(next));
        assert_eq!((pace.count(next), pace.count(next)), (None, None));
        assert_eq!(pace.count(next), Some(next + ACCEPT_PERIOD));
    }
}

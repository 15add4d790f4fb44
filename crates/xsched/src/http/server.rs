//! The HTTP server: one thread, a bounded number of connections, and no patience for those who dawdle.
//!
//! ```text
//!   accepted ──► reading ──(request whole, or refused, or too late)──► writing ──► draining ──► closed
//! ```
//!
//! After the response the connection is drained for a moment: closing it with something unread would make the system
//! reset it, and the other side might lose the response.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::message::{self, Request, Response};

/// How much is too much.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Connections at a time; one more makes the one that has had most time give way.
    pub(super) connections: usize,
    /// For a request to arrive, and again for its response to be taken.
    pub(super) patience: Duration,
    /// To wait for the other side's farewell.
    pub(super) farewell: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 64, patience: Duration::from_secs(5), farewell: Duration::from_secs(1) }
    }
}

/// How long nobody is accepted after the system could not (no descriptors left, say).
const REST: Duration = Duration::from_millis(100);

/// Where connections come from.
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

    /// Makes accepting return at once when nobody is there.
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

    fn say_farewell(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
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
    stage: Stage,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    deadline: Instant,
}

/// What answers requests.
pub(super) type Handler = Box<dyn Fn(&Request) -> Response + Send>;

/// Listeners, and what answers those who come.
pub(super) struct Server {
    pub(super) listeners: Vec<Listener>,
    pub(super) limits: Limits,
    pub(super) handler: Handler,
}

impl Server {
    /// Serves for ever.
    pub(super) fn run(&self) {
        let mut clients: Vec<Client> = Vec::new();
        let mut rest_until: Option<Instant> = None;
        loop {
            let now = Instant::now();
            rest_until = rest_until.filter(|until| *until > now);
            let listening = if rest_until.is_none() { self.listeners.len() } else { 0 };
            let wake = clients.iter().map(|client| client.deadline).chain(rest_until).min();
            let ready = wait(
                &self.listeners[..listening],
                &clients,
                wake.map(|wake| wake.saturating_duration_since(now)),
            );
            let (ready_listeners, ready_clients) = ready.split_at(listening);

            let now = Instant::now();
            for (client, ready) in clients.iter_mut().zip(ready_clients) {
                if *ready {
                    self.go_on(client, now);
                }
                if client.deadline <= now {
                    self.too_late(client, now);
                }
            }
            clients.retain(|client| client.stage != Stage::Closed);
            for (listener, ready) in self.listeners.iter().zip(ready_listeners) {
                if *ready {
                    match listener.accept() {
                        Ok(stream) => self.take_in(&mut clients, stream, now),
                        Err(error) if is_passing(&error) => {}
                        Err(_) => rest_until = Some(now + REST),
                    }
                }
            }
        }
    }

    fn take_in(&self, clients: &mut Vec<Client>, stream: Stream, now: Instant) {
        if clients.len() >= self.limits.connections {
            // Whoever means well is done long before this: it is somebody who dawdles.
            if let Some(oldest) = (0..clients.len()).min_by_key(|index| clients[*index].deadline) {
                clients.swap_remove(oldest);
            }
        }
        clients.push(Client {
            stream,
            stage: Stage::Reading,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            deadline: now + self.limits.patience,
        });
    }

    fn go_on(&self, client: &mut Client, now: Instant) {
        let result = match client.stage {
            Stage::Reading => self.read(client, now),
            Stage::Writing => self.write(client, now),
            Stage::Draining => drain(client),
            Stage::Closed => Ok(()),
        };
        match result {
            Err(error) if !is_passing(&error) => client.stage = Stage::Closed,
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
            Ok(Some(request)) => self.respond(client, &(self.handler)(&request), now),
            Err(refusal) => self.respond(client, &refusal, now),
        }
    }

    fn respond(&self, client: &mut Client, response: &Response, now: Instant) -> io::Result<()> {
        client.input = Vec::new();
        client.output = response.to_bytes();
        client.stage = Stage::Writing;
        client.deadline = now + self.limits.patience;
        self.write(client, now)
    }

    fn write(&self, client: &mut Client, now: Instant) -> io::Result<()> {
        client.sent += client.stream.write(&client.output[client.sent..])?;
        if client.sent == client.output.len() {
            client.output = Vec::new();
            client.stage = Stage::Draining;
            client.deadline = now + self.limits.farewell;
            client.stream.say_farewell()?;
        }
        Ok(())
    }

    fn too_late(&self, client: &mut Client, now: Instant) {
        // Somebody who never asked for anything needs no answer.
        if client.stage != Stage::Reading || client.input.is_empty() {
            client.stage = Stage::Closed;
            return;
        }
        let refusal = Response::error(408, "the request took too long to arrive");
        if self.respond(client, &refusal, now).is_err_and(|error| !is_passing(&error)) {
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

/// Nothing to worry about: try again when there is something to do.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted)
}

/// Dependencies until something can be done, at most for so long; tells where, listeners first.
fn wait(listeners: &[Listener], clients: &[Client], limit: Option<Duration>) -> Vec<bool> {
    let mut fds: Vec<PollFd<'_>> =
        listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)).collect();
    fds.extend(clients.iter().map(|client| {
        let flags = if client.stage == Stage::Writing { PollFlags::OUT } else { PollFlags::IN };
        PollFd::from_borrowed_fd(client.stream.as_fd(), flags)
    }));
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    // An interrupted wait is a short one.
    let _ = poll(&mut fds, limit.as_ref());
    fds.iter().map(|fd| !fd.revents().is_empty()).collect()
}

//! HTTP requests at a given rate, whether the server answers or not: each on a connection of its own, on one thread.

use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::Timespec;

/// How long a client waits for its response before it gives up.
const CLIENT_TIMEOUT: Duration = Duration::from_millis(500);
/// The time between two looks at the schedule.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// How the requests ended.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    pub(crate) answered: usize,
    /// The server or the kernel closed the connection.
    pub(crate) refused: usize,
    /// The client gave up.
    pub(crate) abandoned: usize,
    /// From the first request to the last one.
    pub(crate) sending: Duration,
}

impl Outcomes {
    pub(crate) fn ended(&self) -> usize {
        self.answered + self.refused + self.abandoned
    }
}

/// The connections of the requests that have not ended.
struct Requests<'a> {
    text: &'a str,
    epoll: OwnedFd,
    open: HashMap<u64, OwnedFd>,
    outcomes: Outcomes,
}

/// Sends requests at `rate` per second for `duration`, and waits until all have ended.
pub(crate) fn send(address: SocketAddr, text: &str, rate: u32, duration: Duration) -> Outcomes {
    // Requests that wait have a descriptor each.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let mut requests = Requests { text, epoll, open: HashMap::new(), outcomes: Outcomes::default() };
    let (began, due_at) = (Instant::now(), |number: u64| Duration::from_secs(number) / rate);
    let mut started = VecDeque::new();
    let mut next = 0;
    loop {
        while due_at(next) < duration && due_at(next) <= began.elapsed() {
            requests.start(next, address);
            started.push_back((next, Instant::now()));
            next += 1;
            requests.outcomes.sending = began.elapsed();
        }
        while started.front().is_some_and(|(_, at)| at.elapsed() > CLIENT_TIMEOUT) {
            if let Some((number, _)) = started.pop_front()
                && requests.open.remove(&number).is_some()
            {
                requests.outcomes.abandoned += 1;
            }
        }
        if due_at(next) >= duration && requests.open.is_empty() {
            return requests.outcomes;
        }
        requests.wait();
    }
}

impl Requests<'_> {
    fn start(&mut self, number: u64, address: SocketAddr) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
        let started = socket.and_then(|socket| {
            match rustix::net::connect(&socket, &address) {
                Ok(()) | Err(Errno::INPROGRESS) => {}
                Err(error) => return Err(error),
            }
            epoll::add(&self.epoll, &socket, EventData::new_u64(number), EventFlags::OUT)?;
            Ok(socket)
        });
        match started {
            Ok(socket) => drop(self.open.insert(number, socket)),
            Err(_) => self.outcomes.refused += 1,
        }
    }

    fn wait(&mut self) {
        let mut room = [MaybeUninit::uninit(); 256];
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut room, Some(&TICK)) else { return };
        for event in events {
            let (number, flags) = (event.data.u64(), event.flags);
            let Some(socket) = self.open.get(&number) else { continue };
            let is_over = if flags.contains(EventFlags::OUT) {
                let sent = rustix::net::send(socket, self.text.as_bytes(), SendFlags::NOSIGNAL);
                let data = EventData::new_u64(number);
                sent.and_then(|_| epoll::modify(&self.epoll, socket, data, EventFlags::IN))
                    .err()
                    .map(|_| false)
            } else {
                let mut start = [0; 9];
                match rustix::net::recv(socket, &mut start[..], RecvFlags::empty()) {
                    Ok((length, _)) => Some(start[..length].starts_with(b"HTTP/1.1 ")),
                    Err(Errno::AGAIN | Errno::INTR) => None,
                    Err(_) => Some(false),
                }
            };
            if let Some(is_answered) = is_over {
                self.open.remove(&number);
                *(if is_answered { &mut self.outcomes.answered } else { &mut self.outcomes.refused }) += 1;
            }
        }
    }
}

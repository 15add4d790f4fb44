//! The service: one scheduler for all programs of a user or of a machine.
//!
//! ```text
//!   listener ─┐                                       ┌─ answers, pages
//!   sockets  ─┼─ epoll ─► one thread ─► Coordinator ──┼─ orders in the pages
//!   pidfds   ─┤                                       └─ events to whoever traces
//!   timer    ─┘
//! ```
//!
//! A program's socket is also its doorbell. The way from a ring to the orders is short: one wake-up, one look at the
//! page of whoever rang, one decision, and the words that changed. Everything else (joining, questions, the timer) may
//! take longer. Nothing on this thread waits for a client: what a client does not read is dropped or makes only that
//! client wait.
//!
//! Without clients, or with clients that are all idle, the service does not wake up at all.

mod clock;
mod events;
mod listen;
mod names;
mod peer;
mod permissions;
mod process;
mod requests;
mod rules;
mod session;
mod status;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::Errno;
use xsched_core::{Nanos, ProcessId};
use xsched_policy::{Params, PolicyInfo};

use self::clock::Clock;
use self::listen::Listener;
use self::names::Names;
use self::session::Sessions;
use crate::coordinator::Coordinator;
use crate::metrics::Counters;
use crate::notifier::Notifier;
use crate::protocol::Event;
use crate::socket::MAX_PACKET_SIZE;

pub use self::listen::{StartError, default_socket, request_shutdown};
pub use self::permissions::{GROUP, Limit, Limits};
pub use self::rules::{Glob, Rule};

/// How often nice values are read, while they decide.
const NICE_EVERY: Nanos = Nanos::from_secs(1);
/// How long the listener rests when there is no descriptor left for another connection.
const REST: Nanos = Nanos::from_millis(100);

/// What a service begins with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens.
    pub socket: PathBuf,
    /// For all users of the machine, not only for this one.
    pub for_everyone: bool,
    /// Who decides.
    pub policy: &'static PolicyInfo,
    /// The policy's settings.
    pub params: Params,
    /// What users may wish for.
    pub limits: Limits,
    /// What programs are given without asking; the first that fits counts.
    pub rules: Vec<Rule>,
    /// End when nobody has been connected for so long.
    pub idle_exit: Option<Duration>,
}

impl Options {
    /// A service at `socket` with everything else as it is without configuration.
    #[must_use]
    pub fn at(socket: PathBuf) -> Self {
        Self {
            socket,
            for_everyone: rustix::process::geteuid().is_root(),
            policy: &xsched_policy::POLICIES[0],
            params: Params::default(),
            limits: Limits::default(),
            rules: Vec::new(),
            idle_exit: None,
        }
    }
}

/// Why a service that ran has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Its process was told to end.
    Told,
    /// Somebody who may do so asked it to, over the socket.
    Asked,
    /// Nobody was connected for as long as [`Options::idle_exit`] says.
    Idle,
}

/// What an event of epoll is about. The rest of the number says which session, and which of those that had its place.
const LISTENER: u64 = 0;
const SOCKET: u64 = 1;
const PIDFD: u64 = 2;
const OTHER: u64 = 3;
const TIMER: u64 = OTHER | 1 << 2;
const STOP: u64 = OTHER | 2 << 2;
const NAMES: u64 = OTHER | 3 << 2;

/// A service, ready to run.
pub struct Service {
    options: Options,
    listener: Listener,
    epoll: OwnedFd,
    clock: Clock,
    names: Names,
    stop: Arc<Notifier>,
    coordinator: Coordinator,
    params: Params,
    sessions: Sessions,
    /// How many connections each user has.
    users: HashMap<u32, usize>,
    group: Option<u32>,
    uid: u32,
    counters: Counters,
    /// Received packets, one at a time.
    packet: Box<[u8]>,
    /// Somebody rang or something was changed: a round is due.
    news: bool,
    /// When everybody has to be looked at.
    look_due: Option<Nanos>,
    nice_due: Option<Nanos>,
    rest_over: Option<Nanos>,
    events_due: Option<Nanos>,
    empty_since: Nanos,
    /// Processes that will join.
    expected: Vec<OwnedFd>,
    end: Option<End>,
    /// Whose window has the focus.
    focus: Option<ProcessId>,
    /// Orders written as of the last round.
    orders_seen: u64,
    /// What happened and was not sent yet.
    events: Vec<Event>,
}

impl Service {
    /// Takes possession of the socket.
    pub fn bind(options: Options) -> Result<Self, StartError> {
        let listener = Listener::bind(&options.socket, options.for_everyone)?;
        raise_descriptor_limit();
        let system = |what| move |why| StartError::System { what, why };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("no epoll"))?;
        let clock = Clock::new().map_err(system("no timer"))?;
        let names = Names::start().map_err(|error| StartError::System {
            what: "no thread",
            why: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
        })?;
        let stop = Arc::new(Notifier::new().map_err(system("no event descriptor"))?);
        let watch = |fd: &dyn AsFd, token| {
            epoll::add(&epoll, fd.as_fd(), epoll::EventData::new_u64(token), epoll::EventFlags::IN)
                .map_err(system("epoll"))
        };
        watch(&listener, LISTENER)?;
        watch(&clock, TIMER)?;
        watch(&*stop, STOP)?;
        watch(&names, NAMES)?;
        let mut coordinator = Coordinator::new(options.policy);
        coordinator.configure(options.params);
        Ok(Self {
            params: options.params,
            listener,
            epoll,
            clock,
            names,
            stop,
            coordinator,
            sessions: Sessions::default(),
            users: HashMap::new(),
            group: permissions::group_id(GROUP),
            uid: rustix::process::geteuid().as_raw(),
            counters: Counters::default(),
            packet: vec![0; MAX_PACKET_SIZE].into_boxed_slice(),
            news: false,
            look_due: None,
            nice_due: None,
            rest_over: None,
            events_due: None,
            expected: Vec::new(),
            empty_since: Nanos::now(),
            end: None,
            focus: None,
            orders_seen: 0,
            events: Vec::new(),
            options,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.options.socket
    }

    /// Ringing this ends the service; see also [`Service::stop_when_readable`].
    #[must_use]
    pub fn stopper(&self) -> Arc<Notifier> {
        Arc::clone(&self.stop)
    }

    /// Ends the service once there is something to read from `fd`, for the other end of a signal handler.
    pub fn stop_when_readable(&self, fd: impl AsFd) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)
    }

    /// Schedules until told to end; then releases everybody and removes the socket.
    pub fn run(mut self) -> Result<End, Errno> {
        let mut events = Vec::with_capacity(128);
        // Sets the first alarm: nobody may ever come.
        self.tend(Nanos::now());
        let end = loop {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(why) => return Err(why),
            }
            let now = Nanos::now();
            for event in &events {
                let (token, flags) = (event.data.u64(), event.flags);
                match token & OTHER {
                    LISTENER => self.accept(now),
                    SOCKET => self.socket_event(token, flags, now),
                    PIDFD => self.process_ended(token),
                    _ if token == TIMER => self.clock.answer(),
                    _ if token == NAMES => self.take_names(),
                    _ => self.end = Some(End::Told),
                }
            }
            self.tend(now);
            if let Some(end) = self.end {
                break end;
            }
        };
        self.say_goodbye();
        Ok(end)
    }

    /// Everything that follows from what has happened and from the time.
    fn tend(&mut self, now: Nanos) {
        let is_due = |due: Option<Nanos>| due.is_some_and(|due| due <= now);
        if is_due(self.nice_due) {
            self.nice_due = None;
            self.read_nice_values();
        }
        if is_due(self.rest_over) {
            self.rest_over = None;
            self.listen_again();
        }
        if is_due(self.look_due) {
            self.look_due = self.coordinator.step(now);
            self.after_round(now);
        } else {
            self.round_if_due(now);
        }
        if is_due(self.events_due) {
            self.send_events();
        }
        let idle_exit = self.options.idle_exit.filter(|_| self.sessions.is_empty());
        let leave = idle_exit.map(|patience| self.empty_since + Nanos::from(patience));
        if is_due(leave) {
            self.expected.retain(process::lives);
            if self.expected.is_empty() {
                self.end = Some(End::Idle);
            } else {
                self.empty_since = now;
            }
        }
        let leave = idle_exit.map(|patience| self.empty_since + Nanos::from(patience));
        let dues = [self.look_due, self.nice_due, self.rest_over, self.events_due, leave];
        self.clock.wake_at(dues.into_iter().flatten().min());
    }

    /// Gives the orders that follow from what has become known, if anything has.
    fn round_if_due(&mut self, now: Nanos) {
        if self.news {
            self.look_due = self.coordinator.round(now);
            self.after_round(now);
        }
    }

    fn after_round(&mut self, began: Nanos) {
        self.news = false;
        let took = Nanos::now() - began;
        self.counters.round(took);
        let (_, written) = self.coordinator.figures();
        self.counters.orders(written - std::mem::replace(&mut self.orders_seen, written));
        self.note_events(began, took);
    }

    /// Whether CPU nice values decide; then they are read now and again.
    fn nice_matters(&self) -> bool {
        self.coordinator.policy().needs.nice && self.sessions.programs > 0
    }

    fn read_nice_values(&mut self) {
        if !self.nice_matters() {
            return;
        }
        for session in self.sessions.iter() {
            let Some(program) = session.program() else { continue };
            if let Some(nice) = process::nice(session.peer.pid) {
                self.news |= self.coordinator.set_nice(ProcessId(program.process), nice);
            }
        }
        self.nice_due = Some(Nanos::now() + NICE_EVERY);
    }

    fn say_goodbye(&mut self) {
        self.coordinator.release_all();
        self.listener.remove();
    }
}

/// Each program takes two descriptors; the usual limit of 1024 is for programs that use `select`.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // What cannot be raised stays as it is: joining fails with a clear reason when they run out.
    let _ = setrlimit(Resource::Nofile, limit);
}

//! The service: one scheduler for all processes of a user or of a machine.
//!
//! ```text
//!   listener ─┐                                       ┌─ replies, pages
//!   sockets  ─┼─ epoll ─► one thread ─► Coordinator ──┼─ orders in the pages
//!   pidfds   ─┤                                       └─ events to tracers
//!   timer    ─┘
//! ```
//!
//! Processes send their notifications on the socket that they joined with. The path from a notification to the orders is short:
//! one wake-up, one read of the page of the process, one decision, and the orders that changed. Everything else (joining,
//! requests, the timer) may take longer. This thread waits for no client: messages that a client does not read are dropped, or
//! only that client waits.
//!
//! Without clients, or with idle clients only, the service does not wake up.

mod command_lines;
mod events;
mod listen;
mod peer;
mod permissions;
mod process;
mod requests;
mod rules;
mod session;
mod status;
mod timer;

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

use self::command_lines::CommandLineReader;
use self::listen::Listener;
use self::session::Sessions;
use self::timer::Timer;
use crate::coordinator::Coordinator;
use crate::metrics::Counters;
use crate::notifier::Notifier;
use crate::protocol::Event;
use crate::socket::MAX_PACKET_SIZE;

pub use self::listen::{StartError, default_socket, request_shutdown};
pub use self::permissions::{GROUP, Limit, Limits};
pub use self::rules::{Glob, Rule};

/// How often nice values are read, while the policy uses them.
const NICE_POLL_INTERVAL: Nanos = Nanos::from_secs(1);
/// How long no connection is accepted after the service has run out of descriptors.
const ACCEPT_RETRY_DELAY: Nanos = Nanos::from_millis(100);

/// The options of a service.
#[derive(Clone, Debug)]
pub struct Options {
    /// The socket that it listens on.
    pub socket: PathBuf,
    /// It serves all users of the machine, not only its own.
    pub is_system_wide: bool,
    /// The initial policy.
    pub policy: &'static PolicyInfo,
    /// The initial parameters of the policy.
    pub params: Params,
    /// The highest hints that users may request.
    pub limits: Limits,
    /// Hints for processes. The first matching rule applies.
    pub rules: Vec<Rule>,
    /// Exit after this time without a connection.
    pub idle_exit: Option<Duration>,
}

impl Options {
    /// A service at `socket` with the built-in defaults.
    #[must_use]
    pub fn at(socket: PathBuf) -> Self {
        Self {
            socket,
            is_system_wide: rustix::process::geteuid().is_root(),
            policy: &xsched_policy::POLICIES[0],
            params: Params::default(),
            limits: Limits::default(),
            rules: Vec::new(),
            idle_exit: None,
        }
    }
}

/// Why a service has exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By a signal, or through [`Service::stopper`].
    Stopped,
    /// By a request on the socket.
    Requested,
    /// No connection for [`Options::idle_exit`].
    Idle,
}

/// The source of an epoll event, in the lowest two bits of its token. The rest identifies the session.
const LISTENER: u64 = 0;
const SOCKET: u64 = 1;
const PIDFD: u64 = 2;
const OTHER: u64 = 3;
const TIMER: u64 = OTHER | 1 << 2;
const STOP: u64 = OTHER | 2 << 2;
const COMMAND_LINES: u64 = OTHER | 3 << 2;

/// A service, ready to run.
pub struct Service {
    options: Options,
    listener: Listener,
    epoll: OwnedFd,
    timer: Timer,
    command_lines: CommandLineReader,
    stop: Arc<Notifier>,
    coordinator: Coordinator,
    params: Params,
    sessions: Sessions,
    /// The number of connections of each user.
    connections: HashMap<u32, usize>,
    group: Option<u32>,
    uid: u32,
    counters: Counters,
    /// The buffer for received packets.
    packet: Box<[u8]>,
    /// Something has changed since the last decision.
    is_decision_due: bool,
    /// When all pages have to be read.
    poll_due: Option<Nanos>,
    nice_due: Option<Nanos>,
    accept_due: Option<Nanos>,
    events_due: Option<Nanos>,
    empty_since: Nanos,
    /// Processes that will join: the service does not exit before them.
    expected: Vec<OwnedFd>,
    end: Option<End>,
    /// The process that owns the window with the input focus.
    focus: Option<ProcessId>,
    /// The number of orders written up to the last decision.
    orders_counted: u64,
    /// Events that wait to be sent.
    events: Vec<Event>,
}

impl Service {
    /// Creates the socket and starts to listen.
    pub fn bind(options: Options) -> Result<Self, StartError> {
        let listener = Listener::bind(&options.socket, options.is_system_wide)?;
        raise_descriptor_limit();
        let system = |what| move |why| StartError::System { what, why };
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("create an epoll descriptor"))?;
        let timer = Timer::new().map_err(system("create a timer"))?;
        let command_lines = CommandLineReader::start().map_err(|error| StartError::System {
            what: "start a thread",
            why: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
        })?;
        let stop = Arc::new(Notifier::new().map_err(system("create an event descriptor"))?);
        let watch = |fd: &dyn AsFd, token| {
            epoll::add(&epoll, fd.as_fd(), epoll::EventData::new_u64(token), epoll::EventFlags::IN)
                .map_err(system("register a descriptor with epoll"))
        };
        watch(&listener, LISTENER)?;
        watch(&timer, TIMER)?;
        watch(&*stop, STOP)?;
        watch(&command_lines, COMMAND_LINES)?;
        let mut coordinator = Coordinator::new(options.policy);
        coordinator.configure(options.params);
        Ok(Self {
            params: options.params,
            listener,
            epoll,
            timer,
            command_lines,
            stop,
            coordinator,
            sessions: Sessions::default(),
            connections: HashMap::new(),
            group: permissions::group_id(GROUP),
            uid: rustix::process::geteuid().as_raw(),
            counters: Counters::default(),
            packet: vec![0; MAX_PACKET_SIZE].into_boxed_slice(),
            is_decision_due: false,
            poll_due: None,
            nice_due: None,
            accept_due: None,
            events_due: None,
            expected: Vec::new(),
            empty_since: Nanos::now(),
            end: None,
            focus: None,
            orders_counted: 0,
            events: Vec::new(),
            options,
        })
    }

    /// The socket that it listens on.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.options.socket
    }

    /// A notification stops the service; see also [`Service::stop_when_readable`].
    #[must_use]
    pub fn stopper(&self) -> Arc<Notifier> {
        Arc::clone(&self.stop)
    }

    /// Stops the service when `fd` becomes readable: for the pipe of a signal handler.
    pub fn stop_when_readable(&self, fd: impl AsFd) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)
    }

    /// Runs the service until it is stopped. Then frees all processes and removes the socket.
    pub fn run(mut self) -> Result<End, Errno> {
        let mut events = Vec::with_capacity(128);
        // Sets the timer for the idle exit: no connection may ever come.
        self.run_due_tasks(Nanos::now());
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
                    _ if token == TIMER => self.timer.acknowledge(),
                    _ if token == COMMAND_LINES => self.store_command_lines(),
                    _ => self.end = Some(End::Stopped),
                }
            }
            self.run_due_tasks(now);
            if let Some(end) = self.end {
                break end;
            }
        };
        self.shut_down();
        Ok(end)
    }

    /// Runs everything that is due now, and sets the timer for the next.
    fn run_due_tasks(&mut self, now: Nanos) {
        let is_due = |due: Option<Nanos>| due.is_some_and(|due| due <= now);
        if is_due(self.nice_due) {
            self.nice_due = None;
            self.read_nice_values();
        }
        if is_due(self.accept_due) {
            self.accept_due = None;
            self.resume_accepting();
        }
        if is_due(self.poll_due) {
            self.poll_due = self.coordinator.step(now);
            self.after_decision(now);
        } else {
            self.decide_if_due(now);
        }
        if is_due(self.events_due) {
            self.send_events();
        }
        let idle_exit = self.options.idle_exit.filter(|_| self.sessions.is_empty());
        let exit_due = idle_exit.map(|delay| self.empty_since + Nanos::from(delay));
        if is_due(exit_due) {
            self.expected.retain(process::exists);
            if self.expected.is_empty() {
                self.end = Some(End::Idle);
            } else {
                self.empty_since = now;
            }
        }
        let exit_due = idle_exit.map(|delay| self.empty_since + Nanos::from(delay));
        let dues = [self.poll_due, self.nice_due, self.accept_due, self.events_due, exit_due];
        self.timer.wake_at(dues.into_iter().flatten().min());
    }

    /// Makes a decision if something has changed.
    fn decide_if_due(&mut self, now: Nanos) {
        if self.is_decision_due {
            self.poll_due = self.coordinator.round(now);
            self.after_decision(now);
        }
    }

    fn after_decision(&mut self, began: Nanos) {
        self.is_decision_due = false;
        let took = Nanos::now() - began;
        self.counters.decision(took);
        let (_, written) = self.coordinator.figures();
        self.counters.orders(written - std::mem::replace(&mut self.orders_counted, written));
        self.collect_events(began, took);
    }

    /// Whether the policy uses CPU nice values: then they are read every [`NICE_POLL_INTERVAL`].
    fn needs_nice_values(&self) -> bool {
        self.coordinator.policy().needs.nice && self.sessions.process_count > 0
    }

    fn read_nice_values(&mut self) {
        if !self.needs_nice_values() {
            return;
        }
        for session in self.sessions.iter() {
            let Some(process) = session.process() else { continue };
            if let Some(nice) = process::nice(session.peer.pid) {
                self.is_decision_due |= self.coordinator.set_nice(ProcessId(process.pid), nice);
            }
        }
        self.nice_due = Some(Nanos::now() + NICE_POLL_INTERVAL);
    }

    fn shut_down(&mut self) {
        self.coordinator.release_all();
        self.listener.remove();
    }
}

/// Each scheduled process needs two descriptors; the default limit of 1024 exists for programs that use `select`.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If the limit cannot be raised, connections wait when the descriptors are used up.
    let _ = setrlimit(Resource::Nofile, limit);
}

//! The service: one scheduler for all processes of a user or of a machine.
//!
//! ```text
//!   sockets of scheduled processes ─┐                                     ┌─ replies, pages
//!   pidfds, timer ──────────────────┼─ epoll ─► one thread ─► Coordinator ┼─ orders in the pages
//!   listener, sockets of tools ─ epoll                                    └─ events to tracers
//! ```
//!
//! Processes send their notifications on the socket that they joined with. The path from a notification to the orders is short:
//! one wake-up, one read of the page of the process, one decision, and the orders that changed. Everything else (joining,
//! requests, listings) takes a bounded time in each round (`rounds`). This thread waits for no client: messages that a client does
//! not read are dropped, or only that client waits. What one user can have is limited (`quota`).
//!
//! Without clients the service does not wake up; with idle clients only, its `watchdog` wakes it every 10 s.

mod command_lines;
mod events;
mod grants;
mod join;
mod kfd;
mod listen;
mod listings;
mod manager;
mod memory_groups;
mod metrics_renderer;
mod nvml;
mod parking;
mod peer;
mod permissions;
mod process;
mod quota;
mod reload;
mod replace;
mod requests;
mod rounds;
mod rules;
mod session;
mod stalls;
mod status;
mod thread_states;
mod timer;
mod turns;
mod unscheduled;
mod watchdog;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use xsched_core::{Nanos, ProcessId};
use xsched_policy::{Params, PolicyInfo};

use self::command_lines::CommandLineReader;
use self::grants::{Grants, GroupWatcher, Mounts, Store};
use self::listen::Listener;
use self::listings::Listings;
use self::memory_groups::MemoryGroups;
use self::metrics_renderer::MetricsRenderer;
use self::quota::Usages;
use self::session::Sessions;
use self::thread_states::ThreadStateReader;
use self::timer::Timer;
use self::turns::Turns;
use self::unscheduled::DriverQueries;
use self::watchdog::Watchdog;
use crate::coordinator::Coordinator;
use crate::metrics::Counters;
use crate::notifier::Notifier;
use crate::protocol::Event;
use crate::socket::MAX_PACKET_SIZE;

pub use self::grants::GrantOptions;
pub use self::listen::{StartError, default_socket};
pub use self::manager::notify_manager;
pub use self::permissions::{GROUP, Limit, Limits};
pub use self::quota::Quota;
pub use self::reload::Reloader;
pub use self::replace::{ShutDown, request_shutdown};
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
    /// The most that one user can have.
    pub quota: Quota,
    /// Hints for processes. The first matching rule applies.
    pub rules: Vec<Rule>,
    /// The group that may give grants besides administrators, and the confined control groups.
    pub grants: GrantOptions,
    /// Exit after this time without a connection.
    pub idle_exit: Option<Duration>,
    /// Abort if the scheduling thread has made no round for this time although it was woken.
    pub watchdog_timeout: Duration,
    /// Close the connection of a tool that has read nothing of a reply for this time.
    pub unread_timeout: Duration,
    /// Have processes sample whether tasks that are alone on their device are busy.
    pub samples_utilization: bool,
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
            quota: Quota::default(),
            rules: Vec::new(),
            grants: GrantOptions::default(),
            idle_exit: None,
            watchdog_timeout: Duration::from_secs(10),
            unread_timeout: Duration::from_secs(30),
            samples_utilization: true,
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
const TOOLS: u64 = OTHER | 4 << 2;
const WATCHDOG: u64 = OTHER | 6 << 2;
/// A process that will join; its number is in the upper half of the token.
const EXPECTED: u64 = OTHER | 5 << 2;
const DRIVER: u64 = OTHER | 7 << 2;
const METRICS: u64 = OTHER | 8 << 2;
const THREAD_STATES: u64 = OTHER | 9 << 2;
const GROUPS: u64 = OTHER | 10 << 2;
const RELOAD: u64 = OTHER | 12 << 2;
/// A process whose exit ends a grant; its number is in the upper half of the token.
const AWAITED: u64 = OTHER | 11 << 2;

/// A service, ready to run.
pub struct Service {
    options: Options,
    /// Dropped before the sessions: a client that finds its connection closed can start the next service.
    listener: Listener,
    /// Reports what scheduling depends on, and [`TOOLS`] if `tools_epoll` has something to report.
    epoll: OwnedFd,
    /// Reports new connections and the sockets of tools.
    tools_epoll: OwnedFd,
    /// What `tools_epoll` has reported and was not handled yet.
    tool_events: VecDeque<(u64, epoll::EventFlags)>,
    /// The scheduled processes whose requests were received and not handled yet, by their tokens.
    deferred_requests: Turns<u64>,
    timer: Timer,
    command_lines: CommandLineReader,
    metrics_renderer: MetricsRenderer,
    thread_states: ThreadStateReader,
    driver_queries: DriverQueries,
    group_watcher: GroupWatcher,
    watchdog: Watchdog,
    stop: Arc<Notifier>,
    reloader: Reloader,
    coordinator: Coordinator,
    params: Params,
    sessions: Sessions,
    usages: Usages,
    listings: Listings,
    grants: Grants,
    memory_groups: MemoryGroups,
    grant_store: Store,
    group_mounts: Mounts,
    /// The processes whose exit ends a grant, by number, with the name of the grant.
    awaited: HashMap<u32, (Arc<str>, OwnedFd)>,
    last_awaited: u32,
    /// What the user of the service has to know, one line each.
    warnings: Vec<String>,
    group: Option<u32>,
    uid: u32,
    counters: Arc<Counters>,
    /// The buffer for received packets.
    packet: Box<[u8]>,
    /// Something has changed since the last decision.
    is_decision_due: bool,
    /// When all pages have to be read.
    poll_due: Option<Nanos>,
    nice_due: Option<Nanos>,
    /// When programs are checked that make no progress.
    stall_check_due: Option<Nanos>,
    /// When the driver is asked for unscheduled processes.
    driver_query_due: Option<Nanos>,
    /// When the control groups of grants are checked.
    group_check_due: Option<Nanos>,
    accept_due: Option<Nanos>,
    /// When the next connection is closed whose peer reads nothing.
    unread_due: Option<Nanos>,
    events_due: Option<Nanos>,
    empty_since: Nanos,
    /// Processes that will join, by number: the service does not exit before them.
    expected: HashMap<u32, OwnedFd>,
    last_expected: u32,
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
        let descriptors = raise_descriptor_limit();
        let system = |what| move |why| StartError::System { what, why };
        let new_epoll =
            || epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("create an epoll descriptor"));
        let (epoll, tools_epoll) = (new_epoll()?, new_epoll()?);
        let timer = Timer::new().map_err(system("create a timer"))?;
        let thread = |error: std::io::Error| StartError::System {
            what: "start a thread",
            why: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
        };
        let command_lines = CommandLineReader::start().map_err(thread)?;
        let metrics_renderer = MetricsRenderer::start().map_err(thread)?;
        let thread_states = ThreadStateReader::start().map_err(thread)?;
        let group_watcher = GroupWatcher::start().map_err(thread)?;
        let watchdog = Watchdog::start(options.watchdog_timeout).map_err(thread)?;
        let driver_queries = DriverQueries::new().map_err(system("create an event descriptor"))?;
        let stop = Arc::new(Notifier::new().map_err(system("create an event descriptor"))?);
        let reloader = Reloader::new().map_err(system("create an event descriptor"))?;
        let watch = |epoll: &OwnedFd, fd: &dyn AsFd, token| {
            epoll::add(epoll, fd.as_fd(), epoll::EventData::new_u64(token), epoll::EventFlags::IN)
                .map_err(system("register a descriptor with epoll"))
        };
        watch(&tools_epoll, &listener, LISTENER)?;
        watch(&epoll, &tools_epoll, TOOLS)?;
        watch(&epoll, &timer, TIMER)?;
        watch(&epoll, &*stop, STOP)?;
        watch(&epoll, reloader.notifier(), RELOAD)?;
        watch(&epoll, &command_lines, COMMAND_LINES)?;
        watch(&epoll, &metrics_renderer, METRICS)?;
        watch(&epoll, &thread_states, THREAD_STATES)?;
        watch(&epoll, &watchdog, WATCHDOG)?;
        watch(&epoll, &driver_queries, DRIVER)?;
        watch(&epoll, &group_watcher, GROUPS)?;
        let mut coordinator = Coordinator::new(options.policy);
        coordinator.configure(options.params);
        let mut service = Self {
            params: options.params,
            listener,
            epoll,
            tools_epoll,
            tool_events: VecDeque::new(),
            deferred_requests: Turns::default(),
            timer,
            command_lines,
            metrics_renderer,
            thread_states,
            driver_queries,
            group_watcher,
            watchdog,
            stop,
            reloader,
            coordinator,
            sessions: Sessions::default(),
            usages: Usages::new(options.quota, descriptors),
            listings: Listings::default(),
            grants: Grants::default(),
            memory_groups: MemoryGroups::default(),
            grant_store: Store::beside(&options.socket),
            group_mounts: Mounts::default(),
            awaited: HashMap::new(),
            last_awaited: 0,
            warnings: Vec::new(),
            group: permissions::group_id(GROUP),
            uid: rustix::process::geteuid().as_raw(),
            counters: Arc::default(),
            packet: vec![0; MAX_PACKET_SIZE].into_boxed_slice(),
            is_decision_due: false,
            poll_due: None,
            nice_due: None,
            stall_check_due: None,
            driver_query_due: None,
            group_check_due: None,
            accept_due: None,
            unread_due: None,
            events_due: None,
            expected: HashMap::new(),
            last_expected: 0,
            empty_since: Nanos::now(),
            end: None,
            focus: None,
            orders_counted: 0,
            events: Vec::new(),
            options,
        };
        service.restore_grants();
        Ok(service)
    }

    /// What the user of the service has to know, one line each: for example that a file was not usable.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The socket that it listens on.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.options.socket
    }

    /// Has another socket removed when the service exits, before the next service can create it.
    pub fn remove_at_exit(&mut self, socket: PathBuf) {
        self.listener.remove_too(socket);
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
        self.schedule_stall_check(began);
        self.schedule_driver_query(began);
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
    }
}

/// Each scheduled process needs two descriptors; the default limit of 1024 exists for programs that use `select`. Returns how many
/// descriptors this process can have.
fn raise_descriptor_limit() -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If the limit cannot be raised, fewer users can connect.
    let _ = setrlimit(Resource::Nofile, limit);
    getrlimit(Resource::Nofile)
        .current
        .map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

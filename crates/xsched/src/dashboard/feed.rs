//! The thread that reads the status and the events of the service while a page is open.
//!
//! ```text
//!   no page ──request──► status once a second, events within the budget ──no request for 5 s──► no page
//! ```
//!
//! Without a page there is no connection to the service. Each event costs the service time, so the events of one second are limited to
//! [`EVENTS_PER_SECOND`]: then the connection for events is closed until the next second begins.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::Serialize;
use xsched_core::DeviceId;
use xsched_ipc::protocol::{GrantStatus, Reply, Request, Status, TaskStatus};

use super::timeline::Timeline;
use crate::device_memory::{self, Memory};
use crate::rates::{self, Rates};
use crate::tool::{ToolConnection, ToolError};
use crate::{status, users};

/// How often the status is read.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long after its last request a page counts as open.
const VIEWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The events of one second after which the recording pauses.
const EVENTS_PER_SECOND: usize = 3_000;
/// How often to check for requests while waiting for events.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The policy in use and its parameters.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CurrentPolicy {
    pub(super) name: String,
    timeslice_us: u64,
    k: usize,
}

/// What the service has reported.
pub(super) struct Report {
    /// The socket of the service.
    pub(super) socket: PathBuf,
    pub(super) status: Status,
    pub(super) rates: HashMap<u64, Rates>,
    pub(super) policy: CurrentPolicy,
    /// The grants that this user may see.
    pub(super) grants: Vec<GrantStatus>,
    /// The names of the users of tasks.
    pub(super) users: BTreeMap<u32, String>,
    /// The memory of each device, where it is known.
    pub(super) memory: BTreeMap<u64, Memory>,
    /// When the status was read.
    read_at: Instant,
}

impl Report {
    /// The time on the service's clock.
    pub(super) fn now_ns(&self) -> u64 {
        let elapsed = u64::try_from(self.read_at.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.status.now_ns.saturating_add(elapsed)
    }

    /// A task of this service.
    pub(super) fn task(&self, service: u32, number: u64) -> Option<&TaskStatus> {
        self.status.tasks.iter().find(|task| self.status.pid == service && task.task == number)
    }
}

/// What is known about the service.
#[derive(Default)]
pub(super) enum Service {
    /// Nothing yet.
    #[default]
    Connecting,
    /// It does not reply, and why.
    Disconnected(String),
    Connected(Box<Report>),
}

/// The state that pages request.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) service: Service,
    pub(super) timeline: Timeline,
    /// When a page requested the state last.
    viewed_at: Option<Instant>,
    /// When a page requested events last.
    events_wanted_at: Option<Instant>,
    /// The status has to be read before the interval is over: a page has changed something.
    is_outdated: bool,
}

impl Shared {
    fn is_recent(at: Option<Instant>) -> bool {
        at.is_some_and(|at| at.elapsed() < VIEWER_TIMEOUT)
    }
}

/// The state, and the means to wake the thread.
#[derive(Default)]
pub(super) struct Feed {
    shared: Mutex<Shared>,
    wake: Condvar,
}

/// What the service has replied.
struct Received {
    socket: PathBuf,
    status: Status,
    policy: CurrentPolicy,
    grants: Vec<GrantStatus>,
}

/// The connections of the thread, and what it needs from one read to the next.
#[derive(Default)]
struct Reader {
    tool: Option<ToolConnection>,
    tracer: Option<ToolConnection>,
    /// The status from which rates are computed.
    earlier: Option<Status>,
    /// The events of the present second, and when it began.
    events: usize,
    counted_since: Option<Instant>,
}

/// Starts the thread.
pub(super) fn start(feed: Arc<Feed>) -> anyhow::Result<()> {
    let run = move || {
        loop {
            feed.wait_for_viewer();
            feed.read_while_viewed();
        }
    };
    thread::Builder::new().name("dashboard-feed".to_owned()).spawn(run).context("cannot start a thread")?;
    Ok(())
}

impl Feed {
    /// The state.
    pub(super) fn lock(&self) -> MutexGuard<'_, Shared> {
        // A thread that panicked has left a state that can still be shown.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, for a page that is open.
    pub(super) fn view(&self, wants_events: bool) -> MutexGuard<'_, Shared> {
        let now = Instant::now();
        let mut shared = self.lock();
        if !Shared::is_recent(shared.viewed_at) {
            self.wake.notify_all();
        }
        shared.viewed_at = Some(now);
        if wants_events {
            shared.events_wanted_at = Some(now);
        }
        shared
    }

    /// A page has changed something: the status is read at once.
    pub(super) fn refresh(&self) {
        self.lock().is_outdated = true;
        self.wake.notify_all();
    }

    fn wait_for_viewer(&self) {
        let mut shared = self.lock();
        while !Shared::is_recent(shared.viewed_at) {
            shared = self.wake.wait(shared).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn read_while_viewed(&self) {
        let mut reader = Reader::default();
        while Shared::is_recent(self.lock().viewed_at) {
            let next = Instant::now() + INTERVAL;
            let result = self.read(&mut reader).and_then(|()| self.record_until(next, &mut reader));
            if let Err(error) = result {
                reader = Reader::default();
                let mut shared = self.lock();
                shared.timeline.end(0);
                shared.service = Service::Disconnected(error.to_string());
                drop(shared);
                self.wait_until(next);
            }
        }
        let mut shared = self.lock();
        shared.timeline.end(0);
        // What is shown to the next page would be old.
        shared.service = Service::Connecting;
    }

    /// Reads the status, and begins to record events if pages want them.
    fn read(&self, reader: &mut Reader) -> Result<(), ToolError> {
        let tool = match reader.tool.take() {
            Some(tool) => tool,
            None => ToolConnection::connect()?,
        };
        let wants_events = Shared::is_recent(self.lock().events_wanted_at);
        if !wants_events && reader.tracer.take().is_some() {
            self.lock().timeline.end(0);
        }
        if reader.counted_since.is_none_or(|since| since.elapsed() >= INTERVAL) {
            (reader.events, reader.counted_since) = (0, Some(Instant::now()));
        }
        let begins = wants_events && reader.tracer.is_none() && reader.events < EVENTS_PER_SECOND;
        if begins {
            let tracer = ToolConnection::connect_to_first(vec![tool.socket().to_owned()])?;
            // Before the status: events between the two are in both, and not missing.
            tracer.send(&Request::Trace)?;
            reader.tracer = Some(tracer);
        }
        let mut status = tool.status()?;
        status::sort(&mut status.tasks);
        let policy = match tool.request(&Request::Policy { name: None, timeslice_us: None, k: None })? {
            Reply::Policy { name, timeslice_us, k } => CurrentPolicy { name, timeslice_us, k },
            _ => return Err(tool.unexpected()),
        };
        let grants = match tool.grants() {
            // An earlier version of the service.
            Err(ToolError::Refused(_)) => Vec::new(),
            grants => grants?,
        };
        let socket = tool.socket().to_owned();
        self.publish(reader, Received { socket, status, policy, grants }, begins);
        reader.tool = Some(tool);
        Ok(())
    }

    fn publish(&self, reader: &mut Reader, received: Received, begins: bool) {
        let Received { socket, status, policy, grants } = received;
        let uids: BTreeSet<u32> = status.tasks.iter().map(|task| task.uid).collect();
        let devices: BTreeSet<u64> = status.tasks.iter().map(|task| task.device).collect();
        let users = uids.into_iter().map(|uid| (uid, users::name_of(uid))).collect();
        let memory =
            devices.into_iter().filter_map(|id| Some((id, device_memory::of(DeviceId(id))?))).collect();
        let mut shared = self.lock();
        shared.is_outdated = false;
        let previous = match std::mem::take(&mut shared.service) {
            Service::Connected(report) if report.status.pid == status.pid => Some(report.rates),
            Service::Connected(_) => {
                shared.timeline.clear();
                None
            }
            _ => None,
        };
        let elapsed = reader.earlier.as_ref().map(|earlier| status.now_ns.saturating_sub(earlier.now_ns));
        let rates = match (previous, elapsed) {
            // Too short for rates.
            (Some(previous), Some(elapsed)) if Duration::from_nanos(elapsed) < INTERVAL / 2 => previous,
            (_, Some(_)) => {
                let earlier = reader.earlier.replace(status.clone()).unwrap_or_default();
                let rates = rates::between(&earlier, &status);
                shared.timeline.sample(earlier.now_ns, status.now_ns, &rates);
                rates
            }
            (_, None) => {
                reader.earlier = Some(status.clone());
                HashMap::new()
            }
        };
        if begins {
            shared.timeline.begin(&status);
        }
        let read_at = Instant::now();
        shared.service = Service::Connected(Box::new(Report {
            socket,
            status,
            rates,
            policy,
            grants,
            users,
            memory,
            read_at,
        }));
    }

    /// Records events until this time, or until a page has changed something.
    fn record_until(&self, next: Instant, reader: &mut Reader) -> Result<(), ToolError> {
        loop {
            let left = next.saturating_duration_since(Instant::now());
            if left.is_zero() || self.lock().is_outdated {
                return Ok(());
            }
            let Some(tracer) = &reader.tracer else {
                self.wait_until(next);
                return Ok(());
            };
            if !tracer.wait(left.min(CHECK_INTERVAL))? {
                continue;
            }
            let mut pauses = false;
            match tracer.next_reply()? {
                Reply::Events { events, lost } => {
                    let mut shared = self.lock();
                    reader.events += events.len();
                    pauses = shared.timeline.lost(lost) || reader.events >= EVENTS_PER_SECOND;
                    if lost == 0 {
                        for event in &events {
                            shared.timeline.event(event);
                        }
                    }
                    if pauses {
                        shared.timeline.end(0);
                    }
                }
                Reply::Done => {}
                _ => return Err(tracer.unexpected()),
            }
            if pauses {
                reader.tracer = None;
            }
        }
    }

    /// Waits until this time, or until a page has changed something.
    fn wait_until(&self, next: Instant) {
        let shared = self.lock();
        let left = next.saturating_duration_since(Instant::now());
        let waited = self.wake.wait_timeout_while(shared, left, |shared| !shared.is_outdated);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

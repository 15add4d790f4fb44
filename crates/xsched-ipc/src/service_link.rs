//! Keeps a process connected to the service.
//!
//! ```text
//!               connected, welcomed                  the service has closed the connection
//!   unscheduled ──────────────────► scheduled: receive ────────────────────► all queues are freed at once
//!        ▲     no service, or no reply: retry after 50 ms, 100 ms, ... 1 s            │
//!        └────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! One thread. While connected it blocks in a receive, so that it notices the death of the service at once. While not
//! connected it sleeps for up to 1 s.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::memory::MemoryAccount;
use crate::page::{Page, PageError};
use crate::protocol::{HintRequest, MemoryTerms, PROTOCOL, Reply, Request};
use crate::report::{Severity, report};
use crate::scheduled_process::{ScheduledProcess, SchedulerEndpoint, lock};
use crate::service_connection::ServiceConnection;
use crate::socket::{Connection, Packet, SocketError};
use crate::threads::{self, CpuScheduling};

/// How long the first queue of a process waits for the first attempt to connect, and how long the service may take to accept.
const FIRST_CONNECT_TIMEOUT: Duration = Duration::from_millis(100);
/// How long a service that has accepted the connection may take to reply to [`Request::Join`].
const JOIN_REPLY_TIMEOUT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// The pause before the second attempt to connect. It doubles with each further attempt.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(50);
/// The longest pause between two attempts to connect.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);

/// The most limits of device memory that a process has when it joins: one from each source.
const MAX_TERMS: usize = 3;

/// What a process reports to the service when it joins.
#[derive(Clone, Debug, Default)]
pub struct ClientInfo {
    /// The sockets to try, in this order.
    pub sockets: Vec<PathBuf>,
    /// The name that the user gave the process.
    pub name: Option<String>,
    /// The requested hints.
    pub hint_request: HintRequest,
    /// The token of a grant.
    pub grant_token: Option<String>,
    /// What the processes have in common for which the limit of device memory counts together.
    pub memory_group: Option<String>,
    /// The device memory of the process, if it is counted.
    pub memory: Option<&'static MemoryAccount>,
}

/// See the head of this file.
pub(crate) struct ServiceLink {
    info: ClientInfo,
    /// Whether the first attempt to connect has ended, with or without success.
    has_tried: Mutex<bool>,
    changed: Condvar,
    is_stopped: AtomicBool,
}

/// Why the process is not connected.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("no service listens at {0}: start one with `xsched serve`")]
    NoService(String),
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error(transparent)]
    Page(#[from] PageError),
    #[error("the service accepted the connection and did not reply within {} s", JOIN_REPLY_TIMEOUT.tv_sec)]
    NoReply,
    #[error("the service refused to schedule this process: {0}")]
    Refused(String),
    #[error("the service replied to the join request with a different message: it has another version")]
    UnexpectedReply,
    #[error("cannot start a thread that carries out the scheduler's orders: {0}")]
    NoThread(std::io::Error),
    #[error("the program has selected another scheduler")]
    NotWanted,
}

impl ServiceLink {
    pub(crate) fn new(info: ClientInfo) -> Self {
        Self {
            info,
            has_tried: Mutex::new(false),
            changed: Condvar::new(),
            is_stopped: AtomicBool::new(false),
        }
    }

    /// Starts the thread, and waits up to [`FIRST_CONNECT_TIMEOUT`] for its first attempt.
    pub(crate) fn start(self: &Arc<Self>, process: &Arc<ScheduledProcess>) -> std::io::Result<()> {
        let (link, process) = (Arc::clone(self), Arc::downgrade(process));
        threads::start("xsched-link", CpuScheduling::Inherited, move || link.keep_connected(&process))?;
        self.wait_for_first_attempt(FIRST_CONNECT_TIMEOUT);
        Ok(())
    }

    /// Waits until the first attempt to connect has ended. It ends at once if no service listens.
    pub(crate) fn wait_for_first_attempt(&self, timeout: Duration) {
        let wait = self.changed.wait_timeout_while(lock(&self.has_tried), timeout, |has_tried| !*has_tried);
        drop(wait.unwrap_or_else(PoisonError::into_inner));
    }

    /// Has the thread not connect again.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        self.changed.notify_all();
    }

    fn keep_connected(&self, process: &Weak<ScheduledProcess>) {
        let mut delay = MIN_RETRY_DELAY;
        while !self.is_stopped.load(Ordering::SeqCst) {
            let Some(live_process) = process.upgrade() else { return };
            match self.connect(&live_process) {
                Ok(connection) => {
                    drop(live_process);
                    self.end_first_attempt();
                    delay = MIN_RETRY_DELAY;
                    let has_process = receive(&connection, process, self.info.memory);
                    if let Some(memory) = self.info.memory {
                        memory.leave();
                    }
                    if !has_process || self.is_stopped.load(Ordering::SeqCst) {
                        return;
                    }
                    report(
                        Severity::Info,
                        format_args!("lost the connection to the service: running unscheduled, reconnecting"),
                    );
                }
                Err(why) => {
                    drop(live_process);
                    let severity = if self.end_first_attempt() { Severity::Info } else { Severity::Debug };
                    report(severity, format_args!("running unscheduled: {why}"));
                }
            }
            self.sleep(delay);
            delay = (delay * 2).min(MAX_RETRY_DELAY);
        }
    }

    /// Returns whether it was the first attempt.
    fn end_first_attempt(&self) -> bool {
        let is_first = !std::mem::replace(&mut *lock(&self.has_tried), true);
        self.changed.notify_all();
        is_first
    }

    fn sleep(&self, delay: Duration) {
        let continues = |_: &mut bool| !self.is_stopped.load(Ordering::SeqCst);
        drop(self.changed.wait_timeout_while(lock(&self.has_tried), delay, continues));
    }

    fn connect(&self, process: &Arc<ScheduledProcess>) -> Result<Arc<ServiceConnection>, ConnectError> {
        let sockets = &self.info.sockets;
        let connection = sockets
            .iter()
            .find_map(|path| Connection::to_within(path, FIRST_CONNECT_TIMEOUT).ok())
            .ok_or_else(|| {
                let paths: Vec<_> = sockets.iter().map(|path| path.display().to_string()).collect();
                ConnectError::NoService(paths.join(" or "))
            })?;
        let connection = Arc::new(ServiceConnection::new(connection)?);
        process.record_connection(Some(&connection));
        let (page, terms) = self.join(connection.connection()?, process).inspect_err(|_| {
            process.record_connection(None);
        })?;
        let is_wanted = || !self.is_stopped.load(Ordering::SeqCst);
        if !process.bind_to(&page, SchedulerEndpoint::Service(Arc::clone(&connection)), is_wanted) {
            connection.shut_down();
            return Err(ConnectError::NotWanted);
        }
        if let Some(memory) = self.info.memory {
            memory.join(&page, &terms);
        }
        let jobs = process.jobs();
        if !jobs.is_empty() {
            connection.post(&Request::Jobs(jobs));
        }
        for (slot, hint_request) in process.queues().iter().filter_map(|queue| queue.own_hint_request()) {
            connection.post(&Request::QueueHint { slot, hint_request });
        }
        report(Severity::Debug, format_args!("scheduled by the service"));
        Ok(connection)
    }

    fn join(
        &self,
        connection: &Connection,
        process: &Arc<ScheduledProcess>,
    ) -> Result<(Arc<Page>, Vec<GivenTerms>), ConnectError> {
        let join = Request::Join {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            name: self.info.name.clone(),
            hint_request: self.info.hint_request.clone(),
            grant_token: self.info.grant_token.clone(),
            memory_group: self.info.memory_group.as_deref().map(Box::from),
        };
        match connection.send(&join, None, false) {
            // A service that refuses the connection closes it. The refusal can still be received.
            Ok(()) | Err(SocketError::Closed) => {}
            Err(why) => return Err(why.into()),
        }
        let welcome = receive_welcome(connection)?;
        process.threads().start(process).map_err(ConnectError::NoThread)?;
        Ok(welcome)
    }
}

/// A limit of device memory, and the memory that its group shares.
type GivenTerms = (MemoryTerms, Option<OwnedFd>);

/// Receives the limits of device memory, and the page.
fn receive_welcome(connection: &Connection) -> Result<(Arc<Page>, Vec<GivenTerms>), ConnectError> {
    let mut terms = Vec::new();
    loop {
        let mut ready = [PollFd::from_borrowed_fd(connection.as_fd(), PollFlags::IN)];
        // The receive below fails if this was interrupted or has timed out.
        let _ = poll(&mut ready, Some(&JOIN_REPLY_TIMEOUT));
        match connection.receive::<Reply>(false)? {
            None => return Err(ConnectError::NoReply),
            Some(Packet::Message(Reply::Memory(given), fd)) if terms.len() < MAX_TERMS => {
                terms.push((given, fd));
            }
            Some(Packet::Message(Reply::Welcome { note, .. }, Some(page))) => {
                if let Some(note) = note {
                    report(Severity::Warning, format_args!("{note}"));
                }
                return Ok((Page::attach(&page)?, terms));
            }
            Some(Packet::Message(Reply::Refused { why }, _)) => return Err(ConnectError::Refused(why)),
            Some(_) => return Err(ConnectError::UnexpectedReply),
        }
    }
}

/// Handles the messages of the service. Returns true when the connection is lost, false when the process is gone.
fn receive(
    connection: &Arc<ServiceConnection>,
    process: &Weak<ScheduledProcess>,
    memory: Option<&MemoryAccount>,
) -> bool {
    loop {
        let received = connection.connection().and_then(|connection| connection.receive::<Reply>(true));
        let Some(process) = process.upgrade() else {
            connection.cancel_pending();
            return false;
        };
        match received {
            Ok(Some(Packet::Message(Reply::Configure { slot, settings }, _))) => {
                let queue = process.queues().into_iter().find(|queue| queue.slot() == Some(slot));
                if let Some(Err(why)) = queue.map(|queue| queue.configure(settings)) {
                    report(
                        Severity::Warning,
                        format_args!("the settings of the queue in slot {slot} were not changed: {why}"),
                    );
                }
            }
            Ok(Some(Packet::Message(Reply::Memory(terms), fd))) => {
                if let Some(memory) = memory {
                    memory.change(&terms, fd.as_ref());
                }
            }
            Ok(Some(Packet::Message(Reply::Refused { why }, _))) => {
                report(Severity::Warning, format_args!("the service refused the request: {why}"));
                connection.on_reply(Err(why));
            }
            Ok(Some(Packet::Message(Reply::Done | Reply::Policy { .. }, _))) => connection.on_reply(Ok(())),
            // A newer service may send messages that this library does not know.
            Ok(_) | Err(SocketError::Malformed(_)) => {}
            Err(SocketError::Closed | SocketError::NotAccepted | SocketError::System { .. }) => {
                process.on_service_lost(connection);
                connection.cancel_pending();
                return true;
            }
        }
    }
}

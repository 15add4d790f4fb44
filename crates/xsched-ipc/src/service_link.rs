//! Keeps a program connected to the service.
//!
//! ```text
//!              found, welcomed                      its end of the connection is closed
//!   unscheduled ──────────────► scheduled: receive ────────────────────► everybody is freed at once
//!        ▲   not there, or silent: try again after 50 ms, 100 ms, ... 1 s        │
//!        └───────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! One thread, which mostly sleeps: in a receive while connected, so that the death of the service is noticed at once,
//! and for up to a second while not.

use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::line::Line;
use crate::page::{Page, PageError};
use crate::program::{Call, Program, lock};
use crate::protocol::{HintRequest, PROTOCOL, Reply, Request};
use crate::report::{Severity, report};
use crate::socket::{Connection, Packet, SocketError};
use crate::threads;

/// How long the program's first queue waits for the service at most.
const FIRST_PATIENCE: Duration = Duration::from_millis(100);
/// How long a service that took the connection may take to answer.
const WELCOME_PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// How long to wait before trying again: at first, and at most.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What a program tells the service about itself.
#[derive(Clone, Debug, Default)]
pub struct ClientInfo {
    /// Where the service may listen, in the order to try.
    pub sockets: Vec<PathBuf>,
    /// What the program was named by its user, if it was.
    pub name: Option<String>,
    /// What it would like.
    pub hint_request: HintRequest,
}

/// See the head of this file.
pub(crate) struct ServiceLink {
    introduction: ClientInfo,
    /// Whether the first attempt is over, however it ended.
    tried: Mutex<bool>,
    changed: Condvar,
    stopped: AtomicBool,
}

/// Why the program is not connected.
#[derive(Debug, thiserror::Error)]
enum NotJoined {
    #[error("no service listens at {0}")]
    Nobody(String),
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error(transparent)]
    Page(#[from] PageError),
    #[error("the service took the connection and does not answer")]
    Silent,
    #[error("the service refused: {0}")]
    Refused(String),
    #[error("the service answered with something else than a welcome")]
    Confused,
    #[error("no thread to carry out the scheduler's orders: {0}")]
    NoAgent(std::io::Error),
    #[error("the program has chosen another scheduler")]
    Unwanted,
}

impl ServiceLink {
    pub(crate) fn new(introduction: ClientInfo) -> Self {
        Self {
            introduction,
            tried: Mutex::new(false),
            changed: Condvar::new(),
            stopped: AtomicBool::new(false),
        }
    }

    /// Starts the thread, and gives it a moment to reach the service.
    pub(crate) fn start(self: &Arc<Self>, program: &Arc<Program>) -> std::io::Result<()> {
        let (link, program) = (Arc::clone(self), Arc::downgrade(program));
        threads::start("xsched-link", move || link.keep_connected(&program))?;
        self.wait_for_first_attempt(FIRST_PATIENCE);
        Ok(())
    }

    /// Gives the thread so long to reach the service. It knows at once if there is none.
    pub(crate) fn wait_for_first_attempt(&self, patience: Duration) {
        let wait = self.changed.wait_timeout_while(lock(&self.tried), patience, |tried| !*tried);
        drop(wait.unwrap_or_else(PoisonError::into_inner));
    }

    /// Does not connect again.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.changed.notify_all();
    }

    fn keep_connected(&self, program: &Weak<Program>) {
        let mut pause = SHORTEST_PAUSE;
        while !self.stopped.load(Ordering::SeqCst) {
            let Some(here) = program.upgrade() else { return };
            match self.join(&here) {
                Ok(line) => {
                    drop(here);
                    self.first_attempt_is_over();
                    pause = SHORTEST_PAUSE;
                    if !listen(&line, program) || self.stopped.load(Ordering::SeqCst) {
                        return;
                    }
                    report(Severity::Info, format_args!("the service is gone: running on unscheduled"));
                }
                Err(why) => {
                    drop(here);
                    let severity =
                        if self.first_attempt_is_over() { Severity::Info } else { Severity::Debug };
                    report(severity, format_args!("running unscheduled: {why}"));
                }
            }
            self.sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Answers whether it was the first.
    fn first_attempt_is_over(&self) -> bool {
        let first = !std::mem::replace(&mut *lock(&self.tried), true);
        self.changed.notify_all();
        first
    }

    fn sleep(&self, pause: Duration) {
        let stopped = |_: &mut bool| !self.stopped.load(Ordering::SeqCst);
        drop(self.changed.wait_timeout_while(lock(&self.tried), pause, stopped));
    }

    fn join(&self, program: &Arc<Program>) -> Result<Arc<Line>, NotJoined> {
        let sockets = &self.introduction.sockets;
        let found = sockets.iter().find_map(|path| Connection::to(path).ok());
        let connection = found.ok_or_else(|| {
            let paths: Vec<_> = sockets.iter().map(|path| path.display().to_string()).collect();
            NotJoined::Nobody(paths.join(" or "))
        })?;
        let line = Arc::new(Line::new(connection)?);
        program.note_connection(Some(&line));
        let page = self.introduce(line.connection()?, program).inspect_err(|_| {
            program.note_connection(None);
        })?;
        let wanted = || !self.stopped.load(Ordering::SeqCst);
        if !program.take_seat(&page, Call::Service(Arc::clone(&line)), wanted) {
            line.hang_up();
            return Err(NotJoined::Unwanted);
        }
        for (slot, hint_request) in program.living().iter().filter_map(|queue| queue.own_hint_request()) {
            line.tell(&Request::QueueHint { slot, hint_request });
        }
        report(Severity::Debug, format_args!("scheduled by the service"));
        Ok(line)
    }

    fn introduce(&self, connection: &Connection, program: &Arc<Program>) -> Result<Arc<Page>, NotJoined> {
        let join = Request::Join {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            name: self.introduction.name.clone(),
            hint_request: self.introduction.hint_request.clone(),
        };
        connection.send(&join, None, false)?;
        let page = welcomed(connection)?;
        program.start_agents().map_err(NotJoined::NoAgent)?;
        Ok(page)
    }
}

fn welcomed(connection: &Connection) -> Result<Arc<Page>, NotJoined> {
    let mut ready = [PollFd::from_borrowed_fd(connection.as_fd(), PollFlags::IN)];
    // Interrupted or not, what counts is whether there is something to receive.
    let _ = poll(&mut ready, Some(&WELCOME_PATIENCE));
    match connection.receive::<Reply>(false)? {
        None => Err(NotJoined::Silent),
        Some(Packet::Message(Reply::Welcome { note, .. }, Some(page))) => {
            if let Some(note) = note {
                report(Severity::Warning, format_args!("{note}"));
            }
            Ok(Page::attach(&page)?)
        }
        Some(Packet::Message(Reply::Refused { why }, _)) => Err(NotJoined::Refused(why)),
        Some(_) => Err(NotJoined::Confused),
    }
}

/// Does what the service says until it is gone (true) or the program is (false).
fn listen(line: &Arc<Line>, program: &Weak<Program>) -> bool {
    loop {
        let received = line.connection().and_then(|connection| connection.receive::<Reply>(true));
        let Some(program) = program.upgrade() else {
            line.fall_silent();
            return false;
        };
        match received {
            Ok(Some(Packet::Message(Reply::Configure { slot, settings }, _))) => {
                let queue = program.living().into_iter().find(|queue| queue.slot() == Some(slot));
                if let Some(Err(why)) = queue.map(|queue| queue.configure(settings)) {
                    report(
                        Severity::Warning,
                        format_args!("the settings of a queue stay as they are: {why}"),
                    );
                }
            }
            Ok(Some(Packet::Message(Reply::Refused { why }, _))) => {
                report(Severity::Warning, format_args!("the service refused: {why}"));
                line.answered(Err(why));
            }
            Ok(Some(Packet::Message(Reply::Done | Reply::Policy { .. }, _))) => line.answered(Ok(())),
            // A newer service may say more than this library understands.
            Ok(_) | Err(SocketError::Rubbish(_)) => {}
            Err(SocketError::Closed | SocketError::System { .. }) => {
                program.lose_service(line);
                line.fall_silent();
                return true;
            }
        }
    }
}

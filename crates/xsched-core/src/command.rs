//! Callback commands: functions that a program submits, to be called when their queue may launch.
//!
//! Ordinary launches run on the caller's thread. Only callback commands need a worker thread, which starts with the first of
//! them. A command stays in the list until it is launched, so that pending commands can be dropped.
//!
//! ```text
//!   submit ──► [ c c c c ] ──worker: gate, window──► launched ──► device
//!               dropped ◄─┘                            │ a marker as the window requires, and where a thread waits
//! ```
//! The path of a command is short, because commands may be: one lock on either side, a wake-up only for a thread that sleeps,
//! and a marker only for a command that a thread waits for.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::hal::{HalError, Marker};
use crate::launch_path::LaunchPath;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, lock, thread};

type Launch = Box<dyn FnOnce() + Send>;

/// Identifies one submitted command.
#[derive(Clone, Debug)]
pub struct Ticket(Arc<Submission>);

#[derive(Debug)]
struct Submission {
    /// The number of the launch on its queue, or one of the two constants below.
    launch: AtomicU64,
    /// A thread waits for this command.
    has_waiter: AtomicBool,
}

const PENDING: u64 = u64::MAX;
const DROPPED: u64 = u64::MAX - 1;

/// What became of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It completed on the device.
    Completed,
    /// It was dropped before it was launched.
    Dropped,
}

/// The most pending commands of a queue that runs. A thread that submits more waits for room, so that a program that submits
/// faster than its device runs does not fill its memory.
const MAX_PENDING: usize = 4096;
/// With so few pending commands there is room again. Well below the maximum, so that not every submission waits.
const PENDING_WITH_ROOM: usize = MAX_PENDING / 2;
/// How often a thread that waits for room, or for a launch, checks again.
const RECHECK_INTERVAL: Duration = Duration::from_millis(10);
/// How often the worker checks for another command before it sleeps. Waking it costs more than these checks.
const CHECKS_BEFORE_SLEEP: u32 = 200;
/// How many markers are kept to look up the completion of a command.
const MAX_KEPT_MARKERS: usize = 64;
/// The usual size of a program's own threads: its functions run on this stack.
const WORKER_STACK_SIZE: usize = 8 << 20;

type Commands = VecDeque<(Ticket, Launch)>;

#[derive(Default)]
struct Inbox {
    pending: Commands,
    newest: Option<Ticket>,
    is_closed: bool,
    /// The worker sleeps and has to be woken.
    is_worker_asleep: bool,
    /// Launch numbers and the markers behind them, oldest first.
    markers: VecDeque<(u64, Marker)>,
}

/// The commands of one queue.
#[derive(Default)]
struct CommandList {
    /// The next commands, which the worker took from the inbox all at once, so that submitting and launching threads seldom
    /// contend. A thread that needs both locks takes this one first.
    batch: Mutex<Commands>,
    inbox: Mutex<Inbox>,
    /// Wakes the worker: a command was submitted.
    submitted: Condvar,
    /// Wakes threads that wait for a command: one was launched or dropped.
    changed: Condvar,
    /// Wakes threads that wait to submit: there is room.
    has_room: Condvar,
    /// How many threads wait for a command.
    waiters: AtomicUsize,
    /// How many commands are pending, in the batch and in the inbox.
    pending: AtomicUsize,
    /// The worker is calling a command.
    is_launching: AtomicBool,
    /// The number of launches so far.
    launches: AtomicU64,
}

/// Launches the commands of one queue.
pub(crate) struct Worker {
    commands: Arc<CommandList>,
    launcher: Launcher,
}

/// The thread that launches commands.
enum Launcher {
    /// A thread of the worker; none once it was joined.
    Worker(Mutex<Option<thread::JoinHandle<()>>>),
    /// The submitting threads, one at a time.
    Submitter(Mutex<()>),
}

impl Worker {
    /// Starts a thread that launches submitted commands.
    pub(crate) fn start(launch_path: Arc<LaunchPath>) -> std::io::Result<Self> {
        let commands: Arc<CommandList> = Arc::default();
        let for_thread = Arc::clone(&commands);
        let thread = thread::Builder::new().name("xsched-queue".to_owned()).stack_size(WORKER_STACK_SIZE);
        let thread = thread.spawn(move || for_thread.work(&launch_path))?;
        Ok(Self { commands, launcher: Launcher::Worker(Mutex::new(Some(thread))) })
    }

    /// Launches commands on the threads that submit them.
    pub(crate) fn without_thread() -> Self {
        Self { commands: Arc::default(), launcher: Launcher::Submitter(Mutex::new(())) }
    }

    /// Whether the worker has a thread.
    pub(crate) fn has_thread(&self) -> bool {
        matches!(self.launcher, Launcher::Worker(_))
    }

    /// Adds a command to the list, or launches it on this thread. None: the queue is being destroyed.
    pub(crate) fn submit(&self, launch_path: &LaunchPath, launch: Launch) -> Option<Ticket> {
        let ticket = Ticket(Arc::new(Submission {
            launch: AtomicU64::new(PENDING),
            has_waiter: AtomicBool::new(false),
        }));
        if let Launcher::Submitter(one_at_a_time) = &self.launcher {
            let _one_at_a_time = lock(one_at_a_time);
            if lock(&self.commands.inbox).is_closed {
                return None;
            }
            let mut admitted = launch_path.admit();
            self.commands.launch(launch_path, &mut admitted, &ticket, launch);
            lock(&self.commands.inbox).newest = Some(ticket.clone());
            return Some(ticket);
        }
        let mut inbox = lock(&self.commands.inbox);
        if inbox.is_closed {
            return None;
        }
        inbox.newest = Some(ticket.clone());
        inbox.pending.push_back((ticket.clone(), launch));
        self.commands.pending.fetch_add(1, Ordering::SeqCst);
        if std::mem::take(&mut inbox.is_worker_asleep) {
            self.commands.submitted.notify_one();
        }
        Some(ticket)
    }

    /// Waits while too many commands are pending, unless the queue is stopped: the thread that has to resume it may be the
    /// submitting thread.
    pub(crate) fn wait_for_room(&self, launch_path: &LaunchPath) {
        if self.commands.pending.load(Ordering::Relaxed) < MAX_PENDING {
            return;
        }
        let mut inbox = lock(&self.commands.inbox);
        let too_many = || self.commands.pending.load(Ordering::SeqCst) >= PENDING_WITH_ROOM;
        while too_many() && !inbox.is_closed && !launch_path.gate().is_stopped() {
            let waited = self.commands.has_room.wait_timeout(inbox, RECHECK_INTERVAL);
            inbox = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Discards the pending commands.
    pub(crate) fn drop_pending(&self) {
        let dropped = {
            let mut batch = lock(&self.commands.batch);
            let mut inbox = lock(&self.commands.inbox);
            let dropped = [std::mem::take(&mut *batch), std::mem::take(&mut inbox.pending)];
            for (ticket, _) in dropped.iter().flatten() {
                ticket.0.launch.store(DROPPED, Ordering::SeqCst);
                self.commands.pending.fetch_sub(1, Ordering::SeqCst);
            }
            self.commands.changed.notify_all();
            self.commands.has_room.notify_all();
            dropped
        };
        // Outside the locks: this runs destructors of the program.
        drop(dropped);
    }

    /// Whether no command is pending or being launched.
    pub(crate) fn is_empty(&self) -> bool {
        // In this order: the worker sets `is_launching` before it decrements `pending`.
        self.commands.pending.load(Ordering::SeqCst) == 0
            && !self.commands.is_launching.load(Ordering::SeqCst)
    }

    /// How many commands are pending or being launched.
    pub(crate) fn pending(&self) -> usize {
        self.commands.pending.load(Ordering::Relaxed)
            + usize::from(self.commands.is_launching.load(Ordering::Relaxed))
    }

    /// The last command submitted.
    pub(crate) fn newest(&self) -> Option<Ticket> {
        lock(&self.commands.inbox).newest.clone()
    }

    /// Waits until the command has completed on the device or was dropped.
    pub(crate) fn wait(&self, launch_path: &LaunchPath, ticket: &Ticket) -> Result<Outcome, HalError> {
        let launch = self.commands.wait_until_launched(ticket);
        if launch == DROPPED {
            return Ok(Outcome::Dropped);
        }
        let marker = {
            let inbox = lock(&self.commands.inbox);
            inbox.markers.iter().find(|(covered, _)| *covered >= launch).map(|(_, marker)| *marker)
        };
        match marker.or_else(|| launch_path.mark()) {
            Some(marker) => while !launch_path.hw().wait(marker, Duration::from_secs(1))? {},
            // The device accepts no marker: only synchronizing shows that the command has completed.
            None => launch_path.hw().synchronize()?,
        }
        Ok(Outcome::Completed)
    }

    /// Accepts no more commands and waits until the pending ones were launched, unless one of them calls this.
    pub(crate) fn finish(&self) {
        self.commands.close();
        if let Launcher::Worker(thread) = &self.launcher
            && let Some(thread) = lock(thread).take()
            && thread.thread().id() != thread::current().id()
        {
            // The thread catches the panics of commands.
            let _ = thread.join();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.drop_pending();
        self.commands.close();
    }
}

impl CommandList {
    fn close(&self) {
        lock(&self.inbox).is_closed = true;
        for condvar in [&self.submitted, &self.changed, &self.has_room] {
            condvar.notify_all();
        }
    }

    fn wait_for_change<'a>(&self, inbox: MutexGuard<'a, Inbox>) -> MutexGuard<'a, Inbox> {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let waited = self.changed.wait_timeout(inbox, RECHECK_INTERVAL);
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn wait_until_launched(&self, ticket: &Ticket) -> u64 {
        let launch = || ticket.0.launch.load(Ordering::SeqCst);
        if launch() == PENDING {
            ticket.0.has_waiter.store(true, Ordering::SeqCst);
            let mut inbox = lock(&self.inbox);
            while launch() == PENDING {
                inbox = self.wait_for_change(inbox);
            }
        }
        launch()
    }

    fn work(&self, launch_path: &LaunchPath) {
        while self.wait_for_command() {
            let mut admitted = launch_path.admit();
            if let Some((ticket, launch)) = self.take_next() {
                self.launch(launch_path, &mut admitted, &ticket, launch);
                drop(admitted);
                self.is_launching.store(false, Ordering::SeqCst);
            }
        }
    }

    fn take_next(&self) -> Option<(Ticket, Launch)> {
        let mut batch = lock(&self.batch);
        if batch.is_empty() {
            std::mem::swap(&mut *batch, &mut lock(&self.inbox).pending);
        }
        let next = batch.pop_front()?;
        self.is_launching.store(true, Ordering::SeqCst);
        if self.pending.fetch_sub(1, Ordering::SeqCst) == PENDING_WITH_ROOM {
            let _inbox = lock(&self.inbox);
            self.has_room.notify_all();
        }
        Some(next)
    }

    /// Calls a command that was admitted.
    fn launch(
        &self,
        launch_path: &LaunchPath,
        admitted: &mut crate::launch_path::Admitted<'_>,
        ticket: &Ticket,
        launch: Launch,
    ) {
        // The command may wait for the device.
        admitted.notify();
        // A panic is a fault of the program; the commands behind this one are launched nevertheless.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(launch));
        let number = self.launches.fetch_add(1, Ordering::Relaxed);
        let mut marker = admitted.launched();
        if marker.is_none() && ticket.0.has_waiter.load(Ordering::SeqCst) {
            marker = launch_path.mark();
        }
        if let Some(marker) = marker {
            let mut inbox = lock(&self.inbox);
            if inbox.markers.len() == MAX_KEPT_MARKERS {
                inbox.markers.pop_front();
            }
            inbox.markers.push_back((number, marker));
        }
        ticket.0.launch.store(number, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            // With the lock: a thread that has checked and does not sleep yet would miss the notification.
            let _inbox = lock(&self.inbox);
            self.changed.notify_all();
        }
    }

    /// Waits for a command. Returns false once the queue accepts no more.
    fn wait_for_command(&self) -> bool {
        for _ in 0..CHECKS_BEFORE_SLEEP {
            if self.pending.load(Ordering::Relaxed) > 0 {
                return true;
            }
            std::hint::spin_loop();
        }
        let mut inbox = lock(&self.inbox);
        while self.pending.load(Ordering::SeqCst) == 0 {
            if inbox.is_closed {
                return false;
            }
            inbox.is_worker_asleep = true;
            inbox = self.submitted.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }
}

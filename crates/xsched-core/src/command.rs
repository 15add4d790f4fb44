//! Callback commands: functions a program hands over to be run when it is their queue's turn.
//!
//! Ordinary launches happen on the caller's thread; only these need a worker, which is started with the first one.
//! A command stays in the list until the moment it is launched, so that what waits can still be dropped.
//!
//! ```text
//!   submit ──► [ c c c c ] ──worker: gate, window──► launched ──► device
//!               dropped ◄─┘                            │ every so often a marker, and one where somebody waits
//! ```
//! The path of a command is short on purpose, for commands may be: a lock for either side, nobody is woken who does not
//! sleep, and no marker is placed for a command that nobody waits for.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::hal::{HalError, Marker};
use crate::launch_path::LaunchPath;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, lock, thread};

type Launch = Box<dyn FnOnce() + Send>;

/// One submitted command, to wait for.
#[derive(Clone, Debug)]
pub struct Ticket(Arc<Turn>);

#[derive(Debug)]
struct Turn {
    /// The how-manieth launch of its queue it was, or one of the two below.
    launch: AtomicU64,
    /// Somebody waits for exactly this one.
    wanted: AtomicBool,
}

const PENDING: u64 = u64::MAX;
const DROPPED: u64 = u64::MAX - 1;

/// How waiting for a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It completed on the device.
    Completed,
    /// It was dropped before it was launched.
    Dropped,
}

/// Commands that may wait in a queue that runs. Whoever submits more waits until there is room, so that a program that
/// submits faster than its device works does not fill its memory.
const MOST_PENDING: usize = 4096;
/// When so few are left there is room again. Well below, so that not every command waits.
const ROOM_AT: usize = MOST_PENDING / 2;
/// How long whoever waits for room, or for the worker, waits before looking again.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How often the worker looks for another command before it goes to sleep. Waking it costs more.
const LOOKS: u32 = 200;
/// Markers that are remembered.
const MOST_MARKS: usize = 64;
/// As large as a thread of the program's own: its functions run on it.
const STACK: usize = 8 << 20;

type Commands = VecDeque<(Ticket, Launch)>;

#[derive(Default)]
struct Inbox {
    pending: Commands,
    newest: Option<Ticket>,
    closed: bool,
    /// The worker has to be woken.
    asleep: bool,
    /// Markers that were placed behind launches, oldest first.
    marks: VecDeque<(u64, Marker)>,
}

#[derive(Default)]
struct Desk {
    /// What comes next, taken from the inbox all at once, so that who submits and who launches seldom meet. Locked before
    /// the inbox by whoever needs both.
    taken: Mutex<Commands>,
    inbox: Mutex<Inbox>,
    /// For the worker.
    came: Condvar,
    /// For whoever waits: a command was launched or dropped.
    went: Condvar,
    /// For whoever waits to submit: there is room again.
    room: Condvar,
    /// How many wait for a command.
    watched: AtomicUsize,
    /// How many commands wait, here and there.
    waiting: AtomicUsize,
    /// The worker runs a command at this moment.
    launching: AtomicBool,
    /// Launches so far.
    launched: AtomicU64,
}

/// The commands of one queue, and who launches them.
pub(crate) struct Worker {
    desk: Arc<Desk>,
    by: By,
}

/// Who launches.
enum By {
    /// A thread of ours, until it has ended.
    Thread(Mutex<Option<thread::JoinHandle<()>>>),
    /// Whoever submits, one at a time.
    Submitter(Mutex<()>),
}

impl Worker {
    /// Starts a thread that launches.
    pub(crate) fn start(launch_path: Arc<LaunchPath>) -> std::io::Result<Self> {
        let desk: Arc<Desk> = Arc::default();
        let theirs = Arc::clone(&desk);
        let thread = thread::Builder::new().name("xsched-queue".to_owned()).stack_size(STACK);
        let thread = thread.spawn(move || theirs.work(&launch_path))?;
        Ok(Self { desk, by: By::Thread(Mutex::new(Some(thread))) })
    }

    /// Has commands launched by whoever submits them.
    pub(crate) fn without_thread() -> Self {
        Self { desk: Arc::default(), by: By::Submitter(Mutex::new(())) }
    }

    /// Whether a thread of ours launches.
    pub(crate) fn has_thread(&self) -> bool {
        matches!(self.by, By::Thread(_))
    }

    /// Hands a command over, or launches it here. None: the queue takes no more.
    pub(crate) fn submit(&self, launch_path: &LaunchPath, launch: Launch) -> Option<Ticket> {
        let ticket =
            Ticket(Arc::new(Turn { launch: AtomicU64::new(PENDING), wanted: AtomicBool::new(false) }));
        if let By::Submitter(one_at_a_time) = &self.by {
            let _one_at_a_time = lock(one_at_a_time);
            if lock(&self.desk.inbox).closed {
                return None;
            }
            let mut admitted = launch_path.admit();
            self.desk.launch(launch_path, &mut admitted, &ticket, launch);
            lock(&self.desk.inbox).newest = Some(ticket.clone());
            return Some(ticket);
        }
        let mut inbox = lock(&self.desk.inbox);
        if inbox.closed {
            return None;
        }
        inbox.newest = Some(ticket.clone());
        inbox.pending.push_back((ticket.clone(), launch));
        self.desk.waiting.fetch_add(1, Ordering::SeqCst);
        if std::mem::take(&mut inbox.asleep) {
            self.desk.came.notify_one();
        }
        Some(ticket)
    }

    /// Dependencies while more commands wait than there should, unless the queue is stopped: who would let it go on may be
    /// the one who submits.
    pub(crate) fn wait_for_room(&self, launch_path: &LaunchPath) {
        if self.desk.waiting.load(Ordering::Relaxed) < MOST_PENDING {
            return;
        }
        let mut inbox = lock(&self.desk.inbox);
        let too_many = || self.desk.waiting.load(Ordering::SeqCst) >= ROOM_AT;
        while too_many() && !inbox.closed && !launch_path.gate().is_stopped() {
            let waited = self.desk.room.wait_timeout(inbox, LOOK_AGAIN);
            inbox = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Discards what waits.
    pub(crate) fn drop_pending(&self) {
        let dropped = {
            let mut taken = lock(&self.desk.taken);
            let mut inbox = lock(&self.desk.inbox);
            let dropped = [std::mem::take(&mut *taken), std::mem::take(&mut inbox.pending)];
            for (ticket, _) in dropped.iter().flatten() {
                ticket.0.launch.store(DROPPED, Ordering::SeqCst);
                self.desk.waiting.fetch_sub(1, Ordering::SeqCst);
            }
            self.desk.went.notify_all();
            self.desk.room.notify_all();
            dropped
        };
        // The program's own destructors run here, outside the lock.
        drop(dropped);
    }

    /// Whether nothing waits and nothing is being launched.
    pub(crate) fn is_empty(&self) -> bool {
        // In this order: what leaves the one is in the other before.
        self.desk.waiting.load(Ordering::SeqCst) == 0 && !self.desk.launching.load(Ordering::SeqCst)
    }

    /// How many commands wait.
    pub(crate) fn waiting(&self) -> usize {
        self.desk.waiting.load(Ordering::Relaxed) + usize::from(self.desk.launching.load(Ordering::Relaxed))
    }

    /// The last command submitted.
    pub(crate) fn newest(&self) -> Option<Ticket> {
        lock(&self.desk.inbox).newest.clone()
    }

    /// Dependencies until the command has completed on the device, or was dropped.
    pub(crate) fn wait(&self, launch_path: &LaunchPath, ticket: &Ticket) -> Result<Outcome, HalError> {
        let launch = self.desk.wait_until_launched(ticket);
        if launch == DROPPED {
            return Ok(Outcome::Dropped);
        }
        let known = {
            let inbox = lock(&self.desk.inbox);
            inbox.marks.iter().find(|(covered, _)| *covered >= launch).map(|(_, marker)| *marker)
        };
        match known.or_else(|| launch_path.mark()) {
            Some(marker) => while !launch_path.hw().wait(marker, Duration::from_secs(1))? {},
            // No marker can be had: only synchronising tells when it is done.
            None => launch_path.hw().synchronize()?,
        }
        Ok(Outcome::Completed)
    }

    /// Takes no more commands. Dependencies until those that wait have been launched, unless asked to by one of them.
    pub(crate) fn finish(&self) {
        self.desk.close();
        if let By::Thread(thread) = &self.by
            && let Some(thread) = lock(thread).take()
            && thread.thread().id() != thread::current().id()
        {
            // It catches what panics.
            let _ = thread.join();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.drop_pending();
        self.desk.close();
    }
}

impl Desk {
    fn close(&self) {
        lock(&self.inbox).closed = true;
        for waiting in [&self.came, &self.went, &self.room] {
            waiting.notify_all();
        }
    }

    fn look_again<'a>(&self, inbox: MutexGuard<'a, Inbox>) -> MutexGuard<'a, Inbox> {
        self.watched.fetch_add(1, Ordering::SeqCst);
        let waited = self.went.wait_timeout(inbox, LOOK_AGAIN);
        self.watched.fetch_sub(1, Ordering::SeqCst);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn wait_until_launched(&self, ticket: &Ticket) -> u64 {
        let launch = || ticket.0.launch.load(Ordering::SeqCst);
        if launch() == PENDING {
            ticket.0.wanted.store(true, Ordering::SeqCst);
            let mut inbox = lock(&self.inbox);
            while launch() == PENDING {
                inbox = self.look_again(inbox);
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
                self.launching.store(false, Ordering::SeqCst);
            }
        }
    }

    fn take_next(&self) -> Option<(Ticket, Launch)> {
        let mut taken = lock(&self.taken);
        if taken.is_empty() {
            std::mem::swap(&mut *taken, &mut lock(&self.inbox).pending);
        }
        let next = taken.pop_front()?;
        self.launching.store(true, Ordering::SeqCst);
        if self.waiting.fetch_sub(1, Ordering::SeqCst) == ROOM_AT {
            let _inbox = lock(&self.inbox);
            self.room.notify_all();
        }
        Some(next)
    }

    /// Launches a command whose turn it is.
    fn launch(
        &self,
        launch_path: &LaunchPath,
        admitted: &mut crate::launch_path::Admitted<'_>,
        ticket: &Ticket,
        launch: Launch,
    ) {
        // A callback that panics is the program's failure; the commands behind it are still owed their turn.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(launch));
        let number = self.launched.fetch_add(1, Ordering::Relaxed);
        let mut marker = admitted.launched();
        if marker.is_none() && ticket.0.wanted.load(Ordering::SeqCst) {
            marker = launch_path.mark();
        }
        if let Some(marker) = marker {
            let mut inbox = lock(&self.inbox);
            if inbox.marks.len() == MOST_MARKS {
                inbox.marks.pop_front();
            }
            inbox.marks.push_back((number, marker));
        }
        ticket.0.launch.store(number, Ordering::SeqCst);
        if self.watched.load(Ordering::SeqCst) > 0 {
            // With the lock, or who has looked and not yet gone to sleep would miss it.
            let _inbox = lock(&self.inbox);
            self.went.notify_all();
        }
    }

    /// Answers whether there is a command; else the queue takes no more.
    fn wait_for_command(&self) -> bool {
        for _ in 0..LOOKS {
            if self.waiting.load(Ordering::Relaxed) > 0 {
                return true;
            }
            std::hint::spin_loop();
        }
        let mut inbox = lock(&self.inbox);
        while self.waiting.load(Ordering::SeqCst) == 0 {
            if inbox.closed {
                return false;
            }
            inbox.asleep = true;
            inbox = self.came.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }
}

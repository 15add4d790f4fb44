//! Callback commands: functions a program hands over to be run when it is their queue's turn.
//!
//! Ordinary launches happen on the caller's thread; only these need a worker, which is started with the first one.
//! A command stays in the list until the moment it is launched, so that what waits can still be dropped.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::hal::{HalError, Marker};
use crate::lane::{Lane, lock};

type Launch = Box<dyn FnOnce() + Send>;

/// One submitted command, to wait for.
#[derive(Clone, Debug)]
pub struct Ticket(Arc<AtomicU64>);

/// Values of a ticket: the marker behind the command, or one of these.
const PENDING: Marker = Marker::MAX;
const DROPPED: Marker = Marker::MAX - 1;
/// Launched, but the device could not place a marker: only synchronising tells when it is done.
const UNMARKED: Marker = Marker::MAX - 2;

/// How waiting for a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It completed on the device.
    Completed,
    /// It was dropped before it was launched.
    Dropped,
}

#[derive(Default)]
struct Inbox {
    pending: VecDeque<(Ticket, Launch)>,
    /// The worker runs a command at this moment.
    launching: bool,
    newest: Option<Ticket>,
    closed: bool,
}

/// The worker of one queue and the list it works off.
pub(crate) struct Worker {
    inbox: Arc<(Mutex<Inbox>, Condvar)>,
}

impl Worker {
    /// Starts the thread.
    pub(crate) fn start(lane: Arc<Lane>) -> std::io::Result<Self> {
        let inbox: Arc<(Mutex<Inbox>, Condvar)> = Arc::default();
        let theirs = Arc::clone(&inbox);
        std::thread::Builder::new().name("xsched-queue".to_owned()).spawn(move || work(&lane, &theirs))?;
        Ok(Self { inbox })
    }

    pub(crate) fn submit(&self, launch: Launch) -> Ticket {
        let ticket = Ticket(Arc::new(AtomicU64::new(PENDING)));
        let (inbox, changed) = &*self.inbox;
        let mut inbox = lock(inbox);
        inbox.newest = Some(ticket.clone());
        inbox.pending.push_back((ticket.clone(), launch));
        changed.notify_all();
        ticket
    }

    /// Discards what waits.
    pub(crate) fn drop_pending(&self) {
        let (inbox, changed) = &*self.inbox;
        let dropped = {
            let mut inbox = lock(inbox);
            for (ticket, _) in &inbox.pending {
                ticket.0.store(DROPPED, Ordering::SeqCst);
            }
            changed.notify_all();
            std::mem::take(&mut inbox.pending)
        };
        // The program's own destructors run here, outside the lock.
        drop(dropped);
    }

    /// Whether nothing waits and nothing is being launched.
    pub(crate) fn is_empty(&self) -> bool {
        let inbox = lock(&self.inbox.0);
        inbox.pending.is_empty() && !inbox.launching
    }

    /// The last command submitted.
    pub(crate) fn newest(&self) -> Option<Ticket> {
        lock(&self.inbox.0).newest.clone()
    }

    /// Waits until the command has completed on the device, or was dropped.
    pub(crate) fn wait(&self, lane: &Lane, ticket: &Ticket) -> Result<Outcome, HalError> {
        let marker = {
            let (inbox, changed) = &*self.inbox;
            let mut inbox = lock(inbox);
            loop {
                match ticket.0.load(Ordering::SeqCst) {
                    PENDING => inbox = changed.wait(inbox).unwrap_or_else(PoisonError::into_inner),
                    DROPPED => return Ok(Outcome::Dropped),
                    marker => break marker,
                }
            }
        };
        if marker == UNMARKED {
            lane.hw().synchronize()?;
            return Ok(Outcome::Completed);
        }
        while !lane.hw().wait(marker, Duration::from_secs(1))? {}
        Ok(Outcome::Completed)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.drop_pending();
        let (inbox, changed) = &*self.inbox;
        lock(inbox).closed = true;
        changed.notify_all();
    }
}

fn work(lane: &Lane, (inbox, changed): &(Mutex<Inbox>, Condvar)) {
    loop {
        {
            let mut inbox = lock(inbox);
            while inbox.pending.is_empty() {
                if inbox.closed {
                    return;
                }
                inbox = changed.wait(inbox).unwrap_or_else(PoisonError::into_inner);
            }
        }
        let mut admitted = lane.admit();
        let next = {
            let mut inbox = lock(inbox);
            let next = inbox.pending.pop_front();
            inbox.launching = next.is_some();
            next
        };
        if let Some((ticket, launch)) = next {
            // A callback that panics is the program's failure; the commands behind it are still owed their turn.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(launch));
            admitted.launched();
            // One marker per command: somebody may wait for exactly this one.
            let marker = lane.mark().unwrap_or(UNMARKED);
            drop(admitted);
            let mut inbox = lock(inbox);
            inbox.launching = false;
            ticket.0.store(marker, Ordering::SeqCst);
            changed.notify_all();
        }
    }
}

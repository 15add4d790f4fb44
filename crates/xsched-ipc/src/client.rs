//! The program's end: queues that take a slot in the page.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use xsched_core::sync::Shared;
use xsched_core::{Gate, HwQueue, LevelError, LevelRequest, Link, Nanos, QueueId, RecordedEvent, XQueue};

use crate::agent;
use crate::bell::Bell;
use crate::page::{Page, SLOTS, Slot, Waits};
use crate::waits::WaitBook;

/// A scheduler that gave no sign of life for so long is taken for dead.
pub const PATIENCE: Nanos = Nanos::from_millis(100);

/// Why a queue could not be put under control.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The device cannot be preempted that deep.
    #[error(transparent)]
    Level(#[from] LevelError),
    /// Every slot is taken.
    #[error("this program has {SLOTS} queues under control already; this one runs unscheduled")]
    NoSlot,
    /// No thread could be started.
    #[error("no thread to carry out the scheduler's orders: {0}")]
    NoAgent(#[from] std::io::Error),
}

/// A program's connection to its scheduler.
pub struct Client {
    page: Arc<Page>,
    link: Arc<PageLink>,
    members: Arc<Members>,
    agents_started: Mutex<bool>,
}

/// How this program reaches its scheduler.
pub(crate) struct PageLink {
    pub(crate) page: Arc<Page>,
    bell: Bell,
}

impl Link for PageLink {
    fn ring(&self) {
        self.bell.ring();
        // An edge concerns the watcher too: a queue that became busy will have to be watched for falling silent.
        self.page.orders().bump();
    }

    fn alive(&self) -> bool {
        Nanos::now() - self.page.last_beat() < PATIENCE
    }
}

/// The queues of this program.
#[derive(Default)]
pub(crate) struct Members {
    queues: Mutex<Vec<Weak<JoinedQueue>>>,
    pub(crate) waits: WaitBook,
}

/// An XQueue with a slot in the page. Gives the slot back when dropped.
pub struct JoinedQueue {
    queue: Option<XQueue>,
    slot_number: usize,
    slot: Shared<Slot>,
    page: Arc<Page>,
    link: Arc<PageLink>,
    members: Arc<Members>,
}

impl Client {
    /// Joins a scheduler through the page it made for this program.
    #[must_use]
    pub fn new(page: Arc<Page>, bell: Bell) -> Self {
        let link = Arc::new(PageLink { page: Arc::clone(&page), bell });
        Self { page, link, members: Arc::default(), agents_started: Mutex::new(false) }
    }

    /// Puts a hardware queue under the scheduler's control.
    pub fn join(&self, hw: Arc<dyn HwQueue>, level: LevelRequest) -> Result<Arc<JoinedQueue>, JoinError> {
        hw.capabilities().negotiate(level)?;
        self.start_agents()?;
        let slot_number = self.page.take_slot(hw.device()).ok_or(JoinError::NoSlot)?;
        let slot = self.page.shared_slot(slot_number).ok_or(JoinError::NoSlot)?;
        let gate: Shared<Gate> = slot.project(|slot| &slot.gate);
        let id = QueueId(slot_number as u64);
        let queue = XQueue::new(id, hw, gate, Arc::clone(&self.link) as _, level)?;
        let joined = Arc::new(JoinedQueue {
            queue: Some(queue),
            slot_number,
            slot,
            page: Arc::clone(&self.page),
            link: Arc::clone(&self.link),
            members: Arc::clone(&self.members),
        });
        lock(&self.members.queues).push(Arc::downgrade(&joined));
        self.link.ring();
        Ok(joined)
    }

    fn start_agents(&self) -> std::io::Result<()> {
        let mut started = lock(&self.agents_started);
        if !*started {
            agent::start(&self.link, &self.members)?;
            *started = true;
        }
        Ok(())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The agents hold no members of their own: they end when they wake and find them gone.
        self.page.orders().bump();
    }
}

impl Deref for JoinedQueue {
    type Target = XQueue;
    fn deref(&self) -> &XQueue {
        self.queue.as_ref().expect("taken only when dropped")
    }
}

impl JoinedQueue {
    /// The number of its slot in the page, by which the scheduler knows it.
    #[must_use]
    pub fn slot(&self) -> usize {
        self.slot_number
    }

    /// Says that what is launched here from now on waits for a point on another queue, so that the other is not held
    /// while this one may run.
    pub fn waits_for(self: &Arc<Self>, holder: &Arc<Self>, event: RecordedEvent) {
        if Arc::ptr_eq(self, holder) || holder.has_reached(event) {
            return;
        }
        self.members.waits.add(self, holder, event);
        self.link.ring();
    }

    pub(crate) fn publish_waits(&self, waits: Waits) {
        self.slot.set_waits(waits);
    }
}

impl Drop for JoinedQueue {
    fn drop(&mut self) {
        // First let go what is stopped, then give the slot to others.
        drop(self.queue.take());
        self.page.give_back(self.slot_number);
        self.link.ring();
    }
}

impl Members {
    pub(crate) fn living(&self) -> Vec<Arc<JoinedQueue>> {
        let mut queues = lock(&self.queues);
        queues.retain(|queue| queue.strong_count() > 0);
        queues.iter().filter_map(Weak::upgrade).collect()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! The words by which a process and its scheduler coordinate through the page that they share, beside the gates.
//!
//! They are here, and not with the page, so that `tests/loom_page.rs` can explore the interleavings of both sides. A new page is
//! all zero, which is the initial value of each word.

use std::sync::Arc;

use crate::sync::{AtomicU32, Futex, Ordering, RwLock, fence_for_loom};

/// Whether a notification of the scheduler is pending: then no further one is needed.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct NotificationFlag(AtomicU32);

impl NotificationFlag {
    /// The process has changed the page. Returns whether it has to notify the scheduler.
    #[must_use]
    pub fn notify(&self) -> bool {
        // The page is written first and the flag second; the scheduler writes the flag first and reads the page second. SeqCst on
        // both sides: the scheduler reads what was written, or this process notifies.
        fence_for_loom();
        self.0.swap(1, Ordering::SeqCst) == 0
    }

    /// The scheduler calls this before it reads the page: from now on a change needs a new notification.
    pub fn acknowledge(&self) {
        self.0.store(0, Ordering::SeqCst);
        fence_for_loom();
    }
}

/// Whether a slot of the page belongs to a queue.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct SlotState(AtomicU32);

const FREE: u32 = 0;
/// Allocated, and being initialized.
const ALLOCATED: u32 = 1;
const IN_USE: u32 = 2;

impl SlotState {
    /// Allocates a free slot. The scheduler ignores it until [`SlotState::publish`].
    #[must_use]
    pub fn try_allocate(&self) -> bool {
        self.0.compare_exchange(FREE, ALLOCATED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The slot is initialized.
    pub fn publish(&self) {
        // Release: a scheduler that finds the slot in use reads its fields. Pairs with `is_in_use`.
        self.0.store(IN_USE, Ordering::Release);
    }

    /// Releases the slot.
    pub fn release(&self) {
        // Release: the queue's last accesses happened before those of the next queue. Pairs with `try_allocate`.
        self.0.store(FREE, Ordering::Release);
    }

    /// Whether the slot belongs to a queue and is initialized.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.0.load(Ordering::Acquire) == IN_USE
    }
}

/// Whether the scheduler has found that the process does not run.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct StallFlag(AtomicU32);

impl StallFlag {
    /// The scheduler's finding. It wakes the process's threads afterwards.
    pub fn set(&self, is_stalled: bool) {
        self.0.store(is_stalled.into(), Ordering::SeqCst);
    }

    /// Whether the scheduler has found that the process does not run, and the process has not run since.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst) != 0
    }

    /// The process runs. Returns whether the scheduler has to be notified of that.
    #[must_use]
    pub fn clear(&self) -> bool {
        self.is_set() && self.0.swap(0, Ordering::SeqCst) != 0
    }
}

/// The page and the scheduler to which a process is bound, which can be replaced while threads use them.
#[derive(Debug)]
pub struct Rebindable<T>(RwLock<Arc<T>>);

impl<T> Rebindable<T> {
    /// Starts with the first binding.
    pub fn new(first: Arc<T>) -> Self {
        Self(RwLock::new(first))
    }

    /// The present binding.
    pub fn get(&self) -> Arc<T> {
        Arc::clone(&self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Replaces the binding. Returns the previous one. The caller changes and wakes the futex of the previous one afterwards, so
    /// that threads that sleep there find the new one.
    pub fn replace(&self, next: Arc<T>) -> Arc<T> {
        let mut current = self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        std::mem::replace(&mut *current, next)
    }

    /// Replaces the binding by `next` if it is `expected`. Returns whether it was.
    pub fn replace_if(&self, expected: &Arc<T>, next: Arc<T>) -> bool {
        let mut current = self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let is_expected = Arc::ptr_eq(&current, expected);
        if is_expected {
            *current = next;
        }
        is_expected
    }

    /// The present binding, and the value of its futex to sleep on: a later change of either wakes the thread.
    pub fn observe(&self, futex: impl Fn(&T) -> &Futex) -> (Arc<T>, u32) {
        loop {
            let binding = self.get();
            let seen = futex(&binding).word().load(Ordering::SeqCst);
            // The thread that replaces the binding wakes the sleepers of the old one afterwards. It may have done so before the
            // load.
            if Arc::ptr_eq(&binding, &self.get()) {
                return (binding, seen);
            }
        }
    }
}

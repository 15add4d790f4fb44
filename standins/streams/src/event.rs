//! Events. A wait for an event lasts until it is complete.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// An event, not complete at first.
#[derive(Default)]
pub struct Event {
    is_complete: Mutex<bool>,
    changed: Condvar,
}

impl Event {
    /// An event that is complete.
    #[must_use]
    pub fn completed() -> Self {
        Self { is_complete: Mutex::new(true), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_complete.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is complete.
    pub fn is_complete(&self) -> bool {
        *self.lock()
    }

    /// Completes it, and ends all waits for it.
    pub fn complete(&self) {
        *self.lock() = true;
        self.changed.notify_all();
    }

    /// The event is not complete any more.
    pub fn reset(&self) {
        *self.lock() = false;
    }

    /// Waits until it is complete.
    pub fn wait(&self) {
        drop(self.changed.wait_while(self.lock(), |is_complete| !*is_complete));
    }
}

//! A vendor's handle that our threads use beside the program's.

use std::sync::{PoisonError, RwLock};

/// A handle that can be used until it is taken away. Taking it away waits for those who use it at that moment, so that
/// the program can destroy what it stands for.
#[derive(Debug)]
pub struct RevocableHandle<H>(RwLock<Option<H>>);

impl<H: Copy> RevocableHandle<H> {
    /// Lends out a handle.
    #[must_use]
    pub const fn new(handle: H) -> Self {
        Self(RwLock::new(Some(handle)))
    }

    /// Does something with the handle; none if it was taken away.
    pub fn with<R>(&self, work: impl FnOnce(H) -> R) -> Option<R> {
        let held = self.0.read().unwrap_or_else(PoisonError::into_inner);
        held.map(work)
    }

    /// Takes the handle away. Afterwards nobody uses it.
    pub fn revoke(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

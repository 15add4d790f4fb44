//! A vendor's handle that the library's threads use beside the program's threads.

use std::sync::{PoisonError, RwLock};

/// A handle that can be used until it is revoked. Revoking it waits for the threads that are using it, so that the program
/// can destroy the object afterwards.
#[derive(Debug)]
pub struct RevocableHandle<H>(RwLock<Option<H>>);

impl<H: Copy> RevocableHandle<H> {
    /// A handle that is not revoked.
    #[must_use]
    pub const fn new(handle: H) -> Self {
        Self(RwLock::new(Some(handle)))
    }

    /// Calls `work` with the handle. None if it was revoked.
    pub fn with<R>(&self, work: impl FnOnce(H) -> R) -> Option<R> {
        let handle = self.0.read().unwrap_or_else(PoisonError::into_inner);
        handle.map(work)
    }

    /// Revokes the handle. No thread uses it after this returns.
    pub fn revoke(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

//! A counted reference to a value inside an `Arc` or a mapped page.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{AtomicPtr, Mutex, Ordering, fence_for_loom, lock};

/// What keeps shared values alive.
///
/// # Safety
/// Once `is_permanent` has returned true, the values stay valid for reads until the process ends, also after the last handle on
/// the owner was dropped.
pub unsafe trait Owner: Send + Sync {
    /// Whether the values outlive their owner.
    fn is_permanent(&self) -> bool {
        false
    }
}

// SAFETY: never permanent.
unsafe impl<T: Send + Sync> Owner for Arc<T> {}

/// Like `Arc<T>`, but the value may be part of a larger one, such as a slot of a shared page.
pub struct Shared<T: 'static> {
    value: NonNull<T>,
    owner: Arc<dyn Owner>,
}

impl<T> Shared<T> {
    /// Points to a value inside what `owner` keeps alive.
    ///
    /// # Safety
    /// `value` must stay valid for reads through `&T` for as long as `owner` (or a clone of it) lives.
    #[must_use]
    pub unsafe fn inside(value: NonNull<T>, owner: Arc<dyn Owner>) -> Self {
        Self { value, owner }
    }
}

impl<T> Shared<T> {
    /// Points to a part of the value, with the same owner.
    #[must_use]
    pub fn project<U>(&self, part: impl for<'a> FnOnce(&'a T) -> &'a U) -> Shared<U> {
        Shared { value: NonNull::from(part(self)), owner: Arc::clone(&self.owner) }
    }
}

impl<T: Send + Sync> From<Arc<T>> for Shared<T> {
    fn from(owner: Arc<T>) -> Self {
        Self { value: NonNull::from(&*owner), owner: Arc::new(owner) }
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self { value: self.value, owner: Arc::clone(&self.owner) }
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `value` points into what `owner` keeps alive: `From` takes it from that `Arc`, the caller of `inside`
        // guarantees it, and `project` borrows it from such a value, which cannot be moved while `owner` lives.
        unsafe { self.value.as_ref() }
    }
}

/// A reference that can be redirected to another value while threads use it. Every value that it has pointed to stays valid as
/// long as the reference lives, so that a thread that read a former value can still use it.
pub struct Movable<T: 'static> {
    current: AtomicPtr<T>,
    /// Every value that it has pointed to, except those that are permanent.
    all: Mutex<Vec<Shared<T>>>,
}

impl<T: Send + Sync> Movable<T> {
    /// Points to its first value.
    #[must_use]
    pub fn new(first: Shared<T>) -> Self {
        Self { current: AtomicPtr::new(first.value.as_ptr()), all: Mutex::new(vec![first]) }
    }

    /// The value to which it points now.
    #[must_use]
    #[inline]
    pub fn get(&self) -> &T {
        // SAFETY: `current` is always the address of a value that was added to `all`. Only `redirect` removes values from there,
        // and only permanent ones: the value is valid as long as `self` lives.
        // SeqCst, with the store in `redirect`: a thread that was counted at the old gate and then reads `current` either sees
        // the new gate, or is counted before the moving thread reads the old gate's count.
        unsafe { &*self.current.load(Ordering::SeqCst) }
    }

    /// Points to another value from now on. Returns the value to which it pointed before.
    pub fn redirect(&self, next: Shared<T>) -> Option<Shared<T>> {
        let mut all = lock(&self.all);
        let address = next.value.as_ptr();
        let before = self.current.load(Ordering::SeqCst);
        let before = all.iter().find(|former| former.value.as_ptr() == before).cloned();
        // Threads may still use them, which needs no handle. Without this the list grows with every redirection.
        all.retain(|former| !former.owner.is_permanent());
        // The value may be a former one.
        if !all.iter().any(|former| former.value == next.value) {
            all.push(next);
        }
        self.current.store(address, Ordering::SeqCst);
        fence_for_loom();
        before
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

// SAFETY: a `Shared<T>` hands out only `&T` and moves its owner, so that the rules of `Arc<T>` hold: `T` is `Send` and `Sync`.
unsafe impl<T: Send + Sync> Send for Shared<T> {}
// SAFETY: as above; `&Shared<T>` hands out only `&T` and clones of the counted owner.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

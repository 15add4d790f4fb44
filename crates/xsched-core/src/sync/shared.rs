//! A reference to something that lives in memory whose owner is counted: an `Arc` of its own, or a mapped page.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{AtomicPtr, Mutex, Ordering, fence_for_loom, lock};

/// Like `Arc<T>`, but the value may be part of something larger, such as a slot of a shared page.
pub struct Shared<T: 'static> {
    value: NonNull<T>,
    owner: Arc<dyn Any + Send + Sync>,
}

impl<T> Shared<T> {
    /// Points at a value that lives inside what `owner` keeps alive.
    ///
    /// # Safety
    /// `value` must stay valid for reads through `&T` for as long as `owner` (or a clone of it) lives.
    #[must_use]
    pub unsafe fn inside(value: NonNull<T>, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { value, owner }
    }
}

impl<T> Shared<T> {
    /// Points at a part of the value, with the same owner.
    #[must_use]
    pub fn project<U>(&self, part: impl for<'a> FnOnce(&'a T) -> &'a U) -> Shared<U> {
        Shared { value: NonNull::from(part(self)), owner: Arc::clone(&self.owner) }
    }
}

impl<T: Send + Sync> From<Arc<T>> for Shared<T> {
    fn from(owner: Arc<T>) -> Self {
        Self { value: NonNull::from(&*owner), owner }
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
        // SAFETY: `value` points into what `owner` keeps alive: `From` took it from that very `Arc`, the caller of
        // `inside` promised it, and `project` borrowed it from such a value, which nobody can move or change.
        unsafe { self.value.as_ref() }
    }
}

/// A reference that can be pointed at another value while threads use it. What it ever pointed at stays alive as long
/// as the reference does, so that whoever read the old one may go on using it.
pub struct Movable<T: 'static> {
    current: AtomicPtr<T>,
    all: Mutex<Vec<Shared<T>>>,
}

impl<T: Send + Sync> Movable<T> {
    /// Points at its first value.
    #[must_use]
    pub fn new(first: Shared<T>) -> Self {
        Self { current: AtomicPtr::new(first.value.as_ptr()), all: Mutex::new(vec![first]) }
    }

    /// What it points at now.
    #[must_use]
    #[inline]
    pub fn get(&self) -> &T {
        // SAFETY: `current` always is the address of a value in `all`, which only grows: the value lives as long as
        // `self`. SeqCst, with the store in `point_at`: whoever is counted at the old value and then looks here either
        // sees the new one, or is seen by whoever moved and then looks at the count.
        unsafe { &*self.current.load(Ordering::SeqCst) }
    }

    /// Points at another value from now on. Answers what it pointed at before.
    pub fn point_at(&self, next: Shared<T>) -> Option<Shared<T>> {
        let mut all = lock(&self.all);
        let address = next.value.as_ptr();
        let before = self.current.load(Ordering::SeqCst);
        let before = all.iter().find(|known| known.value.as_ptr() == before).cloned();
        // It may come back to one that it pointed at before.
        if !all.iter().any(|known| known.value == next.value) {
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

// SAFETY: a `Shared<T>` only gives out `&T` and moves its owner, so it is as sendable as `Arc<T>` is: `T` must be both.
unsafe impl<T: Send + Sync> Send for Shared<T> {}
// SAFETY: as above; `&Shared<T>` gives out nothing but `&T` and clones of the counted owner.
unsafe impl<T: Send + Sync> Sync for Shared<T> {}

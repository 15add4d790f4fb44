//! Handles: the numbers of queues and commands. A handle is looked up in every call, so that a stale or invented handle is an
//! error and never an invalid access.
//!
//! ```text
//!   63  60 59          32 31           0
//!   [kind ][ generation ][ slot + 1   ]      a slot that is reused has another generation
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use super::command::Command;
use super::failure::{ApiResult, Failure};
use super::hwqueue::HwQueue;
use super::xqueue::Queue;

/// All handles of the program. They belong to the runtime: a forked child has none of its parent's.
#[derive(Default)]
pub(crate) struct Handles {
    pub(super) hw_queues: HandleMap<HwQueue>,
    pub(super) queues: HandleMap<Queue>,
    pub(super) commands: HandleMap<Command>,
    /// The handles of hardware queues by their keys. Locked while a hardware queue or an XQueue is created or destroyed.
    by_key: Mutex<HashMap<usize, u64>>,
}

impl Handles {
    /// The handles of hardware queues by their keys. The lock excludes the creation and destruction of queues.
    pub(super) fn by_key(&self) -> MutexGuard<'_, HashMap<usize, u64>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The vendor's queue is about to be destroyed. The vendor may reuse its handle for another queue.
    pub(crate) fn forget_vendor_queue(&self, key: usize) {
        self.by_key().remove(&key);
    }
}

/// A type that has handles.
pub(crate) trait HandleKind {
    /// The kind in its handles, 1 to 15.
    const NUMBER: u64;
    /// Its name in error messages.
    const NAME: &'static str;
}

/// Handles of one kind.
pub(crate) struct HandleMap<T>(RwLock<Inner<T>>);

struct Inner<T> {
    slots: Vec<Slot<T>>,
    /// The slot that has been free for the longest time is reused first, so that a stale handle stays invalid as long as
    /// possible.
    free: VecDeque<usize>,
}

struct Slot<T> {
    generation: u32,
    value: Option<Arc<T>>,
}

const GENERATIONS: u32 = (1 << 28) - 1;

impl<T> Default for HandleMap<T> {
    fn default() -> Self {
        Self(RwLock::new(Inner { slots: Vec::new(), free: VecDeque::new() }))
    }
}

impl<T: HandleKind> HandleMap<T> {
    /// Adds the value that `create` returns, and returns its handle.
    pub(super) fn insert(&self, create: impl FnOnce(u64) -> T) -> (u64, Arc<T>) {
        let mut inner = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let slot = inner.free.pop_front().unwrap_or_else(|| {
            inner.slots.push(Slot { generation: 0, value: None });
            inner.slots.len() - 1
        });
        let generation = u64::from(inner.slots[slot].generation);
        let handle = T::NUMBER << 60 | generation << 32 | (slot as u64 + 1);
        let value = Arc::new(create(handle));
        inner.slots[slot].value = Some(Arc::clone(&value));
        (handle, value)
    }

    /// The value of a handle.
    pub(super) fn get(&self, handle: u64) -> ApiResult<Arc<T>> {
        let inner = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let found = inner.find(handle).and_then(|slot| inner.slots[slot].value.as_ref().map(Arc::clone));
        found.ok_or_else(|| unknown_handle::<T>(handle))
    }

    /// Removes a handle, and returns its value.
    pub(super) fn remove(&self, handle: u64) -> ApiResult<Arc<T>> {
        let mut inner = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let slot = inner.find(handle).ok_or_else(|| unknown_handle::<T>(handle))?;
        let value = inner.slots[slot].value.take().ok_or_else(|| unknown_handle::<T>(handle))?;
        inner.slots[slot].generation = (inner.slots[slot].generation + 1) & GENERATIONS;
        inner.free.push_back(slot);
        Ok(value)
    }
}

impl<T: HandleKind> Inner<T> {
    fn find(&self, handle: u64) -> Option<usize> {
        let slot = usize::try_from((handle & u64::from(u32::MAX)).checked_sub(1)?).ok()?;
        let generation = u64::from(self.slots.get(slot)?.generation);
        (handle >> 32 == T::NUMBER << 28 | generation).then_some(slot)
    }
}

/// The error for a handle without a value.
pub(super) fn unknown_handle<T: HandleKind>(handle: u64) -> Failure {
    if handle == 0 {
        Failure::invalid(format_args!("0 is not a valid {} handle", T::NAME))
    } else {
        Failure::not_found(format_args!(
            "{handle:#x} is not a valid {} handle: it was destroyed or never created",
            T::NAME
        ))
    }
}

/// Writes a result to the address that the program passed.
///
/// # Safety
/// `out` is null or may be written.
pub(super) unsafe fn write_result<T>(out: *mut T, value: T) -> ApiResult {
    if out.is_null() {
        return Err(null_result_pointer());
    }
    // SAFETY: not null, and the caller guarantees that it may be written.
    unsafe { out.write(value) };
    Ok(())
}

/// The error for a null result pointer. It is checked before anything is created.
pub(super) fn null_result_pointer() -> Failure {
    Failure::invalid("the pointer for the result is null")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::{kXSchedErrorInvalidValue, kXSchedErrorNotFound};

    struct Thing;
    impl HandleKind for Thing {
        const NUMBER: u64 = 5;
        const NAME: &'static str = "thing";
    }

    fn code<T>(result: ApiResult<T>) -> i32 {
        result.err().map_or(0, |failure| failure.code())
    }

    #[test]
    fn stale_and_foreign_handles_are_not_found_and_zero_is_invalid() {
        let things = HandleMap::<Thing>::default();
        let (first, _) = things.insert(|_| Thing);
        assert!(things.get(first).is_ok());
        assert!(things.remove(first).is_ok());
        let (second, _) = things.insert(|_| Thing);
        assert_ne!(first, second, "the same slot has another handle");
        for stale in [first, 1, u64::MAX, second ^ 1 << 60, second ^ 1 << 32, second + 1] {
            assert_eq!(code(things.get(stale)), kXSchedErrorNotFound, "{stale:#x}");
            assert_eq!(code(things.remove(stale)), kXSchedErrorNotFound, "{stale:#x}");
        }
        assert_eq!(code(things.get(0)), kXSchedErrorInvalidValue);
        assert!(things.get(second).is_ok());
    }
}

//! Handles: numbers that programs know queues and commands by. Each is looked up whenever it comes back, so that one that
//! is stale, or was made up, is an error and nothing worse.
//!
//! ```text
//!   63  60 59          32 31           0
//!   [kind ][ generation ][ place + 1  ]      a place that is used again has another generation
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use super::command::Command;
use super::failure::{Answer, Failure};
use super::hwqueue::HwQueue;
use super::xqueue::Queue;

/// All handles of the program. They are forgotten with the runtime: a child after fork has none of its parent's.
#[derive(Default)]
pub(crate) struct Handles {
    pub(super) hw_queues: Places<HwQueue>,
    pub(super) queues: Places<Queue>,
    pub(super) commands: Places<Command>,
    /// The hardware queue's handle by what the platform tells queues apart by. Held while one of them is made, and while
    /// an XQueue comes or goes.
    known: Mutex<HashMap<usize, u64>>,
}

impl Handles {
    /// What is known by the vendors' handles. Whoever holds it has others wait who make or destroy queues.
    pub(super) fn known(&self) -> MutexGuard<'_, HashMap<usize, u64>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The vendor's queue is about to be destroyed: what has its handle next is another.
    pub(crate) fn forget_vendor_queue(&self, key: usize) {
        self.known().remove(&key);
    }
}

/// What a handle can stand for.
pub(crate) trait Kind {
    /// Tells it from the others, 1 to 15.
    const NUMBER: u64;
    /// For people.
    const NAME: &'static str;
}

/// Handles of one kind.
pub(crate) struct Places<T>(RwLock<Inner<T>>);

struct Inner<T> {
    places: Vec<Place<T>>,
    /// The one that is free for longest is used first, so that a stale handle stays one for long.
    free: VecDeque<usize>,
}

struct Place<T> {
    generation: u32,
    value: Option<Arc<T>>,
}

const GENERATIONS: u32 = (1 << 28) - 1;

impl<T> Default for Places<T> {
    fn default() -> Self {
        Self(RwLock::new(Inner { places: Vec::new(), free: VecDeque::new() }))
    }
}

impl<T: Kind> Places<T> {
    /// Makes a handle for what `make` makes of it.
    pub(super) fn insert(&self, make: impl FnOnce(u64) -> T) -> (u64, Arc<T>) {
        let mut inner = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let place = inner.free.pop_front().unwrap_or_else(|| {
            inner.places.push(Place { generation: 0, value: None });
            inner.places.len() - 1
        });
        let generation = u64::from(inner.places[place].generation);
        let handle = T::NUMBER << 60 | generation << 32 | (place as u64 + 1);
        let value = Arc::new(make(handle));
        inner.places[place].value = Some(Arc::clone(&value));
        (handle, value)
    }

    /// What a handle stands for.
    pub(super) fn get(&self, handle: u64) -> Answer<Arc<T>> {
        let inner = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let found = inner.find(handle).and_then(|place| inner.places[place].value.as_ref().map(Arc::clone));
        found.ok_or_else(|| unknown::<T>(handle))
    }

    /// Forgets a handle. Answers what it stood for.
    pub(super) fn remove(&self, handle: u64) -> Answer<Arc<T>> {
        let mut inner = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let place = inner.find(handle).ok_or_else(|| unknown::<T>(handle))?;
        let value = inner.places[place].value.take().ok_or_else(|| unknown::<T>(handle))?;
        inner.places[place].generation = (inner.places[place].generation + 1) & GENERATIONS;
        inner.free.push_back(place);
        Ok(value)
    }
}

impl<T: Kind> Inner<T> {
    fn find(&self, handle: u64) -> Option<usize> {
        let place = usize::try_from((handle & u64::from(u32::MAX)).checked_sub(1)?).ok()?;
        let generation = u64::from(self.places.get(place)?.generation);
        (handle >> 32 == T::NUMBER << 28 | generation).then_some(place)
    }
}

/// Why there is nothing behind a handle.
pub(super) fn unknown<T: Kind>(handle: u64) -> Failure {
    if handle == 0 {
        Failure::invalid(format_args!("0 is the handle of no {}", T::NAME))
    } else {
        Failure::not_found(format_args!(
            "{handle:#x} is the handle of no {}, or of one that was destroyed",
            T::NAME
        ))
    }
}

/// Writes an answer where the program wants it.
///
/// # Safety
/// `out` is null or points at room for a value.
pub(super) unsafe fn put<T>(out: *mut T, value: T) -> Answer {
    if out.is_null() {
        return Err(no_place());
    }
    // SAFETY: not null, and the caller vouches for the room.
    unsafe { out.write(value) };
    Ok(())
}

/// Nothing is made whose handle could not be told.
pub(super) fn no_place() -> Failure {
    Failure::invalid("a null pointer: no place to put the answer")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::{kXSchedErrorInvalidValue, kXSchedErrorNotFound};

    struct Thing;
    impl Kind for Thing {
        const NUMBER: u64 = 5;
        const NAME: &'static str = "thing";
    }

    fn code<T>(answer: Answer<T>) -> i32 {
        answer.err().map_or(0, |failure| failure.code())
    }

    #[test]
    fn stale_and_foreign_handles_are_not_found_and_zero_is_none() {
        let things = Places::<Thing>::default();
        let (first, _) = things.insert(|_| Thing);
        assert!(things.get(first).is_ok());
        assert!(things.remove(first).is_ok());
        let (second, _) = things.insert(|_| Thing);
        assert_ne!(first, second, "the same place, another handle");
        for stale in [first, 1, u64::MAX, second ^ 1 << 60, second ^ 1 << 32, second + 1] {
            assert_eq!(code(things.get(stale)), kXSchedErrorNotFound, "{stale:#x}");
            assert_eq!(code(things.remove(stale)), kXSchedErrorNotFound, "{stale:#x}");
        }
        assert_eq!(code(things.get(0)), kXSchedErrorInvalidValue);
        assert!(things.get(second).is_ok());
    }
}

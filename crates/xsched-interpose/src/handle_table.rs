//! Maps a vendor's handle to the library's state. A look-up never blocks; changes are rare and take a lock.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::hazard::{self, Guard};

/// Slots in a table. Handles beyond this number are not stored, and their queues are not scheduled.
const SLOTS: usize = 4096;
/// How many slots are searched for a handle.
const MAX_PROBES: usize = 64;

/// Handles and the value of each. Handle 0 is invalid.
pub struct HandleTable<T> {
    slots: Box<[Slot<T>]>,
    /// Held during changes. The values are no longer reachable, but a reader may still use them.
    removed: Mutex<Vec<Removed<T>>>,
}

struct Slot<T> {
    /// Never returns to 0 once it was set, so that a search can stop at the first 0.
    handle: AtomicUsize,
    value: AtomicPtr<T>,
}

struct Removed<T>(*mut T);

// SAFETY: the list owns the value; `T: Send` allows another thread to drop it.
unsafe impl<T: Send> Send for Removed<T> {}

impl<T: Send + Sync> Default for HandleTable<T> {
    fn default() -> Self {
        let empty = || Slot { handle: AtomicUsize::new(0), value: AtomicPtr::default() };
        Self { slots: (0..SLOTS).map(|_| empty()).collect(), removed: Mutex::default() }
    }
}

impl<T: Send + Sync> HandleTable<T> {
    /// The slots that can hold a handle, in the order of the search.
    #[inline]
    fn probe(&self, handle: usize) -> impl Iterator<Item = &Slot<T>> {
        // Handles are addresses or small numbers. A multiplicative hash distributes both.
        let hash = (handle as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let first = usize::try_from(hash).unwrap_or(0) % SLOTS;
        (0..MAX_PROBES).map(move |n| &self.slots[(first + n) % SLOTS])
    }

    /// The value of a handle. A thread can hold four guards at a time, of all tables.
    #[inline]
    pub fn get(&self, handle: usize) -> Option<Guard<'_, T>> {
        for slot in self.probe(handle) {
            // Acquire: pairs with the Release in `insert`, so that the value is visible with its handle.
            match slot.handle.load(Ordering::Acquire) {
                0 => return None,
                other if other != handle => {}
                _ => {
                    let value = hazard::protect(&slot.value)?;
                    // Another handle may have been stored in the slot since, and the value may belong to it.
                    return (slot.handle.load(Ordering::Acquire) == handle).then_some(value);
                }
            }
        }
        None
    }

    /// Stores the value of a handle. Returns the value if there is no slot for it, or if the handle has one.
    pub fn insert(&self, handle: usize, value: T) -> Result<(), T> {
        let mut removed = self.lock();
        free_unprotected(&mut removed);
        if handle == 0 || self.find(handle).is_some() {
            return Err(value);
        }
        let is_free = |slot: &&Slot<T>| {
            slot.handle.load(Ordering::Relaxed) == 0 || slot.value.load(Ordering::Relaxed).is_null()
        };
        let Some(slot) = self.probe(handle).find(is_free) else { return Err(value) };
        slot.handle.store(handle, Ordering::Release);
        slot.value.store(Box::into_raw(Box::new(value)), Ordering::Release);
        Ok(())
    }

    /// Removes a handle, and returns what `last` makes of its value. Threads that already hold a guard keep it.
    pub fn remove<R>(&self, handle: usize, last: impl FnOnce(&T) -> R) -> Option<R> {
        let mut removed = self.lock();
        let slot = self.find(handle)?;
        let value = slot.value.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: values are boxes, freed by `free_unprotected` only, which needs the lock that is held here.
        let result = unsafe { value.as_ref() }.map(last);
        if !value.is_null() {
            removed.push(Removed(value));
        }
        free_unprotected(&mut removed);
        result
    }

    /// The handles whose values satisfy a condition.
    pub fn handles_where(&self, condition: impl Fn(&T) -> bool) -> Vec<usize> {
        let _lock = self.lock();
        let handle_of = |slot: &Slot<T>| {
            // SAFETY: values are boxes, freed by `free_unprotected` only, which needs the lock that is held here.
            let value = unsafe { slot.value.load(Ordering::Acquire).as_ref() };
            value.filter(|value| condition(value)).map(|_| slot.handle.load(Ordering::Relaxed))
        };
        self.slots.iter().filter_map(handle_of).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Removed<T>>> {
        self.removed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of a handle that has a value. The caller holds the lock.
    fn find(&self, handle: usize) -> Option<&Slot<T>> {
        self.probe(handle).find(|slot| {
            slot.handle.load(Ordering::Relaxed) == handle && !slot.value.load(Ordering::Relaxed).is_null()
        })
    }
}

/// Frees the removed values that no reader uses.
fn free_unprotected<T>(removed: &mut Vec<Removed<T>>) {
    if removed.is_empty() {
        return;
    }
    let values: Vec<_> = removed.iter().map(|removed| removed.0.cast()).collect();
    let mut unprotected = hazard::are_unprotected(&values).into_iter();
    removed.retain(|removed| {
        let is_unused = unprotected.next().unwrap_or(false);
        if is_unused {
            // SAFETY: created by `Box::into_raw` in `insert`, unreachable since `remove`, and used by no reader.
            drop(unsafe { Box::from_raw(removed.0) });
        }
        !is_unused
    });
}

impl<T> Drop for HandleTable<T> {
    fn drop(&mut self) {
        let removed = std::mem::take(self.removed.get_mut().unwrap_or_else(PoisonError::into_inner));
        let values = self.slots.iter().map(|slot| slot.value.load(Ordering::Relaxed));
        for value in
            values.chain(removed.into_iter().map(|removed| removed.0)).filter(|value| !value.is_null())
        {
            // SAFETY: a box of this table. A guard borrows the table, so that none exists.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    fn value(table: &HandleTable<usize>, handle: usize) -> Option<usize> {
        table.get(handle).map(|value| *value)
    }

    #[test]
    fn inserted_values_are_found_until_they_are_removed() {
        let table = HandleTable::default();
        for handle in 1..200 {
            table.insert(handle * 4096, handle).unwrap();
        }
        assert_eq!(table.insert(4096, 7), Err(7), "inserted twice");
        assert_eq!(table.insert(0, 7), Err(7), "inserted as the null handle");
        for handle in 1..200 {
            assert_eq!(value(&table, handle * 4096), Some(handle));
        }
        let mut few = table.handles_where(|n| *n < 4);
        few.sort_unstable();
        assert_eq!(few, [4096, 8192, 12288]);
        assert_eq!(table.remove(8192, |n| *n), Some(2));
        assert_eq!(table.remove(8192, |n| *n), None);
        assert_eq!(table.handles_where(|n| *n < 4).len(), 2);
        assert_eq!(value(&table, 8192), None);
        table.insert(8192, 9).unwrap();
        assert_eq!(value(&table, 8192), Some(9));
    }

    #[test]
    fn removed_values_are_freed() {
        let table = HandleTable::default();
        let alive = Arc::new(());
        for handle in 1..100_000_usize {
            table.insert(handle * 64, Arc::clone(&alive)).unwrap();
            table.remove(handle * 64, |_| {}).unwrap();
        }
        assert!(Arc::strong_count(&alive) < 100, "removed values are not freed");
    }

    #[test]
    fn guarded_value_is_not_freed_by_a_remover() {
        struct Canary(AtomicBool);
        impl Drop for Canary {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let (table, stop) = (HandleTable::<Canary>::default(), AtomicBool::new(false));
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    while !stop.load(Ordering::SeqCst) {
                        if let Some(canary) = table.get(64) {
                            std::thread::yield_now();
                            assert!(!canary.0.load(Ordering::SeqCst), "freed while a guard existed");
                        }
                    }
                });
            }
            for _ in 0..20_000 {
                assert!(table.insert(64, Canary(AtomicBool::new(false))).is_ok());
                table.remove(64, |_| {}).unwrap();
            }
            stop.store(true, Ordering::SeqCst);
        });
    }
}

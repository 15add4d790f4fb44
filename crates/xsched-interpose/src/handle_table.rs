//! From a vendor's handle to what we know about it. Looking up waits for nobody; changing it is rare.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::hazard;

/// Places in a table. More handles than this at once are not found, and so left alone.
const PLACES: usize = 4096;
/// How far from its home a handle may lie.
const FURTHEST: usize = 64;

/// Handles and what belongs to each. Handle 0 is none.
pub struct Table<T> {
    places: Box<[Place<T>]>,
    changing: Mutex<Vec<Retired<T>>>,
}

struct Place<T> {
    /// Never goes back to 0 once it was a handle, so that a search may end at the first 0.
    handle: AtomicUsize,
    value: AtomicPtr<T>,
}

/// Out of sight, but somebody may still read it.
struct Retired<T>(*mut T);

// SAFETY: a retired value is owned by the list it is in; dropping it on another thread is what `T: Send` allows.
unsafe impl<T: Send> Send for Retired<T> {}

impl<T: Send + Sync> Default for Table<T> {
    fn default() -> Self {
        let empty = || Place { handle: AtomicUsize::new(0), value: AtomicPtr::default() };
        Self { places: (0..PLACES).map(|_| empty()).collect(), changing: Mutex::default() }
    }
}

impl<T: Send + Sync> Table<T> {
    /// The places a handle may be in, nearest first.
    fn search(&self, handle: usize) -> impl Iterator<Item = &Place<T>> {
        // Handles are addresses or small numbers: multiplying spreads both.
        let spread = (handle as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let home = usize::try_from(spread).unwrap_or(0) % PLACES;
        (0..FURTHEST).map(move |n| &self.places[(home + n) % PLACES])
    }

    /// Calls `work` with what is known about a handle. Not to be used inside `work` again.
    #[inline]
    pub fn with<R>(&self, handle: usize, work: impl FnOnce(Option<&T>) -> R) -> R {
        for place in self.search(handle) {
            // Acquire, with the Release in `insert`: who sees the handle sees its value.
            match place.handle.load(Ordering::Acquire) {
                0 => break,
                other if other != handle => {}
                _ => {
                    // Another handle may have taken the place meanwhile, and its value come after it.
                    let still = |_: &&T| place.handle.load(Ordering::Acquire) == handle;
                    return hazard::read(&place.value, |value| work(value.filter(still)));
                }
            }
        }
        work(None)
    }

    /// Notes what is known about a handle. Answers with the value if there is no room, or it is there already.
    pub fn insert(&self, handle: usize, value: T) -> Result<(), T> {
        let mut changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        sweep(&mut changing);
        if handle == 0 || self.find(handle).is_some() {
            return Err(value);
        }
        let free = |place: &&Place<T>| {
            place.handle.load(Ordering::Relaxed) == 0 || place.value.load(Ordering::Relaxed).is_null()
        };
        let Some(place) = self.search(handle).find(free) else { return Err(value) };
        place.handle.store(handle, Ordering::Release);
        place.value.store(Box::into_raw(Box::new(value)), Ordering::Release);
        Ok(())
    }

    /// Forgets a handle: nobody who comes later finds it. Who has found it may still use it. Answers what `last` makes
    /// of the value, if there is one.
    pub fn remove<R>(&self, handle: usize, last: impl FnOnce(&T) -> R) -> Option<R> {
        let mut changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let place = self.find(handle)?;
        let value = place.value.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: values are boxes, freed by `sweep` only, which needs the lock we hold.
        let answer = unsafe { value.as_ref() }.map(last);
        if !value.is_null() {
            changing.push(Retired(value));
        }
        sweep(&mut changing);
        answer
    }

    /// The handles of all values that are so.
    pub fn which(&self, is_so: impl Fn(&T) -> bool) -> Vec<usize> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |place: &Place<T>| {
            // SAFETY: values are boxes, freed by `sweep` only, which needs the lock we hold.
            let value = unsafe { place.value.load(Ordering::Acquire).as_ref() };
            value.filter(|value| is_so(value)).map(|_| place.handle.load(Ordering::Relaxed))
        };
        self.places.iter().filter_map(of).collect()
    }

    /// The place of a handle that has a value. For who holds the lock.
    fn find(&self, handle: usize) -> Option<&Place<T>> {
        self.search(handle).find(|place| {
            place.handle.load(Ordering::Relaxed) == handle && !place.value.load(Ordering::Relaxed).is_null()
        })
    }
}

/// Frees what nobody reads any more.
fn sweep<T>(retired: &mut Vec<Retired<T>>) {
    if retired.is_empty() {
        return;
    }
    let values: Vec<_> = retired.iter().map(|retired| retired.0.cast()).collect();
    let mut unused = hazard::are_unused(&values).into_iter();
    retired.retain(|retired| {
        let free = unused.next().unwrap_or(false);
        if free {
            // SAFETY: made by `Box::into_raw` in `insert`, out of sight since `remove`, and not in use.
            drop(unsafe { Box::from_raw(retired.0) });
        }
        !free
    });
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        let retired = std::mem::take(self.changing.get_mut().unwrap_or_else(PoisonError::into_inner));
        let values = self.places.iter().map(|place| place.value.load(Ordering::Relaxed));
        for value in
            values.chain(retired.into_iter().map(|retired| retired.0)).filter(|value| !value.is_null())
        {
            // SAFETY: a box of ours; nobody reads a table that is dropped.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn what_was_inserted_is_found_until_it_is_removed() {
        let table = Table::default();
        for handle in 1..200 {
            table.insert(handle * 4096, handle).unwrap();
        }
        assert_eq!(table.insert(4096, 7), Err(7), "inserted twice");
        assert_eq!(table.insert(0, 7), Err(7), "inserted as nothing");
        for handle in 1..200 {
            table.with(handle * 4096, |found| assert_eq!(found, Some(&handle)));
        }
        let mut few = table.which(|n| *n < 4);
        few.sort_unstable();
        assert_eq!(few, [4096, 8192, 12288]);
        assert_eq!(table.remove(8192, |n| *n), Some(2));
        assert_eq!(table.remove(8192, |n| *n), None);
        assert_eq!(table.which(|n| *n < 4).len(), 2);
        table.with(8192, |found| assert_eq!(found, None));
        table.insert(8192, 9).unwrap();
        table.with(8192, |found| assert_eq!(found, Some(&9)));
    }

    #[test]
    fn handles_may_come_and_go_for_ever() {
        let table = Table::default();
        let alive = Arc::new(());
        for handle in 1..100_000_usize {
            table.insert(handle * 64, Arc::clone(&alive)).unwrap();
            table.remove(handle * 64, |_| {}).unwrap();
        }
        assert!(Arc::strong_count(&alive) < 100, "what was removed is kept");
    }

    #[test]
    fn who_reads_keeps_what_another_removes() {
        struct Canary(AtomicBool);
        impl Drop for Canary {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let (table, stop) = (Table::default(), AtomicBool::new(false));
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    while !stop.load(Ordering::SeqCst) {
                        table.with(64, |found: Option<&Canary>| {
                            let dead = found.is_some_and(|canary| {
                                std::thread::yield_now();
                                canary.0.load(Ordering::SeqCst)
                            });
                            assert!(!dead, "freed while it was read");
                        });
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

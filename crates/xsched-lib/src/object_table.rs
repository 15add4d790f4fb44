//! What a platform knows about the vendor's objects, such as the context of each tracked stream.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Facts about objects, by the address of each object or by the key of a queue.
pub(crate) struct ObjectTable<T>(Mutex<BTreeMap<usize, T>>);

impl<T: Copy> ObjectTable<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an object. An older one with the same key was destroyed.
    pub(crate) fn record(&self, key: usize, fact: T) {
        self.lock().insert(key, fact);
    }

    /// What was recorded about an object.
    pub(crate) fn get(&self, key: usize) -> Option<T> {
        self.lock().get(&key).copied()
    }

    /// The program is about to destroy an object.
    pub(crate) fn forget(&self, key: usize) {
        self.lock().remove(&key);
    }

    /// The objects that are destroyed together with another one, which are forgotten.
    pub(crate) fn take(&self, is_destroyed: impl Fn(&T) -> bool) -> Vec<usize> {
        let mut objects = self.lock();
        let destroyed: Vec<_> =
            objects.iter().filter(|(_, fact)| is_destroyed(fact)).map(|(key, _)| *key).collect();
        objects.retain(|key, _| !destroyed.contains(key));
        destroyed
    }
}

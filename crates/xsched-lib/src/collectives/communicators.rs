//! The communicators of this process.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use xsched_core::Nanos;

/// The hash of a unique id. All ranks of a communicator have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KeyHash(u128);

impl KeyHash {
    /// FNV-1a. The service joins processes of one user only, so that a collision that a program makes concerns its own user.
    pub(super) fn of(bytes: &[u8]) -> Self {
        const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        Self(bytes.iter().fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME)))
    }

    /// A key that no other process has: for communicators between devices of one process.
    pub(super) fn unique() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        // The address differs between processes with the same id in different namespaces, and the time differs between
        // processes that had the same id one after the other.
        let parts = [std::process::id().into(), Nanos::now().0, number, (&raw const LAST).addr() as u64];
        Self::of(&parts.map(u64::to_le_bytes).concat())
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

struct Communicator {
    /// A child after fork has the list of its parent, and none of its communicators.
    process: u32,
    address: usize,
    key: KeyHash,
}

/// The communicators that exist, by the addresses of their handles.
pub(super) struct Communicators(Mutex<Vec<Communicator>>);

pub(super) static COMMUNICATORS: Communicators = Communicators(Mutex::new(Vec::new()));

/// How often the lock is tried. It is held for microseconds, except in a child whose parent forked meanwhile: there it is
/// never released.
const LOCK_ATTEMPTS: usize = 10_000;

impl Communicators {
    fn lock(&self) -> Option<MutexGuard<'_, Vec<Communicator>>> {
        for _ in 0..LOCK_ATTEMPTS {
            match self.0.try_lock() {
                Ok(mut list) => {
                    let process = std::process::id();
                    list.retain(|communicator| communicator.process == process);
                    return Some(list);
                }
                Err(TryLockError::Poisoned(error)) => return Some(error.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
        None
    }

    pub(super) fn add(&self, address: usize, key: KeyHash) {
        if let Some(mut list) = self.lock() {
            list.push(Communicator { process: std::process::id(), address, key });
        }
    }

    pub(super) fn key_of(&self, address: usize) -> Option<KeyHash> {
        Some(self.lock()?.iter().find(|communicator| communicator.address == address)?.key)
    }

    /// Removes a communicator. Returns its key.
    pub(super) fn remove(&self, address: usize) -> Option<KeyHash> {
        let mut list = self.lock()?;
        let place = list.iter().position(|communicator| communicator.address == address)?;
        Some(list.swap_remove(place).key)
    }

    /// The keys of all communicators, each once.
    pub(super) fn keys(&self) -> Vec<KeyHash> {
        let mut keys: Vec<_> =
            self.lock().iter().flat_map(|list| list.iter()).map(|communicator| communicator.key).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_reported_until_the_last_communicator_with_it_is_released() {
        let all = Communicators(Mutex::new(Vec::new()));
        let (a, b) = (KeyHash::of(b"a"), KeyHash::of(b"b"));
        all.add(16, a);
        all.add(32, b);
        all.add(48, all.key_of(16).unwrap());
        assert_eq!(all.keys().len(), 2);
        assert_eq!(all.remove(16), Some(a));
        assert_eq!(all.keys().len(), 2, "the derived communicator has the key");
        all.remove(48);
        assert_eq!(all.keys(), [b]);
        assert_eq!(all.remove(48), None);
    }

    #[test]
    fn communicators_of_the_parent_are_not_those_of_a_child() {
        let all = Communicators(Mutex::new(Vec::new()));
        all.0.lock().unwrap().push(Communicator { process: 1, address: 16, key: KeyHash::of(b"a") });
        assert_eq!(all.keys(), []);
    }

    #[test]
    fn hash_has_32_digits_and_unique_keys_differ() {
        assert_eq!(KeyHash::of(b"").to_string(), "6c62272e07bb014262b821756295c58d");
        assert_ne!(KeyHash::unique(), KeyHash::unique());
    }
}

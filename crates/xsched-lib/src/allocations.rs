//! The device memory that the program has allocated, by the vendor's address or handle.
//!
//! ```text
//!   allocate: reserve ─► the vendor's function ─► success: stored under its address    failure: released
//!                └─► over the limit: the vendor's function is not called
//!   free:     taken out of the table ─► the vendor's function ─► success: released     failure: stored again
//! ```
//! An allocation is taken out of the table before the vendor's function frees it: as soon as it is free, another thread can
//! allocate memory at the same address.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use xsched_core::DeviceId;
use xsched_interpose::run_isolated;
use xsched_ipc::memory::{OverLimit, format_size};
use xsched_ipc::report::report_to_user;

use crate::runtime::memory_account as account;

/// What the program may allocate on a device with `total` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capacity {
    /// The limit in bytes.
    pub(crate) limit: u64,
    /// How much of it the program and its children have allocated.
    pub(crate) used: u64,
}

impl Capacity {
    /// None without a limit.
    pub(crate) fn of(device: DeviceId, total: u64) -> Option<Self> {
        let limit = account().limit(total)?;
        Some(Self { limit, used: account().used_together(device) })
    }

    /// How much of the limit is left.
    pub(crate) fn left(self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

/// Device memory that the account of this process contains until the value is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    device: DeviceId,
    bytes: u64,
}

impl Reservation {
    /// Reserves `bytes` on a device with `total` bytes, unless that exceeds the limit.
    pub(crate) fn reserve(device: DeviceId, total: u64, bytes: u64) -> Result<Self, OverLimit> {
        // No device has as much. The account adds amounts, which must not overflow.
        let bytes = bytes.min(1 << 56);
        account().reserve(device, total, bytes)?;
        Ok(Self { device, bytes })
    }

    /// Counts `bytes` that the program has allocated already, whatever the limit.
    pub(crate) fn of_allocated(device: DeviceId, bytes: u64) -> Self {
        account().add(device, bytes);
        Self { device, bytes }
    }

    /// Takes over what another reservation on the same device has counted.
    pub(crate) fn absorb(&mut self, mut other: Self) {
        debug_assert_eq!(self.device, other.device);
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Corrects the amount, once the vendor's library has said what it allocated.
    pub(crate) fn resize(&mut self, bytes: u64) {
        if bytes > self.bytes {
            account().add(self.device, bytes - self.bytes);
        } else if bytes < self.bytes {
            account().release(self.device, self.bytes - bytes);
        }
        self.bytes = bytes;
    }

    /// Where the memory is.
    pub(crate) fn device(&self) -> DeviceId {
        self.device
    }

    /// How much is counted.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        account().release(self.device, self.bytes);
    }
}

struct Allocation {
    _counted: Reservation,
    /// What the memory is freed with: a context, or another number of the platform.
    owner: usize,
}

/// The allocations of one kind, by address or handle.
pub(crate) struct Allocations {
    table: PerProcess<BTreeMap<usize, Allocation>>,
}

impl Allocations {
    pub(crate) const fn new() -> Self {
        Self { table: PerProcess::new() }
    }

    /// Calls `real`, which allocates memory and returns 0 on success. `reserve` counts the memory; it returns none for memory that
    /// is not counted. `key` returns the address or handle that `real` has written.
    pub(crate) fn allocate(
        &self,
        owner: usize,
        reserve: impl FnOnce() -> Result<Option<Reservation>, OverLimit>,
        real: impl FnOnce() -> i32,
        key: impl FnOnce(&mut Reservation) -> usize,
    ) -> Result<i32, OverLimit> {
        let mut reserved = Ok(None);
        run_isolated(|| reserved = reserve());
        let reservation = reserved?;
        let code = real();
        run_isolated(|| {
            if let Some(mut reservation) = reservation.filter(|_| code == 0) {
                let key = key(&mut reservation);
                self.insert(key, owner, reservation);
            }
        });
        Ok(code)
    }

    /// Calls `real`, which frees memory and returns 0 on success.
    pub(crate) fn free(&self, key: usize, real: impl FnOnce() -> i32) -> i32 {
        let mut removed = None;
        run_isolated(|| removed = self.table.lock().remove(&key));
        let code = real();
        run_isolated(|| {
            if let Some(allocation) = removed.filter(|_| code != 0) {
                // Unless another thread has freed it and allocated at the same address.
                self.table.lock().entry(key).or_insert(allocation);
            }
        });
        code
    }

    /// Stores an allocation. One that is stored under the same key was freed in a way that no hook has seen.
    pub(crate) fn insert(&self, key: usize, owner: usize, reservation: Reservation) {
        self.table.lock().insert(key, Allocation { _counted: reservation, owner });
    }

    /// Whether an allocation is stored under this key.
    pub(crate) fn contains(&self, key: usize) -> bool {
        self.table.lock().contains_key(&key)
    }

    /// Releases everything of `owner`, which the vendor's library has freed.
    pub(crate) fn release_owned_by(&self, owner: usize) {
        self.table.lock().retain(|_, allocation| allocation.owner != owner);
    }

    /// Calls `real`, which frees everything of `owner` and returns 0 on success.
    pub(crate) fn free_owned_by(&self, owner: usize, real: impl FnOnce() -> i32) -> i32 {
        let mut removed = BTreeMap::new();
        run_isolated(|| {
            let mut table = self.table.lock();
            let all = std::mem::take(&mut *table);
            (removed, *table) = all.into_iter().partition(|(_, allocation)| allocation.owner == owner);
        });
        let code = real();
        run_isolated(|| {
            if code == 0 {
                drop(removed);
            } else {
                self.table.lock().extend(removed);
            }
        });
        code
    }
}

/// Writes one line in the life of the process: an allocation of `bytes` was refused.
pub(crate) fn report_refusal(device: DeviceId, bytes: u64, over: OverLimit) {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(|path| path.file_name()).unwrap_or_default().to_string_lossy();
    let OverLimit { limit, used } = over;
    let [bytes, used, limit] = [bytes, used, limit].map(format_size);
    report_to_user(
        &IS_REPORTED,
        format_args!(
            "{program}: out of memory on device {device}: {bytes} requested, {used} of {limit} in use; the limit is that of \
             XSCHED_MEMORY or of the service"
        ),
    );
}

/// A value behind a lock, of this process only. A child after fork begins with a new one: a thread of the parent may have held
/// the lock at the fork, and the vendor's memory is not inherited.
pub(crate) struct PerProcess<T> {
    state: AtomicPtr<State<T>>,
}

struct State<T> {
    process: u32,
    value: Mutex<T>,
}

impl<T: Default> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self { state: AtomicPtr::new(std::ptr::null_mut()) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.state().value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> &State<T> {
        let process = std::process::id();
        loop {
            // Acquire: pairs with the Release of the exchange, so that the contents are visible with the address.
            let known = self.state.load(Ordering::Acquire);
            // SAFETY: every address that is stored was leaked below.
            if let Some(state) = unsafe { known.as_ref() }.filter(|state| state.process == process) {
                return state;
            }
            let new = Box::into_raw(Box::new(State { process, value: Mutex::default() }));
            if self.state.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: allocated above, and not shared.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use xsched_core::DeviceKind;

    use super::*;

    const TOTAL: u64 = 1 << 30;

    /// A device of its own for each test: the account belongs to the process.
    fn device(number: u32) -> DeviceId {
        DeviceId::new(DeviceKind::Gpu, 0xfd00_0000 + 8 * number)
    }

    fn used(device: DeviceId) -> u64 {
        account().used_together(device)
    }

    #[test]
    fn memory_is_counted_from_a_successful_allocation_to_a_successful_free() {
        let (table, device) = (Allocations::new(), device(0));
        let reserve = || Reservation::reserve(device, TOTAL, 100).map(Some);
        assert_eq!(table.allocate(1, reserve, || 2, |_| 0x1000), Ok(2));
        assert_eq!(used(device), 0, "the vendor's function has failed");
        let while_allocating = Cell::new(0);
        let real = || {
            while_allocating.set(used(device));
            0
        };
        assert_eq!(table.allocate(1, reserve, real, |_| 0x1000), Ok(0));
        assert_eq!((while_allocating.get(), used(device)), (100, 100));
        assert_eq!(table.free(0x1000, || 1), 1);
        assert_eq!(used(device), 100, "it was not freed");
        assert_eq!(table.free(0x1000, || 0), 0);
        assert_eq!(used(device), 0);
        assert_eq!(table.free(0x1000, || 0), 0, "unknown memory is freed too");
        assert_eq!(used(device), 0);
    }

    #[test]
    fn refused_allocation_does_not_reach_the_vendor() {
        let table = Allocations::new();
        let over = OverLimit { limit: 10, used: 5 };
        assert_eq!(table.allocate(1, || Err(over), || unreachable!(), |_| 1), Err(over));
    }

    #[test]
    fn allocation_at_an_address_that_was_freed_meanwhile_is_kept() {
        let (table, device) = (Allocations::new(), device(1));
        table.insert(0x1000, 1, Reservation::of_allocated(device, 100));
        let real = || {
            // Another thread allocates the memory that this one has just freed.
            table.insert(0x1000, 1, Reservation::of_allocated(device, 30));
            0
        };
        table.free(0x1000, real);
        assert_eq!(used(device), 30);
        table.insert(0x1000, 1, Reservation::of_allocated(device, 7));
        assert_eq!(used(device), 7, "the free before it was not seen");
    }

    #[test]
    fn memory_ends_with_its_owner() {
        let (table, first, second) = (Allocations::new(), device(2), device(3));
        table.insert(1, 10, Reservation::of_allocated(first, 1));
        table.insert(2, 10, Reservation::of_allocated(first, 2));
        table.insert(3, 11, Reservation::of_allocated(first, 4));
        table.insert(4, 11, Reservation::of_allocated(second, 8));
        assert_eq!(table.free_owned_by(10, || 1), 1);
        assert_eq!((used(first), used(second)), (7, 8), "nothing was freed");
        assert_eq!(table.free_owned_by(10, || 0), 0);
        assert_eq!((used(first), used(second)), (4, 8));
        table.release_owned_by(11);
        assert_eq!((used(first), used(second)), (0, 0));
    }

    #[test]
    fn amount_is_corrected() {
        let device = device(4);
        let mut reservation = Reservation::of_allocated(device, 100);
        reservation.resize(150);
        assert_eq!((used(device), reservation.bytes()), (150, 150));
        reservation.resize(20);
        assert_eq!(used(device), 20);
        assert_eq!(reservation.device(), device);
        reservation.absorb(Reservation::of_allocated(device, 5));
        assert_eq!((used(device), reservation.bytes()), (25, 25));
        drop(reservation);
        assert_eq!(used(device), 0);
    }

    #[test]
    fn amount_that_no_device_has_leaves_the_others_counted() {
        let device = device(5);
        let _other = Reservation::of_allocated(device, 100);
        drop(Reservation::reserve(device, TOTAL, u64::MAX));
        assert_eq!(used(device), 100);
    }

    #[test]
    fn panic_while_counting_forwards_the_call() {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let table = Allocations::new();
        let result = table.allocate(1, || panic!("reserve"), || 0, |_| 1);
        std::panic::set_hook(before);
        assert_eq!(result, Ok(0));
    }
}

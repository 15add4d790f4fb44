//! The memory that the processes of a group share to stay within a common limit: `xsched_core::memory_protocol` has the rules.
//!
//! The service creates it, passes it to each member, and clears the slots of members that have exited. It trusts nothing that it
//! reads there: a member that writes invalid amounts harms only its own group.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use xsched_core::memory_protocol::{MemorySlot, reserve, used_on};
use xsched_core::{DeviceId, Nanos};

use crate::page::PageError;
use crate::sealed_memory;

/// `XSCHMEMO`, read as a little-endian number.
const MAGIC: u64 = u64::from_le_bytes(*b"XSCHMEMO");
/// Incremented with every change of the layout.
const VERSION: u32 = 1;
/// The number of slots: members times devices.
const SLOTS: usize = 1_022;
/// How long an allocation waits while other members of the group decide.
const DECISION_TIMEOUT: Nanos = Nanos::from_millis(10);
/// How often it looks meanwhile.
const DECISION_POLL_INTERVAL: Duration = Duration::from_micros(50);

#[repr(C, align(64))]
struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    /// Slots from this index on have never been used.
    slot_limit: AtomicU32,
}

const SIZE: usize = size_of::<Header>() + SLOTS * size_of::<MemorySlot>();
const _: () = assert!(SIZE == 32_768 && size_of::<MemorySlot>() == 32);

/// The mapped memory of a group.
#[derive(Debug)]
pub(crate) struct MemoryGroup {
    base: NonNull<Header>,
}

// SAFETY: everything behind `base` is atomics; only this value owns the mapping.
unsafe impl Send for MemoryGroup {}
// SAFETY: as above.
unsafe impl Sync for MemoryGroup {}

impl MemoryGroup {
    /// Creates the memory of a group, on the side of the service.
    pub(crate) fn create() -> Result<(Self, OwnedFd), PageError> {
        let fd = sealed_memory::create("xsched-memory", SIZE)?;
        let group = Self { base: sealed_memory::map(&fd, SIZE)?.cast() };
        group.header().version.store(VERSION, Ordering::Relaxed);
        // Release: a process that reads the magic number reads the version too. Pairs with the Acquire in `attach`.
        group.header().magic.store(MAGIC, Ordering::Release);
        Ok((group, fd))
    }

    /// Checks and maps the memory that the service passed to this process.
    pub(crate) fn attach(fd: &OwnedFd) -> Result<Self, PageError> {
        let size = rustix::fs::fstat(fd).map_or(0, |stat| stat.st_size);
        if usize::try_from(size) != Ok(SIZE) || !sealed_memory::is_sealed(fd) {
            return Err(PageError::NotAPage("wrong size, or not sealed"));
        }
        let group = Self { base: sealed_memory::map(fd, SIZE)?.cast() };
        if group.header().magic.load(Ordering::Acquire) != MAGIC {
            return Err(PageError::NotAPage("wrong magic number"));
        }
        match group.header().version.load(Ordering::Relaxed) {
            VERSION => Ok(group),
            theirs => Err(PageError::OtherVersion { theirs, ours: VERSION }),
        }
    }

    fn header(&self) -> &Header {
        // SAFETY: SIZE bytes are mapped at `base`, page-aligned and so aligned for `Header`; all its fields are atomics, for which
        // every bit pattern is valid.
        unsafe { self.base.as_ref() }
    }

    fn all_slots(&self) -> &[MemorySlot] {
        // SAFETY: SLOTS slots follow the header within the SIZE mapped bytes, and 64 is a multiple of their alignment; they are
        // atomics, for which every bit pattern is valid.
        unsafe { std::slice::from_raw_parts(self.base.add(1).cast::<MemorySlot>().as_ptr(), SLOTS) }
    }

    /// The slots that may be in use.
    fn slots(&self) -> &[MemorySlot] {
        let limit = self.header().slot_limit.load(Ordering::SeqCst) as usize;
        &self.all_slots()[..limit.min(SLOTS)]
    }

    /// Claims a slot for a member that has `used` bytes on `device`. None if all are in use.
    pub(crate) fn claim(&self, member: u64, device: DeviceId, used: u64) -> Option<usize> {
        let slots = self.all_slots();
        // The slot counts before it is claimed: whatever is entered there, no other member misses it.
        let index = (0..slots.len()).find(|index| {
            let end = u32::try_from(index + 1).unwrap_or(0);
            self.header().slot_limit.fetch_max(end, Ordering::SeqCst);
            slots[*index].try_claim(member, device.0, used)
        })?;
        Some(index)
    }

    /// Whether the slot still belongs to the member: the service frees the slots of members that have left.
    pub(crate) fn is_claimed(&self, index: usize, member: u64) -> bool {
        self.slots().get(index).is_some_and(|slot| slot.belongs_to(member))
    }

    /// Sets what the member of a slot uses, whatever the limit.
    pub(crate) fn set_used(&self, index: usize, used: u64) {
        if let Some(slot) = self.slots().get(index) {
            slot.set_used(used);
        }
    }

    /// Reserves `bytes` for the member of a slot. Fails with what all members use, if that would exceed the limit. Waits up to
    /// [`DECISION_TIMEOUT`] while others decide.
    pub(crate) fn reserve(&self, index: usize, bytes: u64, limit: u64) -> Result<(), u64> {
        let mut deadline = None;
        reserve(self.slots(), index, bytes, limit, || {
            let now = Nanos::now();
            let deadline = *deadline.get_or_insert(now + DECISION_TIMEOUT);
            std::thread::sleep(DECISION_POLL_INTERVAL);
            now < deadline
        })
    }

    /// What all members use on a device.
    pub(crate) fn used_on(&self, device: DeviceId) -> u64 {
        used_on(self.slots(), device.0)
    }

    /// Frees the slots of a member that has left.
    pub(crate) fn remove_member(&self, member: u64) {
        self.slots().iter().filter(|slot| slot.belongs_to(member)).for_each(MemorySlot::free);
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // SAFETY: the mapping has this size, and no reference outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), SIZE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceId = DeviceId(7);

    #[test]
    fn members_share_what_they_use_and_a_removed_one_makes_room() {
        let (service, fd) = MemoryGroup::create().unwrap();
        let (a, b) = (MemoryGroup::attach(&fd).unwrap(), MemoryGroup::attach(&fd).unwrap());
        let (of_a, of_b) = (a.claim(1, DEVICE, 5).unwrap(), b.claim(2, DEVICE, 0).unwrap());
        assert_eq!(b.reserve(of_b, 6, 10), Err(5));
        assert_eq!(b.reserve(of_b, 5, 10), Ok(()));
        assert_eq!(service.used_on(DEVICE), 10);
        service.remove_member(1);
        assert!(!a.is_claimed(of_a, 1) && b.is_claimed(of_b, 2));
        assert_eq!(b.reserve(of_b, 5, 10), Ok(()));
    }

    #[test]
    fn claim_fails_when_all_slots_are_in_use_and_slots_are_reused() {
        let (group, _fd) = MemoryGroup::create().unwrap();
        let claimed: Vec<_> = (0..SLOTS).map(|member| group.claim(member as u64 + 1, DEVICE, 1)).collect();
        assert!(claimed.iter().all(Option::is_some));
        assert_eq!(group.claim(5_000, DEVICE, 1), None);
        group.remove_member(10);
        assert_eq!(group.claim(5_000, DEVICE, 1), Some(9));
    }

    #[test]
    fn other_files_are_rejected_and_invalid_headers_tolerated() {
        let other = sealed_memory::create("x", SIZE).unwrap();
        assert!(MemoryGroup::attach(&other).is_err());
        let small = sealed_memory::create("x", 4_096).unwrap();
        assert!(MemoryGroup::attach(&small).is_err());
        let (group, _fd) = MemoryGroup::create().unwrap();
        group.header().slot_limit.store(u32::MAX, Ordering::SeqCst);
        assert_eq!(group.used_on(DEVICE), 0);
        group.set_used(SLOTS + 5, 1);
        assert!(!group.is_claimed(SLOTS + 5, 0));
    }
}

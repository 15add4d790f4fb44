//! How the processes of a group stay within a common limit of device memory, without a lock that a killed process could keep.
//!
//! ```text
//!   slot 0: member 7, device A │ used 10 GiB │ pending 2 GiB     one slot for each member and device
//!   slot 1: member 8, device A │ used  4 GiB │ pending 0         in use is the sum over all slots of the device
//! ```
//!
//! A member publishes what it is about to allocate as *pending*, and then adds up what all members have and have pending. If that is
//! within the limit, the pending amount becomes used. Of two members that publish at the same time, at least one sees the other, so
//! the limit is never exceeded. If both amounts together do not fit, the member in the later slot withdraws its own until the
//! other one has decided, so that one of them succeeds if it fits.
//!
//! It is here, and not with the memory that the processes share, so that `tests/loom_memory.rs` can explore the interleavings. New
//! slots are all zero.

use crate::sync::{AtomicU64, Ordering, fence_for_loom};

/// The memory of one member on one device.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(C))]
pub struct MemorySlot {
    /// The number of the member; 0 if the slot is free.
    member: AtomicU64,
    device: AtomicU64,
    used: AtomicU64,
    pending: AtomicU64,
}

/// What a member sees of a device.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    used: u64,
    pending_before: u64,
    pending_after: u64,
}

impl MemorySlot {
    /// Claims a free slot for a member that has `used` bytes on `device`. Returns whether it was free. `member` is not 0.
    #[must_use]
    pub fn try_claim(&self, member: u64, device: u64, used: u64) -> bool {
        if self.member.compare_exchange(0, member, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            return false;
        }
        // The device first: another member counts the amount only after it has read the device.
        self.device.store(device, Ordering::SeqCst);
        self.used.store(used, Ordering::SeqCst);
        fence_for_loom();
        true
    }

    /// Whether the slot belongs to this member.
    #[must_use]
    pub fn belongs_to(&self, member: u64) -> bool {
        self.member.load(Ordering::SeqCst) == member
    }

    /// Clears and frees the slot. For its member, and for the service when the member has exited.
    pub fn free(&self) {
        self.pending.store(0, Ordering::SeqCst);
        self.used.store(0, Ordering::SeqCst);
        self.member.store(0, Ordering::SeqCst);
    }

    /// Sets what the member uses, whatever the limit. Only its member calls this.
    pub fn set_used(&self, used: u64) {
        self.used.store(used, Ordering::SeqCst);
    }

    fn is_on(&self, device: u64) -> bool {
        self.member.load(Ordering::SeqCst) != 0 && self.device.load(Ordering::SeqCst) == device
    }
}

/// What all members use on a device. Invalid amounts of a member do not overflow.
#[must_use]
pub fn used_on(slots: &[MemorySlot], device: u64) -> u64 {
    let slots = slots.iter().filter(|slot| slot.is_on(device));
    slots.fold(0, |sum, slot| sum.saturating_add(slot.used.load(Ordering::SeqCst)))
}

fn look(slots: &[MemorySlot], own: usize, device: u64) -> Seen {
    let mut seen = Seen::default();
    for (index, slot) in slots.iter().enumerate().filter(|(_, slot)| slot.is_on(device)) {
        // Pending before used: an amount that becomes used between the two loads is counted twice, and never missed.
        let pending = slot.pending.load(Ordering::SeqCst);
        seen.used = seen.used.saturating_add(slot.used.load(Ordering::SeqCst));
        match index.cmp(&own) {
            std::cmp::Ordering::Less => seen.pending_before = seen.pending_before.saturating_add(pending),
            std::cmp::Ordering::Equal => {}
            std::cmp::Ordering::Greater => seen.pending_after = seen.pending_after.saturating_add(pending),
        }
    }
    seen
}

/// Reserves `bytes` for the member that has the slot `own`, if all members then use at most `limit`. Fails with what they use. One
/// thread of a member at a time.
///
/// `wait` is called while other members decide, and returns whether to wait on. A member that was stopped meanwhile decides late.
pub fn reserve(
    slots: &[MemorySlot],
    own: usize,
    bytes: u64,
    limit: u64,
    mut wait: impl FnMut() -> bool,
) -> Result<(), u64> {
    let Some(slot) = slots.get(own) else { return Err(0) };
    let device = slot.device.load(Ordering::SeqCst);
    let refuse = |used: u64| {
        slot.pending.store(0, Ordering::SeqCst);
        Err(used)
    };
    loop {
        // SeqCst, with the loads of the other members in `look`: of two members that store first and load second, at least one
        // sees the other.
        slot.pending.store(bytes, Ordering::SeqCst);
        fence_for_loom();
        loop {
            let Seen { used, pending_before, pending_after } = look(slots, own, device);
            let pending = pending_before.saturating_add(pending_after);
            if used.saturating_add(bytes).saturating_add(pending) <= limit {
                // Used before pending: another member counts the amount twice rather than not at all.
                slot.used.store(slot.used.load(Ordering::SeqCst).saturating_add(bytes), Ordering::SeqCst);
                slot.pending.store(0, Ordering::SeqCst);
                return Ok(());
            }
            if pending == 0 {
                return refuse(used);
            }
            if pending_before > 0 {
                break;
            }
            // The members in later slots withdraw, or have seen that theirs fits.
            if !wait() {
                return refuse(used);
            }
        }
        slot.pending.store(0, Ordering::SeqCst);
        fence_for_loom();
        loop {
            if !wait() {
                return refuse(look(slots, own, device).used);
            }
            if look(slots, own, device).pending_before == 0 {
                break;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn slots(used: &[u64]) -> Vec<MemorySlot> {
        let slots: Vec<_> = used.iter().map(|_| MemorySlot::default()).collect();
        for (member, (slot, used)) in (1..).zip(slots.iter().zip(used)) {
            assert!(slot.try_claim(member, 7, *used));
        }
        slots
    }

    #[test]
    fn members_together_stay_within_the_limit() {
        let slots = slots(&[3, 4]);
        assert_eq!(reserve(&slots, 0, 3, 10, || false), Ok(()));
        assert_eq!(reserve(&slots, 1, 1, 10, || false), Err(10));
        slots[0].set_used(5);
        assert_eq!(reserve(&slots, 1, 1, 10, || false), Ok(()));
        assert_eq!(used_on(&slots, 7), 10);
    }

    #[test]
    fn other_devices_and_freed_slots_do_not_count() {
        let slots = slots(&[5, 5, 0]);
        slots[0].free();
        assert!(slots[0].try_claim(9, 8, 100));
        assert_eq!(reserve(&slots, 2, 5, 10, || false), Ok(()));
        slots[1].free();
        assert_eq!(used_on(&slots, 7), 5);
    }

    #[test]
    fn amount_of_a_stopped_member_counts_until_the_wait_is_over() {
        let slots = slots(&[0, 0]);
        slots[0].pending.store(8, Ordering::SeqCst);
        let mut waits = 0;
        let refused = reserve(&slots, 1, 5, 10, || {
            waits += 1;
            waits < 3
        });
        assert_eq!((refused, waits), (Err(0), 3));
        assert_eq!(slots[1].pending.load(Ordering::SeqCst), 0, "the amount is withdrawn");
        assert_eq!(reserve(&slots, 1, 2, 10, || false), Ok(()), "what fits beside it is not refused");
    }

    #[test]
    fn invalid_amounts_of_a_member_do_not_overflow() {
        let slots = slots(&[u64::MAX, u64::MAX, 0]);
        slots[0].pending.store(u64::MAX, Ordering::SeqCst);
        assert_eq!(reserve(&slots, 2, 1, u64::MAX - 1, || false), Err(u64::MAX));
        assert_eq!(used_on(&slots, 7), u64::MAX);
    }
}

//! The device memory of this process: what it has allocated on each device, and what it may allocate.
//!
//! A platform reserves before it calls the vendor's function and releases when the memory was freed or the call failed:
//!
//! ```text
//!   cuMemAlloc(20 MiB) ─► reserve ─► over the limit: out of memory, the driver is not called
//!                            │
//!                            └─► the driver's cuMemAlloc ─► it fails: release
//! ```
//!
//! Limits come from the environment, and from the service: from a rule of its configuration, and from a grant. All of them hold. The
//! limit of `xsched run` and that of a grant count for all processes of their group together; without a service each process has
//! them alone.

pub(crate) mod group;
mod limit;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xsched_core::DeviceId;

use self::group::MemoryGroup;
pub use self::limit::{MemoryLimit, format_size};
use crate::page::{DeviceMemory, Page};
use crate::protocol::{MemorySource, MemoryTerms};
use crate::report::{Severity, report, report_to_user};

/// An allocation would exceed the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverLimit {
    /// The limit in bytes.
    pub limit: u64,
    /// What the program and its children have allocated.
    pub used: u64,
}

/// What this process has on one device.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    used: u64,
    peak: u64,
    /// The size of the device, if it is known.
    total: Option<u64>,
}

impl Usage {
    fn set_used(&mut self, used: u64) {
        self.used = used;
        self.peak = self.peak.max(used);
    }
}

/// This process's part in a group that shares a limit.
#[derive(Debug)]
struct Membership {
    group: MemoryGroup,
    member: u64,
    /// Its slots, by device.
    slots: BTreeMap<DeviceId, usize>,
}

impl Membership {
    /// The slot for a device, on which this process has `used` bytes. None if the group has too many members.
    fn slot(&mut self, device: DeviceId, used: u64) -> Option<usize> {
        if let Some(slot) = self.slots.get(&device).filter(|slot| self.group.is_claimed(**slot, self.member))
        {
            return Some(*slot);
        }
        let slot = self.group.claim(self.member, device, used);
        match slot {
            Some(slot) => self.slots.insert(device, slot),
            None => self.slots.remove(&device),
        };
        slot
    }

    fn set_used(&mut self, device: DeviceId, used: u64) {
        if let Some(slot) = self.slot(device, used) {
            self.group.set_used(slot, used);
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.group.remove_member(self.member);
    }
}

/// A limit that the service gave.
#[derive(Debug)]
struct Given {
    source: MemorySource,
    /// None: that of the environment.
    limit: Option<MemoryLimit>,
    /// The processes for which it counts together. None: this process alone.
    membership: Option<Membership>,
}

#[derive(Default)]
struct State {
    /// The limit of the environment.
    limit: Option<MemoryLimit>,
    given: Vec<Given>,
    usage: BTreeMap<DeviceId, Usage>,
    /// Where the service reads what this process has.
    page: Option<Arc<Page>>,
}

impl State {
    /// Every limit in force, on a device with `total` bytes.
    fn limits(&self, total: u64) -> impl Iterator<Item = u64> {
        let given = self.given.iter().filter_map(|given| given.limit);
        self.limit.into_iter().chain(given).map(move |limit| limit.bytes(total))
    }

    /// Every limit on a device with `total` bytes, and what counts against it.
    fn constraints(&self, device: DeviceId, total: u64) -> impl Iterator<Item = OverLimit> {
        let own = self.usage.get(&device).map_or(0, |usage| usage.used);
        let alone = self.limit.map(|limit| OverLimit { limit: limit.bytes(total), used: own });
        let given = self.given.iter().filter_map(move |given| {
            let limit = given.limit.or(self.limit)?.bytes(total);
            let shared = given.membership.as_ref().map(|membership| membership.group.used_on(device));
            // The group may have no slot for this process.
            Some(OverLimit { limit, used: shared.unwrap_or(0).max(own) })
        });
        alone.into_iter().chain(given)
    }

    /// Reserves in every group, or in none.
    fn reserve_in_groups(&mut self, device: DeviceId, total: u64, bytes: u64) -> Result<(), OverLimit> {
        let own = self.usage.get(&device).map_or(0, |usage| usage.used);
        for index in 0..self.given.len() {
            let given = &mut self.given[index];
            let Some(limit) = given.limit.or(self.limit).map(|limit| limit.bytes(total)) else { continue };
            let Some(membership) = &mut given.membership else { continue };
            let Some(slot) = membership.slot(device, own) else { continue };
            if let Err(used) = membership.group.reserve(slot, bytes, limit) {
                for reserved in self.given[..index].iter_mut().filter_map(|given| given.membership.as_mut()) {
                    reserved.set_used(device, own);
                }
                return Err(OverLimit { limit, used });
            }
        }
        Ok(())
    }

    fn set_used(&mut self, device: DeviceId, used: u64) {
        self.usage.entry(device).or_default().set_used(used);
        self.publish(device);
    }

    /// The same, and enters it in the groups.
    fn set_used_everywhere(&mut self, device: DeviceId, used: u64) {
        self.set_used(device, used);
        for membership in self.given.iter_mut().filter_map(|given| given.membership.as_mut()) {
            membership.set_used(device, used);
        }
    }

    /// Writes what the process has on a device where the service reads it.
    fn publish(&self, device: DeviceId) {
        if let (Some(page), Some(usage)) = (&self.page, self.usage.get(&device)) {
            let limit = self.limits(usage.total.unwrap_or(u64::MAX)).min();
            page.set_memory(device, DeviceMemory { used: usage.used, peak: usage.peak, limit });
        }
    }

    /// Publishes and enters everything again.
    fn publish_all(&mut self) {
        for (device, used) in
            self.usage.iter().map(|(device, usage)| (*device, usage.used)).collect::<Vec<_>>()
        {
            self.set_used_everywhere(device, used);
        }
    }

    /// Remembers the size of a device. The first time, reports limits beyond it.
    fn set_total(&mut self, device: DeviceId, total: u64) {
        let usage = self.usage.entry(device).or_default();
        if usage.total.replace(total).is_some() {
            return;
        }
        for limit in self.limit.into_iter().chain(self.given.iter().filter_map(|given| given.limit)) {
            if let MemoryLimit::Bytes(bytes) = limit
                && bytes > total
            {
                static IS_REPORTED: AtomicBool = AtomicBool::new(false);
                report_to_user(
                    &IS_REPORTED,
                    format_args!(
                        "the memory limit {limit} is more than device {device} has, {}: its size is the limit there",
                        format_size(total)
                    ),
                );
            }
        }
    }

    fn apply(&mut self, terms: &MemoryTerms, fd: Option<&OwnedFd>) {
        self.given.retain(|given| given.source != terms.source);
        let membership = fd.and_then(|fd| match MemoryGroup::attach(fd) {
            Ok(group) => Some(Membership { group, member: terms.member, slots: BTreeMap::new() }),
            Err(why) => {
                report(
                    Severity::Warning,
                    format_args!("the memory limit counts for this process alone: {why}"),
                );
                None
            }
        });
        if terms.limit.is_some() || membership.is_some() {
            self.given.push(Given { source: terms.source, limit: terms.limit, membership });
        }
    }
}

/// A limit as one word: bytes, or percent with the highest bit set.
const NO_LIMIT: u64 = u64::MAX;
const PERCENT: u64 = 1 << 63;

fn encode(limit: Option<MemoryLimit>) -> u64 {
    match limit {
        None => NO_LIMIT,
        Some(MemoryLimit::Bytes(bytes)) => bytes.min(PERCENT - 1),
        Some(MemoryLimit::Percent(percent)) => PERCENT | u64::from(percent),
    }
}

fn decode(word: u64) -> Option<MemoryLimit> {
    match word {
        NO_LIMIT => None,
        bytes if bytes & PERCENT == 0 => Some(MemoryLimit::Bytes(bytes)),
        percent => Some(MemoryLimit::Percent(u8::try_from(percent & 0xff).unwrap_or(100))),
    }
}

/// The device memory of this process.
#[derive(Debug)]
pub struct MemoryAccount {
    /// Null until it is used. In a child after fork it is null again: a thread of the parent may have held the lock.
    state: AtomicPtr<Mutex<State>>,
    /// The limit of the environment, which a child after fork has too.
    limit: AtomicU64,
}

impl MemoryAccount {
    /// Nothing is allocated and nothing is limited.
    #[must_use]
    pub const fn new() -> Self {
        Self { state: AtomicPtr::new(ptr::null_mut()), limit: AtomicU64::new(NO_LIMIT) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let mut address = self.state.load(Ordering::Acquire);
        if address.is_null() {
            let limit = decode(self.limit.load(Ordering::Acquire));
            let new = Box::into_raw(Box::new(Mutex::new(State { limit, ..State::default() })));
            match self.state.compare_exchange(address, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => address = new,
                Err(present) => {
                    // SAFETY: allocated above, and not shared.
                    drop(unsafe { Box::from_raw(new) });
                    address = present;
                }
            }
        }
        // SAFETY: the address came from a box that only `drop` frees; a child after fork leaves it allocated.
        unsafe { &*address }.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves `bytes` on a device with `total` bytes. Reserves nothing if that exceeds the limit.
    pub fn reserve(&self, device: DeviceId, total: u64, bytes: u64) -> Result<(), OverLimit> {
        let mut state = self.state();
        state.set_total(device, total);
        let own = state.usage.get(&device).map_or(0, |usage| usage.used);
        let used = own.saturating_add(bytes);
        if let Some(limit) = state.limits(total).min().filter(|limit| used > *limit) {
            // What the others have counts too, for the message.
            let together = state.constraints(device, total).find(|over| over.limit == limit);
            return Err(together.unwrap_or(OverLimit { limit, used: own }));
        }
        state.reserve_in_groups(device, total, bytes)?;
        state.set_used(device, used);
        Ok(())
    }

    /// Counts `bytes` that were allocated whatever the limit: memory that the program could not have been refused.
    pub fn add(&self, device: DeviceId, bytes: u64) {
        let mut state = self.state();
        let used = state.usage.get(&device).map_or(0, |usage| usage.used);
        state.set_used_everywhere(device, used.saturating_add(bytes));
    }

    /// Releases what was reserved or added.
    pub fn release(&self, device: DeviceId, bytes: u64) {
        let mut state = self.state();
        let used = state.usage.get(&device).map_or(0, |usage| usage.used);
        state.set_used_everywhere(device, used.saturating_sub(bytes));
    }

    /// The limit in bytes on a device with `total` bytes, if there is one: the smallest of those in force.
    #[must_use]
    pub fn limit(&self, total: u64) -> Option<u64> {
        self.state().limits(total).min()
    }

    /// Sets or removes the limit of the environment.
    pub fn set_limit(&self, limit: Option<MemoryLimit>) {
        let mut state = self.state();
        self.limit.store(encode(limit), Ordering::Release);
        state.limit = limit;
        state.publish_all();
    }

    /// What counts against [`MemoryAccount::limit`] on `device`: the memory of the program and its children. If several limits are in
    /// force, the one that leaves least decides: the rest of the limit is always what can be allocated.
    #[must_use]
    pub fn used_together(&self, device: DeviceId) -> u64 {
        let state = self.state();
        let (own, total) = state.usage.get(&device).map_or((0, None), |usage| (usage.used, usage.total));
        let total = total.unwrap_or(u64::MAX);
        let rest = state.constraints(device, total).map(|over| over.limit.saturating_sub(over.used)).min();
        match (state.limits(total).min(), rest) {
            (Some(limit), Some(rest)) => limit.saturating_sub(rest),
            _ => own,
        }
    }

    /// The process was bound to a service, which reads `page` and gave these limits in place of those of the previous one.
    pub(crate) fn join(&self, page: &Arc<Page>, terms: &[(MemoryTerms, Option<OwnedFd>)]) {
        let mut state = self.state();
        state.given.clear();
        for (terms, fd) in terms {
            state.apply(terms, fd.as_ref());
        }
        state.page = Some(Arc::clone(page));
        state.publish_all();
    }

    /// The service has changed a limit.
    pub(crate) fn change(&self, terms: &MemoryTerms, fd: Option<&OwnedFd>) {
        let mut state = self.state();
        state.apply(terms, fd);
        state.publish_all();
    }

    /// The service is gone: its limits hold for this process alone.
    pub(crate) fn leave(&self) {
        let mut state = self.state();
        state.page = None;
        for given in &mut state.given {
            given.membership = None;
        }
    }

    /// In a child after fork: the child has nothing of the memory of its parent and no part in the groups, and has the limit of the
    /// environment. Takes no lock.
    pub fn detach_in_child(&self) {
        self.state.store(ptr::null_mut(), Ordering::Release);
    }
}

impl Default for MemoryAccount {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for MemoryAccount {
    fn drop(&mut self) {
        let address = *self.state.get_mut();
        if !address.is_null() {
            // SAFETY: allocated by `state`, and no other code refers to it.
            drop(unsafe { Box::from_raw(address) });
        }
    }
}

/// The account of this process.
#[must_use]
pub fn account() -> &'static MemoryAccount {
    static ACCOUNT: MemoryAccount = MemoryAccount::new();
    &ACCOUNT
}

#[cfg(test)]
mod tests;

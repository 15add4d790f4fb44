//! The page that a process shares with its scheduler. Every process has a page of its own.
//!
//! ```text
//!   0     header: magic, version, size │ heartbeat, orders (scheduler writes) │ slot limit (process writes)
//!   256   slot 0: gate, device, dependencies            one slot for each queue
//!   384   slot 1
//!   ...
//! ```
//!
//! The scheduler creates the page, seals its size and passes the descriptor to the process. It trusts nothing that a process
//! writes: every value is defined and every index is checked, so a process that writes invalid values harms only itself.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use xsched_core::sync::{Futex, Shared};
use xsched_core::{DeviceId, Gate, Nanos};

/// The maximum number of scheduled queues of a process.
pub const SLOTS: usize = 254;

/// `XSCHPAGE`, read as a little-endian number.
const MAGIC: u64 = u64::from_le_bytes(*b"XSCHPAGE");
/// Incremented with every change of the layout.
const VERSION: u32 = 2;

/// The beginning of the page.
#[derive(Debug)]
#[repr(C, align(256))]
struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    size: AtomicU32,
    /// The time of the scheduler's last heartbeat, on the monotonic clock.
    heartbeat: AtomicU64,
    /// Incremented whenever an order on this page has changed.
    orders: Futex,
    /// Slots from this index on have never been used.
    slot_limit: AtomicU32,
    /// The process has notified the scheduler, which has not read the page since: no further notification is needed.
    is_notified: AtomicU32,
}

/// The part of the page that belongs to one queue.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Slot {
    /// The gate of the queue.
    pub gate: Gate,
    device: AtomicU64,
    in_use: AtomicU32,
    depends_on: [AtomicU32; 4],
    /// Published by the process for `xsched ps`; the scheduler does not use them.
    level: AtomicU32,
    threshold: AtomicU32,
    batch_size: AtomicU32,
    /// The switch cost, in microseconds.
    switch_cost_us: AtomicU32,
    /// The queue has the order to drain, and the device runs nothing of it any more.
    is_drained: AtomicU32,
}

const _: () = assert!(size_of::<Header>() == 256);
const _: () = assert!(size_of::<Slot>() == 128);
const SIZE: usize = size_of::<Header>() + SLOTS * size_of::<Slot>();
const _: () = assert!(SIZE == 32_768);

/// In `depends_on`: the queue may depend on any queue of the process.
const ANY: u32 = u32::MAX;

/// Why a page could not be created or attached.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// A system call failed.
    #[error("cannot {what} for the page shared with the scheduler: {why}")]
    System {
        /// The operation.
        what: &'static str,
        /// The error of the system call.
        why: rustix::io::Errno,
    },
    /// The descriptor is not a page.
    #[error("the descriptor that the scheduler passed is not a page ({0})")]
    NotAPage(&'static str),
    /// The page was created by another version.
    #[error(
        "the page of the scheduler has layout {theirs}, this library supports layout {ours}: install the same version of both"
    )]
    OtherVersion {
        /// The layout of the page.
        theirs: u32,
        /// The layout that this library supports.
        ours: u32,
    },
}

fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> PageError {
    move |why| PageError::System { what, why }
}

/// A mapped page. Unmapped when the last reference is dropped.
pub struct Page {
    base: NonNull<Header>,
    /// Kept by the scheduler that created the page. The process needs no descriptor once it has mapped the page.
    fd: Option<OwnedFd>,
}

// SAFETY: everything behind `base` is atomics; only this value owns the mapping.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// Creates a page, on the scheduler's side.
    pub fn create() -> Result<Arc<Self>, PageError> {
        let (mut page, fd) = Self::make()?;
        page.fd = Some(fd);
        Ok(Arc::new(page))
    }

    /// Creates a page whose descriptor the scheduler passes to the process and then closes.
    pub(crate) fn create_to_pass_on() -> Result<(Arc<Self>, OwnedFd), PageError> {
        Self::make().map(|(page, fd)| (Arc::new(page), fd))
    }

    fn make() -> Result<(Self, OwnedFd), PageError> {
        let fd = rustix::fs::memfd_create("xsched-page", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(system("create a memory file"))?;
        rustix::fs::ftruncate(&fd, SIZE as u64).map_err(system("set the size"))?;
        // A process that could shrink the file could kill the scheduler with SIGBUS.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(system("seal the size"))?;
        let base = Self::map(&fd)?;
        let page = Self { base, fd: None };
        let header = page.header();
        header.version.store(VERSION, Ordering::Relaxed);
        header.size.store(u32::try_from(SIZE).unwrap_or(u32::MAX), Ordering::Relaxed);
        header.heartbeat.store(Nanos::now().0, Ordering::Relaxed);
        // Release: a process that reads the magic number reads the other fields too. Pairs with the Acquire in `attach`.
        header.magic.store(MAGIC, Ordering::Release);
        Ok((page, fd))
    }

    /// Checks and maps a page that was passed to this process. The descriptor is not needed afterwards.
    pub fn attach(fd: &OwnedFd) -> Result<Arc<Self>, PageError> {
        let stat = rustix::fs::fstat(fd).map_err(system("read the size"))?;
        if usize::try_from(stat.st_size) != Ok(SIZE) {
            // A page of another version may have another size. Its header contains the version.
            if usize::try_from(stat.st_size).unwrap_or(0) < size_of::<Header>() {
                return Err(PageError::NotAPage("too small"));
            }
        }
        let seals = rustix::fs::fcntl_get_seals(fd).unwrap_or(SealFlags::empty());
        if !seals.contains(SealFlags::SHRINK) {
            return Err(PageError::NotAPage("its size is not sealed"));
        }
        let page = Self { base: Self::map(fd)?, fd: None };
        let header = page.header();
        if header.magic.load(Ordering::Acquire) != MAGIC {
            return Err(PageError::NotAPage("wrong magic number"));
        }
        let theirs = header.version.load(Ordering::Relaxed);
        if theirs != VERSION || usize::try_from(stat.st_size) != Ok(SIZE) {
            return Err(PageError::OtherVersion { theirs, ours: VERSION });
        }
        Ok(Arc::new(page))
    }

    /// A page of this process alone, for the time without a scheduler.
    pub(crate) fn private() -> Result<Arc<Self>, PageError> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address that the kernel chooses: no other code refers to it.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), SIZE, access, flags) }
            .map_err(system("allocate memory"))?;
        let base = NonNull::new(base.cast::<Header>()).ok_or(PageError::NotAPage("mapped at zero"))?;
        Ok(Arc::new(Self { base, fd: None }))
    }

    /// The address of the page, for [`Page::detach_in_child`].
    pub(crate) fn address(&self) -> *mut c_void {
        self.base.as_ptr().cast()
    }

    /// In a child after fork: replaces a page that is shared with the parent's scheduler by a private page of zeros, in which
    /// every gate is free. One system call, which needs no lock that a thread of the parent may have held.
    ///
    /// # Safety
    /// `address` came from [`Page::address`] of a page that is still mapped, and this process has one thread.
    pub(crate) unsafe fn detach_in_child(address: *mut c_void) {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
        // SAFETY: the caller guarantees SIZE mapped bytes at `address`; all references to them are to atomics, for which zero is
        // a valid value.
        let replaced = unsafe { rustix::mm::mmap_anonymous(address, SIZE, access, flags) };
        // Without memory the child would write into the parent's page. It is unmapped instead.
        if replaced.is_err() {
            // SAFETY: as above. An access in this child faults, and the parent is unharmed.
            let _ = unsafe { rustix::mm::munmap(address, SIZE) };
        }
    }

    fn map(fd: &OwnedFd) -> Result<NonNull<Header>, PageError> {
        // SAFETY: a new mapping at an address that the kernel chooses: no other code refers to it.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                SIZE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd.as_fd(),
                0,
            )
        }
        .map_err(system("map memory"))?;
        NonNull::new(base.cast::<Header>()).ok_or(PageError::NotAPage("mapped at zero"))
    }

    fn header(&self) -> &Header {
        // SAFETY: `map` mapped SIZE bytes at `base`, page-aligned and so aligned for `Header`; all its fields are
        // atomics, for which every bit pattern is valid.
        unsafe { self.base.as_ref() }
    }

    /// The descriptor to pass to the process. Only the page's creator has it.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(|fd| fd.as_fd())
    }

    /// Marks the page as changed. Returns whether the scheduler has to be notified: a notification may be pending.
    #[must_use]
    pub fn notify(&self) -> bool {
        // SeqCst, with `acknowledge`: a scheduler that acknowledges before it reads the page misses nothing that was written
        // before this.
        self.header().is_notified.swap(1, Ordering::SeqCst) == 0
    }

    /// The scheduler calls this before it reads the page: from now on a change needs a new notification.
    pub fn acknowledge(&self) {
        self.header().is_notified.store(0, Ordering::SeqCst);
    }

    fn slot_at(&self, index: usize) -> Option<NonNull<Slot>> {
        (index < SLOTS).then(|| {
            // SAFETY: SLOTS slots follow the header within the SIZE mapped bytes, and `index` is below SLOTS; 256 is a multiple
            // of a slot's alignment.
            unsafe { self.base.add(1).cast::<Slot>().add(index) }
        })
    }

    /// The slot with this index.
    #[must_use]
    pub fn slot(&self, index: usize) -> Option<&Slot> {
        // SAFETY: `slot_at` returns a pointer into the mapping, which `self` keeps mapped; slots are atomics.
        self.slot_at(index).map(|slot| unsafe { slot.as_ref() })
    }

    /// A slot that keeps its page mapped.
    #[must_use]
    pub fn shared_slot(self: &Arc<Self>, index: usize) -> Option<Shared<Slot>> {
        // SAFETY: the slot is in the mapping, which this `Arc` keeps mapped.
        self.slot_at(index).map(|slot| unsafe { Shared::inside(slot, Arc::clone(self) as _) })
    }

    /// The slots in use, with their indices.
    pub fn used_slots(&self) -> impl Iterator<Item = (usize, &Slot)> {
        let end = (self.header().slot_limit.load(Ordering::Acquire) as usize).min(SLOTS);
        (0..end).filter_map(|index| Some((index, self.slot(index)?))).filter(|(_, slot)| slot.is_in_use())
    }

    /// Allocates a slot for a queue on `device`. None if all are in use.
    #[must_use]
    pub fn allocate_slot(&self, device: DeviceId) -> Option<usize> {
        let index = (0..SLOTS).find(|index| {
            self.slot(*index).is_some_and(|slot| {
                // A thread may not have left the gate of the slot's last queue yet.
                !slot.gate.is_used()
                    && slot
                        .in_use
                        .compare_exchange(FREE, ALLOCATED, Ordering::AcqRel, Ordering::Relaxed)
                        .is_ok()
            })
        })?;
        let slot = self.slot(index)?;
        slot.device.store(device.0, Ordering::Relaxed);
        slot.gate.reset();
        slot.depends_on.iter().for_each(|entry| entry.store(0, Ordering::Relaxed));
        slot.is_drained.store(0, Ordering::Relaxed);
        // Release: a scheduler that finds the slot in use reads its device. Pairs with `is_in_use`.
        slot.in_use.store(IN_USE, Ordering::Release);
        self.header().slot_limit.fetch_max(u32::try_from(index + 1).unwrap_or(0), Ordering::AcqRel);
        Some(index)
    }

    /// Releases a slot.
    pub fn release_slot(&self, index: usize) {
        if let Some(slot) = self.slot(index) {
            slot.in_use.store(FREE, Ordering::Release);
        }
    }

    /// Records a heartbeat of the scheduler.
    pub fn set_heartbeat(&self, now: Nanos) {
        self.header().heartbeat.store(now.0, Ordering::Relaxed);
    }

    /// The time of the scheduler's last heartbeat.
    #[must_use]
    pub fn last_heartbeat(&self) -> Nanos {
        Nanos(self.header().heartbeat.load(Ordering::Relaxed))
    }

    /// The futex that the scheduler increments and wakes whenever an order has changed.
    #[must_use]
    pub fn orders(&self) -> &Futex {
        &self.header().orders
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: `map` created this mapping with this size, and nothing refers to it any more: every `Shared` slot holds an
        // `Arc` of the page.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), SIZE) };
    }
}

const FREE: u32 = 0;
/// Allocated, and being initialized.
const ALLOCATED: u32 = 1;
const IN_USE: u32 = 2;

impl Slot {
    fn is_in_use(&self) -> bool {
        self.in_use.load(Ordering::Acquire) == IN_USE
    }

    /// The device of the queue.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        DeviceId(self.device.load(Ordering::Relaxed))
    }

    /// Publishes the settings in effect: preemption level, threshold and batch size. The last two are 0 if the in-flight window
    /// is measured in time.
    pub fn publish_settings(&self, level: u8, threshold: u32, batch_size: u32) {
        self.level.store(level.into(), Ordering::Relaxed);
        self.threshold.store(threshold, Ordering::Relaxed);
        self.batch_size.store(batch_size, Ordering::Relaxed);
    }

    /// Publishes the switch cost of this queue.
    pub fn publish_switch_cost(&self, cost: Nanos) {
        self.switch_cost_us.store(u32::try_from(cost.0 / 1_000).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// The switch cost that the process has published, clamped to 10 ms.
    #[must_use]
    pub fn switch_cost(&self) -> Nanos {
        Nanos::from_micros(self.switch_cost_us.load(Ordering::Relaxed).into()).min(Nanos::from_millis(10))
    }

    /// Publishes whether the device runs nothing of the queue, which has the order to drain. Returns the previous value.
    pub fn set_drained(&self, is_drained: bool) -> bool {
        // SeqCst: written after the device has stopped, and before the scheduler is notified.
        self.is_drained.swap(is_drained.into(), Ordering::SeqCst) != 0
    }

    /// Whether the device runs nothing of a queue with the order to drain.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.is_drained.load(Ordering::SeqCst) != 0
    }

    /// The settings that the process has published.
    #[must_use]
    pub fn settings(&self) -> (u8, u32, u32) {
        let level = u8::try_from(self.level.load(Ordering::Relaxed)).unwrap_or(0);
        (level, self.threshold.load(Ordering::Relaxed), self.batch_size.load(Ordering::Relaxed))
    }

    /// Publishes the queues that this queue depends on, instead of the previous ones. One thread at a time.
    pub fn set_dependencies(&self, dependencies: Dependencies) {
        let mut words = [0; 4];
        match dependencies {
            Dependencies::Any => words[0] = ANY,
            Dependencies::Slots(slots, n) => {
                for (word, slot) in words.iter_mut().zip(&slots[..n.min(4)]) {
                    *word = u32::try_from(slot + 1).unwrap_or(ANY);
                }
            }
        }
        for (entry, word) in self.depends_on.iter().zip(words) {
            entry.store(word, Ordering::Release);
        }
    }

    /// The queues that this queue depends on.
    #[must_use]
    pub fn dependencies(&self) -> Dependencies {
        let mut dependencies = Dependencies::NONE;
        for entry in &self.depends_on {
            match (entry.load(Ordering::Acquire), &mut dependencies) {
                (0, _) => {}
                (ANY, _) => return Dependencies::Any,
                (slot, Dependencies::Slots(slots, n)) => {
                    slots[*n] = slot as usize - 1;
                    *n += 1;
                }
                (_, Dependencies::Any) => {}
            }
        }
        dependencies
    }
}

/// The queues that a queue depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependencies {
    /// The queues in the first so many of these slots. The slots are not checked.
    Slots([usize; 4], usize),
    /// Unknown, or more than four: any queue of the process.
    Any,
}

impl Dependencies {
    /// No dependency.
    pub const NONE: Self = Self::Slots([0; 4], 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheduler_and_process_share_the_same_page() {
        let ours = Page::create().unwrap();
        let theirs = Page::attach(&ours.fd().unwrap().try_clone_to_owned().unwrap()).unwrap();
        let slot = theirs.allocate_slot(DeviceId(7)).unwrap();
        let seen: Vec<_> = ours.used_slots().map(|(index, slot)| (index, slot.device())).collect();
        assert_eq!(seen, [(slot, DeviceId(7))]);
        theirs.release_slot(slot);
        assert_eq!(ours.used_slots().count(), 0);
    }

    #[test]
    fn attach_rejects_other_files_with_a_reason() {
        let other = rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        let error = |fd: &OwnedFd| Page::attach(fd).err().unwrap().to_string();
        assert!(error(&other).ends_with("(too small)"));
        rustix::fs::ftruncate(&other, SIZE as u64).unwrap();
        assert!(error(&other).ends_with("(its size is not sealed)"));
        rustix::fs::fcntl_add_seals(&other, SealFlags::SHRINK).unwrap();
        assert!(error(&other).ends_with("(wrong magic number)"));
    }

    #[test]
    fn layout_mismatch_error_names_both_layouts() {
        let page = Page::create().unwrap();
        page.header().version.store(99, Ordering::SeqCst);
        let error = Page::attach(&page.fd().unwrap().try_clone_to_owned().unwrap()).err().unwrap();
        assert!(error.to_string().contains("has layout 99, this library supports layout 2"), "{error}");
    }

    #[test]
    fn allocation_fails_when_all_slots_are_in_use() {
        let page = Page::create().unwrap();
        let allocated: Vec<_> = (0..SLOTS).map(|_| page.allocate_slot(DeviceId(1)).unwrap()).collect();
        assert_eq!(page.allocate_slot(DeviceId(1)), None);
        page.release_slot(allocated[100]);
        assert_eq!(page.allocate_slot(DeviceId(1)), Some(100));
    }

    #[test]
    fn invalid_values_of_the_process_are_tolerated() {
        let page = Page::create().unwrap();
        page.header().slot_limit.store(u32::MAX, Ordering::SeqCst);
        assert_eq!(page.used_slots().count(), 0);
        let slot = page.slot(3).unwrap();
        slot.in_use.store(77, Ordering::SeqCst);
        slot.depends_on.iter().for_each(|entry| entry.store(12_345, Ordering::SeqCst));
        assert_eq!(page.used_slots().count(), 0);
        assert_eq!(slot.dependencies(), Dependencies::Slots([12_344; 4], 4));
    }

    #[test]
    fn dependencies_are_read_as_written() {
        let page = Page::create().unwrap();
        let slot = page.slot(0).unwrap();
        for dependencies in [Dependencies::Slots([1, 9, 3, 0], 3), Dependencies::Any, Dependencies::NONE] {
            slot.set_dependencies(dependencies);
            assert_eq!(slot.dependencies(), dependencies);
        }
    }
}

//! The page that a process shares with its scheduler. Every process has a page of its own.
//!
//! ```text
//!   0     header: magic, version, size │ heartbeat, orders (scheduler writes) │ slot limit, polls (process writes)
//!   256   slot 0: gate, device, dependencies            one slot for each queue
//!   384   slot 1
//!   ...
//!   32768 memory records: device, bytes in use      one for each device
//! ```
//!
//! The scheduler creates the page, seals its size and passes the descriptor to the process. It trusts nothing that a process
//! writes: every value is defined and every index is checked, so a process that writes invalid values harms only itself.

mod memory_records;
mod parking;

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::mm::{MapFlags, MremapFlags, ProtFlags};
use xsched_core::page_protocol::{NotificationFlag, SlotState, StallFlag};
use xsched_core::sync::{Futex, Owner, Shared};
use xsched_core::{DeviceId, Gate, Level, Nanos, NotDeferred};

pub use self::memory_records::DeviceMemory;
use self::memory_records::{MEMORY_RECORDS, MemoryRecord};
use self::parking::ParkingWords;
pub use self::parking::{Parking, ParkingFailure, ParkingOrder, ParkingState, Staying};
use crate::sealed_memory;

/// The maximum number of scheduled queues of a process.
pub const SLOTS: usize = 254;

/// `XSCHPAGE`, read as a little-endian number.
const MAGIC: u64 = u64::from_le_bytes(*b"XSCHPAGE");
/// Incremented with every change of the layout.
const VERSION: u32 = 4;

/// The beginning of the page.
#[derive(Debug)]
#[repr(C, align(256))]
struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    size: AtomicU32,
    /// Changes with every heartbeat of the scheduler. What it holds is the scheduler's clock, which means nothing to the process.
    heartbeat: AtomicU64,
    /// Incremented whenever an order on this page has changed.
    orders: Futex,
    /// Slots from this index on have never been used.
    slot_limit: AtomicU32,
    /// The process has notified the scheduler, which has not read the page since: no further notification is needed.
    is_notified: NotificationFlag,
    /// Incremented by the process's watcher thread whenever it polls.
    polls: AtomicU32,
    /// The scheduler has found that the process does not run. The process clears this when it runs.
    is_stalled: StallFlag,
    /// The mean time in milliseconds from one sample of a free task to the next. Zero: the process takes no samples.
    sample_interval_ms: AtomicU32,
    /// How many memory records the process has written.
    memory_records: AtomicU32,
    /// Why launches of the process are not deferred: bit n for [`NotDeferred`] n.
    not_deferred: AtomicU32,
    /// Estimated time that devices had no work of the process although it had some there and was allowed to run, in nanoseconds.
    wasted_ns: AtomicU64,
    /// The scheduler wants the names of launched kernels. Processes of earlier versions do not read this.
    wants_kernel_names: AtomicU32,
    /// Zero in pages of processes that cannot move their device memory.
    parking: ParkingWords,
}

/// The part of the page that belongs to one queue.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Slot {
    /// The gate of the queue.
    pub gate: Gate,
    device: AtomicU64,
    state: SlotState,
    depends_on: [AtomicU32; 4],
    /// Published by the process for `xsched ps`; the scheduler does not use them.
    level: AtomicU32,
    threshold: AtomicU32,
    batch_size: AtomicU32,
    /// The switch cost, in microseconds.
    switch_cost_us: AtomicU32,
    /// The queue has the order to drain, and the device runs nothing of it any more.
    is_drained: AtomicU32,
    /// Estimated time that the task was busy while it was free, in nanoseconds. Only one slot of each device is written. Zero in pages
    /// of processes that take no samples, as are the next two.
    sampled_busy_ns: AtomicU64,
    /// How many samples were taken.
    samples: AtomicU32,
    /// Whether the task was busy at the last sample.
    was_busy: AtomicU16,
    /// The preemption levels that the device offers: bit n for level n. 0 if the process does not publish them.
    levels: AtomicU16,
}

/// What the samples of a free task show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    /// Estimated time that the task was busy.
    pub busy: Nanos,
    /// How many samples were taken; the count wraps around.
    pub count: u32,
    /// Whether the task was busy at the last one.
    pub was_busy: bool,
}

const _: () = assert!(size_of::<Header>() == 256);
const _: () = assert!(size_of::<Slot>() == 128);
const SLOTS_END: usize = size_of::<Header>() + SLOTS * size_of::<Slot>();
const SIZE: usize = SLOTS_END + MEMORY_RECORDS * size_of::<MemoryRecord>();
const _: () = assert!(SLOTS_END == 32_768 && SIZE == 36_864);

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

pub(crate) fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> PageError {
    move |why| PageError::System { what, why }
}

/// A mapped page. Unmapped when the last reference is dropped, unless its memory was released before.
pub struct Page {
    base: NonNull<Header>,
    /// Kept by the scheduler that created the page. The process needs no descriptor once it has mapped the page.
    fd: Option<OwnedFd>,
    /// A scheduler passed the page to this process, whose client alone uses this mapping.
    is_attached: bool,
    /// The addresses stay mapped until the process ends: see [`Page::release_memory`].
    is_permanent: AtomicBool,
}

// SAFETY: everything behind `base` is atomics; only this value owns the mapping.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}
// SAFETY: `drop` does not unmap a page that is permanent, and no other code unmaps a page.
unsafe impl Owner for Page {
    fn is_permanent(&self) -> bool {
        self.is_permanent.load(Ordering::SeqCst)
    }
}

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

    fn at(base: NonNull<Header>, is_attached: bool) -> Self {
        Self { base, fd: None, is_attached, is_permanent: AtomicBool::new(false) }
    }

    fn make() -> Result<(Self, OwnedFd), PageError> {
        let fd = sealed_memory::create("xsched-page", SIZE)?;
        let page = Self::at(sealed_memory::map(&fd, SIZE)?.cast(), false);
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
        if !sealed_memory::is_sealed(fd) {
            return Err(PageError::NotAPage("its size is not sealed"));
        }
        let page = Self::at(sealed_memory::map(fd, SIZE)?.cast(), true);
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
        Ok(Arc::new(Self::at(base, false)))
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

    /// Whether a scheduler passed the page to this process. Once the process has left such a page, it never uses it again.
    pub(crate) fn is_attached(&self) -> bool {
        self.is_attached
    }

    /// Whether no queue has a slot in the page, and no thread is inside one of its gates or held there.
    pub(crate) fn is_abandoned(&self) -> bool {
        let is_used = |slot: &Slot| slot.state.is_in_use() || slot.gate.is_used();
        !(0..self.slot_limit()).filter_map(|index| self.slot(index)).any(is_used)
    }

    /// Replaces an abandoned page by zeros, which releases the memory that it shares with its scheduler. The addresses stay
    /// mapped until the process ends, because a thread may have read the address of a gate long ago and use it only now: the
    /// launch path reads a gate without being counted. Such a thread finds a gate of zeros, which holds no thread:
    ///
    /// * A thread that was about to read the word launches uncounted, also if the program has suspended the queue since then.
    ///   This is one launch of a thread that did not run while the service was replaced three times.
    /// * A thread that enters finds that the queue has moved, and leaves. If it entered before the replacement, the count of
    ///   threads inside is below zero afterwards, which counts as zero.
    /// * A thread that was about to sleep on a word does not, because the word was not zero. A thread that sleeps on it wakes
    ///   after at most 50 ms, or 1 s on `orders`, and finds the word zero or the process bound to another page.
    /// * A thread that has waited for work finds another epoch than the one it remembers, and changes nothing.
    ///
    /// Fails, and changes nothing, if no memory can be mapped.
    pub(crate) fn release_memory(&self) -> Result<(), PageError> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // Allocated first and moved second. To map over the page at once could fail for lack of memory after the kernel has
        // unmapped the page; to move a mapping takes no memory.
        // SAFETY: a new mapping at an address that the kernel chooses: no other code refers to it.
        let zeros = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), SIZE, access, flags) }
            .map_err(system("allocate zeros"))?;
        // Before the page is replaced: whatever fails below, `drop` must not unmap addresses that may belong to other code.
        self.is_permanent.store(true, Ordering::SeqCst);
        // SAFETY: SIZE bytes are mapped at `address`, and `self` keeps them mapped. The kernel replaces a mapping while it
        // keeps all page faults waiting, so that a thread that accesses it meanwhile finds the old page or the new one. All
        // references to them are to atomics, for which zero is a valid value.
        let moved =
            unsafe { rustix::mm::mremap_fixed(zeros, SIZE, SIZE, MremapFlags::MAYMOVE, self.address()) };
        if moved.is_err() {
            // A sandbox may reject that call.
            // SAFETY: as above.
            let _ =
                unsafe { rustix::mm::mmap_anonymous(self.address(), SIZE, access, flags | MapFlags::FIXED) };
            // SAFETY: `zeros` was mapped above and not moved, and no other code refers to it.
            let _ = unsafe { rustix::mm::munmap(zeros, SIZE) };
        }
        Ok(())
    }

    fn header(&self) -> &Header {
        // SAFETY: SIZE bytes are mapped at `base`, page-aligned and so aligned for `Header`; all its fields are
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
        self.header().is_notified.notify()
    }

    /// The scheduler calls this before it reads the page: from now on a change needs a new notification.
    pub fn acknowledge(&self) {
        self.header().is_notified.acknowledge();
    }

    fn slot_at(&self, index: usize) -> Option<NonNull<Slot>> {
        (index < SLOTS).then(|| {
            // SAFETY: SLOTS slots follow the header within the SIZE mapped bytes, and `index` is below SLOTS; 256 is a multiple
            // of a slot's alignment.
            unsafe { self.base.add(1).cast::<Slot>().add(index) }
        })
    }

    fn memory_records_base(&self) -> NonNull<MemoryRecord> {
        // SAFETY: SLOTS_END is within the SIZE mapped bytes.
        unsafe { self.base.cast::<u8>().add(SLOTS_END).cast() }
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

    /// Slots from this index on have never been used.
    fn slot_limit(&self) -> usize {
        (self.header().slot_limit.load(Ordering::Acquire) as usize).min(SLOTS)
    }

    /// The slots in use, with their indices.
    pub fn used_slots(&self) -> impl Iterator<Item = (usize, &Slot)> {
        (0..self.slot_limit())
            .filter_map(|index| Some((index, self.slot(index)?)))
            .filter(|(_, slot)| slot.state.is_in_use())
    }

    /// Allocates a slot for a queue on `device`, which is free until its first order. None if all are in use.
    #[must_use]
    pub fn allocate_slot(&self, device: DeviceId) -> Option<usize> {
        self.allocate_slot_with(device, |_| ())
    }

    /// As [`Page::allocate_slot`], but the first launch of the queue waits for its first order, for a limited time.
    #[must_use]
    pub fn allocate_undecided_slot(&self, device: DeviceId) -> Option<usize> {
        self.allocate_slot_with(device, Gate::mark_undecided)
    }

    /// `prepare` is called before the scheduler can find the gate.
    fn allocate_slot_with(&self, device: DeviceId, prepare: impl FnOnce(&Gate)) -> Option<usize> {
        let index = (0..SLOTS).find(|index| {
            self.slot(*index).is_some_and(|slot| {
                // A thread may not have left the gate of the slot's last queue yet.
                !slot.gate.is_used() && slot.state.try_allocate()
            })
        })?;
        let slot = self.slot(index)?;
        slot.device.store(device.0, Ordering::Relaxed);
        slot.gate.reset();
        prepare(&slot.gate);
        slot.depends_on.iter().for_each(|entry| entry.store(0, Ordering::Relaxed));
        slot.is_drained.store(0, Ordering::Relaxed);
        slot.sampled_busy_ns.store(0, Ordering::Relaxed);
        slot.samples.store(0, Ordering::Relaxed);
        slot.was_busy.store(0, Ordering::Relaxed);
        slot.levels.store(0, Ordering::Relaxed);
        slot.state.publish();
        self.header().slot_limit.fetch_max(u32::try_from(index + 1).unwrap_or(0), Ordering::AcqRel);
        Some(index)
    }

    /// Releases a slot.
    pub fn release_slot(&self, index: usize) {
        if let Some(slot) = self.slot(index) {
            slot.state.release();
        }
    }

    /// Records a heartbeat of the scheduler.
    pub fn set_heartbeat(&self, now: Nanos) {
        self.header().heartbeat.store(now.0, Ordering::Relaxed);
    }

    /// A value that changes with every heartbeat of the scheduler.
    #[must_use]
    pub fn heartbeat(&self) -> u64 {
        self.header().heartbeat.load(Ordering::Relaxed)
    }

    /// Sets how often the process samples whether its free tasks are busy; zero for never.
    pub fn set_sample_interval(&self, interval: Duration) {
        let ms = u32::try_from(interval.as_millis()).unwrap_or(u32::MAX);
        self.header().sample_interval_ms.store(ms, Ordering::Relaxed);
    }

    /// How often the process samples whether its free tasks are busy, if the scheduler wants samples.
    #[must_use]
    pub fn sample_interval(&self) -> Option<Duration> {
        let ms = self.header().sample_interval_ms.load(Ordering::Relaxed);
        (ms != 0).then(|| Duration::from_millis(ms.into()))
    }

    /// Sets whether the scheduler wants the names of launched kernels.
    pub fn set_wants_kernel_names(&self, is_wanted: bool) {
        self.header().wants_kernel_names.store(is_wanted.into(), Ordering::Relaxed);
    }

    /// Whether the scheduler wants the names of launched kernels.
    #[must_use]
    pub fn wants_kernel_names(&self) -> bool {
        self.header().wants_kernel_names.load(Ordering::Relaxed) != 0
    }

    /// Adds to the time that was wasted.
    pub fn add_wasted(&self, span: Nanos) {
        if span > Nanos::ZERO {
            self.header().wasted_ns.fetch_add(span.0, Ordering::Relaxed);
        }
    }

    /// Estimated time that devices had no work of the process although it had some there and was allowed to run.
    #[must_use]
    pub fn wasted(&self) -> Nanos {
        Nanos(self.header().wasted_ns.load(Ordering::Relaxed))
    }

    /// Publishes why launches of the process are not deferred.
    pub fn set_not_deferred(&self, reasons: u32) {
        self.header().not_deferred.store(reasons, Ordering::Relaxed);
    }

    /// Why launches of the process are not deferred.
    pub fn not_deferred(&self) -> impl Iterator<Item = NotDeferred> + use<> {
        NotDeferred::in_bits(self.header().not_deferred.load(Ordering::Relaxed))
    }

    /// The watcher thread of the process polls. Returns true if the scheduler has found that the process does not run, and has to
    /// be notified that it does.
    #[must_use]
    pub fn count_poll(&self) -> bool {
        let header = self.header();
        header.polls.fetch_add(1, Ordering::Relaxed);
        header.is_stalled.clear()
    }

    /// How often the watcher thread of the process has polled.
    #[must_use]
    pub fn polls(&self) -> u32 {
        self.header().polls.load(Ordering::Relaxed)
    }

    /// Sets whether the scheduler has found that the process does not run.
    pub fn set_stalled(&self, is_stalled: bool) {
        self.header().is_stalled.set(is_stalled);
    }

    /// Whether the scheduler has found that the process does not run, and the process has not run since.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.header().is_stalled.is_set()
    }

    /// The futex that the scheduler increments and wakes whenever an order has changed.
    #[must_use]
    pub fn orders(&self) -> &Futex {
        &self.header().orders
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if *self.is_permanent.get_mut() {
            return;
        }
        // SAFETY: the mapping has this size, and nothing refers to it any more: every `Shared` slot holds an
        // `Arc` of the page, which only a permanent page may lose.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), SIZE) };
    }
}

impl Slot {
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

    /// Publishes the preemption levels that the queue's device offers.
    pub fn publish_levels(&self, levels: impl Iterator<Item = Level>) {
        let bits = levels.fold(0_u16, |bits, level| bits | 1 << level.number());
        self.levels.store(bits, Ordering::Relaxed);
    }

    /// Whether the process has published that the queue's device lacks this level.
    #[must_use]
    pub fn lacks_level(&self, level: i64) -> bool {
        let bits = self.levels.load(Ordering::Relaxed);
        let offered = u32::try_from(level).ok().and_then(|level| bits.checked_shr(level)).unwrap_or(0);
        bits != 0 && offered & 1 == 0
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

    /// Adds a sample of the free task of this queue, which was busy for an estimated `span` since the last one.
    pub fn add_sample(&self, span: Nanos, is_busy: bool) {
        // Relaxed: these are figures for the user, and only the watcher thread writes them.
        self.sampled_busy_ns.fetch_add(span.0, Ordering::Relaxed);
        self.samples.fetch_add(1, Ordering::Relaxed);
        self.was_busy.store(is_busy.into(), Ordering::Relaxed);
    }

    /// What the samples show.
    #[must_use]
    pub fn samples(&self) -> Samples {
        Samples {
            busy: Nanos(self.sampled_busy_ns.load(Ordering::Relaxed)),
            count: self.samples.load(Ordering::Relaxed),
            was_busy: self.was_busy.load(Ordering::Relaxed) != 0,
        }
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
    use rustix::fs::{MemfdFlags, SealFlags};

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
        assert!(error.to_string().contains("has layout 99, this library supports layout 4"), "{error}");
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
        let state = size_of::<Header>() + 3 * size_of::<Slot>() + std::mem::offset_of!(Slot, state);
        rustix::io::pwrite(page.fd().unwrap(), &77_u32.to_ne_bytes(), state as u64).unwrap();
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

//! The page a program and its scheduler share: one per program, never one for all.
//!
//! ```text
//!   0     header: magic, version, size │ beat, orders (scheduler writes) │ high water (program writes)
//!   256   slot 1: gate, device, who it waits for        one per queue
//!   384   slot 2
//!   ...
//! ```
//!
//! The scheduler makes it, seals its size, and passes the descriptor on. It believes nothing that a program writes
//! here: every value is understood, indices are checked, and a program that writes rubbish harms itself alone.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use xsched_core::sync::{Futex, Shared};
use xsched_core::{DeviceId, Gate, Nanos};

/// How many queues a program can have under control at once.
pub const SLOTS: usize = 254;

/// `XSCHPAGE`, read as a little-endian number.
const MAGIC: u64 = u64::from_le_bytes(*b"XSCHPAGE");
/// Grows with every change of the layout.
const VERSION: u32 = 2;

/// The beginning of the page.
#[derive(Debug)]
#[repr(C, align(256))]
struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    size: AtomicU32,
    /// When the scheduler gave its last sign of life, on the monotonic clock.
    beat: AtomicU64,
    /// Changes whenever an order on this page has changed.
    orders: Futex,
    /// Slots from this number on have never been used.
    high_water: AtomicU32,
    /// The program has rung and the scheduler has not looked since: ringing again would say nothing new.
    rung: AtomicU32,
}

/// One queue.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Slot {
    /// Its gate.
    pub gate: Gate,
    device: AtomicU64,
    in_use: AtomicU32,
    depends_on: [AtomicU32; 4],
    /// For people to look at; the program keeps them up to date.
    level: AtomicU32,
    threshold: AtomicU32,
    batch_size: AtomicU32,
    /// Taking the device from this queue and giving it back, in microseconds.
    change_us: AtomicU32,
    /// Told to stop, and the device runs nothing of it any more.
    off: AtomicU32,
}

const _: () = assert!(size_of::<Header>() == 256);
const _: () = assert!(size_of::<Slot>() == 128);
const SIZE: usize = size_of::<Header>() + SLOTS * size_of::<Slot>();
const _: () = assert!(SIZE == 32_768);

/// In `depends_on`: any queue of the program may be meant.
const ANY: u32 = u32::MAX;

/// Why a page could not be made or attached.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// The system refused.
    #[error("{what} for the page shared with the scheduler: {why}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// What the system said.
        why: rustix::io::Errno,
    },
    /// The descriptor is something else.
    #[error("the descriptor passed as scheduler page is not one ({0})")]
    NotAPage(&'static str),
    /// Made by another version.
    #[error(
        "the scheduler's page has layout {theirs}, this library knows {ours}: update the older of the two"
    )]
    OtherVersion {
        /// Found.
        theirs: u32,
        /// Expected.
        ours: u32,
    },
}

fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> PageError {
    move |why| PageError::System { what, why }
}

/// A mapped page. Unmapped when the last reference is gone.
pub struct Page {
    base: NonNull<Header>,
    /// Kept by the maker, to pass it on. The other end needs no descriptor once it has mapped the page.
    fd: Option<OwnedFd>,
}

// SAFETY: everything behind `base` is atomics; the mapping belongs to this value alone.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// Makes a page, on the scheduler's side.
    pub fn create() -> Result<Arc<Self>, PageError> {
        let (mut page, fd) = Self::make()?;
        page.fd = Some(fd);
        Ok(Arc::new(page))
    }

    /// Makes a page whose descriptor is passed on and then closed.
    pub(crate) fn create_to_pass_on() -> Result<(Arc<Self>, OwnedFd), PageError> {
        Self::make().map(|(page, fd)| (Arc::new(page), fd))
    }

    fn make() -> Result<(Self, OwnedFd), PageError> {
        let fd = rustix::fs::memfd_create("xsched-page", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(system("no memory file"))?;
        rustix::fs::ftruncate(&fd, SIZE as u64).map_err(system("no room"))?;
        // A program that could shrink the file could kill the scheduler with SIGBUS.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(system("no seal"))?;
        let base = Self::map(&fd)?;
        let page = Self { base, fd: None };
        let header = page.header();
        header.version.store(VERSION, Ordering::Relaxed);
        header.size.store(u32::try_from(SIZE).unwrap_or(u32::MAX), Ordering::Relaxed);
        header.beat.store(Nanos::now().0, Ordering::Relaxed);
        // Release: whoever sees the magic sees the rest. Pairs with the Acquire in `attach`.
        header.magic.store(MAGIC, Ordering::Release);
        Ok((page, fd))
    }

    /// Maps a page that was passed to this process, after checking that it is one. The descriptor is not needed
    /// afterwards.
    pub fn attach(fd: &OwnedFd) -> Result<Arc<Self>, PageError> {
        let stat = rustix::fs::fstat(fd).map_err(system("no status"))?;
        if usize::try_from(stat.st_size) != Ok(SIZE) {
            // A page of another version may have another size: its header still tells which it is.
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

    /// A page nobody else sees, for as long as a program has no scheduler.
    pub(crate) fn private() -> Result<Arc<Self>, PageError> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh mapping at an address the kernel chooses; nobody else knows of it.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), SIZE, access, flags) }
            .map_err(system("no memory"))?;
        let base = NonNull::new(base.cast::<Header>()).ok_or(PageError::NotAPage("mapped at zero"))?;
        Ok(Arc::new(Self { base, fd: None }))
    }

    /// Where the page lies, for [`Page::detach_in_child`].
    pub(crate) fn address(&self) -> *mut c_void {
        self.base.as_ptr().cast()
    }

    /// In a child after fork: puts a private page full of zeros, with every gate open, in the place of one that is
    /// shared with the parent's scheduler. One system call, so that it can be made whatever the parent's other
    /// threads were doing.
    ///
    /// # Safety
    /// `address` came from [`Page::address`] of a page that is still mapped, and this process has one thread.
    pub(crate) unsafe fn detach_in_child(address: *mut c_void) {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED);
        // SAFETY: the caller vouches for the SIZE bytes at `address`; all that refers to them are atomics, for which
        // zero is a valid value.
        let replaced = unsafe { rustix::mm::mmap_anonymous(address, SIZE, access, flags) };
        // Without memory for it the child would write into the parent's page: then it must not have the page at all.
        if replaced.is_err() {
            // SAFETY: as above. Whoever still uses the page in this child faults, and the parent is unharmed.
            let _ = unsafe { rustix::mm::munmap(address, SIZE) };
        }
    }

    fn map(fd: &OwnedFd) -> Result<NonNull<Header>, PageError> {
        // SAFETY: a fresh mapping at an address the kernel chooses; nobody else knows of it.
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
        .map_err(system("no mapping"))?;
        NonNull::new(base.cast::<Header>()).ok_or(PageError::NotAPage("mapped at zero"))
    }

    fn header(&self) -> &Header {
        // SAFETY: `map` mapped SIZE bytes at `base`, page-aligned and so aligned for `Header`; all its fields are
        // atomics, for which every bit pattern is valid.
        unsafe { self.base.as_ref() }
    }

    /// The descriptor, to be passed to the program. Only its maker has it.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(|fd| fd.as_fd())
    }

    /// Notes that the program wants to be looked at. Answers whether the scheduler has to be told.
    #[must_use]
    pub fn notify(&self) -> bool {
        // SeqCst, with `answer`: a scheduler that takes note before it looks misses nothing that was written before
        // this.
        self.header().rung.swap(1, Ordering::SeqCst) == 0
    }

    /// The scheduler is about to look: from here on ringing says something new.
    pub fn acknowledge(&self) {
        self.header().rung.store(0, Ordering::SeqCst);
    }

    fn slot_at(&self, index: usize) -> Option<NonNull<Slot>> {
        (index < SLOTS).then(|| {
            // SAFETY: the header is followed by SLOTS slots within the SIZE bytes mapped, and `index` is below SLOTS;
            // 256 is a multiple of a slot's alignment.
            unsafe { self.base.add(1).cast::<Slot>().add(index) }
        })
    }

    /// A slot by number.
    #[must_use]
    pub fn slot(&self, index: usize) -> Option<&Slot> {
        // SAFETY: `slot_at` answers with a pointer into the mapping, which lives as long as `self`; slots are atomics.
        self.slot_at(index).map(|slot| unsafe { slot.as_ref() })
    }

    /// A slot that keeps its page mapped.
    #[must_use]
    pub fn shared_slot(self: &Arc<Self>, index: usize) -> Option<Shared<Slot>> {
        // SAFETY: the slot lies in the mapping, and the mapping lives as long as this `Arc`.
        self.slot_at(index).map(|slot| unsafe { Shared::inside(slot, Arc::clone(self) as _) })
    }

    /// The slots that may be in use, with their numbers.
    pub fn used_slots(&self) -> impl Iterator<Item = (usize, &Slot)> {
        let end = (self.header().high_water.load(Ordering::Acquire) as usize).min(SLOTS);
        (0..end).filter_map(|index| Some((index, self.slot(index)?))).filter(|(_, slot)| slot.is_in_use())
    }

    /// Takes a free slot for a queue on `device`. None if all are taken.
    #[must_use]
    pub fn allocate_slot(&self, device: DeviceId) -> Option<usize> {
        let index = (0..SLOTS).find(|index| {
            self.slot(*index).is_some_and(|slot| {
                // A thread may still be on its way out of the gate there.
                !slot.gate.is_used()
                    && slot.in_use.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            })
        })?;
        let slot = self.slot(index)?;
        slot.device.store(device.0, Ordering::Relaxed);
        slot.gate.reset();
        slot.depends_on.iter().for_each(|wait| wait.store(0, Ordering::Relaxed));
        slot.off.store(0, Ordering::Relaxed);
        // Release: a scheduler that sees the slot in use sees its device. Pairs with `is_in_use`.
        slot.in_use.store(IN_USE, Ordering::Release);
        self.header().high_water.fetch_max(u32::try_from(index + 1).unwrap_or(0), Ordering::AcqRel);
        Some(index)
    }

    /// Gives a slot back.
    pub fn release_slot(&self, index: usize) {
        if let Some(slot) = self.slot(index) {
            slot.in_use.store(FREE, Ordering::Release);
        }
    }

    /// The scheduler is alive.
    pub fn set_heartbeat(&self, now: Nanos) {
        self.header().beat.store(now.0, Ordering::Relaxed);
    }

    /// When the scheduler was last known to be alive.
    #[must_use]
    pub fn last_heartbeat(&self) -> Nanos {
        Nanos(self.header().beat.load(Ordering::Relaxed))
    }

    /// Changes, and wakes sleepers, whenever an order has changed.
    #[must_use]
    pub fn orders(&self) -> &Futex {
        &self.header().orders
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: `map` made this mapping with this size, and nothing refers to it any more: slots that were given
        // out hold an `Arc` of the page.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), SIZE) };
    }
}

const FREE: u32 = 0;
/// Being filled in.
const TAKEN: u32 = 1;
const IN_USE: u32 = 2;

impl Slot {
    fn is_in_use(&self) -> bool {
        self.in_use.load(Ordering::Acquire) == IN_USE
    }

    /// The device its queue runs on.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        DeviceId(self.device.load(Ordering::Relaxed))
    }

    /// Shows the settings in force: level, threshold and batch size, the latter two 0 while the window is measured in
    /// time.
    pub fn publish_settings(&self, level: u8, threshold: u32, batch_size: u32) {
        self.level.store(level.into(), Ordering::Relaxed);
        self.threshold.store(threshold, Ordering::Relaxed);
        self.batch_size.store(batch_size, Ordering::Relaxed);
    }

    /// Shows what it costs to take the device from this queue and to give it back.
    pub fn publish_switch_cost(&self, cost: Nanos) {
        self.change_us.store(u32::try_from(cost.0 / 1_000).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// What the program says that costs; at most 10 ms are believed.
    #[must_use]
    pub fn switch_cost(&self) -> Nanos {
        Nanos::from_micros(self.change_us.load(Ordering::Relaxed).into()).min(Nanos::from_millis(10))
    }

    /// Says whether the device runs nothing of the queue, which was told to stop. Answers what was said before.
    pub fn set_drained(&self, off: bool) -> bool {
        // SeqCst: said after the device has stopped, and rung after it was said.
        self.off.swap(off.into(), Ordering::SeqCst) != 0
    }

    /// Whether a queue that was told to stop has left the device.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.off.load(Ordering::SeqCst) != 0
    }

    /// The settings the program shows.
    #[must_use]
    pub fn settings(&self) -> (u8, u32, u32) {
        let level = u8::try_from(self.level.load(Ordering::Relaxed)).unwrap_or(0);
        (level, self.threshold.load(Ordering::Relaxed), self.batch_size.load(Ordering::Relaxed))
    }

    /// Says who this queue waits for, replacing what was said before. One thread at a time.
    pub fn set_dependencies(&self, waits: Dependencies) {
        let mut words = [0; 4];
        match waits {
            Dependencies::Any => words[0] = ANY,
            Dependencies::Slots(slots, n) => {
                for (word, slot) in words.iter_mut().zip(&slots[..n.min(4)]) {
                    *word = u32::try_from(slot + 1).unwrap_or(ANY);
                }
            }
        }
        for (wait, word) in self.depends_on.iter().zip(words) {
            wait.store(word, Ordering::Release);
        }
    }

    /// Who this queue waits for.
    #[must_use]
    pub fn dependencies(&self) -> Dependencies {
        let mut waits = Dependencies::NONE;
        for wait in &self.depends_on {
            match (wait.load(Ordering::Acquire), &mut waits) {
                (0, _) => {}
                (ANY, _) => return Dependencies::Any,
                (slot, Dependencies::Slots(slots, n)) => {
                    slots[*n] = slot as usize - 1;
                    *n += 1;
                }
                (_, Dependencies::Any) => {}
            }
        }
        waits
    }
}

/// Who a queue waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependencies {
    /// The queues in these slots; the number says how many count. Not checked to exist.
    Slots([usize; 4], usize),
    /// Not known, or too many to list: any queue of the program may be meant.
    Any,
}

impl Dependencies {
    /// Dependencies for no queue.
    pub const NONE: Self = Self::Slots([0; 4], 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_see_the_same_page() {
        let ours = Page::create().unwrap();
        let theirs = Page::attach(&ours.fd().unwrap().try_clone_to_owned().unwrap()).unwrap();
        let slot = theirs.allocate_slot(DeviceId(7)).unwrap();
        let seen: Vec<_> = ours.used_slots().map(|(index, slot)| (index, slot.device())).collect();
        assert_eq!(seen, [(slot, DeviceId(7))]);
        theirs.release_slot(slot);
        assert_eq!(ours.used_slots().count(), 0);
    }

    #[test]
    fn what_is_not_a_page_is_refused_with_a_reason() {
        let other = rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        let says = |fd: &OwnedFd| Page::attach(fd).err().unwrap().to_string();
        assert!(says(&other).ends_with("(too small)"));
        rustix::fs::ftruncate(&other, SIZE as u64).unwrap();
        assert!(says(&other).ends_with("(its size is not sealed)"));
        rustix::fs::fcntl_add_seals(&other, SealFlags::SHRINK).unwrap();
        assert!(says(&other).ends_with("(wrong magic number)"));
    }

    #[test]
    fn another_version_says_which_two_do_not_fit() {
        let page = Page::create().unwrap();
        page.header().version.store(99, Ordering::SeqCst);
        let error = Page::attach(&page.fd().unwrap().try_clone_to_owned().unwrap()).err().unwrap();
        assert!(error.to_string().contains("has layout 99, this library knows 2"), "{error}");
    }

    #[test]
    fn slots_run_out_instead_of_running_over() {
        let page = Page::create().unwrap();
        let taken: Vec<_> = (0..SLOTS).map(|_| page.allocate_slot(DeviceId(1)).unwrap()).collect();
        assert_eq!(page.allocate_slot(DeviceId(1)), None);
        page.release_slot(taken[100]);
        assert_eq!(page.allocate_slot(DeviceId(1)), Some(100));
    }

    #[test]
    fn rubbish_from_the_program_is_understood() {
        let page = Page::create().unwrap();
        page.header().high_water.store(u32::MAX, Ordering::SeqCst);
        assert_eq!(page.used_slots().count(), 0);
        let slot = page.slot(3).unwrap();
        slot.in_use.store(77, Ordering::SeqCst);
        slot.depends_on.iter().for_each(|wait| wait.store(12_345, Ordering::SeqCst));
        assert_eq!(page.used_slots().count(), 0);
        assert_eq!(slot.dependencies(), Dependencies::Slots([12_344; 4], 4));
    }

    #[test]
    fn waits_are_read_as_they_were_written() {
        let page = Page::create().unwrap();
        let slot = page.slot(0).unwrap();
        for waits in [Dependencies::Slots([1, 9, 3, 0], 3), Dependencies::Any, Dependencies::NONE] {
            slot.set_dependencies(waits);
            assert_eq!(slot.dependencies(), waits);
        }
    }
}

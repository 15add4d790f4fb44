//! Words in this process's memory through which the device reports a stream's progress and learns whether to continue.
//!
//! ```text
//!   stream:  kernel kernel [write 7 to `reached`] [wait until `run` is 1] [write 7 to `passed`] kernel kernel ...
//!                          └───────────────── a stop point, with marker 7 ────────────────────┘
//! ```
//! While `run` is 0 the stream stalls at its next stop point. The GPU's front end executes these commands: no thread of the
//! program blocks, and no kernel spins. A stream whose `reached` differs from its `passed` is stalled there.
//!
//! The memory is mapped shared, because fork must not give a child private copies of pages that the device writes to. Each
//! context has its own pages, because the device's access to them ends with the context.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::vendor;

/// The words of one stream, on a cache line of their own.
#[repr(C, align(64))]
pub(crate) struct StopWords {
    /// The last marker that the device reached, truncated to 32 bits.
    pub(crate) reached: AtomicU32,
    /// 1: continue past stop points; 0: stall at the next one.
    pub(crate) run: AtomicU32,
    /// The last stop point that the device passed, truncated to 32 bits.
    pub(crate) passed: AtomicU32,
    /// A target for writes without meaning; never read.
    scratch: AtomicU32,
    /// The last hold point that the device reached: see [`xsched_core::deferral`].
    pub(crate) held_at: AtomicU32,
    /// The device continues past hold points up to this one.
    pub(crate) released: AtomicU32,
}

const SLOTS_PER_PAGE: usize = 64;
const PAGE_SIZE: usize = SLOTS_PER_PAGE * size_of::<StopWords>();

/// A page of stop words. Never unmapped, because the device may still write to it.
struct StopWordPage {
    base: NonNull<StopWords>,
    /// The page's address on the device.
    device_address: u64,
    /// The address of the context that the page is registered with.
    context: usize,
    /// The process that registered the page: a child after fork cannot use it.
    process: u32,
    /// Indices of slots that no stream uses.
    unused: Vec<usize>,
}

// SAFETY: `base` points to atomics in a mapping that this module never unmaps.
unsafe impl Send for StopWordPage {}

/// The pages of all existing contexts.
fn pages() -> MutexGuard<'static, Vec<StopWordPage>> {
    static PAGES: Mutex<Vec<StopWordPage>> = Mutex::new(Vec::new());
    PAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drops the pages of a context that was destroyed.
pub(crate) fn forget_context(context: usize) {
    pages().retain(|page| page.context != context);
}

impl StopWordPage {
    /// Registers a page with the current context, whose address is given.
    fn register(context: usize) -> Result<Self, String> {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), PAGE_SIZE, access, flags, -1, 0) };
        let base = (base != libc::MAP_FAILED).then(|| NonNull::new(base.cast::<StopWords>())).flatten();
        let base = base.ok_or("no memory for stop points is left")?;
        let device_address = map_to_device(base)?;
        let (process, unused) = (std::process::id(), (0..SLOTS_PER_PAGE).rev().collect());
        Ok(Self { base, device_address, context, process, unused })
    }

    fn allocate_slot(&mut self) -> Option<StopWordSlot> {
        let index = self.unused.pop()?;
        // SAFETY: `unused` holds indices below SLOTS_PER_PAGE, so the slot lies in the mapping, which is never unmapped.
        let words = unsafe { self.base.add(index).as_ref() };
        words.reached.store(0, Ordering::SeqCst);
        words.passed.store(0, Ordering::SeqCst);
        words.run.store(1, Ordering::SeqCst);
        words.held_at.store(0, Ordering::SeqCst);
        words.released.store(0, Ordering::SeqCst);
        let device_address = self.device_address + (index * size_of::<StopWords>()) as u64;
        Some(StopWordSlot { words, device_address })
    }
}

/// The stop words of one stream, and their address on the device.
pub(crate) struct StopWordSlot {
    words: &'static StopWords,
    device_address: u64,
}

impl StopWordSlot {
    /// Allocates a slot that the device can access from the current context, whose address is given. The error is the
    /// reason why there is none.
    pub(crate) fn allocate(context: usize) -> Result<Self, String> {
        let is_usable =
            |page: &&mut StopWordPage| page.context == context && page.process == std::process::id();
        if let Some(slot) = pages().iter_mut().filter(is_usable).find_map(StopWordPage::allocate_slot) {
            return Ok(slot);
        }
        // Registered without the lock, because the driver may block.
        let mut page = StopWordPage::register(context)?;
        let slot = page.allocate_slot().ok_or("no memory for stop points is left")?;
        pages().push(page);
        Ok(slot)
    }

    pub(crate) fn words(&self) -> &'static StopWords {
        self.words
    }

    /// The device address of [`StopWords::reached`].
    pub(crate) fn reached_address(&self) -> u64 {
        self.device_address + std::mem::offset_of!(StopWords, reached) as u64
    }

    /// The device address of [`StopWords::run`].
    pub(crate) fn run_address(&self) -> u64 {
        self.device_address + std::mem::offset_of!(StopWords, run) as u64
    }

    /// The device address of [`StopWords::passed`].
    pub(crate) fn passed_address(&self) -> u64 {
        self.device_address + std::mem::offset_of!(StopWords, passed) as u64
    }

    /// The device address of a word that is never read.
    pub(crate) fn scratch_address(&self) -> u64 {
        self.device_address + std::mem::offset_of!(StopWords, scratch) as u64
    }

    /// The device address of [`StopWords::held_at`].
    pub(crate) fn held_at_address(&self) -> u64 {
        self.device_address + std::mem::offset_of!(StopWords, held_at) as u64
    }

    /// The device address of [`StopWords::released`].
    pub(crate) fn released_address(&self) -> u64 {
        self.device_address + std::mem::offset_of!(StopWords, released) as u64
    }

    /// Makes the slot available to another stream. Only for a slot that the device no longer writes to: a late write would
    /// count as progress of the next stream. Does nothing if the context was destroyed.
    pub(crate) fn free(&self) {
        let address = std::ptr::from_ref(self.words).addr();
        let offset_in = |page: &StopWordPage| {
            address.checked_sub(page.base.addr().get()).filter(|offset| *offset < PAGE_SIZE)
        };
        for page in pages().iter_mut().filter(|page| page.process == std::process::id()) {
            if let Some(offset) = offset_in(page) {
                page.unused.push(offset / size_of::<StopWords>());
            }
        }
    }
}

/// Gives the device access to a page from the current context. Returns the page's address on the device. Unmaps a page that
/// the driver refuses.
fn map_to_device(base: NonNull<StopWords>) -> Result<u64, String> {
    /// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`.
    const PORTABLE_AND_MAPPED: u32 = 3;
    let functions = vendor::HOST_REGISTER.get().zip(vendor::HOST_DEVICE_POINTER.get());
    let (register, device_pointer) = functions.ok_or("the driver cannot map host memory to the device")?;
    let base = base.as_ptr().cast();
    // SAFETY: the PAGE_SIZE bytes at `base` are mapped, and stay mapped if the driver accepts them.
    match unsafe { register(base, PAGE_SIZE, PORTABLE_AND_MAPPED) } {
        vendor::SUCCESS => {}
        code => {
            // SAFETY: the caller has just mapped the page, has not shared its address, and the driver does not use it.
            unsafe { libc::munmap(base, PAGE_SIZE) };
            return Err(format!("the driver refuses to map host memory to the device (error {code})"));
        }
    }
    let mut device_address = 0;
    // SAFETY: `device_address` has room for an address.
    match unsafe { device_pointer(&raw mut device_address, base, 0) } {
        vendor::SUCCESS => Ok(device_address),
        code => Err(format!("the driver reports no device address for mapped host memory (error {code})")),
    }
}

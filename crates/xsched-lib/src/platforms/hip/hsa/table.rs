//! `ROCr`'s table of functions, as far as we use it.
//!
//! ```text
//!   all tables:  version (16 bytes) | core | AMD's extensions | ...
//!   core:        version (16 bytes) | hsa_init | ...     the version's second word is the table's size in bytes
//! ```
//! Tables only ever grow at their end.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use xsched_ipc::report::{Severity, report};

pub(super) type Status = u32;
pub(super) const SUCCESS: Status = 0;
/// `HSA_STATUS_ERROR_NOT_INITIALIZED`.
pub(super) const NOT_INITIALIZED: Status = 0x100b;

/// `hsa_queue_t`.
#[repr(C)]
pub(super) struct Queue {
    pub(super) kind: u32,
    features: u32,
    pub(super) base: *mut Packet,
    pub(super) doorbell: u64,
    /// Packets that it has room for: a power of two.
    pub(super) size: u32,
    reserved: u32,
    id: u64,
}

pub(super) type QueueHandle = *mut Queue;

/// `HSA_QUEUE_TYPE_MULTI`: any thread may write to it, and so may we.
pub(super) const MANY_WRITERS: u32 = 0;

/// A packet, as a barrier has it.
#[repr(C, align(64))]
pub(super) struct Packet {
    /// What it is, in the lower half; written last.
    pub(super) header: AtomicU32,
    reserved: u32,
    /// What a barrier waits for.
    pub(super) after: [AtomicU64; 5],
    reserved_too: u64,
    /// What is counted down when it is done.
    pub(super) done: u64,
}

const _: () = assert!(size_of::<Packet>() == 64 && std::mem::offset_of!(Queue, doorbell) == 16);

impl Packet {
    pub(super) const BARRIER_AND: u32 = 3;
    pub(super) const BARRIER_OR: u32 = 5;
    /// Dependencies until all before it are done.
    pub(super) const IN_ORDER: u32 = 1 << 8;
}

pub(super) type Store = unsafe extern "C" fn(u64, i64);

/// A function of the core table.
pub(super) struct Slot<F> {
    number: usize,
    found: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

impl<F: Copy> Slot<F> {
    /// # Safety
    /// `F` is the type of the function in this slot.
    const unsafe fn new(number: usize) -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "a function pointer") };
        Self { number, found: AtomicPtr::new(ptr::null_mut()), kind: PhantomData }
    }

    /// None before a runtime has shown its table.
    #[inline]
    pub(super) fn get(&self) -> Option<F> {
        // Acquire: pairs with the Release in `put_hooks`.
        let found = self.found.load(Ordering::Acquire);
        // SAFETY: `F` is as large as a pointer, and by the word of who made this the type of the function.
        (!found.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) })
    }
}

macro_rules! slots {
    ( $( [$number:literal] $ours:ident: fn($($kind:ty),*) $(-> $answer:ty)? $(= $hook:path)?; )* ) => {
        $(
            pub(super) static $ours: Slot<unsafe extern "C" fn($($kind),*) $(-> $answer)?> =
                // SAFETY: the list gives it the type that the vendor's header gives it.
                unsafe { Slot::new($number) };
        )*

        /// For each: its place in the table, where to keep it, and what stands in front of it.
        fn all() -> impl Iterator<Item = (usize, &'static AtomicPtr<c_void>, *mut c_void)> {
            [$( ($ours.number, &$ours.found, slots!(@hook $($hook)?)) ),*].into_iter()
        }
    };
    (@hook) => { ptr::null_mut() };
    (@hook $hook:path) => { $hook as *mut c_void };
}

slots! {
    [6] AGENT_INFO: fn(u64, u32, *mut c_void) -> Status;
    [7] QUEUE_CREATE: fn(u64, u32, u32, *mut c_void, *mut c_void, u32, u32, *mut QueueHandle) -> Status = super::queue_create;
    [9] QUEUE_DESTROY: fn(QueueHandle) -> Status = super::queue_destroy;
    [11] READ_INDEX: fn(QueueHandle) -> u64;
    [14] WRITE_INDEX: fn(QueueHandle) -> u64;
    [17] CHANGE_WRITE_INDEX: fn(QueueHandle, u64, u64) -> u64;
    [37] SIGNAL_CREATE: fn(i64, u32, *const u64, *mut u64) -> Status;
    [38] SIGNAL_DESTROY: fn(u64) -> Status;
    [40] SIGNAL_LOAD: fn(u64) -> i64;
    [41] STORE_RELAXED: fn(u64, i64) = super::store_relaxed;
    [42] STORE_RELEASE: fn(u64, i64) = super::store_release;
}

/// Words of the core table's version, and where in the list of tables it is.
const VERSION_BYTES: usize = 16;
const LARGEST: u32 = 1 << 16;

/// Remembers the functions that we use, and puts ours before them. Answers whether it could: a second runtime in one process
/// is left alone, for what is called does not say whose it is.
///
/// # Safety
/// Null, or the list of tables of a runtime, which lets it be changed at this moment.
pub(super) unsafe fn put_hooks(tables: *mut c_void) -> bool {
    if tables.is_null() {
        return false;
    }
    // SAFETY: by the caller's word; the first table follows the version.
    let core = unsafe { tables.byte_add(VERSION_BYTES).cast::<*mut c_void>().read() };
    if core.is_null() {
        return false;
    }
    // SAFETY: the second word of its version.
    let size = unsafe { core.cast::<u32>().add(1).read() };
    let slot = |number: usize| {
        let offset = VERSION_BYTES + 8 * number;
        let within = size <= LARGEST && offset + 8 <= usize::try_from(size).unwrap_or(0);
        // SAFETY: the table has that many bytes.
        within.then(|| unsafe { core.byte_add(offset).cast::<*mut c_void>() })
    };
    // SAFETY: slots of the table hold functions or null.
    let found = |number: usize| slot(number).map_or(ptr::null_mut(), |slot| unsafe { slot.read() });
    if all().any(|(number, _, _)| found(number).is_null()) {
        return false;
    }
    let changed = |number, hook: *mut c_void| !hook.is_null() && found(number) != hook;
    let known = |(number, place, _): (usize, &AtomicPtr<c_void>, *mut c_void)| {
        let before = place.load(Ordering::Acquire);
        before.is_null() || before == found(number)
    };
    if all().any(|(number, _, hook)| !hook.is_null() && !changed(number, hook)) {
        // The same table once more.
        return true;
    }
    if !all().all(known) {
        return false;
    }
    for (number, place, hook) in all() {
        // Release: pairs with the Acquire in `Slot::get`.
        place.store(found(number), Ordering::Release);
        if let Some(slot) = slot(number).filter(|_| !hook.is_null()) {
            // SAFETY: as above, and it may be changed.
            unsafe { slot.write(hook) };
        }
    }
    let hooks = all().filter(|(_, _, hook)| !hook.is_null()).count();
    let what =
        format_args!("ROCr showed us its table of {size} bytes: we stand before {hooks} of its functions");
    report(Severity::Info, what);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_believed_within_its_size_only() {
        // Too small for the last function that we need; empty; of no sane size.
        for (size, fill) in [(16 + 8 * 42, 1_u64), (16 + 8 * 43, 0), (u32::MAX, 1)] {
            let mut core = vec![fill; 64];
            core[0] = u64::from(size) << 32;
            let mut tables = [0, 0, core.as_mut_ptr().expose_provenance() as u64];
            // SAFETY: a list of tables as the runtime has it.
            assert!(!unsafe { put_hooks(tables.as_mut_ptr().cast()) }, "{size}");
            assert!(core[2..].iter().all(|slot| *slot == fill), "left alone");
        }
        // SAFETY: null is allowed.
        assert!(!unsafe { put_hooks(ptr::null_mut()) });
    }
}

//! `ROCr`'s API table, as far as this platform uses it.
//!
//! ```text
//!   all tables:  version (16 bytes) | core | AMD's extensions | ...
//!   core:        version (16 bytes) | hsa_init | ...     the version's second word is the table's size in bytes
//! ```
//! New versions only add entries at the end.

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
    /// The number of packets in the ring, a power of two.
    pub(super) size: u32,
    reserved: u32,
    id: u64,
}

pub(super) type QueueHandle = *mut Queue;

/// `HSA_QUEUE_TYPE_MULTI`: any thread may write packets, so this library may place markers.
pub(super) const MULTIPLE_PRODUCERS: u32 = 0;

/// A packet, with the layout of a barrier packet.
#[repr(C, align(64))]
pub(super) struct Packet {
    /// The type of the packet in the lower half. Written last.
    pub(super) header: AtomicU32,
    reserved: u32,
    /// The signals that a barrier waits for.
    pub(super) dependencies: [AtomicU64; 5],
    reserved_too: u64,
    /// The signal that is decremented when the packet completes.
    pub(super) completion_signal: u64,
}

const _: () = assert!(size_of::<Packet>() == 64 && std::mem::offset_of!(Queue, doorbell) == 16);

impl Packet {
    pub(super) const BARRIER_AND: u32 = 3;
    pub(super) const BARRIER_OR: u32 = 5;
    /// The packet waits until all packets before it are complete.
    pub(super) const BARRIER_BIT: u32 = 1 << 8;
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
        const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "F is a function pointer") };
        Self { number, found: AtomicPtr::new(ptr::null_mut()), kind: PhantomData }
    }

    /// The function; none before a runtime's table was intercepted.
    #[inline]
    pub(super) fn get(&self) -> Option<F> {
        // Acquire: pairs with the Release in `install_hooks`.
        let found = self.found.load(Ordering::Acquire);
        // SAFETY: `F` has the size of a pointer, and the caller of `new` guarantees that it is the function's type.
        (!found.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) })
    }
}

macro_rules! slots {
    ( $( [$number:literal] $function:ident: fn($($kind:ty),*) $(-> $result:ty)? $(= $hook:path)?; )* ) => {
        $(
            pub(super) static $function: Slot<unsafe extern "C" fn($($kind),*) $(-> $result)?> =
                // SAFETY: the list has the types of the vendor's header.
                unsafe { Slot::new($number) };
        )*

        /// For each function: its slot, the variable for the real function, and its hook, or null.
        fn all() -> impl Iterator<Item = (usize, &'static AtomicPtr<c_void>, *mut c_void)> {
            [$( ($function.number, &$function.found, slots!(@hook $($hook)?)) ),*].into_iter()
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
    [17] EXCHANGE_WRITE_INDEX: fn(QueueHandle, u64, u64) -> u64;
    [37] SIGNAL_CREATE: fn(i64, u32, *const u64, *mut u64) -> Status;
    [38] SIGNAL_DESTROY: fn(u64) -> Status;
    [40] SIGNAL_LOAD: fn(u64) -> i64;
    [41] STORE_RELAXED: fn(u64, i64) = super::store_relaxed;
    [42] STORE_RELEASE: fn(u64, i64) = super::store_release;
}

/// The size of a version, at the beginning of each table.
const VERSION_BYTES: usize = 16;
/// A larger size is not plausible.
const MAX_TABLE_BYTES: u32 = 1 << 16;

/// Stores the real functions and puts the hooks in their slots. Returns false if the table is not as expected, or if it
/// belongs to a second runtime in the process: a hook could not determine which runtime a call is for.
///
/// # Safety
/// `tables` is null or a runtime's list of tables, which the runtime permits to be changed during this call.
pub(super) unsafe fn install_hooks(tables: *mut c_void) -> bool {
    if tables.is_null() {
        return false;
    }
    // SAFETY: the caller guarantees a list of tables; the first entry follows the version.
    let core = unsafe { tables.byte_add(VERSION_BYTES).cast::<*mut c_void>().read() };
    if core.is_null() {
        return false;
    }
    // SAFETY: the second word of the table's version.
    let size = unsafe { core.cast::<u32>().add(1).read() };
    let slot = |number: usize| {
        let offset = VERSION_BYTES + 8 * number;
        let is_within = size <= MAX_TABLE_BYTES && offset + 8 <= usize::try_from(size).unwrap_or(0);
        // SAFETY: the table has that many bytes.
        is_within.then(|| unsafe { core.byte_add(offset).cast::<*mut c_void>() })
    };
    // SAFETY: slots of the table hold functions or null.
    let function = |number: usize| slot(number).map_or(ptr::null_mut(), |slot| unsafe { slot.read() });
    if all().any(|(number, _, _)| function(number).is_null()) {
        return false;
    }
    if all().any(|(number, _, hook)| !hook.is_null() && function(number) == hook) {
        // The table was intercepted before.
        return true;
    }
    let is_new_or_same = |(number, stored, _): (usize, &AtomicPtr<c_void>, *mut c_void)| {
        let before = stored.load(Ordering::Acquire);
        before.is_null() || before == function(number)
    };
    if !all().all(is_new_or_same) {
        return false;
    }
    for (number, stored, hook) in all() {
        // Release: pairs with the Acquire in `Slot::get`.
        stored.store(function(number), Ordering::Release);
        if let Some(slot) = slot(number).filter(|_| !hook.is_null()) {
            // SAFETY: a slot of the table, which may be changed.
            unsafe { slot.write(hook) };
        }
    }
    let hooks = all().filter(|(_, _, hook)| !hook.is_null()).count();
    report(
        Severity::Info,
        format_args!("ROCr's API table of {size} bytes was intercepted: {hooks} functions are hooked"),
    );
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_with_missing_functions_are_not_changed() {
        // Too small for the last hooked function; with null functions; with a size that is not plausible.
        for (size, fill) in [(16 + 8 * 42, 1_u64), (16 + 8 * 43, 0), (u32::MAX, 1)] {
            let mut core = vec![fill; 64];
            core[0] = u64::from(size) << 32;
            let mut tables = [0, 0, core.as_mut_ptr().expose_provenance() as u64];
            // SAFETY: a list of tables with the runtime's layout.
            assert!(!unsafe { install_hooks(tables.as_mut_ptr().cast()) }, "{size}");
            assert!(core[2..].iter().all(|slot| *slot == fill), "the table was changed");
        }
        // SAFETY: null is allowed.
        assert!(!unsafe { install_hooks(ptr::null_mut()) });
    }
}

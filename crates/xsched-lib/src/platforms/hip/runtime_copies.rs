//! Copies of the HIP runtime. A process may have several: the system's, and one that a Python package brought along.
//! Streams and code objects of one copy are unknown to the other, so every call must go to the copy that its caller uses.
//!
//! ```text
//!   by table:    the copy passes its API table to this library; its entries become  hook::<copy>
//!   by look-up:  the loader found the function in a copy; the program gets          hook::<copy>
//!   by name:     an export was called ──► the copy that the caller's library uses ──► hook::<copy>
//!                                          └ determined once for each call site, then cached in a table
//! ```
//!
//! Every hook exists once for each copy, so that it knows its copy without a look-up. A copy that passes its table and is
//! also called by name has two entries here: then the outer hook does the work, and the inner one only forwards.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use xsched_interpose::run_isolated;
use xsched_ipc::report::{Severity, report};

use crate::loader::{next_definition, real_dlsym};

/// Calls to further copies are forwarded without being scheduled.
pub(super) const MAX_COPIES: usize = 8;

/// How the calls to a copy are intercepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Interception {
    /// By the names of its functions.
    Name = 1,
    /// By its API table.
    Table,
}

/// One copy, intercepted in one way.
struct RuntimeCopy {
    /// The address where it is mapped; 0 for an unused entry.
    base: AtomicUsize,
    /// An [`Interception`]; 0 for an unused entry.
    interception: AtomicU8,
    /// The loader's handle, which is never closed.
    handle: AtomicPtr<c_void>,
}

static COPIES: [RuntimeCopy; MAX_COPIES] = [const {
    RuntimeCopy {
        base: AtomicUsize::new(0),
        interception: AtomicU8::new(0),
        handle: AtomicPtr::new(ptr::null_mut()),
    }
}; MAX_COPIES];

/// The hooks of one function.
pub(super) struct Hook {
    /// Unique, and not 0.
    pub(super) number: u16,
    pub(super) name: &'static CStr,
    /// The function's slot in the API table.
    pub(super) slot: Option<usize>,
    /// This library's export of the same name.
    pub(super) export: *const c_void,
    /// The hook for each copy.
    pub(super) hooked: [*const c_void; MAX_COPIES],
    /// The real function of each copy.
    pub(super) real: &'static [AtomicPtr<c_void>; MAX_COPIES],
    /// Called if the process has no copy of the runtime.
    pub(super) missing: *const c_void,
}

// SAFETY: the pointers are addresses of functions, which never change.
unsafe impl Sync for Hook {}

/// The address where a copy is mapped. Equal for two entries of the same copy.
pub(super) fn base(copy: usize) -> usize {
    COPIES[copy].base.load(Ordering::Acquire)
}

/// The address of a function in a copy; null if it has none of this name.
pub(super) fn look_up(copy: usize, name: &CStr) -> *mut c_void {
    let handle = COPIES[copy].handle.load(Ordering::Acquire);
    if handle.is_null() {
        return handle;
    }
    // SAFETY: the loader returned the handle, which is never closed; the name is a C string.
    unsafe { real_dlsym()(handle, name.as_ptr()) }
}

/// The function to return to a program that looked up `found`: the hook for the copy that `found` belongs to.
pub(super) fn put_before(hook: &'static Hook, found: *mut c_void) -> *mut c_void {
    let is_own = found.cast_const() == hook.export || hook.hooked.contains(&found.cast_const());
    let Some(library) = Library::of(found).filter(|_| !is_own) else { return found };
    let is_hooked_by_table = |copy: usize| {
        COPIES[copy].matches(library.base, Interception::Table)
            && !hook.real[copy].load(Ordering::Acquire).is_null()
    };
    if (0..MAX_COPIES).any(is_hooked_by_table) {
        // The function dispatches through the copy's table, which leads to the hook.
        return found;
    }
    let Some(copy) = register(&library, Interception::Name) else { return found };
    // Release: a thread that calls the hook sees the real function. Pairs with the Acquire in the hook.
    hook.real[copy].store(found, Ordering::Release);
    hook.hooked[copy].cast_mut()
}

/// The library that contains an address.
pub(super) struct Library {
    base: usize,
    file: *const std::ffi::c_char,
}

impl Library {
    pub(super) fn of(address: *const c_void) -> Option<Self> {
        // SAFETY: all zero is a valid value of this struct of addresses.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: `info` has room for the result; any address may be looked up.
        let is_found = unsafe { libc::dladdr(address, &raw mut info) } != 0;
        (is_found && !info.dli_fname.is_null())
            .then_some(Self { base: info.dli_fbase.addr(), file: info.dli_fname })
    }

    /// A handle of the loader. Loads nothing.
    fn handle(&self) -> *mut c_void {
        // SAFETY: the loader's own C string of a library that is loaded.
        unsafe { libc::dlopen(self.file, libc::RTLD_LAZY | libc::RTLD_NOLOAD) }
    }
}

impl RuntimeCopy {
    fn matches(&self, base: usize, interception: Interception) -> bool {
        self.base.load(Ordering::Acquire) == base
            && self.interception.load(Ordering::Acquire) == interception as u8
    }
}

/// The index of a copy, which is added if it is new. None if there are too many.
pub(super) fn register(library: &Library, interception: Interception) -> Option<usize> {
    for (index, copy) in COPIES.iter().enumerate() {
        if copy.matches(library.base, interception) {
            return Some(index);
        }
        let claimed =
            copy.interception.compare_exchange(0, interception as u8, Ordering::AcqRel, Ordering::Acquire);
        if claimed.is_ok() {
            copy.handle.store(library.handle(), Ordering::Release);
            copy.base.store(library.base, Ordering::Release);
            return Some(index);
        }
        // Another thread may be adding the same library here. Then it gets a second entry, which only costs memory.
    }
    report(
        Severity::Warning,
        format_args!(
            "more than {MAX_COPIES} HIP runtimes in this process, or ways to reach them: calls to the others are not scheduled"
        ),
    );
    None
}

/// The copies of the process, one index for each: those in use, and those that are loaded but were not called yet. A
/// library is a copy of the runtime if it has the function of `hook`.
pub(super) fn all(hook: &'static Hook) -> Vec<usize> {
    for name in crate::loaded_libraries::names() {
        // SAFETY: the loader's own name of a library; loads nothing.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            continue;
        }
        // SAFETY: the handle is valid, and the name is a C string.
        let found = unsafe { real_dlsym()(handle, hook.name.as_ptr()) };
        let library = Library::of(found).filter(|_| !found.is_null() && found.cast_const() != hook.export);
        let is_new = |library: &Library| (0..MAX_COPIES).all(|copy| base(copy) != library.base);
        if let Some(library) = library.filter(is_new) {
            register(&library, Interception::Name);
        }
        // SAFETY: opened above, and not used afterwards.
        unsafe { libc::dlclose(handle) };
    }
    let is_first = |copy: &usize| base(*copy) != 0 && (0..*copy).all(|before| base(before) != base(*copy));
    (0..MAX_COPIES).filter(is_first).collect()
}

/// The number of copies in use, and whether one of them is intercepted by its table.
pub(super) fn count() -> (usize, bool) {
    let bases = || COPIES.iter().map(|copy| copy.base.load(Ordering::Acquire)).filter(|base| *base != 0);
    let mut distinct: Vec<_> = bases().collect();
    distinct.sort_unstable();
    distinct.dedup();
    let is_by_table =
        |copy: &RuntimeCopy| copy.interception.load(Ordering::Acquire) == Interception::Table as u8;
    (distinct.len(), COPIES.iter().any(is_by_table))
}

/// A call site of an export, and the function that its calls go to.
struct CallSite {
    /// The return address of the call, with the number of the hook in the upper 16 bits; 0 for an unused entry.
    key: AtomicU64,
    target: AtomicPtr<c_void>,
}

const CALL_SITES: usize = 4096;
/// How many entries are searched for a call site. One that finds no room is determined again at each call.
const PROBE_LENGTH: usize = 16;
static SITES: [CallSite; CALL_SITES] =
    [const { CallSite { key: AtomicU64::new(0), target: AtomicPtr::new(ptr::null_mut()) } }; CALL_SITES];

fn probe(key: u64) -> impl Iterator<Item = &'static CallSite> {
    let start = usize::try_from(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40).unwrap_or(0);
    (0..PROBE_LENGTH).map(move |n| &SITES[(start + n) % CALL_SITES])
}

/// The function that a call of an export goes to, by the call's return address.
///
/// # Safety
/// Called by the exports only, with the hook of their name.
pub(super) unsafe extern "C" fn select_target(return_address: usize, hook: &'static Hook) -> *const c_void {
    // User space addresses have 47 bits.
    let key = (return_address as u64) | (u64::from(hook.number) << 48);
    for site in probe(key) {
        match site.key.load(Ordering::Acquire) {
            0 => break,
            other if other != key => {}
            _ => {
                let target = site.target.load(Ordering::Acquire);
                if !target.is_null() {
                    return target;
                }
                break;
            }
        }
    }
    determine_target(return_address, key, hook)
}

#[cold]
fn determine_target(return_address: usize, key: u64, hook: &'static Hook) -> *const c_void {
    let mut target = hook.missing.cast_mut();
    run_isolated(|| {
        let found = function_for_caller(return_address, hook);
        if found.is_null() {
            return;
        }
        target = put_before(hook, found);
        for site in probe(key) {
            let claimed = site.key.compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire);
            if claimed.is_ok() || claimed == Err(key) {
                site.target.store(target, Ordering::Release);
                break;
            }
        }
    });
    target
}

/// The real function that the calling library would reach without this library: first among the libraries that it is linked to,
/// then in the global scope, then in the first copy.
fn function_for_caller(return_address: usize, hook: &Hook) -> *mut c_void {
    let is_real = |found: &*mut c_void| !found.is_null() && found.cast_const() != hook.export;
    let in_its_own_scope = || {
        let handle = Library::of(ptr::without_provenance(return_address))?.handle();
        // SAFETY: the loader has just returned the handle, which is not null; the name is a C string.
        (!handle.is_null()).then(|| unsafe { real_dlsym()(handle, hook.name.as_ptr()) }).filter(is_real)
    };
    let in_first_copy = || (0..MAX_COPIES).map(|copy| look_up(copy, hook.name)).find(is_real);
    in_its_own_scope()
        .or_else(|| Some(next_definition(hook.name)).filter(is_real))
        .or_else(in_first_copy)
        .unwrap_or(ptr::null_mut())
}

//! Copies of the HIP runtime. A process may have several: the system's, and one that a Python package brought along.
//! Streams and code objects of one copy are unknown to the other, so every call must go to the copy that its caller uses.
//!
//! ```text
//!   by table:    the copy passes its API table to this library; its entries become  hook::<copy>
//!   by look-up:  the loader found the function in a copy; the program gets          hook::<copy>
//!   by name:     an export was called ──► the copy that the caller's library uses ──► hook::<copy>
//!                                          └ determined once for each call site
//! ```
//!
//! Every hook exists once for each copy, so that it knows its copy without a look-up. A copy that passes its table and is
//! also called by name has two entries here: then the outer hook does the work, and the inner one only forwards.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicUsize, Ordering};

use xsched_ipc::report::{Severity, report};

use super::VENDOR;
use crate::loaded_libraries::{LoadedLibrary, libraries_where};
use crate::loader::call_sites;
use crate::loader::elf::Kind;

pub(super) use crate::hooks::MAX_COPIES;

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
    /// Whether the copy stays loaded until the process exits.
    is_kept_loaded: AtomicBool,
}

static COPIES: [RuntimeCopy; MAX_COPIES] = [const {
    RuntimeCopy {
        base: AtomicUsize::new(0),
        interception: AtomicU8::new(0),
        is_kept_loaded: AtomicBool::new(false),
    }
}; MAX_COPIES];

/// The hooks of one function.
pub(super) struct Hook {
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
    let library = LoadedLibrary::containing(ptr::without_provenance(base(copy)));
    library.map_or(ptr::null_mut(), |library| library.function_in_scope(name))
}

/// Keeps a copy loaded until the process exits, because the runtime thread calls it. A thread of the program has called one of
/// the copy's functions, so its constructors have run.
pub(super) fn keep_loaded(copy: usize) {
    let is_done = COPIES[copy].is_kept_loaded.swap(true, Ordering::AcqRel);
    let library = LoadedLibrary::containing(ptr::without_provenance(base(copy)));
    if let Some(library) = library.filter(|_| !is_done) {
        library.keep_loaded();
    }
}

/// The function to return to a program that looked up `found`: the hook for the copy that `found` belongs to. Functions of
/// libraries that only have the runtime's names are returned as they are.
pub(super) fn put_before(hook: &'static Hook, found: *mut c_void) -> *mut c_void {
    let is_own = found.cast_const() == hook.export || hook.hooked.contains(&found.cast_const());
    let library = LoadedLibrary::containing(found).filter(|_| !is_own);
    let Some(library) = library.filter(|library| library.is(|image| VENDOR.is_of(image))) else {
        return found;
    };
    let is_hooked_by_table = |copy: usize| {
        COPIES[copy].matches(library.start(), Interception::Table)
            && !hook.real[copy].load(Ordering::Acquire).is_null()
    };
    if (0..MAX_COPIES).any(is_hooked_by_table) {
        // The function dispatches through the copy's table, which leads to the hook.
        return found;
    }
    let Some(copy) = register(library, Interception::Name) else { return found };
    // Release: a thread that calls the hook sees the real function. Pairs with the Acquire in the hook.
    hook.real[copy].store(found, Ordering::Release);
    hook.hooked[copy].cast_mut()
}

impl RuntimeCopy {
    fn matches(&self, base: usize, interception: Interception) -> bool {
        self.base.load(Ordering::Acquire) == base
            && self.interception.load(Ordering::Acquire) == interception as u8
    }
}

/// The index of a copy, which is added if it is new. None if there are too many.
pub(super) fn register(library: LoadedLibrary, interception: Interception) -> Option<usize> {
    for (index, copy) in COPIES.iter().enumerate() {
        if copy.matches(library.start(), interception) {
            return Some(index);
        }
        let claimed =
            copy.interception.compare_exchange(0, interception as u8, Ordering::AcqRel, Ordering::Acquire);
        if claimed.is_ok() {
            copy.base.store(library.start(), Ordering::Release);
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

/// The copies of the process, one index for each: those in use, and those that are loaded but were not called yet.
pub(super) fn all(hook: &'static Hook) -> Vec<usize> {
    let has_function =
        libraries_where(|image| image.find(hook.name, Kind::Function).is_some() && VENDOR.is_of(image));
    for library in has_function {
        if (0..MAX_COPIES).all(|copy| base(copy) != library.start()) {
            register(library, Interception::Name);
        }
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

/// The function that a call of an export goes to, by the call's return address.
///
/// # Safety
/// Called by the exports only, with the hook of their name.
pub(super) unsafe extern "C" fn select_target(return_address: usize, hook: &'static Hook) -> *const c_void {
    call_sites::target_in_caller_copy(return_address, hook, hook.missing)
}

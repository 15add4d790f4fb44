//! Copies of the runtime. A process may hold several: the system's, and one that a Python package brought along.
//! What belongs to one is unknown to the other, so a call goes on to the copy that its caller uses, always.
//!
//! ```text
//!   by table:   the copy hands us its table of functions; what stands there leads to  hook::<copy>
//!   by look-up: the loader found the function in a copy;  the answer is               hook::<copy>
//!   by name:    our export was called; who called? ──► the copy that the caller's library sees ──► hook::<copy>
//!                                        └ asked once for each place that calls; then one look into a table
//! ```
//!
//! Every hook exists once for each copy, so that it knows its own without asking. A copy that gives us its table and
//! is also reached by name counts as two here: the outer hook is at work then, and the inner one goes straight on.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use xsched_interpose::run_isolated;
use xsched_ipc::report::{Severity, report};

use crate::loader::{next_definition, real_dlsym};

/// Copies that are told apart. What comes from further ones is left alone.
pub(super) const MOST: usize = 8;

/// How we came before a copy's functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Way {
    /// By the names of its functions.
    Name = 1,
    /// By the table that it handed to us.
    Table,
}

/// One copy, reached in one way.
struct Copy {
    /// Where it is mapped; 0: no copy yet.
    base: AtomicUsize,
    way: AtomicU8,
    /// The loader's handle of it, which is never closed.
    handle: AtomicPtr<c_void>,
}

static COPIES: [Copy; MOST] = [const {
    Copy { base: AtomicUsize::new(0), way: AtomicU8::new(0), handle: AtomicPtr::new(ptr::null_mut()) }
}; MOST];

/// One function that we stand in front of.
pub(super) struct Hook {
    /// Different for each, and less than 65536.
    pub(super) number: u16,
    pub(super) name: &'static CStr,
    /// Its place in the table of functions.
    pub(super) slot: Option<usize>,
    /// What we export under its name.
    pub(super) export: *const c_void,
    /// What stands in front of it, for each copy.
    pub(super) hooked: [*const c_void; MOST],
    /// The real one, of each copy.
    pub(super) real: &'static [AtomicPtr<c_void>; MOST],
    /// What answers if there is no copy at all.
    pub(super) missing: *const c_void,
}

// SAFETY: the pointers are addresses of functions, which never change.
unsafe impl Sync for Hook {}

/// Where a copy is mapped: what tells copies apart, however they were reached.
pub(super) fn base(copy: usize) -> usize {
    COPIES[copy].base.load(Ordering::Acquire)
}

/// The function of this name in a copy.
pub(super) fn look_up(copy: usize, name: &CStr) -> *mut c_void {
    let handle = COPIES[copy].handle.load(Ordering::Acquire);
    if handle.is_null() {
        return handle;
    }
    // SAFETY: a handle that the loader gave us and that is never closed, and a C string.
    unsafe { real_dlsym()(handle, name.as_ptr()) }
}

/// What to answer with where `found` was looked up: our hook for the copy it belongs to.
pub(super) fn put_before(hook: &'static Hook, found: *mut c_void) -> *mut c_void {
    let ours = found.cast_const() == hook.export || hook.hooked.contains(&found.cast_const());
    let Some(library) = Library::of(found).filter(|_| !ours) else { return found };
    let in_its_table = |copy: usize| {
        COPIES[copy].is(library.base, Way::Table) && !hook.real[copy].load(Ordering::Acquire).is_null()
    };
    if (0..MOST).any(in_its_table) {
        // The real function goes through the table, and so through us.
        return found;
    }
    let Some(copy) = note(&library, Way::Name) else { return found };
    // Release: who finds the hook finds the real function. Pairs with the Acquire in the hook.
    hook.real[copy].store(found, Ordering::Release);
    hook.hooked[copy].cast_mut()
}

/// The library an address lies in.
pub(super) struct Library {
    base: usize,
    file: *const std::ffi::c_char,
}

impl Library {
    pub(super) fn of(address: *const c_void) -> Option<Self> {
        // SAFETY: all zero is a valid value of this plain struct of addresses.
        let mut whose: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: the place is large enough; the address may be any.
        let known = unsafe { libc::dladdr(address, &raw mut whose) } != 0;
        (known && !whose.dli_fname.is_null())
            .then_some(Self { base: whose.dli_fbase.addr(), file: whose.dli_fname })
    }

    /// The loader's handle. Nothing new is loaded.
    fn handle(&self) -> *mut c_void {
        // SAFETY: the C string that the loader keeps for a library that is loaded.
        unsafe { libc::dlopen(self.file, libc::RTLD_LAZY | libc::RTLD_NOLOAD) }
    }
}

impl Copy {
    fn is(&self, base: usize, way: Way) -> bool {
        self.base.load(Ordering::Acquire) == base && self.way.load(Ordering::Acquire) == way as u8
    }
}

/// The number of a copy, which is taken note of if it is new. None if there are too many.
pub(super) fn note(library: &Library, way: Way) -> Option<usize> {
    for (number, copy) in COPIES.iter().enumerate() {
        if copy.is(library.base, way) {
            return Some(number);
        }
        if copy.way.compare_exchange(0, way as u8, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            copy.handle.store(library.handle(), Ordering::Release);
            copy.base.store(library.base, Ordering::Release);
            return Some(number);
        }
        // Somebody is taking it at this moment, perhaps for the same library: then it counts twice, which does no
        // harm but for its cost.
    }
    report(
        Severity::Warning,
        format_args!(
            "more than {MOST} ways lead to HIP runtimes in this process: what goes further ones is not scheduled"
        ),
    );
    None
}

/// All copies in the process, each once: those that have shown themselves, and those that are loaded and were not called yet,
/// which are known by a function that all have.
pub(super) fn all(has: &'static Hook) -> Vec<usize> {
    for name in crate::loaded_libraries::names() {
        // SAFETY: the loader's own name of a library; nothing new is loaded.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            continue;
        }
        // SAFETY: the handle is good, and the name a C string.
        let found = unsafe { real_dlsym()(handle, has.name.as_ptr()) };
        let library = Library::of(found).filter(|_| !found.is_null() && found.cast_const() != has.export);
        if let Some(library) = library.filter(|library| (0..MOST).all(|copy| base(copy) != library.base)) {
            note(&library, Way::Name);
        }
        // SAFETY: opened above, and used no more.
        unsafe { libc::dlclose(handle) };
    }
    let is_first = |copy: &usize| base(*copy) != 0 && (0..*copy).all(|before| base(before) != base(*copy));
    (0..MOST).filter(is_first).collect()
}

/// How many copies the process has shown so far, and whether one of them came with its table.
pub(super) fn count() -> (usize, bool) {
    let bases = || COPIES.iter().map(|copy| copy.base.load(Ordering::Acquire)).filter(|base| *base != 0);
    let mut known: Vec<_> = bases().collect();
    known.sort_unstable();
    known.dedup();
    let tabled = COPIES.iter().any(|copy| copy.way.load(Ordering::Acquire) == Way::Table as u8);
    (known.len(), tabled)
}

/// Places in programs that call our exports, and where each call goes.
struct Site {
    /// The address behind the call, and the number of the hook above it; 0: nobody yet.
    key: AtomicU64,
    target: AtomicPtr<c_void>,
}

const SITES: usize = 4096;
const FURTHEST: usize = 16;
static CALLS: [Site; SITES] =
    [const { Site { key: AtomicU64::new(0), target: AtomicPtr::new(ptr::null_mut()) } }; SITES];

fn search(key: u64) -> impl Iterator<Item = &'static Site> {
    let home = usize::try_from(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40).unwrap_or(0);
    (0..FURTHEST).map(move |n| &CALLS[(home + n) % SITES])
}

/// Where a call of an export goes on, by the address that it returns to.
///
/// # Safety
/// Called by the exports alone, with the hook of their name.
pub(super) unsafe extern "C" fn choose(site: usize, hook: &'static Hook) -> *const c_void {
    // Addresses of programs have 47 bits.
    let key = (site as u64) | (u64::from(hook.number) << 48);
    for place in search(key) {
        match place.key.load(Ordering::Acquire) {
            0 => break,
            other if other != key => {}
            _ => {
                let target = place.target.load(Ordering::Acquire);
                if !target.is_null() {
                    return target;
                }
                break;
            }
        }
    }
    decide(site, key, hook)
}

#[cold]
fn decide(site: usize, key: u64, hook: &'static Hook) -> *const c_void {
    let mut target = hook.missing.cast_mut();
    run_isolated(|| {
        let found = seen_by(site, hook);
        if found.is_null() {
            return;
        }
        target = put_before(hook, found);
        for place in search(key) {
            let taken = place.key.compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire);
            if taken.is_ok() || taken == Err(key) {
                place.target.store(target, Ordering::Release);
                break;
            }
        }
    });
    target
}

/// The function as the library sees it that calls from `site`: among what it needs itself, then among what everybody
/// sees, then in the first copy there is.
fn seen_by(site: usize, hook: &Hook) -> *mut c_void {
    let is_real = |found: &*mut c_void| !found.is_null() && found.cast_const() != hook.export;
    let in_its_own = || {
        let handle = Library::of(ptr::without_provenance(site))?.handle();
        // SAFETY: a handle the loader has just given us, or null, which is ruled out; and a C string.
        (!handle.is_null()).then(|| unsafe { real_dlsym()(handle, hook.name.as_ptr()) }).filter(is_real)
    };
    let in_first_copy = || (0..MOST).map(|copy| look_up(copy, hook.name)).find(is_real);
    in_its_own()
        .or_else(|| Some(next_definition(hook.name)).filter(is_real))
        .or_else(in_first_copy)
        .unwrap_or(ptr::null_mut())
}

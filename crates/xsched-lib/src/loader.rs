//! Hooks of the loader's look-up functions, `dlsym` and `dlvsym`: most programs reach a vendor's library through them.
//!
//! ```text
//!   dlsym(handle, name) ──► is the name hooked? ──no──► jump to the real dlsym
//!                                │yes
//!                                ▼
//!               call the real dlsym, store the function that it found, return the hook
//! ```
//! A look-up in all libraries (`RTLD_DEFAULT`, `RTLD_NEXT`) would find the export even if the vendor's library is not
//! loaded. Programs test in this way whether it is, so such a look-up fails unless another library defines the function.
//! Functions of other libraries that only have a vendor's names are returned as they are ([`vendor_library`]).
//!
//! The real `dlsym` derives its caller from its return address. For names that are not hooked the trampoline therefore
//! jumps to it instead of calling it. The hooks can run before any constructor, this library's and Rust's included: they
//! take no lock, allocate nothing, and use no state but statics and atomics.
//!
//! Neither function can be used to look up the other one, because both are hooked: [`elf`] reads the symbol tables instead.

pub(crate) mod call_sites;
pub(crate) mod elf;
pub(crate) use elf::register_fork_handlers;
mod vendor_library;

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::loaded_libraries::{self, LoadedLibrary};
use crate::platforms::PLATFORMS;
pub(crate) use vendor_library::{Function, Hook, VendorIdentity, VendorLibrary, select_target};

/// The hooks of one vendor library, as `dlsym` searches them. Implementations take no lock and allocate nothing.
pub(crate) trait HookTable: Sync {
    /// The hook for a name, if it is hooked.
    fn find_hook(&self, name: SymbolName) -> Option<&'static dyn LookupHook>;
}

/// A hook that `dlsym` returns in place of a vendor's function.
pub(crate) trait LookupHook: Sync {
    /// The name of the vendor's function.
    fn name(&self) -> &'static CStr;

    /// How the vendor's library is recognized.
    fn vendor(&self) -> &'static VendorIdentity;

    /// Stores the function that was found, and returns the hook that forwards to it. Returns the function itself if it is not
    /// the vendor's.
    fn replace(&'static self, found: *mut c_void) -> *mut c_void;

    /// Whether the hook already forwards to another function than `found`, and can forward to one only.
    fn forwards_elsewhere(&self, found: *mut c_void) -> bool {
        let _ = found;
        false
    }
}

/// A name that is looked up.
///
/// It is compared byte by byte. `strlen` and `strcmp` can belong to a sanitizer, and sanitizers call `dlsym` before their
/// own functions work.
#[derive(Clone, Copy)]
pub(crate) struct SymbolName(*const u8);

impl SymbolName {
    /// The name; none if it is null.
    ///
    /// # Safety
    /// The name is null or a C string that outlives the value.
    pub(crate) unsafe fn new(name: *const c_char) -> Option<Self> {
        (!name.is_null()).then_some(Self(name.cast()))
    }

    /// Whether the name begins with these bytes.
    pub(crate) fn starts_with(self, start: &[u8]) -> bool {
        // SAFETY: `new` received a C string. The first byte that differs ends the comparison, so that it does not read
        // past the terminating zero.
        start.iter().enumerate().all(|(n, byte)| unsafe { *self.0.add(n) } == *byte)
    }

    /// Whether the name is this one.
    pub(crate) fn is(self, name: &CStr) -> bool {
        self.starts_with(name.to_bytes_with_nul())
    }
}

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static REAL_DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "libxsched.so supports x86-64 and AArch64 only: the dlsym trampolines in loader.rs are written in assembly"
);

/// Looks up a symbol.
///
/// # Safety
/// The caller obeys the contract of the loader's `dlsym`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn dlsym(_handle: *mut c_void, _name: *const c_char) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        // The return address identifies the caller.
        "mov rdx, qword ptr [rsp]",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {decide}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "cmp rax, {not_found}",
        "je 3f",
        "test rax, rax",
        "jne 2f",
        // The caller's arguments and return address are in place: the real function sees its true caller.
        "mov rax, qword ptr [rip + {real}]",
        "jmp rax",
        "3:",
        "xor eax, eax",
        "2:",
        "ret",
        not_found = const NOT_FOUND,
        decide = sym decide,
        real = sym REAL_DLSYM,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        // The return address identifies the caller.
        "mov x2, x30",
        "bl {decide}",
        "mov x9, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "cmp x9, #{not_found}",
        "b.eq 3f",
        "cbnz x9, 2f",
        // The caller's arguments and return address are in place: the real function sees its true caller.
        "adrp x16, {real}",
        "ldr x16, [x16, :lo12:{real}]",
        "br x16",
        "3:",
        "mov x9, xzr",
        "2:",
        "mov x0, x9",
        "ret",
        not_found = const NOT_FOUND,
        decide = sym decide,
        real = sym REAL_DLSYM,
    );
}

/// Looks up one version of a symbol.
///
/// # Safety
/// The caller obeys the contract of the loader's `dlvsym`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn dlvsym(
    _handle: *mut c_void,
    _name: *const c_char,
    _version: *const c_char,
) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "call {decide}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jne 2f",
        // As in `dlsym`.
        "mov rax, qword ptr [rip + {real}]",
        "jmp rax",
        "2:",
        "ret",
        decide = sym decide_version,
        real = sym REAL_DLVSYM,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "stp x29, x30, [sp, #-48]!",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "str x2, [sp, #32]",
        "bl {decide}",
        "mov x9, x0",
        "ldp x0, x1, [sp, #16]",
        "ldr x2, [sp, #32]",
        "ldp x29, x30, [sp], #48",
        "cbnz x9, 2f",
        // As in `dlsym`.
        "adrp x16, {real}",
        "ldr x16, [x16, :lo12:{real}]",
        "br x16",
        "2:",
        "mov x0, x9",
        "ret",
        decide = sym decide_version,
        real = sym REAL_DLVSYM,
    );
}

/// [`decide`] returns it if only this library defines the function.
const NOT_FOUND: usize = 1;

/// Returns the hook for a hooked name, [`NOT_FOUND`], or null if the real `dlsym` is to be called.
unsafe extern "C" fn decide(handle: *mut c_void, name: *const c_char, caller: *const c_void) -> *mut c_void {
    let real = real_dlsym();
    // SAFETY: the caller of `dlsym` passes a C string, or null.
    let Some(hook) = (unsafe { SymbolName::new(name) }).and_then(find_hook) else {
        return std::ptr::null_mut();
    };
    if searches_all_libraries(handle) {
        if handle == libc::RTLD_NEXT && !loaded_libraries::is_before_us(caller) {
            // The look-up begins behind this library.
            return std::ptr::null_mut();
        }
        // What the look-up finds without this library. If that is nothing, `dlerror` reports the failure, as it would then.
        // SAFETY: a handle that is always valid, and a C string.
        let found = unsafe { real(libc::RTLD_NEXT, name) };
        if !found.is_null() && !loaded_libraries::is_in_a_copy(found) {
            return hook.replace(found);
        }
        // The vendor's library may be in the caller's own scope, and the real look-up finds this library's export first.
        let is_loaded = !vendor_definition(hook).is_null();
        return if is_loaded { std::ptr::null_mut() } else { std::ptr::without_provenance_mut(NOT_FOUND) };
    }
    if bypasses_hook(hook.name(), caller) {
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's own arguments.
    let found = unsafe { real(handle, name) };
    if found.is_null() { found } else { hook.replace(found) }
}

/// The same for one version of a name. A hook forwards to the version that was looked up first; the other versions are
/// returned as they are.
unsafe extern "C" fn decide_version(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    let real = real_dlvsym();
    // SAFETY: the caller of `dlvsym` passes a C string, or null.
    let hook = (unsafe { SymbolName::new(name) }).and_then(find_hook);
    let Some(hook) = hook.filter(|_| !searches_all_libraries(handle)) else { return std::ptr::null_mut() };
    if bypasses_hook(hook.name(), std::ptr::null()) {
        return std::ptr::null_mut();
    }
    // SAFETY: the caller's own arguments.
    let found = unsafe { real(handle, name, version) };
    if found.is_null() || hook.forwards_elsewhere(found) { found } else { hook.replace(found) }
}

fn searches_all_libraries(handle: *mut c_void) -> bool {
    handle == libc::RTLD_NEXT || handle == libc::RTLD_DEFAULT
}

/// The hook for a name; none in a copy of the library that is inactive.
fn find_hook(name: SymbolName) -> Option<&'static dyn LookupHook> {
    let tables = PLATFORMS.iter().flat_map(|platform| platform.hooks);
    let hook = tables.into_iter().find_map(|table| table.find_hook(name));
    let hook = hook.or_else(|| crate::collectives::HOOKS.find_hook(name))?;
    (!crate::duplicate_library::is_inactive_duplicate()).then_some(hook)
}

fn bypasses_hook(name: &CStr, caller: *const c_void) -> bool {
    PLATFORMS.iter().filter_map(|platform| platform.bypasses_hook).any(|bypasses| bypasses(name, caller))
}

/// The vendor's definition of a hooked function in any loaded library; null if there is none.
fn vendor_definition(hook: &dyn LookupHook) -> *mut c_void {
    loaded_libraries::next_function_where(hook.name(), |image| hook.vendor().is_of(image))
}

/// The vendor's definition of a function: in the libraries after this one, for programs that are linked to the vendor's
/// library; otherwise in any loaded library. Null if there is none.
pub(crate) fn next_definition(name: &'static CStr, vendor: &VendorIdentity) -> *mut c_void {
    let next = next_in_global_scope(name);
    if !next.is_null() && vendor.accepts(next) {
        return next;
    }
    loaded_libraries::next_function_where(name, |image| vendor.is_of(image))
}

/// What the library that contains `caller` would have called under this name without this library: the definition in the
/// global scope, else its own or that of a library that it is linked to. If neither has one, the vendor's, else any. Null if
/// there is none.
pub(crate) fn definition_for_caller(
    caller: *const c_void,
    name: &'static CStr,
    vendor: &VendorIdentity,
) -> *mut c_void {
    let in_scope = || {
        let library = LoadedLibrary::containing(caller);
        library.map_or(std::ptr::null_mut(), |library| library.function_in_scope(name))
    };
    let vendors = || loaded_libraries::next_function_where(name, |image| vendor.is_of(image));
    let any = || loaded_libraries::next_function(name);
    let steps: [&dyn Fn() -> *mut c_void; 4] = [&|| next_in_global_scope(name), &in_scope, &vendors, &any];
    steps.into_iter().map(|find| find()).find(|found| !found.is_null()).unwrap_or(std::ptr::null_mut())
}

/// The definition of a function in the libraries of the global scope after this one. The loader's lock is taken, which a
/// thread that runs a constructor already holds; no constructor runs.
fn next_in_global_scope(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a C string.
    let next = unsafe { real_dlsym()(libc::RTLD_NEXT, name.as_ptr()) };
    // A second copy of this library exports a hook of the same name: skip it.
    if loaded_libraries::is_in_a_copy(next) { loaded_libraries::next_function(name) } else { next }
}

/// The loader's `dlsym`.
pub(crate) fn real_dlsym() -> Dlsym {
    // SAFETY: the loader's `dlsym` has this type, and so has `find_nothing`.
    unsafe { std::mem::transmute::<*mut c_void, Dlsym>(real(&REAL_DLSYM, c"dlsym")) }
}

fn real_dlvsym() -> Dlvsym {
    // SAFETY: as above, for `dlvsym`.
    unsafe { std::mem::transmute::<*mut c_void, Dlvsym>(real(&REAL_DLVSYM, c"dlvsym")) }
}

/// A function of the loader, searched for once.
fn real(address: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    /// Stands in for a function that the loader lacks: every look-up fails.
    extern "C" fn find_nothing() -> *mut c_void {
        std::ptr::null_mut()
    }
    let mut found = address.load(Ordering::Acquire);
    if found.is_null() {
        found = loaded_libraries::c_library_function(name);
        if found.is_null() {
            found = loaded_libraries::next_function(name);
        }
        if found.is_null() {
            found = find_nothing as *mut c_void;
        }
        address.store(found, Ordering::Release);
    }
    found
}

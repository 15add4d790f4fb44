//! A vendor's library: how it is recognized, the functions that are hooked in it, and the copy of it that the program uses.
//!
//! Other libraries export functions with a vendor's names: `CuPy` for AMD GPUs has a `cuLaunchKernel` that launches through HIP,
//! `ZLUDA` implements all of CUDA on HIP, `chipStar` HIP on OpenCL. They call the hooked functions of the vendor below them. A hook
//! of their own functions would take them for the vendor's library, so they are left alone.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use xsched_interpose::{RealFunction, run_isolated};

use super::elf::{Image, Kind};
use super::{HookTable, LookupHook, SymbolName, call_sites, definition_for_caller, next_definition};
use crate::loaded_libraries::{self, LoadedLibrary};
use crate::platforms::PLATFORMS;

/// How a vendor's own library is recognized among all libraries that export its names.
pub(crate) struct VendorIdentity {
    /// Functions that the vendor's library exports and a library that borrows some of its names does not. None: every library
    /// that exports a hooked name is taken for the vendor's.
    pub(crate) exports: &'static [&'static CStr],
    /// What the file name of the vendor's library begins with. A library that is linked to such a file of another platform
    /// implements its functions with that platform's.
    pub(crate) files: &'static [&'static str],
}

impl VendorIdentity {
    /// Whether a library is the vendor's own.
    pub(crate) fn is_of(&self, image: &Image<'_>) -> bool {
        self.exports.is_empty()
            || (self.exports.iter().all(|name| image.find(name, Kind::Function).is_some())
                && !self.is_on_another_platform(image))
    }

    fn is_on_another_platform(&self, image: &Image<'_>) -> bool {
        let others =
            PLATFORMS.iter().map(|platform| platform.vendor).filter(|other| !std::ptr::eq(*other, self));
        others.flat_map(|other| other.files).any(|file| image.is_linked_to(file))
    }

    /// Whether a function with a hooked name that is at this address is to be hooked. Besides the vendor's own functions these
    /// are functions that a tool has put in front of them. A library with the vendor's names is no such tool if it is linked
    /// to another platform's library, or if the vendor's library is not loaded.
    pub(crate) fn accepts(&self, function: *const c_void) -> bool {
        if self.exports.is_empty() {
            return true;
        }
        let Some(library) = LoadedLibrary::containing(function) else { return true };
        library.is(|image| self.is_of(image))
            || (!library.is(|image| self.is_on_another_platform(image)) && self.is_loaded())
    }

    fn is_loaded(&self) -> bool {
        let Some(first) = self.exports.first() else { return false };
        !loaded_libraries::next_function_where(first, |image| self.is_of(image)).is_null()
    }
}

/// One hooked function. The `hooks!` macro creates it.
pub(crate) struct Hook {
    pub(crate) name: &'static CStr,
    /// The library that the function belongs to.
    pub(crate) library: &'static VendorLibrary,
    /// The address of the export, which determines what its caller would have called otherwise.
    pub(crate) exported: *const c_void,
    /// The address of the hook, which forwards to `real`.
    pub(crate) hooked: *const c_void,
    /// Where the address of the vendor's function is stored once it is known.
    pub(crate) real: &'static AtomicPtr<c_void>,
}

// SAFETY: the pointers are addresses of functions and statics, which never change.
unsafe impl Sync for Hook {}

impl Hook {
    /// Stores the vendor's function, and returns the hook that forwards to it.
    pub(crate) fn install(&self, real: *mut c_void) -> *mut c_void {
        if real.cast_const() != self.exported && real.cast_const() != self.hooked {
            // Release: pairs with the Acquire in `RealFunction::get`.
            self.real.store(real, Ordering::Release);
        }
        self.hooked.cast_mut()
    }

    /// The library that defines the vendor's function under the hook's name. None if the function is not known, or if the
    /// library does not export it: a look-up function of the vendor can return functions of another library.
    fn defining_library(&self) -> Option<LoadedLibrary> {
        let function = self.real.load(Ordering::Acquire);
        let library = (!function.is_null()).then(|| LoadedLibrary::containing(function)).flatten()?;
        (!library.function(self.name).is_null()).then_some(library)
    }
}

impl LookupHook for Hook {
    fn name(&self) -> &'static CStr {
        self.name
    }

    fn vendor(&self) -> &'static VendorIdentity {
        self.library.vendor
    }

    fn replace(&'static self, found: *mut c_void) -> *mut c_void {
        if self.library.vendor.accepts(found) { self.install(found) } else { found }
    }

    fn forwards_elsewhere(&self, found: *mut c_void) -> bool {
        let known = self.real.load(Ordering::Acquire);
        !known.is_null() && known != found
    }
}

/// The function that a call of an export goes to, by the call's return address.
///
/// # Safety
/// Called by the exports only, with the hook of their name.
pub(crate) unsafe extern "C" fn select_target(return_address: usize, hook: &'static Hook) -> *const c_void {
    call_sites::target(return_address, std::ptr::from_ref(hook).addr(), || {
        let mut target = (hook.hooked.cast_mut(), false);
        run_isolated(|| {
            let caller = std::ptr::without_provenance(return_address);
            let found = definition_for_caller(caller, hook.name, hook.library.vendor);
            if !found.is_null() {
                target = (hook.replace(found), true);
            }
        });
        target
    })
}

/// A vendor's library. The `hooks!` macro creates it.
pub(crate) struct VendorLibrary {
    /// Every hooked name begins with it.
    prefix: &'static str,
    vendor: &'static VendorIdentity,
    hooks: &'static [&'static Hook],
    /// The address of the copy that the program uses; 0 until it is known. It stays loaded.
    start: AtomicUsize,
}

impl VendorLibrary {
    /// A library whose hooked names all begin with `prefix`.
    pub(crate) const fn new(
        prefix: &'static str,
        vendor: &'static VendorIdentity,
        hooks: &'static [&'static Hook],
    ) -> Self {
        Self { prefix, vendor, hooks, start: AtomicUsize::new(0) }
    }

    /// All hooks.
    pub(crate) fn hooks(&self) -> &'static [&'static Hook] {
        self.hooks
    }

    /// The address of a function in the copy that the program uses; null if the copy is not known yet or lacks the function.
    pub(crate) fn symbol(&self, name: &CStr) -> *mut c_void {
        self.copy_in_use().map_or(std::ptr::null_mut(), |library| library.function_in_scope(name))
    }

    /// Uses the copy that is loaded under this file name, unless a copy is known from one of its functions. It covers programs
    /// that reached the library without a hook. Loads nothing. Returns whether a copy is known.
    pub(crate) fn find_loaded(&self, file: &str) -> bool {
        self.copy_in_use().is_some()
            || loaded_libraries::with_file(file).inspect(|library| self.use_copy(*library)).is_some()
    }

    /// The hook around a look-up function of the vendor: calls `real`, and returns the hook in place of the function that it
    /// found, if the name is hooked.
    pub(crate) fn intercept_lookup(
        &self,
        real: impl FnOnce() -> *mut c_void,
        name: *const c_char,
    ) -> *mut c_void {
        let found = real();
        // SAFETY: the caller of a look-up function passes a C string, or null.
        let Some(hook) =
            (unsafe { SymbolName::new(name) }).filter(|_| !found.is_null()).and_then(|name| self.find(name))
        else {
            return found;
        };
        // A function that the library exports dispatches to every driver. Otherwise `found` belongs to one driver, and a
        // hook can forward to one driver only: the first.
        let exported = next_definition(hook.name, self.vendor);
        if exported.is_null() && hook.forwards_elsewhere(found) {
            return found;
        }
        hook.install(if exported.is_null() { found } else { exported })
    }

    fn find(&self, name: SymbolName) -> Option<&'static Hook> {
        if !name.starts_with(self.prefix.as_bytes()) {
            return None;
        }
        self.hooks.iter().copied().find(|hook| name.is(hook.name))
    }

    /// The copy that the program uses: the one that its functions came from. A copy is never opened by name.
    fn copy_in_use(&self) -> Option<LoadedLibrary> {
        let known = self.start.load(Ordering::Acquire);
        if known != 0 {
            return LoadedLibrary::containing(std::ptr::without_provenance(known));
        }
        self.hooks.iter().find_map(|hook| hook.defining_library()).inspect(|library| self.use_copy(*library))
    }

    /// The program uses the copy, so its constructors have run. A thread of the program is inside a hook here, not inside a
    /// callback of the vendor.
    fn use_copy(&self, library: LoadedLibrary) {
        library.keep_loaded();
        self.start.store(library.start(), Ordering::Release);
    }
}

impl HookTable for VendorLibrary {
    fn find_hook(&self, name: SymbolName) -> Option<&'static dyn LookupHook> {
        self.find(name).map(|hook| hook as _)
    }
}

/// A function of the vendor that the library calls itself, looked up in the copy that the program uses: handles of one copy
/// are invalid in another.
pub(crate) struct Function<F> {
    library: &'static VendorLibrary,
    real: RealFunction<F>,
}

impl<F: Copy> Function<F> {
    /// The function of this name.
    ///
    /// # Safety
    /// `F` is the type of the function in the vendor's header.
    pub(crate) const unsafe fn new(library: &'static VendorLibrary, name: &'static CStr) -> Self {
        Self { library, real: RealFunction::new(name) }
    }

    /// The function; none while the library is unknown, or if the library lacks it.
    pub(crate) fn get(&self) -> Option<F> {
        // SAFETY: the caller of `new` vouched for the type. The loader returns the function of this name, or null.
        unsafe { self.real.get(|name| self.library.symbol(name)) }
    }
}

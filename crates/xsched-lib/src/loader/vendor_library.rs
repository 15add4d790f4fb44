//! A vendor's library: the functions that are hooked in it, and the copy of it that the program uses.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use xsched_interpose::RealFunction;

use super::{HookTable, LookupHook, SymbolName, next_definition, real_dlsym};

/// One hooked function. The `hooks!` macro creates it.
pub(crate) struct Hook {
    pub(crate) name: &'static CStr,
    /// The address of the exported hook.
    pub(crate) exported: *const c_void,
    /// Where the address of the vendor's function is stored once it is known.
    pub(crate) real: &'static AtomicPtr<c_void>,
}

// SAFETY: the pointers are addresses of functions and statics, which never change.
unsafe impl Sync for Hook {}

impl Hook {
    /// Stores the vendor's function, and returns the hook that forwards to it.
    pub(crate) fn install(&self, real: *mut c_void) -> *mut c_void {
        if real.cast_const() != self.exported {
            // Release: pairs with the Acquire in `RealFunction::get`.
            self.real.store(real, Ordering::Release);
        }
        self.exported.cast_mut()
    }

    /// Opens the library that defines the vendor's function under the hook's name. None if the function is not known, or if
    /// the library does not export it: a look-up function of the vendor can return functions of another library.
    fn defining_library(&self) -> Option<*mut c_void> {
        let function = self.real.load(Ordering::Acquire);
        // SAFETY: all zeros is a valid value of this plain struct of addresses.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: `info` is writable; `dladdr` accepts any address.
        let found = !function.is_null() && unsafe { libc::dladdr(function, &raw mut info) } != 0;
        if !found || info.dli_fname.is_null() {
            return None;
        }
        // SAFETY: `dli_fname` is the loader's C string for a loaded library; RTLD_NOLOAD loads nothing.
        let handle = unsafe { libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            return None;
        }
        // SAFETY: `dlopen` has just returned the handle, and the name is a C string.
        let defines_it = !unsafe { real_dlsym()(handle, self.name.as_ptr()) }.is_null();
        if !defines_it {
            // SAFETY: opened above, and not used afterwards.
            unsafe { libc::dlclose(handle) };
        }
        defines_it.then_some(handle)
    }
}

impl LookupHook for Hook {
    fn name(&self) -> &'static CStr {
        self.name
    }

    fn replace(&'static self, found: *mut c_void) -> *mut c_void {
        self.install(found)
    }

    fn forwards_elsewhere(&self, found: *mut c_void) -> bool {
        let known = self.real.load(Ordering::Acquire);
        !known.is_null() && known != found
    }
}

/// A vendor's library. The `hooks!` macro creates it.
pub(crate) struct VendorLibrary {
    /// Every hooked name begins with it.
    prefix: &'static str,
    hooks: &'static [Hook],
    /// The loader's handle of the copy that the program uses; null until it is known. It is never closed.
    handle: AtomicPtr<c_void>,
}

impl VendorLibrary {
    /// A library whose hooked names all begin with `prefix`.
    pub(crate) const fn new(prefix: &'static str, hooks: &'static [Hook]) -> Self {
        Self { prefix, hooks, handle: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// All hooks.
    pub(crate) fn hooks(&self) -> &'static [Hook] {
        self.hooks
    }

    /// The address of a symbol in the copy that the program uses; null if the copy is not known yet or lacks the symbol.
    pub(crate) fn symbol(&self, name: &CStr) -> *mut c_void {
        match self.handle() {
            handle if handle.is_null() => handle,
            // SAFETY: a handle that is never closed, and a C string.
            handle => unsafe { real_dlsym()(handle, name.as_ptr()) },
        }
    }

    /// Uses the copy that is loaded under this file name, unless a copy is known from one of its functions. It covers programs
    /// that reached the library without a hook. Loads nothing. Returns whether a copy is known.
    pub(crate) fn find_loaded(&self, file: &str) -> bool {
        if self.handle().is_null()
            && let Some(path) = loaded_path(file)
        {
            // SAFETY: a C string; RTLD_NOLOAD loads nothing.
            let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
            self.handle.store(handle, Ordering::Release);
        }
        !self.handle().is_null()
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
        let exported = next_definition(hook.name);
        if exported.is_null() && hook.forwards_elsewhere(found) {
            return found;
        }
        hook.replace(if exported.is_null() { found } else { exported })
    }

    fn find(&self, name: SymbolName) -> Option<&'static Hook> {
        if !name.starts_with(self.prefix.as_bytes()) {
            return None;
        }
        self.hooks.iter().find(|hook| name.is(hook.name))
    }

    /// The handle of the copy that the program uses: the one that its functions came from. A copy is never opened by name.
    fn handle(&self) -> *mut c_void {
        let known = self.handle.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        let Some(handle) = self.hooks.iter().find_map(Hook::defining_library) else { return known };
        self.handle.store(handle, Ordering::Release);
        handle
    }
}

impl HookTable for VendorLibrary {
    fn find_hook(&self, name: SymbolName) -> Option<&'static dyn LookupHook> {
        self.find(name).map(|hook| hook as _)
    }
}

/// Whether a library is loaded whose file has this name, optionally followed by a version.
pub(crate) fn is_loaded(file: &str) -> bool {
    loaded_path(file).is_some()
}

/// The path of the first loaded library whose file has this name, optionally followed by a version.
fn loaded_path(file: &str) -> Option<CString> {
    struct Search<'a> {
        file: &'a [u8],
        found: Option<CString>,
    }
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
        // SAFETY: the loader passes its own record, and the pointer that `dl_iterate_phdr` was given below.
        let (path, search) = unsafe { ((*info).dlpi_name, &mut *search.cast::<Search<'_>>()) };
        if path.is_null() {
            return 0;
        }
        // SAFETY: a C string of the loader, which unloads no library during `dl_iterate_phdr`.
        let path = unsafe { CStr::from_ptr(path) };
        let name = path.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        match name.strip_prefix(search.file) {
            Some([] | [b'.', ..]) => search.found = Some(path.to_owned()),
            _ => return 0,
        }
        1
    }
    let mut search = Search { file: file.as_bytes(), found: None };
    // SAFETY: `visit` receives the types it expects, and does not unwind.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
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

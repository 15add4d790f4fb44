//! Functions in libraries that a look-up in all libraries does not find: those opened with `RTLD_LOCAL`, such as a Python
//! extension module, and the libraries that they are linked to.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;

use crate::loader::real_dlsym;

/// The function of this name in the first loaded library that has it, this library excepted; null if there is none. That
/// library stays loaded from then on.
pub(crate) fn find_function(name: &CStr) -> *mut c_void {
    for library in names() {
        // SAFETY: a C string. RTLD_NOLOAD loads nothing.
        let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            continue;
        }
        // SAFETY: `dlopen` has just returned the handle, and the name is a C string.
        let found = unsafe { real_dlsym()(handle, name.as_ptr()) };
        if !found.is_null() && base_of(found) != base_of(find_function as *const c_void) {
            return found;
        }
        // SAFETY: opened above, and not used afterwards.
        unsafe { libc::dlclose(handle) };
    }
    ptr::null_mut()
}

/// Whether the library that contains an address defines a function of this name.
pub(crate) fn defines(address: *const c_void, name: &CStr) -> bool {
    let Some(library) = library_of(address).filter(|library| !library.dli_fname.is_null()) else {
        return false;
    };
    // SAFETY: the loader's own name of the library.
    let handle = unsafe { libc::dlopen(library.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return false;
    }
    // SAFETY: `dlopen` has just returned the handle, and the name is a C string. The search includes the libraries that it
    // is linked to, which the comparison below excludes.
    let found = unsafe { real_dlsym()(handle, name.as_ptr()) };
    // SAFETY: opened above, and not used afterwards.
    unsafe { libc::dlclose(handle) };
    !found.is_null() && base_of(found) == library.dli_fbase.cast_const()
}

/// The base address of the library that contains an address; null if none does.
fn base_of(address: *const c_void) -> *const c_void {
    library_of(address).map_or(ptr::null(), |library| library.dli_fbase.cast_const())
}

fn library_of(address: *const c_void) -> Option<libc::Dl_info> {
    // SAFETY: all zeros is a valid value of this plain struct of addresses.
    let mut library: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `library` is writable; `dladdr` accepts any address.
    (unsafe { libc::dladdr(address, &raw mut library) } != 0).then_some(library)
}

/// The loader's names of the loaded libraries, in the order of loading. The program itself has no name.
pub(crate) fn names() -> Vec<CString> {
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, names: *mut c_void) -> c_int {
        // SAFETY: the loader passes its own record, and the pointer that `dl_iterate_phdr` was given below.
        let (name, names) = unsafe { ((*info).dlpi_name, &mut *names.cast::<Vec<CString>>()) };
        if !name.is_null() {
            // SAFETY: a C string of the loader, which unloads no library during `dl_iterate_phdr`.
            let name = unsafe { CStr::from_ptr(name) };
            if !name.is_empty() {
                names.push(name.to_owned());
            }
        }
        0
    }
    let mut names: Vec<CString> = Vec::new();
    // SAFETY: `visit` receives the types it expects, and does not unwind: `push` aborts if there is no memory.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut names).cast()) };
    names
}

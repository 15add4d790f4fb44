//! Functions in libraries that the loader does not show us: a library opened for itself alone, such as a module of
//! Python's, and what that is linked to.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr;

use crate::loader::real_dlsym;

/// The function of this name in the first library of this process that has it, but for ours; else null. The library
/// stays loaded from then on.
pub(crate) fn find_function(name: &CStr) -> *mut c_void {
    for library in names() {
        // SAFETY: a C string. Nothing is loaded that is not already.
        let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            continue;
        }
        // SAFETY: the handle is good, and the name a C string.
        let found = unsafe { real_dlsym()(handle, name.as_ptr()) };
        if !found.is_null() && base_of(found) != base_of(find_function as *const c_void) {
            return found;
        }
        // SAFETY: opened above, and used no more.
        unsafe { libc::dlclose(handle) };
    }
    ptr::null_mut()
}

/// Whether the library that an address lies in has a function of this name itself.
pub(crate) fn defines(address: *const c_void, name: &CStr) -> bool {
    let Some(library) = library_of(address).filter(|library| !library.dli_fname.is_null()) else {
        return false;
    };
    // SAFETY: the loader's own name of the library.
    let handle = unsafe { libc::dlopen(library.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return false;
    }
    // SAFETY: the handle is good, and the name a C string. What it is linked to is searched too.
    let found = unsafe { real_dlsym()(handle, name.as_ptr()) };
    // SAFETY: opened above, and used no more.
    unsafe { libc::dlclose(handle) };
    !found.is_null() && base_of(found) == library.dli_fbase.cast_const()
}

/// Where the library begins that an address lies in; null if in none.
fn base_of(address: *const c_void) -> *const c_void {
    library_of(address).map_or(ptr::null(), |library| library.dli_fbase.cast_const())
}

fn library_of(address: *const c_void) -> Option<libc::Dl_info> {
    // SAFETY: all zero is a valid value of this plain struct of addresses.
    let mut library: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the place is large enough; the address may be any.
    (unsafe { libc::dladdr(address, &raw mut library) } != 0).then_some(library)
}

/// What the loader calls the libraries of this process, the oldest first. The program itself has no name.
pub(crate) fn names() -> Vec<CString> {
    unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _size: usize, names: *mut c_void) -> c_int {
        // SAFETY: the loader passes its own record, and what we passed on to it below.
        let (name, names) = unsafe { ((*info).dlpi_name, &mut *names.cast::<Vec<CString>>()) };
        if !name.is_null() {
            // SAFETY: a C string of the loader's, which is not unloaded while we are here.
            let name = unsafe { CStr::from_ptr(name) };
            if !name.is_empty() {
                names.push(name.to_owned());
            }
        }
        0
    }
    let mut names: Vec<CString> = Vec::new();
    // SAFETY: `note` gets what it expects, and does not unwind: pushing aborts if there is no memory.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut names).cast()) };
    names
}

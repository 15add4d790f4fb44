//! The libraries of this process: which of them has a function, and which of several. Nothing here runs a constructor or takes
//! the loader's lock, except [`LoadedLibrary::keep_loaded`]; [`crate::loader::elf`] says why that matters.
//!
//! ```text
//!   in the order of loading:   program   libxsched.so   other libraries ...   libc.so.6
//!                                                       └─ `next_function`: the first of these that defines the name
//! ```

use std::ffi::{CStr, CString, c_void};
use std::ops::ControlFlow;
use std::ptr::{self, with_exposed_provenance, with_exposed_provenance_mut};

use crate::loader::elf::{self, Image, Kind, each_image};

/// A library that is loaded, or the program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoadedLibrary {
    /// The address of its first byte.
    start: usize,
}

impl LoadedLibrary {
    /// The library that contains an address.
    pub(crate) fn containing(address: *const c_void) -> Option<Self> {
        find_image(|image| image.holds(address.addr(), 1).then(|| Self::of(image)))
    }

    fn of(image: &Image<'_>) -> Self {
        Self { start: image.start() }
    }

    /// The address of its first byte.
    pub(crate) fn start(self) -> usize {
        self.start
    }

    fn with<R>(self, read: impl FnOnce(&Image<'_>) -> Option<R>) -> Option<R> {
        let mut read = Some(read);
        find_image(|image| (image.start() == self.start).then(|| read.take().and_then(|read| read(image))))
            .flatten()
    }

    /// The function that it defines under a name; null if it defines none.
    pub(crate) fn function(self, name: &CStr) -> *mut c_void {
        with_exposed_provenance_mut(self.with(|image| image.find(name, Kind::Function)).unwrap_or(0))
    }

    /// The function of this name in the library itself or in the first library that it is linked to, directly or indirectly;
    /// null if there is none. This library and its copies are skipped.
    pub(crate) fn function_in_scope(self, name: &CStr) -> *mut c_void {
        let (mut scope, mut next) = (vec![self], 0);
        while let Some(library) = scope.get(next).copied() {
            let found = library.with(|image| {
                let found = image.find(name, Kind::Function);
                found.filter(|_| !is_ours(image) && !is_copy(image))
            });
            if let Some(found) = found {
                return with_exposed_provenance_mut(found);
            }
            for linked in library.linked() {
                if !scope.contains(&linked) {
                    scope.push(linked);
                }
            }
            next += 1;
        }
        ptr::null_mut()
    }

    /// The libraries that it is linked to. Of several with the same name the loader takes the one that was loaded first.
    fn linked(self) -> Vec<Self> {
        let mut names: Vec<CString> = Vec::new();
        self.with(|image| {
            image.each_needed(|name| names.push(name.to_owned()));
            Some(())
        });
        let find = |name: CString| find_image(|image| image.is_known_as(&name).then(|| Self::of(image)));
        names.into_iter().filter_map(find).collect()
    }

    /// Whether `condition` holds for its image.
    pub(crate) fn is(self, condition: impl FnOnce(&Image<'_>) -> bool) -> bool {
        self.with(|image| Some(condition(image))) == Some(true)
    }

    /// Whether an address is inside it.
    pub(crate) fn holds(self, address: *const c_void) -> bool {
        self.is(|image| image.holds(address.addr(), 1))
    }

    /// The loader's name of its file.
    pub(crate) fn file(self) -> Option<CString> {
        self.with(|image| (!image.name.is_empty()).then(|| image.name.to_owned()))
    }

    /// Keeps the library loaded until the process exits. The loader runs its constructors and those of the libraries that it
    /// is linked to, if they have not run. So this may be called only for a library whose functions the program uses already,
    /// and not from a callback of a library that is being initialized.
    pub(crate) fn keep_loaded(self) {
        if let Some(file) = self.file() {
            // SAFETY: the loader's own name of a library that is loaded; loads nothing.
            unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
        }
    }
}

/// Returns the first result of `find`, which is called with each library in the order of loading.
fn find_image<R>(mut find: impl FnMut(&Image<'_>) -> Option<R>) -> Option<R> {
    let mut found = None;
    each_image(&mut |image| {
        found = find(image);
        if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    found
}

fn is_ours(image: &Image<'_>) -> bool {
    // Not an exported function: its address could be that of another copy.
    image.holds(is_ours as *const () as usize, 1)
}

fn is_copy(image: &Image<'_>) -> bool {
    image.find(crate::duplicate_library::VERSION_SYMBOL, Kind::Data).is_some()
}

/// The function of this name in the first library after this one that defines it, otherwise in the first library before it.
/// Null if there is none. Other copies of this library are skipped.
pub(crate) fn next_function(name: &CStr) -> *mut c_void {
    next_function_where(name, |_| true)
}

/// The same among the libraries that satisfy a condition.
pub(crate) fn next_function_where(name: &CStr, condition: impl Fn(&Image<'_>) -> bool) -> *mut c_void {
    let (mut passed_us, mut found) = (false, 0);
    each_image(&mut |image| {
        if is_ours(image) {
            passed_us = true;
        } else if let Some(address) = image.find(name, Kind::Function)
            && (passed_us || found == 0)
            && !is_copy(image)
            && condition(image)
        {
            found = address;
            if passed_us {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    });
    with_exposed_provenance_mut(found)
}

/// The libraries that satisfy a condition, in the order of loading, without this one and its copies.
pub(crate) fn libraries_where(condition: impl Fn(&Image<'_>) -> bool) -> Vec<LoadedLibrary> {
    let mut found = Vec::new();
    each_image(&mut |image| {
        if !is_ours(image) && condition(image) && !is_copy(image) {
            found.push(LoadedLibrary::of(image));
        }
        ControlFlow::Continue(())
    });
    found
}

/// A function of the C library; null if it has none of this name.
pub(crate) fn c_library_function(name: &CStr) -> *mut c_void {
    with_exposed_provenance_mut(elf::c_library_function(name))
}

/// The data symbol of this name in another library, and whether that library was loaded before this one.
pub(crate) fn data_elsewhere(name: &CStr) -> Option<(*const c_void, bool)> {
    let mut passed_us = false;
    find_image(|image| {
        if is_ours(image) {
            passed_us = true;
            return None;
        }
        image.find(name, Kind::Data).map(|address| (with_exposed_provenance(address), !passed_us))
    })
}

/// Whether an address is inside another copy of this library.
pub(crate) fn is_in_a_copy(address: *const c_void) -> bool {
    let is = find_image(|image| image.holds(address.addr(), 1).then(|| !is_ours(image) && is_copy(image)));
    is == Some(true)
}

/// Whether an address is inside a library that was loaded before this one.
pub(crate) fn is_before_us(address: *const c_void) -> bool {
    find_image(|image| {
        let is_there = image.holds(address.addr(), 1);
        (is_there || is_ours(image)).then(|| is_there && !is_ours(image))
    }) == Some(true)
}

/// Whether the library that contains an address defines a function of this name.
pub(crate) fn defines(address: *const c_void, name: &CStr) -> bool {
    LoadedLibrary::containing(address).is_some_and(|library| !library.function(name).is_null())
}

/// The first library whose file has this name, optionally followed by a version.
pub(crate) fn with_file(file: &str) -> Option<LoadedLibrary> {
    find_image(|image| {
        let name = image.name.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let rest = name.strip_prefix(file.as_bytes());
        matches!(rest, Some([] | [b'.', ..])).then(|| LoadedLibrary::of(image))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbol_tables_agree_with_the_loader() {
        for name in [c"dlsym", c"dlvsym", c"ioctl", c"getpid", c"malloc", c"pthread_create", c"realpath"] {
            // SAFETY: a C string.
            let loaders = unsafe { crate::loader::real_dlsym()(libc::RTLD_NEXT, name.as_ptr()) };
            assert!(!loaders.is_null());
            assert_eq!(next_function(name), loaders, "{name:?}");
        }
    }

    #[test]
    fn c_library_symbols_agree_with_the_loader() {
        for name in [c"dlsym", c"dlvsym", c"getpid"] {
            assert_eq!(c_library_function(name), next_function(name), "{name:?}");
        }
        assert!(c_library_function(c"no_library_has_this").is_null());
    }

    #[test]
    fn missing_symbols_are_not_found() {
        assert!(next_function(c"no_library_has_this").is_null());
        assert!(next_function(c"").is_null());
        assert!(next_function(c"environ").is_null(), "it is data");
        assert_eq!(data_elsewhere(c"getpid"), None, "it is a function");
    }

    #[test]
    fn data_symbols_are_found_with_their_load_order() {
        let (environ, before_us) = data_elsewhere(c"environ").unwrap();
        assert!(!before_us, "the C library is loaded after the program");
        // SAFETY: a C string.
        assert_eq!(environ, unsafe { crate::loader::real_dlsym()(libc::RTLD_NEXT, c"environ".as_ptr()) });
        assert!(!is_in_a_copy(environ));
    }

    #[test]
    fn functions_are_found_in_the_libraries_that_a_library_is_linked_to() {
        let program = LoadedLibrary::containing(is_ours as *const c_void).unwrap();
        assert!(program.function(c"getpid").is_null(), "another library defines it");
        assert_eq!(program.function_in_scope(c"getpid"), next_function(c"getpid"));
        assert!(program.function_in_scope(c"no_library_has_this").is_null());
        let libc = LoadedLibrary::containing(next_function(c"getpid")).unwrap();
        assert!(!libc.function(c"getpid").is_null() && with_file("libc.so") == Some(libc));
        assert!(defines(next_function(c"getpid"), c"malloc"));
    }
}

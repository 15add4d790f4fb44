//! Symbols of the loaded libraries, read from their symbol tables. The loader's look-up functions are hooked, so that looking
//! them up with themselves would find the hooks.
//!
//! ```text
//!   in the order of loading:   program   libxsched.so   other libraries ...   libc.so.6
//!                                                       └─ the first of these that defines the name
//! ```
//!
//! The functions can run before any constructor: they take no lock of this library and allocate nothing. An address in a table
//! is followed only if it is inside a segment of its library.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::ControlFlow;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use libc::{Elf64_Ehdr, Elf64_Phdr, Elf64_Sym, PF_R, PT_DYNAMIC, PT_LOAD, dl_phdr_info};

/// The types of symbols.
const OBJECT: u8 = 1;
const FUNCTION: u8 = 2;

/// The function of this name in the first library after this one that defines it, otherwise in the first library before it.
/// Null if there is none. If a library has several versions of the function, any of them. Other copies of this library are
/// skipped.
pub(crate) fn next_function(name: &CStr) -> *mut c_void {
    let (mut passed_us, mut found) = (false, 0);
    each_library(&mut |library| {
        if library.is_ours() {
            passed_us = true;
        } else if let Some(address) = library.find(name, FUNCTION)
            && (passed_us || found == 0)
            && !library.is_copy()
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

/// `struct link_map`: an entry of the loader's list of libraries.
#[repr(C)]
struct Listed {
    base: usize,
    name: *const c_char,
    dynamic: usize,
    next: *const Listed,
}

/// `struct r_debug`: what the loader publishes for debuggers.
#[repr(C)]
struct Shown {
    version: c_int,
    first: *const Listed,
}

unsafe extern "C" {
    static _r_debug: Shown;
}

/// A function of the C library, from its symbol table. Unlike the functions above it calls no function of the loader: a
/// sanitizer replaces those, its replacements do not work before it is initialized, and it calls `dlsym` before that.
pub(crate) fn libc_function(name: &CStr) -> *mut c_void {
    // SAFETY: the loader fills the list before any code of the program runs. The entries of the first libraries, the C
    // library among them, are never removed, and new entries are appended.
    let mut at = unsafe { _r_debug.first };
    while !at.is_null() {
        // SAFETY: as above.
        let listed = unsafe { &*at };
        if is_the_c_library(listed.name)
            && let Some(found) = Library::at(listed.base).and_then(|library| library.find(name, FUNCTION))
        {
            return with_exposed_provenance_mut(found);
        }
        at = listed.next;
    }
    std::ptr::null_mut()
}

/// By the file name. Since glibc 2.34 the C library contains the loader's look-up functions; before, libdl did.
fn is_the_c_library(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: the loader's names are C strings.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    [&b"/libc.so.6"[..], b"/libdl.so.2"].iter().any(|file| path.ends_with(file))
}

/// The data symbol of this name in another library, and whether that library was loaded before this one.
pub(crate) fn data_elsewhere(name: &CStr) -> Option<(*const c_void, bool)> {
    let (mut passed_us, mut found) = (false, None);
    each_library(&mut |library| {
        if library.is_ours() {
            passed_us = true;
        } else if let Some(address) = library.find(name, OBJECT) {
            found = Some((with_exposed_provenance(address), !passed_us));
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    found
}

/// Whether an address is inside another copy of this library.
pub(crate) fn is_in_a_copy(address: *const c_void) -> bool {
    let mut is = false;
    each_library(&mut |library| {
        let there = library.holds(address.addr(), 1);
        is = there && !library.is_ours() && library.is_copy();
        if there { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    is
}

type Visit<'a> = &'a mut dyn FnMut(&Library<'_>) -> ControlFlow<()>;

/// Calls `visit` with the libraries in the order of loading, the program first.
fn each_library(mut visit: Visit<'_>) {
    unsafe extern "C" fn visit_library(info: *mut dl_phdr_info, _: usize, visit: *mut c_void) -> c_int {
        // SAFETY: the loader does not unload the library before this returns; `visit` is the pointer that is passed below.
        let (info, visit) = unsafe { (&*info, &mut *visit.cast::<Visit<'_>>()) };
        if info.dlpi_phdr.is_null() {
            return 0;
        }
        // SAFETY: as above.
        let segments = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let base = usize::try_from(info.dlpi_addr).unwrap_or(0);
        c_int::from(visit(&Library { base, segments }).is_break())
    }
    // SAFETY: the loader calls `visit_library` with its records and with `visit`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit_library), (&raw mut visit).cast()) };
}

/// One entry of a library's dynamic section.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    tag: u64,
    value: u64,
}

/// A loaded library.
struct Library<'a> {
    base: usize,
    segments: &'a [Elf64_Phdr],
}

/// The addresses of a library's tables.
#[derive(Default)]
struct Tables {
    symbols: usize,
    names: usize,
    hashes: usize,
}

impl Library<'_> {
    /// The C library by its base address; none if there is no ELF header.
    fn at(base: usize) -> Option<Self> {
        // SAFETY: the C library is mapped from its first byte on, which is its header.
        let header = unsafe { with_exposed_provenance::<Elf64_Ehdr>(base).read_unaligned() };
        if header.e_ident[..4] != *b"\x7fELF" {
            return None;
        }
        let table = base.checked_add(usize::try_from(header.e_phoff).ok()?)?;
        let (table, count) = (with_exposed_provenance(table), usize::from(header.e_phnum));
        // SAFETY: the table of segments is behind the header, in the same pages, and is never unmapped.
        let segments = unsafe { std::slice::from_raw_parts(table, count) };
        Some(Self { base, segments })
    }

    fn is_ours(&self) -> bool {
        // Not an exported function: its address could be that of another copy.
        self.holds(each_library as *const () as usize, 1)
    }

    fn is_copy(&self) -> bool {
        self.find(crate::duplicate_library::VERSION_SYMBOL, OBJECT).is_some()
    }

    /// Whether all of these bytes are in a readable segment.
    fn holds(&self, address: usize, length: usize) -> bool {
        self.segments.iter().filter(|segment| segment.p_type == PT_LOAD && segment.p_flags & PF_R != 0).any(
            |segment| {
                let begin = self.address(segment.p_vaddr);
                let offset = address.checked_sub(begin);
                let size = usize::try_from(segment.p_memsz).unwrap_or(0);
                offset.and_then(|offset| offset.checked_add(length)).is_some_and(|end| end <= size)
            },
        )
    }

    fn address(&self, offset: u64) -> usize {
        self.base.wrapping_add(usize::try_from(offset).unwrap_or(0))
    }

    fn read<T: Copy>(&self, table: usize, index: usize) -> Option<T> {
        let address = index.checked_mul(size_of::<T>())?.checked_add(table)?;
        if !self.holds(address, size_of::<T>()) {
            return None;
        }
        // SAFETY: the bytes are mapped and readable, and the types that are read accept every value.
        Some(unsafe { with_exposed_provenance::<T>(address).read_unaligned() })
    }

    fn tables(&self) -> Option<Tables> {
        const END: u64 = 0;
        const NAMES: u64 = 5;
        const SYMBOLS: u64 = 6;
        const HASHES: u64 = 0x6fff_fef5;
        let dynamic = self.segments.iter().find(|segment| segment.p_type == PT_DYNAMIC)?;
        let mut tables = Tables::default();
        for index in 0.. {
            let entry: Entry = self.read(self.address(dynamic.p_vaddr), index)?;
            // The loader has replaced offsets by addresses, except in the library that the kernel maps.
            let value = usize::try_from(entry.value).ok()?;
            let place = if value < self.base { self.base + value } else { value };
            match entry.tag {
                END => break,
                NAMES => tables.names = place,
                SYMBOLS => tables.symbols = place,
                HASHES => tables.hashes = place,
                _ => {}
            }
        }
        Some(tables)
    }

    /// The address of the symbol of this name and type.
    fn find(&self, name: &CStr, kind: u8) -> Option<usize> {
        let tables = self.tables()?;
        let hash = hash(name);
        // The number of buckets, the index of the first hashed symbol, and the size of the Bloom filter in words.
        let [buckets, first, words, _shift]: [u32; 4] = self.read(tables.hashes, 0)?;
        let bucket_table = tables.hashes + size_of::<[u32; 4]>() + words as usize * size_of::<u64>();
        let chain = bucket_table + buckets as usize * size_of::<u32>();
        let bucket = hash.checked_rem(buckets)?;
        let mut index: u32 = self.read(bucket_table, bucket as usize)?;
        // The lowest bit of a hash marks the end of a chain.
        loop {
            let there: u32 = self.read(chain, index.checked_sub(first)? as usize)?;
            if there | 1 == hash | 1 {
                let symbol: Elf64_Sym = self.read(tables.symbols, index as usize)?;
                let defined = symbol.st_shndx != 0 && symbol.st_info & 0xf == kind;
                if defined && self.is_named(tables.names + symbol.st_name as usize, name) {
                    return Some(self.address(symbol.st_value));
                }
            }
            if there & 1 == 1 {
                return None;
            }
            index = index.checked_add(1)?;
        }
    }

    fn is_named(&self, at: usize, name: &CStr) -> bool {
        name.to_bytes_with_nul().iter().enumerate().all(|(n, byte)| self.read(at, n) == Some(*byte))
    }
}

/// The hash function of the GNU hash table.
fn hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add((*byte).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbol_tables_agree_with_the_loader() {
        for name in [c"dlsym", c"dlvsym", c"ioctl", c"getpid", c"malloc", c"pthread_create"] {
            // SAFETY: a C string.
            let loaders = unsafe { crate::loader::real_dlsym()(libc::RTLD_NEXT, name.as_ptr()) };
            assert!(!loaders.is_null());
            assert_eq!(next_function(name), loaders, "{name:?}");
        }
    }

    #[test]
    fn c_library_symbols_agree_with_the_loader() {
        for name in [c"dlsym", c"dlvsym", c"getpid"] {
            assert_eq!(libc_function(name), next_function(name), "{name:?}");
        }
        assert!(libc_function(c"no_library_has_this").is_null());
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
    fn every_function_of_libc_is_found() {
        let mut checked = 0;
        each_library(&mut |library| {
            let Some(tables) = library.tables() else { return ControlFlow::Continue(()) };
            if library.find(c"getpid", FUNCTION).is_none() {
                return ControlFlow::Continue(());
            }
            for index in 1..2_000 {
                let symbol: Elf64_Sym = library.read(tables.symbols, index).unwrap();
                if symbol.st_shndx == 0 || symbol.st_info & 0xf != FUNCTION {
                    continue;
                }
                // SAFETY: the names of a loaded library are C strings.
                let name = unsafe {
                    CStr::from_ptr(with_exposed_provenance(tables.names + symbol.st_name as usize))
                };
                assert!(library.find(name, FUNCTION).is_some(), "{name:?}");
                checked += 1;
            }
            ControlFlow::Break(())
        });
        assert!(checked > 500, "{checked}");
    }
}

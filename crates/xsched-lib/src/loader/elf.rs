//! Symbols of the libraries that are loaded, read from their own tables: the loader's look-up functions cannot be looked
//! up, for we would find ourselves.
//!
//! ```text
//!   in the order they were loaded:   program   libxsched.so   others ...   libc.so.6
//!                                                  us         └─ the first after us that has the name
//! ```
//!
//! May run before anything of ours, or of Rust's, is set up: no lock of ours, no allocation. What a table says is
//! followed only as far as the library's own segments reach.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::ControlFlow;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

use libc::{Elf64_Ehdr, Elf64_Phdr, Elf64_Sym, PF_R, PT_DYNAMIC, PT_LOAD, dl_phdr_info};

/// What kind of thing a symbol stands for, as the table has it.
const OBJECT: u8 = 1;
const FUNCTION: u8 = 2;

/// The function of this name in the first library after ours that has it; else in the first of all others. Null if there
/// is none. Where a library has several versions of it, any. Other copies of our library are passed over.
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

/// A library as the loader lists it.
#[repr(C)]
struct Listed {
    base: usize,
    name: *const c_char,
    dynamic: usize,
    next: *const Listed,
}

/// What the loader shows to debuggers.
#[repr(C)]
struct Shown {
    version: c_int,
    first: *const Listed,
}

unsafe extern "C" {
    static _r_debug: Shown;
}

/// A function of the C library's, from its own table. Calls nothing of anybody's, unlike the others here: what
/// sanitizers put before the loader's functions does not work before they are set up, and that is when they call ours.
pub(crate) fn libc_function(name: &CStr) -> *mut c_void {
    // SAFETY: the loader's own list, which it fills before any library of the program begins. What it lists first, the C
    // library among them, is never unloaded, and new entries come at the end.
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

/// By its file's name: since 2.34 it has the loader's look-up functions too, which were in a library of their own before.
fn is_the_c_library(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: the loader's names are C strings.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    [&b"/libc.so.6"[..], b"/libdl.so.2"].iter().any(|file| path.ends_with(file))
}

/// The data of this name in another library than ours, and whether that was loaded before it.
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

/// Whether an address lies in another copy of our library.
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

/// Shows the libraries in the order they were loaded, the program first.
fn each_library(mut visit: Visit<'_>) {
    unsafe extern "C" fn show(info: *mut dl_phdr_info, _: usize, visit: *mut c_void) -> c_int {
        // SAFETY: the loader describes a library that stays where it is until we return; `visit` is what was passed below.
        let (info, visit) = unsafe { (&*info, &mut *visit.cast::<Visit<'_>>()) };
        if info.dlpi_phdr.is_null() {
            return 0;
        }
        // SAFETY: as above.
        let segments = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let base = usize::try_from(info.dlpi_addr).unwrap_or(0);
        c_int::from(visit(&Library { base, segments }).is_break())
    }
    // SAFETY: `show` is called with what the loader knows of each library, and with `visit`, which lives until then.
    unsafe { libc::dl_iterate_phdr(Some(show), (&raw mut visit).cast()) };
}

/// One entry of a library's dynamic section.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    tag: u64,
    value: u64,
}

/// A library that is loaded.
struct Library<'a> {
    base: usize,
    segments: &'a [Elf64_Phdr],
}

/// Where a library's tables are.
#[derive(Default)]
struct Tables {
    symbols: usize,
    names: usize,
    hashes: usize,
}

impl Library<'_> {
    /// The C library by where it begins; none if that is not what libraries begin with.
    fn at(base: usize) -> Option<Self> {
        // SAFETY: the C library is mapped from its first byte on, where its header is.
        let header = unsafe { with_exposed_provenance::<Elf64_Ehdr>(base).read_unaligned() };
        if header.e_ident[..4] != *b"\x7fELF" {
            return None;
        }
        let table = base.checked_add(usize::try_from(header.e_phoff).ok()?)?;
        let (table, count) = (with_exposed_provenance(table), usize::from(header.e_phnum));
        // SAFETY: its table of segments lies behind the header, in the same pages, and is never unmapped.
        let segments = unsafe { std::slice::from_raw_parts(table, count) };
        Some(Self { base, segments })
    }

    fn is_ours(&self) -> bool {
        // Not an exported function: another copy of ours must not answer for it.
        self.holds(each_library as *const () as usize, 1)
    }

    fn is_copy(&self) -> bool {
        self.find(crate::duplicate_library::VERSION_SYMBOL, OBJECT).is_some()
    }

    /// Whether all of these bytes lie in a segment that can be read.
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
        // SAFETY: the bytes are mapped and can be read, and every value of them is one of the plain types that are read.
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
            // The loader has put addresses in place of offsets, but for what the kernel maps itself.
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

    /// Where the library has what is of this name and kind.
    fn find(&self, name: &CStr, kind: u8) -> Option<usize> {
        let tables = self.tables()?;
        let hash = hash(name);
        // Buckets, the first symbol in any, and words of a filter that tells which names cannot be there.
        let [buckets, first, words, _shift]: [u32; 4] = self.read(tables.hashes, 0)?;
        let bucket_table = tables.hashes + size_of::<[u32; 4]>() + words as usize * size_of::<u64>();
        let chain = bucket_table + buckets as usize * size_of::<u32>();
        let bucket = hash.checked_rem(buckets)?;
        let mut index: u32 = self.read(bucket_table, bucket as usize)?;
        // The last of a chain has the lowest bit set; of the others' hashes it says nothing.
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

/// The hash by which libraries list their names.
fn hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add((*byte).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_the_loader_answers() {
        for name in [c"dlsym", c"dlvsym", c"ioctl", c"getpid", c"malloc", c"pthread_create"] {
            // SAFETY: a C string.
            let loaders = unsafe { crate::loader::real_dlsym()(libc::RTLD_NEXT, name.as_ptr()) };
            assert!(!loaders.is_null());
            assert_eq!(next_function(name), loaders, "{name:?}");
        }
    }

    #[test]
    fn the_c_library_has_what_the_loader_answers() {
        for name in [c"dlsym", c"dlvsym", c"getpid"] {
            assert_eq!(libc_function(name), next_function(name), "{name:?}");
        }
        assert!(libc_function(c"no_library_has_this").is_null());
    }

    #[test]
    fn what_nobody_has_is_not_found() {
        assert!(next_function(c"no_library_has_this").is_null());
        assert!(next_function(c"").is_null());
        assert!(next_function(c"environ").is_null(), "that is no function");
        assert_eq!(data_elsewhere(c"getpid"), None, "that is no data");
    }

    #[test]
    fn data_is_found_and_where_it_is() {
        let (environ, before_us) = data_elsewhere(c"environ").unwrap();
        assert!(!before_us, "the program comes first");
        // SAFETY: a C string.
        assert_eq!(environ, unsafe { crate::loader::real_dlsym()(libc::RTLD_NEXT, c"environ".as_ptr()) });
        assert!(!is_in_a_copy(environ));
    }

    #[test]
    fn every_function_that_libc_lists_can_be_found() {
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
                // SAFETY: the names of a library that is loaded are C strings.
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

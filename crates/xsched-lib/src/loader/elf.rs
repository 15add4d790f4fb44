//! The symbols of one loaded library, read from its symbol tables.
//!
//! The loader's own functions are not used for this. Its look-up functions are hooked; it takes a lock that a thread holds
//! while it runs constructors; and opening a library that is loaded already runs the constructors that are pending. Here no
//! lock is taken, nothing is allocated and no constructor runs, so that a constructor, a callback of a runtime that is being
//! initialized and the `dlsym` hook can use it. An address in a table is followed only if it is inside a segment of its library.
//!
//! The loader protects its list of libraries by another lock, for as long as the list is read. See [`list_of_libraries`] for fork.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::ControlFlow;
use std::ptr::with_exposed_provenance;

mod list_of_libraries;

use libc::{Elf64_Ehdr, Elf64_Phdr, Elf64_Sym, PF_R, PT_DYNAMIC, PT_LOAD, dl_phdr_info};

/// What a symbol denotes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Code. Functions written in assembly may have no type.
    Function,
    Data,
}

impl Kind {
    fn matches(self, symbol: &Elf64_Sym) -> bool {
        const NO_TYPE: u8 = 0;
        const DATA: u8 = 1;
        const FUNCTION: u8 = 2;
        // `STV_INTERNAL` and `STV_HIDDEN`: the loader finds such symbols for their own library only.
        if matches!(symbol.st_other & 3, 1 | 2) {
            return false;
        }
        match self {
            Self::Function => matches!(symbol.st_info & 0xf, FUNCTION | NO_TYPE),
            Self::Data => symbol.st_info & 0xf == DATA,
        }
    }
}

pub(crate) use list_of_libraries::register_fork_handlers;

type Visit<'a> = &'a mut dyn FnMut(&Image<'_>) -> ControlFlow<()>;

/// Calls `visit` with the loaded libraries in the order of loading, the program first. The loader unloads none meanwhile.
pub(crate) fn each_image(mut visit: Visit<'_>) {
    unsafe extern "C" fn visit_image(info: *mut dl_phdr_info, _: usize, visit: *mut c_void) -> c_int {
        // SAFETY: the loader does not unload the library before this returns; `visit` is the pointer that is passed below.
        let (info, visit) = unsafe { (&*info, &mut *visit.cast::<Visit<'_>>()) };
        if info.dlpi_phdr.is_null() {
            return 0;
        }
        // SAFETY: as above.
        let segments = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let base = usize::try_from(info.dlpi_addr).unwrap_or(0);
        // SAFETY: the loader's name is null or a C string, and exists as long as the library is loaded.
        let name = if info.dlpi_name.is_null() { c"" } else { unsafe { CStr::from_ptr(info.dlpi_name) } };
        c_int::from(visit(&Image { name, base, segments }).is_break())
    }
    let _reading = list_of_libraries::read();
    // SAFETY: the loader calls `visit_image` with its records and with `visit`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit_image), (&raw mut visit).cast()) };
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

/// The address of a function of the C library; 0 if it has none of this name. Unlike [`each_image`] it calls no function of
/// the loader: a sanitizer replaces those, its replacements do not work before it is initialized, and it calls `dlsym` before
/// that.
pub(crate) fn c_library_function(name: &CStr) -> usize {
    // SAFETY: the loader fills the list before any code of the program runs. The entries of the first libraries, the C
    // library among them, are never removed, and new entries are appended.
    let mut at = unsafe { _r_debug.first };
    while !at.is_null() {
        // SAFETY: as above.
        let listed = unsafe { &*at };
        if is_the_c_library(listed.name)
            && let Some(found) = Image::at(listed.base).and_then(|image| image.find(name, Kind::Function))
        {
            return found;
        }
        at = listed.next;
    }
    0
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

/// One entry of a library's dynamic section.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    tag: u64,
    value: u64,
}

/// A loaded library.
pub(crate) struct Image<'a> {
    /// The loader's name of its file; empty for the program.
    pub(crate) name: &'a CStr,
    base: usize,
    segments: &'a [Elf64_Phdr],
}

/// The addresses of a library's tables; 0 for a table that it lacks.
#[derive(Default)]
struct Tables {
    symbols: usize,
    names: usize,
    gnu_hashes: usize,
    old_hashes: usize,
    versions: usize,
}

impl Image<'_> {
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
        Some(Self { name: c"", base, segments })
    }

    /// The address of its first byte. No two libraries have the same.
    pub(crate) fn start(&self) -> usize {
        let loaded = self.segments.iter().filter(|segment| segment.p_type == PT_LOAD);
        self.address(loaded.map(|segment| segment.p_vaddr).min().unwrap_or(0))
    }

    /// Whether all of these bytes are in a readable segment.
    pub(crate) fn holds(&self, address: usize, length: usize) -> bool {
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

    fn dynamic_entries(&self) -> impl Iterator<Item = Entry> {
        let dynamic = self.segments.iter().find(|segment| segment.p_type == PT_DYNAMIC);
        let table = dynamic.map(|dynamic| self.address(dynamic.p_vaddr));
        let entry = move |index| self.read::<Entry>(table?, index).filter(|entry| entry.tag != 0);
        (0..).map_while(entry)
    }

    fn tables(&self) -> Tables {
        const OLD_HASHES: u64 = 4;
        const NAMES: u64 = 5;
        const SYMBOLS: u64 = 6;
        const GNU_HASHES: u64 = 0x6fff_fef5;
        const VERSIONS: u64 = 0x6fff_fff0;
        let mut tables = Tables::default();
        for entry in self.dynamic_entries() {
            // The loader has replaced offsets by addresses, except in the library that the kernel maps.
            let Ok(value) = usize::try_from(entry.value) else { continue };
            let place = if value < self.base { self.base + value } else { value };
            match entry.tag {
                OLD_HASHES => tables.old_hashes = place,
                NAMES => tables.names = place,
                SYMBOLS => tables.symbols = place,
                GNU_HASHES => tables.gnu_hashes = place,
                VERSIONS => tables.versions = place,
                _ => {}
            }
        }
        tables
    }

    /// The address of the symbol of this name; of several versions, the default one.
    pub(crate) fn find(&self, name: &CStr, kind: Kind) -> Option<usize> {
        let tables = self.tables();
        if tables.gnu_hashes != 0 {
            self.find_by_gnu_hash(&tables, name, kind)
        } else {
            self.find_by_old_hash(&tables, name, kind)
        }
    }

    fn find_by_gnu_hash(&self, tables: &Tables, name: &CStr, kind: Kind) -> Option<usize> {
        let hash = gnu_hash(name);
        // The number of buckets, the index of the first hashed symbol, and the size of the Bloom filter in words.
        let [buckets, first, words, _shift]: [u32; 4] = self.read(tables.gnu_hashes, 0)?;
        let bucket_table = tables.gnu_hashes + size_of::<[u32; 4]>() + words as usize * size_of::<u64>();
        let chain = bucket_table + buckets as usize * size_of::<u32>();
        let bucket = hash.checked_rem(buckets)?;
        let mut index: u32 = self.read(bucket_table, bucket as usize)?;
        // The lowest bit of a hash marks the end of a chain.
        loop {
            let there: u32 = self.read(chain, index.checked_sub(first)? as usize)?;
            if there | 1 == hash | 1
                && let Some(address) = self.symbol(tables, index, name, kind)
            {
                return Some(address);
            }
            if there & 1 == 1 {
                return None;
            }
            index = index.checked_add(1)?;
        }
    }

    fn find_by_old_hash(&self, tables: &Tables, name: &CStr, kind: Kind) -> Option<usize> {
        let [buckets, symbols]: [u32; 2] = self.read(tables.old_hashes, 0)?;
        let bucket_table = tables.old_hashes + size_of::<[u32; 2]>();
        let chain = bucket_table + buckets as usize * size_of::<u32>();
        let mut index: u32 = self.read(bucket_table, old_hash(name).checked_rem(buckets)? as usize)?;
        // A chain ends with 0. The bound ends one that is damaged.
        for _ in 0..symbols {
            if index == 0 {
                return None;
            }
            if let Some(address) = self.symbol(tables, index, name, kind) {
                return Some(address);
            }
            index = self.read(chain, index as usize)?;
        }
        None
    }

    /// The address of the symbol at an index, if it is defined, has this name, and is the default version.
    fn symbol(&self, tables: &Tables, index: u32, name: &CStr, kind: Kind) -> Option<usize> {
        const HIDDEN: u16 = 0x8000;
        let symbol: Elf64_Sym = self.read(tables.symbols, index as usize)?;
        let is_defined = symbol.st_shndx != 0 && kind.matches(&symbol);
        if !is_defined || !self.is_text(tables.names + symbol.st_name as usize, name) {
            return None;
        }
        let version =
            (tables.versions != 0).then(|| self.read::<u16>(tables.versions, index as usize)).flatten();
        (version.unwrap_or(0) & HIDDEN == 0).then(|| self.address(symbol.st_value))
    }

    fn is_text(&self, at: usize, text: &CStr) -> bool {
        text.to_bytes_with_nul().iter().enumerate().all(|(n, byte)| self.read(at, n) == Some(*byte))
    }

    /// The addresses of the names of the libraries that it is linked to.
    fn needed(&self) -> impl Iterator<Item = usize> {
        const NEEDED: u64 = 1;
        let names = self.tables().names;
        let is_name = |entry: &Entry| entry.tag == NEEDED;
        self.dynamic_entries()
            .filter(is_name)
            .filter_map(move |entry| names.checked_add(usize::try_from(entry.value).ok()?))
    }

    /// Whether it is linked to a library whose name begins with this.
    pub(crate) fn is_linked_to(&self, file: &str) -> bool {
        let begins = |name: usize| file.bytes().enumerate().all(|(n, byte)| self.read(name, n) == Some(byte));
        self.needed().any(begins)
    }

    /// Calls `visit` with the name of each library that it is linked to.
    pub(crate) fn each_needed(&self, mut visit: impl FnMut(&CStr)) {
        for name in self.needed().filter(|name| self.holds(*name, 1)) {
            // SAFETY: inside the library's table of names, which ends with a zero byte.
            visit(unsafe { CStr::from_ptr(with_exposed_provenance(name)) });
        }
    }

    /// Whether the loader knows it by this name: the name that it was linked with, or the name of its file.
    pub(crate) fn is_known_as(&self, name: &CStr) -> bool {
        const OWN_NAME: u64 = 14;
        let file = self.name.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let names = self.tables().names;
        let own = self.dynamic_entries().find(|entry| entry.tag == OWN_NAME);
        let own = own.and_then(|entry| names.checked_add(usize::try_from(entry.value).ok()?));
        file == name.to_bytes() || own.is_some_and(|own| self.is_text(own, name))
    }
}

/// The hash function of the GNU hash table.
fn gnu_hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add((*byte).into()))
}

/// The hash function of the older table.
fn old_hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(0, |hash: u32, byte| {
        let hash = (hash << 4).wrapping_add((*byte).into());
        let high = hash & 0xf000_0000;
        (hash ^ (high >> 24)) & !high
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_of_libc_is_found() {
        let mut checked = 0;
        each_image(&mut |image| {
            let tables = image.tables();
            if image.find(c"getpid", Kind::Function).is_none() {
                return ControlFlow::Continue(());
            }
            for index in 1..2_000 {
                let symbol: Elf64_Sym = image.read(tables.symbols, index).unwrap();
                let version: u16 = image.read(tables.versions, index).unwrap();
                if symbol.st_shndx == 0 || !Kind::Function.matches(&symbol) || version & 0x8000 != 0 {
                    continue;
                }
                // SAFETY: the names of a loaded library are C strings.
                let name = unsafe {
                    CStr::from_ptr(with_exposed_provenance(tables.names + symbol.st_name as usize))
                };
                assert!(image.find(name, Kind::Function).is_some(), "{name:?}");
                checked += 1;
            }
            ControlFlow::Break(())
        });
        assert!(checked > 500, "{checked}");
    }

    #[test]
    fn hash_functions_are_those_of_the_format() {
        assert_eq!((gnu_hash(c"printf"), gnu_hash(c"")), (0x156b_2bb8, 5381));
        assert_eq!((old_hash(c"printf"), old_hash(c"exit")), (0x0779_05a6, 0x0006_cf04));
    }

    #[test]
    fn linked_libraries_are_listed() {
        let mut is_found = false;
        each_image(&mut |image| {
            // The program is the first.
            assert!(image.name.is_empty());
            is_found = image.is_linked_to("libc.so") && !image.is_linked_to("libamdhip64.so");
            let mut names = 0;
            image.each_needed(|name| names += usize::from(name == c"libc.so.6"));
            assert_eq!(names, 1);
            ControlFlow::Break(())
        });
        assert!(is_found);
    }
}

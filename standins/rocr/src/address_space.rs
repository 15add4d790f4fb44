//! Memory of agents as files, so that other processes can map it, and addresses of this process.

use std::collections::BTreeMap;
use std::ffi::c_int;

/// Allocations of at least this size start at a multiple of it, as those of AMD's runtime.
const LARGE_PAGE: usize = 2 << 20;
const PAGE: usize = 4096;

/// The memory of one agent: a sparse file, of which only the pages that were written exist.
pub(crate) struct Arena {
    fd: c_int,
    /// Free ranges: length by offset.
    free: BTreeMap<u64, u64>,
}

impl Arena {
    /// Memory of this size.
    pub(crate) fn new(bytes: u64) -> Option<Self> {
        let fd = create_file(c"rocr-memory", bytes)?;
        Some(Self { fd, free: BTreeMap::from([(0, bytes)]) })
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd
    }

    /// How much is free.
    pub(crate) fn available(&self) -> u64 {
        self.free.values().sum()
    }

    /// Allocates and maps memory. Returns its address and its place in the file.
    pub(crate) fn allocate(&mut self, size: usize) -> Option<(usize, u64)> {
        let wanted = size as u64;
        let (offset, length) =
            self.free.iter().find(|(_, length)| **length >= wanted).map(|(a, b)| (*a, *b))?;
        let alignment = if size >= LARGE_PAGE { LARGE_PAGE } else { PAGE };
        let address = reserve(size, alignment, 0)?;
        if !map_file(address, size, self.fd, offset) {
            unmap(address, size);
            return None;
        }
        self.free.remove(&offset);
        if length > wanted {
            self.free.insert(offset + wanted, length - wanted);
        }
        Some((address, offset))
    }

    /// Frees a range, which must not be mapped any more, and its pages.
    pub(crate) fn free(&mut self, offset: u64, size: usize) {
        let mut length = size as u64;
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (start, bytes) = (i64::try_from(offset).unwrap_or(0), i64::try_from(length).unwrap_or(0));
        // SAFETY: the file belongs to this arena; the range is not in use.
        unsafe { libc::fallocate(self.fd, mode, start, bytes) };
        let mut offset = offset;
        if let Some(next) = self.free.remove(&(offset + length)) {
            length += next;
        }
        if let Some((before, size)) = self.free.range(..offset).next_back().map(|(a, b)| (*a, *b))
            && before + size == offset
        {
            offset = before;
            length += size;
        }
        self.free.insert(offset, length);
    }
}

/// An anonymous file of this size.
pub(crate) fn create_file(name: &std::ffi::CStr, bytes: u64) -> Option<c_int> {
    // SAFETY: a C string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: a descriptor that was just created.
    if fd < 0 || unsafe { libc::ftruncate(fd, i64::try_from(bytes).ok()?) } != 0 {
        return None;
    }
    Some(fd)
}

/// Reserves addresses that are a multiple of `alignment`, at `hint` if that is free and not 0. Nothing is accessible there yet.
pub(crate) fn reserve(size: usize, alignment: usize, hint: usize) -> Option<usize> {
    let whole = size.checked_add(alignment)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    if hint != 0 {
        let place = std::ptr::with_exposed_provenance_mut(hint);
        // SAFETY: MAP_FIXED_NOREPLACE replaces no mapping.
        let got =
            unsafe { libc::mmap(place, size, libc::PROT_NONE, flags | libc::MAP_FIXED_NOREPLACE, -1, 0) };
        if got == place {
            return Some(hint);
        }
        if got != libc::MAP_FAILED {
            unmap(got.expose_provenance(), size);
        }
    }
    // SAFETY: the kernel chooses the address.
    let got = unsafe { libc::mmap(std::ptr::null_mut(), whole, libc::PROT_NONE, flags, -1, 0) };
    if got == libc::MAP_FAILED {
        return None;
    }
    let first = got.expose_provenance();
    let start = first.next_multiple_of(alignment);
    unmap(first, start - first);
    unmap(start + size, first + whole - start - size);
    Some(start)
}

/// Maps a part of a file over reserved addresses. A child after fork does not inherit it, as with AMD's driver.
pub(crate) fn map_file(address: usize, size: usize, fd: c_int, offset: u64) -> bool {
    let place = std::ptr::with_exposed_provenance_mut(address);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let Ok(offset) = i64::try_from(offset) else { return false };
    // SAFETY: the caller reserved the addresses, so no other mapping is replaced.
    let got = unsafe { libc::mmap(place, size, access, flags, fd, offset) };
    if got == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: just mapped.
    unsafe { libc::madvise(place, size, libc::MADV_DONTFORK) };
    true
}

/// Makes addresses inaccessible but keeps them reserved.
pub(crate) fn withdraw(address: usize, size: usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the caller reserved the addresses.
    unsafe {
        libc::mmap(std::ptr::with_exposed_provenance_mut(address), size, libc::PROT_NONE, flags, -1, 0)
    };
}

/// Releases addresses.
pub(crate) fn unmap(address: usize, size: usize) {
    if size > 0 {
        // SAFETY: the caller reserved or mapped the addresses, and no longer uses them.
        unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(address), size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(address: usize, size: usize, byte: u8) {
        // SAFETY: the test has just mapped the range.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(address).write_bytes(byte, size) };
    }

    fn first_byte(address: usize) -> u8 {
        // SAFETY: as above.
        unsafe { std::ptr::with_exposed_provenance::<u8>(address).read() }
    }

    #[test]
    fn freed_memory_is_joined_reused_and_zero() {
        let mut arena = Arena::new(8 * PAGE as u64).unwrap();
        let ranges: Vec<_> = (0..4).map(|_| arena.allocate(2 * PAGE).unwrap()).collect();
        assert_eq!(arena.available(), 0);
        assert!(arena.allocate(PAGE).is_none(), "all memory is in use");
        for (address, offset) in &ranges {
            fill(*address, 2 * PAGE, 0xab);
            unmap(*address, 2 * PAGE);
            arena.free(*offset, 2 * PAGE);
        }
        assert_eq!(arena.available(), 8 * PAGE as u64);
        let (whole, offset) = arena.allocate(8 * PAGE).expect("free ranges were joined");
        assert_eq!((offset, first_byte(whole)), (0, 0));
        unmap(whole, 8 * PAGE);
    }

    #[test]
    fn large_allocations_are_aligned_to_large_pages() {
        let mut arena = Arena::new(64 << 20).unwrap();
        let (_, _) = arena.allocate(PAGE).unwrap();
        let (address, _) = arena.allocate(LARGE_PAGE + PAGE).unwrap();
        assert!(address.is_multiple_of(LARGE_PAGE));
    }

    #[test]
    fn reserved_addresses_are_where_they_were_asked_for_unless_in_use() {
        // Far from where the kernel places other mappings.
        let address = 0x1000_0000_0000;
        assert_eq!(reserve(16 * PAGE, PAGE, address), Some(address));
        assert_ne!(reserve(16 * PAGE, PAGE, address), Some(address));
    }
}

//! Ranges of addresses that chunks of physical memory back.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};

use super::PAGE;
use crate::allocations::PerProcess;
use crate::platforms::cuda::vendor::{self, AllocationProperties, Code, MemoryAccess, checked};

/// The largest chunk. Smaller chunks take longer to map: chunks of 2 MiB ten times as long for the same amount.
const MAX_CHUNK: usize = 64 << 20;

/// The size of every chunk is a multiple of this: the driver's page.
const GRANULARITY: usize = 2 << 20;
const _: () = assert!(GRANULARITY as u64 == PAGE);

/// A piece of physical memory.
#[derive(Debug)]
pub(super) struct Chunk {
    /// The driver's handle; none while the data is in memory of the host.
    handle: Option<u64>,
    pub(super) bytes: usize,
}

/// Addresses that the program has allocated, by their first one.
#[derive(Debug)]
pub(super) struct Range {
    address: usize,
    /// What the program asked for; the chunks have at least as much.
    pub(super) requested: usize,
    pub(super) ordinal: c_int,
    /// The context in which the program allocated it.
    pub(super) context: usize,
    /// The number that the driver would report as the identifier of the allocation.
    pub(super) identifier: u64,
    /// Something outside of the process may use the memory: it is not moved.
    pub(super) is_pinned: bool,
    pub(super) chunks: Vec<Chunk>,
}

static RANGES: PerProcess<BTreeMap<usize, Range>> = PerProcess::new();
static MOVABLE: AtomicU64 = AtomicU64::new(0);

/// All ranges.
pub(super) fn all() -> MutexGuard<'static, BTreeMap<usize, Range>> {
    RANGES.lock()
}

/// How many bytes can be moved.
pub(super) fn movable() -> u64 {
    MOVABLE.load(Ordering::Relaxed)
}

fn update_movable(ranges: &BTreeMap<usize, Range>) {
    let movable = ranges.values().filter(|range| !range.is_pinned).map(|range| range.size() as u64).sum();
    MOVABLE.store(movable, Ordering::Relaxed);
}

/// Whether the driver has the functions.
pub(super) fn is_supported() -> bool {
    let granularity = vendor::GRANULARITY.get().is_some_and(|granularity| {
        let (mut bytes, properties) = (0, AllocationProperties::on_device(0));
        // SAFETY: the properties are complete, and `bytes` has room for the result.
        let code = unsafe { granularity(&raw mut bytes, &raw const properties, 0) };
        code == vendor::SUCCESS && GRANULARITY.is_multiple_of(bytes)
    });
    granularity
        && vendor::ADDRESS_RESERVE.get().is_some()
        && vendor::ADDRESS_FREE.get().is_some()
        && vendor::PHYSICAL_CREATE.get().is_some()
        && vendor::PHYSICAL_RELEASE.get().is_some()
        && vendor::MAP.get().is_some()
        && vendor::UNMAP.get().is_some()
        && vendor::SET_ACCESS.get().is_some()
}

/// The chunks for so many bytes.
fn chunk_sizes(bytes: usize) -> impl Iterator<Item = usize> {
    let bytes = bytes.next_multiple_of(GRANULARITY);
    (0..bytes.div_ceil(MAX_CHUNK)).map(move |chunk| MAX_CHUNK.min(bytes - chunk * MAX_CHUNK))
}

impl Range {
    /// Reserves addresses and backs them with memory of a device.
    pub(super) fn create(requested: usize, ordinal: c_int, context: usize) -> Result<Self, Code> {
        static LAST_IDENTIFIER: AtomicU64 = AtomicU64::new(0);
        let chunks: Vec<_> = chunk_sizes(requested).map(|bytes| Chunk { handle: None, bytes }).collect();
        let size = chunks.iter().map(|chunk| chunk.bytes).sum();
        let mut address = 0;
        let reserve = vendor::ADDRESS_RESERVE.get().ok_or(vendor::NOT_SUPPORTED)?;
        // SAFETY: `address` has room for the result.
        checked(unsafe { reserve(&raw mut address, size, 0, 0, 0) })?;
        // Far from the numbers of the driver, which counts from 1.
        let identifier = 1 << 62 | LAST_IDENTIFIER.fetch_add(1, Ordering::Relaxed);
        let mut range = Self { address, requested, ordinal, context, identifier, is_pinned: false, chunks };
        let backed = range.create_chunks().and_then(|()| range.map());
        if let Err(code) = backed {
            range.release_addresses();
            return Err(code);
        }
        Ok(range)
    }

    /// The first address.
    pub(super) fn address(&self) -> usize {
        self.address
    }

    /// The size of all chunks.
    pub(super) fn size(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.bytes).sum()
    }

    /// Whether the chunks are on the device.
    pub(super) fn is_resident(&self) -> bool {
        self.chunks.iter().all(|chunk| chunk.handle.is_some())
    }

    /// Creates the chunks without mapping them. On failure none exists.
    pub(super) fn create_chunks(&mut self) -> Result<(), Code> {
        let create = vendor::PHYSICAL_CREATE.get().ok_or(vendor::NOT_SUPPORTED)?;
        let properties = AllocationProperties::on_device(self.ordinal);
        for chunk in &mut self.chunks {
            let mut handle = 0;
            // SAFETY: the properties are complete, and `handle` has room for the result.
            let code = unsafe { create(&raw mut handle, chunk.bytes, &raw const properties, 0) };
            if code != vendor::SUCCESS {
                self.release_chunks();
                return Err(code);
            }
            chunk.handle = Some(handle);
        }
        Ok(())
    }

    /// Releases the chunks, which are not mapped.
    pub(super) fn release_chunks(&mut self) {
        for chunk in &mut self.chunks {
            if let (Some(handle), Some(release)) = (chunk.handle.take(), vendor::PHYSICAL_RELEASE.get()) {
                // SAFETY: `create_chunks` got the handle from the driver.
                unsafe { release(handle) };
            }
        }
    }

    /// Maps the chunks. On failure they are released.
    pub(super) fn map(&mut self) -> Result<(), Code> {
        let mapped = self.map_all();
        if mapped.is_err() {
            self.release_chunks();
        }
        mapped
    }

    fn map_all(&self) -> Result<(), Code> {
        let (map, access) = vendor::MAP.get().zip(vendor::SET_ACCESS.get()).ok_or(vendor::NOT_SUPPORTED)?;
        let mut at = self.address;
        for chunk in &self.chunks {
            let handle = chunk.handle.ok_or(vendor::NOT_SUPPORTED)?;
            // SAFETY: the addresses are reserved, nothing is mapped there, and the handle is the chunk's.
            if let Err(code) = checked(unsafe { map(at, chunk.bytes, 0, handle, 0) }) {
                self.unmap_until(at);
                return Err(code);
            }
            at += chunk.bytes;
        }
        let description = MemoryAccess::read_write(self.ordinal);
        // SAFETY: the range was mapped above.
        checked(unsafe { access(self.address, self.size(), &raw const description, 1) })
            .inspect_err(|_| self.unmap_until(at))
    }

    fn unmap_until(&self, end: usize) {
        if end > self.address
            && let Some(unmap) = vendor::UNMAP.get()
        {
            // SAFETY: `map_all` has mapped the chunks up to there.
            unsafe { unmap(self.address, end - self.address) };
        }
    }

    /// Takes the memory away from the addresses, which stay reserved. Nothing uses it any more.
    pub(super) fn unmap(&mut self) -> Result<(), Code> {
        let unmap = vendor::UNMAP.get().ok_or(vendor::NOT_SUPPORTED)?;
        // SAFETY: all chunks are mapped, and the caller has waited for all work of the program.
        checked(unsafe { unmap(self.address, self.size()) })?;
        self.release_chunks();
        Ok(())
    }

    fn release_addresses(&self) {
        if let Some(free) = vendor::ADDRESS_FREE.get() {
            // SAFETY: `create` has reserved them, and nothing is mapped there.
            unsafe { free(self.address, self.size()) };
        }
    }

    /// Frees the memory and the addresses.
    fn release(mut self) {
        if !self.is_resident() || self.unmap().is_ok() {
            self.release_addresses();
        }
    }

    fn contains(&self, address: usize) -> bool {
        address >= self.address && address - self.address < self.requested
    }
}

pub(super) fn insert(range: Range) {
    let mut ranges = all();
    ranges.insert(range.address, range);
    update_movable(&ranges);
}

/// Whether a range begins at the address that is stored there.
pub(super) fn contains_start(address: *const usize) -> bool {
    // SAFETY: the caller has written an address there.
    contains(unsafe { *address })
}

/// Whether a range begins at this address.
pub(super) fn contains(address: usize) -> bool {
    all().contains_key(&address)
}

/// Calls `with` for the range that contains this address.
pub(super) fn with_range<R>(address: usize, with: impl FnOnce(&mut Range) -> R) -> Option<R> {
    let mut ranges = all();
    let (_, range) = ranges.range_mut(..=address).next_back()?;
    range.contains(address).then(|| with(range))
}

/// Something outside of the process may use the memory at this address from now on. Returns whether it could be moved before.
pub(super) fn pin(address: usize) -> bool {
    let is_known = with_range(address, |range| range.is_pinned = true).is_some();
    if is_known {
        update_movable(&all());
    }
    is_known
}

/// Frees the range that begins at this address.
pub(super) fn remove(address: usize) {
    let mut ranges = all();
    let removed = ranges.remove(&address);
    update_movable(&ranges);
    drop(ranges);
    removed.into_iter().for_each(Range::release);
}

/// Frees the ranges of a context that was destroyed.
pub(super) fn remove_of_context(context: usize) {
    let mut ranges = all();
    let all = std::mem::take(&mut *ranges);
    let (ended, kept): (BTreeMap<_, _>, _) = all.into_iter().partition(|(_, range)| range.context == context);
    *ranges = kept;
    update_movable(&ranges);
    drop(ranges);
    ended.into_values().for_each(Range::release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_ranges_have_large_chunks_and_small_ones_one_chunk() {
        const MIB: usize = 1 << 20;
        for (bytes, chunks) in [
            (MIB + 1, vec![2 * MIB]),
            (20 * MIB, vec![20 * MIB]),
            (64 * MIB, vec![64 * MIB]),
            (64 * MIB + 1, vec![64 * MIB, 2 * MIB]),
            (150 * MIB, vec![64 * MIB, 64 * MIB, 22 * MIB]),
        ] {
            assert_eq!(chunk_sizes(bytes).collect::<Vec<_>>(), chunks, "{bytes}");
        }
    }
}

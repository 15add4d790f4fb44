//! An allocator with a reserve.
//!
//! Rust aborts the process if an allocation fails. The library runs in programs that handle a failed allocation themselves, or that
//! still run when their memory is used up. Small allocations of the library then come from memory inside the library.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks of `SIZE` bytes, 64 for each word. `SIZE` is a power of two, at most a page. An allocation has up to `MAX_RUN` blocks, all of one
/// word.
#[repr(C, align(4096))]
struct Blocks<const SIZE: usize, const WORDS: usize, const MAX_RUN: usize> {
    memory: UnsafeCell<[[[u8; SIZE]; 64]; WORDS]>,
    /// A bit for each block that is in use.
    used: [AtomicU64; WORDS],
}

// SAFETY: `memory` is only accessed through the pointers that `take` returns, and `used` gives each block to one owner at a time.
unsafe impl<const SIZE: usize, const WORDS: usize, const MAX_RUN: usize> Sync
    for Blocks<SIZE, WORDS, MAX_RUN>
{
}

impl<const SIZE: usize, const WORDS: usize, const MAX_RUN: usize> Blocks<SIZE, WORDS, MAX_RUN> {
    const fn new() -> Self {
        Self { memory: UnsafeCell::new([[[0; SIZE]; 64]; WORDS]), used: [const { AtomicU64::new(0) }; WORDS] }
    }

    /// The bits of the blocks that a layout needs, from bit 0. None if they are too many.
    fn run(layout: Layout) -> Option<(u64, usize)> {
        let count = layout.size().div_ceil(SIZE).max(1);
        (count <= MAX_RUN && layout.align() <= SIZE).then(|| (u64::MAX >> (64 - count), count))
    }

    /// Memory for a layout, or null.
    fn take(&self, layout: Layout) -> *mut u8 {
        let Some((run, count)) = Self::run(layout) else { return std::ptr::null_mut() };
        for (index, word) in self.used.iter().enumerate() {
            let mut bits = word.load(Ordering::Relaxed);
            while let Some(bit) = (0..=64 - count).find(|bit| bits & run << bit == 0) {
                match word.compare_exchange(bits, bits | run << bit, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => {
                        return self.memory.get().cast::<u8>().wrapping_add((index * 64 + bit) * SIZE);
                    }
                    Err(now) => bits = now,
                }
            }
        }
        std::ptr::null_mut()
    }

    /// Takes memory back that `take` has returned for this layout. Returns false if it is not from here.
    fn give_back(&self, pointer: *mut u8, layout: Layout) -> bool {
        let offset = (pointer as usize).wrapping_sub(self.memory.get() as usize);
        let Some(word) = self.used.get(offset / (64 * SIZE)) else { return false };
        let Some((run, _)) = Self::run(layout) else { return false };
        word.fetch_and(!(run << (offset / SIZE % 64)), Ordering::Release);
        true
    }
}

/// The C library's allocator, and if it has no memory left, a reserve of its own: 128 KiB for up to 512 bytes each, and 512 KiB for up to
/// 256 KiB each. The reserve is not touched before it is needed. Taking from it needs no lock.
pub struct ReserveAllocator {
    small: Blocks<64, 32, 8>,
    large: Blocks<4096, 2, 64>,
}

impl ReserveAllocator {
    /// An allocator with the whole reserve.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "it is the initial value of a static")]
    pub const fn new() -> Self {
        Self { small: Blocks::new(), large: Blocks::new() }
    }

    fn take(&self, layout: Layout) -> *mut u8 {
        let block = self.small.take(layout);
        if block.is_null() { self.large.take(layout) } else { block }
    }

    fn contains(&self, pointer: *mut u8) -> bool {
        (pointer as usize).wrapping_sub(std::ptr::from_ref(self) as usize) < size_of::<Self>()
    }
}

// SAFETY: every block is from `System` or from the reserve, which gives it to one owner at a time, with at least the size and the
// alignment of the layout. It is returned to where it came from, by its address.
unsafe impl GlobalAlloc for ReserveAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps to the contract of this function, which is the same.
        let block = unsafe { System.alloc(layout) };
        if block.is_null() { self.take(layout) } else { block }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let block = unsafe { System.alloc_zeroed(layout) };
        if !block.is_null() {
            return block;
        }
        let block = self.take(layout);
        if !block.is_null() {
            // SAFETY: `take` returned a block of at least this size, which has no other owner.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if self.contains(block) {
            let _ = self.small.give_back(block, layout) || self.large.give_back(block, layout);
        } else {
            // SAFETY: `block` is not from the reserve, so `System` allocated it with this layout.
            unsafe { System.dealloc(block, layout) }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !self.contains(block) {
            // SAFETY: `block` is not from the reserve, so `System` allocated it with this layout.
            let moved = unsafe { System.realloc(block, layout, size) };
            if !moved.is_null() {
                return moved;
            }
        }
        // SAFETY: the caller guarantees that `size`, rounded up to the alignment, is the size of a valid layout. `moved` has at least
        // `size` bytes and no other owner, and `block` at least `layout.size()`; it is not used after it is returned.
        unsafe {
            let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(block, layout.size().min(size));
                self.dealloc(block, layout);
            }
            moved
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_gives_each_block_to_one_owner_and_reuses_what_is_returned() {
        static RESERVE: ReserveAllocator = ReserveAllocator::new();
        let mut blocks = Vec::new();
        for (size, align) in
            [(24, 8), (1, 1), (512, 16), (513, 8), (4096, 4096), (20_000, 64)].into_iter().cycle()
        {
            let layout = Layout::from_size_align(size, align).unwrap();
            let block = RESERVE.take(layout);
            if block.is_null() {
                break;
            }
            assert!(RESERVE.contains(block) && (block as usize).is_multiple_of(align));
            // SAFETY: the block has this size and no other owner.
            unsafe { block.write_bytes(u8::try_from(blocks.len() % 256).unwrap(), size) };
            blocks.push((block, layout));
        }
        assert!(blocks.len() > 50, "{}", blocks.len());
        for (number, (block, layout)) in blocks.iter().enumerate() {
            // SAFETY: written above.
            let bytes = unsafe { std::slice::from_raw_parts(*block, layout.size()) };
            assert!(bytes.iter().all(|byte| usize::from(*byte) == number % 256), "two owners");
        }
        let last = blocks.len();
        for (block, layout) in blocks.drain(..) {
            // SAFETY: a block of the reserve with its layout, which is not used afterwards.
            unsafe { RESERVE.dealloc(block, layout) };
        }
        let page = Layout::from_size_align(4096, 4096).unwrap();
        let again: Vec<_> = (0..128).map(|_| RESERVE.take(page)).collect();
        assert!(again.iter().all(|block| !block.is_null()), "{last} blocks were not all returned");
        assert!(RESERVE.take(page).is_null(), "a block has two owners");
    }

    #[test]
    fn reserve_blocks_grow_into_ordinary_memory_with_their_content() {
        static RESERVE: ReserveAllocator = ReserveAllocator::new();
        let layout = Layout::from_size_align(64, 8).unwrap();
        let block = RESERVE.take(layout);
        // SAFETY: the block has 64 bytes and no other owner; it is not used after it was moved.
        let moved = unsafe {
            block.write_bytes(7, 64);
            RESERVE.realloc(block, layout, 1 << 20)
        };
        assert!(!moved.is_null() && !RESERVE.contains(moved));
        // SAFETY: the first 64 bytes are those of the old block.
        assert!(unsafe { std::slice::from_raw_parts(moved, 64) }.iter().all(|byte| *byte == 7));
        assert_eq!(RESERVE.take(layout), block, "the old block was returned");
        // SAFETY: allocated above with this size and alignment.
        unsafe { RESERVE.dealloc(moved, Layout::from_size_align(1 << 20, 8).unwrap()) };
    }
}

//! Memory of the host that holds device memory. It is registered with the driver, because copies to other memory are slower,
//! and it is reused: to allocate and to register it takes longer than to copy.

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::platforms::cuda::vendor;

/// The granularity of segments: the largest chunk.
const GRAIN: usize = 64 << 20;
/// The largest segment. At most one chunk of each is unused.
const MAX_SEGMENT: usize = 1 << 30;

/// One mapping of memory.
struct Segment {
    start: usize,
    bytes: usize,
    used: usize,
}

/// The memory of this process.
#[derive(Default)]
pub(super) struct Arena {
    segments: Vec<Segment>,
    /// The most that it may have; none for the default.
    limit: Option<u64>,
}

impl Arena {
    /// An empty arena. Without a limit it grows by at most half of the memory that is available.
    pub(super) fn with_limit(limit: Option<u64>) -> Self {
        Self { segments: Vec::new(), limit }
    }

    fn total(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes as u64).sum()
    }

    /// All of it is unused.
    pub(super) fn clear(&mut self) {
        self.segments.iter_mut().for_each(|segment| segment.used = 0);
    }

    /// Places for chunks of these sizes. None, and nothing is placed, if there is too little memory.
    pub(super) fn place(&mut self, chunks: &[usize]) -> Option<Vec<*mut c_void>> {
        let needed: usize = chunks.iter().sum();
        let mut places = Vec::with_capacity(chunks.len());
        let mut left = needed;
        for bytes in chunks {
            let room = self.segments.iter_mut().find(|segment| segment.bytes - segment.used >= *bytes);
            let segment = if let Some(segment) = room {
                segment
            } else {
                if self.grow(left.max(*bytes)).is_none() {
                    self.clear();
                    return None;
                }
                self.segments.last_mut()?
            };
            places.push((segment.start + segment.used) as *mut c_void);
            segment.used += bytes;
            left -= bytes;
        }
        Some(places)
    }

    /// Adds a segment for at least one chunk, and for `bytes` if segments can be as large.
    fn grow(&mut self, bytes: usize) -> Option<()> {
        let bytes = bytes.next_multiple_of(GRAIN).min(MAX_SEGMENT);
        let available = available_memory()?;
        let allowed = match self.limit {
            // Never so much that the machine runs out of memory.
            Some(limit) => limit.saturating_sub(self.total()).min(available - available / 16),
            None => available / 2,
        };
        if bytes as u64 > allowed {
            return None;
        }
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { libc::mmap(null_mut(), bytes, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: mapped above. A failure only means that the pages are small.
        unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) };
        populate(start as usize, bytes);
        let is_registered = vendor::HOST_REGISTER.get().is_some_and(|register| {
            /// `CU_MEMHOSTREGISTER_PORTABLE`: for all contexts.
            const PORTABLE: u32 = 1;
            // SAFETY: mapped above, and unmapped only if the driver refuses it.
            unsafe { register(start, bytes, PORTABLE) == vendor::SUCCESS }
        });
        if !is_registered {
            // SAFETY: mapped above, and nothing uses it.
            unsafe { libc::munmap(start, bytes) };
            return None;
        }
        self.segments.push(Segment { start: start as usize, bytes, used: 0 });
        Some(())
    }
}

/// Touches the memory by several threads: one thread takes seconds for 20 GiB, and so does the driver when it registers memory
/// that was never touched.
fn populate(start: usize, bytes: usize) {
    const THREADS: usize = 8;
    let part = (bytes / THREADS).next_multiple_of(2 << 20);
    let touch = |from: usize| {
        let length = part.min(bytes.saturating_sub(from));
        if length > 0 {
            // SAFETY: the caller has mapped the memory. A failure only means that the driver touches it.
            unsafe { libc::madvise((start + from) as *mut c_void, length, libc::MADV_POPULATE_WRITE) };
        }
    };
    std::thread::scope(|scope| {
        for thread in 1..THREADS {
            let builder = std::thread::Builder::new().stack_size(64 << 10);
            if builder.spawn_scoped(scope, move || touch(thread * part)).is_err() {
                touch(thread * part);
            }
        }
        touch(0);
    });
}

/// The memory that the machine and the control group of this process have left, in bytes. None if the kernel does not report it.
fn available_memory() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = machine.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some((kib << 10).min(room_in_control_group().unwrap_or(u64::MAX)))
}

/// What the control group may still use; none without a limit.
fn room_in_control_group() -> Option<u64> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let directory = std::path::Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/'));
    let number = |file: &str| std::fs::read_to_string(directory.join(file)).ok()?.trim().parse::<u64>().ok();
    Some(number("memory.max")?.saturating_sub(number("memory.current")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_reported() {
        assert!(available_memory().is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn places_do_not_overlap_and_are_reused() {
        let mut arena = Arena {
            segments: vec![
                Segment { start: 1 << 32, bytes: 2 * GRAIN, used: 0 },
                Segment { start: 1 << 40, bytes: GRAIN, used: 0 },
            ],
            limit: Some(0),
        };
        let chunks = [GRAIN, GRAIN / 2, GRAIN, GRAIN / 2];
        let at = |places: Vec<*mut c_void>| places.into_iter().map(|at| at as usize).collect::<Vec<_>>();
        let expected = [1 << 32, (1 << 32) + GRAIN, 1 << 40, (1 << 32) + GRAIN + GRAIN / 2];
        assert_eq!(arena.place(&chunks).map(at), Some(expected.to_vec()));
        assert_eq!(arena.place(&[GRAIN]), None, "the limit permits no more");
        assert_eq!(arena.place(&chunks).map(at), Some(expected.to_vec()), "all of it was cleared");
    }
}

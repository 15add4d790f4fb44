//! Duplicates of the program's descriptors of `/dev/kfd`. The driver may have several processes for one address space, each
//! with a descriptor of its own, and accepts calls for a queue only through that of the process that created it. A duplicate
//! denotes the same one, and works where the program may not open the file again.
//!
//! The `ioctl` observers use these, so they neither block nor allocate. A duplicate is closed with the last queue that was created
//! through it: it keeps the driver's process alive.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// One for each process that the driver has for this address space; programs have one, or a few.
const MAX_DESCRIPTORS: usize = 64;

/// The index of a queue's duplicate if it has none.
pub(super) const NONE: usize = MAX_DESCRIPTORS;

struct Descriptor {
    fd: AtomicI32,
    /// What the duplicate denotes; the program may have closed all its descriptors, and the number is used again.
    device: AtomicU64,
    inode: AtomicU64,
    /// The number of queues and of threads that use it; 0 for an unused entry.
    references: AtomicU32,
}

static DESCRIPTORS: [Descriptor; MAX_DESCRIPTORS] = [const {
    Descriptor {
        fd: AtomicI32::new(-1),
        device: AtomicU64::new(0),
        inode: AtomicU64::new(0),
        references: AtomicU32::new(0),
    }
}; MAX_DESCRIPTORS];

/// An entry that a thread is filling in.
const BEING_FILLED: u32 = u32::MAX;

/// The index of a duplicate of the program's descriptor, for one more queue; [`NONE`] if there is no room.
pub(super) fn acquire(program: c_int) -> usize {
    let is_same = |descriptor: &Descriptor| {
        descriptor.add_reference() && {
            let fd = descriptor.fd.load(Ordering::Acquire);
            // If it is unknown, the queue gets a duplicate of its own.
            let is_same = descriptor.is_open() && denotes_same_file(fd, program) == Some(true);
            if !is_same {
                descriptor.release();
            }
            is_same
        }
    };
    if let Some(known) = DESCRIPTORS.iter().position(is_same) {
        return known;
    }
    let claim = |descriptor: &Descriptor| {
        let claimed =
            descriptor.references.compare_exchange(0, BEING_FILLED, Ordering::AcqRel, Ordering::Relaxed);
        claimed.is_ok()
    };
    let Some(index) = DESCRIPTORS.iter().position(claim) else { return NONE };
    let descriptor = &DESCRIPTORS[index];
    // SAFETY: the call accesses no memory.
    let fd = unsafe { libc::fcntl(program, libc::F_DUPFD_CLOEXEC, 3) };
    let Some((device, inode)) = file_of(fd) else {
        descriptor.references.store(0, Ordering::Release);
        return NONE;
    };
    descriptor.device.store(device, Ordering::Relaxed);
    descriptor.inode.store(inode, Ordering::Relaxed);
    descriptor.fd.store(fd, Ordering::Release);
    descriptor.references.store(1, Ordering::Release);
    index
}

/// A queue that was created through the duplicate no longer exists.
pub(super) fn release(index: usize) {
    if let Some(descriptor) = DESCRIPTORS.get(index) {
        descriptor.release();
    }
}

/// Forgets all duplicates without closing them, in a child after fork: the driver's processes belong to its parent.
pub(super) fn forget_all() {
    for descriptor in &DESCRIPTORS {
        descriptor.references.store(0, Ordering::Release);
    }
}

/// Calls `work` with the duplicate, which is not closed meanwhile. None if there is no duplicate, or if the program closed it.
pub(super) fn with<R>(index: usize, work: impl FnOnce(c_int) -> R) -> Option<R> {
    let descriptor = DESCRIPTORS.get(index).filter(|descriptor| descriptor.add_reference())?;
    let result = descriptor.is_open().then(|| work(descriptor.fd.load(Ordering::Acquire)));
    descriptor.release();
    result
}

impl Descriptor {
    /// False for an entry that is not in use.
    fn add_reference(&self) -> bool {
        let more = |references: u32| {
            (references != 0 && references != BEING_FILLED).then_some(references.wrapping_add(1))
        };
        self.references.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    fn release(&self) {
        let less = |references: u32| match references {
            0 | BEING_FILLED => None,
            // The last one: the entry is reserved until the descriptor is closed.
            1 => Some(BEING_FILLED),
            more => Some(more - 1),
        };
        if self.references.fetch_update(Ordering::AcqRel, Ordering::Acquire, less) == Ok(1) {
            if self.is_open() {
                // SAFETY: this module's own descriptor, which no thread uses any more.
                unsafe { libc::close(self.fd.load(Ordering::Acquire)) };
            }
            self.references.store(0, Ordering::Release);
        }
    }

    /// Whether the descriptor denotes what it did when it was created.
    fn is_open(&self) -> bool {
        let expected = (self.device.load(Ordering::Relaxed), self.inode.load(Ordering::Relaxed));
        file_of(self.fd.load(Ordering::Acquire)) == Some(expected)
    }
}

/// The file that a descriptor denotes; none if it is closed.
fn file_of(fd: c_int) -> Option<(u64, u64)> {
    // SAFETY: all zeros is a valid value of this plain struct.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is writable.
    (unsafe { libc::fstat(fd, &raw mut stat) } == 0).then_some((stat.st_dev, stat.st_ino))
}

/// Whether the duplicate and a descriptor of the program come from one call of `open`; none if that is not known.
pub(super) fn denotes(index: usize, program: c_int) -> Option<bool> {
    with(index, |fd| denotes_same_file(fd, program)).flatten()
}

/// Whether two descriptors come from one call of `open`; none if a sandbox denies the call.
fn denotes_same_file(one: c_int, other: c_int) -> Option<bool> {
    const KCMP_FILE: c_int = 0;
    let pid = std::process::id();
    // SAFETY: the call accesses no memory of this process.
    match unsafe { libc::syscall(libc::SYS_kcmp, pid, pid, KCMP_FILE, one, other) } {
        -1 => None,
        order => Some(order == 0),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn duplicate_lives_as_long_as_the_queues_that_were_created_through_it() {
        let file = File::open("/proc/self/exe").unwrap();
        let first = acquire(file.as_raw_fd());
        let second = acquire(file.as_raw_fd());
        let duplicate = with(first, |fd| fd).unwrap();
        assert_ne!(duplicate, file.as_raw_fd());
        let other = acquire(File::open("/proc/self/exe").unwrap().as_raw_fd());
        assert_ne!(with(other, |fd| fd), Some(duplicate), "another call of `open`");
        drop(file);
        release(first);
        assert!(with(second, |fd| fd).is_some(), "a queue is left");
        release(second);
        release(other);
        assert_eq!(with(second, |fd| fd), None);
        assert_eq!(file_of(duplicate), None, "the duplicate is closed");
    }

    #[test]
    fn descriptor_that_the_program_closed_is_not_used() {
        let file = File::open("/proc/self/exe").unwrap();
        let index = acquire(file.as_raw_fd());
        let fd = with(index, |fd| fd).unwrap();
        // As a program that closes all descriptors and opens others.
        // SAFETY: the duplicate belongs to this module, whose code is under test here.
        assert_eq!(unsafe { libc::dup2(File::open("/dev/null").unwrap().as_raw_fd(), fd) }, fd);
        assert_eq!(with(index, |fd| fd), None);
        release(index);
        // SAFETY: opened above.
        assert_eq!(unsafe { libc::close(fd) }, 0, "the program's descriptor was closed");
        assert_eq!(with(NONE, |fd| fd), None);
    }
}

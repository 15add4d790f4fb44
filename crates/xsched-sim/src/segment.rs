//! The memory the processes share, and the only way to the model in it.
//!
//! ```text
//!   ┌ magic, version, size ┬ lock ┬ doorbell ┬ next event ┬ boards ┬ model ────────────┐
//!   └ checked on attach ───┴──────┴── read without the lock ───────┴ under the lock ───┘
//! ```
//!
//! [`Segment::lock`] takes the lock and moves the model to the present; dropping the [`Guard`] publishes what others
//! may read without the lock. All `unsafe` of the crate is here.

use std::cell::UnsafeCell;
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use xsched_core::Nanos;

use crate::board::Board;
use crate::config::Config;
use crate::error::AttachError;
use crate::lock::{Acquired, Locker, RobustLock};
use crate::model::{Model, QUEUES};
use crate::sleep::{Doorbell, Ring};

const MAGIC: u64 = u64::from_le_bytes(*b"XSIMDEV\0");
const VERSION: u32 = 1;

/// How the shared memory is laid out. Atomics and integers only: any contents are valid, all zero is what a new file
/// holds.
#[repr(C)]
struct Layout {
    magic: AtomicU64,
    version: AtomicU32,
    lock: RobustLock,
    doorbell: Doorbell,
    unused: u32,
    /// Before this time nothing completes, unless somebody submits something.
    next_event: AtomicU64,
    boards: [Board; QUEUES],
    model: UnsafeCell<Model>,
}

const SIZE: usize = size_of::<Layout>();
const SIZE_IN_FILE: u64 = SIZE as u64;

/// The mapping of one device into this process.
pub(crate) struct Segment {
    layout: NonNull<Layout>,
    fd: OwnedFd,
}

// SAFETY: the mapping stays where it is until the segment is dropped, whichever thread does that; `Layout` is read
// through atomics, and its model only by who holds the lock.
unsafe impl Send for Segment {}
// SAFETY: as for Send.
unsafe impl Sync for Segment {}

impl Segment {
    /// A new device in memory that only this process and those it hands the descriptor to can reach.
    pub(crate) fn create(config: &Config) -> Result<Self, AttachError> {
        let what = config.name();
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("xsched-sim", flags)
            .map_err(|errno| system(&what, "make its memory", errno.into()))?;
        let segment = Self::format(fd, &what, config)?;
        // Without seals a holder of the descriptor could cut the memory off under the others.
        fcntl_add_seals(&segment.fd, SealFlags::SHRINK | SealFlags::GROW)
            .map_err(|errno| system(&what, "seal its memory", errno.into()))?;
        Ok(segment)
    }

    /// A new device under a name. It appears there complete or not at all, and never in place of another.
    pub(crate) fn create_at(path: &Path, config: &Config) -> Result<Self, AttachError> {
        let what = path.display().to_string();
        let mut draft = path.as_os_str().to_owned();
        draft.push(format!(".{}", std::process::id()));
        let draft = Path::new(&draft);
        let file = File::options().read(true).write(true).create_new(true).open(draft);
        let made = file
            .map_err(|source| system(&what, "create the file", source))
            .and_then(|file| Self::format(file.into(), &what, config))
            .and_then(|segment| {
                let named = std::fs::hard_link(draft, path);
                named.map_err(|source| system(&what, "give it its name", source)).map(|()| segment)
            });
        let _ = std::fs::remove_file(draft);
        made
    }

    /// The device that lies under a name.
    pub(crate) fn open(path: &Path) -> Result<Self, AttachError> {
        let what = path.display().to_string();
        let file = File::options().read(true).write(true).open(path);
        Self::attach(file.map_err(|source| system(&what, "open", source))?.into(), &what)
    }

    /// The device behind a descriptor. `what` names it in messages.
    pub(crate) fn attach(fd: OwnedFd, what: &str) -> Result<Self, AttachError> {
        let file = File::from(fd);
        let found = file.metadata().map_err(|source| system(what, "find its size", source))?.len();
        if found != SIZE_IN_FILE {
            return Err(AttachError::Size { what: what.to_owned(), found, expected: SIZE_IN_FILE });
        }
        let segment = Self::map(file.into(), what)?;
        // Acquire: pairs with the Release in `format`.
        let found = segment.layout().magic.load(Ordering::Acquire);
        if found != MAGIC {
            return Err(AttachError::Magic { what: what.to_owned(), found });
        }
        let found = segment.layout().version.load(Ordering::Relaxed);
        if found != VERSION {
            return Err(AttachError::Version { what: what.to_owned(), found, expected: VERSION });
        }
        Ok(segment)
    }

    /// Makes an empty file a device.
    fn format(fd: OwnedFd, what: &str, config: &Config) -> Result<Self, AttachError> {
        let file = File::from(fd);
        file.set_len(SIZE_IN_FILE).map_err(|source| system(what, "give it its size", source))?;
        let segment = Self::map(file.into(), what)?;
        let layout = segment.layout();
        // SAFETY: the caller has just made this file and told nobody of it, so nobody else refers to the model.
        unsafe { &mut *layout.model.get() }.set_up(config, Nanos::now());
        layout.next_event.store(u64::MAX, Ordering::Relaxed);
        layout.version.store(VERSION, Ordering::Relaxed);
        // Release: pairs with the Acquire in `attach`; who sees the magic sees the rest.
        layout.magic.store(MAGIC, Ordering::Release);
        Ok(segment)
    }

    fn map(fd: OwnedFd, what: &str) -> Result<Self, AttachError> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses the address, so nothing that is mapped already is replaced.
        let mapped = unsafe { mmap(ptr::null_mut(), SIZE, access, flags, &fd, 0) };
        let mapped = mapped.map_err(|errno| system(what, "map its memory", errno.into()))?;
        let layout = NonNull::new(mapped.cast()).ok_or_else(|| {
            system(what, "map its memory", io::Error::other("the system mapped it at address zero"))
        })?;
        Ok(Self { layout, fd })
    }

    fn layout(&self) -> &Layout {
        // SAFETY: `map` mapped `SIZE` bytes there, page-aligned and for as long as the segment lives; `attach` and
        // `format` made sure that the file is that long. Any contents are a valid `Layout`.
        unsafe { self.layout.as_ref() }
    }

    /// The descriptor by which other processes can attach.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The queue's reports.
    pub(crate) fn board(&self, queue: u32) -> &Board {
        &self.layout().boards[queue as usize % QUEUES]
    }

    /// Sleeps until the notifier rings or the time comes; see [`Doorbell::sleep`].
    pub(crate) fn sleep(&self, heard: u32, until: Nanos) {
        self.layout().doorbell.sleep(heard, until);
    }

    /// Whether nothing can have completed by `now` that the boards do not show.
    pub(crate) fn is_quiet(&self, now: Nanos) -> bool {
        let layout = self.layout();
        // Relaxed: a hint only; who is told "not quiet" takes the lock.
        layout.lock.is_free() && layout.next_event.load(Ordering::Relaxed) > now.0
    }

    /// Takes the lock and brings the model to the present.
    pub(crate) fn lock(&self, me: &Locker) -> Guard<'_> {
        let acquired = self.layout().lock.acquire(me);
        self.guard(acquired)
    }

    /// The same, if nobody is in the way.
    pub(crate) fn try_lock(&self, me: &Locker) -> Option<Guard<'_>> {
        let acquired = self.layout().lock.try_acquire(me)?;
        Some(self.guard(acquired))
    }

    fn guard(&self, acquired: Acquired) -> Guard<'_> {
        let mut guard = Guard { layout: self.layout(), ring: None };
        // The clock is read under the lock, so that the model's time never has to go back.
        let now = Nanos::now();
        if acquired == Acquired::FromTheDead || guard.now() > now {
            guard.repair(now);
            guard.ring(Ring::Change);
        }
        guard.advance(now);
        guard
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: `map` mapped exactly this; guards and boards borrow the segment, so none outlives it.
        let _ = unsafe { munmap(self.layout.as_ptr().cast(), SIZE) };
    }
}

/// The model, for as long as the lock is held.
pub(crate) struct Guard<'a> {
    layout: &'a Layout,
    ring: Option<Ring>,
}

impl Guard<'_> {
    /// Announces that the caller will sleep; see [`Doorbell::listen`].
    pub(crate) fn listen(&self, marks_too: bool) -> u32 {
        self.layout.doorbell.listen(marks_too)
    }

    /// Rings when the lock has been given back, so that those it wakes find it free.
    pub(crate) fn ring(&mut self, what: Ring) {
        self.ring = self.ring.max(Some(what));
    }
}

impl Deref for Guard<'_> {
    type Target = Model;
    fn deref(&self) -> &Model {
        // SAFETY: a guard exists only while its process holds the lock (`Segment::guard`), and there is one per
        // holding; so nobody writes the model meanwhile.
        unsafe { &*self.layout.model.get() }
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut Model {
        // SAFETY: as in `deref`, and the guard is borrowed exclusively.
        unsafe { &mut *self.layout.model.get() }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let layout = self.layout;
        self.take_reports(|queue, marker, at| layout.boards[queue as usize % QUEUES].publish(marker, at));
        let next = self.next_event().unwrap_or(Nanos::MAX);
        layout.next_event.store(next.0, Ordering::Relaxed);
        layout.lock.release();
        if let Some(ring) = self.ring {
            layout.doorbell.ring(ring);
        }
    }
}

fn system(what: &str, deed: &'static str, source: io::Error) -> AttachError {
    AttachError::System { what: what.to_owned(), deed, source }
}

#[cfg(test)]
pub(crate) mod tests;

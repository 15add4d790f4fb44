//! The memory that the processes share, with the only access to the model in it.
//!
//! ```text
//!   ┌ magic, version, size ┬ lock ┬ notifier ┬ next event ┬ reports ┬ model ────────────┐
//!   └ checked on attach ───┴──────┴── read without the lock ────────┴ under the lock ───┘
//! ```
//!
//! [`Segment::lock`] takes the lock and advances the model to the present; dropping the [`Guard`] publishes what
//! processes may read without the lock. All `unsafe` code of the crate is here.

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

use crate::config::Config;
use crate::error::AttachError;
use crate::lock::{Acquired, LockOwner, RobustLock};
use crate::model::{MAX_QUEUES, Model};
use crate::notifier::{Notification, Notifier};
use crate::reports::QueueReports;

const MAGIC: u64 = u64::from_le_bytes(*b"XSIMDEV\0");
const VERSION: u32 = 1;

/// The layout of the shared memory. It holds only atomics and integers, so any contents are valid; a new file is all
/// zero.
#[repr(C)]
struct Layout {
    magic: AtomicU64,
    version: AtomicU32,
    lock: RobustLock,
    notifier: Notifier,
    unused: u32,
    /// No command completes before this time, unless a process submits work.
    next_event: AtomicU64,
    reports: [QueueReports; MAX_QUEUES],
    model: UnsafeCell<Model>,
}

const SIZE: usize = size_of::<Layout>();
const SIZE_IN_FILE: u64 = SIZE as u64;

/// The mapping of one device into this process.
pub(crate) struct Segment {
    layout: NonNull<Layout>,
    fd: OwnedFd,
}

// SAFETY: the mapping stays in place until the segment is dropped, on any thread. `Layout` is accessed through atomics,
// and its model only through a `Guard`, which holds the lock.
unsafe impl Send for Segment {}
// SAFETY: as for Send.
unsafe impl Sync for Segment {}

impl Segment {
    /// Creates a device in anonymous memory. Only processes that receive the descriptor can attach.
    pub(crate) fn create(config: &Config) -> Result<Self, AttachError> {
        let what = config.name();
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("xsched-sim", flags)
            .map_err(|errno| system(&what, "create its memory", errno.into()))?;
        let segment = Self::format(fd, &what, config)?;
        // Without seals a process with the descriptor could truncate the memory under the other processes.
        fcntl_add_seals(&segment.fd, SealFlags::SHRINK | SealFlags::GROW)
            .map_err(|errno| system(&what, "seal its memory", errno.into()))?;
        Ok(segment)
    }

    /// Creates a device at a path. The file appears there complete or not at all, and never replaces another file.
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
                named.map_err(|source| system(&what, "link the file to its path", source)).map(|()| segment)
            });
        let _ = std::fs::remove_file(draft);
        made
    }

    /// Opens the device at a path.
    pub(crate) fn open(path: &Path) -> Result<Self, AttachError> {
        let what = path.display().to_string();
        let file = File::options().read(true).write(true).open(path);
        Self::attach(file.map_err(|source| system(&what, "open", source))?.into(), &what)
    }

    /// Attaches to the device behind a descriptor. `what` names it in error messages.
    pub(crate) fn attach(fd: OwnedFd, what: &str) -> Result<Self, AttachError> {
        let file = File::from(fd);
        let found = file.metadata().map_err(|source| system(what, "read its size", source))?.len();
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

    /// Initializes an empty file as a device.
    fn format(fd: OwnedFd, what: &str, config: &Config) -> Result<Self, AttachError> {
        let file = File::from(fd);
        file.set_len(SIZE_IN_FILE).map_err(|source| system(what, "set its size", source))?;
        let segment = Self::map(file.into(), what)?;
        let layout = segment.layout();
        // SAFETY: the caller has just created this file and has not shared it, so no other reference to the model exists.
        unsafe { &mut *layout.model.get() }.set_up(config, Nanos::now());
        layout.next_event.store(u64::MAX, Ordering::Relaxed);
        layout.version.store(VERSION, Ordering::Relaxed);
        // Release: pairs with the Acquire in `attach`. A process that sees the magic sees the rest.
        layout.magic.store(MAGIC, Ordering::Release);
        Ok(segment)
    }

    fn map(fd: OwnedFd, what: &str) -> Result<Self, AttachError> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let mapped = unsafe { mmap(ptr::null_mut(), SIZE, access, flags, &fd, 0) };
        let mapped = mapped.map_err(|errno| system(what, "map its memory", errno.into()))?;
        let layout = NonNull::new(mapped.cast()).ok_or_else(|| {
            system(what, "map its memory", io::Error::other("the system mapped it at address zero"))
        })?;
        Ok(Self { layout, fd })
    }

    fn layout(&self) -> &Layout {
        // SAFETY: `map` mapped `SIZE` bytes there, page-aligned, until the segment is dropped; `attach` and `format`
        // ensured that the file has that length. Any contents are a valid `Layout`.
        unsafe { self.layout.as_ref() }
    }

    /// The descriptor through which other processes attach.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The queue's reports.
    pub(crate) fn reports(&self, queue: u32) -> &QueueReports {
        &self.layout().reports[queue as usize % MAX_QUEUES]
    }

    /// Sleeps until a notification or until the time `until`; see [`Notifier::sleep`].
    pub(crate) fn sleep(&self, seen: u32, until: Nanos) {
        self.layout().notifier.sleep(seen, until);
    }

    /// Whether the reports show everything that can have completed by `now`.
    pub(crate) fn is_up_to_date(&self, now: Nanos) -> bool {
        let layout = self.layout();
        // Relaxed: a hint only; a caller that gets `false` takes the lock.
        layout.lock.is_free() && layout.next_event.load(Ordering::Relaxed) > now.0
    }

    /// Takes the lock and advances the model to the present.
    pub(crate) fn lock(&self, owner: &LockOwner) -> Guard<'_> {
        let acquired = self.layout().lock.acquire(owner);
        self.guard(acquired)
    }

    /// Like `lock`, but returns none instead of blocking.
    pub(crate) fn try_lock(&self, owner: &LockOwner) -> Option<Guard<'_>> {
        let acquired = self.layout().lock.try_acquire(owner)?;
        Some(self.guard(acquired))
    }

    fn guard(&self, acquired: Acquired) -> Guard<'_> {
        let mut guard = Guard { layout: self.layout(), notification: None };
        // The clock is read under the lock, so that the model's time never runs backwards.
        let now = Nanos::now();
        if acquired == Acquired::FromDeadOwner || guard.now() > now {
            guard.repair(now);
            guard.notify(Notification::StateChanged);
        }
        guard.advance(now);
        guard
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: `map` mapped exactly this range; guards and reports borrow the segment, so none outlives it.
        let _ = unsafe { munmap(self.layout.as_ptr().cast(), SIZE) };
    }
}

/// Access to the model while the lock is held.
pub(crate) struct Guard<'a> {
    layout: &'a Layout,
    notification: Option<Notification>,
}

impl Guard<'_> {
    /// Registers the calling thread as a sleeper; see [`Notifier::register_sleeper`].
    pub(crate) fn register_sleeper(&self, on_marker: bool) -> u32 {
        self.layout.notifier.register_sleeper(on_marker)
    }

    /// Notifies after the lock is released, so that the woken threads find it free.
    pub(crate) fn notify(&mut self, what: Notification) {
        self.notification = self.notification.max(Some(what));
    }
}

impl Deref for Guard<'_> {
    type Target = Model;
    fn deref(&self) -> &Model {
        // SAFETY: a guard exists only while its process holds the lock (`Segment::guard` creates one per acquisition),
        // so no other process or thread writes the model.
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
        self.take_reports(|queue, marker, at| {
            layout.reports[queue as usize % MAX_QUEUES].publish(marker, at);
        });
        let next = self.next_event().unwrap_or(Nanos::MAX);
        layout.next_event.store(next.0, Ordering::Relaxed);
        layout.lock.release();
        if let Some(notification) = self.notification {
            layout.notifier.notify(notification);
        }
    }
}

fn system(what: &str, operation: &'static str, source: io::Error) -> AttachError {
    AttachError::System { what: what.to_owned(), operation, source }
}

#[cfg(test)]
pub(crate) mod tests;

//! The file through which processes share the devices, and a context's seat at one of them.
//!
//! Two kinds of locks lie on the file, beyond its end: one per device, held while its [`Turns`] are looked at, and one per
//! seat, held for as long as the process lives. Both are the system's record locks: a process that is killed loses them
//! at once, so nobody has to guess whether an owner still lives, and a child of a fork does not have them.

use std::cell::UnsafeCell;
use std::fs::File;
use std::num::NonZeroU32;
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fd::OwnedFd;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::thread::futex;

use crate::code::Code;
use crate::settings::{MOST_DEVICES, Settings};
use crate::turns::{SLOTS, Turns};

const MAGIC: u64 = u64::from_le_bytes(*b"STCUDA\0\x01");

/// What is in the file. Numbers only: any contents are valid, and all zero is what a new file holds.
#[repr(C)]
struct Layout {
    magic: AtomicU64,
    devices: [Device; MOST_DEVICES],
}

#[repr(C)]
struct Device {
    /// Read and written only by who holds the device's lock.
    turns: UnsafeCell<Turns>,
    /// What the contexts sleep on.
    beds: [AtomicU32; SLOTS],
}

const SIZE: usize = size_of::<Layout>();

struct Shared {
    layout: NonNull<Layout>,
    file: OwnedFd,
}

// SAFETY: the mapping is never given back; what is in it is atomic, or guarded by the device's lock and by `INSIDE`.
unsafe impl Send for Shared {}
// SAFETY: as for Send.
unsafe impl Sync for Shared {}

/// Record locks keep processes apart, not threads of one process.
static INSIDE: Mutex<()> = Mutex::new(());

/// The time on the clock that all processes share, in nanoseconds.
pub(crate) fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

fn switch() -> u64 {
    u64::try_from(Settings::get().switch.as_nanos()).unwrap_or(u64::MAX)
}

/// Where the locks of a device begin.
const fn lock_at(device: usize) -> usize {
    (1 << 24) + device * 1024
}

impl Shared {
    fn get() -> Result<&'static Self, Code> {
        static SHARED: OnceLock<Option<Shared>> = OnceLock::new();
        SHARED.get_or_init(|| Self::open().ok()).as_ref().ok_or(Code::ERROR_NO_DEVICE)
    }

    fn open() -> std::io::Result<Self> {
        let path = &Settings::get().file;
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        // Growing it to the size it has changes nothing, so it does not matter who comes first.
        if file.metadata()?.len() < SIZE as u64 {
            file.set_len(SIZE as u64)?;
        }
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let file = OwnedFd::from(file);
        // SAFETY: the system chooses the address, so nothing that is mapped already is replaced.
        let mapped = unsafe { mmap(std::ptr::null_mut(), SIZE, access, flags, &file, 0) }?;
        let layout = NonNull::new(mapped.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let shared = Self { layout, file };
        let before = shared
            .layout()
            .magic
            .compare_exchange(0, MAGIC, Ordering::AcqRel, Ordering::Acquire)
            .unwrap_or_else(|was| was);
        if before == 0 || before == MAGIC { Ok(shared) } else { Err(std::io::ErrorKind::InvalidData.into()) }
    }

    fn layout(&self) -> &Layout {
        // SAFETY: `open` mapped that many bytes there, page-aligned and for good. Any contents are a valid `Layout`.
        unsafe { self.layout.as_ref() }
    }

    /// One call about a record lock of one byte. Answers whether it succeeded, and what the system wrote.
    fn record_lock(&self, command: i32, kind: i32, at: usize) -> (bool, libc::flock) {
        // SAFETY: all zero is a valid value of this plain struct.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = i16::try_from(kind).unwrap_or(0);
        lock.l_whence = i16::try_from(libc::SEEK_SET).unwrap_or(0);
        lock.l_start = i64::try_from(at).unwrap_or(0);
        lock.l_len = 1;
        loop {
            // SAFETY: the struct outlives the call.
            let done = unsafe { libc::fcntl(self.file.as_raw_fd(), command, &raw mut lock) } == 0;
            if done || std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
                return (done, lock);
            }
        }
    }

    /// Does something with the turns of a device. Wakes whoever has got it by that.
    fn with<R>(&self, device: usize, me: Option<usize>, work: impl FnOnce(&mut Turns, u64) -> R) -> R {
        let inside = INSIDE.lock().unwrap_or_else(PoisonError::into_inner);
        self.record_lock(libc::F_SETLKW, libc::F_WRLCK, lock_at(device));
        let its = &self.layout().devices[device];
        // SAFETY: both locks are held, so no other thread of any process refers to it.
        let turns = unsafe { &mut *its.turns.get() };
        let now = now();
        let before = turns.owner();
        let others =
            before.into_iter().chain(turns.wanting_after(SLOTS - 1)).filter(|slot| Some(*slot) != me);
        for slot in others.collect::<Vec<_>>() {
            if !self.lives(device, slot, turns.pid(slot)) {
                turns.vacate(slot, now);
            }
        }
        let result = work(turns, now);
        let after = turns.owner().filter(|owner| before != Some(*owner) && me != Some(*owner));
        self.record_lock(libc::F_SETLK, libc::F_UNLCK, lock_at(device));
        drop(inside);
        if let Some(slot) = after {
            self.wake(device, slot);
        }
        result
    }

    /// Whether the process that has this seat still lives.
    fn lives(&self, device: usize, slot: usize, pid: u32) -> bool {
        let (asked, lock) = self.record_lock(libc::F_GETLK, libc::F_WRLCK, lock_at(device) + 1 + slot);
        // The system does not tell of our own locks.
        pid == std::process::id() || (asked && i32::from(lock.l_type) != libc::F_UNLCK)
    }

    fn wake(&self, device: usize, slot: usize) {
        let bed = &self.layout().devices[device].beds[slot];
        bed.fetch_add(1, Ordering::SeqCst);
        let _ = futex::wake(bed, futex::Flags::empty(), 1);
    }
}

/// A context's seat at a device, kept until it is dropped or its process ends.
pub(crate) struct Seat {
    device: usize,
    slot: usize,
}

impl Seat {
    /// Takes a free seat.
    pub(crate) fn take(device: usize) -> Result<Self, Code> {
        let shared = Shared::get()?;
        shared.with(device, None, |turns, now| {
            for slot in 0..SLOTS {
                let pid = turns.pid(slot);
                if pid != 0 && shared.lives(device, slot, pid) {
                    continue;
                }
                if shared.record_lock(libc::F_SETLK, libc::F_WRLCK, lock_at(device) + 1 + slot).0 {
                    turns.admit(slot, std::process::id(), now);
                    return Ok(Self { device, slot });
                }
            }
            Err(Code::ERROR_OUT_OF_MEMORY)
        })
    }

    fn with<R>(&self, work: impl FnOnce(&mut Turns, u64) -> R) -> Option<R> {
        Some(Shared::get().ok()?.with(self.device, Some(self.slot), work))
    }

    /// Says whether there is something to run, and since when, and learns whose turn it is.
    pub(crate) fn look(&self, since: Option<u64>) -> Turn {
        let turn = self.with(|turns, now| {
            match since {
                Some(since) => turns.want(self.slot, since, now, switch()),
                None => turns.rest(self.slot, now, switch()),
            }
            let mine = turns.owner() == Some(self.slot);
            Turn {
                now,
                begins: mine.then(|| turns.begins()),
                used: turns.used(self.slot),
                next_change: turns.next_change(),
            }
        });
        turn.unwrap_or(Turn { now: now(), begins: None, used: 0, next_change: None })
    }

    /// The slice, in microseconds.
    pub(crate) fn slice_us(&self) -> u64 {
        self.with(|turns, _| turns.slice(self.slot) / 1_000).unwrap_or(0)
    }

    /// Sets the slice.
    pub(crate) fn set_slice_us(&self, us: u64) {
        self.with(|turns, now| turns.set_slice(self.slot, us.saturating_mul(1_000), now, switch()));
    }

    fn bed(&self) -> Option<&'static AtomicU32> {
        Some(&Shared::get().ok()?.layout().devices[self.device].beds[self.slot])
    }

    /// To be read before looking for work; what is told to [`Seat::sleep`].
    pub(crate) fn heard(&self) -> u32 {
        self.bed().map_or(0, |bed| bed.load(Ordering::SeqCst))
    }

    /// Sleeps until the time comes or somebody wakes who came after `heard`.
    pub(crate) fn sleep(&self, heard: u32, until: u64) {
        let Some(bed) = self.bed() else { return };
        let limit = futex::Timespec {
            tv_sec: i64::try_from(until / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(until % 1_000_000_000).unwrap_or(0),
        };
        let _ = futex::wait_bitset(bed, futex::Flags::empty(), heard, Some(&limit), NonZeroU32::MAX);
    }

    /// Wakes the context's executor.
    pub(crate) fn wake(&self) {
        if let Ok(shared) = Shared::get() {
            shared.wake(self.device, self.slot);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.with(|turns, now| turns.vacate(self.slot, now));
        if let Ok(shared) = Shared::get() {
            shared.record_lock(libc::F_SETLK, libc::F_UNLCK, lock_at(self.device) + 1 + self.slot);
        }
    }
}

/// What a context learns when it looks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) now: u64,
    /// From when on it can use the device, if it has it.
    pub(crate) begins: Option<u64>,
    /// For how long it had it, all in all.
    pub(crate) used: u64,
    /// When the device changes hands, if nothing else happens.
    pub(crate) next_change: Option<u64>,
}

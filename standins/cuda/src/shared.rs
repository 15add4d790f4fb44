//! The file through which processes share the devices, and a context's entry in the runlist of one of them.
//!
//! Two kinds of locks lie on the file, beyond its end: one per device, guard during each access to its [`Runlist`], and one
//! per entry, held until its process exits. Both are record locks (fcntl): the kernel releases those of a killed process
//! at once, so no process has to check whether an owner is alive, and a child does not inherit them.

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
use crate::runlist::{MAX_CONTEXTS, Runlist};
use crate::settings::{MAX_DEVICES, Settings};

const MAGIC: u64 = u64::from_le_bytes(*b"STCUDA\0\x02");

/// The contents of the file. It holds only integers, so any contents are valid; a new file is all zero.
#[repr(C)]
struct Layout {
    magic: AtomicU64,
    devices: [Device; MAX_DEVICES],
}

#[repr(C)]
struct Device {
    /// Accessed only under the device's lock.
    runlist: UnsafeCell<Runlist>,
    /// The futex words that the contexts' executors sleep on.
    wake_words: [AtomicU32; MAX_CONTEXTS],
}

const SIZE: usize = size_of::<Layout>();

struct Shared {
    layout: NonNull<Layout>,
    file: OwnedFd,
}

// SAFETY: the mapping is never unmapped; its contents are atomic, or protected by the device's lock and `PROCESS_LOCK`.
unsafe impl Send for Shared {}
// SAFETY: as for Send.
unsafe impl Sync for Shared {}

/// Record locks exclude processes, not the threads of one process.
static PROCESS_LOCK: Mutex<()> = Mutex::new(());

/// The time of the monotonic clock, which all processes share, in nanoseconds.
pub(crate) fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

fn switch() -> u64 {
    u64::try_from(Settings::get().switch.as_nanos()).unwrap_or(u64::MAX)
}

/// The file offset of a device's locks.
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
        // If two processes extend the file at the same time, both set the same size.
        if file.metadata()?.len() < SIZE as u64 {
            file.set_len(SIZE as u64)?;
        }
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let file = OwnedFd::from(file);
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
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
        // SAFETY: `open` mapped that many bytes there, page-aligned, and never unmaps them. Any contents are a valid `Layout`.
        unsafe { self.layout.as_ref() }
    }

    /// Performs one operation on a record lock of one byte. Returns whether it succeeded, and what the kernel wrote.
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

    /// Runs an operation on the runlist of a device, and wakes the context that gets the device because of it.
    fn with<R>(&self, device: usize, me: Option<usize>, operation: impl FnOnce(&mut Runlist, u64) -> R) -> R {
        let process_lock = PROCESS_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        self.record_lock(libc::F_SETLKW, libc::F_WRLCK, lock_at(device));
        let its = &self.layout().devices[device];
        // SAFETY: both locks are held, so no other thread of any process accesses the runlist.
        let runlist = unsafe { &mut *its.runlist.get() };
        let now = now();
        let before = runlist.owner();
        let others = before
            .into_iter()
            .chain(runlist.runnable_after(MAX_CONTEXTS - 1))
            .filter(|slot| Some(*slot) != me);
        for slot in others.collect::<Vec<_>>() {
            if !self.is_alive(device, slot, runlist.pid(slot)) {
                runlist.remove(slot, now);
            }
        }
        let result = operation(runlist, now);
        let after = runlist.owner().filter(|owner| before != Some(*owner) && me != Some(*owner));
        self.record_lock(libc::F_SETLK, libc::F_UNLCK, lock_at(device));
        drop(process_lock);
        if let Some(slot) = after {
            self.wake(device, slot);
        }
        result
    }

    /// Whether the process of this entry is alive.
    fn is_alive(&self, device: usize, slot: usize, pid: u32) -> bool {
        let (queried, lock) = self.record_lock(libc::F_GETLK, libc::F_WRLCK, lock_at(device) + 1 + slot);
        // F_GETLK does not report the calling process's own locks.
        pid == std::process::id() || (queried && i32::from(lock.l_type) != libc::F_UNLCK)
    }

    fn wake(&self, device: usize, slot: usize) {
        let word = &self.layout().devices[device].wake_words[slot];
        word.fetch_add(1, Ordering::SeqCst);
        let _ = futex::wake(word, futex::Flags::empty(), 1);
    }
}

/// A context's entry in the runlist of a device, until it is dropped or its process exits.
pub(crate) struct RunlistEntry {
    device: usize,
    slot: usize,
}

impl RunlistEntry {
    /// Allocates a free entry.
    pub(crate) fn allocate(device: usize) -> Result<Self, Code> {
        let shared = Shared::get()?;
        shared.with(device, None, |runlist, now| {
            for slot in 0..MAX_CONTEXTS {
                let pid = runlist.pid(slot);
                if pid != 0 && shared.is_alive(device, slot, pid) {
                    continue;
                }
                if shared.record_lock(libc::F_SETLK, libc::F_WRLCK, lock_at(device) + 1 + slot).0 {
                    runlist.insert(slot, std::process::id(), now);
                    return Ok(Self { device, slot });
                }
            }
            Err(Code::ERROR_OUT_OF_MEMORY)
        })
    }

    fn with<R>(&self, operation: impl FnOnce(&mut Runlist, u64) -> R) -> Option<R> {
        Some(Shared::get().ok()?.with(self.device, Some(self.slot), operation))
    }

    /// Reports whether the context has work, since when, and what [`RunlistStatus::used`] will be when that work has ended. Returns
    /// its status on the device.
    pub(crate) fn report(&self, runnable_since: Option<u64>, used_at_end: u64) -> RunlistStatus {
        let status = self.with(|runlist, now| {
            match runnable_since {
                Some(since) => runlist.set_runnable(self.slot, since, used_at_end, now, switch()),
                None => runlist.set_idle(self.slot, now, switch()),
            }
            let is_owner = runlist.owner() == Some(self.slot);
            RunlistStatus {
                now,
                switched_at: is_owner.then(|| runlist.switched_at()),
                used: runlist.used(self.slot),
                next_switch: runlist.next_switch(),
            }
        });
        status.unwrap_or(RunlistStatus { now: now(), switched_at: None, used: 0, next_switch: None })
    }

    /// The time slice, in microseconds.
    pub(crate) fn time_slice_us(&self) -> u64 {
        self.with(|runlist, _| runlist.time_slice(self.slot) / 1_000).unwrap_or(0)
    }

    /// Sets the time slice, in microseconds.
    pub(crate) fn set_time_slice_us(&self, us: u64) {
        self.with(|runlist, now| runlist.set_time_slice(self.slot, us.saturating_mul(1_000), now, switch()));
    }

    fn wake_word(&self) -> Option<&'static AtomicU32> {
        Some(&Shared::get().ok()?.layout().devices[self.device].wake_words[self.slot])
    }

    /// The number of wake-ups so far. The caller reads it before it checks for work and passes it to [`RunlistEntry::sleep`].
    pub(crate) fn wake_count(&self) -> u32 {
        self.wake_word().map_or(0, |word| word.load(Ordering::SeqCst))
    }

    /// Sleeps until the time `until`, or until a wake-up that follows the read of `wake_count`.
    pub(crate) fn sleep(&self, wake_count: u32, until: u64) {
        let Some(word) = self.wake_word() else { return };
        let limit = futex::Timespec {
            tv_sec: i64::try_from(until / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(until % 1_000_000_000).unwrap_or(0),
        };
        let _ = futex::wait_bitset(word, futex::Flags::empty(), wake_count, Some(&limit), NonZeroU32::MAX);
    }

    /// Wakes the context's executor.
    pub(crate) fn wake(&self) {
        if let Ok(shared) = Shared::get() {
            shared.wake(self.device, self.slot);
        }
    }
}

impl Drop for RunlistEntry {
    fn drop(&mut self) {
        self.with(|runlist, now| runlist.remove(self.slot, now));
        if let Ok(shared) = Shared::get() {
            shared.record_lock(libc::F_SETLK, libc::F_UNLCK, lock_at(self.device) + 1 + self.slot);
        }
    }
}

/// How long a process had the device and work in total.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceUse {
    pub(crate) pid: u32,
    pub(crate) used: u64,
}

/// The processes with a context on a device.
pub(crate) fn device_use(device: usize) -> Vec<DeviceUse> {
    let Ok(shared) = Shared::get() else { return Vec::new() };
    shared.with(device, None, |runlist, now| {
        runlist.advance(now, switch());
        let mut processes: Vec<DeviceUse> = Vec::new();
        for slot in 0..MAX_CONTEXTS {
            let (pid, used) = (runlist.pid(slot), runlist.used(slot));
            if pid == 0 || !shared.is_alive(device, slot, pid) {
                continue;
            }
            match processes.iter_mut().find(|other| other.pid == pid) {
                Some(other) => other.used += used,
                None => processes.push(DeviceUse { pid, used }),
            }
        }
        processes
    })
}

/// The device memory of each process that has a context on the device.
pub(crate) fn memory_use(device: usize) -> Vec<(u32, u64)> {
    let Ok(shared) = Shared::get() else { return Vec::new() };
    shared.with(device, None, |runlist, _| shared.memory_of_processes(device, runlist))
}

/// Sets the device memory of this process, unless that of all processes would exceed `total`.
pub(crate) fn set_memory(device: usize, bytes: u64, total: u64) -> Result<(), Code> {
    let (shared, me) = (Shared::get()?, std::process::id());
    shared.with(device, None, |runlist, _| {
        let others = shared.memory_of_processes(device, runlist).into_iter().filter(|(pid, _)| *pid != me);
        let others: u64 = others.map(|(_, bytes)| bytes).sum();
        if others.saturating_add(bytes) > total {
            return Err(Code::ERROR_OUT_OF_MEMORY);
        }
        runlist.set_memory(me, bytes);
        Ok(())
    })
}

impl Shared {
    /// A process with several contexts has the same amount in each of its entries.
    fn memory_of_processes(&self, device: usize, runlist: &Runlist) -> Vec<(u32, u64)> {
        let mut processes: Vec<(u32, u64)> = Vec::new();
        for slot in 0..MAX_CONTEXTS {
            let (pid, bytes) = (runlist.pid(slot), runlist.memory(slot));
            if pid == 0 || bytes == 0 || !self.is_alive(device, slot, pid) {
                continue;
            }
            match processes.iter_mut().find(|(other, _)| *other == pid) {
                Some((_, most)) => *most = bytes.max(*most),
                None => processes.push((pid, bytes)),
            }
        }
        processes
    }
}

/// The state of a context on its device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunlistStatus {
    pub(crate) now: u64,
    /// When it can use the device, if the device has switched or is switching to it.
    pub(crate) switched_at: Option<u64>,
    /// For how long it had the device and work in total.
    pub(crate) used: u64,
    /// When the device switches to another context, if nothing else happens.
    pub(crate) next_switch: Option<u64>,
}

//! Memory that processes share through a descriptor. Its size is sealed.

use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::page::{PageError, system};

/// Creates memory of this size, all zero.
pub(crate) fn create(name: &str, size: usize) -> Result<OwnedFd, PageError> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(system("create a memory file"))?;
    rustix::fs::ftruncate(&fd, size as u64).map_err(system("set the size"))?;
    // A process that could shrink the file could kill the others with SIGBUS.
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fd, seals).map_err(system("seal the size"))?;
    Ok(fd)
}

/// Whether the memory cannot shrink.
pub(crate) fn is_sealed(fd: &OwnedFd) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
}

/// Maps the memory.
pub(crate) fn map(fd: &OwnedFd, size: usize) -> Result<NonNull<c_void>, PageError> {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping at an address that the kernel chooses: no other code refers to it.
    let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), size, access, flags, fd.as_fd(), 0) }
        .map_err(system("map memory"))?;
    NonNull::new(base).ok_or(PageError::NotAPage("mapped at zero"))
}

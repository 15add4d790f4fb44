//! Features that the kernel must have.

use std::sync::atomic::AtomicU32;

use rustix::event::EventfdFlags;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::PidfdFlags;
use rustix::thread::futex;

use super::{Check, Group, Machine};

const HERE: Group = Group::System;

/// The result of a trial of each feature.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    /// Notification that a process has exited.
    pub(crate) pidfd: Result<(), Errno>,
    /// Shared memory that a client cannot shrink.
    pub(crate) sealed_memory: Result<(), Errno>,
    /// Waiting for a word in memory to change.
    pub(crate) futex: Result<(), Errno>,
    /// Notifying the local scheduler.
    pub(crate) eventfd: Result<(), Errno>,
}

impl Kernel {
    /// Tries each feature once.
    pub(crate) fn probe() -> Self {
        let sealed = || {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let memory = rustix::fs::memfd_create("xsched-doctor", flags)?;
            rustix::fs::ftruncate(&memory, 4096)?;
            rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW)
        };
        Self {
            pidfd: rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).map(drop),
            sealed_memory: sealed(),
            futex: futex::wake(&AtomicU32::new(0), futex::Flags::empty(), 1).map(drop),
            eventfd: rustix::event::eventfd(0, EventfdFlags::CLOEXEC).map(drop),
        }
    }
}

/// One line if all features work, else one for each that does not.
pub(super) fn kernel(machine: &Machine) -> Vec<Check> {
    let release = machine.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let Kernel { pidfd, sealed_memory, futex, eventfd } = machine.kernel;
    let features = [
        ("pidfd", pidfd, "the exit of a program is detected late"),
        ("memfd seals", sealed_memory, "programs and the service cannot share memory"),
        ("futex", futex, "held programs cannot be woken"),
        ("eventfd", eventfd, "a local scheduler cannot be notified"),
    ];
    let missing: Vec<_> = features
        .into_iter()
        .filter_map(|(name, result, effect)| {
            let error = result.err()?;
            let what = format!("Linux {release} rejects it ({error}): {effect}");
            let do_next =
                "use Linux 5.4 or newer; in a container, allow this system call in its seccomp profile";
            Some(Check::problem(HERE, name, what, do_next))
        })
        .collect();
    if !missing.is_empty() {
        return missing;
    }
    let what = format!("Linux {release} has all required features: pidfd, memfd seals, futex, eventfd");
    vec![Check::ok(HERE, "kernel", what)]
}

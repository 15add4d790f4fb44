//! What the kernel must be able to do.

use std::sync::atomic::AtomicU32;

use rustix::event::EventfdFlags;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::PidfdFlags;
use rustix::thread::futex;

use super::{Check, Group, Machine};

const HERE: Group = Group::System;

/// What was tried, and what the kernel said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel {
    /// Being told that a program ended.
    pub(crate) pidfd: Result<(), Errno>,
    /// Memory to share that cannot be cut off under its reader.
    pub(crate) sealed_memory: Result<(), Errno>,
    /// Waiting for a word in shared memory.
    pub(crate) futex: Result<(), Errno>,
    /// Waking a scheduler in the same process.
    pub(crate) eventfd: Result<(), Errno>,
}

impl Kernel {
    /// Tries everything once.
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

/// All of it in one line, or a line for each thing that is missing.
pub(super) fn kernel(machine: &Machine) -> Vec<Check> {
    let release = machine.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let Kernel { pidfd, sealed_memory, futex, eventfd } = machine.kernel;
    let tried = [
        ("pidfd", pidfd, "the death of a program is noticed late"),
        ("memfd seals", sealed_memory, "programs and the service cannot share memory"),
        ("futex", futex, "held programs cannot be woken"),
        ("eventfd", eventfd, "the scheduler inside a program cannot be called"),
    ];
    let missing: Vec<_> = tried
        .into_iter()
        .filter_map(|(name, result, means)| {
            let why = result.err()?;
            let what = format!("Linux {release} refuses it ({why}): {means}");
            let do_next =
                "use Linux 5.4 or newer; in a container, allow this system call in its seccomp profile";
            Some(Check::problem(HERE, name, what, do_next))
        })
        .collect();
    if !missing.is_empty() {
        return missing;
    }
    let what = format!(
        "Linux {release} has all that is needed: pidfd, memfd seals, futex, eventfd; no module, no ptrace, no root"
    );
    vec![Check::ok(HERE, "kernel", what)]
}

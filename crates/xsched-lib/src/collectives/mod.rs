//! Communicators of NCCL and RCCL, which export the same names: the processes that share one are members of one job.
//!
//! ```text
//!   ncclCommInitRank(&comm, ranks, unique id, rank) ──► the vendor's function
//!                                            │
//!                                            └─► key: hash of the unique id, which all ranks share ──► the scheduler
//! ```
//!
//! The kernels of a collective wait for each other on all devices of a communicator. The scheduler therefore holds and resumes
//! the ranks together. The hooks only take note of communicators: collectives are launched through the platform's functions,
//! and are scheduled there.
//!
//! A library that contains NCCL statically calls it without a symbol that can be intercepted. Then the variables that a
//! launcher sets identify the job: see [`launcher`].
//!
//! * [`communicators`]: the communicators of this process. [`copies`]: the hooks, for each copy of the vendor's library.

mod communicators;
mod copies;
mod launcher;

use std::ffi::{c_int, c_void};

use xsched_core::NotDeferred;
use xsched_interpose::{HookDomain, outside_hooks, run_isolated};
use xsched_ipc::protocol::JobKey;

use crate::loader::VendorIdentity;
use crate::runtime::Runtime;
use communicators::{COMMUNICATORS, KeyHash};

/// `ncclComm_t`, as an address.
type Comm = *mut c_void;
/// `ncclResult_t`.
type Code = c_int;

const SUCCESS: Code = 0;
/// The communicator is being created by a thread of the vendor's library.
const IN_PROGRESS: Code = 7;
const INTERNAL_ERROR: Code = 3;

/// `ncclUniqueId`, which is passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UniqueId([u8; 128]);

const _: () = assert!(size_of::<UniqueId>() == 128);

/// Every library that exports these names is a collectives library.
static VENDOR: VendorIdentity = VendorIdentity { exports: &[], files: &[] };

/// The hooks of all copies.
const DOMAIN: HookDomain = crate::platforms::hook_domain(module_path!());

/// Called in place of a function that no loaded library defines.
extern "C" fn missing() -> Code {
    INTERNAL_ERROR
}

copies::hooks! {
    /// Takes note of the communicator.
    fn ncclCommInitRank(comm: *mut Comm, ranks: c_int, id: UniqueId, rank: c_int)
        = |real, comm, ranks, id: UniqueId, _| created(real, comm, 1, ranks, || KeyHash::of(&id.0));
    /// Takes note of the communicator.
    fn ncclCommInitRankConfig(comm: *mut Comm, ranks: c_int, id: UniqueId, rank: c_int, config: *mut c_void)
        = |real, comm, ranks, id: UniqueId, _, _| created(real, comm, 1, ranks, || KeyHash::of(&id.0));
    /// Takes note of the communicator. All ranks pass the same list of unique ids.
    fn ncclCommInitRankScalable(
        comm: *mut Comm, ranks: c_int, rank: c_int, count: c_int, ids: *mut UniqueId, config: *mut c_void
    ) = |real, comm, ranks, _, count, ids, _| created_with_list(real, comm, ranks, count, ids);
    /// Takes note of communicators between devices of this process.
    fn ncclCommInitAll(comms: *mut Comm, devices: c_int, list: *const c_int)
        = |real, comms, devices, _| created(real, comms, devices, devices, KeyHash::unique);
    /// The ranks of the new communicator are ranks of the old one.
    fn ncclCommSplit(comm: Comm, color: c_int, key: c_int, new: *mut Comm, config: *mut c_void)
        = |real, comm, _, _, new, _| derived(real, comm, new);
    /// The ranks of the new communicator are ranks of the old one.
    fn ncclCommShrink(
        comm: Comm, excluded: *mut c_int, count: c_int, new: *mut Comm, config: *mut c_void, flags: c_int
    ) = |real, comm, _, _, new, _, _| derived(real, comm, new);
    /// Forgets the communicator.
    fn ncclCommDestroy(comm: Comm) = released;
    /// Forgets the communicator.
    fn ncclCommAbort(comm: Comm) = released;
}

/// Calls a function that creates `count` communicators of `ranks` ranks.
fn created(
    real: impl FnOnce() -> Code,
    comms: *mut Comm,
    count: c_int,
    ranks: c_int,
    key: impl FnOnce() -> KeyHash,
) -> Code {
    // What the vendor's library launches meanwhile is work of the program.
    let code = outside_hooks(real);
    run_isolated(|| {
        if matches!(code, SUCCESS | IN_PROGRESS) && ranks > 1 && !comms.is_null() {
            let key = key();
            for place in 0..usize::try_from(count).unwrap_or(0) {
                // SAFETY: the vendor's function has accepted an array of `count` communicators, and has written them.
                COMMUNICATORS.add(unsafe { *comms.add(place) }.addr(), key);
            }
            publish_to_runtime();
            crate::deferral::forbid(NotDeferred::Collectives);
        }
    });
    code
}

fn created_with_list(
    real: impl FnOnce() -> Code,
    comm: *mut Comm,
    ranks: c_int,
    count: c_int,
    ids: *mut UniqueId,
) -> Code {
    if ids.is_null() || count < 1 {
        return outside_hooks(real);
    }
    // SAFETY: the caller passes a list of `count` unique ids. It is read before the call, which may change it.
    let first = unsafe { *ids };
    created(real, comm, 1, ranks, || KeyHash::of(&first.0))
}

/// Calls a function that creates a communicator of ranks of another one.
fn derived(real: impl FnOnce() -> Code, comm: Comm, new: *mut Comm) -> Code {
    let code = outside_hooks(real);
    run_isolated(|| {
        if matches!(code, SUCCESS | IN_PROGRESS) && !new.is_null() {
            // SAFETY: the vendor's function has written it. It is null if this rank is not a member.
            let new = unsafe { *new };
            if !new.is_null()
                && let Some(key) = COMMUNICATORS.key_of(comm.addr())
            {
                COMMUNICATORS.add(new.addr(), key);
            }
        }
    });
    code
}

/// Calls a function that releases a communicator.
fn released(real: impl FnOnce() -> Code, comm: Comm) -> Code {
    // Before the call: another thread can create a communicator at the same address as soon as this one is released. The
    // process stays in its job until then: releasing waits for work of the other ranks.
    let mut removed = None;
    run_isolated(|| removed = COMMUNICATORS.remove(comm.addr()));
    let code = outside_hooks(real);
    run_isolated(|| {
        if removed.is_some() {
            publish_to_runtime();
        }
    });
    code
}

fn publish_to_runtime() {
    if let Some(runtime) = crate::runtime::existing_runtime() {
        publish(runtime);
    }
}

/// Reports the jobs of this process to its scheduler.
pub(crate) fn publish(runtime: &Runtime) {
    let mut keys: Vec<_> = runtime.environment().job.iter().cloned().map(JobKey::Name).collect();
    keys.extend(launcher::job_key(|name| std::env::var(name).ok(), &launcher::OWN));
    keys.extend(COMMUNICATORS.keys().into_iter().map(|key| JobKey::Communicator(key.to_string())));
    keys.truncate(xsched_ipc::protocol::MAX_JOB_KEYS);
    runtime.client().set_jobs(keys);
}

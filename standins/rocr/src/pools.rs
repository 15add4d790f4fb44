//! Memory pools: what they are and which agents reach them.

use std::ffi::c_void;

use crate::agents::{self, Agent, agents};
use crate::status::{INVALID_ARGUMENT, INVALID_MEMORY_POOL, SUCCESS, Status, to_status, write_out};

/// The size of the host's memory that the CPU's pools report.
const HOST_BYTES: u64 = 64 << 30;
/// The size of a compute unit's local memory.
const GROUP_BYTES: u64 = 65_536;
/// The granularity of allocations.
pub(crate) const GRANULE: usize = 4096;
/// The granularity that wastes the least address space.
const RECOMMENDED_GRANULE: usize = 2 << 20;

/// Flags of a pool.
pub(crate) const KERNARG: u32 = 1;
pub(crate) const FINE_GRAINED: u32 = 2;
pub(crate) const COARSE_GRAINED: u32 = 4;
pub(crate) const EXTENDED_SCOPE: u32 = 8;

/// A pool of an agent. Its handle is the number of the agent and its own, plus one.
#[derive(Clone, Copy)]
pub(crate) struct Pool {
    pub(crate) agent: &'static Agent,
    pub(crate) is_group: bool,
    pub(crate) flags: u32,
    pub(crate) handle: u64,
}

const POOLS_PER_AGENT: u64 = 16;
/// The handle of the first pool of the first GPU.
pub(crate) const FIRST_GPU_POOL: u64 = POOLS_PER_AGENT + 1;
const CPU_POOLS: [(bool, u32); 4] = [
    (false, FINE_GRAINED),
    (false, EXTENDED_SCOPE),
    (false, KERNARG | FINE_GRAINED),
    (false, COARSE_GRAINED),
];
const GPU_POOLS: [(bool, u32); 4] =
    [(false, COARSE_GRAINED), (false, EXTENDED_SCOPE), (false, FINE_GRAINED), (true, 0)];

pub(crate) fn pools_of(index: usize) -> impl Iterator<Item = Pool> {
    let agent = agents().get(index);
    agent.into_iter().flat_map(move |agent| {
        let pools = if agent.device().is_some() { GPU_POOLS } else { CPU_POOLS };
        pools.into_iter().zip(1..).map(move |((is_group, flags), number)| Pool {
            agent,
            is_group,
            flags,
            handle: POOLS_PER_AGENT * index as u64 + number,
        })
    })
}

/// The pool with this handle.
pub(crate) fn find(handle: u64) -> Result<Pool, Status> {
    let index = usize::try_from(handle / POOLS_PER_AGENT).map_err(|_| INVALID_MEMORY_POOL)?;
    pools_of(index).find(|pool| pool.handle == handle).ok_or(INVALID_MEMORY_POOL)
}

impl Pool {
    /// The size of the memory.
    pub(crate) fn bytes(&self) -> u64 {
        match self.agent.device() {
            _ if self.is_group => GROUP_BYTES,
            Some(device) => device.node.memory_bytes,
            None => HOST_BYTES,
        }
    }
}

type Visit = extern "C" fn(u64, *mut c_void) -> Status;

/// `hsa_amd_agent_iterate_memory_pools`.
pub(crate) extern "C" fn iterate(agent: u64, visit: Option<Visit>, data: *mut c_void) -> Status {
    let Some(visit) = visit else { return INVALID_ARGUMENT };
    if let Err(status) = agents::find(agent) {
        return status;
    }
    let index = agents().iter().position(|known| known.handle() == agent).unwrap_or(usize::MAX);
    pools_of(index).map(|pool| visit(pool.handle, data)).find(|status| *status != SUCCESS).unwrap_or(SUCCESS)
}

/// `hsa_amd_memory_pool_get_info`.
pub(crate) extern "C" fn get_info(pool: u64, attribute: u32, out: *mut c_void) -> Status {
    to_status(find(pool).and_then(|pool| {
        let is_gpu = pool.agent.device().is_some();
        let granule = if pool.is_group { 0 } else { GRANULE };
        match attribute {
            // HSA_AMD_SEGMENT_GLOBAL and _GROUP
            0 => write_out(out.cast(), if pool.is_group { 3_u32 } else { 0 }),
            1 => write_out(out.cast(), pool.flags),
            2 | 16 => write_out(out.cast(), pool.bytes()),
            5 => write_out(out.cast(), !pool.is_group),
            6 | 7 => write_out(out.cast(), granule),
            15 => write_out(out.cast(), !is_gpu),
            17 => write_out(out.cast(), u32::from(is_gpu)),
            18 => write_out(out.cast(), if pool.is_group { 0 } else { RECOMMENDED_GRANULE }),
            _ => Err(INVALID_ARGUMENT),
        }
    }))
}

/// `hsa_amd_memory_pool_link_info_t`.
#[repr(C)]
struct LinkInfo {
    min_latency: u32,
    max_latency: u32,
    min_bandwidth: u32,
    max_bandwidth: u32,
    atomics: [bool; 2],
    is_coherent: bool,
    kind: u32,
    numa_distance: u32,
}

/// `hsa_amd_agent_memory_pool_get_info`.
pub(crate) extern "C" fn get_agent_info(agent: u64, pool: u64, attribute: u32, out: *mut c_void) -> Status {
    to_status(agents::find(agent).and_then(|agent| {
        let pool = find(pool)?;
        let is_own = std::ptr::eq(agent, pool.agent);
        let is_host = pool.agent.device().is_none();
        let hops = u32::from(!is_own);
        match attribute {
            // Never allowed, allowed by default, disallowed by default.
            0 => write_out(
                out.cast(),
                if pool.is_group && !is_own {
                    0_u32
                } else if is_own || is_host {
                    1
                } else {
                    2
                },
            ),
            1 => write_out(out.cast(), hops),
            2 if hops == 0 => Ok(()),
            2 => write_out(
                out.cast(),
                LinkInfo {
                    min_latency: 0,
                    max_latency: 0,
                    min_bandwidth: 0,
                    max_bandwidth: 64_000,
                    atomics: [true; 2],
                    is_coherent: true,
                    // PCIe to the host, XGMI between GPUs.
                    kind: if is_host || agent.device().is_none() { 2 } else { 4 },
                    numa_distance: if is_host { 20 } else { 15 },
                },
            ),
            _ => Err(INVALID_ARGUMENT),
        }
    }))
}

/// `hsa_amd_memory_pool_can_migrate`.
pub(crate) extern "C" fn can_migrate(from: u64, to: u64, out: *mut bool) -> Status {
    to_status(find(from).and(find(to)).and_then(|_| write_out(out, false)))
}

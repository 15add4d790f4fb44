//! Agents: the CPU, and one for each GPU or partition.

use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use amd_machine::GpuNode;

use crate::devices::{Device, devices};
use crate::status::{
    INVALID_AGENT, INVALID_ARGUMENT, INVALID_ISA, INVALID_ISA_NAME, SUCCESS, Status, to_status, write_out,
};
use crate::{queues, system};

/// An agent. Its handle is its address.
pub(crate) struct Agent {
    /// None for the CPU.
    device: Option<usize>,
    coherency: AtomicU32,
    scratch_limit: AtomicU64,
}

impl Agent {
    pub(crate) fn handle(&'static self) -> u64 {
        std::ptr::from_ref(self).expose_provenance() as u64
    }

    /// The GPU; none for the CPU.
    pub(crate) fn device(&self) -> Option<&'static Device> {
        devices().get(self.device?)
    }

    /// The number of the GPU among those of the process.
    pub(crate) fn device_number(&self) -> u32 {
        self.device.and_then(|number| u32::try_from(number).ok()).unwrap_or(0)
    }
}

static AGENTS: OnceLock<Vec<Agent>> = OnceLock::new();

/// All agents: the CPU first.
pub(crate) fn agents() -> &'static [Agent] {
    AGENTS.get().map_or(&[], Vec::as_slice)
}

/// Creates the agents after the devices were opened.
pub(crate) fn create() {
    let all = std::iter::once(None).chain((0..devices().len()).map(Some));
    let agent = |device| Agent { device, coherency: AtomicU32::new(0), scratch_limit: AtomicU64::new(0) };
    AGENTS.get_or_init(|| all.map(agent).collect());
}

/// The agent with this handle.
pub(crate) fn find(handle: u64) -> Result<&'static Agent, Status> {
    agents().iter().find(|agent| agent.handle() == handle).ok_or(INVALID_AGENT)
}

/// The CPU's agent.
pub(crate) fn cpu() -> Option<&'static Agent> {
    agents().first()
}

type Visit = extern "C" fn(u64, *mut c_void) -> Status;

/// `hsa_iterate_agents`.
pub(crate) extern "C" fn iterate(visit: Option<Visit>, data: *mut c_void) -> Status {
    let Some(visit) = visit else { return INVALID_ARGUMENT };
    if let Err(status) = crate::runtime::require_running() {
        return status;
    }
    let statuses = agents().iter().map(|agent| visit(agent.handle(), data));
    statuses.into_iter().find(|status| *status != SUCCESS).unwrap_or(SUCCESS)
}

/// The identifier that tools print. That of a partition has the partition's number in it, as those of MI300 do.
pub(crate) fn uuid(node: &GpuNode) -> String {
    format!("GPU-{:016x}", node.unique_id() + (u64::from(node.partition) << 56))
}

/// A text in a field of fixed size.
fn text<const SIZE: usize>(text: &str) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    let length = text.len().min(SIZE - 1);
    bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
    bytes
}

/// `hsa_agent_get_info`.
pub(crate) extern "C" fn get_info(handle: u64, attribute: u32, out: *mut c_void) -> Status {
    if out.is_null() {
        return INVALID_ARGUMENT;
    }
    to_status(find(handle).and_then(|agent| {
        common_info(agent, attribute, out).unwrap_or_else(|| match agent.device() {
            Some(device) => gpu_info(agent, &device.node, attribute, out),
            None => cpu_info(attribute, out),
        })
    }))
}

/// What is the same for all agents; none if it is not.
fn common_info(agent: &'static Agent, attribute: u32, out: *mut c_void) -> Option<Result<(), Status>> {
    let is_gpu = agent.device().is_some();
    Some(match attribute {
        // Features, machine model, profile, rounding modes, FAST_F16_OPERATION.
        2 => write_out(out.cast(), u32::from(is_gpu)),
        3 => write_out(out.cast(), 1_u32),
        4 => write_out(out.cast(), u32::from(!is_gpu)),
        5 | 23 => write_out(out.cast(), 2_u32),
        24 => write_out(out.cast(), is_gpu),
        // The device's type: CPU or GPU.
        17 => write_out(out.cast(), u32::from(is_gpu)),
        20 => write_out(out.cast(), system::extensions()),
        21 | 22 => write_out(out.cast(), 1_u16),
        // Cache line, driver's node, PCI domain.
        0xa001 => write_out(out.cast(), 64_u32),
        16 | 0xa004 => write_out(out.cast(), agent.device().map_or(0, |device| device.node.node)),
        // HSA_AMD_AGENT_INFO_NEAREST_CPU
        0xa113 => write_out(out.cast(), cpu().map_or(0, Agent::handle)),
        _ => return None,
    })
}

fn cpu_info(attribute: u32, out: *mut c_void) -> Result<(), Status> {
    match attribute {
        0 | 0xa009 => write_out(out.cast(), text::<64>("AMD EPYC (simulated)")),
        1 => write_out(out.cast(), text::<64>("CPU")),
        7 => write_out(out.cast(), [0_u16; 3]),
        9 => write_out(out.cast(), [0_u32; 3]),
        18 => write_out(out.cast(), [32_768_u32, 0, 0, 0]),
        19 => write_out(out.cast(), 0_u64),
        0xa002 | 0xa014 => write_out(out.cast(), 16_u32),
        0xa003 => write_out(out.cast(), 3700_u32),
        0xa00a..=0xa00d => write_out(out.cast(), 0_u32),
        0xa010 | 0xa013 => write_out(out.cast(), false),
        0xa011 => write_out(out.cast(), text::<21>("CPU-XX")),
        0xa015 => write_out(out.cast(), 0_u64),
        0xa016 => write_out(out.cast(), 1_000_000_000_u64),
        0xa114 | 0xa115 => write_out(out.cast(), [0_u8; 8]),
        6..=15 | 0xa000..=0xa012 | 0xa107..=0xa111 => write_out(out.cast(), 0_u32),
        0xa112 | 0xa116 | 0xa117 => write_out(out.cast(), 0_u64),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// Registers that the runtime writes to flush the host's data path.
static FLUSH_REGISTERS: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];

fn gpu_info(agent: &Agent, node: &GpuNode, attribute: u32, out: *mut c_void) -> Result<(), Status> {
    match attribute {
        0 => write_out(out.cast(), text::<64>(node.isa.processor())),
        1 => write_out(out.cast(), text::<64>("AMD")),
        // The wavefront and the limits of workgroups and grids.
        6 => write_out(out.cast(), 64_u32),
        7 => write_out(out.cast(), [1024_u16; 3]),
        8 => write_out(out.cast(), 1024_u32),
        9 => write_out(out.cast(), [u32::MAX; 3]),
        10 => write_out(out.cast(), u32::MAX),
        11 => write_out(out.cast(), 32_u32),
        12 => write_out(out.cast(), queues::MAX_QUEUES),
        13 => write_out(out.cast(), queues::MIN_SIZE),
        14 => write_out(out.cast(), queues::MAX_SIZE),
        15 => write_out(out.cast(), 0_u32),
        18 => write_out(out.cast(), [16_384_u32, 8 << 20, 0, 0]),
        19 => write_out(out.cast(), ISA_HANDLE),
        0xa000 => write_out(out.cast(), node.isa.chip_id()),
        0xa002 | 0xa014 => write_out(out.cast(), node.compute_units),
        0xa003 => write_out(out.cast(), 1700_u32),
        0xa005 => write_out(out.cast(), 4_u32),
        0xa006 => write_out(out.cast(), node.location_id),
        0xa007 => write_out(out.cast(), 4096_u32),
        0xa008 => write_out(out.cast(), 1600_u32),
        0xa009 => write_out(out.cast(), text::<64>(node.isa.product())),
        0xa00a => write_out(out.cast(), 32_u32),
        0xa00b => write_out(out.cast(), GpuNode::SIMD_PER_CU),
        0xa00c => write_out(out.cast(), 4 * node.num_xcc),
        0xa00d => write_out(out.cast(), 1_u32),
        0xa00e => {
            let registers = [FLUSH_REGISTERS[0].as_ptr(), FLUSH_REGISTERS[1].as_ptr()];
            write_out(out.cast(), registers)
        }
        0xa00f => write_out(out.cast(), node.domain),
        0xa010 => write_out(out.cast(), true),
        0xa011 => write_out(out.cast(), text::<21>(&uuid(node))),
        0xa012 => write_out(out.cast(), 1_u32),
        // No direct host access to managed memory, because there are no page faults.
        0xa013 => write_out(out.cast(), false),
        0xa015 => write_out(out.cast(), crate::memory::available(agent)),
        0xa016 => write_out(out.cast(), 1_000_000_000_u64),
        0xa107 => write_out(out.cast(), 141_u32),
        0xa108 | 0xa109 => write_out(out.cast(), 80_u32),
        0xa10a => write_out(out.cast(), 2_u32),
        0xa10b => write_out(out.cast(), 0_u32),
        0xa110 => write_out(out.cast(), 0_u32),
        0xa111 => write_out(out.cast(), node.num_xcc),
        0xa112 => write_out(out.cast(), u64::from(node.gpu_id)),
        0xa114 | 0xa115 => write_out(out.cast(), [0_u8; 8]),
        0xa116 => write_out(out.cast(), 4_u64 << 30),
        0xa117 => write_out(out.cast(), agent.scratch_limit.load(Ordering::Relaxed)),
        // Clock counters of newer runtimes.
        0xa118..=0xa11f => write_out(out.cast(), 0_u32),
        // Limits of images: as on MI300, none can be used. The alignment is also that of pitched memory.
        0x3003..=0x3006 => write_out(out.cast(), [0_u32; 2]),
        0x3007 => write_out(out.cast(), [0_u32; 3]),
        0x300c => write_out(out.cast(), 256_u32),
        0x3000..=0x300b => write_out(out.cast(), 0_u32),
        _ => Err(INVALID_ARGUMENT),
    }
}

/// All GPUs of the machine have the same instruction set architecture.
const ISA_HANDLE: u64 = 42;

/// `hsa_agent_iterate_isas`.
pub(crate) extern "C" fn iterate_isas(handle: u64, visit: Option<Visit>, data: *mut c_void) -> Status {
    let Some(visit) = visit else { return INVALID_ARGUMENT };
    match find(handle) {
        Ok(agent) if agent.device().is_some() => visit(ISA_HANDLE, data),
        Ok(_) => SUCCESS,
        Err(status) => status,
    }
}

fn target() -> &'static str {
    let isa = devices().first().map(|device| device.node.isa);
    isa.map_or("", amd_machine::Isa::target)
}

/// `hsa_isa_get_info_alt`.
pub(crate) extern "C" fn isa_get_info(isa: u64, attribute: u32, out: *mut c_void) -> Status {
    if isa != ISA_HANDLE {
        return INVALID_ISA;
    }
    let name = target();
    to_status(match attribute {
        0 => write_out(out.cast(), u32::try_from(name.len() + 1).unwrap_or(0)),
        1 => {
            for (index, byte) in name.bytes().chain([0]).enumerate() {
                // SAFETY: the caller asked for the length before, and has room for it.
                unsafe { out.cast::<u8>().add(index).write(byte) };
            }
            Ok(())
        }
        2 => write_out(out.cast(), 1_u32),
        3 => write_out(out.cast(), 64_u32),
        4 => write_out(out.cast(), 40_u32),
        5 => write_out(out.cast(), [false, true]),
        6 => write_out(out.cast(), [true, false]),
        7 | 8 => write_out(out.cast(), [false, false, true]),
        9 => write_out(out.cast(), true),
        12 => write_out(out.cast(), [1024_u16; 3]),
        13 => write_out(out.cast(), 1024_u32),
        14 => write_out(out.cast(), [u32::MAX; 3]),
        16 => write_out(out.cast(), u64::from(u32::MAX)),
        17 => write_out(out.cast(), 32_u32),
        _ => Err(INVALID_ARGUMENT),
    })
}

/// `hsa_isa_from_name`.
pub(crate) extern "C" fn isa_from_name(name: *const c_char, out: *mut u64) -> Status {
    if name.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the caller passes a C string.
    let is_known = unsafe { CStr::from_ptr(name) }.to_bytes() == target().as_bytes();
    if is_known { to_status(write_out(out, ISA_HANDLE)) } else { INVALID_ISA_NAME }
}

/// `hsa_agent_iterate_caches`: none are listed.
pub(crate) extern "C" fn iterate_caches(handle: u64, _visit: Option<Visit>, _data: *mut c_void) -> Status {
    to_status(find(handle).map(drop))
}

/// `hsa_amd_coherency_get_type`.
pub(crate) extern "C" fn get_coherency(handle: u64, out: *mut u32) -> Status {
    to_status(find(handle).and_then(|agent| write_out(out, agent.coherency.load(Ordering::Relaxed))))
}

/// `hsa_amd_coherency_set_type`.
pub(crate) extern "C" fn set_coherency(handle: u64, kind: u32) -> Status {
    to_status(find(handle).and_then(|agent| {
        if kind > 1 {
            return Err(INVALID_ARGUMENT);
        }
        agent.coherency.store(kind, Ordering::Relaxed);
        Ok(())
    }))
}

/// `hsa_amd_agent_set_async_scratch_limit`.
pub(crate) extern "C" fn set_scratch_limit(handle: u64, limit: usize) -> Status {
    to_status(find(handle).map(|agent| agent.scratch_limit.store(limit as u64, Ordering::Relaxed)))
}

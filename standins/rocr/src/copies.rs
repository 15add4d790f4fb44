//! Copies by the copy engines (SDMA). Each engine of a device has a thread, which copies in the order of submission.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use xsched_core::Nanos;

use crate::agents::{self, Agent};
use crate::ledger::{self, PacketId, PacketKind, Record};
use crate::runtime;
use crate::signals::{self, WaitMode, signal};
use crate::status::{
    ERROR, INVALID_ARGUMENT, OUT_OF_RESOURCES, SUCCESS, Status, read_array, to_status, write_out,
};
use crate::threads::Thread;

/// The copy engines of each device, as a mask: one for each direction.
const ENGINES: u32 = 0b11;
const TO_DEVICE: u32 = 0b01;
const FROM_DEVICE: u32 = 0b10;

/// Rows of bytes in slices.
#[derive(Clone, Copy)]
struct Shape {
    from: usize,
    from_pitches: [usize; 2],
    to: usize,
    to_pitches: [usize; 2],
    /// Bytes per row, rows, slices.
    extent: [usize; 3],
}

impl Shape {
    fn rows(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let shape = *self;
        (0..shape.extent[2]).flat_map(move |slice| {
            (0..shape.extent[1]).map(move |row| {
                let place = |base: usize, pitches: [usize; 2]| base + slice * pitches[1] + row * pitches[0];
                (place(shape.from, shape.from_pitches), place(shape.to, shape.to_pitches), shape.extent[0])
            })
        })
    }
}

struct Copy {
    id: PacketId,
    shape: Shape,
    dependencies: Vec<u64>,
    done: u64,
    submitted: Nanos,
    agent: &'static Agent,
}

/// A copy engine.
#[derive(Default)]
struct Engine {
    pending: Mutex<VecDeque<Copy>>,
    changed: Condvar,
    is_stopping: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

/// The engines in use, by the agent's handle and the engine's mask.
type Engines = HashMap<(u64, u32), Arc<Engine>>;

static ENGINE_THREADS: Mutex<Option<Engines>> = Mutex::new(None);
/// Copies whose memory is being accessed.
static IN_PROGRESS: AtomicUsize = AtomicUsize::new(0);

/// Waits until no copy accesses memory.
pub(crate) fn wait_for_copies_in_flight() {
    while IN_PROGRESS.load(Ordering::Acquire) > 0 && !runtime::is_forked_child() {
        std::thread::yield_now();
    }
}

/// Ends the engines' threads. Copies that have not started are dropped.
pub(crate) fn stop() {
    let engines = ENGINE_THREADS.lock().unwrap_or_else(PoisonError::into_inner).take();
    for engine in engines.into_iter().flatten().map(|(_, engine)| engine) {
        let pending = engine.pending.lock().unwrap_or_else(PoisonError::into_inner);
        engine.is_stopping.store(true, Ordering::SeqCst);
        drop(pending);
        engine.changed.notify_all();
        signals::notify();
        let thread = engine.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            thread.join();
        }
    }
}

/// Whether a range can be accessed: the kernel copies its first and last byte.
pub(crate) fn is_mapped(address: usize, size: usize) -> bool {
    let readable = |address: usize| {
        let mut byte = 0_u8;
        let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let remote = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address), iov_len: 1 };
        // SAFETY: the local vector is one byte; the kernel checks the remote address.
        let read =
            unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
        // Where the call is not permitted, the address is trusted.
        read == 1 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
    };
    size == 0 || (readable(address) && readable(address + size - 1))
}

fn engine(agent: &'static Agent, mask: u32) -> Result<Arc<Engine>, Status> {
    let mut engines = ENGINE_THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (agent.handle(), mask);
    if let Some(engine) = engines.get_or_insert_default().get(&key) {
        return Ok(Arc::clone(engine));
    }
    let engine = Arc::new(Engine::default());
    let worker = Arc::clone(&engine);
    let thread = Thread::spawn("rocr-copy", move || worker.run()).ok_or(OUT_OF_RESOURCES)?;
    *engine.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
    engines.get_or_insert_default().insert(key, Arc::clone(&engine));
    Ok(engine)
}

impl Engine {
    fn run(&self) {
        loop {
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            let copy = loop {
                if self.is_stopping() {
                    return;
                }
                match pending.pop_front() {
                    Some(copy) => break copy,
                    None => pending = self.changed.wait(pending).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(pending);
            copy.execute(self);
        }
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst)
    }
}

impl Copy {
    fn execute(&self, engine: &Engine) {
        let is_done = |handle: &u64| signal(*handle).is_none_or(|signal| signal.load() == 0);
        signals::wait_until(None, WaitMode::Active, || {
            (engine.is_stopping() || self.dependencies.iter().all(is_done)).then_some(())
        });
        if engine.is_stopping() {
            return;
        }
        IN_PROGRESS.fetch_add(1, Ordering::AcqRel);
        let start = Nanos::now();
        let bad = self
            .shape
            .rows()
            .find_map(|(from, to, size)| [from, to].into_iter().find(|address| !is_mapped(*address, size)));
        if let Some(address) = bad {
            IN_PROGRESS.fetch_sub(1, Ordering::AcqRel);
            let node = self.agent.device().map_or(0, |device| device.node.node);
            runtime::report_memory_fault(self.agent.handle(), node, address);
            return;
        }
        for (from, to, size) in self.shape.rows() {
            let from = std::ptr::with_exposed_provenance::<u8>(from);
            // SAFETY: both ranges were mapped when they were checked; a program that unmaps memory of a copy in flight
            // violates the contract of the function that started it.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(to).copy_from(from, size) };
        }
        IN_PROGRESS.fetch_sub(1, Ordering::AcqRel);
        let end = Nanos::now();
        if let Some(ledger) = ledger::ledger() {
            ledger.append(&Record {
                packet: self.id,
                kind: PacketKind::Copy,
                kernel: None,
                label: None,
                waited_for: &self.dependencies,
                completes: self.done,
                has_barrier_bit: false,
                agent: self.agent.device_number(),
                submitted_ns: self.submitted.0,
                start_ns: start.0,
                end_ns: end.0,
            });
        }
        if let Some(signal) = signal(self.done) {
            signal.complete(start, end);
        }
    }
}

fn submit(
    shape: Shape,
    agent: &'static Agent,
    mask: u32,
    dependencies: Vec<u64>,
    done: u64,
) -> Result<(), Status> {
    runtime::require_running()?;
    let engine = engine(agent, mask)?;
    let copy = Copy { id: ledger::next_copy(), shape, dependencies, done, submitted: Nanos::now(), agent };
    engine.pending.lock().unwrap_or_else(PoisonError::into_inner).push_back(copy);
    engine.changed.notify_one();
    Ok(())
}

/// The GPU whose engines copy, and the engine for the direction.
fn route(to: u64, from: u64) -> Result<(&'static Agent, u32), Status> {
    let (to, from) = (agents::find(to)?, agents::find(from)?);
    match (to.device(), from.device()) {
        (_, Some(_)) => Ok((from, FROM_DEVICE)),
        (Some(_), None) => Ok((to, TO_DEVICE)),
        // AMD's runtime copies between host buffers with an engine of any GPU.
        (None, None) => agents::agents().get(1).map(|agent| (agent, TO_DEVICE)).ok_or(ERROR),
    }
}

/// `hsa_amd_memory_async_copy`.
pub(crate) extern "C" fn copy(
    to: *mut c_void,
    to_agent: u64,
    from: *const c_void,
    from_agent: u64,
    size: usize,
    count: u32,
    dependencies: *const u64,
    done: u64,
) -> Status {
    copy_on_engine(to, to_agent, from, from_agent, size, count, dependencies, done, 0, false)
}

/// `hsa_amd_memory_async_copy_on_engine`.
pub(crate) extern "C" fn copy_on_engine(
    to: *mut c_void,
    to_agent: u64,
    from: *const c_void,
    from_agent: u64,
    size: usize,
    count: u32,
    dependencies: *const u64,
    done: u64,
    engine: u32,
    _force: bool,
) -> Status {
    if to.is_null() || from.is_null() || (count > 0 && dependencies.is_null()) || done == 0 {
        return INVALID_ARGUMENT;
    }
    to_status(route(to_agent, from_agent).and_then(|(agent, direction)| {
        if engine != 0 && (!engine.is_power_of_two() || engine & ENGINES == 0) {
            return Err(INVALID_ARGUMENT);
        }
        let dependencies = read_array(dependencies, usize::try_from(count).unwrap_or(0))?;
        let shape = Shape {
            from: from.expose_provenance(),
            from_pitches: [0; 2],
            to: to.expose_provenance(),
            to_pitches: [0; 2],
            extent: [size, 1, 1],
        };
        submit(shape, agent, if engine == 0 { direction } else { engine }, dependencies, done)
    }))
}

/// `hsa_pitched_ptr_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PitchedPointer {
    base: usize,
    pitch: usize,
    slice: usize,
}

/// `hsa_dim3_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Dimensions {
    x: u32,
    y: u32,
    z: u32,
}

/// `hsa_amd_memory_async_copy_rect`.
pub(crate) extern "C" fn copy_rect(
    to: *const PitchedPointer,
    to_offset: *const Dimensions,
    from: *const PitchedPointer,
    from_offset: *const Dimensions,
    range: *const Dimensions,
    agent: u64,
    _direction: u32,
    count: u32,
    dependencies: *const u64,
    done: u64,
) -> Status {
    // The engines copy dwords.
    const ALIGNMENT: usize = 4;
    to_status(agents::find(agent).and_then(|agent| {
        let one = |pointer: *const Dimensions| read_array(pointer, 1).map(|list| list[0]);
        let (to, from) = (read_array(to, 1)?[0], read_array(from, 1)?[0]);
        let (to_offset, from_offset, range) = (one(to_offset)?, one(from_offset)?, one(range)?);
        let dependencies = read_array(dependencies, usize::try_from(count).unwrap_or(0))?;
        if agent.device().is_none() {
            return Err(crate::status::INVALID_AGENT);
        }
        let place = |pointer: PitchedPointer, offset: Dimensions| {
            pointer.base
                + offset.z as usize * pointer.slice
                + offset.y as usize * pointer.pitch
                + offset.x as usize
        };
        let (to_start, from_start) = (place(to, to_offset), place(from, from_offset));
        let aligned =
            [to.base, from.base, to.pitch, from.pitch].iter().all(|value| value.is_multiple_of(ALIGNMENT));
        if !aligned || done == 0 {
            return Err(INVALID_ARGUMENT);
        }
        let shape = Shape {
            from: from_start,
            from_pitches: [from.pitch, from.slice],
            to: to_start,
            to_pitches: [to.pitch, to.slice],
            extent: [range.x as usize, range.y as usize, range.z as usize],
        };
        submit(shape, agent, FROM_DEVICE, dependencies, done)
    }))
}

/// `hsa_amd_memory_copy_engine_status`: the engines that are free.
pub(crate) extern "C" fn engine_status(to: u64, from: u64, out: *mut u32) -> Status {
    to_status(route(to, from).and_then(|_| write_out(out, ENGINES)))
}

/// `hsa_amd_memory_get_preferred_copy_engine`.
pub(crate) extern "C" fn preferred_engine(to: u64, from: u64, out: *mut u32) -> Status {
    to_status(route(to, from).and_then(|(_, direction)| write_out(out, direction)))
}

/// `hsa_amd_profiling_async_copy_enable`: times are always recorded.
pub(crate) extern "C" fn enable_profiling(_enable: bool) -> Status {
    SUCCESS
}

//! Device memory that can be moved to the host and back at unchanged addresses, for programs started with `xsched run --swap`.
//!
//! ```text
//!   cuMemAlloc of more than 1 MiB ─► a range of addresses, backed by chunks of physical memory of at most 64 MiB
//!   parked:                          the chunks are copied to the host and released; the addresses stay reserved
//! ```
//! * [`ranges`]: the ranges and what the driver does for them. [`mover`]: moves them, on the library's own thread. [`arena`]: the
//!   memory of the host.
//! * [`pointers`]: what the driver reports about an address. [`calls`]: hooks that exist only for swapping.
//!
//! Every call that uses device memory passes a gate ([`CallGate`]), which is closed while the memory is not on the device.
//! Smaller allocations share pages of the driver and stay on the device: a chunk has at least 2 MiB. Programs that see several
//! devices have plain memory only, because peers would need access to each chunk.

mod arena;
pub(in super::super) mod calls;
mod mover;
pub(in super::super) mod pointers;
mod ranges;

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use xsched_core::call_gate::CallGate;
use xsched_interpose::{lifetime, run_isolated};
use xsched_ipc::page::Staying;
use xsched_ipc::parking::DRAIN_TIMEOUT;
use xsched_ipc::report::report_to_user;

use super::{Device, GRAIN, PAGE, POINTERS, allocate_in, taken};
use crate::deferral::waits;
use crate::platforms::cuda::vendor::{self, Code};
use crate::platforms::cuda::{capture, contexts, current_context};
use crate::runtime::{existing_runtime, runtime};
use ranges::Range;

/// The rows of a pitched allocation are multiples of this.
const ROW_GRAIN: usize = 512;
const _: () = assert!(ROW_GRAIN as u64 == GRAIN);

/// How long a process that exits waits for its memory, if the device is full.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

static GATE: CallGate = CallGate::new();

/// Whether memory of this process can be moved.
static MODE: AtomicU8 = AtomicU8::new(UNKNOWN);
/// No allocation has decided it yet.
const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;

/// The kinds of memory that stay on the device: bits of [`Staying`].
static STAYING: AtomicU32 = AtomicU32::new(0);

/// Calls `real`, which uses device memory, while that memory is on the device.
#[inline]
pub(in super::super) fn held<R>(real: impl FnOnce() -> R) -> R {
    if MODE.load(Ordering::Relaxed) == ON { hold(real) } else { real() }
}

#[inline(never)]
fn hold<R>(real: impl FnOnce() -> R) -> R {
    let _call = GATE.enter(DRAIN_TIMEOUT, wake_thread);
    real()
}

/// As [`held`], for a call whose context may have neither a tracked stream nor an allocation: its work is waited for too.
#[inline]
pub(in super::super) fn copies<R>(real: impl FnOnce() -> R) -> R {
    if MODE.load(Ordering::Relaxed) != ON {
        return real();
    }
    hold(|| {
        run_isolated(record_context);
        real()
    })
}

/// A thread is held: the number of such threads is published.
fn wake_thread() {
    run_isolated(|| {
        if let Some(runtime) = existing_runtime() {
            runtime.client().wake_parking();
        }
    });
}

fn record_context() {
    if let (Some(context), Some(device)) = (current_context(), Device::current()) {
        contexts::record(context, device.id);
    }
}

/// The program uses memory that stays on the device.
pub(in super::super) fn stays(kind: Staying) {
    if MODE.load(Ordering::Relaxed) != OFF {
        STAYING.fetch_or(kind.bit(), Ordering::Relaxed);
    }
}

/// Whether memory is moved at all. The first call decides it, once the program allocates.
fn is_on() -> bool {
    match MODE.load(Ordering::Acquire) {
        UNKNOWN => {
            run_isolated(decide);
            MODE.load(Ordering::Acquire) == ON
        }
        mode => mode == ON,
    }
}

#[cold]
fn decide() {
    // Without a context the driver refuses the allocation.
    let Some(runtime) = current_context().and_then(|_| runtime()) else { return };
    let environment = runtime.environment();
    if !environment.swap || !environment.schedules_every_queue {
        MODE.store(OFF, Ordering::Release);
        return;
    }
    let mut devices: c_int = 0;
    let code = vendor::DEVICE_COUNT.get().map(|count| {
        // SAFETY: `devices` has room for the result.
        unsafe { count(&raw mut devices) }
    });
    if code != Some(vendor::SUCCESS) {
        // In a child after fork, for example.
        return;
    }
    let mode = if devices == 1 && ranges::is_supported() && start(environment.swap_limit) { ON } else { OFF };
    if mode == OFF {
        static IS_REPORTED: AtomicBool = AtomicBool::new(false);
        let why = if devices == 1 { "the driver cannot map memory" } else { Staying::Devices.name() };
        report_to_user(&IS_REPORTED, format_args!("--swap has no effect: {why}"));
    }
    // Another thread may have decided meanwhile; a thread that is started twice is prevented by `start`.
    let _ = MODE.compare_exchange(UNKNOWN, mode, Ordering::AcqRel, Ordering::Acquire);
}

/// Starts the thread that moves the memory, once.
fn start(limit: Option<u64>) -> bool {
    static IS_STARTED: AtomicBool = AtomicBool::new(false);
    if IS_STARTED.swap(true, Ordering::AcqRel) {
        return true;
    }
    let Some(runtime) = existing_runtime() else { return false };
    let memory = Arc::new(mover::Memory::new(limit));
    lifetime::at_fork_in_child(detach_in_child) && runtime.client().start_parking(memory).is_ok()
}

/// A child after fork has neither the memory nor the thread: its calls get the driver's errors.
extern "C" fn detach_in_child() {
    MODE.store(OFF, Ordering::SeqCst);
    GATE.open();
}

/// The process exits, and has left its scheduler: waits until its memory is back, because the program's own handlers may
/// read it.
pub(in super::super) fn at_exit() {
    if MODE.load(Ordering::Acquire) != ON {
        return;
    }
    let deadline = Instant::now() + EXIT_TIMEOUT;
    while GATE.is_committed() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    mover::stop();
    if GATE.is_committed() {
        // The driver refuses what the handlers do with the memory: better than a process that never exits.
        GATE.open();
    }
}

/// Calls `real`, which allocates `bytes`, or allocates memory that can be moved.
pub(in super::super) fn allocate(real: impl FnOnce() -> Code, address: *mut usize, bytes: usize) -> Code {
    held(|| match Request::of(address, bytes) {
        Some(request) => request.allocate(real),
        None => super::allocate(|| waits(real), address, bytes),
    })
}

/// Calls `real`, which allocates rows, or allocates memory that can be moved.
pub(in super::super) fn allocate_pitched(
    real: impl FnOnce() -> Code,
    address: *mut usize,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: u32,
) -> Code {
    held(|| {
        // What the driver returns on all GPUs for elements of these sizes.
        let row = width.checked_next_multiple_of(ROW_GRAIN);
        let bytes = row.and_then(|row| row.checked_mul(height));
        let is_valid = matches!(element, 4 | 8 | 16) && !pitch.is_null();
        match bytes.filter(|_| is_valid).and_then(|bytes| Request::of(address, bytes)).zip(row) {
            Some((request, row)) => {
                let code = request.allocate(|| super::allocate_pitched(real, address, pitch, width, height));
                if code == vendor::SUCCESS && ranges::contains_start(request.out) {
                    // SAFETY: not null, so the program passes room for the result.
                    unsafe { *pitch = row };
                }
                code
            }
            None => super::allocate_pitched(real, address, pitch, width, height),
        }
    })
}

/// A valid request for memory that can be moved.
#[derive(Clone, Copy)]
struct Request {
    out: *mut usize,
    bytes: usize,
    device: Device,
    context: usize,
}

impl Request {
    /// None for memory that stays on the device, and for requests that the driver rejects.
    fn of(out: *mut usize, bytes: usize) -> Option<Self> {
        if !is_on() || out.is_null() {
            return None;
        }
        let mut request = None;
        run_isolated(|| {
            let Some((device, context)) = Device::current().zip(current_context()) else { return };
            if bytes as u64 > device.total {
                return;
            }
            if bytes as u64 <= PAGE / 2 {
                stays(Staying::Small);
            } else if capture::is_active() {
                stays(Staying::Plain);
            } else {
                request = Some(Self { out, bytes, device, context: context.addr() });
            }
        });
        request
    }

    /// Allocates the memory. Calls `real` if the driver cannot back it by chunks.
    fn allocate(self, real: impl FnOnce() -> Code) -> Code {
        let mut created = Err(vendor::NOT_SUPPORTED);
        let mut real = Some(real);
        let allocate = || {
            run_isolated(|| created = Range::create(self.bytes, self.device.ordinal, self.context));
            match std::mem::replace(&mut created, Err(vendor::NOT_SUPPORTED)) {
                Ok(range) => {
                    // SAFETY: not null, so the program passes room for the address.
                    unsafe { *self.out = range.address() };
                    run_isolated(|| {
                        record_context();
                        ranges::insert(range);
                    });
                    vendor::SUCCESS
                }
                Err(vendor::OUT_OF_MEMORY) => vendor::OUT_OF_MEMORY,
                Err(_) => real.take().map_or(vendor::NOT_SUPPORTED, |real| {
                    stays(Staying::Plain);
                    real()
                }),
            }
        };
        // SAFETY: an address was written there.
        let code = allocate_in(&POINTERS, taken(self.bytes as u64), allocate, |_| unsafe { *self.out });
        wake_thread();
        code
    }
}

/// Calls `real`, which frees memory, or frees memory that can be moved.
pub(in super::super) fn free(real: impl FnOnce() -> Code, address: usize) -> Code {
    held(|| {
        if MODE.load(Ordering::Relaxed) != ON || !ranges::contains(address) {
            return super::free(|| waits(real), address);
        }
        let release = || {
            // As the driver does: work that was launched before may use the memory.
            let code = waits(mover::synchronize_context);
            if code == vendor::SUCCESS {
                run_isolated(|| ranges::remove(address));
                wake_thread();
            }
            code
        };
        POINTERS.free(address, release)
    })
}

/// Calls `real`, which frees memory when a stream has reached that point. Memory that can be moved is freed at once, after all
/// work of the context.
pub(in super::super) fn free_async(real: impl FnOnce() -> Code, address: usize) -> Code {
    if MODE.load(Ordering::Relaxed) == ON && ranges::contains(address) && !capture::is_active() {
        return free(real, address);
    }
    super::pools::free(real, address)
}

/// Releases the ranges of a context that is destroyed.
pub(super) fn free_with_context(context: usize) {
    if MODE.load(Ordering::Relaxed) == ON {
        ranges::remove_of_context(context);
        wake_thread();
    }
}

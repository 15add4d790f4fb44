//! Memory pools. What a pool has reserved is counted, not what the program has allocated from it: the rest of the reserve is not
//! available to others either.

use xsched_interpose::run_isolated;
use xsched_ipc::page::Staying;

use super::reserves::{self, Holder};
use super::{Device, PAGE, POINTERS, swap};
use crate::allocations::Capacity;
use crate::platforms::cuda::vendor::{self, AllocationProperties, Code, PER_THREAD, Stream};
use crate::platforms::cuda::{capture, context_of, stream::with_current};

/// Calls `real`, which creates a pool.
pub(in super::super) fn create(
    real: impl FnOnce() -> Code,
    pool: *mut usize,
    properties: *const AllocationProperties,
) -> Code {
    let code = real();
    run_isolated(|| {
        if code != vendor::SUCCESS {
            return;
        }
        // SAFETY: the driver has read the properties, and written the handle.
        let (ordinal, pool) = unsafe { ((*properties).location.device(), *pool) };
        if let Some(device) = ordinal.and_then(Device::with_ordinal) {
            reserves::count(Holder::Pool(pool), device.id, None);
        }
    });
    code
}

/// Calls `real`, which destroys a pool. Memory of the pool that is in use is not counted afterwards.
pub(in super::super) fn destroy(real: impl FnOnce() -> Code, pool: usize) -> Code {
    let mut device = None;
    run_isolated(|| {
        let holder = Holder::Pool(pool);
        device = reserves::device_of(holder);
        reserves::forget(holder);
    });
    let code = real();
    run_isolated(|| {
        if let Some(device) = device.filter(|_| code != vendor::SUCCESS) {
            reserves::count(Holder::Pool(pool), device, None);
        }
    });
    code
}

/// Calls `real`, which gives reserved memory back to the GPU.
pub(in super::super) fn trim(real: impl FnOnce() -> Code) -> Code {
    let code = real();
    reserves::refresh_if_used();
    code
}

/// Calls `real`, which allocates from a pool, or from the current one of the stream's GPU.
pub(in super::super) fn allocate(
    real: impl FnOnce() -> Code,
    bytes: usize,
    pool: Option<usize>,
    stream: Stream,
) -> Code {
    swap::stays(Staying::Pools);
    if capture::is_captured(stream) {
        // The graph allocates when it is launched.
        return super::graphs::add_allocation(real);
    }
    let mut growth = None;
    let mut is_refused = false;
    run_isolated(|| {
        if let Some(device) = device_of_stream(stream)
            && let Some((pool, device)) = pool_on(device, pool)
        {
            let needed = || {
                let more = (bytes as u64).saturating_sub(pool.unused());
                more.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
            };
            match device.reserve_needed(needed) {
                Ok(reservation) => growth = Some((pool, device, reservation)),
                Err(_) => is_refused = true,
            }
        }
    });
    if is_refused {
        return vendor::OUT_OF_MEMORY;
    }
    let code = real();
    run_isolated(|| {
        if let Some((pool, device, reservation)) = growth {
            reserves::count(pool, device.id, Some(reservation));
            // A pool grows by more than it needs, which may be more than the limit permits.
            if Capacity::of(device.id, device.total).is_some_and(|capacity| capacity.left() == 0) {
                reserves::trim(device);
            }
        }
    });
    code
}

/// Calls `real`, which frees memory when a stream has reached that point.
pub(in super::super) fn free(real: impl FnOnce() -> Code, address: usize) -> Code {
    let mut is_of_pool = true;
    run_isolated(|| is_of_pool = !POINTERS.contains(address));
    let code = POINTERS.free(address, real);
    if code == vendor::SUCCESS && is_of_pool {
        reserves::freed();
    }
    code
}

/// Calls `real`, which waits for work. Pools give memory back that was freed before.
pub(in super::super) fn synchronize(real: impl FnOnce() -> Code) -> Code {
    let code = real();
    reserves::synchronized();
    code
}

/// The pool to allocate from, and its GPU. None for memory of the host, and for pools of other processes.
fn pool_on(device: Device, pool: Option<usize>) -> Option<(Holder, Device)> {
    let ask = |function: &crate::loader::Function<unsafe extern "C" fn(*mut usize, i32) -> Code>| {
        let mut pool = 0;
        // SAFETY: `pool` has room for a handle.
        let code = unsafe { function.get()?(&raw mut pool, device.ordinal) };
        (code == vendor::SUCCESS).then_some(pool)
    };
    let Some(pool) = pool else {
        return ask(&vendor::DEVICE_POOL).map(|pool| (Holder::Pool(pool), device));
    };
    let holder = Holder::Pool(pool);
    match reserves::device_of(holder) {
        Some(id) => Device::with_id(id).map(|device| (holder, device)),
        None => (ask(&vendor::DEVICE_DEFAULT_POOL) == Some(pool)).then_some((holder, device)),
    }
}

/// The GPU of a stream: that of the current context for the default streams.
fn device_of_stream(stream: Stream) -> Option<Device> {
    let own_context = (stream.addr() > PER_THREAD).then(|| context_of(stream)).flatten();
    match own_context {
        Some(context) => with_current(context, Device::current).flatten(),
        None => Device::current(),
    }
}

//! Device memory: counts what the program allocates, and refuses what exceeds its limit.
//!
//! | memory | counted |
//! |---|---|
//! | `hipMalloc` and its pitched, managed, array and stream-ordered forms | from a successful allocation to its free |
//! | physical memory (`hipMemCreate`) | until it is released and mapped nowhere ([`virtual_memory`]) |
//! | allocations of graphs, memory that a pool keeps, code, the runtime's own memory, memory of other processes | no |
//!
//! A refused allocation fails as the runtime fails it: the code is that of the runtime, and so is the last error of the thread.
//! Without a limit the runtime is called first and the memory is counted afterwards, so that the program's calls reach the
//! runtime in the order that they would have without this library.
//!
//! * [`devices`]: the device that an allocation is made on. [`sizes`]: how much memory arrays and pitched rows take.
//! * [`reports`]: the sizes of the device that the runtime reports to the program.

mod devices;
mod reports;
mod sizes;
mod virtual_memory;

use std::ffi::{c_int, c_uint, c_void};

use xsched_interpose::run_isolated;

use super::event_markers::CAPTURES;
use super::runtime_copies::{self, Hook};
use super::vendor::{self, Code, Extent, PitchedPointer, Stream};
use super::{Call, DOMAIN, NullStream, hook_macro, is_captured, missing, stream_kind};
use crate::allocations::{Allocations, Reservation, report_refusal};
use crate::runtime::{memory_account, runtime};
use devices::MemoryDevice;
use sizes::{ArrayDescriptor, ArrayDescriptor3D, ChannelFormat};
use virtual_memory::AllocationProperties;

type Address = *mut c_void;

/// `hipMallocSignalMemory`: eight bytes, which are not in device memory.
const SIGNAL_MEMORY: c_uint = 2;

hook_macro::hooks! {
    [215] fn hipMalloc(out: *mut Address, size: usize)
        = |call, out, size| allocate(call, &POINTERS, Place::Current, size as u64, out);
    [86] fn hipExtMallocWithFlags(out: *mut Address, size: usize, flags: c_uint)
        = |call: Call, out, size, flags| match flags {
            SIGNAL_MEMORY => call.forward(),
            _ => allocate(call, &POINTERS, Place::Current, size as u64, out),
        };
    [222] fn hipMallocManaged(out: *mut Address, size: usize, flags: c_uint)
        = |call, out, size, _| allocate(call, &POINTERS, Place::Current, size as u64, out);
    [219] fn hipMallocAsync(out: *mut Address, size: usize, stream: Stream)
        = |call, out, size, stream| allocate(call, &POINTERS, Place::Stream(stream), size as u64, out);
    [220] fn hipMallocFromPoolAsync(out: *mut Address, size: usize, pool: *mut c_void, stream: Stream)
        = |call, out, size, _, stream| allocate(call, &POINTERS, Place::Stream(stream), size as u64, out);
    [90] fn hipFree(memory: Address) = |call, memory| free(call, &POINTERS, memory);
    [92] fn hipFreeAsync(memory: Address, stream: Stream) = |call, memory, _| free(call, &POINTERS, memory);

    [224] fn hipMallocPitch(out: *mut Address, pitch: *mut usize, width: usize, height: usize)
        = |call, out, pitch, width, height| allocate_rows(call, out, pitch, width, height);
    [229] fn hipMemAllocPitch(out: *mut Address, pitch: *mut usize, width: usize, height: usize, element: c_uint)
        = |call, out, pitch, width, height, _| allocate_rows(call, out, pitch, width, height);
    [216] fn hipMalloc3D(out: *mut PitchedPointer, extent: Extent) = allocate_3d;

    [218] fn hipMallocArray(out: *mut Address, format: *const ChannelFormat, width: usize, height: usize, flags: c_uint)
        = |call, out, format, width, height, _| allocate(call, &ARRAYS, Place::Current, sizes::of_array(format, [width, height, 1]), out);
    [217] fn hipMalloc3DArray(out: *mut Address, format: *const ChannelFormat, extent: Extent, flags: c_uint)
        = |call, out, format, extent: Extent, _| allocate(call, &ARRAYS, Place::Current, sizes::of_array(format, extent.lengths()), out);
    [3] fn hipArrayCreate(out: *mut Address, descriptor: *const ArrayDescriptor)
        = |call, out, descriptor| allocate(call, &ARRAYS, Place::Current, sizes::of_described(descriptor), out);
    [1] fn hipArray3DCreate(out: *mut Address, descriptor: *const ArrayDescriptor3D)
        = |call, out, descriptor| allocate(call, &ARRAYS, Place::Current, sizes::of_described_3d(descriptor, 1), out);
    [223] fn hipMallocMipmappedArray(out: *mut Address, format: *const ChannelFormat, extent: Extent, levels: c_uint, flags: c_uint)
        = |call, out, format, extent: Extent, levels, _| allocate(call, &ARRAYS, Place::Current, sizes::of_levels(format, extent.lengths(), levels), out);
    [300] fn hipMipmappedArrayCreate(out: *mut Address, descriptor: *const ArrayDescriptor3D, levels: c_uint)
        = |call, out, descriptor, levels| allocate(call, &ARRAYS, Place::Current, sizes::of_described_3d(descriptor, levels), out);
    [91] fn hipFreeArray(array: Address) = |call, array| free(call, &ARRAYS, array);
    [4] fn hipArrayDestroy(array: Address) = |call, array| free(call, &ARRAYS, array);
    [94] fn hipFreeMipmappedArray(array: Address) = |call, array| free(call, &ARRAYS, array);
    [301] fn hipMipmappedArrayDestroy(array: Address) = |call, array| free(call, &ARRAYS, array);

    [230] fn hipMemCreate(out: *mut Address, size: usize, properties: *const AllocationProperties, flags: u64)
        = |call, out, size, properties, _| virtual_memory::create(call, out, size, properties);
    [255] fn hipMemRelease(handle: Address) = |call, handle| virtual_memory::release(call, handle);
    [256] fn hipMemRetainAllocationHandle(out: *mut Address, address: Address)
        = |call, out, _| virtual_memory::retain(call, out);
    [238] fn hipMemMap(address: Address, size: usize, offset: usize, handle: Address, flags: u64)
        = |call, address, _, _, handle, _| virtual_memory::map(call, address, handle);
    [258] fn hipMemUnmap(address: Address, size: usize) = |call, address, size| virtual_memory::unmap(call, address, size);

    [236] fn hipMemGetInfo(free: *mut usize, total: *mut usize) = reports::information;
    [67] fn hipDeviceTotalMem(bytes: *mut usize, device: c_int) = |call, bytes, _| reports::capped(call, bytes);
    [105] fn hipGetDevicePropertiesR0600(properties: *mut c_void, device: c_int)
        = |call, properties, _| reports::properties(call, properties, reports::TOTAL_IN_PROPERTIES_6);
    [106] fn hipGetDevicePropertiesR0000(properties: *mut c_void, device: c_int)
        = |call, properties, _| reports::properties(call, properties, reports::TOTAL_IN_PROPERTIES_5);
    [none] fn hipGetDeviceProperties(properties: *mut c_void, device: c_int)
        = |call, properties, _| reports::properties(call, properties, reports::TOTAL_IN_PROPERTIES_5);
}

/// Memory by its address.
static POINTERS: Allocations = Allocations::new();
/// Arrays, also those with levels, by handle.
static ARRAYS: Allocations = Allocations::new();

/// The device on which memory is allocated.
#[derive(Clone, Copy)]
enum Place {
    /// The calling thread's device.
    Current,
    /// The device of a stream.
    Stream(Stream),
    /// By ordinal.
    Ordinal(c_int),
}

/// The limit on a device with `total` bytes, if there is one.
fn limit(total: u64) -> Option<u64> {
    let mut limit = None;
    run_isolated(|| limit = memory_account().limit(total));
    limit
}

/// The unit in which the driver allocates.
const PAGE: u64 = 4096;

/// Counts an allocation whose address or handle the runtime writes to `out`.
fn allocate(call: Call, table: &Allocations, place: Place, bytes: u64, out: *mut Address) -> Code {
    // SAFETY: called after the runtime has written there.
    allocate_with(call, table, place, bytes, |_| unsafe { out.read() }.addr())
}

/// The same with the function that returns the address or handle, and may correct the amount.
fn allocate_with(
    call: Call,
    table: &Allocations,
    place: Place,
    bytes: u64,
    key: impl FnOnce(&mut Reservation) -> usize,
) -> Code {
    let Call { copy, real } = call;
    let limit = limit(u64::MAX);
    if bytes == 0 || (limit.is_none() && runtime().is_none()) {
        return real();
    }
    let bytes = bytes.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
    if limit.is_none() {
        let code = real();
        run_isolated(|| {
            if code == vendor::SUCCESS
                && let Some(device) = device(copy, place)
            {
                let mut reservation = Reservation::of_allocated(device.id, bytes);
                table.insert(key(&mut reservation), device.owner, reservation);
            }
        });
        return code;
    }
    let mut found = None;
    run_isolated(|| found = device(copy, place));
    let reserve = || found.map(|device| Reservation::reserve(device.id, device.total, bytes)).transpose();
    let owner = found.map_or(0, |device| device.owner);
    table.allocate(owner, reserve, real, key).unwrap_or_else(|over| {
        run_isolated(|| {
            if let Some(device) = found {
                report_refusal(device.id, bytes, over);
            }
            set_last_error(copy);
        });
        vendor::OUT_OF_MEMORY
    })
}

/// The device of an allocation. None if it is not known, and for an allocation that is recorded into a graph.
fn device(copy: usize, place: Place) -> Option<MemoryDevice> {
    match place {
        Place::Current => devices::current(copy),
        Place::Ordinal(ordinal) => devices::at(copy, ordinal),
        Place::Stream(stream) => {
            let kind = stream_kind(stream, NullStream::Legacy);
            (!is_captured(copy, kind)).then(|| devices::of_stream(copy, stream)).flatten()
        }
    }
}

/// Makes the runtime set the last error of this thread to "out of memory": it has no function for that, so it gets a request that no
/// device can satisfy. During a capture such a request would invalidate the capture.
fn set_last_error(copy: usize) {
    const IMPOSSIBLE: usize = 1 << 60;
    if CAPTURES.is_capturing() {
        return;
    }
    let mut memory = std::ptr::null_mut();
    if let Some(allocate) = vendor::MALLOC.of(copy)
        // SAFETY: `memory` has room for an address.
        && unsafe { allocate(&raw mut memory, IMPOSSIBLE) } == vendor::SUCCESS
        && let Some(free) = vendor::FREE.of(copy)
    {
        // SAFETY: just allocated.
        unsafe { free(memory) };
    }
}

fn free(call: Call, table: &Allocations, memory: Address) -> Code {
    table.free(memory.addr(), call.real)
}

fn allocate_rows(call: Call, out: *mut Address, pitch: *mut usize, width: usize, height: usize) -> Code {
    let bytes = sizes::of_rows(sizes::pitch(width), height, 1);
    allocate_with(call, &POINTERS, Place::Current, bytes, |reservation| {
        // SAFETY: the runtime has written both.
        let (address, pitch) = unsafe { (out.read(), pitch.read()) };
        reservation.resize(sizes::of_rows(pitch, height, 1));
        address.addr()
    })
}

fn allocate_3d(call: Call, out: *mut PitchedPointer, extent: Extent) -> Code {
    let [width, height, depth] = extent.lengths();
    let bytes = sizes::of_rows(sizes::pitch(width), height, depth);
    allocate_with(call, &POINTERS, Place::Current, bytes, |reservation| {
        // SAFETY: the runtime has written it.
        let (address, pitch) = unsafe { (*out).address_and_pitch() };
        reservation.resize(sizes::of_rows(pitch, height, depth));
        address.addr()
    })
}

/// Whether memory of some device was counted.
pub(super) fn has_counted() -> bool {
    devices::is_any_known()
}

/// `hipDeviceReset` has freed the memory of a device.
pub(super) fn release_owned_by(owner: usize) {
    POINTERS.release_owned_by(owner);
    ARRAYS.release_owned_by(owner);
    virtual_memory::release_owned_by(owner);
}

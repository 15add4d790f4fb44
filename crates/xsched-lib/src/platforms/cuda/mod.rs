//! The NVIDIA platform: `libcuda.so.1`.
//!
//! Programs reach the driver's functions in three ways, and each is intercepted: by linking, because the exports of a preloaded
//! library come first; by `dlsym` ([`crate::loader`]); and by the driver's own `cuGetProcAddress`.
//!
//! * [`stream`]: a CUDA stream as a hardware queue. [`markers`]: the markers placed in it. [`stop_words`]: the memory through
//!   which the device reports progress and learns whether to continue.
//! * [`device`]: preemption of the process on one GPU, with the table of what each order does. [`resource_manager`]: the
//!   control calls for time slices and channels.
//! * [`contexts`]: destruction of contexts. [`capture`]: stream capture. [`memory`]: device memory and its limit.
//! * [`vendor`]: the driver's functions and types. [`look_up`]: the driver's own look-up function.

mod api;
pub(crate) mod capture;
#[cfg(test)]
pub(crate) mod conformance;
mod contexts;
mod device;
mod look_up;
mod markers;
mod memory;
mod resource_manager;
mod stop_words;
pub(crate) mod stream;
#[cfg(test)]
mod tests;
pub(crate) mod vendor;

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use xsched_core::NotDeferred;
use xsched_interpose::{Guard, forward_once, run_isolated};
use xsched_ipc::KernelName;

use crate::deferral::{exposes, waits};
use crate::hooks::hooks;
use crate::ioctl::IoctlObserver;
use crate::loader::VendorIdentity;
use crate::platforms::Platform;
use crate::queue_hooks;
use crate::runtime::{Runtime, runtime};
use crate::tracked_queue::{ApiQueue, TrackedQueue};
use look_up::get_proc_address;
use memory::{arrays, graphs, physical, pools, swap};
use stream::{CudaStream, current_device};
use swap::copies;
use vendor::{
    AllocationProperties, ArrayShape, ArrayShape3D, Code, Context, IpcHandle, LEGACY, LaunchConfig,
    MemoryAccess, PER_THREAD, Stream,
};

/// NVIDIA's driver. `CuPy` for AMD GPUs exports 25 functions with the driver's names, but none of these.
static VENDOR: VendorIdentity = VendorIdentity {
    exports: &[c"cuInit", c"cuDriverGetVersion", c"cuDeviceGetCount", c"cuCtxPushCurrent_v2"],
    files: &["libcuda.so"],
};

/// The platform, for the registry.
pub(crate) static PLATFORM: Platform = Platform {
    vendor: &VENDOR,
    hooks: &[&LIBRARY, &memory::nvml::LIBRARY, &swap::calls::IfRequested],
    bypasses_hook: None,
    observe_ioctl: Some(&IoctlObserver { before: None, after: resource_manager::watch_ioctl }),
    at_exit: Some(swap::at_exit),
    #[cfg(test)]
    header: &api::HEADER,
};

hooks! {
    prefix "cu";
    if missing return vendor::NOT_INITIALIZED;

    fn cuLaunchKernel(f: *mut c_void, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Stream, parameters: *mut c_void, extra: *mut c_void) -> Code
        = |real, f, _, _, _, _, _, _, _, stream, _, _| launch(real, f, stream, LEGACY);
    fn cuLaunchKernel_ptsz(f: *mut c_void, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Stream, parameters: *mut c_void, extra: *mut c_void) -> Code
        = |real, f, _, _, _, _, _, _, _, stream, _, _| launch(real, f, stream, PER_THREAD);
    fn cuLaunchKernelEx(config: *const LaunchConfig, f: *mut c_void, parameters: *mut c_void, extra: *mut c_void) -> Code
        = |real, config, f, _, _| launch(real, f, config_stream(config), LEGACY);
    fn cuLaunchKernelEx_ptsz(config: *const LaunchConfig, f: *mut c_void, parameters: *mut c_void, extra: *mut c_void) -> Code
        = |real, config, f, _, _| launch(real, f, config_stream(config), PER_THREAD);
    fn cuLaunchCooperativeKernel(f: *mut c_void, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Stream, parameters: *mut c_void) -> Code
        = |real, f, _, _, _, _, _, _, _, stream, _| launch(real, f, stream, LEGACY);
    fn cuLaunchCooperativeKernel_ptsz(f: *mut c_void, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Stream, parameters: *mut c_void) -> Code
        = |real, f, _, _, _, _, _, _, _, stream, _| launch(real, f, stream, PER_THREAD);
    fn cuGraphLaunch(graph: *mut c_void, stream: Stream) -> Code
        = |real, _, stream| graphs::launch(|| launch_graph(real, stream, LEGACY));
    fn cuGraphLaunch_ptsz(graph: *mut c_void, stream: Stream) -> Code
        = |real, _, stream| graphs::launch(|| launch_graph(real, stream, PER_THREAD));
    fn cuStreamSynchronize(stream: Stream) -> Code = |real, stream| pools::synchronize(|| synchronize(real, stream, LEGACY));
    fn cuStreamSynchronize_ptsz(stream: Stream) -> Code = |real, stream| pools::synchronize(|| synchronize(real, stream, PER_THREAD));
    fn cuStreamQuery(stream: Stream) -> Code = |real, stream| query(real, stream, LEGACY);
    fn cuStreamQuery_ptsz(stream: Stream) -> Code = |real, stream| query(real, stream, PER_THREAD);
    fn cuCtxSynchronize() -> Code = |real| pools::synchronize(|| synchronize_device(real, None));
    fn cuCtxSynchronize_v2(context: Context) -> Code = |real, context| pools::synchronize(|| synchronize_device(real, Some(context)));
    fn cuEventSynchronize(event: *mut c_void) -> Code = |real, _| after_wait(real);
    fn cuEventQuery(event: *mut c_void) -> Code = |real, _| query_event(real);
    fn cuEventElapsedTime(milliseconds: *mut f32, from: *mut c_void, to: *mut c_void) -> Code = |real, _, _, _| query_event(real);
    fn cuEventElapsedTime_v2(milliseconds: *mut f32, from: *mut c_void, to: *mut c_void) -> Code = |real, _, _, _| query_event(real);
    fn cuMemcpy(to: usize, from: usize, size: usize) -> Code = |real, _, _, _| copies(|| after_wait(real));
    fn cuMemcpy_ptds(to: usize, from: usize, size: usize) -> Code = |real, _, _, _| copies(|| after_wait(real));
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: usize, size: usize) -> Code = |real, _, _, _| copies(|| after_wait(real));
    fn cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: usize, size: usize) -> Code = |real, _, _, _| copies(|| after_wait(real));
    fn cuMemcpyHtoD_v2(to: usize, from: *const c_void, size: usize) -> Code = |real, _, _, _| copies(|| waits(real));
    fn cuMemcpyHtoD_v2_ptds(to: usize, from: *const c_void, size: usize) -> Code = |real, _, _, _| copies(|| waits(real));
    fn cuMemcpyAsync(to: usize, from: usize, size: usize, stream: Stream) -> Code = |real, _, _, _, _| copies(|| waits(real));
    fn cuMemcpyAsync_ptsz(to: usize, from: usize, size: usize, stream: Stream) -> Code = |real, _, _, _, _| copies(|| waits(real));
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: usize, size: usize, stream: Stream) -> Code = |real, _, _, _, _| copies(|| waits(real));
    fn cuMemcpyDtoHAsync_v2_ptsz(to: *mut c_void, from: usize, size: usize, stream: Stream) -> Code = |real, _, _, _, _| copies(|| waits(real));
    fn cuMemcpyHtoDAsync_v2(to: usize, from: *const c_void, size: usize, stream: Stream) -> Code = |real, _, _, _, _| copies(|| waits(real));
    fn cuMemcpyHtoDAsync_v2_ptsz(to: usize, from: *const c_void, size: usize, stream: Stream) -> Code = |real, _, _, _, _| copies(|| waits(real));
    fn cuMemcpyDtoD_v2(to: usize, from: usize, size: usize) -> Code = |real, _, _, _| copies(|| after_wait(real));
    fn cuMemcpyDtoD_v2_ptds(to: usize, from: usize, size: usize) -> Code = |real, _, _, _| copies(|| after_wait(real));
    fn cuMemcpyAtoH_v2(to: *mut c_void, array: usize, offset: usize, size: usize) -> Code = |real, _, _, _, _| copies(|| after_wait(real));
    fn cuMemcpyAtoH_v2_ptds(to: *mut c_void, array: usize, offset: usize, size: usize) -> Code = |real, _, _, _, _| copies(|| after_wait(real));
    fn cuMemcpyHtoA_v2(array: usize, offset: usize, from: *const c_void, size: usize) -> Code = |real, _, _, _, _| copies(|| waits(real));
    fn cuMemcpyHtoA_v2_ptds(array: usize, offset: usize, from: *const c_void, size: usize) -> Code = |real, _, _, _, _| copies(|| waits(real));
    fn cuMemcpyPeer(to: usize, into: Context, from: usize, out_of: Context, size: usize) -> Code = |real, _, _, _, _, _| copies(|| after_wait(real));
    fn cuMemcpyPeer_ptds(to: usize, into: Context, from: usize, out_of: Context, size: usize) -> Code
        = |real, _, _, _, _, _| copies(|| after_wait(real));
    fn cuMemcpy2D_v2(copy: *const c_void) -> Code = |real, _| copies(|| after_wait(real));
    fn cuMemcpy2D_v2_ptds(copy: *const c_void) -> Code = |real, _| copies(|| after_wait(real));
    fn cuMemcpy2DUnaligned_v2(copy: *const c_void) -> Code = |real, _| copies(|| after_wait(real));
    fn cuMemcpy2DUnaligned_v2_ptds(copy: *const c_void) -> Code = |real, _| copies(|| after_wait(real));
    fn cuMemcpy2DAsync_v2(copy: *const c_void, stream: Stream) -> Code = |real, _, _| copies(|| waits(real));
    fn cuMemcpy2DAsync_v2_ptsz(copy: *const c_void, stream: Stream) -> Code = |real, _, _| copies(|| waits(real));
    fn cuMemcpy3D_v2(copy: *const c_void) -> Code = |real, _| copies(|| after_wait(real));
    fn cuMemcpy3D_v2_ptds(copy: *const c_void) -> Code = |real, _| copies(|| after_wait(real));
    fn cuMemcpy3DPeer(copy: *const c_void) -> Code = |real, _| copies(|| after_wait(real));
    fn cuMemcpy3DPeer_ptds(copy: *const c_void) -> Code = |real, _| copies(|| after_wait(real));
    fn cuMemcpy3DAsync_v2(copy: *const c_void, stream: Stream) -> Code = |real, _, _| copies(|| waits(real));
    fn cuMemcpy3DAsync_v2_ptsz(copy: *const c_void, stream: Stream) -> Code = |real, _, _| copies(|| waits(real));
    fn cuMemAllocHost_v2(address: *mut *mut c_void, bytes: usize) -> Code = |real, _, _| waits(real);
    fn cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint) -> Code = |real, _, _, _| waits(real);
    fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: c_uint) -> Code = |real, _, _, _| waits(real);
    fn cuMemHostUnregister(address: *mut c_void) -> Code = |real, _| waits(real);
    fn cuMemFreeHost(address: *mut c_void) -> Code = |real, _| waits(real);
    fn cuModuleLoad(module: *mut *mut c_void, file: *const c_char) -> Code = |real, _, _| waits(real);
    fn cuModuleLoadData(module: *mut *mut c_void, image: *const c_void) -> Code = |real, _, _| waits(real);
    fn cuModuleLoadDataEx(module: *mut *mut c_void, image: *const c_void, options: c_uint, keys: *mut c_int, values: *mut *mut c_void) -> Code
        = |real, _, _, _, _, _| waits(real);
    fn cuModuleLoadFatBinary(module: *mut *mut c_void, image: *const c_void) -> Code = |real, _, _| waits(real);
    fn cuModuleUnload(module: *mut c_void) -> Code = |real, _| waits(real);
    fn cuLibraryLoadData(library: *mut *mut c_void, code: *const c_void, jit_keys: *mut c_int, jit_values: *mut *mut c_void, jit: c_uint, keys: *mut c_int, values: *mut *mut c_void, options: c_uint) -> Code
        = |real, _, _, _, _, _, _, _, _| waits(real);
    fn cuLibraryLoadFromFile(library: *mut *mut c_void, file: *const c_char, jit_keys: *mut c_int, jit_values: *mut *mut c_void, jit: c_uint, keys: *mut c_int, values: *mut *mut c_void, options: c_uint) -> Code
        = |real, _, _, _, _, _, _, _, _| waits(real);
    fn cuLibraryUnload(library: *mut c_void) -> Code = |real, _| waits(real);
    fn cuLaunchHostFunc(stream: Stream, function: *mut c_void, data: *mut c_void) -> Code = |real, _, _, _| waits(real);
    fn cuLaunchHostFunc_ptsz(stream: Stream, function: *mut c_void, data: *mut c_void) -> Code = |real, _, _, _| waits(real);
    fn cuStreamAddCallback(stream: Stream, function: *mut c_void, data: *mut c_void, flags: c_uint) -> Code
        = |real, _, _, _, _| waits(real);
    fn cuStreamAddCallback_ptsz(stream: Stream, function: *mut c_void, data: *mut c_void, flags: c_uint) -> Code
        = |real, _, _, _, _| waits(real);
    fn cuStreamWriteValue32_v2(stream: Stream, address: u64, value: u32, flags: c_uint) -> Code
        = |real, _, _, _, _| copies(|| exposes(real, NotDeferred::HostMemory));
    fn cuStreamWriteValue32_v2_ptsz(stream: Stream, address: u64, value: u32, flags: c_uint) -> Code
        = |real, _, _, _, _| copies(|| exposes(real, NotDeferred::HostMemory));
    fn cuStreamWriteValue64_v2(stream: Stream, address: u64, value: u64, flags: c_uint) -> Code
        = |real, _, _, _, _| copies(|| exposes(real, NotDeferred::HostMemory));
    fn cuStreamWriteValue64_v2_ptsz(stream: Stream, address: u64, value: u64, flags: c_uint) -> Code
        = |real, _, _, _, _| copies(|| exposes(real, NotDeferred::HostMemory));
    fn cuStreamBatchMemOp_v2(stream: Stream, count: c_uint, operations: *mut c_void, flags: c_uint) -> Code
        = |real, _, _, _, _| copies(|| exposes(real, NotDeferred::HostMemory));
    fn cuStreamBatchMemOp_v2_ptsz(stream: Stream, count: c_uint, operations: *mut c_void, flags: c_uint) -> Code
        = |real, _, _, _, _| copies(|| exposes(real, NotDeferred::HostMemory));
    fn cuIpcGetEventHandle(handle: *mut c_void, event: *mut c_void) -> Code = |real, _, _| exposes(real, NotDeferred::Exported);
    fn cuIpcGetMemHandle(handle: *mut c_void, address: usize) -> Code
        = |real, _, address| swap::pointers::export(|| exposes(real, NotDeferred::Exported), address);
    fn cuIpcOpenEventHandle(event: *mut *mut c_void, handle: IpcHandle) -> Code = |real, _, _| exposes(real, NotDeferred::Exported);
    fn cuIpcOpenMemHandle(address: *mut usize, handle: IpcHandle, flags: c_uint) -> Code
        = |real, _, _, _| exposes(real, NotDeferred::Exported);
    fn cuIpcOpenMemHandle_v2(address: *mut usize, handle: IpcHandle, flags: c_uint) -> Code
        = |real, _, _, _| exposes(real, NotDeferred::Exported);
    fn cuMemPoolExportToShareableHandle(shared: *mut c_void, pool: usize, kind: c_int, flags: u64) -> Code
        = |real, _, _, _, _| exposes(real, NotDeferred::Exported);
    fn cuMemPoolImportFromShareableHandle(pool: *mut usize, shared: *mut c_void, kind: c_int, flags: u64) -> Code
        = |real, _, _, _, _| exposes(real, NotDeferred::Exported);
    fn cuMemExportToShareableHandle(shared: *mut c_void, handle: u64, kind: c_int, flags: u64) -> Code
        = |real, _, _, _, _| exposes(real, NotDeferred::Exported);
    fn cuMemImportFromShareableHandle(handle: *mut u64, shared: *mut c_void, kind: c_int) -> Code
        = |real, _, _, _| exposes(real, NotDeferred::Exported);
    fn cuImportExternalMemory(memory: *mut c_void, description: *const c_void) -> Code
        = |real, _, _| exposes(real, NotDeferred::Exported);
    fn cuImportExternalSemaphore(semaphore: *mut c_void, description: *const c_void) -> Code
        = |real, _, _| exposes(real, NotDeferred::Exported);
    fn cuCtxEnablePeerAccess(context: Context, flags: c_uint) -> Code = |real, _, _| exposes(real, NotDeferred::PeerAccess);
    fn cuMulticastCreate(handle: *mut u64, properties: *const c_void) -> Code = |real, _, _| exposes(real, NotDeferred::PeerAccess);
    fn cuMemPoolSetAccess(pool: usize, access: *const MemoryAccess, count: usize) -> Code
        = |real, _, _, _| exposes(real, NotDeferred::PeerAccess);
    fn cuMemSetAccess(address: usize, bytes: usize, access: *const MemoryAccess, count: usize) -> Code
        = |real, address, _, access, count| physical::set_access(real, address, access, count);
    fn cuProfilerStart() -> Code = |real| exposes(real, NotDeferred::Tool);
    fn cuStreamWaitEvent(stream: Stream, event: *mut c_void, flags: c_uint) -> Code
        = |real, stream, _, _| wait_for_event(real, stream, LEGACY);
    fn cuStreamWaitEvent_ptsz(stream: Stream, event: *mut c_void, flags: c_uint) -> Code
        = |real, stream, _, _| wait_for_event(real, stream, PER_THREAD);
    fn cuStreamDestroy(stream: Stream) -> Code = destroy;
    fn cuStreamDestroy_v2(stream: Stream) -> Code = destroy;
    fn cuCtxDestroy(context: Context) -> Code = contexts::destroy;
    fn cuCtxDestroy_v2(context: Context) -> Code = contexts::destroy;
    fn cuDevicePrimaryCtxRelease(device: c_int) -> Code = |real, device| contexts::release_primary(|| waits(real), device);
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Code = |real, device| contexts::release_primary(|| waits(real), device);
    fn cuDevicePrimaryCtxReset(device: c_int) -> Code = contexts::reset_primary;
    fn cuDevicePrimaryCtxReset_v2(device: c_int) -> Code = contexts::reset_primary;
    fn cuStreamBeginCapture_v2(stream: Stream, mode: c_int) -> Code = |real, _, _| waits(|| capture::begin(real));
    fn cuStreamBeginCapture_v2_ptsz(stream: Stream, mode: c_int) -> Code = |real, _, _| waits(|| capture::begin(real));
    fn cuStreamBeginCaptureToGraph(stream: Stream, graph: *mut c_void, dependencies: *const c_void, data: *const c_void, count: usize, mode: c_int) -> Code
        = |real, _, _, _, _, _, _| waits(|| capture::begin(real));
    fn cuStreamBeginCaptureToGraph_ptsz(stream: Stream, graph: *mut c_void, dependencies: *const c_void, data: *const c_void, count: usize, mode: c_int) -> Code
        = |real, _, _, _, _, _, _| waits(|| capture::begin(real));
    fn cuStreamEndCapture(stream: Stream, graph: *mut *mut c_void) -> Code = |real, _, _| capture::end(real);
    fn cuStreamEndCapture_ptsz(stream: Stream, graph: *mut *mut c_void) -> Code = |real, _, _| capture::end(real);
    fn cuMemAlloc_v2(address: *mut usize, bytes: usize) -> Code = swap::allocate;
    fn cuMemAllocManaged(address: *mut usize, bytes: usize, flags: c_uint) -> Code
        = |real, address, bytes, _| memory::allocate_managed(|| exposes(real, NotDeferred::HostMemory), address, bytes);
    fn cuMemAllocPitch_v2(address: *mut usize, pitch: *mut usize, width: usize, height: usize, element: c_uint) -> Code
        = |real, address, pitch, width, height, element| swap::allocate_pitched(|| waits(real), address, pitch, width, height, element);
    fn cuMemFree_v2(address: usize) -> Code = swap::free;
    fn cuArrayCreate_v2(array: *mut usize, shape: *const ArrayShape) -> Code
        = |real, array, shape| arrays::create(|| waits(real), array, shape);
    fn cuArray3DCreate_v2(array: *mut usize, shape: *const ArrayShape3D) -> Code
        = |real, array, shape| arrays::create_levels(|| waits(real), array, shape, 1);
    fn cuArrayDestroy(array: usize) -> Code = |real, array| arrays::destroy(|| waits(real), array);
    fn cuMipmappedArrayCreate(array: *mut usize, shape: *const ArrayShape3D, levels: c_uint) -> Code
        = |real, array, shape, levels| arrays::create_levels(|| waits(real), array, shape, levels);
    fn cuMipmappedArrayDestroy(array: usize) -> Code = |real, array| arrays::destroy(|| waits(real), array);
    fn cuMemCreate(handle: *mut u64, bytes: usize, properties: *const AllocationProperties, flags: u64) -> Code
        = |real, handle, bytes, properties, _| physical::create(real, handle, bytes, properties);
    fn cuMemRelease(handle: u64) -> Code = physical::release;
    fn cuMemRetainAllocationHandle(handle: *mut u64, address: usize) -> Code
        = |real, handle, address| swap::pointers::retain(|| physical::retain(real, handle, address), address);
    fn cuMemMap(address: usize, bytes: usize, offset: usize, handle: u64, flags: u64) -> Code
        = |real, address, bytes, _, handle, _| physical::map(real, address, bytes, handle);
    fn cuMemUnmap(address: usize, bytes: usize) -> Code = |real, address, bytes| physical::unmap(|| waits(real), address, bytes);
    fn cuMemPoolCreate(pool: *mut usize, properties: *const AllocationProperties) -> Code = pools::create;
    fn cuMemPoolDestroy(pool: usize) -> Code = pools::destroy;
    fn cuMemPoolTrimTo(pool: usize, bytes: usize) -> Code = |real, _, _| pools::trim(real);
    fn cuMemAllocAsync(address: *mut usize, bytes: usize, stream: Stream) -> Code
        = |real, _, bytes, stream| pools::allocate(real, bytes, None, stream);
    fn cuMemAllocAsync_ptsz(address: *mut usize, bytes: usize, stream: Stream) -> Code
        = |real, _, bytes, stream| pools::allocate(real, bytes, None, stream);
    fn cuMemAllocFromPoolAsync(address: *mut usize, bytes: usize, pool: usize, stream: Stream) -> Code
        = |real, _, bytes, pool, stream| pools::allocate(real, bytes, Some(pool), stream);
    fn cuMemAllocFromPoolAsync_ptsz(address: *mut usize, bytes: usize, pool: usize, stream: Stream) -> Code
        = |real, _, bytes, pool, stream| pools::allocate(real, bytes, Some(pool), stream);
    fn cuMemFreeAsync(address: usize, stream: Stream) -> Code = |real, address, _| swap::free_async(real, address);
    fn cuMemFreeAsync_ptsz(address: usize, stream: Stream) -> Code = |real, address, _| swap::free_async(real, address);
    fn cuGraphAddMemAllocNode(node: *mut c_void, graph: *mut c_void, dependencies: *const c_void, count: usize, parameters: *mut c_void) -> Code
        = |real, _, _, _, _, _| graphs::add_allocation(real);
    fn cuDeviceGraphMemTrim(device: c_int) -> Code = |real, _| pools::trim(real);
    fn cuMemGetInfo_v2(left: *mut usize, total: *mut usize) -> Code = memory::info;
    fn cuDeviceTotalMem_v2(total: *mut usize, device: c_int) -> Code = memory::total;
    fn cuGetProcAddress(symbol: *const c_char, found: *mut *mut c_void, version: c_int, flags: u64) -> Code
        = get_proc_address;
    fn cuGetProcAddress_v2(symbol: *const c_char, found: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int) -> Code
        = |real, symbol, found, version, flags, _| get_proc_address(real, symbol, found, version, flags);
}

fn config_stream(config: *const LaunchConfig) -> Stream {
    // SAFETY: the program passes the same pointer to the driver, which reads a launch configuration there.
    if config.is_null() { std::ptr::null_mut() } else { unsafe { (*config).stream } }
}

/// The key under which a stream is known. Handles are unique except those of the default streams: each context has a legacy
/// default stream, and each thread has a default stream in each context.
pub(crate) fn stream_key(stream: Stream, default: usize) -> Option<usize> {
    // The address of this variable is unique among the living threads.
    thread_local!(static THREAD_ADDRESS: u8 = const { 0 });
    let handle = if stream.is_null() { default } else { stream.addr() };
    let key = match handle {
        LEGACY => current_context()?.addr() + LEGACY,
        PER_THREAD => {
            let thread = THREAD_ADDRESS.with(|address| std::ptr::from_ref(address).addr());
            thread ^ current_context()?.addr().rotate_left(20)
        }
        _ => handle,
    };
    Some(key)
}

pub(crate) fn current_context() -> Option<Context> {
    let mut context = std::ptr::null_mut();
    // SAFETY: `context` has room for a handle.
    let code = unsafe { vendor::CTX_GET_CURRENT.get()?(&raw mut context) };
    (code == vendor::SUCCESS && !context.is_null()).then_some(context)
}

fn launch(real: impl FnOnce() -> Code, function: *mut c_void, stream: Stream, default: usize) -> Code {
    let Some(runtime) = runtime() else { return real() };
    swap::held(|| {
        queue_hooks::forward_kernel(
            real,
            || kernel_name(function),
            |call, name| {
                let queue = queue_to_launch_on(runtime, stream, default);
                if let Some(queue) = queue.as_ref().and_then(|queue| queue.scheduled()) {
                    queue.launch_kernel(call, name);
                }
            },
        )
    })
}

/// The name of a kernel that was launched, from drivers since version 12.3. A launch accepts handles of two kinds, and each has a function
/// for its name, which rejects the other kind. The driver keeps no last error, so the program does not see that.
#[cold]
fn kernel_name(function: *mut c_void) -> Option<KernelName> {
    let name_by = |name_of: &'static vendor::NameFunction| {
        let mut name = std::ptr::null();
        // SAFETY: the driver has just accepted the handle, and `name` has room for the result.
        let code = unsafe { name_of.get()?(&raw mut name, function) };
        // SAFETY: the driver has stored a C string, which lives as long as the kernel.
        (code == vendor::SUCCESS && !name.is_null()).then(|| unsafe { CStr::from_ptr(name) })
    };
    let name = name_by(&vendor::FUNCTION_NAME).or_else(|| name_by(&vendor::KERNEL_NAME))?;
    Some(KernelName::new(name.to_bytes()))
}

fn launch_graph(real: impl FnOnce() -> Code, stream: Stream, default: usize) -> Code {
    let Some(runtime) = runtime() else { return real() };
    swap::held(|| {
        forward_once(real, |call| {
            let queue = queue_to_launch_on(runtime, stream, default);
            if let Some(path) = queue.as_ref().and_then(|queue| queue.launch_path()) {
                path.launch_large(call);
            }
        })
    })
}

/// The tracked queue of a stream. None for a stream that is being captured: its work is recorded, not run.
#[inline]
fn queue_to_launch_on(runtime: &Runtime, stream: Stream, default: usize) -> Option<Guard<'_, TrackedQueue>> {
    if capture::is_captured(stream) {
        return None;
    }
    let key = stream_key(stream, default)?;
    runtime.queue_or_track(key, || track(runtime, key, stream, default))
}

/// Whether streams are queues of other engines too.
pub(crate) static HAS_OTHER_ENGINES: AtomicBool = AtomicBool::new(false);

/// Calls `wait`, after which the work of a stream has completed if it returns success. That can have been the last work of another engine.
fn observing_other_engines(wait: impl FnOnce() -> Code) -> Code {
    // Relaxed: the queues of other engines have locks of their own.
    if !HAS_OTHER_ENGINES.load(Ordering::Relaxed) {
        return wait();
    }
    queue_hooks::after_wait(wait, |code| *code == vendor::SUCCESS)
}

fn synchronize(real: impl FnOnce() -> Code, stream: Stream, default: usize) -> Code {
    let Some(runtime) = runtime() else { return real() };
    let real = || observing_other_engines(real);
    forward_once(real, |call| {
        let _waiting = runtime.client().deferral().begin_wait();
        if let Some(queue) = stream_key(stream, default).and_then(|key| runtime.queue(key))
            && let Some(path) = queue.launch_path()
        {
            path.synchronized(call);
        }
    })
}

fn query(real: impl FnOnce() -> Code, stream: Stream, default: usize) -> Code {
    if runtime().is_none() {
        return real();
    }
    let real = || observing_other_engines(real);
    waits(|| queue_hooks::query(real, stream_key(stream, default)))
}

/// Calls `real`, which waits for all work of a context, or of the current one.
fn synchronize_device(real: impl FnOnce() -> Code, context: Option<Context>) -> Code {
    let Some(runtime) = runtime() else { return real() };
    let real = || observing_other_engines(real);
    forward_once(real, |call| {
        let _waiting = runtime.client().deferral().begin_wait();
        let device = match context.filter(|context| !context.is_null()) {
            Some(context) => stream::with_current(context, current_device).flatten(),
            None => current_device(),
        };
        if let Some(device) = device {
            runtime.synchronize(device, call);
        }
    })
}

/// The stream waits for another stream, and the event does not identify it. It therefore counts as waiting for every stream of
/// the program: a stream that a running stream waits for must not be stopped.
fn wait_for_event(real: impl FnOnce() -> Code, stream: Stream, default: usize) -> Code {
    let code = waits(real);
    run_isolated(|| {
        if let Some(runtime) =
            runtime().filter(|runtime| code == vendor::SUCCESS && runtime.tracks_dependencies())
            && let Some(key) = stream_key(stream, default)
        {
            runtime.depends_on_any(key);
        }
    });
    code
}

/// Calls `real`, which waits for an event or for the work before a copy.
fn after_wait(real: impl FnOnce() -> Code) -> Code {
    queue_hooks::after_wait(real, |_| true)
}

/// Calls `real`, which queries an event.
fn query_event(real: impl FnOnce() -> Code) -> Code {
    queue_hooks::after_wait(real, |code| *code == vendor::SUCCESS)
}

fn destroy(real: impl FnOnce() -> Code, stream: Stream) -> Code {
    // Destroying a stream ends its capture.
    let is_captured = capture::is_captured(stream);
    let code = forward_once(real, |_| {
        if let Some(runtime) = runtime() {
            runtime.untrack(stream.addr());
            // Other engines can have a queue on the same stream.
            runtime.untrack_all_owned_by(stream.addr());
        }
    });
    if is_captured && code == vendor::SUCCESS {
        capture::ended();
    }
    code
}

/// A stream that the program passes to the C interface. The context of a stream that is not a default stream need not be
/// current.
pub(crate) fn api_queue(stream: Stream) -> Option<ApiQueue> {
    if !LIBRARY.find_loaded("libcuda.so") {
        return None;
    }
    let own_context = (stream.addr() > PER_THREAD).then(|| context_of(stream)).flatten();
    let (key, context) = match own_context {
        Some(context) => (stream.addr(), context),
        None => (stream_key(stream, LEGACY)?, current_context()?),
    };
    let stream = if stream.is_null() { std::ptr::without_provenance_mut(LEGACY) } else { stream };
    Some(ApiQueue::new(key, move || {
        let queue = stream::with_current(context, || CudaStream::new(stream, context)).flatten()?;
        if stream.addr() == PER_THREAD {
            ThreadStreams::add(key);
        }
        Some(queue)
    }))
}

/// The context of a stream that is not a default stream.
pub(crate) fn context_of(stream: Stream) -> Option<Context> {
    let mut context = std::ptr::null_mut();
    // SAFETY: `context` has room for a handle; the driver rejects an invalid stream.
    let code = unsafe { vendor::STREAM_CONTEXT.get()?(stream, &raw mut context) };
    (code == vendor::SUCCESS && !context.is_null()).then_some(context)
}

#[cold]
fn track(runtime: &Runtime, key: usize, stream: Stream, default: usize) -> bool {
    let Some(context) = current_context() else { return false };
    let stream = if stream.is_null() { std::ptr::without_provenance_mut(default) } else { stream };
    let is_tracked = runtime.track(key, || CudaStream::new(stream, context));
    if is_tracked && stream.addr() == PER_THREAD {
        ThreadStreams::add(key);
    }
    is_tracked
}

/// The keys of one thread's default streams, one for each context. The streams are untracked when the thread exits.
#[derive(Default)]
struct ThreadStreams(RefCell<Vec<usize>>);

impl ThreadStreams {
    fn add(key: usize) {
        thread_local!(static STREAMS: ThreadStreams = ThreadStreams::default());
        // Fails on a thread that is exiting, whose streams were untracked already.
        let _ = STREAMS.try_with(|streams| streams.0.borrow_mut().push(key));
    }
}

impl Drop for ThreadStreams {
    fn drop(&mut self) {
        run_isolated(|| {
            if let Some(runtime) = runtime() {
                self.0.borrow().iter().for_each(|key| runtime.untrack(*key));
            }
        });
    }
}

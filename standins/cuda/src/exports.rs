//! The driver's functions: names, signatures, and the version of CUDA since which the plain name means each form.
//!
//! One list generates the exported functions and the table for `cuGetProcAddress`.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::arrays::{self, Descriptor, Descriptor3D};
use crate::code::{self, Code, Outcome, to_code, write_out};
use crate::device::driver_version;
use crate::driver::Handle;
use crate::kernel::LaunchConfig;
use crate::settings::Settings;
use crate::stream::DefaultStream;
use crate::virtual_memory::{self, Access};
use crate::{capture, context, device, event, kernel, memory, pointers, pools, stream, stream_memory_ops};

/// One form of a function.
struct Entry {
    /// The plain name, and the first version in which it means this form.
    name: &'static str,
    since: c_int,
    plain: *const c_void,
    /// The form in which the null stream means the thread's default stream.
    per_thread: Option<*const c_void>,
    own_name: &'static str,
}

// SAFETY: the pointers are addresses of functions, which never change.
unsafe impl Sync for Entry {}

macro_rules! exports {
    (
        alike { $( $name:literal $since:literal: $own:ident($($argument:ident: $kind:ty),*) = $inside:path; )* }
        by_default_stream { $( $sname:literal $ssince:literal: $sown:ident, $sthread:ident($($sargument:ident: $skind:ty),*) = $sinside:path; )* }
    ) => {
        $(
            /// # Safety
            /// The requirements of the vendor's function of this name.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $own($($argument: $kind),*) -> Code {
                // SAFETY: the caller upholds the vendor function's contract; the arguments are passed on unchanged.
                to_code(|| unsafe { $inside($($argument),*) })
            }
        )*
        $(
            /// # Safety
            /// The requirements of the vendor's function of this name.
            #[unsafe(no_mangle)]
            #[allow(clippy::too_many_arguments, reason = "the driver's")]
            pub(crate) unsafe extern "C" fn $sown($($sargument: $skind),*) -> Code {
                // SAFETY: the caller upholds the vendor function's contract; the arguments are passed on unchanged.
                to_code(|| unsafe { $sinside(DefaultStream::Legacy, $($sargument),*) })
            }
            /// # Safety
            /// The requirements of the vendor's function of this name.
            #[unsafe(no_mangle)]
            #[allow(clippy::too_many_arguments, reason = "the driver's")]
            pub(crate) unsafe extern "C" fn $sthread($($sargument: $skind),*) -> Code {
                // SAFETY: the caller upholds the vendor function's contract; the arguments are passed on unchanged.
                to_code(|| unsafe { $sinside(DefaultStream::PerThread, $($sargument),*) })
            }
        )*
        static TABLE: &[Entry] = &[
            $( Entry {
                name: $name,
                since: $since,
                plain: $own as *const c_void,
                per_thread: None,
                own_name: stringify!($own),
            }, )*
            $( Entry {
                name: $sname,
                since: $ssince,
                plain: $sown as *const c_void,
                per_thread: Some($sthread as *const c_void),
                own_name: stringify!($sown),
            }, )*
        ];
    };
}

exports! {
    alike {
        "cuInit" 2000: cuInit(flags: c_uint) = device::init;
        "cuDriverGetVersion" 2020: cuDriverGetVersion(out: *mut c_int) = device::version;
        "cuGetErrorName" 6000: cuGetErrorName(code: Code, out: *mut *const c_char) = code::name;
        "cuGetErrorString" 6000: cuGetErrorString(code: Code, out: *mut *const c_char) = code::text;
        "cuGetProcAddress" 11030: cuGetProcAddress(name: *const c_char, out: *mut *const c_void, version: c_int, flags: u64) = find_old;
        "cuGetProcAddress" 12000: cuGetProcAddress_v2(name: *const c_char, out: *mut *const c_void, version: c_int, flags: u64, status: *mut c_int) = find;
        "cuDeviceGet" 2000: cuDeviceGet(out: *mut c_int, device: c_int) = device::get;
        "cuDeviceGetCount" 2000: cuDeviceGetCount(out: *mut c_int) = device::count;
        "cuDeviceGetName" 2000: cuDeviceGetName(out: *mut c_char, room: c_int, device: c_int) = device::name;
        "cuDeviceGetUuid" 9020: cuDeviceGetUuid(out: *mut [u8; 16], device: c_int) = device::uuid;
        "cuDeviceGetUuid" 11040: cuDeviceGetUuid_v2(out: *mut [u8; 16], device: c_int) = device::uuid;
        "cuDeviceGetAttribute" 2000: cuDeviceGetAttribute(out: *mut c_int, which: c_int, device: c_int) = device::attribute;
        "cuDeviceGetPCIBusId" 4010: cuDeviceGetPCIBusId(out: *mut c_char, room: c_int, device: c_int) = device::bus_id;
        "cuDeviceTotalMem" 3020: cuDeviceTotalMem_v2(out: *mut usize, device: c_int) = device::total_memory;
        "cuDevicePrimaryCtxRetain" 7000: cuDevicePrimaryCtxRetain(out: *mut Handle, device: c_int) = context::retain_primary;
        "cuDevicePrimaryCtxRelease" 7000: cuDevicePrimaryCtxRelease(device: c_int) = context::release_primary;
        "cuDevicePrimaryCtxRelease" 11000: cuDevicePrimaryCtxRelease_v2(device: c_int) = context::release_primary;
        "cuDevicePrimaryCtxReset" 7000: cuDevicePrimaryCtxReset(device: c_int) = context::reset_primary;
        "cuDevicePrimaryCtxReset" 11000: cuDevicePrimaryCtxReset_v2(device: c_int) = context::reset_primary;
        "cuDevicePrimaryCtxGetState" 7000: cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) = context::primary_state;
        "cuCtxCreate" 3020: cuCtxCreate_v2(out: *mut Handle, flags: c_uint, device: c_int) = context::create;
        "cuCtxDestroy" 4000: cuCtxDestroy_v2(context: Handle) = context::destroy;
        "cuCtxGetCurrent" 4000: cuCtxGetCurrent(out: *mut Handle) = context::current;
        "cuCtxSetCurrent" 4000: cuCtxSetCurrent(context: Handle) = context::set_current;
        "cuCtxPushCurrent" 4000: cuCtxPushCurrent_v2(context: Handle) = context::push;
        "cuCtxPopCurrent" 4000: cuCtxPopCurrent_v2(out: *mut Handle) = context::pop;
        "cuCtxGetDevice" 2000: cuCtxGetDevice(out: *mut c_int) = context::device;
        "cuCtxSynchronize" 2000: cuCtxSynchronize() = context::synchronize_current;
        "cuCtxSynchronize" 13000: cuCtxSynchronize_v2(context: Handle) = context::synchronize;
        "cuCtxGetStreamPriorityRange" 5050: cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) = stream::priority_range;
        "cuMemGetInfo" 3020: cuMemGetInfo_v2(left: *mut usize, all: *mut usize) = memory::info;
        "cuMemAlloc" 3020: cuMemAlloc_v2(out: *mut usize, size: usize) = memory::alloc;
        "cuMemFree" 3020: cuMemFree_v2(address: usize) = memory::release;
        "cuMemAllocPitch" 3020: cuMemAllocPitch_v2(out: *mut usize, pitch: *mut usize, width: usize, height: usize, element: c_uint) = memory::alloc_pitch;
        "cuMemAllocManaged" 6000: cuMemAllocManaged(out: *mut usize, size: usize, flags: c_uint) = memory::alloc_managed;
        "cuArrayCreate" 3020: cuArrayCreate_v2(out: *mut Handle, shape: *const Descriptor) = arrays::create;
        "cuArray3DCreate" 3020: cuArray3DCreate_v2(out: *mut Handle, shape: *const Descriptor3D) = arrays::create_3d;
        "cuArrayDestroy" 2000: cuArrayDestroy(array: Handle) = arrays::destroy;
        "cuMipmappedArrayCreate" 5000: cuMipmappedArrayCreate(out: *mut Handle, shape: *const Descriptor3D, levels: c_uint) = arrays::create_mipmapped;
        "cuMipmappedArrayDestroy" 5000: cuMipmappedArrayDestroy(array: Handle) = arrays::destroy;
        "cuMemGetAllocationGranularity" 10020: cuMemGetAllocationGranularity(out: *mut usize, properties: *const virtual_memory::Properties, which: c_int) = virtual_memory::granularity;
        "cuMemCreate" 10020: cuMemCreate(out: *mut Handle, size: usize, properties: *const virtual_memory::Properties, flags: u64) = virtual_memory::create;
        "cuMemRelease" 10020: cuMemRelease(handle: Handle) = virtual_memory::release;
        "cuMemRetainAllocationHandle" 11000: cuMemRetainAllocationHandle(out: *mut Handle, address: *mut c_void) = virtual_memory::retain;
        "cuMemAddressReserve" 10020: cuMemAddressReserve(out: *mut usize, size: usize, alignment: usize, at: usize, flags: u64) = virtual_memory::reserve_addresses;
        "cuMemAddressFree" 10020: cuMemAddressFree(address: usize, size: usize) = virtual_memory::free_addresses;
        "cuMemMap" 10020: cuMemMap(address: usize, size: usize, offset: usize, handle: Handle, flags: u64) = virtual_memory::map;
        "cuMemUnmap" 10020: cuMemUnmap(address: usize, size: usize) = virtual_memory::unmap;
        "cuMemSetAccess" 10020: cuMemSetAccess(address: usize, size: usize, access: *const Access, count: usize) = virtual_memory::set_access;
        "cuMemPoolCreate" 11020: cuMemPoolCreate(out: *mut Handle, properties: *const pools::Properties) = pools::create;
        "cuMemPoolDestroy" 11020: cuMemPoolDestroy(pool: Handle) = pools::destroy;
        "cuMemPoolTrimTo" 11020: cuMemPoolTrimTo(pool: Handle, keep: usize) = pools::trim;
        "cuMemPoolGetAttribute" 11020: cuMemPoolGetAttribute(pool: Handle, which: c_int, out: *mut c_void) = pools::attribute;
        "cuMemPoolSetAttribute" 11020: cuMemPoolSetAttribute(pool: Handle, which: c_int, value: *mut c_void) = pools::set_attribute;
        "cuDeviceGetDefaultMemPool" 11020: cuDeviceGetDefaultMemPool(out: *mut Handle, device: c_int) = pools::default;
        "cuDeviceGetMemPool" 11020: cuDeviceGetMemPool(out: *mut Handle, device: c_int) = pools::current;
        "cuDeviceSetMemPool" 11020: cuDeviceSetMemPool(device: c_int, pool: Handle) = pools::set_current;
        "cuDeviceGetGraphMemAttribute" 11040: cuDeviceGetGraphMemAttribute(device: c_int, which: c_int, out: *mut c_void) = pools::graph_attribute;
        "cuDeviceGraphMemTrim" 11040: cuDeviceGraphMemTrim(device: c_int) = pools::trim_graphs;
        "cuMemAllocHost" 3020: cuMemAllocHost_v2(out: *mut usize, size: usize) = memory::alloc_host;
        "cuMemHostAlloc" 2020: cuMemHostAlloc(out: *mut usize, size: usize, flags: c_uint) = memory::host_alloc;
        "cuMemFreeHost" 2000: cuMemFreeHost(address: *mut c_void) = memory::free_host;
        "cuMemHostRegister" 6050: cuMemHostRegister_v2(address: *mut c_void, size: usize, flags: c_uint) = memory::register;
        "cuMemHostUnregister" 4000: cuMemHostUnregister(address: *mut c_void) = memory::unregister;
        "cuMemHostGetDevicePointer" 3020: cuMemHostGetDevicePointer_v2(out: *mut usize, address: *mut c_void, flags: c_uint) = memory::device_pointer;
        "cuPointerGetAttribute" 4000: cuPointerGetAttribute(out: *mut c_void, which: c_int, address: usize) = pointers::attribute;
        "cuPointerGetAttributes" 7000: cuPointerGetAttributes(count: c_uint, which: *const c_int, out: *const *mut c_void, address: usize) = pointers::attributes;
        "cuMemGetAddressRange" 3020: cuMemGetAddressRange_v2(base: *mut usize, size: *mut usize, address: usize) = pointers::address_range;
        "cuIpcGetMemHandle" 4010: cuIpcGetMemHandle(out: *mut c_void, address: usize) = pointers::ipc_handle;
        "cuModuleLoadData" 2000: cuModuleLoadData(out: *mut Handle, image: *const c_void) = kernel::load;
        "cuModuleLoadDataEx" 2010: cuModuleLoadDataEx(out: *mut Handle, image: *const c_void, count: c_uint, options: *mut c_void, values: *mut c_void) = kernel::load_with_options;
        "cuModuleUnload" 2000: cuModuleUnload(module: Handle) = kernel::unload;
        "cuFuncGetName" 12030: cuFuncGetName(out: *mut *const c_char, function: Handle) = kernel::function_name;
        "cuModuleGetFunction" 2000: cuModuleGetFunction(out: *mut Handle, module: Handle, name: *const c_char) = kernel::function;
        "cuStreamCreate" 2000: cuStreamCreate(out: *mut Handle, flags: c_uint) = stream::create;
        "cuStreamCreateWithPriority" 5050: cuStreamCreateWithPriority(out: *mut Handle, flags: c_uint, priority: c_int) = stream::create_with_priority;
        "cuStreamDestroy" 4000: cuStreamDestroy_v2(stream: Handle) = stream::destroy;
        "cuEventCreate" 2000: cuEventCreate(out: *mut Handle, flags: c_uint) = event::create;
        "cuEventQuery" 2000: cuEventQuery(event: Handle) = event::query;
        "cuEventSynchronize" 2000: cuEventSynchronize(event: Handle) = event::synchronize;
        "cuEventElapsedTime" 2000: cuEventElapsedTime(out: *mut f32, from: Handle, to: Handle) = event::elapsed;
        "cuEventElapsedTime" 12080: cuEventElapsedTime_v2(out: *mut f32, from: Handle, to: Handle) = event::elapsed;
        "cuEventDestroy" 4000: cuEventDestroy_v2(event: Handle) = event::destroy;
        "cuThreadExchangeStreamCaptureMode" 10010: cuThreadExchangeStreamCaptureMode(mode: *mut c_int) = capture::exchange_mode;
        "cuGraphInstantiate" 11000: cuGraphInstantiate_v2(out: *mut Handle, graph: Handle, node: *mut c_void, log: *mut c_void, size: usize) = capture::instantiate_old;
        "cuGraphInstantiate" 12000: cuGraphInstantiateWithFlags(out: *mut Handle, graph: Handle, flags: u64) = capture::instantiate;
        "cuGraphGetNodes" 10000: cuGraphGetNodes(graph: Handle, out: *mut Handle, count: *mut usize) = capture::nodes;
        "cuGraphDestroy" 10000: cuGraphDestroy(graph: Handle) = capture::destroy;
        "cuGraphExecDestroy" 10000: cuGraphExecDestroy(exec: Handle) = capture::destroy_exec;
    }
    by_default_stream {
        "cuMemAllocAsync" 11020: cuMemAllocAsync, cuMemAllocAsync_ptsz(out: *mut usize, size: usize, stream: Handle) = pools::alloc;
        "cuMemAllocFromPoolAsync" 11020: cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz(out: *mut usize, size: usize, pool: Handle, stream: Handle) = pools::alloc_from;
        "cuMemFreeAsync" 11020: cuMemFreeAsync, cuMemFreeAsync_ptsz(address: usize, stream: Handle) = pools::free;
        "cuMemcpyHtoD" 3020: cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds(to: usize, from: *const c_void, length: usize) = memory::to_device;
        "cuMemcpyDtoH" 3020: cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: usize, length: usize) = memory::to_host;
        "cuMemcpyHtoDAsync" 3020: cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz(to: usize, from: *const c_void, length: usize, stream: Handle) = memory::to_device_async;
        "cuMemcpyDtoHAsync" 3020: cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz(to: *mut c_void, from: usize, length: usize, stream: Handle) = memory::to_host_async;
        "cuMemcpyDtoDAsync" 3020: cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz(to: usize, from: usize, length: usize, stream: Handle) = memory::on_device_async;
        "cuMemcpyDtoD" 3020: cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds(to: usize, from: usize, length: usize) = memory::on_device;
        "cuMemsetD32" 3020: cuMemsetD32_v2, cuMemsetD32_v2_ptds(to: usize, value: c_uint, count: usize) = memory::set_words;
        "cuMemsetD32Async" 3020: cuMemsetD32Async, cuMemsetD32Async_ptsz(to: usize, value: c_uint, count: usize, stream: Handle) = memory::set_words_async;
        "cuLaunchKernel" 4000: cuLaunchKernel, cuLaunchKernel_ptsz(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, parameters: *mut *mut c_void, extra: *mut *mut c_void) = kernel::launch;
        "cuLaunchKernelEx" 11060: cuLaunchKernelEx, cuLaunchKernelEx_ptsz(config: *const LaunchConfig, function: Handle, parameters: *mut *mut c_void, extra: *mut *mut c_void) = kernel::launch_configured;
        "cuLaunchCooperativeKernel" 9000: cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, parameters: *mut *mut c_void) = kernel::launch_cooperative;
        "cuLaunchHostFunc" 10000: cuLaunchHostFunc, cuLaunchHostFunc_ptsz(stream: Handle, function: Option<unsafe extern "C" fn(*mut c_void)>, data: *mut c_void) = kernel::launch_host;
        "cuStreamSynchronize" 2000: cuStreamSynchronize, cuStreamSynchronize_ptsz(stream: Handle) = stream::synchronize;
        "cuStreamQuery" 2000: cuStreamQuery, cuStreamQuery_ptsz(stream: Handle) = stream::query;
        "cuStreamGetPriority" 5050: cuStreamGetPriority, cuStreamGetPriority_ptsz(stream: Handle, out: *mut c_int) = stream::priority;
        "cuStreamGetFlags" 5050: cuStreamGetFlags, cuStreamGetFlags_ptsz(stream: Handle, out: *mut c_uint) = stream::flags;
        "cuStreamGetCtx" 9020: cuStreamGetCtx, cuStreamGetCtx_ptsz(stream: Handle, out: *mut Handle) = stream::context;
        "cuStreamWaitEvent" 3020: cuStreamWaitEvent, cuStreamWaitEvent_ptsz(stream: Handle, event: Handle, flags: c_uint) = event::wait;
        "cuEventRecord" 2000: cuEventRecord, cuEventRecord_ptsz(event: Handle, stream: Handle) = event::record;
        "cuEventRecordWithFlags" 11010: cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz(event: Handle, stream: Handle, flags: c_uint) = event::record_with_flags;
        "cuStreamWaitValue32" 8000: cuStreamWaitValue32, cuStreamWaitValue32_ptsz(stream: Handle, address: usize, value: c_uint, flags: c_uint) = stream_memory_ops::wait_value;
        "cuStreamWriteValue32" 8000: cuStreamWriteValue32, cuStreamWriteValue32_ptsz(stream: Handle, address: usize, value: c_uint, flags: c_uint) = stream_memory_ops::write_value;
        "cuStreamWaitValue32" 11070: cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz(stream: Handle, address: usize, value: c_uint, flags: c_uint) = stream_memory_ops::wait_value_v2;
        "cuStreamWriteValue32" 11070: cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz(stream: Handle, address: usize, value: c_uint, flags: c_uint) = stream_memory_ops::write_value_v2;
        "cuStreamBeginCapture" 10010: cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz(stream: Handle, mode: c_int) = capture::begin;
        "cuStreamEndCapture" 10000: cuStreamEndCapture, cuStreamEndCapture_ptsz(stream: Handle, out: *mut Handle) = capture::end;
        "cuStreamIsCapturing" 10000: cuStreamIsCapturing, cuStreamIsCapturing_ptsz(stream: Handle, out: *mut c_int) = capture::is_capturing;
        "cuStreamGetCaptureInfo" 11030: cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz(stream: Handle, status: *mut c_int, id: *mut u64, graph: *mut Handle, dependencies: *mut c_void, count: *mut usize) = capture::capture_info;
        "cuGraphUpload" 11010: cuGraphUpload, cuGraphUpload_ptsz(exec: Handle, stream: Handle) = capture::upload;
        "cuGraphLaunch" 10000: cuGraphLaunch, cuGraphLaunch_ptsz(exec: Handle, stream: Handle) = capture::launch;
    }
}

/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM` and `..._PER_THREAD_DEFAULT_STREAM`.
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;
/// `CUdriverProcAddressQueryResult`.
const FOUND: c_int = 0;
const NOT_FOUND: c_int = 1;
const TOO_OLD: c_int = 2;

/// The form that a plain name means to a program built for a version of CUDA.
fn look_up(name: &str, version: c_int, flags: u64) -> Result<*const c_void, c_int> {
    // Forms that are newer than this driver are not available.
    let version = version.min(driver_version());
    // Some suffixed names are plain names too.
    let named = |entry: &&Entry| entry.name == name || (entry.own_name == name && !name.contains("_v"));
    let missing =
        |entry: &&Entry| entry.own_name.contains("Value32_v2") && !Settings::get().has_memory_ops_v2;
    let known = TABLE.iter().filter(named).filter(|entry| !missing(entry));
    let since = |entry: &Entry| if entry.name == name { entry.since } else { 0 };
    let mut known = known.peekable();
    known.peek().ok_or(NOT_FOUND)?;
    let fits =
        known.filter(|entry| since(entry) <= version).max_by_key(|entry| entry.since).ok_or(TOO_OLD)?;
    let per_thread = (flags & PER_THREAD != 0).then_some(fits.per_thread).flatten();
    Ok(per_thread.unwrap_or(fits.plain))
}

unsafe fn find(
    name: *const c_char,
    out: *mut *const c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> Outcome {
    if name.is_null() || flags & !(LEGACY | PER_THREAD) != 0 {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so the caller guarantees a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default();
    let (address, found) = match look_up(name, version, flags) {
        Ok(address) => (address, FOUND),
        Err(why) => (std::ptr::null(), why),
    };
    // SAFETY: the caller guarantees that it is valid.
    unsafe { write_out(out, address) }?;
    if !status.is_null() {
        // A caller that passes `status` gets the result there instead of an error.
        // SAFETY: not null, so the caller guarantees that it is valid.
        return unsafe { write_out(status, found) };
    }
    if found == FOUND { Ok(()) } else { Err(Code::ERROR_NOT_FOUND) }
}

unsafe fn find_old(name: *const c_char, out: *mut *const c_void, version: c_int, flags: u64) -> Outcome {
    // SAFETY: the caller guarantees that the other arguments are valid.
    unsafe { find(name, out, version, flags, std::ptr::null_mut()) }
}

//! The driver's functions that this platform calls, and the types of the functions that it hooks.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::hooks::functions;

/// `CUresult`.
pub(crate) type Code = c_int;
pub(crate) type Stream = *mut c_void;
pub(crate) type Context = *mut c_void;
pub(crate) type Event = *mut c_void;

pub(crate) const SUCCESS: Code = 0;
/// `CUDA_ERROR_NOT_INITIALIZED`: returned by a hook if the driver's function cannot be found.
pub(crate) const NOT_INITIALIZED: Code = 3;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: Code = 2;

/// `CUDA_ERROR_INVALID_VALUE`.
pub(crate) const INVALID_VALUE: Code = 1;

/// `CUDA_ERROR_NOT_SUPPORTED`.
pub(crate) const NOT_SUPPORTED: Code = 801;

/// `CUDA_ERROR_NOT_READY`: what was queried has not completed.
pub(crate) const NOT_READY: Code = 600;

/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`: handles of the two kinds of default stream. A null stream is one or the
/// other, depending on the function it is passed to.
pub(crate) const LEGACY: usize = 1;
pub(crate) const PER_THREAD: usize = 2;

pub(crate) fn checked(code: Code) -> Result<(), Code> {
    if code == SUCCESS { Ok(()) } else { Err(code) }
}

functions! {
    library super::LIBRARY;

    fn cuCtxGetCurrent(*mut Context) -> Code = CTX_GET_CURRENT;
    fn cuCtxPushCurrent_v2(Context) -> Code = CTX_PUSH;
    fn cuCtxPopCurrent_v2(*mut Context) -> Code = CTX_POP;
    fn cuCtxGetDevice(*mut c_int) -> Code = CTX_GET_DEVICE;
    fn cuDevicePrimaryCtxGetState(c_int, *mut c_uint, *mut c_int) -> Code = PRIMARY_STATE;
    fn cuDeviceGetAttribute(*mut c_int, c_int, c_int) -> Code = DEVICE_ATTRIBUTE;
    fn cuDevicePrimaryCtxRetain(*mut Context, c_int) -> Code = PRIMARY_RETAIN;
    fn cuDevicePrimaryCtxRelease_v2(c_int) -> Code = PRIMARY_RELEASE;
    fn cuDeviceTotalMem_v2(*mut usize, c_int) -> Code = DEVICE_TOTAL;
    fn cuDeviceGetMemPool(*mut usize, c_int) -> Code = DEVICE_POOL;
    fn cuDeviceGetDefaultMemPool(*mut usize, c_int) -> Code = DEVICE_DEFAULT_POOL;
    fn cuDeviceGetGraphMemAttribute(c_int, c_int, *mut u64) -> Code = GRAPH_MEMORY_ATTRIBUTE;
    fn cuMemPoolGetAttribute(usize, c_int, *mut u64) -> Code = POOL_ATTRIBUTE;
    fn cuMemPoolTrimTo(usize, usize) -> Code = POOL_TRIM;
    fn cuEventCreate(*mut Event, c_uint) -> Code = EVENT_CREATE;
    fn cuEventRecord(Event, Stream) -> Code = EVENT_RECORD;
    fn cuEventQuery(Event) -> Code = EVENT_QUERY;
    fn cuStreamQuery(Stream) -> Code = STREAM_QUERY;
    fn cuStreamSynchronize(Stream) -> Code = STREAM_SYNCHRONIZE;
    fn cuStreamGetCtx(Stream, *mut Context) -> Code = STREAM_CONTEXT;
    fn cuStreamIsCapturing(Stream, *mut c_int) -> Code = STREAM_IS_CAPTURING;
    fn cuFuncGetName(*mut *const c_char, *mut c_void) -> Code = FUNCTION_NAME;
    fn cuKernelGetName(*mut *const c_char, *mut c_void) -> Code = KERNEL_NAME;
    fn cuMemHostRegister_v2(*mut c_void, usize, c_uint) -> Code = HOST_REGISTER;
    fn cuMemHostGetDevicePointer_v2(*mut u64, *mut c_void, c_uint) -> Code = HOST_DEVICE_POINTER;
    fn cuMemsetD32Async(u64, c_uint, usize, Stream) -> Code = MEMSET_32_ASYNC;
    fn cuCtxSynchronize() -> Code = CTX_SYNCHRONIZE;
    fn cuDeviceGetCount(*mut c_int) -> Code = DEVICE_COUNT;
    fn cuMemGetAllocationGranularity(*mut usize, *const AllocationProperties, c_int) -> Code = GRANULARITY;
    fn cuMemAddressReserve(*mut usize, usize, usize, usize, u64) -> Code = ADDRESS_RESERVE;
    fn cuMemAddressFree(usize, usize) -> Code = ADDRESS_FREE;
    fn cuMemCreate(*mut u64, usize, *const AllocationProperties, u64) -> Code = PHYSICAL_CREATE;
    fn cuMemRelease(u64) -> Code = PHYSICAL_RELEASE;
    fn cuMemMap(usize, usize, usize, u64, u64) -> Code = MAP;
    fn cuMemUnmap(usize, usize) -> Code = UNMAP;
    fn cuMemSetAccess(usize, usize, *const MemoryAccess, usize) -> Code = SET_ACCESS;
    fn cuMemcpyDtoHAsync_v2(*mut c_void, usize, usize, Stream) -> Code = COPY_TO_HOST;
    fn cuMemcpyHtoDAsync_v2(usize, *const c_void, usize, Stream) -> Code = COPY_TO_DEVICE;
    fn cuStreamCreate(*mut Stream, c_uint) -> Code = STREAM_CREATE;
    fn cuStreamDestroy_v2(Stream) -> Code = STREAM_DESTROY;
    fn cuStreamWriteValue32_v2(Stream, u64, u32, c_uint) -> Code = WRITE_VALUE;
    fn cuStreamWaitValue32_v2(Stream, u64, u32, c_uint) -> Code = WAIT_VALUE;
}

/// A function that returns the name of a kernel.
pub(crate) type NameFunction =
    crate::loader::Function<unsafe extern "C" fn(*mut *const c_char, *mut c_void) -> Code>;

/// The beginning of `CUlaunchConfig`.
#[repr(C)]
pub(crate) struct LaunchConfig {
    shape: [c_uint; 7],
    pub(crate) stream: Stream,
    attributes: *const c_void,
    count: c_uint,
}

const _: () = assert!(std::mem::offset_of!(LaunchConfig, stream) == 32);

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    kind: c_int,
    ordinal: c_int,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: c_int = 1;

impl Location {
    fn of_device(ordinal: c_int) -> Self {
        Self { kind: ON_DEVICE, ordinal }
    }

    /// The ordinal of the device; none for the host.
    pub(crate) fn device(self) -> Option<c_int> {
        (self.kind == ON_DEVICE).then_some(self.ordinal)
    }
}

/// `CUmemAllocationProp`; its first half is also the beginning of `CUmemPoolProps`.
#[repr(C)]
pub(crate) struct AllocationProperties {
    kind: c_int,
    handle_types: c_int,
    pub(crate) location: Location,
    metadata: *mut c_void,
    flags: [u8; 8],
}

const _: () = assert!(size_of::<AllocationProperties>() == 32);

impl AllocationProperties {
    /// Memory of a device.
    pub(crate) fn on_device(device: c_int) -> Self {
        /// `CU_MEM_ALLOCATION_TYPE_PINNED`.
        const PINNED: c_int = 1;
        Self {
            kind: PINNED,
            handle_types: 0,
            location: Location::of_device(device),
            metadata: std::ptr::null_mut(),
            flags: [0; 8],
        }
    }
}

/// `CUmemAccessDesc`.
#[repr(C)]
pub(crate) struct MemoryAccess {
    pub(crate) location: Location,
    flags: c_int,
}

impl MemoryAccess {
    /// A device may read and write.
    pub(crate) fn read_write(device: c_int) -> Self {
        /// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
        const READ_WRITE: c_int = 3;
        Self { location: Location::of_device(device), flags: READ_WRITE }
    }
}

/// `CUipcMemHandle` and `CUipcEventHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IpcHandle(pub(crate) [c_char; 64]);

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ArrayShape {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) format: c_int,
    pub(crate) channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ArrayShape3D {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
    pub(crate) format: c_int,
    pub(crate) channels: c_uint,
    pub(crate) flags: c_uint,
}

/// The name that is passed to `cuGetProcAddress`.
///
/// # Safety
/// `symbol` is null or a C string.
pub(crate) unsafe fn symbol_name<'a>(symbol: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller guarantees a C string.
    (!symbol.is_null()).then(|| unsafe { CStr::from_ptr(symbol) })
}

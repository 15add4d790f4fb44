//! The runtime's functions that this platform calls, and the types of the functions that it hooks.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::runtime_copies;

/// `hipError_t`.
pub(super) type Code = c_int;
pub(super) type Stream = *mut c_void;
pub(super) type Event = *mut c_void;

pub(super) const SUCCESS: Code = 0;
/// `hipErrorOutOfMemory`.
pub(super) const OUT_OF_MEMORY: Code = 2;
/// `hipErrorNotInitialized`: returned by a hook if the runtime's function cannot be found.
pub(super) const NOT_INITIALIZED: Code = 3;
/// `hipErrorNotReady`.
pub(super) const NOT_READY: Code = 600;

/// A function of the runtime that this platform calls, looked up in each copy of the runtime.
pub(super) struct Function<F> {
    name: &'static CStr,
    found: [AtomicPtr<c_void>; runtime_copies::MAX_COPIES],
    kind: PhantomData<F>,
}

impl<F: core::marker::Copy> Function<F> {
    /// # Safety
    /// `F` is the function's type in the vendor's header.
    const unsafe fn new(name: &'static CStr) -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "F is a function pointer") };
        Self {
            name,
            found: [const { AtomicPtr::new(std::ptr::null_mut()) }; runtime_copies::MAX_COPIES],
            kind: PhantomData,
        }
    }

    /// The function of one copy; none if the copy lacks it.
    pub(super) fn of(&self, copy: usize) -> Option<F> {
        let mut found = self.found[copy].load(Ordering::Acquire);
        if found.is_null() {
            found = runtime_copies::look_up(copy, self.name);
            self.found[copy].store(found, Ordering::Release);
        }
        // SAFETY: `F` has the size of a pointer, and the caller of `new` guarantees that it is the function's type.
        (!found.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) })
    }
}

macro_rules! functions {
    ( $( fn $name:ident($($kind:ty),*) = $function:ident; )* ) => { $(
        pub(super) static $function: Function<unsafe extern "C" fn($($kind),*) -> Code> =
            // SAFETY: the list has the types of the vendor's header.
            unsafe { Function::new(crate::hooks::c_name(concat!(stringify!($name), "\0"))) };
    )* };
}

functions! {
    fn hipGetDeviceCount(*mut c_int) = DEVICE_COUNT;
    fn hipGetDevice(*mut c_int) = GET_DEVICE;
    fn hipSetDevice(c_int) = SET_DEVICE;
    fn hipDeviceGetPCIBusId(*mut c_char, c_int, c_int) = PCI_BUS_ID;
    fn hipStreamGetDevice(Stream, *mut c_int) = STREAM_DEVICE;
    fn hipStreamIsCapturing(Stream, *mut c_int) = STREAM_IS_CAPTURING;
    fn hipStreamSynchronize(Stream) = STREAM_SYNCHRONIZE;
    fn hipStreamCreateWithFlags(*mut Stream, c_uint) = STREAM_CREATE;
    fn hipExtStreamCreateWithCUMask(*mut Stream, u32, *const u32) = STREAM_CREATE_WITH_MASK;
    fn hipStreamDestroy(Stream) = STREAM_DESTROY;
    fn hipStreamWaitValue64(Stream, *mut c_void, u64, c_uint, u64) = STREAM_WAIT_VALUE;
    fn hipExtMallocWithFlags(*mut *mut c_void, usize, c_uint) = MALLOC_WITH_FLAGS;
    fn hipMalloc(*mut *mut c_void, usize) = MALLOC;
    fn hipFree(*mut c_void) = FREE;
    fn hipDeviceTotalMem(*mut usize, c_int) = TOTAL_MEMORY;
    fn hipEventCreateWithFlags(*mut Event, c_uint) = EVENT_CREATE;
    fn hipEventRecord(Event, Stream) = EVENT_RECORD;
    fn hipEventQuery(Event) = EVENT_QUERY;
}

/// `hipKernelNameRef`: the name of a function of a module.
pub(super) static NAME_OF_FUNCTION: Function<unsafe extern "C" fn(*mut c_void) -> *const c_char> =
    // SAFETY: the type of the vendor's header.
    unsafe { Function::new(c"hipKernelNameRef") };
/// `hipKernelNameRefByPtr`: the name of the kernel of a host function.
pub(super) static NAME_BY_POINTER: Function<unsafe extern "C" fn(*const c_void, Stream) -> *const c_char> =
    // SAFETY: the type of the vendor's header.
    unsafe { Function::new(c"hipKernelNameRefByPtr") };

/// The functions without which streams cannot be scheduled.
const REQUIRED: [&CStr; 9] = [
    c"hipGetDeviceCount",
    c"hipGetDevice",
    c"hipSetDevice",
    c"hipDeviceGetPCIBusId",
    c"hipStreamGetDevice",
    c"hipStreamIsCapturing",
    c"hipEventCreateWithFlags",
    c"hipEventRecord",
    c"hipEventQuery",
];

/// The first required function that a copy lacks: it is too old, or too new.
pub(super) fn missing_function(copy: usize) -> Option<&'static CStr> {
    REQUIRED.into_iter().find(|name| runtime_copies::look_up(copy, name).is_null())
}

/// `dim3`.
#[derive(Clone, core::marker::Copy)]
#[repr(C)]
pub(super) struct Dim3 {
    x: u32,
    y: u32,
    z: u32,
}

/// `hipPitchedPtr`.
#[derive(Clone, core::marker::Copy)]
#[repr(C)]
pub(super) struct PitchedPointer {
    address: *mut c_void,
    pitch: usize,
    width: usize,
    height: usize,
}

/// `hipExtent`.
#[derive(Clone, core::marker::Copy)]
#[repr(C)]
pub(super) struct Extent {
    width: usize,
    height: usize,
    depth: usize,
}

impl PitchedPointer {
    pub(super) fn address_and_pitch(&self) -> (*mut c_void, usize) {
        (self.address, self.pitch)
    }
}

impl Extent {
    /// Width, height and depth.
    pub(super) fn lengths(self) -> [usize; 3] {
        [self.width, self.height, self.depth]
    }
}

#[cfg(test)]
impl Dim3 {
    pub(super) const ONE: Self = Self { x: 1, y: 1, z: 1 };
}

/// The beginning of `hipLaunchConfig_t` and `HIP_LAUNCH_CONFIG`, which have the stream at the same offset.
#[repr(C)]
pub(super) struct LaunchConfig {
    shape: [u64; 4],
    pub(super) stream: Stream,
}

/// `hipLaunchParams`: one kernel of a launch on several devices.
#[repr(C)]
pub(super) struct LaunchParams {
    function: *const c_void,
    grid: Dim3,
    block: Dim3,
    arguments: *mut *mut c_void,
    shared: usize,
    pub(super) stream: Stream,
}

/// `hipFunctionLaunchParams`: the same for a function of a module.
#[repr(C)]
pub(super) struct FunctionLaunchParams {
    function: *const c_void,
    shape: [c_uint; 7],
    pub(super) stream: Stream,
    arguments: *mut *mut c_void,
}

const _: () = {
    assert!(std::mem::offset_of!(LaunchConfig, stream) == 32);
    assert!(std::mem::offset_of!(LaunchParams, stream) == 48 && size_of::<LaunchParams>() == 56);
    assert!(
        std::mem::offset_of!(FunctionLaunchParams, stream) == 40 && size_of::<FunctionLaunchParams>() == 56
    );
};

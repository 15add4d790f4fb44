//! The driver's functions that we call ourselves, and the types of those that we stand in front of.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::loader::real_dlsym;

pub(crate) type Code = c_int;
pub(crate) type Stream = *mut c_void;
pub(crate) type Context = *mut c_void;
pub(crate) type Event = *mut c_void;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const NOT_READY: Code = 600;
/// `CUDA_ERROR_NOT_INITIALIZED`: what a program gets whose driver library has vanished.
pub(crate) const NOT_INITIALIZED: Code = 3;

/// A function of the driver that we call ourselves, looked up in the copy the program uses.
pub(crate) struct Driver<F> {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
    kind: std::marker::PhantomData<F>,
}

/// The handle of the driver's library, as the program has it loaded.
static LIBRARY: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The copy of the driver's library that the program uses: the one its functions came from. We never open one by name.
fn library() -> *mut c_void {
    let known = LIBRARY.load(Ordering::Acquire);
    if !known.is_null() {
        return known;
    }
    let Some(function) = super::any_real() else { return known };
    // SAFETY: all zero is a valid value of this plain struct of addresses.
    let mut whose: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the place is large enough; the address may be any.
    if unsafe { libc::dladdr(function, &raw mut whose) } == 0 || whose.dli_fname.is_null() {
        return known;
    }
    // SAFETY: `dli_fname` is the C string the loader keeps for a library that is loaded; nothing new is loaded.
    let handle = unsafe { libc::dlopen(whose.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    LIBRARY.store(handle, Ordering::Release);
    handle
}

impl<F: Copy> Driver<F> {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()), kind: std::marker::PhantomData }
    }

    /// The function; none before the library is known, or if it lacks it.
    pub(crate) fn get(&self) -> Option<F> {
        let mut found = self.found.load(Ordering::Acquire);
        if found.is_null() {
            let library = library();
            if library.is_null() {
                return None;
            }
            // SAFETY: the handle is one the loader gave us and that is never closed; the name is a C string.
            found = unsafe { real_dlsym()(library, self.name.as_ptr()) };
            self.found.store(found, Ordering::Release);
        }
        // SAFETY: `F` is the type the driver's header gives this function, see the list below.
        (!found.is_null()).then(|| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) })
    }
}

type OnEvent = unsafe extern "C" fn(Event) -> Code;

pub(crate) static CTX_GET_CURRENT: Driver<unsafe extern "C" fn(*mut Context) -> Code> =
    Driver::new(c"cuCtxGetCurrent");
pub(crate) static CTX_PUSH: Driver<unsafe extern "C" fn(Context) -> Code> =
    Driver::new(c"cuCtxPushCurrent_v2");
pub(crate) static CTX_POP: Driver<unsafe extern "C" fn(*mut Context) -> Code> =
    Driver::new(c"cuCtxPopCurrent_v2");
pub(crate) static CTX_GET_DEVICE: Driver<unsafe extern "C" fn(*mut c_int) -> Code> =
    Driver::new(c"cuCtxGetDevice");
pub(crate) static DEVICE_ATTRIBUTE: Driver<unsafe extern "C" fn(*mut c_int, c_int, c_int) -> Code> =
    Driver::new(c"cuDeviceGetAttribute");
pub(crate) static EVENT_CREATE: Driver<unsafe extern "C" fn(*mut Event, c_uint) -> Code> =
    Driver::new(c"cuEventCreate");
pub(crate) static EVENT_RECORD: Driver<unsafe extern "C" fn(Event, Stream) -> Code> =
    Driver::new(c"cuEventRecord");
pub(crate) static EVENT_QUERY: Driver<OnEvent> = Driver::new(c"cuEventQuery");
pub(crate) static STREAM_SYNCHRONIZE: Driver<unsafe extern "C" fn(Stream) -> Code> =
    Driver::new(c"cuStreamSynchronize");
pub(crate) static STREAM_IS_CAPTURING: Driver<unsafe extern "C" fn(Stream, *mut c_int) -> Code> =
    Driver::new(c"cuStreamIsCapturing");

/// `CUlaunchConfig` as far as we read it.
#[repr(C)]
pub(crate) struct LaunchConfig {
    shape: [c_uint; 7],
    pub(crate) stream: Stream,
    attributes: *const c_void,
    count: c_uint,
}

const _: () = assert!(std::mem::offset_of!(LaunchConfig, stream) == 32);

/// A name as the driver's own look-up function is asked for it.
pub(crate) unsafe fn name<'a>(symbol: *const c_char) -> Option<&'a CStr> {
    // SAFETY: the caller passes what its own caller passed as a C string.
    (!symbol.is_null()).then(|| unsafe { CStr::from_ptr(symbol) })
}

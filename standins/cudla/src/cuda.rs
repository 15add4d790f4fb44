//! The functions of CUDA that the library uses, looked up in `libcuda.so.1`.

use std::ffi::{CStr, c_void};

use crate::{CUDA_FAILED, Code, UNSUPPORTED_OPERATION};

type HostFunction = unsafe extern "C" fn(*mut c_void);

/// A function of CUDA, by its type.
///
/// # Safety
/// `F` is the type of the function in the vendor's header.
unsafe fn function<F: Copy>(name: &CStr) -> Result<F, Code> {
    // SAFETY: C strings. Loading runs the library's constructors only.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return Err(CUDA_FAILED);
    }
    // SAFETY: the handle is valid, and the name is a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    // SAFETY: the caller vouches for the type, which is that of a function pointer.
    if found.is_null() { Err(CUDA_FAILED) } else { Ok(unsafe { std::mem::transmute_copy(&found) }) }
}

/// Whether CUDA has a current context, which the hybrid mode needs.
pub(crate) fn check_context() -> Result<(), Code> {
    let mut context = std::ptr::null_mut();
    // SAFETY: the type in the vendor's header; `context` has room for a handle.
    let code = unsafe {
        function::<unsafe extern "C" fn(*mut *mut c_void) -> i32>(c"cuCtxGetCurrent")?(&raw mut context)
    };
    if code == 0 && !context.is_null() { Ok(()) } else { Err(CUDA_FAILED) }
}

/// Whether a stream accepts tasks.
pub(crate) fn check_stream(stream: *mut c_void) -> Result<(), Code> {
    let mut status = 0;
    // SAFETY: the type in the vendor's header; `status` has room for a number, and the program passes a stream.
    let code = unsafe {
        function::<unsafe extern "C" fn(*mut c_void, *mut i32) -> i32>(c"cuStreamIsCapturing")?(
            stream,
            &raw mut status,
        )
    };
    match (code, status) {
        (0, 0) => Ok(()),
        (0, _) => Err(UNSUPPORTED_OPERATION),
        _ => Err(CUDA_FAILED),
    }
}

/// Has the stream call a function when the work before it has completed. The work behind it waits until the function returns.
pub(crate) fn call_in_stream(stream: *mut c_void, work: HostFunction, data: *mut c_void) -> Result<(), Code> {
    type Launch = unsafe extern "C" fn(*mut c_void, HostFunction, *mut c_void) -> i32;
    // SAFETY: the type in the vendor's header; the program passes a stream, and the caller a function for `data`.
    let code = unsafe { function::<Launch>(c"cuLaunchHostFunc")?(stream, work, data) };
    if code == 0 { Ok(()) } else { Err(CUDA_FAILED) }
}

//! The C interface of `libxsched.so`: the copy that is loaded in this process if there is one, else the package's copy.
//!
//! `xsched run` preloads it. Only a preloaded library intercepts the driver: a copy that is loaded later serves programs
//! that submit commands to it, and holds no other launches.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use pyo3::prelude::*;

use crate::errors::exception;

const FILE: &str = "libxsched.so";

/// `XResult`: 0, or an error code.
pub(crate) type Code = c_int;
/// `XQueueHandle`, `HwQueueHandle`.
pub(crate) type Handle = u64;

/// `XResult F(Handle*, HANDLE, ...)`: creates or finds the handle for a vendor's stream.
pub(crate) type Wrap = unsafe extern "C" fn(*mut Handle, *mut c_void) -> Code;
/// `XResult F(Handle)`.
pub(crate) type Act = unsafe extern "C" fn(Handle) -> Code;
/// `XResult F(Handle, int64_t)`.
pub(crate) type ActWith = unsafe extern "C" fn(Handle, i64) -> Code;
/// `XResult F(Handle, int32_t)`.
pub(crate) type Level = unsafe extern "C" fn(Handle, c_int) -> Code;
/// `XQueueCreate`.
pub(crate) type Create = unsafe extern "C" fn(*mut Handle, Handle, i64, i64) -> Code;
/// `XQueueGet`.
pub(crate) type Find = unsafe extern "C" fn(*mut Handle, Handle) -> Code;
/// `XQueueQuery`.
pub(crate) type Query = unsafe extern "C" fn(Handle, *mut c_int) -> Code;
/// `XQueueSetLaunchConfig`.
pub(crate) type Configure = unsafe extern "C" fn(Handle, i64, i64) -> Code;
/// `XHintLaxity`.
pub(crate) type Laxity = unsafe extern "C" fn(Handle, i64, i32, i32) -> Code;

/// `XSchedLastError`.
type LastError = unsafe extern "C" fn() -> *const c_char;

/// A loaded library.
pub(crate) struct Library {
    /// The scope that `dlsym` searches.
    scope: usize,
    /// The library's description in error messages.
    description: String,
    /// It was loaded before this module, and therefore intercepts the driver.
    pub(crate) preloaded: bool,
}

/// The library, loaded if necessary.
pub(crate) fn library(py: Python<'_>) -> PyResult<&'static Library> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        if !address(libc::RTLD_DEFAULT, c"XQueueCreate").is_null() {
            let description = "the libxsched.so in this process".to_owned();
            return Ok(Library {
                scope: libc::RTLD_DEFAULT.expose_provenance(),
                description,
                preloaded: true,
            });
        }
        let preloaded = is_loaded_before();
        let path = packaged();
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: a C string; the library's initializers may run on any thread.
        let scope = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if scope.is_null() {
            return Err(format!("cannot load {}: {}", path.display(), loader_error()));
        }
        Ok(Library { scope: scope.expose_provenance(), description: path.display().to_string(), preloaded })
    });
    library.as_ref().map_err(|message| exception(py, "NotSupported", message))
}

impl Library {
    /// A function that must exist.
    ///
    /// # Safety
    /// `F` must be the type of the function of this name in the C interface.
    pub(crate) unsafe fn function<F: Copy>(&self, py: Python<'_>, name: &CStr) -> PyResult<F> {
        // SAFETY: the caller guarantees the type.
        unsafe { self.find(name) }.ok_or_else(|| {
            let name = name.to_string_lossy();
            let message = format!("{} has no function {name}: its version is too old", self.description);
            exception(py, "NotSupported", &message)
        })
    }

    /// The library's message for the last failure on this thread, if there is one.
    pub(crate) fn last_error(&self) -> Option<String> {
        // SAFETY: its type in xsched/extra.h.
        let last_error = unsafe { self.find::<LastError>(c"XSchedLastError") }?;
        // SAFETY: may be called at any time; the text stays valid until this thread's next failure.
        let text = unsafe { last_error() };
        if text.is_null() {
            return None;
        }
        // SAFETY: as above.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        (!text.is_empty()).then(|| text.into_owned())
    }

    /// A function that may be missing.
    ///
    /// # Safety
    /// As of [`function`](Self::function).
    pub(crate) unsafe fn find<F: Copy>(&self, name: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "F is a function") };
        let found = address(std::ptr::with_exposed_provenance_mut(self.scope), name);
        // SAFETY: of a pointer's size, not null, and a function of this type as the caller guarantees.
        (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
    }
}

fn address(scope: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: a C string, and a scope of the loader.
    unsafe { libc::dlsym(scope, name.as_ptr()) }
}

fn loader_error() -> String {
    // SAFETY: the loader's text, which stays valid until this thread's next call of the loader.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the dynamic loader gives no reason".to_owned();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The path of the package's copy of the library, or `XSCHED_LIBRARY` if that is set.
fn packaged() -> PathBuf {
    if let Some(named) = std::env::var_os("XSCHED_LIBRARY") {
        return named.into();
    }
    let mut found = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    let here = packaged as fn() -> PathBuf as *const c_void;
    // SAFETY: an address in this library, and a valid output.
    if unsafe { libc::dladdr(here, &raw mut found) } == 0 || found.dli_fname.is_null() {
        return PathBuf::from(FILE);
    }
    // SAFETY: the loader's text, which stays valid while this library is loaded.
    let native = unsafe { CStr::from_ptr(found.dli_fname) };
    let directory = Path::new(OsStr::from_bytes(native.to_bytes())).parent().unwrap_or(Path::new("."));
    directory.join("lib").join(FILE)
}

/// Whether the library was loaded in this process before this module loaded its copy.
fn is_loaded_before() -> bool {
    static BEFORE: OnceLock<bool> = OnceLock::new();
    *BEFORE.get_or_init(is_loaded)
}

/// Whether a file of the library's name is loaded in this process.
fn is_loaded() -> bool {
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
        // SAFETY: the loader passes a complete record.
        let name: *const c_char = unsafe { (*info).dlpi_name };
        if name.is_null() {
            return 0;
        }
        // SAFETY: the loader's text.
        let path = unsafe { CStr::from_ptr(name) }.to_bytes();
        let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        // A program that is linked to the library loads it by its versioned name.
        if file == FILE.as_bytes() || file.starts_with(b"libxsched.so.") {
            // SAFETY: the flag that `is_loaded` passed.
            unsafe { *found.cast::<bool>() = true };
            return 1;
        }
        0
    }
    let mut found = false;
    // SAFETY: `visit` has the required type, and the flag lives until the call returns.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
    found
}

/// Whether `libxsched.so` is preloaded in this process, as by `xsched run`, and therefore intercepts the driver.
#[pyfunction]
pub(crate) fn loaded() -> bool {
    !address(libc::RTLD_DEFAULT, c"XQueueCreate").is_null() || is_loaded_before()
}

/// The path of the package's copy of the library, or `XSCHED_LIBRARY` if that is set.
#[pyfunction]
pub(crate) fn library_path() -> PathBuf {
    packaged()
}

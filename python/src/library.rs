//! The C interface of `libxsched.so`: the copy that is in this process if there is one, else the package's own.
//!
//! `xsched run` preloads it. Only a preloaded library stands in front of the driver: a copy that is loaded later serves
//! programs that submit commands to it, and holds nobody's launches.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use pyo3::prelude::*;

use crate::errors::exception;

const FILE: &str = "libxsched.so";

/// What every function of the interface answers: 0, or what went wrong.
pub(crate) type Code = c_int;
/// `XQueueHandle`, `HwQueueHandle`.
pub(crate) type Handle = u64;

/// `XResult F(Handle*, HANDLE, ...)`: makes a handle for the vendor's.
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

/// Where functions are looked up.
pub(crate) struct Library {
    /// What `dlsym` searches.
    scope: usize,
    /// In words, for errors.
    place: String,
    /// It was there before us, and so stands in front of the driver.
    pub(crate) preloaded: bool,
}

/// The library, loaded if need be.
pub(crate) fn library(py: Python<'_>) -> PyResult<&'static Library> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        if !address(libc::RTLD_DEFAULT, c"XQueueCreate").is_null() {
            let place = "the libxsched.so in this process".to_owned();
            return Ok(Library { scope: libc::RTLD_DEFAULT.expose_provenance(), place, preloaded: true });
        }
        let preloaded = is_loaded_before();
        let path = packaged();
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: a path that ends with a zero; the library's initialisers may run on any thread.
        let scope = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if scope.is_null() {
            return Err(format!("cannot load {}: {}", path.display(), loader_words()));
        }
        Ok(Library { scope: scope.expose_provenance(), place: path.display().to_string(), preloaded })
    });
    library.as_ref().map_err(|words| exception(py, "NotSupported", words))
}

impl Library {
    /// A function that has to be there.
    ///
    /// # Safety
    /// `F` has to be the type the function of this name has in the C interface.
    pub(crate) unsafe fn function<F: Copy>(&self, py: Python<'_>, name: &CStr) -> PyResult<F> {
        // SAFETY: the caller's word.
        unsafe { self.find(name) }.ok_or_else(|| {
            let words =
                format!("{} has no {}: it is of a version without it", self.place, name.to_string_lossy());
            exception(py, "NotSupported", &words)
        })
    }

    /// What the library says about the last failure on this thread, if it says anything.
    pub(crate) fn last_error(&self) -> Option<String> {
        // SAFETY: its type in xsched/extra.h.
        let tell = unsafe { self.find::<LastError>(c"XSchedLastError") }?;
        // SAFETY: may be called at any time; what it answers stays until this thread's next failure.
        let words = unsafe { tell() };
        if words.is_null() {
            return None;
        }
        // SAFETY: as above.
        let words = unsafe { CStr::from_ptr(words) }.to_string_lossy();
        (!words.is_empty()).then(|| words.into_owned())
    }

    /// A function that may be there.
    ///
    /// # Safety
    /// As of [`function`](Self::function).
    pub(crate) unsafe fn find<F: Copy>(&self, name: &CStr) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "F is a function") };
        let found = address(std::ptr::with_exposed_provenance_mut(self.scope), name);
        // SAFETY: of a pointer's size, not null, and a function of this type by the caller's word.
        (!found.is_null()).then(|| unsafe { std::mem::transmute_copy(&found) })
    }
}

fn address(scope: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: a name that ends with a zero, and a scope the loader knows.
    unsafe { libc::dlsym(scope, name.as_ptr()) }
}

fn loader_words() -> String {
    // SAFETY: the loader's own text, which stays until this thread's next call of the loader.
    let words = unsafe { libc::dlerror() };
    if words.is_null() {
        return "the loader does not say why".to_owned();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
}

/// The library that came with this package, unless another one is named.
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
    // SAFETY: an address of this very library, and room for the answer.
    if unsafe { libc::dladdr(here, &raw mut found) } == 0 || found.dli_fname.is_null() {
        return PathBuf::from(FILE);
    }
    // SAFETY: the loader's own text, which stays for as long as this library is loaded.
    let native = unsafe { CStr::from_ptr(found.dli_fname) };
    let directory = Path::new(OsStr::from_bytes(native.to_bytes())).parent().unwrap_or(Path::new("."));
    directory.join("lib").join(FILE)
}

/// Whether the library was in this process before we loaded a copy of our own.
fn is_loaded_before() -> bool {
    static BEFORE: OnceLock<bool> = OnceLock::new();
    *BEFORE.get_or_init(is_loaded)
}

/// Whether a file of the library's name is among those the loader has in this process.
fn is_loaded() -> bool {
    unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
        // SAFETY: the loader hands over a whole record.
        let name: *const c_char = unsafe { (*info).dlpi_name };
        if name.is_null() {
            return 0;
        }
        // SAFETY: the loader's own text.
        let path = unsafe { CStr::from_ptr(name) }.to_bytes();
        let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        // A program that is linked to it asks for it with its version.
        if file == FILE.as_bytes() || file.starts_with(b"libxsched.so.") {
            // SAFETY: the flag that `is_loaded` handed over.
            unsafe { *found.cast::<bool>() = true };
            return 1;
        }
        0
    }
    let mut found = false;
    // SAFETY: `look` is of the type asked for, and the flag lives until the call returns.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
}

/// Whether `libxsched.so` stands in front of the driver in this process, as under `xsched run`.
#[pyfunction]
pub(crate) fn loaded() -> bool {
    !address(libc::RTLD_DEFAULT, c"XQueueCreate").is_null() || is_loaded_before()
}

/// The path of the library that came with this package, unless `XSCHED_LIBRARY` names another.
#[pyfunction]
pub(crate) fn library_path() -> PathBuf {
    packaged()
}

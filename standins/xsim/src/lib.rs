//! `libxsim.so`: the simulated device behind a small C interface, as a vendor would provide it; see `xsim.h`.
//!
//! As a vendor's library, it is not aware of scheduling. Handles are pointers to heap objects that begin with a type tag.
//! There is no table of handles, so that a fork cannot leave a lock held in the child.

mod driver;
mod event;
mod failure;
mod handle;
mod queue;

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use xsched_sim::{Config, SimDevice};

use failure::{Code, Failure, to_code};
use handle::{Handle, Object};

/// An opened device.
pub(crate) struct Device(pub(crate) SimDevice);

impl Object for Device {
    const MAGIC: u64 = u64::from_le_bytes(*b"xsimdev ");
}

/// Opens the device at a path, or at the path in `XSIM_DEVICE`.
///
/// # Safety
/// `path` is null or a C string; `device` is null or is valid for a write.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_open(path: *const c_char, device: *mut *mut Handle<Device>) -> Code {
    to_code(|| {
        let path = if path.is_null() {
            std::env::var_os("XSIM_DEVICE").map(PathBuf::from).ok_or_else(|| {
                Failure::new(Code::NoDevice, "no path was given, and XSIM_DEVICE is not set")
            })?
        } else {
            // SAFETY: not null, so the caller guarantees a C string.
            PathBuf::from(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()))
        };
        let opened = Device(open_or_create(&path)?);
        // SAFETY: the caller guarantees that `device` is valid.
        unsafe { handle::create(device, opened) }
    })
}

fn open_or_create(path: &Path) -> Result<SimDevice, Failure> {
    let failed = |error: xsched_sim::AttachError| Failure::new(Code::NoDevice, error.to_string());
    if !path.exists() {
        // If another process creates it at the same time, opening it succeeds.
        if let Ok(created) = SimDevice::create_at(path, &Config::default()) {
            return Ok(created);
        }
    }
    SimDevice::open(path).map_err(failed)
}

/// Closes a device. Its queues stay valid.
///
/// # Safety
/// `device` came from [`xsim_open`] and was not closed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_close(device: *mut Handle<Device>) -> Code {
    // SAFETY: the caller guarantees that the handle is valid.
    to_code(|| unsafe { handle::destroy(device) }.map(drop))
}

/// The message of this thread's last error.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn xsim_last_error() -> *const c_char {
    failure::last()
}

/// A vendor's library reports that memory is used up; it does not abort the program.
#[global_allocator]
static ALLOCATOR: xsched_interpose::ReserveAllocator = xsched_interpose::ReserveAllocator::new();

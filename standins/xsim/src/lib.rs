//! `libxsim.so`: the simulated device behind a small C interface, as a vendor would ship one; see `xsim.h`.
//!
//! Knows nothing of scheduling, as a vendor's library does not. Handles are pointers to heap objects that begin with a
//! word telling what they are; no table of them exists, so that no lock is left behind by a fork.

mod driver;
mod event;
mod failure;
mod handle;
mod queue;

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use xsched_sim::{Config, SimDevice};

use failure::{Code, Failure, answer};
use handle::{Handle, Object};

/// An opened device.
pub(crate) struct Device(pub(crate) SimDevice);

impl Object for Device {
    const MAGIC: u64 = u64::from_le_bytes(*b"xsimdev ");
}

/// Opens the device at a path, or the one the environment names.
///
/// # Safety
/// `path` is null or a C string; `device` is null or points at room for a handle.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn xsim_open(path: *const c_char, device: *mut *mut Handle<Device>) -> Code {
    answer(|| {
        let path = if path.is_null() {
            std::env::var_os("XSIM_DEVICE").map(PathBuf::from).ok_or_else(|| {
                Failure::new(Code::NoDevice, "neither a path was given nor is XSIM_DEVICE set")
            })?
        } else {
            // SAFETY: not null, so the caller vouches for a C string.
            PathBuf::from(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()))
        };
        let opened = Device(open_or_make(&path)?);
        // SAFETY: the caller vouches for `device`.
        unsafe { handle::give(device, opened) }
    })
}

fn open_or_make(path: &Path) -> Result<SimDevice, Failure> {
    let failed = |error: xsched_sim::AttachError| Failure::new(Code::NoDevice, error.to_string());
    if !path.exists() {
        // Another process may be making it at this moment: then opening it succeeds.
        if let Ok(made) = SimDevice::create_at(path, &Config::default()) {
            return Ok(made);
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
    // SAFETY: the caller vouches for the handle.
    answer(|| unsafe { handle::take(device) }.map(drop))
}

/// What the last failure of this thread was, in words.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn xsim_last_error() -> *const c_char {
    failure::last()
}

//! What the stand-ins for vendors' libraries with streams and events share. Their commands run on the simulated device, whose file
//! `XSIM_DEVICE` names.
//!
//! * [`object`]: handles. [`StreamThread`]: a stream, whose thread runs commands in order. [`Event`]: a point that commands can wait for.

mod event;
pub mod object;
mod stream;

use std::path::{Path, PathBuf};

pub use event::Event;
pub use stream::{StreamThread, occupy};
use xsched_sim::{Config, SimDevice};

/// The simulated device that `XSIM_DEVICE` names; created if its file does not exist.
#[must_use]
pub fn open_device() -> Option<SimDevice> {
    open_device_at(&PathBuf::from(std::env::var_os("XSIM_DEVICE")?))
}

/// The simulated device of this file; created if the file does not exist.
#[must_use]
pub fn open_device_at(path: &Path) -> Option<SimDevice> {
    if !path.exists() {
        // If another process creates it at the same time, opening it succeeds.
        if let Ok(created) = SimDevice::create_at(path, &Config::default()) {
            return Some(created);
        }
    }
    SimDevice::open(path).ok()
}

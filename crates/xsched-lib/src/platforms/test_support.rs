//! What the conformance tests of several platforms share: building stand-ins, and using a device exclusively.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Condvar, Mutex};

/// The directory of the libraries that were built with the profile of this test.
pub(crate) fn target_directory() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().and_then(Path::parent).expect("tests are in a subdirectory of the profile's").to_owned()
}

/// Builds stand-ins with the profile of this test. Cargo does not build them for it, because nothing links them.
pub(crate) fn build_standins(packages: &[&str]) {
    let directory = target_directory();
    let profile = directory.file_name().filter(|name| *name != "debug").unwrap_or("dev".as_ref());
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet"]);
    for package in packages {
        cargo.args(["-p", package]);
    }
    cargo.arg("--profile").arg(profile).arg("--target-dir").arg(directory.parent().unwrap());
    assert!(cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
}

/// Exclusive use of the device: preempting all streams of the process has no effect while another test's streams run. Unlike
/// a mutex guard it may be dropped by another thread.
pub(crate) struct ExclusiveDevice(());

static IS_IN_USE: Mutex<bool> = Mutex::new(false);
static RELEASED: Condvar = Condvar::new();

impl ExclusiveDevice {
    /// Waits until no other test of this process uses the device.
    pub(crate) fn acquire() -> Self {
        *RELEASED.wait_while(IS_IN_USE.lock().unwrap(), |in_use| *in_use).unwrap() = true;
        Self(())
    }
}

impl Drop for ExclusiveDevice {
    fn drop(&mut self) {
        *IS_IN_USE.lock().unwrap() = false;
        RELEASED.notify_one();
    }
}

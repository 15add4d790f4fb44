//! What the conformance tests of several platforms share: building stand-ins, and using a device exclusively.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Condvar, Mutex};

use crate::loader::VendorLibrary;

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

/// Calls `open`, which has a stand-in open the simulated device: one that other processes do not find.
pub(crate) fn with_own_device<R>(name: &str, open: impl FnOnce() -> R) -> R {
    // The variable belongs to the whole process, and the stand-ins of several platforms read it.
    static VARIABLE: Mutex<()> = Mutex::new(());
    let _variable = VARIABLE.lock().unwrap();
    let file = std::env::temp_dir().join(format!("xsched-{name}-{}", std::process::id()));
    // SAFETY: the lock keeps the tests of other platforms from changing or reading it meanwhile.
    unsafe { std::env::set_var("XSIM_DEVICE", &file) };
    let opened = open();
    // The stand-in has it open.
    let _ = std::fs::remove_file(file);
    opened
}

/// Builds and loads `libstandin_NAME.so` as the copy of `vendor` that the program uses, and has `open` open its device. Only the first call
/// in a process does this.
pub(crate) fn load_standin(name: &'static str, vendor: &VendorLibrary, open: impl FnOnce()) {
    // Held until the device is open.
    static LOADED: Mutex<Vec<&str>> = Mutex::new(Vec::new());
    let mut loaded = LOADED.lock().unwrap();
    if loaded.contains(&name) {
        return;
    }
    build_standins(&[&format!("xsched-standin-{name}")]);
    let path = target_directory().join(format!("libstandin_{name}.so"));
    let path = CString::new(path.into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: loading runs the library's constructors only.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null(), "{path:?} cannot be loaded");
    // A stand-in may lack some of the hooked functions.
    for hook in vendor.hooks() {
        // SAFETY: the handle is valid, and the name is a C string.
        hook.install(unsafe { crate::loader::real_dlsym()(library, hook.name.as_ptr()) });
    }
    with_own_device(name, open);
    loaded.push(name);
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

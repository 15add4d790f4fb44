//! Several copies of this library in one process, such as a preloaded one and one that a package brings along. The copy that
//! was loaded first schedules, and the other copies only forward; otherwise every launch would be scheduled twice.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU8, Ordering};

use xsched_ipc::report::{Severity, report};

use crate::loaded_libraries::{LoadedLibrary, data_elsewhere};

/// The symbol by which copies find each other: the version as a C string.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "a C symbol")]
pub(crate) static xsched_library_version: [u8; VERSION.len()] = {
    let mut version = [0; VERSION.len()];
    let mut n = 0;
    while n < version.len() {
        version[n] = VERSION.as_bytes()[n];
        n += 1;
    }
    version
};

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
/// The name of the symbol above.
pub(crate) const VERSION_SYMBOL: &CStr = c"xsched_library_version";

const UNKNOWN: u8 = 0;
const ACTIVE: u8 = 1;
const INACTIVE: u8 = 2;
static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Whether another copy was loaded before this one. The order of loading does not change, so it is determined once. The `dlsym`
/// hook calls it: it takes no lock and allocates nothing.
#[inline]
pub(crate) fn is_inactive_duplicate() -> bool {
    match STATE.load(Ordering::Relaxed) {
        UNKNOWN => determine_state(),
        known => known == INACTIVE,
    }
}

#[cold]
fn determine_state() -> bool {
    let is_inactive = data_elsewhere(VERSION_SYMBOL).is_some_and(|(_, before_us)| before_us);
    STATE.store(if is_inactive { INACTIVE } else { ACTIVE }, Ordering::Relaxed);
    is_inactive
}

/// Reports an inactive copy, if there is one. The active copy calls it.
pub(crate) fn report_duplicate() {
    let Some((symbol, _)) = data_elsewhere(VERSION_SYMBOL) else { return };
    // SAFETY: every copy has a C string there.
    let version = unsafe { CStr::from_ptr(symbol.cast::<c_char>()) }.to_string_lossy();
    let (other, own) = (file_of(symbol), file_of((&raw const STATE).cast()));
    report(
        Severity::Warning,
        format_args!(
            "{other} (version {version}) is inactive: {own} was loaded into this process before it; remove one of them"
        ),
    );
}

/// The file of the library that contains an address.
fn file_of(address: *const c_void) -> String {
    let file = LoadedLibrary::containing(address).and_then(LoadedLibrary::file);
    file.map_or_else(|| "libxsched.so".to_owned(), |file| file.to_string_lossy().into_owned())
}

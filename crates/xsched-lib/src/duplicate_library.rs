//! Whether another copy of this library is in the process: then the one that was loaded first does the work, and the others
//! do nothing, or every launch would be scheduled twice.

use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU8, Ordering};

use xsched_ipc::report::{Severity, report};

use crate::loader::elf;

/// By this, copies find each other: a C string of this length.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "a name of C's")]
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
/// The name of the mark above.
pub(crate) const MARK: &CStr = c"xsched_library_version";

const UNKNOWN: u8 = 0;
const FIRST: u8 = 1;
const SPARE: u8 = 2;
static STANDING: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Whether another copy was loaded before this one. What comes later never comes before, so it is looked up once. As the
/// loader's hooks need it: no lock, no allocation.
#[inline]
pub(crate) fn is_inactive_duplicate() -> bool {
    match STANDING.load(Ordering::Relaxed) {
        UNKNOWN => find_out(),
        known => known == SPARE,
    }
}

#[cold]
fn find_out() -> bool {
    let spare = elf::data_elsewhere(MARK).is_some_and(|(_, before_us)| before_us);
    STANDING.store(if spare { SPARE } else { FIRST }, Ordering::Relaxed);
    spare
}

/// Says that another copy is there, if one is, and that it does nothing. For the one that works.
pub(crate) fn report_duplicate() {
    let Some((mark, _)) = elf::data_elsewhere(MARK) else { return };
    // SAFETY: every copy has a C string there.
    let version = unsafe { CStr::from_ptr(mark.cast::<c_char>()) }.to_string_lossy();
    let (other, own) = (file_of(mark), file_of((&raw const STANDING).cast()));
    report(
        Severity::Warning,
        format_args!(
            "{other} (version {version}) does nothing: {own} is in this process too, and came first"
        ),
    );
}

/// The file that an address of a library was loaded from.
fn file_of(address: *const c_void) -> String {
    // SAFETY: all zero is a valid value of this plain struct of addresses.
    let mut whose: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the place is large enough; the address may be any.
    if unsafe { libc::dladdr(address, &raw mut whose) } == 0 || whose.dli_fname.is_null() {
        return "libxsched.so".to_owned();
    }
    // SAFETY: the loader keeps a C string there for a library that is loaded.
    unsafe { CStr::from_ptr(whose.dli_fname) }.to_string_lossy().into_owned()
}

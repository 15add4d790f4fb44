//! Calls of this library's exports by name. A program that is linked to a vendor's library calls the export in its place. What
//! the call would have reached otherwise depends on the calling library: another library may define a function of the same
//! name, and it may call its own. It is determined once for each call site and then stored here.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use xsched_interpose::run_isolated;

use super::{LookupHook, definition_for_caller};

/// A call site of an export, and the function that its calls go to.
struct CallSite {
    /// The return address of the call; 0 for an unused entry.
    return_address: AtomicUsize,
    /// The address of the export's description: one instruction can call several exports through a pointer.
    hook: AtomicUsize,
    /// Null until the entry is complete.
    target: AtomicPtr<c_void>,
}

const CALL_SITES: usize = 4096;
/// How many entries are searched for a call site. One that finds no room is determined again at each call.
const PROBE_LENGTH: usize = 16;
static SITES: [CallSite; CALL_SITES] = [const {
    CallSite {
        return_address: AtomicUsize::new(0),
        hook: AtomicUsize::new(0),
        target: AtomicPtr::new(ptr::null_mut()),
    }
}; CALL_SITES];

fn probe(return_address: usize) -> impl Iterator<Item = &'static CallSite> {
    let hash = (return_address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let start = usize::try_from(hash).unwrap_or(0);
    (0..PROBE_LENGTH).map(move |n| &SITES[(start + n) % CALL_SITES])
}

/// The function that calls of the export described at `hook` go to from this call site. `determine` returns it if it is not
/// known, and whether it is to be stored.
#[inline]
pub(crate) fn target(
    return_address: usize,
    hook: usize,
    determine: impl FnOnce() -> (*mut c_void, bool),
) -> *const c_void {
    for site in probe(return_address) {
        match site.return_address.load(Ordering::Acquire) {
            0 => break,
            other if other != return_address => {}
            _ => {
                // Acquire: pairs with the Release in `store`, so that the other fields are visible with the target.
                let target = site.target.load(Ordering::Acquire);
                if !target.is_null() && site.hook.load(Ordering::Relaxed) == hook {
                    return target;
                }
            }
        }
    }
    let (target, is_final) = determine();
    if is_final {
        store(return_address, hook, target);
    }
    target
}

/// As [`target`], for an export of which the process may have several copies of the vendor's function: the hook of the copy that
/// the caller uses. `missing` is called if the process has none; it is determined again at the next call.
#[inline]
pub(crate) fn target_in_caller_copy<H: LookupHook>(
    return_address: usize,
    hook: &'static H,
    missing: *const c_void,
) -> *const c_void {
    target(return_address, ptr::from_ref(hook).addr(), || {
        let mut target = (missing.cast_mut(), false);
        run_isolated(|| {
            let caller = ptr::without_provenance(return_address);
            let found = definition_for_caller(caller, hook.name(), hook.vendor());
            if !found.is_null() {
                target = (hook.replace(found), true);
            }
        });
        target
    })
}

#[cold]
fn store(return_address: usize, hook: usize, target: *mut c_void) {
    for site in probe(return_address) {
        let claimed =
            site.return_address.compare_exchange(0, return_address, Ordering::AcqRel, Ordering::Acquire);
        if claimed.is_ok() {
            site.hook.store(hook, Ordering::Relaxed);
            site.target.store(target, Ordering::Release);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_is_determined_once_for_each_call_site_and_export() {
        const SITE: usize = 0x7fff_1234_5678;
        let address = |number: usize| ptr::without_provenance_mut::<c_void>(number);
        let known = || unreachable!("the target is known");
        assert_eq!(target(SITE, 1, || (address(10), false)).addr(), 10);
        assert_eq!(target(SITE, 1, || (address(11), true)).addr(), 11, "the first was not final");
        assert_eq!(target(SITE, 2, || (address(12), true)).addr(), 12, "another export");
        assert_eq!(target(SITE, 1, known).addr(), 11);
        assert_eq!(target(SITE, 2, known).addr(), 12);
        // Without room the target is determined each time.
        for hook in 3..40 {
            assert_eq!(target(SITE, hook, || (address(hook), true)).addr(), hook);
        }
        assert_eq!(target(SITE, 39, || (address(7), true)).addr(), 7);
    }
}

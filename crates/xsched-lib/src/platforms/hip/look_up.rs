//! The hooks by name: for the loader's look-up functions, and for the runtime's own.

use std::ffi::{CStr, c_char, c_void};

use super::runtime_copies::{self, Hook};
use super::vendor::{self, Code};
use super::{Call, hooks};
use crate::loader::{HookTable, LookupHook, SymbolName, VendorIdentity};

/// The prefixes of all hooked names.
const PREFIXES: [&[u8]; 2] = [b"hip", b"_Z24hip"];

/// The hook for a name, if there is one.
pub(super) fn hook(name: &CStr) -> Option<&'static Hook> {
    let has_prefix = PREFIXES.into_iter().any(|prefix| name.to_bytes().starts_with(prefix));
    has_prefix.then(|| hooks().find(|hook| hook.name == name)).flatten()
}

/// The hooks, for the look-up functions of the loader.
pub(super) struct HipHooks;

impl HookTable for HipHooks {
    fn find_hook(&self, name: SymbolName) -> Option<&'static dyn LookupHook> {
        if !PREFIXES.into_iter().any(|prefix| name.starts_with(prefix)) {
            return None;
        }
        hooks().find(|hook| name.is(hook.name)).map(|hook| hook as _)
    }
}

impl LookupHook for Hook {
    fn name(&self) -> &'static CStr {
        self.name
    }

    fn vendor(&self) -> &'static VendorIdentity {
        &super::VENDOR
    }

    fn replace(&'static self, found: *mut c_void) -> *mut c_void {
        runtime_copies::put_before(self, found)
    }
}

/// Calls the runtime's own look-up function, and returns the hook of the function that it found.
pub(super) fn get_proc_address(
    call: Call,
    symbol: *const c_char,
    found: *mut *mut c_void,
    per_thread: bool,
) -> Code {
    let code = call.forward();
    if code != vendor::SUCCESS || found.is_null() || symbol.is_null() {
        return code;
    }
    // SAFETY: the runtime has just read a C string at `symbol` and written its result to `found`.
    let (name, address) = unsafe { (CStr::from_ptr(symbol), *found) };
    if address.is_null() {
        return code;
    }
    let find_per_thread =
        || hooks().find(|hook| hook.name.to_bytes().strip_suffix(b"_spt") == Some(name.to_bytes()));
    let per_thread_hook = per_thread.then(find_per_thread).flatten();
    if let Some(hook) = per_thread_hook.or_else(|| hook(name)) {
        // SAFETY: as above.
        unsafe { *found = runtime_copies::put_before(hook, address) };
    }
    code
}

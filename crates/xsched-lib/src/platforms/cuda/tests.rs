//! The functions by which other processes and devices may see the work of a program: each ends the deferral of launches.

use std::ffi::CStr;
use std::ptr::{null, null_mut};

use xsched_core::NotDeferred;

use super::vendor::{Code, IpcHandle};
use super::{LIBRARY, hooked};
use crate::deferral::take_reasons;

/// As a driver that supports nothing.
unsafe extern "C" fn refuse() -> Code {
    801
}

/// Has the hook of this name call [`refuse`].
fn install(name: &CStr) {
    let hook = LIBRARY.hooks().iter().find(|hook| hook.name == name);
    hook.unwrap_or_else(|| panic!("{name:?} has no hook")).install(refuse as *mut _);
}

#[test]
fn every_function_that_shares_memory_or_events_ends_deferral() {
    /// Calls the hook of a function, which finds [`refuse`]. Returns the reasons that it has noted.
    macro_rules! reasons_of {
        ($name:ident($($argument:expr),*)) => {{
            install(crate::hooks::c_name(concat!(stringify!($name), "\0")));
            take_reasons();
            // SAFETY: `refuse` uses no argument.
            assert_eq!(unsafe { hooked::$name($($argument),*) }, 801);
            (stringify!($name), take_reasons())
        }};
    }
    let handle = IpcHandle([0; 64]);
    let exported = [
        reasons_of!(cuIpcGetEventHandle(null_mut(), null_mut())),
        reasons_of!(cuIpcGetMemHandle(null_mut(), 0)),
        reasons_of!(cuIpcOpenEventHandle(null_mut(), handle)),
        reasons_of!(cuIpcOpenMemHandle(null_mut(), handle, 0)),
        reasons_of!(cuIpcOpenMemHandle_v2(null_mut(), handle, 0)),
        reasons_of!(cuMemExportToShareableHandle(null_mut(), 0, 0, 0)),
        reasons_of!(cuMemImportFromShareableHandle(null_mut(), null_mut(), 0)),
        reasons_of!(cuMemPoolExportToShareableHandle(null_mut(), 0, 0, 0)),
        reasons_of!(cuMemPoolImportFromShareableHandle(null_mut(), null_mut(), 0, 0)),
        reasons_of!(cuImportExternalMemory(null_mut(), null())),
        reasons_of!(cuImportExternalSemaphore(null_mut(), null())),
    ];
    for (name, reasons) in exported {
        assert_eq!(reasons, NotDeferred::Exported.bit(), "{name}");
    }
    let peers = [
        reasons_of!(cuCtxEnablePeerAccess(null_mut(), 0)),
        reasons_of!(cuMemPoolSetAccess(0, null(), 0)),
        reasons_of!(cuMulticastCreate(null_mut(), null())),
    ];
    for (name, reasons) in peers {
        assert_eq!(reasons, NotDeferred::PeerAccess.bit(), "{name}");
    }
    assert_eq!(reasons_of!(cuMemSetAccess(0, 0, null(), 0)).1, 0, "no device");
}

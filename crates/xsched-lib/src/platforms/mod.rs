//! The platforms: one directory for each vendor interface, listed in `registry.rs`.
//!
//! A directory contains everything that is specific to its vendor:
//!
//! * `mod.rs`: the hooks, and [`Platform`], which describes the platform to the rest of the library.
//! * `api.rs`: the C functions that make a queue known, and the header that declares them.
//! * `doctor.rs`: the checks of `xsched doctor`. It is compiled into the `xsched` program, not into the library: a missing
//!   or unloadable library is one of the problems that the doctor diagnoses.
//! * `exports.txt`: the symbols that the platform adds to `libxsched.so`.
//! * `conformance.rs`: runs the conformance suite on the platform's queues.
//!
//! No other file of the library names a vendor. `docs/adding-a-platform.md` adds one step by step.

use std::ffi::{CStr, c_void};

#[cfg(test)]
use crate::api::PlatformHeader;
use crate::ioctl::IoctlObserver;
use crate::loader::HookTable;

/// One platform, as the rest of the library uses it.
///
/// It is a static without interior state: the `dlsym` hook reads it, and that hook can run before any constructor.
pub(crate) struct Platform {
    /// The hooks that `dlsym` returns in place of the vendor's functions.
    pub(crate) hooks: &'static [&'static dyn HookTable],
    /// Whether a look-up of a hooked name must return the vendor's function, given the name and an address inside the
    /// calling library. For loaders that look up the same name in each of their drivers.
    pub(crate) bypasses_hook: Option<fn(&CStr, *const c_void) -> bool>,
    /// Sees every `ioctl` call of the process after it returned.
    pub(crate) observe_ioctl: Option<IoctlObserver>,
    /// Called once when the process exits, after the scheduler connection is closed.
    pub(crate) at_exit: Option<fn()>,
    /// The header that declares the platform's C functions.
    #[cfg(test)]
    pub(crate) header: &'static PlatformHeader,
}

#[cfg(test)]
mod test_support;

macro_rules! register {
    ( $( $name:ident ),* $(,)? ) => {
        $( pub(crate) mod $name; )*

        /// All platforms of this build.
        pub(crate) static PLATFORMS: &[&Platform] = &[ $( &$name::PLATFORM ),* ];
    };
}

include!("registry.rs");

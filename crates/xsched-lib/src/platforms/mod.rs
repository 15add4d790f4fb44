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
use crate::loader::{HookTable, VendorIdentity};
use xsched_interpose::HookDomain;

/// One platform, as the rest of the library uses it.
///
/// It is a static without interior state: the `dlsym` hook reads it, and that hook can run before any constructor.
pub(crate) struct Platform {
    /// How the vendor's own library is recognized.
    pub(crate) vendor: &'static VendorIdentity,
    /// The hooks that `dlsym` returns in place of the vendor's functions.
    pub(crate) hooks: &'static [&'static dyn HookTable],
    /// Whether a look-up of a hooked name must return the vendor's function, given the name and an address inside the
    /// calling library. For loaders that look up the same name in each of their drivers.
    pub(crate) bypasses_hook: Option<fn(&CStr, *const c_void) -> bool>,
    /// Sees every `ioctl` call of the process.
    pub(crate) observe_ioctl: Option<&'static IoctlObserver>,
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

        /// The names of all platforms of this build, and of the other module that has hooks.
        const NAMES: &[&str] = &[ $( stringify!($name), )* "collectives" ];

        /// All platforms of this build.
        pub(crate) static PLATFORMS: &[&Platform] = &[ $( &$name::PLATFORM ),* ];
    };
}

include!("registry.rs");

/// The domain of the hooks in a module of a platform: all hooks of one platform belong to one domain.
pub(crate) const fn hook_domain(module: &str) -> HookDomain {
    let (module, mut number) = (module.as_bytes(), 0);
    while number < NAMES.len() {
        let name = NAMES[number].as_bytes();
        let mut at = 0;
        while at + name.len() <= module.len() {
            let is_segment = (at == 0 || module[at - 1] == b':')
                && (at + name.len() == module.len() || module[at + name.len()] == b':');
            let (mut same, mut n) = (is_segment, 0);
            while n < name.len() {
                same = same && module[at + n] == name[n];
                n += 1;
            }
            if same {
                // A platform's number is its position in the registry.
                #[allow(
                    clippy::cast_possible_truncation,
                    reason = "`HookDomain::new` accepts numbers below 32 only"
                )]
                return HookDomain::new(number as u32);
            }
            at += 1;
        }
        number += 1;
    }
    panic!("the module belongs to no platform")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_platform_is_a_domain_of_its_own() {
        let domains: Vec<_> =
            NAMES.iter().map(|name| hook_domain(&format!("xsched::platforms::{name}::hooked"))).collect();
        for (n, domain) in domains.iter().enumerate() {
            assert!(!domains[..n].contains(domain), "{}", NAMES[n]);
        }
    }
}

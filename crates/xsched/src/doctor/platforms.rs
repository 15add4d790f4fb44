//! The probes of the platforms: `crates/xsched-lib/src/platforms/NAME/doctor.rs`.
//!
//! They are compiled into this program, because the doctor has to work where the library is missing or cannot be loaded.

use super::{Check, Machine};

macro_rules! register {
    ( $( $name:ident ),* $(,)? ) => {
        $( mod $name { pub(super) mod doctor; } )*

        /// The findings of every platform of this build.
        pub(super) fn platforms(machine: &Machine) -> Vec<Check> {
            let probes: &[fn(&Machine) -> Vec<Check>] = &[ $( $name::doctor::probe ),* ];
            probes.iter().flat_map(|probe| probe(machine)).collect()
        }
    };
}

include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../xsched-lib/src/platforms/registry.rs"));

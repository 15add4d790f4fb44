//! The native part of the Python package `xsched`: `xsched._native`.
//!
//! * `service`: requests to the scheduler service, with the error messages of the command line.
//! * `hints`: priorities, shares and times as Python passes them.
//! * `library`: the C interface of the `libxsched.so` in this process.
//! * `queue`: control of one stream.
//! * `errors`: the package's exceptions.

mod errors;
mod hints;
mod library;
mod queue;
mod service;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::hints::parse_priority;
    #[pymodule_export]
    use super::library::{library_path, loaded};
    #[pymodule_export]
    use super::queue::Queue;
    #[pymodule_export]
    use super::service::{
        parse_hints, parse_memory, policies, policy, set_own_hints, set_target, suspend_target, tasks,
    };

    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}

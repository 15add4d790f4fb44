//! The native half of the Python package `xsched`: `xsched._native`.
//!
//! * `service`: what is asked of the scheduler service, with the words of the command line.
//! * `hint_request`: priorities, shares and times as Python writes them.
//! * `library`: the C interface of the `libxsched.so` in this process.
//! * `queue`: one stream under control.
//! * `errors`: the package's exceptions.

mod errors;
mod hint_request;
mod library;
mod queue;
mod service;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::hint_request::parse_priority;
    #[pymodule_export]
    use super::library::{library_path, loaded};
    #[pymodule_export]
    use super::queue::Queue;
    #[pymodule_export]
    use super::service::{parse_wishes, policies, policy, set_own, set_target, suspend_target, tasks};

    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}

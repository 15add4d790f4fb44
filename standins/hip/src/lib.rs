//! `libamdhip64.so.6` for the tests: AMD's names and versions in front of the simulated device. Knows nothing of
//! scheduling, and is as unforgiving as the real one where programs that interpose have failed:
//!
//! * what belongs to one copy of the library is unknown to another: functions (98), streams (709), events (400);
//! * the last error stays until it is asked for (`HIP_STANDIN_LAST_ERROR=every` makes every call overwrite it, as before
//!   version 7), and "not ready" is one;
//! * what happens in a stream that is captured becomes part of the graph, whoever does it;
//! * every exported function goes through a table, which is handed to `rocprofiler-register` on first use.
//!
//! Kernels are timed work: `spin` takes its length in nanoseconds as its argument; `fill`, `add` and `increment` really do
//! it; `nothing` does not even reach the device; any other takes 20 us. `HIP_STANDIN_DEVICE` names the device's file, to be shared by processes; `HIP_STANDIN_DEVICES` says how
//! many there are; `HIP_STANDIN_SLOTS` how many slots of the table are shown, up to some that
//! no runtime has yet.
//!
//! The same library is linked once more as `libhsa-runtime64.so.1`, see `hsa.rs`: the runtime below, for programs that use it
//! without HIP.

#![allow(
    clippy::missing_safety_doc,
    clippy::not_unsafe_ptr_arg_deref,
    reason = "a vendor's C interface: each function demands of its pointers what AMD's of the same name does"
)]

mod capture;
mod device;
mod error;
mod event;
mod hsa;
mod kernel;
mod memory;
mod stall;
mod stream;
mod table;

std::arch::global_asm!(include_str!(concat!(env!("OUT_DIR"), "/functions.s")));

//! `libamdhip64.so.6` for the tests: AMD's names and symbol versions in front of the simulated device. It is not aware of
//! scheduling, and is as strict as AMD's runtime where interposed libraries have failed:
//!
//! * Objects of one copy of the library are invalid in another: functions (98), streams (709), events (400).
//! * The last error stays until it is read, and "not ready" is an error. With `HIP_STANDIN_LAST_ERROR=every` every call
//!   overwrites it, as before version 7.
//! * Every operation on a capturing stream becomes part of the graph, whichever library performs it.
//! * Every exported function goes through a table, which is passed to `rocprofiler-register` on first use.
//!
//! Kernels are timed work: `spin` runs for as many nanoseconds as its argument states; `fill`, `add` and `increment` change
//! memory; `nothing` does not reach the device; any other kernel takes 20 us. `HIP_STANDIN_DEVICE` is the path of the
//! device's file, which processes share; `HIP_STANDIN_DEVICES` is the number of GPUs, and `HIP_STANDIN_PARTITIONS` their mode; `HIP_STANDIN_SLOTS` is the number
//! of table slots that tools see, which may exceed those of any released runtime.

#![allow(
    clippy::missing_safety_doc,
    clippy::not_unsafe_ptr_arg_deref,
    reason = "a vendor's C interface: the safety contract of each function is that of AMD's function"
)]

mod attributes;
mod capture;
mod compiler;
mod device;
mod device_memory;
mod effect;
mod error;
mod event;
mod kernel;
mod memory;
mod stall;
mod stream;
mod table;

std::arch::global_asm!(include_str!(concat!(env!("OUT_DIR"), "/functions.s")));

/// A vendor's library reports that memory is used up; it does not abort the program.
#[global_allocator]
static ALLOCATOR: xsched_interpose::ReserveAllocator = xsched_interpose::ReserveAllocator::new();

//! `libhsa-runtime64.so.1` for the tests: a stand-in for AMD's `ROCr`, on which AMD's real HIP runtimes 6.4 and 7.2 run.
//!
//! ```text
//!   program, frameworks, AMD's libraries   real
//!   libamdhip64.so.6 or .7                 real
//!   libhsa-runtime64.so.1                  this library
//!   /dev/kfd, topology                     standins/kfd
//!   GPUs                                   crates/xsched-sim, in files that processes share; standins/amd-machine describes them
//! ```
//!
//! | | here |
//! |---|---|
//! | agents, pools | one agent for each GPU or partition (`amd-machine`), and the CPU; pools with AMD's flags |
//! | queues | rings and `amd_queue_t` in AMD's layout; `processor.rs` executes packets in order on a queue of the simulated device, so processes share a GPU in time, and the driver can stop a queue in the middle of a kernel and resume it. All queues are announced to the driver, with their priorities and masks of compute units |
//! | packets | kernels, barriers (and, or, value); the barrier bit and dependencies hold |
//! | kernels | those of the HIP runtime itself and of tests change memory (`builtin_kernels.rs`); every other kernel is timed work without a result |
//! | signals | `amd_signal_t` in AMD's layout, doorbells that may be written directly, waits for several, handlers on one thread, shared by processes |
//! | times | device and system have one clock, `CLOCK_MONOTONIC`, in nanoseconds; kernels start and end when the simulated device ran them |
//! | copies | threads, one for each engine, after their dependencies, with the right data |
//! | memory | files of the host: exported to other processes, mapped at reserved addresses, not inherited by a child after fork |
//! | code | code objects are loaded: segments, relocations, symbols, variables (`code_object.rs`) |
//! | tools | every function goes through the tables, which tools and `rocprofiler-register` get as from AMD's runtime |
//!
//! Environment variables, besides those of `amd-machine`:
//!
//! * `ROCR_STANDIN_KERNEL_US`: the time of a kernel without a known effect, 20 us if unset.
//! * `ROCR_STANDIN_LEDGER`: a file that gets a line for each completed packet (`ledger.rs`).
//! * `ROCR_STANDIN_QUEUE_FILE`: a file without which no queue is created: a thread that creates one waits for it (`queues.rs`).
//! * `ROCR_STANDIN_VERBOSE`: reports calls of functions that are not implemented.
//! * `ROCR_VISIBLE_DEVICES`: as in AMD's runtime.
//! * `HSA_STANDIN_OLD`: libraries of the process are not searched for tools, as in version 5.2.
//! * `HSA_STANDIN_REGISTER`: `1` passes the tables on as `rocprofiler-register` does; a path passes them to AMD's library.
//! * `HSA_STANDIN_SIZE`: the size of the core table that is reported.
//!
//! Known differences from AMD's runtime:
//!
//! * A kernel occupies the whole GPU: kernels of two queues do not overlap. Priorities and masks of compute units are passed to the
//!   driver but do not change how long a kernel takes.
//! * A kernel object of 1 is a kernel that runs for as many nanoseconds as its first argument states, for programs without code.
//! * A thread that waits actively looks at the value for 5 us and then sleeps, because machines without a GPU have few cores.
//! * Without a function call, a doorbell is noticed within 5 ms.
//! * There are no images, intercept queues, regions, managed memory by page faults, performance counters or PC sampling: the functions
//!   return an error. GPUs report as limits of images those of MI300, which has none.
//! * The memory that a GPU reports as free is reduced by the allocations of the calling process only.
//! * In a child after fork every function that needs a device fails, and waits return at once.
//! * A buffer exported as a file descriptor is the memory of the whole GPU, with the offset of the allocation.

#![allow(
    clippy::missing_safety_doc,
    clippy::not_unsafe_ptr_arg_deref,
    clippy::too_many_arguments,
    clippy::match_same_arms,
    reason = "a vendor's C interface: the arguments and the safety contract of each function are those of AMD's function, \
              and its attributes are listed in their order"
)]

mod address_space;
mod agents;
mod async_handlers;
mod builtin_kernels;
mod code_object;
mod copies;
mod devices;
mod doorbell;
mod driver;
mod executables;
mod ipc;
mod ledger;
mod memory;
mod packets;
mod pools;
mod processor;
mod queues;
mod runtime;
mod signal_functions;
mod signals;
mod status;
mod system;
mod table;
mod threads;
mod tools;
mod vmem;

std::arch::global_asm!(include_str!(concat!(env!("OUT_DIR"), "/functions.s")));

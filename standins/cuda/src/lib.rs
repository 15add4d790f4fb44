//! A stand-in for `libcuda.so.1`, NVIDIA's driver library, for machines without a GPU; see `standin_cuda.h`.
//!
//! ```text
//!   program ─ cuLaunchKernel ... ─► streams (stream.rs) ◄─ executor, a thread per context (executor.rs)
//!      │                                                        │ "has work" / "which context has the device?"
//!      │                                                        ▼
//!      │                              a file shared by all processes (shared.rs): the runlists (runlist.rs)
//!      │                                                        ▲
//!      └─ ioctl (hooked or not) ─► resource manager (rm.rs) ────┘ time slices, disabling of channels
//! ```
//!
//! It behaves as the vendor's driver where programs and schedulers can observe it:
//! - Launches return at once. Streams keep their order, and the default streams their semantics.
//! - Kernels occupy the whole device, one at a time, and change memory when they complete.
//! - Contexts of different processes share the device in time slices, and a context switch costs time.
//! - A process that is killed is removed from the device.
//! - Device memory is limited, and all processes share it.
//!
//! It runs no code: every module that is loaded contains the three kernels of `kernel.rs`.

mod arrays;
mod capture;
mod code;
mod context;
mod device;
mod device_memory;
mod driver;
mod event;
mod executor;
#[allow(non_snake_case, reason = "the vendor's names")]
mod exports;
mod kernel;
mod memory;
#[allow(non_snake_case, reason = "the vendor's names")]
mod nvml;
mod pointers;
mod pools;
mod rm;
mod runlist;
mod settings;
mod shared;
mod stream;
mod stream_memory_ops;
mod virtual_memory;

/// A vendor's library reports that memory is used up; it does not abort the program.
#[global_allocator]
static ALLOCATOR: xsched_interpose::ReserveAllocator = xsched_interpose::ReserveAllocator::new();

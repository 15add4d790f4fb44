//! A stand-in for `libcuda.so.1`, NVIDIA's driver library, for machines without a GPU; see `standin_cuda.h`.
//!
//! ```text
//!   program ─ cuLaunchKernel ... ─► streams (stream.rs) ◄─ executor, a thread per context (executor.rs)
//!      │                                                        │ "I have something to run" / "whose turn is it?"
//!      │                                                        ▼
//!      │                              a file that all processes share (shared.rs): turns by timeslice (turns.rs)
//!      │                                                        ▲
//!      └─ ioctl (hooked or not) ─► resource manager (rm.rs) ────┘ timeslices, stopping channels
//! ```
//!
//! It behaves as the real thing where programs and schedulers can tell: launches return at once, streams keep their order and
//! the default streams their meaning, kernels fill the device one at a time and change memory when they end, processes
//! take turns by timeslice and a change costs time, and a process that is killed is off the device.
//!
//! It does not run code: whatever is loaded as a module has the three kernels of `kernel.rs`.

mod capture;
mod code;
mod context;
mod device;
mod event;
mod executor;
#[allow(non_snake_case, reason = "the vendor's names")]
mod exports;
mod kernel;
mod memory;
mod rm;
mod settings;
mod shared;
mod stream;
mod turns;
mod waits;
mod world;

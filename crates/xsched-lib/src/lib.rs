//! `libxsched.so`: preloaded into a program, it intercepts the program's calls to a vendor's library.
//!
//! The library is a guest in the process. It prints nothing unless `XLOG_LEVEL` requests it, it has no thread, descriptor or
//! connection before the program's first queue or allocation of device memory, and it only forwards once exit has begun.
//! Whatever fails in the library, the vendor's function is called exactly once; only memory beyond a limit is refused without it.
//!
//! * `platforms`: one directory for each vendor interface. No other module names a vendor.
//! * `hooks`: the lists that define hooks.
//! * `queue_hooks`: what hooks do around the vendor's function.
//! * `runtime`: the state that all hooks share: the connection to the scheduler, and the tracked queues.
//! * `tracked_queue`: one tracked queue.
//! * `loader`: the loader's look-up functions, through which most programs reach a vendor's library.
//! * `ioctl`: the C library's function of this name, which platforms observe.
//! * `loaded_libraries`: functions in libraries that a look-up in all libraries does not find.
//! * `duplicate_library`: several copies of this library in one process.
//! * `collectives`: communicators of collectives libraries, by which the scheduler knows the processes of a job.
//! * `deferral`: what ends the deferral of launches of a host-bound program.
//! * `allocations`: the device memory that the program has allocated, for platforms that count it.
//! * `event_queue`, `event_wait_lists`, `info_query`, `driver_callbacks`, `captures`, `object_table`: parts that several platforms can use.
//! * `api`: the C interface, for programs that schedule themselves or give hints.

mod allocations;
mod api;
mod captures;
mod collectives;
mod deferral;
mod driver_callbacks;
mod duplicate_library;
mod event_queue;
mod event_wait_lists;
mod hooks;
mod info_query;
mod ioctl;
mod loaded_libraries;
mod loader;
mod object_table;
mod platforms;
mod queue_hooks;
mod runtime;
mod tracked_queue;

/// A program whose memory is used up is not aborted by an allocation of this library.
#[global_allocator]
static ALLOCATOR: xsched_interpose::ReserveAllocator = xsched_interpose::ReserveAllocator::new();

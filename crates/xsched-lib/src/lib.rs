//! `libxsched.so`: preloaded into programs, it stands between them and the vendor's library.
//!
//! It is a guest there: silent unless asked (`XLOG_LEVEL`), without a thread, a descriptor or a connection before the
//! program's first queue, and out of the way once exit has begun. Whatever goes wrong here, the vendor's function is
//! called exactly once.
//!
//! * `hooks`: how a hook is written: one name in one list, plus one function.
//! * `runtime`: what the hooks share: the connection to the scheduler, and the queues.
//! * `loader`: the loader's look-up function, through which most programs reach their driver.
//! * `api`: the C interface, for programs that schedule themselves or say what they would like.
//! * `copies`: what happens when the library is in a process twice.
//! * `ioctl`: the system's function of this name, which platforms watch.
//! * `around`, `asked`, `callback`, `polled`, `waits`: what the hooks and the queues of most platforms have in common.
//! * `captures`: streams that are being captured, for platforms that have graphs.
//! * `platforms`: one directory for each vendor interface.

mod api;
mod captures;
mod driver_callbacks;
mod duplicate_library;
mod event_queue;
mod event_wait_lists;
mod hooks;
mod info_query;
mod ioctl;
mod loaded_libraries;
mod loader;
mod platforms;
mod queue_hooks;
mod runtime;
mod tracked_queue;

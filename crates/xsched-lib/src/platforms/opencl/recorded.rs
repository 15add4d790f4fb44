//! Command buffers (`cl_khr_command_buffer`): work that is recorded once, and enqueued as one command.
//!
//! Mostly they are enqueued without the name of a queue, to those they were made for. The vendor could be asked which these
//! are, but `PoCL` 3.1 answers with something else: so it is remembered.

use std::collections::HashMap;
use std::ffi::c_uint;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use xsched_interpose::run_isolated;

use super::hardware::OpenCl;
use super::vendor::{Code, Event, Handle, Queue};
use crate::{event_wait_lists, queue_hooks};

/// The queues of each command buffer. What is released stays, until another is made in its place.
static MADE_FOR: LazyLock<Mutex<HashMap<usize, Arc<[Queue]>>>> = LazyLock::new(Mutex::default);

fn made_for() -> MutexGuard<'static, HashMap<usize, Arc<[Queue]>>> {
    MADE_FOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A command buffer is made for these queues.
pub(crate) fn create(
    real: impl FnOnce() -> Handle,
    count: c_uint,
    queues: *const Queue,
    _properties: *const u64,
    _error: *mut Code,
) -> Handle {
    let buffer = real();
    if !buffer.is_none() {
        run_isolated(|| {
            // SAFETY: the vendor has just read the same list.
            let queues = unsafe { event_wait_lists::from_c_list(count, queues) };
            made_for().insert(buffer.addr(), queues.into());
        });
    }
    buffer
}

/// A command buffer passes the gates of all its queues.
pub(crate) fn enqueue(
    real: impl FnOnce() -> Code,
    count: c_uint,
    queues: *const Queue,
    buffer: Handle,
    events: c_uint,
    list: *const Event,
    _event: *mut Event,
) -> Code {
    // SAFETY: the vendor is about to read the same list.
    let named = unsafe { event_wait_lists::from_c_list(count, queues) };
    let made_for = if named.is_empty() { made_for().get(&buffer.addr()).cloned() } else { None };
    let queues = made_for.as_deref().unwrap_or(named);
    for queue in queues {
        // SAFETY: as above.
        unsafe { event_wait_lists::record_dependencies::<OpenCl>(*queue, events, list) };
    }
    queue_hooks::launch_on_all(real, queues)
}

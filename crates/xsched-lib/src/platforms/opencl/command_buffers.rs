//! Command buffers (`cl_khr_command_buffer`): commands that are recorded once and enqueued together.
//!
//! Programs usually enqueue a command buffer without naming its queues: then it goes to the queues that it was created for.
//! Those are recorded here, because `PoCL` 3.1 reports wrong ones.

use std::collections::HashMap;
use std::ffi::c_uint;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use xsched_interpose::run_isolated;

use super::queue::OpenCl;
use super::vendor::{Code, Event, Handle, Queue};
use crate::{event_wait_lists, queue_hooks};

/// The queues of each command buffer, by handle. The entry of a released command buffer stays until its handle is used again.
static QUEUES: LazyLock<Mutex<HashMap<usize, Arc<[Queue]>>>> = LazyLock::new(Mutex::default);

fn queues_of_buffers() -> MutexGuard<'static, HashMap<usize, Arc<[Queue]>>> {
    QUEUES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `real`, which creates a command buffer for these queues.
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
            // SAFETY: the program passed the same list to the vendor's function.
            let queues = unsafe { event_wait_lists::from_c_list(count, queues) };
            queues_of_buffers().insert(buffer.addr(), queues.into());
        });
    }
    buffer
}

/// Calls `real`, which enqueues a command buffer, after the gates of all its queues.
pub(crate) fn enqueue(
    real: impl FnOnce() -> Code,
    count: c_uint,
    queues: *const Queue,
    buffer: Handle,
    events: c_uint,
    list: *const Event,
    _event: *mut Event,
) -> Code {
    // SAFETY: the program passes the same list to the vendor's function.
    let named = unsafe { event_wait_lists::from_c_list(count, queues) };
    let recorded = if named.is_empty() { queues_of_buffers().get(&buffer.addr()).cloned() } else { None };
    let queues = recorded.as_deref().unwrap_or(named);
    for queue in queues {
        // SAFETY: as above.
        unsafe { event_wait_lists::record_dependencies::<OpenCl>(*queue, events, list) };
    }
    queue_hooks::launch_on_all(real, queues)
}

//! Points at which a queue can be stopped: level 2.
//!
//! ```text
//!   kernel kernel MARKER barrier kernel kernel MARKER barrier ...       each barrier waits for a user event of its own,
//!                   │       ▲                    │       ▲              completed when the marker before it is done,
//!                   └───────┘                    └───────┘              or, if the queue is stopped then, when it is let go
//! ```
//! The marker's callback opens its barrier, on the vendor's own thread: nobody of ours has to be awake for a queue that
//! is not stopped to run on.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::hardware::Shared;
use super::vendor::{self, Event, Handle, Queue};

/// The stall points of one queue.
pub(crate) struct Stalls {
    context: Shared,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    stopped: bool,
    /// What the queue has come to while it was stopped.
    closed: Vec<Barrier>,
}

impl Stalls {
    /// Of a queue of this context.
    pub(crate) fn new(context: Handle) -> Arc<Self> {
        Arc::new(Self { context: Shared(context), state: Mutex::default() })
    }

    /// Puts one behind a marker that was just placed. If that cannot be done there is none.
    pub(crate) fn place(self: &Arc<Self>, queue: Queue, marker: Event) {
        let Some(barrier) = Barrier::place(self.context.0, queue) else { return };
        let reached = Box::into_raw(Box::new((Arc::clone(self), barrier)));
        // `CL_COMPLETE`, or a failure.
        // SAFETY: a marker of ours; `reach` takes back what it is given.
        let code =
            vendor::SET_CALLBACK.get().map(|set| unsafe { set(marker, 0, Some(reach), reached.cast()) });
        if code != Some(vendor::SUCCESS) {
            // Dropping a barrier opens it.
            // SAFETY: made above; the vendor refused it.
            drop(unsafe { Box::from_raw(reached) });
        }
    }

    /// Stops the queue at the next point it comes to.
    pub(crate) fn stop(&self) {
        self.state().stopped = true;
    }

    /// Lets the queue run on, past the points it has come to and those before it.
    pub(crate) fn go(&self) {
        let opened = {
            let mut state = self.state();
            state.stopped = false;
            std::mem::take(&mut state.closed)
        };
        drop(opened);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The queue has come to a point.
unsafe extern "C" fn reach(_marker: Event, _status: i32, reached: *mut c_void) {
    // SAFETY: made in `place`; the vendor calls this once for each time it was asked to.
    let (stalls, barrier) = *unsafe { Box::from_raw(reached.cast::<(Arc<Stalls>, Barrier)>()) };
    let mut state = stalls.state();
    if state.stopped {
        state.closed.push(barrier);
    }
}

/// A barrier in a queue, opened when it is dropped.
struct Barrier(Shared);

impl Barrier {
    fn place(context: Handle, queue: Queue) -> Option<Self> {
        let (create, barrier) = (vendor::CREATE_USER_EVENT.get()?, vendor::BARRIER.get()?);
        let mut code = vendor::SUCCESS;
        // SAFETY: the context of the queue, and a place for the code.
        let event = unsafe { create(context, &raw mut code) };
        if event.is_null() {
            return None;
        }
        let placed = Self(Shared(event));
        // SAFETY: a queue that the program has, and a list of one event.
        let code = unsafe { barrier(queue, 1, &raw const event, std::ptr::null_mut()) };
        (code == vendor::SUCCESS).then_some(placed)
    }
}

impl Drop for Barrier {
    fn drop(&mut self) {
        if let (Some(complete), Some(release)) =
            (vendor::COMPLETE_USER_EVENT.get(), vendor::RELEASE_EVENT.get())
        {
            // SAFETY: our own event, completed and given back once.
            unsafe {
                complete(self.0.0, 0);
                release(self.0.0);
            }
        }
    }
}

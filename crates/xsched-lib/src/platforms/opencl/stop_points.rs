//! Points at which a queue can be stopped: level 2.
//!
//! ```text
//!   kernel kernel MARKER barrier kernel kernel MARKER barrier ...
//!                   │       ▲                    │       ▲
//!                   └───────┘                    └───────┘
//! ```
//! Each barrier waits for a user event of its own. The event is set when the marker before the barrier completes; if the queue
//! is stopped then, it is set when the queue resumes.
//! The marker's callback opens the barrier on the vendor's own thread, so a queue that is not stopped depends on no thread
//! of this library.

use std::ffi::{c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::vendor::{self, Code, Event, Handle, Queue};
use crate::event_queue::StopPoints;
use crate::hooks::{call, functions};
use crate::info_query::{InfoQuery, Text};

functions! {
    library super::LIBRARY;

    fn clGetPlatformInfo(Handle, c_uint, usize, *mut c_void, *mut usize) -> Code = OF_PLATFORM;
    fn clEnqueueBarrierWithWaitList(Queue, c_uint, *const Event, *mut Event) -> Code = BARRIER;
    fn clCreateUserEvent(Handle, *mut Code) -> Event = CREATE_USER_EVENT;
    fn clSetUserEventStatus(Event, i32) -> Code = COMPLETE_USER_EVENT;
}

static QUEUE_CONTEXT: InfoQuery<Handle> = InfoQuery::new(&vendor::OF_QUEUE, 0x1090);
static DEVICE_PLATFORM: InfoQuery<Handle> = InfoQuery::new(&vendor::OF_DEVICE, 0x1031);
static PLATFORM_NAME: InfoQuery<Text> = InfoQuery::new(&OF_PLATFORM, 0x0902);

/// The only implementation on which stopping at user events was measured. It keeps the order of commands.
const MEASURED_PLATFORM: &str = "Portable Computing Language";
const NOT_MEASURED: &str = "stopping at user events was not measured on this implementation";

/// The stop points of a queue, or the reason why it has none.
pub(crate) fn stop_points(queue: Queue, device: Handle) -> Result<Arc<dyn StopPoints>, String> {
    let is_measured = |platform| PLATFORM_NAME.text(platform).contains(MEASURED_PLATFORM);
    let is_supported = DEVICE_PLATFORM.of(device).is_some_and(is_measured);
    let context = QUEUE_CONTEXT.of(queue).filter(|_| is_supported);
    let context = context.ok_or_else(|| NOT_MEASURED.to_owned())?;
    Ok(Arc::new(Barriers { context, state: Arc::default() }))
}

struct Barriers {
    context: Handle,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    is_stopped: bool,
    /// A queue without work does not stall: the program may wait for it.
    is_idle: bool,
    /// The barriers that the queue has reached while it was stopped.
    closed: Vec<Barrier>,
}

impl StopPoints for Barriers {
    /// Places no stop point if OpenCL refuses.
    fn place(&self, queue: Queue, marker: Event) {
        let Some(barrier) = Barrier::place(self.context, queue) else { return };
        let reached = Box::into_raw(Box::new((Arc::clone(&self.state), barrier)));
        // Status 0 is `CL_COMPLETE`; the callback is also called if the marker fails.
        // SAFETY: the marker belongs to the caller; `on_reached` frees `reached`.
        if unsafe { call!(vendor::SET_CALLBACK, marker, 0, Some(on_reached), reached.cast()) }.is_err() {
            // Dropping the barrier opens it.
            // SAFETY: allocated above; the vendor refused it.
            drop(unsafe { Box::from_raw(reached) });
        }
    }

    fn stop(&self) {
        self.update(|state| state.is_stopped = true);
    }

    fn resume(&self) {
        self.update(|state| state.is_stopped = false);
    }

    fn set_has_work(&self, has_work: bool) {
        self.update(|state| state.is_idle = !has_work);
    }
}

impl Barriers {
    fn update(&self, change: impl FnOnce(&mut State)) {
        let opened = {
            let mut state = lock(&self.state);
            change(&mut state);
            if state.stalls() { Vec::new() } else { std::mem::take(&mut state.closed) }
        };
        // Dropping the barriers opens them, without the lock.
        drop(opened);
    }
}

impl State {
    fn stalls(&self) -> bool {
        self.is_stopped && !self.is_idle
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Called by the vendor when the queue has reached a stop point.
unsafe extern "C" fn on_reached(_marker: *mut c_void, _status: i32, reached: *mut c_void) {
    // SAFETY: allocated in `place`; the vendor calls this once for each registration.
    let (state, barrier) = *unsafe { Box::from_raw(reached.cast::<(Arc<Mutex<State>>, Barrier)>()) };
    let mut state = lock(&state);
    if state.stalls() {
        state.closed.push(barrier);
    }
}

/// A barrier in a queue. Dropping it opens it.
struct Barrier(Event);

impl Barrier {
    fn place(context: Handle, queue: Queue) -> Option<Self> {
        let mut code = 0;
        // SAFETY: the queue's context; `code` has room for the result.
        let event = unsafe { CREATE_USER_EVENT.get()?(context, &raw mut code) };
        if event.is_none() {
            return None;
        }
        let barrier = Self(event);
        // SAFETY: the caller makes sure that the queue exists; the list has one event.
        unsafe { call!(BARRIER, queue, 1, &raw const event, std::ptr::null_mut()) }.ok()?;
        Some(barrier)
    }
}

impl Drop for Barrier {
    fn drop(&mut self) {
        // SAFETY: `place` created the event; it is completed and released once.
        let _ = unsafe { call!(COMPLETE_USER_EVENT, self.0, 0) };
        // SAFETY: as above.
        let _ = unsafe { call!(vendor::RELEASE_EVENT, self.0) };
    }
}

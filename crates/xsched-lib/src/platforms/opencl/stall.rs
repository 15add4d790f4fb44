//! Points at which a queue can be stopped: level 2.
//!
//! ```text
//!   kernel kernel MARKER barrier kernel kernel MARKER barrier ...       each barrier waits for a user event of its own,
//!                   │       ▲                    │       ▲              completed when the marker before it is done,
//!                   └───────┘                    └───────┘              or, if the queue is stopped then, when it is let go
//! ```
//! The marker's callback opens its barrier, on the vendor's own thread: nobody of ours has to be awake for a queue that
//! is not stopped to run on.

use std::ffi::{c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::vendor::{self, Code, Event, Handle, Queue};
use crate::event_queue::StopPoints;
use crate::hooks::{call, functions};
use crate::info_query::{InfoQuery, Text};

functions! {
    of super::LIBRARY;

    fn clGetPlatformInfo(Handle, c_uint, usize, *mut c_void, *mut usize) -> Code = OF_PLATFORM;
    fn clEnqueueBarrierWithWaitList(Queue, c_uint, *const Event, *mut Event) -> Code = BARRIER;
    fn clCreateUserEvent(Handle, *mut Code) -> Event = CREATE_USER_EVENT;
    fn clSetUserEventStatus(Event, i32) -> Code = COMPLETE_USER_EVENT;
}

static QUEUE_CONTEXT: InfoQuery<Handle> = InfoQuery::new(&vendor::OF_QUEUE, 0x1090);
static DEVICE_PLATFORM: InfoQuery<Handle> = InfoQuery::new(&vendor::OF_DEVICE, 0x1031);
static PLATFORM_NAME: InfoQuery<Text> = InfoQuery::new(&OF_PLATFORM, 0x0902);

/// What a queue stopped at a user event costs here was measured, and it keeps its order.
const STALLS_WELL: &str = "Portable Computing Language";
const NOT_KNOWN: &str = "whether this implementation stops at user events in time is not known";

/// The stop points of a queue on a device; or why there are none.
pub(crate) fn points(queue: Queue, device: Handle) -> Result<Arc<dyn StopPoints>, String> {
    let stalls_well = |platform| PLATFORM_NAME.text(platform).contains(STALLS_WELL);
    let known = DEVICE_PLATFORM.of(device).is_some_and(stalls_well);
    let context = QUEUE_CONTEXT.of(queue).filter(|_| known);
    let context = context.ok_or_else(|| NOT_KNOWN.to_owned())?;
    Ok(Arc::new(Stalls { context, state: Arc::default() }))
}

struct Stalls {
    context: Handle,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    stopped: bool,
    /// The queue has nothing to do: it need not stand, and the program may wait for it.
    has_nothing: bool,
    /// What the queue has come to while it was stopped.
    closed: Vec<Barrier>,
}

impl StopPoints for Stalls {
    /// If that cannot be done there is none.
    fn place(&self, queue: Queue, marker: Event) {
        let Some(barrier) = Barrier::place(self.context, queue) else { return };
        let reached = Box::into_raw(Box::new((Arc::clone(&self.state), barrier)));
        // `CL_COMPLETE`, or a failure.
        // SAFETY: a marker of ours; `reach` takes back what it is given.
        if unsafe { call!(vendor::SET_CALLBACK, marker, 0, Some(reach), reached.cast()) }.is_err() {
            // Dropping a barrier opens it.
            // SAFETY: made above; the vendor refused it.
            drop(unsafe { Box::from_raw(reached) });
        }
    }

    fn stop(&self) {
        self.change(|state| state.stopped = true);
    }

    /// Past the points it has come to and those before it.
    fn go(&self) {
        self.change(|state| state.stopped = false);
    }

    fn set_has_work(&self, has_work: bool) {
        self.change(|state| state.has_nothing = !has_work);
    }
}

impl Stalls {
    fn change(&self, change: impl FnOnce(&mut State)) {
        let opened = {
            let mut state = lock(&self.state);
            change(&mut state);
            if state.stands() { Vec::new() } else { std::mem::take(&mut state.closed) }
        };
        drop(opened);
    }
}

impl State {
    fn stands(&self) -> bool {
        self.stopped && !self.has_nothing
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The queue has come to a point.
unsafe extern "C" fn reach(_marker: *mut c_void, _status: i32, reached: *mut c_void) {
    // SAFETY: made in `place`; the vendor calls this once for each time it was asked to.
    let (state, barrier) = *unsafe { Box::from_raw(reached.cast::<(Arc<Mutex<State>>, Barrier)>()) };
    let mut state = lock(&state);
    if state.stands() {
        state.closed.push(barrier);
    }
}

/// A barrier in a queue, opened when it is dropped.
struct Barrier(Event);

impl Barrier {
    fn place(context: Handle, queue: Queue) -> Option<Self> {
        let mut code = 0;
        // SAFETY: the context of the queue, and a place for the code.
        let event = unsafe { CREATE_USER_EVENT.get()?(context, &raw mut code) };
        if event.is_none() {
            return None;
        }
        let placed = Self(event);
        // SAFETY: a queue that the program has, and a list of one event.
        unsafe { call!(BARRIER, queue, 1, &raw const event, std::ptr::null_mut()) }.ok()?;
        Some(placed)
    }
}

impl Drop for Barrier {
    fn drop(&mut self) {
        // SAFETY: our own event, completed and given back once.
        let _ = unsafe { call!(COMPLETE_USER_EVENT, self.0, 0) };
        // SAFETY: as above.
        let _ = unsafe { call!(vendor::RELEASE_EVENT, self.0) };
    }
}

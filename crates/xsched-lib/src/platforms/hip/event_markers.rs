//! Markers in a stream: events that the runtime thread queries. Where there are stall points, one follows each event.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use xsched_core::Marker;

use super::runtime_thread;
use super::vendor::{self, Code, Event};
use crate::captures::Captures;

/// `hipEventDisableTiming`: the cheapest kind of event.
const DISABLE_TIMING: u32 = 2;
/// How many events are created at a time.
const EVENTS_PER_BATCH: usize = 16;

/// The stream captures of the whole process.
pub(super) static CAPTURES: Captures = Captures::new();

thread_local! {
    /// Whether this thread's last launch failed.
    static LAUNCH_FAILED: Cell<bool> = const { Cell::new(false) };
}

/// Calls the real function of a launch and records whether it failed.
pub(super) fn recording_failure(real: &mut dyn FnMut() -> Code) -> Code {
    let code = real();
    let _ = LAUNCH_FAILED.try_with(|failed| failed.set(code != vendor::SUCCESS));
    code
}

/// Whether this thread may place a marker, or the reason why not. After a failed launch it must not: a successful call could
/// clear the error that the program has yet to read.
pub(super) fn check_may_place() -> Result<(), &'static str> {
    if LAUNCH_FAILED.try_with(|failed| failed.replace(false)).unwrap_or(true) {
        return Err("the launch before it failed, and the marker could replace the program's last error");
    }
    Ok(())
}

/// An event of the runtime.
#[derive(Clone, Copy)]
pub(super) struct EventHandle(pub(super) Event);

// SAFETY: the runtime's functions may be called from any thread.
unsafe impl Send for EventHandle {}

/// Events that no stream uses, by runtime copy and device. They are reused, because creating an event is slow.
static UNUSED_EVENTS: Mutex<Vec<(usize, c_int, EventHandle)>> = Mutex::new(Vec::new());

fn unused_events() -> MutexGuard<'static, Vec<(usize, c_int, EventHandle)>> {
    UNUSED_EVENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a batch of events of a device. For the runtime thread only: an event belongs to the device that is current when
/// it is created, and creating one may fail.
pub(super) fn allocate_events(copy: usize, ordinal: c_int) -> Option<Vec<EventHandle>> {
    let fits = |unused: &mut (usize, c_int, EventHandle)| (unused.0, unused.1) == (copy, ordinal);
    let reused: Vec<_> =
        unused_events().extract_if(.., fits).take(EVENTS_PER_BATCH).map(|(_, _, event)| event).collect();
    if !reused.is_empty() {
        return Some(reused);
    }
    let create = vendor::EVENT_CREATE.of(copy)?;
    // SAFETY: the runtime rejects an ordinal that does not exist.
    if unsafe { vendor::SET_DEVICE.of(copy)?(ordinal) } != vendor::SUCCESS {
        return None;
    }
    let create_event = |_| {
        let mut event = std::ptr::null_mut();
        // SAFETY: `event` has room for a handle.
        (unsafe { create(&raw mut event, DISABLE_TIMING) } == vendor::SUCCESS).then_some(EventHandle(event))
    };
    (0..EVENTS_PER_BATCH).map(create_event).collect()
}

/// The markers of one stream.
pub(super) struct EventMarkers {
    copy: usize,
    ordinal: c_int,
    /// The last marker. The lock is held while a marker is placed, so that markers lie in the stream in ascending order.
    last: Mutex<Marker>,
    state: Mutex<State>,
    progressed: Condvar,
}

#[derive(Default)]
struct State {
    pending: VecDeque<(Marker, EventHandle)>,
    unused: Vec<EventHandle>,
    reached: Marker,
}

impl EventMarkers {
    pub(super) fn new(copy: usize, ordinal: c_int, events: Vec<EventHandle>) -> Self {
        let state = State { unused: events, ..State::default() };
        Self { copy, ordinal, last: Mutex::new(0), state: Mutex::new(state), progressed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An event for the next marker; none if the runtime creates none.
    pub(super) fn take_event(&self) -> Option<EventHandle> {
        if let Some(event) = self.state().unused.pop() {
            return Some(event);
        }
        let (copy, ordinal) = (self.copy, self.ordinal);
        let mut events = runtime_thread::call(move || allocate_events(copy, ordinal))??;
        let event = events.pop();
        self.state().unused.append(&mut events);
        event
    }

    /// Calls `record`, which records the event in the stream. Returns the marker, or the error of `record`.
    pub(super) fn place<E>(
        &self,
        event: EventHandle,
        record: impl FnOnce(EventHandle) -> Result<(), E>,
    ) -> Result<Marker, E> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(why) = record(event) {
            self.state().unused.push(event);
            return Err(why);
        }
        *last += 1;
        self.state().pending.push_back((*last, event));
        runtime_thread::wake();
        Ok(*last)
    }

    /// The last marker that the device reached.
    pub(super) fn reached(&self) -> Marker {
        self.state().reached
    }

    /// Waits until a marker is reached. Returns whether it was; none during a capture, when events are not queried.
    pub(super) fn wait(&self, marker: Marker, timeout: Duration) -> Option<bool> {
        let deadline = Instant::now() + timeout;
        let mut state = self.state();
        loop {
            if state.reached >= marker {
                return Some(true);
            }
            if CAPTURES.is_capturing() {
                return None;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Some(false);
            }
            state = self.progressed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Queries the pending events in order. Returns whether some are left.
    fn query(&self) -> bool {
        let Some(query) = vendor::EVENT_QUERY.of(self.copy) else { return false };
        let Some(mut front) = self.state().pending.front().copied() else { return false };
        // The state is not locked during the query: a launch that places a marker must not wait for the runtime here.
        // SAFETY: `allocate_events` created the event, and events are never destroyed.
        while unsafe { query(front.1.0) } != vendor::NOT_READY {
            let mut state = self.state();
            if let Some((marker, event)) = state.pending.pop_front() {
                state.unused.push(event);
                state.reached = state.reached.max(marker);
            }
            self.progressed.notify_all();
            match state.pending.front().copied() {
                Some(next) => front = next,
                None => return false,
            }
        }
        true
    }
}

impl runtime_thread::Polled for EventMarkers {
    fn poll(&self) -> bool {
        // A query could invalidate a capture.
        let has_pending = CAPTURES.unless_capturing(|| self.query());
        has_pending.unwrap_or_else(|| !self.state().pending.is_empty())
    }
}

impl Drop for EventMarkers {
    fn drop(&mut self) {
        let (copy, ordinal) = (self.copy, self.ordinal);
        let mut state = self.state();
        let pending = std::mem::take(&mut state.pending).into_iter().map(|(_, event)| event);
        let unused = std::mem::take(&mut state.unused);
        unused_events().extend(pending.chain(unused).map(|event| (copy, ordinal, event)));
    }
}

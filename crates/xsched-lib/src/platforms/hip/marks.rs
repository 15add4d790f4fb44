//! What is placed in a stream: events, which a thread of ours asks; and stall points behind them, where there are any.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use xsched_core::Marker;

use super::keeper;
use super::vendor::{self, Code, Event};
use crate::captures::Captures;

/// `hipEventDisableTiming`: the cheapest kind.
const PLAIN_EVENT: u32 = 2;
/// How many events are made at a time.
const EVENTS: usize = 16;

/// Those of the whole program.
pub(super) static CAPTURES: Captures = Captures::new();

thread_local! {
    /// The last launch of this thread failed: its error is the program's to find.
    static FAILED: Cell<bool> = const { Cell::new(false) };
}

/// Calls the real function of a launch and remembers whether it failed.
pub(super) fn noting_failure(real: &mut dyn FnMut() -> Code) -> Code {
    let code = real();
    let _ = FAILED.try_with(|failed| failed.set(code != vendor::SUCCESS));
    code
}

/// Whether something may be placed in a stream by this thread, or why not.
pub(super) fn may_be_placed() -> Result<(), &'static str> {
    if FAILED.try_with(|failed| failed.replace(false)).unwrap_or(true) {
        return Err("the launch before it failed, and its error is the program's");
    }
    Ok(())
}

/// An event of the runtime's.
#[derive(Clone, Copy)]
pub(super) struct EventHandle(pub(super) Event);

// SAFETY: the runtime's functions may be called from any thread.
unsafe impl Send for EventHandle {}

/// Events that no stream uses any more, by copy and device: making one takes time, and streams come and go.
static SPARE: Mutex<Vec<(usize, c_int, EventHandle)>> = Mutex::new(Vec::new());

fn spare() -> MutexGuard<'static, Vec<(usize, c_int, EventHandle)>> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// By a thread of ours: an event belongs to the device that is current when it is made.
pub(super) fn make_events(copy: usize, number: c_int) -> Option<Vec<EventHandle>> {
    let fits = |spare: &mut (usize, c_int, EventHandle)| (spare.0, spare.1) == (copy, number);
    let left: Vec<_> = spare().extract_if(.., fits).take(EVENTS).map(|(_, _, event)| event).collect();
    if !left.is_empty() {
        return Some(left);
    }
    let create = vendor::EVENT_CREATE.of(copy)?;
    // SAFETY: any number may be asked for.
    if unsafe { vendor::SET_DEVICE.of(copy)?(number) } != vendor::SUCCESS {
        return None;
    }
    let make = |_| {
        let mut event = std::ptr::null_mut();
        // SAFETY: the place has room for a handle.
        (unsafe { create(&raw mut event, PLAIN_EVENT) } == vendor::SUCCESS).then_some(EventHandle(event))
    };
    (0..EVENTS).map(make).collect()
}

/// What was placed in a stream, and how far it has come.
pub(super) struct Marks {
    copy: usize,
    number: c_int,
    /// The last marker. Held while one is placed, so that they lie in the stream in their order.
    last: Mutex<Marker>,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    placed: VecDeque<(Marker, EventHandle)>,
    unused: Vec<EventHandle>,
    reached: Marker,
}

impl Marks {
    pub(super) fn new(copy: usize, number: c_int, events: Vec<EventHandle>) -> Self {
        let state = State { unused: events, ..State::default() };
        Self { copy, number, last: Mutex::new(0), state: Mutex::new(state), arrived: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An event to mark with.
    pub(super) fn event(&self) -> Option<EventHandle> {
        if let Some(event) = self.state().unused.pop() {
            return Some(event);
        }
        let (copy, number) = (self.copy, self.number);
        let mut events = keeper::ask(move || make_events(copy, number))??;
        let event = events.pop();
        self.state().unused.append(&mut events);
        event
    }

    /// Has an event placed in the stream. Answers the marker that it stands for, or what `place` answers if it is not there.
    pub(super) fn place<E>(
        &self,
        event: EventHandle,
        place: impl FnOnce(EventHandle) -> Result<(), E>,
    ) -> Result<Marker, E> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(why) = place(event) {
            self.state().unused.push(event);
            return Err(why);
        }
        *last += 1;
        self.state().placed.push_back((*last, event));
        keeper::wake();
        Ok(*last)
    }

    /// The last marker that was reached.
    pub(super) fn reached(&self) -> Marker {
        self.state().reached
    }

    /// Dependencies until a marker is reached; none if it cannot be known.
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
            state = self.arrived.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Asks the events that have not come, one after the other. Answers whether there are some left.
    fn ask(&self) -> bool {
        let Some(query) = vendor::EVENT_QUERY.of(self.copy) else { return false };
        let Some(mut front) = self.state().placed.front().copied() else { return false };
        // Without the lock: a launch that places a marker must not wait for the runtime here.
        // SAFETY: an event that we made and never destroy.
        while unsafe { query(front.1.0) } != vendor::NOT_READY {
            let mut state = self.state();
            if let Some((marker, event)) = state.placed.pop_front() {
                state.unused.push(event);
                state.reached = state.reached.max(marker);
            }
            self.arrived.notify_all();
            match state.placed.front().copied() {
                Some(next) => front = next,
                None => return false,
            }
        }
        true
    }
}

impl keeper::Watched for Marks {
    fn look(&self) -> bool {
        // During a capture events are not asked: it could break the capture.
        let looked = CAPTURES.unless_capturing(|| self.ask());
        looked.unwrap_or_else(|| !self.state().placed.is_empty())
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        let (copy, number) = (self.copy, self.number);
        let mut state = self.state();
        let placed = std::mem::take(&mut state.placed).into_iter().map(|(_, event)| event);
        let unused = std::mem::take(&mut state.unused);
        spare().extend(placed.chain(unused).map(|event| (copy, number, event)));
    }
}

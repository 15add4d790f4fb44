//! Markers: how far a stream has come. Words that the device writes, or events that are asked where it cannot.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use xsched_core::{Marker, Progress};

use super::board::Cell;
use super::vendor::{self, Code, Context, Event, Stream, checked};

/// `CU_EVENT_DISABLE_TIMING`: the cheapest kind.
const PLAIN_EVENT: u32 = 2;
/// `CU_STREAM_WAIT_VALUE_EQ`.
const UNTIL_EQUAL: u32 = 1;

/// The markers of one stream.
pub(crate) struct Marks {
    kind: Kind,
    stand: Mutex<Stand>,
}

enum Kind {
    /// The device writes them, and the stream can be stopped at each.
    Words(WordMarks),
    /// They are events.
    Events(Mutex<EventMarks>),
}

/// See [`Kind`].
struct WordMarks {
    cell: Cell,
    /// Held while one is placed, so that numbers lie in the stream in their order.
    placed: Mutex<Marker>,
    reached: AtomicU64,
}

/// Whether the stream is to stand at its next stop point.
#[derive(Default)]
struct Stand {
    /// The scheduler's order, and an explicit stop.
    reasons: [bool; 2],
    /// Nothing was launched there that is not done.
    has_nothing: bool,
}

/// Why a stream stands.
#[derive(Clone, Copy)]
pub(crate) enum Reason {
    Order,
    Preempted,
}

impl Marks {
    /// For a stream of the context that is current. With events, says why not with words.
    pub(crate) fn new(stream: Stream, context: Context) -> (Self, Result<(), String>) {
        let (kind, words) = match WordMarks::new(stream, context) {
            Ok(words) => (Kind::Words(words), Ok(())),
            Err(why) => (Kind::Events(Mutex::default()), Err(why)),
        };
        (Self { kind, stand: Mutex::default() }, words)
    }

    /// Places a marker. The stream's context is current.
    pub(crate) fn place(&self, stream: Stream) -> Result<Marker, Code> {
        match &self.kind {
            Kind::Words(words) => words.place(stream),
            Kind::Events(events) => lock(events).place(stream),
        }
    }

    /// How far the stream is, if that can be told without its context.
    pub(crate) fn reached(&self) -> Option<Progress> {
        match &self.kind {
            Kind::Words(words) => Some(words.progress()),
            Kind::Events(_) => None,
        }
    }

    /// How far the stream is. Its context is current.
    pub(crate) fn ask(&self) -> Progress {
        match &self.kind {
            Kind::Words(words) => words.progress(),
            Kind::Events(events) => lock(events).progress(),
        }
    }

    /// How far it was when it was last asked.
    pub(crate) fn known(&self) -> Progress {
        match &self.kind {
            Kind::Words(words) => words.progress(),
            Kind::Events(events) => lock(events).reached,
        }
    }

    /// Whether the stream can be stopped at each of them.
    pub(crate) fn are_stop_points(&self) -> bool {
        matches!(self.kind, Kind::Words(_))
    }

    /// Whether nothing of the stream runs: it stands at a stop point, or has nothing to do. For a moment after it was told to
    /// stand, one that has just left a stop point looks as if it stood there.
    pub(crate) fn is_still(&self) -> bool {
        self.has_nothing() || matches!(&self.kind, Kind::Words(words) if words.stands())
    }

    /// Whether the stream has nothing to do.
    pub(crate) fn has_nothing(&self) -> bool {
        lock(&self.stand).has_nothing
    }

    /// Gives the GPU something to do for the stream, so that it turns to the program. The stream's context is current.
    pub(crate) fn trigger_context_switch(&self, stream: Stream) -> Result<(), Code> {
        let (Kind::Words(words), Some(set)) = (&self.kind, vendor::SET_WORDS.get()) else { return Ok(()) };
        // SAFETY: the context is current, and the device may write there for as long as the process lives.
        checked(unsafe { set(words.cell.nothing_at(), 0, 1, stream) })
    }

    /// Has the stream stand at its next stop point for this reason, or not any more.
    pub(crate) fn stand(&self, why: Reason, stand: bool) {
        self.change(|its| its.reasons[why as usize] = stand);
    }

    /// A stream that has nothing to do stands nowhere, whatever the reason.
    pub(crate) fn set_has_work(&self, has_work: bool) {
        self.change(|its| its.has_nothing = !has_work);
    }

    fn change(&self, change: impl FnOnce(&mut Stand)) {
        let mut stand = lock(&self.stand);
        change(&mut stand);
        if let Kind::Words(words) = &self.kind {
            let stands = !stand.has_nothing && stand.reasons.contains(&true);
            // Still locked: the last to change it says how it is.
            words.cell.words().run.store(u32::from(!stands), Ordering::SeqCst);
        }
    }
}

impl WordMarks {
    fn new(stream: Stream, context: Context) -> Result<Self, String> {
        if vendor::WRITE_VALUE.get().is_none() || vendor::WAIT_VALUE.get().is_none() {
            return Err("the driver is too old for waits in a stream, which came with CUDA 11.7".to_owned());
        }
        let marks =
            Self { cell: Cell::take(context.addr())?, placed: Mutex::new(0), reached: AtomicU64::new(0) };
        // Tried once for real: attributes promise what some configurations refuse.
        marks.place(stream).map_err(|code| format!("the driver refuses waits in a stream (error {code})"))?;
        Ok(marks)
    }

    fn place(&self, stream: Stream) -> Result<Marker, Code> {
        const MISSING: Code = 801;
        let functions = vendor::WRITE_VALUE.get().zip(vendor::WAIT_VALUE.get());
        let (write, wait) = functions.ok_or(MISSING)?;
        let mut placed = lock(&self.placed);
        let marker = *placed + 1;
        #[expect(clippy::cast_possible_truncation, reason = "`progress` puts the rest back")]
        let number = marker as u32;
        // SAFETY: the context is current, and the device may write there for as long as the process lives.
        checked(unsafe { write(stream, self.cell.reached_at(), number, 0) })?;
        *placed = marker;
        // SAFETY: as above; whoever clears the word sets it again, at the latest when the program ends.
        checked(unsafe { wait(stream, self.cell.run_at(), 1, UNTIL_EQUAL) })?;
        // SAFETY: as above.
        checked(unsafe { write(stream, self.cell.passed_at(), number, 0) })?;
        Ok(marker)
    }

    fn stands(&self) -> bool {
        let words = self.cell.words();
        let passed = words.passed.load(Ordering::Acquire);
        words.run.load(Ordering::SeqCst) == 0 && words.reached.load(Ordering::Acquire) != passed
    }

    fn progress(&self) -> Progress {
        let word = self.cell.words().reached.load(Ordering::Acquire);
        let before = self.reached.load(Ordering::SeqCst);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the device writes 32 bits, and never 2^31 in one look"
        )]
        let ahead = word.wrapping_sub(before as u32);
        let now = if ahead < u32::MAX / 2 { before + u64::from(ahead) } else { before };
        let marker = self.reached.fetch_max(now, Ordering::SeqCst).max(now);
        Progress { marker, at: None }
    }
}

impl Drop for WordMarks {
    fn drop(&mut self) {
        self.cell.words().run.store(1, Ordering::SeqCst);
        #[expect(clippy::cast_possible_truncation, reason = "as in `place`")]
        let last = *lock(&self.placed) as u32;
        // The last thing that the device writes there.
        if self.cell.words().passed.load(Ordering::SeqCst) == last {
            self.cell.give_back();
        }
    }
}

/// See [`Kind`].
#[derive(Default)]
struct EventMarks {
    placed: VecDeque<(Marker, EventHandle)>,
    last: Marker,
    unused: Vec<EventHandle>,
    reached: Progress,
}

#[derive(Clone, Copy)]
struct EventHandle(Event);

// SAFETY: the driver's functions may be called from any thread.
unsafe impl Send for EventHandle {}

impl EventMarks {
    fn place(&mut self, stream: Stream) -> Result<Marker, Code> {
        const MISSING: Code = 801;
        let functions = vendor::EVENT_CREATE.get().zip(vendor::EVENT_RECORD.get());
        let (create, record) = functions.ok_or(MISSING)?;
        let event = if let Some(event) = self.unused.pop() {
            event
        } else {
            let mut event = std::ptr::null_mut();
            // SAFETY: the place has room for a handle, and a context is current.
            checked(unsafe { create(&raw mut event, PLAIN_EVENT) })?;
            EventHandle(event)
        };
        // SAFETY: both belong to the context that is current.
        if let Err(code) = checked(unsafe { record(event.0, stream) }) {
            self.unused.push(event);
            return Err(code);
        }
        self.last += 1;
        self.placed.push_back((self.last, event));
        Ok(self.last)
    }

    fn progress(&mut self) -> Progress {
        let Some(query) = vendor::EVENT_QUERY.get() else { return self.reached };
        while let Some((marker, event)) = self.placed.front().copied() {
            // SAFETY: an event that we made and never destroy.
            if unsafe { query(event.0) } != vendor::SUCCESS {
                break;
            }
            self.placed.pop_front();
            self.unused.push(event);
            self.reached = Progress { marker, at: None };
        }
        self.reached
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

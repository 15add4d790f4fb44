//! Markers in a stream. Where the driver supports memory waits, each marker is also a stop point: the device writes the marker
//! to memory and stalls there while the stream is stopped. Otherwise markers are events, and the stream has level 1 only.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use xsched_core::{HoldPoint, Marker, Progress};

use super::stop_words::StopWordSlot;
use super::vendor::{self, Code, Context, Event, Stream, checked};

/// `CU_EVENT_DISABLE_TIMING`: the cheapest kind of event.
const DISABLE_TIMING: u32 = 2;
/// `CU_STREAM_WAIT_VALUE_EQ`.
const WAIT_UNTIL_EQUAL: u32 = 1;
/// `CU_STREAM_WAIT_VALUE_GEQ`, for numbers that wrap around.
const WAIT_UNTIL_REACHED: u32 = 0;
/// `CUDA_ERROR_NOT_SUPPORTED`: the driver lacks a function.
const NOT_SUPPORTED: Code = 801;

/// The markers of one stream.
pub(crate) struct StreamMarkers {
    kind: Kind,
    stall: Mutex<StallRequest>,
}

enum Kind {
    StopPoints(StopPointMarkers),
    Events(Mutex<EventMarkers>),
}

/// Whether the stream is to stall at its next stop point.
#[derive(Default)]
struct StallRequest {
    /// Indexed by [`StallReason`].
    reasons: [bool; 2],
    is_idle: bool,
}

/// Why a stream is stopped. It stalls while one of the reasons holds.
#[derive(Clone, Copy)]
pub(crate) enum StallReason {
    /// The scheduler's order does not let it run.
    Order,
    /// It is preempted.
    Preempted,
}

impl StreamMarkers {
    /// For a stream of the current context. The second value is the reason why the markers are not stop points, if they are
    /// not.
    pub(crate) fn new(stream: Stream, context: Context) -> (Self, Result<(), String>) {
        let (kind, stop_points) = match StopPointMarkers::new(stream, context) {
            Ok(markers) => (Kind::StopPoints(markers), Ok(())),
            Err(reason) => (Kind::Events(Mutex::default()), Err(reason)),
        };
        (Self { kind, stall: Mutex::default() }, stop_points)
    }

    /// Event markers of no stream.
    #[cfg(test)]
    pub(crate) fn without_stop_points() -> Self {
        Self { kind: Kind::Events(Mutex::default()), stall: Mutex::default() }
    }

    /// Places a marker. The stream's context must be current.
    pub(crate) fn place(&self, stream: Stream) -> Result<Marker, Code> {
        match &self.kind {
            Kind::StopPoints(markers) => markers.place(stream),
            Kind::Events(markers) => lock(markers).place(stream),
        }
    }

    /// The stream's progress, if it can be read without making the context current.
    pub(crate) fn progress_without_context(&self) -> Option<Progress> {
        match &self.kind {
            Kind::StopPoints(markers) => Some(markers.progress()),
            Kind::Events(_) => None,
        }
    }

    /// The stream's progress. The stream's context must be current.
    pub(crate) fn progress(&self) -> Progress {
        match &self.kind {
            Kind::StopPoints(markers) => markers.progress(),
            Kind::Events(markers) => lock(markers).progress(),
        }
    }

    /// The progress when it was last read.
    pub(crate) fn last_progress(&self) -> Progress {
        match &self.kind {
            Kind::StopPoints(markers) => markers.progress(),
            Kind::Events(markers) => lock(markers).reached,
        }
    }

    /// Whether the stream can be stopped at each marker.
    pub(crate) fn are_stop_points(&self) -> bool {
        matches!(self.kind, Kind::StopPoints(_))
    }

    /// Whether the stream is stalled at a stop point or has no work. Just after the stream was stopped, this may be true by
    /// mistake: the device has read `run` as 1 and not yet written `passed`. Two reads 20 us apart exclude that.
    pub(crate) fn is_stalled_or_idle(&self) -> bool {
        self.is_idle() || matches!(&self.kind, Kind::StopPoints(markers) if markers.are_stalled())
    }

    /// Whether the stream has no work.
    pub(crate) fn is_idle(&self) -> bool {
        lock(&self.stall).is_idle
    }

    /// Gives the GPU a small kernel of this stream, so that it switches to this process. The stream's context must be current.
    pub(crate) fn trigger_context_switch(&self, stream: Stream) -> Result<(), Code> {
        let (Kind::StopPoints(markers), Some(memset)) = (&self.kind, vendor::MEMSET_32_ASYNC.get()) else {
            return Ok(());
        };
        // SAFETY: the context is current, and the scratch word stays mapped until the process exits.
        checked(unsafe { memset(markers.slot.scratch_address(), 0, 1, stream) })
    }

    /// Places a hold point: see [`xsched_core::HwQueue::defer`]. The stream's context must be current.
    pub(crate) fn defer(&self, stream: Stream, point: HoldPoint) -> Result<(), Code> {
        match &self.kind {
            Kind::StopPoints(markers) => markers.defer(stream, point),
            Kind::Events(_) => Err(NOT_SUPPORTED),
        }
    }

    /// Has the device continue past the hold points up to this one.
    pub(crate) fn release_deferred(&self, point: HoldPoint) {
        if let Kind::StopPoints(markers) = &self.kind {
            markers.release_deferred(point);
        }
    }

    /// The last hold point that the device reached.
    pub(crate) fn deferred_progress(&self) -> HoldPoint {
        match &self.kind {
            Kind::StopPoints(markers) => markers.slot.words().held_at.load(Ordering::Acquire),
            Kind::Events(_) => 0,
        }
    }

    /// Stops the stream at its next stop point for this reason, or withdraws the reason.
    pub(crate) fn set_stall_reason(&self, reason: StallReason, applies: bool) {
        self.update_stall(|stall| stall.reasons[reason as usize] = applies);
    }

    /// An idle stream does not stall, whatever the reasons: the program may copy or wait there.
    pub(crate) fn set_has_work(&self, has_work: bool) {
        self.update_stall(|stall| stall.is_idle = !has_work);
    }

    fn update_stall(&self, change: impl FnOnce(&mut StallRequest)) {
        let mut stall = lock(&self.stall);
        change(&mut stall);
        if let Kind::StopPoints(markers) = &self.kind {
            let stalls = !stall.is_idle && stall.reasons.contains(&true);
            // Stored under the lock, so that the word follows the last change.
            markers.slot.words().run.store(u32::from(!stalls), Ordering::SeqCst);
        }
    }
}

/// Markers that the device writes to memory, each followed by a stop point.
struct StopPointMarkers {
    slot: StopWordSlot,
    /// The last marker. The lock is held while a marker is placed, so that markers lie in the stream in ascending order.
    placed: Mutex<Marker>,
    reached: AtomicU64,
}

impl StopPointMarkers {
    fn new(stream: Stream, context: Context) -> Result<Self, String> {
        if vendor::WRITE_VALUE.get().is_none() || vendor::WAIT_VALUE.get().is_none() {
            return Err("the driver is too old for memory waits in a stream, which need CUDA 11.7".to_owned());
        }
        let slot = StopWordSlot::allocate(context.addr())?;
        let markers = Self { slot, placed: Mutex::new(0), reached: AtomicU64::new(0) };
        // Device attributes report support that some configurations refuse, so one marker is placed to find out.
        markers
            .place(stream)
            .map_err(|code| format!("the driver refuses memory waits in a stream (error {code})"))?;
        Ok(markers)
    }

    fn place(&self, stream: Stream) -> Result<Marker, Code> {
        let functions = vendor::WRITE_VALUE.get().zip(vendor::WAIT_VALUE.get());
        let (write, wait) = functions.ok_or(NOT_SUPPORTED)?;
        let mut placed = lock(&self.placed);
        let marker = *placed + 1;
        #[expect(clippy::cast_possible_truncation, reason = "`progress` restores the upper bits")]
        let word = marker as u32;
        // SAFETY: the context is current, and the words stay mapped until the process exits.
        checked(unsafe { write(stream, self.slot.reached_address(), word, 0) })?;
        *placed = marker;
        // SAFETY: as above. The wait ends: the thread that clears `run` sets it again, at the latest when the process exits.
        checked(unsafe { wait(stream, self.slot.run_address(), 1, WAIT_UNTIL_EQUAL) })?;
        // SAFETY: as above.
        checked(unsafe { write(stream, self.slot.passed_address(), word, 0) })?;
        Ok(marker)
    }

    fn defer(&self, stream: Stream, point: HoldPoint) -> Result<(), Code> {
        let functions = vendor::WRITE_VALUE.get().zip(vendor::WAIT_VALUE.get());
        let (write, wait) = functions.ok_or(NOT_SUPPORTED)?;
        // SAFETY: the context is current, and the words stay mapped until the process exits.
        checked(unsafe { write(stream, self.slot.held_at_address(), point, 0) })?;
        // SAFETY: as above. The wait ends: the core releases every hold point, a timer thread at the latest.
        checked(unsafe { wait(stream, self.slot.released_address(), point, WAIT_UNTIL_REACHED) })
    }

    fn release_deferred(&self, point: HoldPoint) {
        let later = |released: u32| (point.wrapping_sub(released) <= u32::MAX / 2).then_some(point);
        // Fails if a later point was released before.
        let _ = self.slot.words().released.fetch_update(Ordering::SeqCst, Ordering::SeqCst, later);
    }

    /// See [`StreamMarkers::is_stalled_or_idle`].
    fn are_stalled(&self) -> bool {
        let words = self.slot.words();
        let passed = words.passed.load(Ordering::Acquire);
        words.run.load(Ordering::SeqCst) == 0 && words.reached.load(Ordering::Acquire) != passed
    }

    fn progress(&self) -> Progress {
        let word = self.slot.words().reached.load(Ordering::Acquire);
        let before = self.reached.load(Ordering::SeqCst);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the device writes 32 bits, and fewer than 2^31 markers between two reads"
        )]
        let ahead = word.wrapping_sub(before as u32);
        let now = if ahead < u32::MAX / 2 { before + u64::from(ahead) } else { before };
        let marker = self.reached.fetch_max(now, Ordering::SeqCst).max(now);
        Progress { marker, at: None }
    }
}

impl Drop for StopPointMarkers {
    fn drop(&mut self) {
        self.slot.words().run.store(1, Ordering::SeqCst);
        #[expect(clippy::cast_possible_truncation, reason = "as in `place`")]
        let last = *lock(&self.placed) as u32;
        // `passed` and `held_at` are the last words that the device writes. The core has released every hold point by now; one that
        // it has released without placing it keeps the slot from being used again.
        let words = self.slot.words();
        let has_reached_hold = words.held_at.load(Ordering::SeqCst) == words.released.load(Ordering::SeqCst);
        if has_reached_hold && words.passed.load(Ordering::SeqCst) == last {
            self.slot.free();
        }
    }
}

/// Markers that are events, queried in order.
#[derive(Default)]
struct EventMarkers {
    pending: VecDeque<(Marker, EventHandle)>,
    last: Marker,
    unused: Vec<EventHandle>,
    reached: Progress,
}

#[derive(Clone, Copy)]
struct EventHandle(Event);

// SAFETY: the driver's functions may be called from any thread.
unsafe impl Send for EventHandle {}

impl EventMarkers {
    fn place(&mut self, stream: Stream) -> Result<Marker, Code> {
        let functions = vendor::EVENT_CREATE.get().zip(vendor::EVENT_RECORD.get());
        let (create, record) = functions.ok_or(NOT_SUPPORTED)?;
        let event = if let Some(event) = self.unused.pop() {
            event
        } else {
            let mut event = std::ptr::null_mut();
            // SAFETY: `event` has room for a handle, and the caller has made a context current.
            checked(unsafe { create(&raw mut event, DISABLE_TIMING) })?;
            EventHandle(event)
        };
        // SAFETY: the stream and the event belong to the current context.
        if let Err(code) = checked(unsafe { record(event.0, stream) }) {
            self.unused.push(event);
            return Err(code);
        }
        self.last += 1;
        self.pending.push_back((self.last, event));
        Ok(self.last)
    }

    fn progress(&mut self) -> Progress {
        let Some(query) = vendor::EVENT_QUERY.get() else { return self.reached };
        while let Some((marker, event)) = self.pending.front().copied() {
            // SAFETY: this struct created the event and never destroys it.
            if unsafe { query(event.0) } != vendor::SUCCESS {
                break;
            }
            self.pending.pop_front();
            self.unused.push(event);
            self.reached = Progress { marker, at: None };
        }
        self.reached
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! A stream of the program in which the library places markers.

use std::ffi::c_int;
use std::sync::{Arc, Weak};

use xsched_core::Marker;
use xsched_interpose::RevocableHandle;

use super::event_markers::{self, CAPTURES, EventHandle, EventMarkers};
use super::stall_points::StallWord;
use super::stream::{Handle, StreamId, StreamKind};
use super::vendor::{self, Code};
use super::{runtime_copies, runtime_thread};

/// A stream and its markers.
pub(super) struct MarkedStream {
    pub(super) copy: usize,
    pub(super) handle: RevocableHandle<Handle>,
    pub(super) markers: Arc<EventMarkers>,
    kind: StreamKind,
    key: usize,
    ordinal: c_int,
    /// Where stall points follow the markers.
    stall_word: Option<&'static StallWord>,
}

impl MarkedStream {
    pub(super) fn new(
        stream: StreamId,
        ordinal: c_int,
        events: Vec<EventHandle>,
        stall_word: Option<&'static StallWord>,
    ) -> Self {
        let StreamId { key, copy, kind, .. } = stream;
        let markers = Arc::new(EventMarkers::new(copy, ordinal, events));
        let polled: Weak<EventMarkers> = Arc::downgrade(&markers);
        runtime_thread::poll(polled);
        Self {
            copy,
            handle: RevocableHandle::new(Handle(kind.handle())),
            markers,
            kind,
            key,
            ordinal,
            stall_word,
        }
    }

    /// Has the runtime create what the stream's commands need, by a first marker: a hardware queue, and built-in kernels. HIP 6.4
    /// took 0.1 s of a processor for that. A launch that did it behind the gate would reach the device long after it was admitted,
    /// beside work of higher precedence that began meanwhile.
    pub(super) fn prepare(&self) {
        // During a capture it is left to the first launch.
        let _ = self.mark();
    }

    /// Places a marker, unless a stream is captured.
    pub(super) fn mark(&self) -> Result<Marker, String> {
        event_markers::check_may_place()?;
        let placed = CAPTURES.unless_capturing(|| self.place_marker());
        placed.unwrap_or_else(|| Err("a stream is being captured".to_owned()))
    }

    /// Whether stall points follow the markers.
    pub(super) fn has_stall_points(&self) -> bool {
        self.stall_word.is_some()
    }

    /// Whether the stream is of the device with this legacy default stream.
    pub(super) fn belongs_to(&self, device: usize) -> bool {
        usize::try_from(self.ordinal).is_ok_and(|ordinal| runtime_copies::base(self.copy) + ordinal == device)
    }

    /// Whether the stream's handle denotes another stream on the calling thread: default streams are those of the thread's
    /// current device, or of the thread itself.
    fn is_out_of_reach(&self) -> bool {
        match self.kind {
            StreamKind::Created(_) => false,
            default => StreamId::resolve(self.copy, default).is_none_or(|stream| stream.key != self.key),
        }
    }

    /// Places a marker. No stream may be captured meanwhile.
    fn place_marker(&self) -> Result<Marker, String> {
        let record = vendor::EVENT_RECORD.of(self.copy);
        let (record, event) = record.zip(self.markers.take_event()).ok_or("the runtime creates no events")?;
        let place = |event: EventHandle| {
            let recorded = if self.is_out_of_reach() {
                // The device's legacy default stream is this stream, or waits for it as for all streams of the device.
                let (copy, ordinal) = (self.copy, self.ordinal);
                runtime_thread::call(move || record_on_legacy_stream(copy, ordinal, event))
            } else {
                self.handle.with(|Handle(stream)| {
                    // SAFETY: while the handle is held the program cannot destroy the stream; the event is of its device.
                    let code = unsafe { record(event.0, stream) };
                    if let (vendor::SUCCESS, Some(word)) = (code, self.stall_word) {
                        word.place(self.copy, stream);
                    }
                    code
                })
            };
            match recorded {
                Some(vendor::SUCCESS) => Ok(()),
                Some(code) => Err(format!("error {code}")),
                None => Err("the stream was destroyed".to_owned()),
            }
        };
        self.markers.place(event, place)
    }
}

/// For the runtime thread: the legacy default stream is that of the current device.
fn record_on_legacy_stream(copy: usize, ordinal: c_int, event: EventHandle) -> Code {
    let functions = vendor::SET_DEVICE.of(copy).zip(vendor::EVENT_RECORD.of(copy));
    functions.map_or(vendor::NOT_INITIALIZED, |(set_device, record)| {
        // SAFETY: the runtime rejects an ordinal that does not exist.
        match unsafe { set_device(ordinal) } {
            // SAFETY: the event is of this device, whose legacy default stream always exists.
            vendor::SUCCESS => unsafe { record(event.0, std::ptr::null_mut()) },
            code => code,
        }
    })
}

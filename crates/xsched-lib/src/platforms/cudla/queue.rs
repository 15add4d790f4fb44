//! The DLA tasks of one CUDA stream as a hardware queue. Its markers are CUDA events in that stream.

use std::sync::atomic::Ordering;

use xsched_core::{DeviceId, DeviceKind};
use xsched_interpose::Handle;

use super::vendor::{self, Event};
use crate::event_queue::{EventApi, EventQueue};
use crate::hooks::call;
use crate::object_table::ObjectTable;
use crate::platforms::cuda::capture::unless_capturing;
use crate::platforms::cuda::stream::with_current;
use crate::platforms::cuda::vendor::{Context, LEGACY, PER_THREAD, Stream};
use crate::platforms::cuda::{HAS_OTHER_ENGINES, context_of, current_context, stream_key};

/// The streams of the tracked queues, by their keys. An entry is replaced when its key is used again.
static STREAMS: ObjectTable<StreamPlace> = ObjectTable::new();

#[derive(Clone, Copy)]
struct StreamPlace {
    stream: Stream,
    context: Context,
}

// SAFETY: the driver's functions may be called from any thread.
unsafe impl Send for StreamPlace {}

/// The key of a stream's tasks on a DLA, beside the key that the stream has as a queue of the GPU. Handles of CUDA are even, and that of a default
/// stream is the next number.
pub(crate) fn key(stream: Stream, dla: u8) -> Option<usize> {
    Some(stream_key(stream, LEGACY)?.wrapping_add(2 + usize::from(dla)))
}

/// Opens the queue of this key.
pub(crate) fn open(key: usize, stream: Stream, dla: u8) -> Option<EventQueue<CuDla>> {
    let is_default = stream.addr() <= PER_THREAD;
    let context = if is_default { current_context()? } else { context_of(stream)? };
    HAS_OTHER_ENGINES.store(true, Ordering::Relaxed);
    STREAMS.record(key, StreamPlace { stream, context });
    let name = format!("NVIDIA DLA {dla}");
    let device = DeviceId::named(DeviceKind::Npu, &name);
    // SAFETY: only this file passes it to the vendor, as the stream.
    let handle = unsafe { Handle::from_pointer(std::ptr::without_provenance_mut(key)) };
    let queue = EventQueue::<CuDla>::new(handle, device, name, "cuDLA cannot stop a stream");
    let queue = queue.owned_by(context.addr());
    // Only its own thread can name a thread's default stream.
    Some(match stream.addr() {
        PER_THREAD => queue.marked_by_launching_thread(),
        0 | LEGACY => queue,
        stream => queue.owned_by(stream),
    })
}

/// Calls `work` with the stream of a queue while its context is current.
fn with_stream<R>(queue: Handle, work: impl FnOnce(Stream) -> Result<R, String>) -> Result<R, String> {
    let place = STREAMS.get(queue.addr()).ok_or("the stream was destroyed")?;
    with_current(place.context, || work(place.stream))
        .unwrap_or_else(|| Err("the stream's context cannot be made current".to_owned()))
}

/// CUDA's functions for events.
pub(crate) struct CuDla;

impl EventApi for CuDla {
    fn record(queue: Handle) -> Result<Event, String> {
        let record = |stream| {
            let mut event = Handle::NONE;
            // SAFETY: `event` has room for a handle, and the context is current.
            unsafe { call!(vendor::CREATE_EVENT, &raw mut event, vendor::DISABLE_TIMING) }?;
            // SAFETY: the caller keeps the stream from being destroyed; the event was just created.
            let recorded = unsafe { call!(vendor::RECORD_EVENT, event, stream) };
            recorded.map(|()| event).inspect_err(|_| Self::release(event))
        };
        unless_capturing(|| with_stream(queue, record))
            .unwrap_or_else(|| Err("a stream is being captured".to_owned()))
    }

    fn is_complete(event: Event) -> bool {
        // SAFETY: an event that `record` returned and that is not released. A query could invalidate a capture.
        unless_capturing(|| unsafe { call!(vendor::QUERY_EVENT, event) })
            .is_some_and(|queried| queried.is_ok())
    }

    fn release(event: Event) {
        // SAFETY: an event that `record` returned, which the caller releases once.
        let _ = unsafe { call!(vendor::DESTROY_EVENT, event) };
    }

    fn synchronize(queue: Handle) -> Result<(), String> {
        // SAFETY: the caller keeps the stream from being destroyed, and its context is current.
        with_stream(queue, |stream| unsafe { call!(vendor::SYNCHRONIZE, stream) })
    }
}

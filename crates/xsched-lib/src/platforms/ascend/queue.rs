//! A stream as a hardware queue. Its markers are events of the library's own.
//!
//! A stream can be used only where its context is current. The library's threads have no context, so it is made current for each call.

use xsched_core::{DeviceId, DeviceKind};
use xsched_interpose::Handle;

use super::capture;
use super::vendor::{self, Context, Event, Stream};
use crate::event_queue::{EventApi, EventQueue};
use crate::hooks::call;
use crate::object_table::ObjectTable;

/// Where a stream is.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) context: Context,
    /// The number of the device in this process.
    pub(crate) device: i32,
}

/// The tracked streams by the address of [`key`].
pub(crate) static STREAMS: ObjectTable<Place> = ObjectTable::new();

/// A handle that identifies a stream: the stream's own, or for a default stream the odd address behind that of its context. Objects of
/// the vendor have even addresses.
pub(crate) fn key(stream: Stream) -> Option<Stream> {
    if !stream.is_none() {
        return Some(stream);
    }
    let address = current_context()?.addr() | 1;
    // SAFETY: only `with_context` passes it to the vendor, as the null stream.
    Some(unsafe { Handle::from_pointer(std::ptr::without_provenance_mut(address)) })
}

fn current_context() -> Option<Context> {
    let mut context = Handle::NONE;
    // SAFETY: `context` has room for a handle.
    unsafe { call!(vendor::CURRENT_CONTEXT, &raw mut context) }.ok()?;
    (!context.is_none()).then_some(context)
}

/// The number of the current device in this process.
fn current_device() -> Option<i32> {
    let mut device = 0;
    // SAFETY: `device` has room for a number.
    unsafe { call!(vendor::CURRENT_DEVICE, &raw mut device) }.ok().map(|()| device)
}

/// The current device.
pub(crate) fn current_device_id() -> Option<DeviceId> {
    current_device().map(|device| DeviceId::named(DeviceKind::Npu, &device_name(device)))
}

/// The name of a device, which is the same in every process.
fn device_name(device: i32) -> String {
    let (mut logical, mut physical) = (0, 0);
    // SAFETY: both have room for a number.
    let asked = unsafe { call!(vendor::LOGICAL_DEVICE, device, &raw mut logical) }
        // SAFETY: as above.
        .and_then(|()| unsafe { call!(vendor::PHYSICAL_DEVICE, logical, &raw mut physical) });
    if asked.is_err() {
        // Older versions lack the functions. The variable lists the devices that the process has, in the order of their numbers.
        let visible = std::env::var("ASCEND_RT_VISIBLE_DEVICES").unwrap_or_default();
        let number =
            usize::try_from(device).ok().and_then(|n| visible.split(',').nth(n)?.trim().parse().ok());
        physical = number.unwrap_or(device);
    }
    format!("Ascend NPU {physical}")
}

/// Opens the stream with this key, whose context is current. None if its work does not run when it is launched.
pub(crate) fn open(stream: Stream) -> Option<EventQueue<AscendCl>> {
    let place = Place { context: current_context()?, device: current_device()? };
    let mut flags = 0;
    if !is_default(stream) {
        // SAFETY: a stream of the program; `flags` has room for a number. Older versions lack the function, and such streams.
        let _ = unsafe { call!(vendor::STREAM_FLAGS, stream, &raw mut flags) };
    }
    if flags & vendor::NOT_LAUNCHED_BY_PROGRAM != 0 {
        return None;
    }
    STREAMS.record(stream.addr(), place);
    let name = device_name(place.device);
    let device = DeviceId::named(DeviceKind::Npu, &name);
    Some(EventQueue::new(stream, device, name, "AscendCL cannot stop a stream"))
}

fn is_default(stream: Stream) -> bool {
    stream.addr() & 1 == 1
}

/// Calls `work` with the stream of a key while its context is current.
fn with_context<R>(stream: Stream, work: impl FnOnce(Stream) -> Result<R, String>) -> Result<R, String> {
    let place = STREAMS.get(stream.addr()).ok_or("the stream was destroyed")?;
    let before = current_context();
    let is_other = before != Some(place.context);
    if is_other {
        // SAFETY: the caller keeps the stream from being destroyed, and so its context.
        unsafe { call!(vendor::SET_CONTEXT, place.context) }?;
    }
    let result = work(if is_default(stream) { Handle::NONE } else { stream });
    // A thread without a context is the library's own, and keeps this one.
    if let Some(before) = before.filter(|_| is_other) {
        // SAFETY: it was current.
        let _ = unsafe { call!(vendor::SET_CONTEXT, before) };
    }
    result
}

/// The vendor's functions for events.
pub(crate) struct AscendCl;

impl EventApi for AscendCl {
    fn record(stream: Stream) -> Result<Event, String> {
        let record = |stream| {
            let mut event = Handle::NONE;
            // SAFETY: `event` has room for a handle.
            unsafe { call!(vendor::CREATE_EVENT, &raw mut event) }?;
            // SAFETY: the caller keeps the stream from being destroyed; the event was just created.
            let recorded = unsafe { call!(vendor::RECORD_EVENT, event, stream) };
            recorded.map(|()| event).inspect_err(|_| Self::release(event))
        };
        capture::unless_capturing(|| with_context(stream, record))
            .unwrap_or_else(|| Err("a stream is being captured".to_owned()))
    }

    fn is_complete(event: Event) -> bool {
        let mut status = 0;
        // SAFETY: an event that `record` returned and that is not released; `status` has room for a number.
        unsafe { call!(vendor::QUERY_EVENT, event, &raw mut status) }.is_ok() && status == vendor::RECORDED
    }

    fn release(event: Event) {
        // SAFETY: an event that `record` returned, which the caller releases once.
        let _ = unsafe { call!(vendor::DESTROY_EVENT, event) };
    }

    fn synchronize(stream: Stream) -> Result<(), String> {
        // SAFETY: the caller keeps the stream from being destroyed.
        with_context(stream, |stream| unsafe { call!(vendor::SYNCHRONIZE, stream) })
    }
}

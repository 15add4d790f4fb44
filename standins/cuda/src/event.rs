//! Events.

use std::ffi::c_uint;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::capture;
use crate::code::{Code, Outcome, write_out};
use crate::driver::{Handle, driver, new_handle};
use crate::stream::{DefaultStream, Work, resolve, submit};

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: c_uint = 2;

/// One recording of an event.
#[derive(Default)]
pub(crate) struct Recording(AtomicU64);

impl Recording {
    /// Sets the completion time.
    pub(crate) fn complete(&self, at: u64) {
        self.0.store(at.max(1), Ordering::Release);
    }

    /// When the device completed it, if it has.
    pub(crate) fn completed_at(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Acquire)).filter(|at| *at != 0)
    }
}

/// Where an event was last recorded.
#[derive(Clone, Default)]
pub(crate) enum LastRecord {
    #[default]
    Never,
    Stream(Arc<Recording>),
    /// In a capture, behind these nodes.
    Capture {
        id: Handle,
        nodes: Vec<usize>,
    },
}

/// An event.
pub(crate) struct Event {
    timing: bool,
    pub(crate) last_record: LastRecord,
}

pub(crate) unsafe fn create(out: *mut Handle, flags: c_uint) -> Outcome {
    let mut driver = driver()?;
    driver.current()?;
    let event = new_handle();
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, event) }?;
    let timing = flags & DISABLE_TIMING == 0;
    driver.events.insert(event, Event { timing, last_record: LastRecord::Never });
    Ok(())
}

pub(crate) unsafe fn destroy(event: Handle) -> Outcome {
    driver()?.events.remove(&event).map(drop).ok_or(Code::ERROR_INVALID_HANDLE)
}

pub(crate) unsafe fn record(default_stream: DefaultStream, event: Handle, stream: Handle) -> Outcome {
    let mut guard = driver()?;
    if !guard.events.contains_key(&event) {
        return Err(Code::ERROR_INVALID_HANDLE);
    }
    let resolved = resolve(&mut guard, default_stream, stream)?;
    let captured = guard.streams[&resolved].capturing.clone();
    let (last_record, recording) = if let Some(capturing) = captured {
        capture::check(&guard, capturing.id)?;
        (LastRecord::Capture { id: capturing.id, nodes: capturing.last }, None)
    } else {
        let recording = Arc::new(Recording::default());
        (LastRecord::Stream(Arc::clone(&recording)), Some(recording))
    };
    drop(guard);
    if let Some(recording) = recording {
        submit(default_stream, stream, Work::Record(recording))?;
    }
    let mut guard = driver()?;
    guard.events.get_mut(&event).ok_or(Code::ERROR_INVALID_HANDLE)?.last_record = last_record;
    Ok(())
}

pub(crate) unsafe fn record_with_flags(
    default_stream: DefaultStream,
    event: Handle,
    stream: Handle,
    _flags: c_uint,
) -> Outcome {
    // SAFETY: the caller guarantees that the handles are valid.
    unsafe { record(default_stream, event, stream) }
}

/// The last recording of an event; none if it was never recorded.
fn recording(event: Handle) -> Result<Option<Arc<Recording>>, Code> {
    let mut driver = driver()?;
    let last_record = driver.events.get(&event).ok_or(Code::ERROR_INVALID_HANDLE)?.last_record.clone();
    match last_record {
        LastRecord::Never => Ok(None),
        LastRecord::Stream(recording) => Ok(Some(recording)),
        LastRecord::Capture { id, .. } if driver.captures.contains_key(&id) => {
            capture::invalidate(&mut driver, id);
            Err(Code::ERROR_CAPTURED_EVENT)
        }
        // The capture has ended, so the event is not valid outside of it.
        LastRecord::Capture { .. } => Err(Code::ERROR_INVALID_VALUE),
    }
}

pub(crate) unsafe fn query(event: Handle) -> Outcome {
    capture::forbid_unsafe(&mut *driver()?)?;
    match recording(event)? {
        Some(recording) if recording.completed_at().is_none() => Err(Code::ERROR_NOT_READY),
        _ => Ok(()),
    }
}

pub(crate) unsafe fn synchronize(event: Handle) -> Outcome {
    capture::forbid_unsafe(&mut *driver()?)?;
    let Some(recording) = recording(event)? else { return Ok(()) };
    let mut driver = driver()?;
    while recording.completed_at().is_none() {
        driver = driver.wait();
    }
    Ok(())
}

pub(crate) unsafe fn elapsed(out: *mut f32, from: Handle, to: Handle) -> Outcome {
    for event in [from, to] {
        if !driver()?.events.get(&event).ok_or(Code::ERROR_INVALID_HANDLE)?.timing {
            return Err(Code::ERROR_INVALID_HANDLE);
        }
    }
    let reached = |event: Handle| match recording(event)? {
        None => Err(Code::ERROR_INVALID_HANDLE),
        Some(recording) => recording.completed_at().ok_or(Code::ERROR_NOT_READY),
    };
    let (from, to) = (reached(from)?, reached(to)?);
    let span = if to >= from { (to - from) as f64 } else { -((from - to) as f64) };
    #[allow(clippy::cast_possible_truncation, reason = "the driver's type")]
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe {
        write_out(out, (span / 1e6) as f32)
    }
}

pub(crate) unsafe fn wait(
    default_stream: DefaultStream,
    stream: Handle,
    event: Handle,
    _flags: c_uint,
) -> Outcome {
    let mut guard = driver()?;
    let last_record = guard.events.get(&event).ok_or(Code::ERROR_INVALID_HANDLE)?.last_record.clone();
    let resolved = resolve(&mut guard, default_stream, stream)?;
    match last_record {
        LastRecord::Never => Ok(()),
        LastRecord::Capture { id, nodes } => capture::join(&mut guard, resolved, id, &nodes),
        LastRecord::Stream(recording) => {
            drop(guard);
            submit(default_stream, stream, Work::Await(recording))
        }
    }
}

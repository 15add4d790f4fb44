//! Events: places in a stream that can be waited for.

use std::ffi::c_uint;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::capture;
use crate::code::{Code, Outcome, put};
use crate::stream::{Form, Work, resolve, submit};
use crate::world::{Handle, new_handle, world};

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: c_uint = 2;

/// One recording of an event.
#[derive(Default)]
pub(crate) struct Mark(AtomicU64);

impl Mark {
    /// The device has come here.
    pub(crate) fn reach(&self, at: u64) {
        self.0.store(at.max(1), Ordering::Release);
    }

    /// When the device came here, if it has.
    pub(crate) fn reached(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Acquire)).filter(|at| *at != 0)
    }
}

/// Where an event was last recorded.
#[derive(Clone, Default)]
pub(crate) enum Place {
    #[default]
    Nowhere,
    Stream(Arc<Mark>),
    /// In a capture, after these nodes.
    Capture {
        id: Handle,
        nodes: Vec<usize>,
    },
}

/// See the head of this file.
pub(crate) struct Event {
    timing: bool,
    pub(crate) place: Place,
}

pub(crate) unsafe fn create(out: *mut Handle, flags: c_uint) -> Outcome {
    let mut world = world()?;
    world.current()?;
    let event = new_handle();
    // SAFETY: the caller vouches for `out`.
    unsafe { put(out, event) }?;
    let timing = flags & DISABLE_TIMING == 0;
    world.events.insert(event, Event { timing, place: Place::Nowhere });
    Ok(())
}

pub(crate) unsafe fn destroy(event: Handle) -> Outcome {
    world()?.events.remove(&event).map(drop).ok_or(Code::ERROR_INVALID_HANDLE)
}

pub(crate) unsafe fn record(form: Form, event: Handle, stream: Handle) -> Outcome {
    let mut held = world()?;
    if !held.events.contains_key(&event) {
        return Err(Code::ERROR_INVALID_HANDLE);
    }
    let resolved = resolve(&mut held, form, stream)?;
    let captured = held.streams[&resolved].capturing.clone();
    let (place, mark) = if let Some(capturing) = captured {
        capture::check(&held, capturing.id)?;
        (Place::Capture { id: capturing.id, nodes: capturing.last }, None)
    } else {
        let mark = Arc::new(Mark::default());
        (Place::Stream(Arc::clone(&mark)), Some(mark))
    };
    drop(held);
    if let Some(mark) = mark {
        submit(form, stream, Work::Record(mark))?;
    }
    let mut held = world()?;
    held.events.get_mut(&event).ok_or(Code::ERROR_INVALID_HANDLE)?.place = place;
    Ok(())
}

pub(crate) unsafe fn record_with_flags(form: Form, event: Handle, stream: Handle, _flags: c_uint) -> Outcome {
    // SAFETY: the caller vouches for the handles.
    unsafe { record(form, event, stream) }
}

/// The recording that questions are about; none if it never was recorded.
fn mark(event: Handle) -> Result<Option<Arc<Mark>>, Code> {
    let mut world = world()?;
    let place = world.events.get(&event).ok_or(Code::ERROR_INVALID_HANDLE)?.place.clone();
    match place {
        Place::Nowhere => Ok(None),
        Place::Stream(mark) => Ok(Some(mark)),
        Place::Capture { id, .. } if world.captures.contains_key(&id) => {
            capture::invalidate(&mut world, id);
            Err(Code::ERROR_CAPTURED_EVENT)
        }
        // The capture has ended: the event stands for nothing.
        Place::Capture { .. } => Err(Code::ERROR_INVALID_VALUE),
    }
}

pub(crate) unsafe fn query(event: Handle) -> Outcome {
    capture::forbid_unsafe(&mut *world()?)?;
    match mark(event)? {
        Some(mark) if mark.reached().is_none() => Err(Code::ERROR_NOT_READY),
        _ => Ok(()),
    }
}

pub(crate) unsafe fn synchronize(event: Handle) -> Outcome {
    capture::forbid_unsafe(&mut *world()?)?;
    let Some(mark) = mark(event)? else { return Ok(()) };
    let mut world = world()?;
    while mark.reached().is_none() {
        world = world.wait();
    }
    Ok(())
}

pub(crate) unsafe fn elapsed(out: *mut f32, from: Handle, to: Handle) -> Outcome {
    for event in [from, to] {
        if !world()?.events.get(&event).ok_or(Code::ERROR_INVALID_HANDLE)?.timing {
            return Err(Code::ERROR_INVALID_HANDLE);
        }
    }
    let reached = |event: Handle| match mark(event)? {
        None => Err(Code::ERROR_INVALID_HANDLE),
        Some(mark) => mark.reached().ok_or(Code::ERROR_NOT_READY),
    };
    let (from, to) = (reached(from)?, reached(to)?);
    let span = if to >= from { (to - from) as f64 } else { -((from - to) as f64) };
    #[allow(clippy::cast_possible_truncation, reason = "the driver answers in this type")]
    // SAFETY: the caller vouches for `out`.
    unsafe {
        put(out, (span / 1e6) as f32)
    }
}

pub(crate) unsafe fn wait(form: Form, stream: Handle, event: Handle, _flags: c_uint) -> Outcome {
    let mut held = world()?;
    let place = held.events.get(&event).ok_or(Code::ERROR_INVALID_HANDLE)?.place.clone();
    let resolved = resolve(&mut held, form, stream)?;
    match place {
        Place::Nowhere => Ok(()),
        Place::Capture { id, nodes } => capture::join(&mut held, resolved, id, &nodes),
        Place::Stream(mark) => {
            drop(held);
            submit(form, stream, Work::Await(mark))
        }
    }
}

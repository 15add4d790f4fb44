//! Contexts, and which of them is current on a thread.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use crate::capture;
use crate::code::{Code, Outcome, put};
use crate::device::{self, index};
use crate::executor;
use crate::rm;
use crate::shared::Seat;
use crate::stream::{Kind, Stream, wait_for};
use crate::world::{Context, Handle, new_handle, with_current, world};

/// Makes a context and everything that belongs to it.
fn make(device: usize, primary: bool) -> Result<Handle, Code> {
    let seat = Arc::new(Seat::take(device)?);
    let (context, legacy) = (new_handle(), new_handle());
    {
        let mut world = world()?;
        world.streams.insert(legacy, Stream::new(context, Kind::Legacy, 0, 0));
        let seat = Arc::clone(&seat);
        let made = Context {
            device,
            seat,
            legacy,
            failure: None,
            suspended: false,
            asleep: false,
            retained: 1,
            primary,
        };
        world.contexts.insert(context, made);
    }
    // Not under the lock: these calls come back to us through whoever stands in front of `ioctl`.
    rm::make_channels(context, device);
    executor::start(context, seat)?;
    Ok(context)
}

/// Ends a context. What it was given and has not done is lost.
fn end(context: Handle) -> Outcome {
    let mut held = world()?;
    let ended = held.contexts.remove(&context).ok_or(Code::ERROR_INVALID_CONTEXT)?;
    held.streams.retain(|_, stream| stream.context != context);
    held.modules.retain(|_, whose| *whose != context);
    ended.seat.wake();
    held.announce(context);
    drop(held);
    rm::free_channels(context);
    Ok(())
}

pub(crate) unsafe fn create(out: *mut Handle, _flags: c_uint, device: c_int) -> Outcome {
    world()?;
    if out.is_null() {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    let context = make(index(device)?, false)?;
    with_current(|stack| stack.push(context));
    // SAFETY: the caller vouches for `out`.
    unsafe { put(out, context) }
}

pub(crate) unsafe fn destroy(context: Handle) -> Outcome {
    if world()?.contexts.get(&context).is_none_or(|its| its.primary) {
        return Err(Code::ERROR_INVALID_CONTEXT);
    }
    end(context)?;
    with_current(|stack| {
        if stack.last() == Some(&context) {
            stack.pop();
        }
    });
    Ok(())
}

pub(crate) unsafe fn retain_primary(out: *mut Handle, device: c_int) -> Outcome {
    let device = index(device)?;
    if out.is_null() {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    let known = {
        let mut world = world()?;
        let mut all = world.contexts.iter_mut();
        all.find(|(_, context)| context.primary && context.device == device).map(|(handle, context)| {
            context.retained += 1;
            *handle
        })
    };
    let context = known.map_or_else(|| make(device, true), Ok)?;
    // SAFETY: the caller vouches for `out`.
    unsafe { put(out, context) }
}

pub(crate) unsafe fn release_primary(device: c_int) -> Outcome {
    let device = index(device)?;
    let last = {
        let mut world = world()?;
        let mut all = world.contexts.iter_mut();
        let (handle, context) = all
            .find(|(_, context)| context.primary && context.device == device)
            .ok_or(Code::ERROR_INVALID_CONTEXT)?;
        context.retained -= 1;
        (context.retained == 0).then_some(*handle)
    };
    last.map_or(Ok(()), end)
}

pub(crate) unsafe fn primary_state(device: c_int, flags: *mut c_uint, active: *mut c_int) -> Outcome {
    let device = index(device)?;
    let world = world()?;
    let is = world.contexts.values().any(|context| context.primary && context.device == device);
    // SAFETY: the caller vouches for both.
    unsafe {
        put(flags, 0)?;
        put(active, is.into())
    }
}

pub(crate) unsafe fn current(out: *mut Handle) -> Outcome {
    world()?;
    // SAFETY: the caller vouches for `out`.
    unsafe { put(out, with_current(|stack| stack.last().copied()).unwrap_or(0)) }
}

pub(crate) unsafe fn set_current(context: Handle) -> Outcome {
    if context != 0 && !world()?.contexts.contains_key(&context) {
        return Err(Code::ERROR_INVALID_CONTEXT);
    }
    with_current(|stack| {
        stack.pop();
        if context != 0 {
            stack.push(context);
        }
    });
    Ok(())
}

pub(crate) unsafe fn push(context: Handle) -> Outcome {
    if !world()?.contexts.contains_key(&context) {
        return Err(Code::ERROR_INVALID_CONTEXT);
    }
    with_current(|stack| stack.push(context));
    Ok(())
}

pub(crate) unsafe fn pop(out: *mut Handle) -> Outcome {
    world()?;
    let popped = with_current(Vec::pop).ok_or(Code::ERROR_INVALID_CONTEXT)?;
    // SAFETY: null, or the caller vouches for `out`.
    if out.is_null() { Ok(()) } else { unsafe { put(out, popped) } }
}

pub(crate) unsafe fn device(out: *mut c_int) -> Outcome {
    let world = world()?;
    let context = with_current(|stack| stack.last().copied()).ok_or(Code::ERROR_INVALID_CONTEXT)?;
    let device = world.contexts.get(&context).ok_or(Code::ERROR_INVALID_CONTEXT)?.device;
    // SAFETY: the caller vouches for `out`.
    unsafe { put(out, device::ordinal(device)) }
}

/// Waits until everything that was given to the current context is done.
pub(crate) fn synchronize() -> Outcome {
    let mut world = world()?;
    let context = world.current()?;
    capture::forbid_unsafe(&mut world)?;
    let until = world.unfinished(|stream| stream.context == context);
    wait_for(world, &until)
}

pub(crate) unsafe fn synchronize_current() -> Outcome {
    synchronize()
}

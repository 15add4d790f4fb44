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
use crate::world::{Context, Handle, Primary, new_handle, with_current, world};

/// Makes a context and everything that belongs to it.
fn make(context: Handle, device: usize, primary: bool) -> Outcome {
    let seat = Arc::new(Seat::take(device)?);
    let legacy = new_handle();
    {
        let mut world = world()?;
        world.streams.insert(legacy, Stream::new(context, Kind::Legacy, 0, 0));
        let seat = Arc::clone(&seat);
        let made = Context { device, seat, legacy, failure: None, suspended: false, asleep: false, primary };
        world.contexts.insert(context, made);
    }
    // Not under the lock: these calls come back to us through whoever stands in front of `ioctl`.
    rm::make_channels(context, device);
    executor::start(context, seat)
}

/// Ends a context. What it was given and has not done is lost.
fn end(context: Handle) -> Outcome {
    let mut held = world()?;
    let ended = held.contexts.remove(&context).ok_or(Code::ERROR_INVALID_CONTEXT)?;
    held.streams.retain(|_, stream| stream.context != context);
    held.modules.retain(|_, whose| *whose != context);
    held.memory.end(context);
    if !ended.primary {
        held.destroyed.insert(context);
    }
    ended.seat.wake();
    held.mark_busy(context);
    drop(held);
    rm::free_channels(context);
    Ok(())
}

pub(crate) unsafe fn create(out: *mut Handle, _flags: c_uint, device: c_int) -> Outcome {
    world()?;
    if out.is_null() {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    let context = new_handle();
    make(context, index(device)?, false)?;
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
    let (context, is_there) = {
        let mut world = world()?;
        let primary =
            world.primaries.entry(device).or_insert_with(|| Primary { handle: new_handle(), retained: 0 });
        primary.retained += 1;
        let handle = primary.handle;
        (handle, world.contexts.contains_key(&handle))
    };
    if !is_there {
        make(context, device, true)?;
    }
    // SAFETY: the caller vouches for `out`.
    unsafe { put(out, context) }
}

pub(crate) unsafe fn release_primary(device: c_int) -> Outcome {
    let device = index(device)?;
    let is_last = {
        let mut world = world()?;
        let primary = world.primaries.get_mut(&device).filter(|primary| primary.retained > 0);
        let primary = primary.ok_or(Code::ERROR_INVALID_CONTEXT)?;
        primary.retained -= 1;
        primary.retained == 0
    };
    if is_last { end_primary(device) } else { Ok(()) }
}

/// Ends it whoever uses it. Those who retained it have yet to release it.
pub(crate) unsafe fn reset_primary(device: c_int) -> Outcome {
    end_primary(index(device)?)
}

fn end_primary(device: usize) -> Outcome {
    let is_there = {
        let world = world()?;
        let handle = world.primaries.get(&device).map(|primary| primary.handle);
        handle.filter(|handle| world.contexts.contains_key(handle))
    };
    is_there.map_or(Ok(()), end)
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

/// What a driver does with a context that was destroyed nobody knows: to use one is worth a crash.
fn must_be_there(context: Handle) -> Outcome {
    let world = world()?;
    if world.destroyed.contains(&context) {
        eprintln!("a context is used that was destroyed");
        std::process::abort();
    }
    if world.contexts.contains_key(&context) { Ok(()) } else { Err(Code::ERROR_INVALID_CONTEXT) }
}

pub(crate) unsafe fn set_current(context: Handle) -> Outcome {
    if context != 0 {
        must_be_there(context)?;
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
    must_be_there(context)?;
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

/// Dependencies until everything that was given to the current context is done.
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

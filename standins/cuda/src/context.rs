//! Contexts, and the current context of each thread.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use crate::capture;
use crate::code::{Code, Outcome, write_out};
use crate::device::{self, index};
use crate::driver::{Context, Handle, Primary, driver, new_handle, with_current};
use crate::executor;
use crate::rm;
use crate::shared::RunlistEntry;
use crate::stream::{Kind, Stream, wait_for};

/// Creates a context with its default stream, runlist entry, channels and executor.
fn make(context: Handle, device: usize, primary: bool) -> Outcome {
    let entry = Arc::new(RunlistEntry::allocate(device)?);
    let legacy = new_handle();
    {
        let mut driver = driver()?;
        driver.streams.insert(legacy, Stream::new(context, Kind::Legacy, 0, 0));
        let entry = Arc::clone(&entry);
        let made =
            Context { device, entry, legacy, failure: None, is_disabled: false, is_asleep: false, primary };
        driver.contexts.insert(context, made);
    }
    // Without the lock: these calls re-enter the driver if a hook in front of `ioctl` calls it.
    rm::allocate_channels(context, device);
    executor::start(context, entry)
}

/// Destroys a context. Its pending work is dropped.
fn end(context: Handle) -> Outcome {
    let mut guard = driver()?;
    let ended = guard.contexts.remove(&context).ok_or(Code::ERROR_INVALID_CONTEXT)?;
    guard.streams.retain(|_, stream| stream.context != context);
    guard.modules.retain(|_, owner| *owner != context);
    guard.memory.end(context);
    if !ended.primary {
        guard.destroyed.insert(context);
    }
    ended.entry.wake();
    guard.notify_progress(context);
    drop(guard);
    rm::free_channels(context);
    Ok(())
}

pub(crate) unsafe fn create(out: *mut Handle, _flags: c_uint, device: c_int) -> Outcome {
    driver()?;
    if out.is_null() {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    let context = new_handle();
    make(context, index(device)?, false)?;
    with_current(|stack| stack.push(context));
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, context) }
}

pub(crate) unsafe fn destroy(context: Handle) -> Outcome {
    if driver()?.contexts.get(&context).is_none_or(|its| its.primary) {
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
    let (context, existing) = {
        let mut driver = driver()?;
        let primary =
            driver.primaries.entry(device).or_insert_with(|| Primary { handle: new_handle(), retained: 0 });
        primary.retained += 1;
        let handle = primary.handle;
        (handle, driver.contexts.contains_key(&handle))
    };
    if !existing {
        make(context, device, true)?;
    }
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, context) }
}

pub(crate) unsafe fn release_primary(device: c_int) -> Outcome {
    let device = index(device)?;
    let is_last = {
        let mut driver = driver()?;
        let primary = driver.primaries.get_mut(&device).filter(|primary| primary.retained > 0);
        let primary = primary.ok_or(Code::ERROR_INVALID_CONTEXT)?;
        primary.retained -= 1;
        primary.retained == 0
    };
    if is_last { end_primary(device) } else { Ok(()) }
}

/// Destroys the primary context even if it is in use. Its users still have to release it.
pub(crate) unsafe fn reset_primary(device: c_int) -> Outcome {
    end_primary(index(device)?)
}

fn end_primary(device: usize) -> Outcome {
    let existing = {
        let driver = driver()?;
        let handle = driver.primaries.get(&device).map(|primary| primary.handle);
        handle.filter(|handle| driver.contexts.contains_key(handle))
    };
    existing.map_or(Ok(()), end)
}

pub(crate) unsafe fn primary_state(device: c_int, flags: *mut c_uint, active: *mut c_int) -> Outcome {
    let device = index(device)?;
    let driver = driver()?;
    let is = driver.contexts.values().any(|context| context.primary && context.device == device);
    // SAFETY: the caller guarantees that both are valid.
    unsafe {
        write_out(flags, 0)?;
        write_out(active, is.into())
    }
}

pub(crate) unsafe fn current(out: *mut Handle) -> Outcome {
    driver()?;
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, with_current(|stack| stack.last().copied()).unwrap_or(0)) }
}

/// Using a destroyed context is undefined in the vendor's driver. Here it aborts, so that tests detect it.
fn check_exists(context: Handle) -> Outcome {
    let driver = driver()?;
    if driver.destroyed.contains(&context) {
        eprintln!("stand-in CUDA driver: a destroyed context was used");
        std::process::abort();
    }
    if driver.contexts.contains_key(&context) { Ok(()) } else { Err(Code::ERROR_INVALID_CONTEXT) }
}

pub(crate) unsafe fn set_current(context: Handle) -> Outcome {
    if context != 0 {
        check_exists(context)?;
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
    check_exists(context)?;
    with_current(|stack| stack.push(context));
    Ok(())
}

pub(crate) unsafe fn pop(out: *mut Handle) -> Outcome {
    driver()?;
    let popped = with_current(Vec::pop).ok_or(Code::ERROR_INVALID_CONTEXT)?;
    // SAFETY: null, or the caller guarantees that `out` is valid.
    if out.is_null() { Ok(()) } else { unsafe { write_out(out, popped) } }
}

pub(crate) unsafe fn device(out: *mut c_int) -> Outcome {
    let driver = driver()?;
    let context = with_current(|stack| stack.last().copied()).ok_or(Code::ERROR_INVALID_CONTEXT)?;
    let device = driver.contexts.get(&context).ok_or(Code::ERROR_INVALID_CONTEXT)?.device;
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, device::ordinal(device)) }
}

/// Waits until all work of the current context is complete.
pub(crate) fn synchronize_now() -> Outcome {
    let context = driver()?.current()?;
    synchronize_all_of(context)
}

fn synchronize_all_of(context: Handle) -> Outcome {
    let mut driver = driver()?;
    capture::forbid_unsafe(&mut driver)?;
    let until = driver.unfinished(|stream| stream.context == context);
    wait_for(driver, &until)
}

pub(crate) unsafe fn synchronize_current() -> Outcome {
    synchronize_now()
}

/// No context means the current one.
pub(crate) unsafe fn synchronize(context: Handle) -> Outcome {
    if context == 0 {
        return synchronize_now();
    }
    check_exists(context)?;
    synchronize_all_of(context)
}

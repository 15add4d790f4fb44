//! Streams. A handle is an address that is valid only in this copy of the library.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use crate::capture::Capture;
use crate::device::{Device, HwQueue, current, devices, number, write_out};
use crate::error::{CONTEXT_IS_DESTROYED, Code, INVALID_HANDLE, INVALID_VALUE, NOT_READY, to_code};
use crate::event;

pub(crate) type Handle = *mut c_void;

pub(crate) struct Stream {
    pub(crate) device: &'static Device,
    pub(crate) queue: Arc<HwQueue>,
    priority: c_int,
    flags: c_uint,
    /// It has a hardware queue that no other stream uses.
    owns_queue: bool,
    pub(crate) capture: Mutex<Option<Capture>>,
}

static STREAMS: OnceLock<RwLock<HashMap<usize, Arc<Stream>>>> = OnceLock::new();

fn streams() -> &'static RwLock<HashMap<usize, Arc<Stream>>> {
    STREAMS.get_or_init(RwLock::default)
}

thread_local! {
    /// The default streams of this thread, one for each device.
    static OWN: RefCell<HashMap<usize, Arc<Stream>>> = RefCell::default();
}

fn new_stream(device: &'static Device, flags: c_uint, priority: c_int) -> Result<Arc<Stream>, Code> {
    let (queue, priority) = (device.queue(priority)?, priority.clamp(-1, 1));
    Ok(Arc::new(Stream { device, queue, priority, flags, owns_queue: false, capture: Mutex::default() }))
}

/// The stream of a handle: null and 1 are the device's default stream, 2 is the thread's default stream.
pub(crate) fn get(handle: Handle) -> Result<Arc<Stream>, Code> {
    static DEFAULTS: OnceLock<RwLock<HashMap<usize, Arc<Stream>>>> = OnceLock::new();
    match handle.addr() {
        0 | 1 => {
            let device = current()?;
            let defaults = DEFAULTS.get_or_init(RwLock::default);
            if let Some(existing) =
                defaults.read().unwrap_or_else(PoisonError::into_inner).get(&device.number)
            {
                return Ok(Arc::clone(existing));
            }
            let new = new_stream(device, 0, 0)?;
            let mut defaults = defaults.write().unwrap_or_else(PoisonError::into_inner);
            Ok(Arc::clone(defaults.entry(device.number).or_insert(new)))
        }
        2 => {
            let device = current()?;
            OWN.with_borrow_mut(|own| match own.get(&device.number) {
                Some(existing) => Ok(Arc::clone(existing)),
                None => {
                    new_stream(device, 0, 0).inspect(|new| drop(own.insert(device.number, Arc::clone(new))))
                }
            })
        }
        address => {
            let streams = streams().read().unwrap_or_else(PoisonError::into_inner);
            streams.get(&address).cloned().ok_or(CONTEXT_IS_DESTROYED)
        }
    }
}

pub(crate) extern "C" fn create_with_priority(out: *mut Handle, flags: c_uint, priority: c_int) -> Code {
    to_code(
        current().and_then(|device| new_stream(device, flags, priority)).and_then(|stream| add(out, stream)),
    )
}

fn add(out: *mut Handle, stream: Arc<Stream>) -> Result<(), Code> {
    let handle = Arc::as_ptr(&stream).cast_mut().cast::<c_void>();
    write_out(out, handle)?;
    streams().write().unwrap_or_else(PoisonError::into_inner).insert(handle.addr(), stream);
    Ok(())
}

pub(crate) extern "C" fn create_with_flags(out: *mut Handle, flags: c_uint) -> Code {
    create_with_priority(out, flags, 0)
}

pub(crate) extern "C" fn create(out: *mut Handle) -> Code {
    create_with_priority(out, 0, 0)
}

/// As in AMD's runtime, a stream with a mask has a hardware queue of its own.
pub(crate) extern "C" fn create_with_mask(out: *mut Handle, words: u32, mask: *const u32) -> Code {
    to_code(current().and_then(|device| {
        if words == 0 || mask.is_null() {
            return Err(INVALID_VALUE);
        }
        let (queue, capture) = (device.exclusive_queue()?, Mutex::default());
        add(out, Arc::new(Stream { device, queue, priority: 0, flags: 0, owns_queue: true, capture }))
    }))
}

pub(crate) extern "C" fn destroy(handle: Handle) -> Code {
    let removed = streams().write().unwrap_or_else(PoisonError::into_inner).remove(&handle.addr());
    if let Some(stream) = removed.as_ref().filter(|stream| stream.owns_queue) {
        stream.queue.destroy();
    }
    to_code(removed.map(drop).ok_or(if handle.addr() <= 2 { INVALID_HANDLE } else { CONTEXT_IS_DESTROYED }))
}

/// Destroys the streams of the device, and releases its memory and the memory that the streams wait for.
pub(crate) extern "C" fn reset_device() -> Code {
    to_code(current().map(|device| {
        let mut streams = streams().write().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|_, stream| stream.device.number != device.number);
        crate::memory::free_signals();
        crate::device_memory::forget(device.number);
    }))
}

pub(crate) extern "C" fn synchronize(handle: Handle) -> Code {
    to_code(get(handle).and_then(|stream| {
        let marker = stream.queue.mark()?;
        stream.queue.wait(marker)
    }))
}

pub(crate) extern "C" fn synchronize_spt(handle: Handle) -> Code {
    synchronize(per_thread(handle))
}

/// In the `_spt` functions, a null stream means the thread's default stream.
pub(crate) fn per_thread(handle: Handle) -> Handle {
    if handle.is_null() { std::ptr::without_provenance_mut(2) } else { handle }
}

pub(crate) extern "C" fn query(handle: Handle) -> Code {
    to_code(get(handle).and_then(|stream| {
        let marker = stream.queue.mark()?;
        if stream.queue.is_past(marker) { Ok(()) } else { Err(NOT_READY) }
    }))
}

pub(crate) extern "C" fn get_device(handle: Handle, out: *mut c_int) -> Code {
    to_code(get(handle).and_then(|stream| {
        let index = devices().iter().position(|device| device.number == stream.device.number);
        write_out(out, number(index.ok_or(INVALID_VALUE)?))
    }))
}

/// The older form, which returns the device itself.
pub(crate) extern "C" fn device_id(handle: Handle) -> c_int {
    let mut device = -1;
    get_device(handle, &raw mut device);
    device
}

pub(crate) extern "C" fn get_priority(handle: Handle, out: *mut c_int) -> Code {
    to_code(get(handle).and_then(|stream| write_out(out, stream.priority)))
}

pub(crate) extern "C" fn get_flags(handle: Handle, out: *mut c_uint) -> Code {
    to_code(get(handle).and_then(|stream| write_out(out, stream.flags)))
}

pub(crate) extern "C" fn wait_event(handle: Handle, event: event::Handle, _flags: c_uint) -> Code {
    to_code(get(handle).and_then(|stream| event::get(event)?.make_wait(&stream)))
}

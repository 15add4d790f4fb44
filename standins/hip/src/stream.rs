//! Streams. A handle is an address that is known to this copy of the library alone.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use crate::capture::Capture;
use crate::device::{Device, HwQueue, current, devices, number, put};
use crate::error::{CONTEXT_IS_DESTROYED, Code, INVALID_HANDLE, INVALID_VALUE, NOT_READY, answer};
use crate::event;

pub(crate) type Handle = *mut c_void;

pub(crate) struct Stream {
    pub(crate) device: &'static Device,
    pub(crate) queue: Arc<HwQueue>,
    priority: c_int,
    flags: c_uint,
    pub(crate) capture: Mutex<Option<Capture>>,
}

static STREAMS: OnceLock<RwLock<HashMap<usize, Arc<Stream>>>> = OnceLock::new();

fn streams() -> &'static RwLock<HashMap<usize, Arc<Stream>>> {
    STREAMS.get_or_init(RwLock::default)
}

thread_local! {
    /// This thread's own default streams, one for each device.
    static OWN: RefCell<HashMap<usize, Arc<Stream>>> = RefCell::default();
}

fn make(device: &'static Device, flags: c_uint, priority: c_int) -> Result<Arc<Stream>, Code> {
    let queue = device.queue(priority)?;
    Ok(Arc::new(Stream { device, queue, priority: priority.clamp(-1, 1), flags, capture: Mutex::default() }))
}

/// The stream a handle stands for: none is the device's default stream, two small numbers stand for the default streams.
pub(crate) fn get(handle: Handle) -> Result<Arc<Stream>, Code> {
    static DEFAULTS: OnceLock<RwLock<HashMap<usize, Arc<Stream>>>> = OnceLock::new();
    match handle.addr() {
        0 | 1 => {
            let device = current()?;
            let defaults = DEFAULTS.get_or_init(RwLock::default);
            if let Some(known) = defaults.read().unwrap_or_else(PoisonError::into_inner).get(&device.number) {
                return Ok(Arc::clone(known));
            }
            let new = make(device, 0, 0)?;
            let mut defaults = defaults.write().unwrap_or_else(PoisonError::into_inner);
            Ok(Arc::clone(defaults.entry(device.number).or_insert(new)))
        }
        2 => {
            let device = current()?;
            OWN.with_borrow_mut(|own| match own.get(&device.number) {
                Some(known) => Ok(Arc::clone(known)),
                None => make(device, 0, 0).inspect(|new| drop(own.insert(device.number, Arc::clone(new)))),
            })
        }
        address => {
            let streams = streams().read().unwrap_or_else(PoisonError::into_inner);
            streams.get(&address).cloned().ok_or(CONTEXT_IS_DESTROYED)
        }
    }
}

pub(crate) extern "C" fn create_with_priority(place: *mut Handle, flags: c_uint, priority: c_int) -> Code {
    answer(current().and_then(|device| make(device, flags, priority)).and_then(|stream| {
        let handle = Arc::as_ptr(&stream).cast_mut().cast::<c_void>();
        put(place, handle)?;
        streams().write().unwrap_or_else(PoisonError::into_inner).insert(handle.addr(), stream);
        Ok(())
    }))
}

pub(crate) extern "C" fn create_with_flags(place: *mut Handle, flags: c_uint) -> Code {
    create_with_priority(place, flags, 0)
}

pub(crate) extern "C" fn create(place: *mut Handle) -> Code {
    create_with_priority(place, 0, 0)
}

pub(crate) extern "C" fn create_with_mask(place: *mut Handle, _words: u32, _mask: *const u32) -> Code {
    create_with_priority(place, 0, 0)
}

pub(crate) extern "C" fn destroy(handle: Handle) -> Code {
    let gone = streams().write().unwrap_or_else(PoisonError::into_inner).remove(&handle.addr());
    answer(gone.map(drop).ok_or(if handle.addr() <= 2 { INVALID_HANDLE } else { CONTEXT_IS_DESTROYED }))
}

/// Destroys the streams of the device, and frees what it was given to wait for.
pub(crate) extern "C" fn reset_device() -> Code {
    answer(current().map(|device| {
        let mut streams = streams().write().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|_, stream| stream.device.number != device.number);
        crate::memory::free_signals();
    }))
}

pub(crate) extern "C" fn synchronize(handle: Handle) -> Code {
    answer(get(handle).and_then(|stream| {
        let marker = stream.queue.mark()?;
        stream.queue.wait(marker)
    }))
}

pub(crate) extern "C" fn synchronize_own(handle: Handle) -> Code {
    synchronize(own(handle))
}

/// As functions of the second kind understand a handle: no stream is the thread's own.
pub(crate) fn own(handle: Handle) -> Handle {
    if handle.is_null() { std::ptr::without_provenance_mut(2) } else { handle }
}

pub(crate) extern "C" fn query(handle: Handle) -> Code {
    answer(get(handle).and_then(|stream| {
        let marker = stream.queue.mark()?;
        if stream.queue.is_past(marker) { Ok(()) } else { Err(NOT_READY) }
    }))
}

pub(crate) extern "C" fn get_device(handle: Handle, place: *mut c_int) -> Code {
    answer(get(handle).and_then(|stream| {
        let index = devices().iter().position(|device| device.number == stream.device.number);
        put(place, number(index.ok_or(INVALID_VALUE)?))
    }))
}

/// The older form, which answers with the device itself.
pub(crate) extern "C" fn device_id(handle: Handle) -> c_int {
    let mut device = -1;
    get_device(handle, &raw mut device);
    device
}

pub(crate) extern "C" fn get_priority(handle: Handle, place: *mut c_int) -> Code {
    answer(get(handle).and_then(|stream| put(place, stream.priority)))
}

pub(crate) extern "C" fn get_flags(handle: Handle, place: *mut c_uint) -> Code {
    answer(get(handle).and_then(|stream| put(place, stream.flags)))
}

pub(crate) extern "C" fn wait_event(handle: Handle, event: event::Handle, _flags: c_uint) -> Code {
    answer(get(handle).and_then(|stream| event::get(event)?.hold_back(&stream)))
}

//! The device and contexts. Each thread has a current context; each context has a default stream.

use std::cell::RefCell;
use std::ffi::c_char;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use xsched_sim::SimDevice;
use xsched_standin_streams::object::{self, Handle, Object, get};
use xsched_standin_streams::open_device;

use crate::stream::Stream;
use crate::{Code, INVALID_PARAMETER, NO_CONTEXT, NO_DEVICE, acl, write};

/// The simulated device of this process.
pub(crate) fn device() -> Result<&'static SimDevice, Code> {
    static DEVICE: OnceLock<Option<SimDevice>> = OnceLock::new();
    DEVICE.get_or_init(open_device).as_ref().ok_or(NO_DEVICE)
}

pub(crate) struct Context {
    default_stream: OnceLock<Arc<Handle<Stream>>>,
    /// The streams that the program has created in it, for waiting for the device.
    streams: Mutex<Vec<Arc<Handle<Stream>>>>,
}

impl Object for Context {
    const TAG: u64 = u64::from_le_bytes(*b"acl ctxt");
    const INVALID: Code = INVALID_PARAMETER;
}

pub(crate) type ContextHandle = *const Handle<Context>;

thread_local!(static CURRENT: RefCell<Option<Arc<Handle<Context>>>> = const { RefCell::new(None) });

/// The context of the calling thread.
pub(crate) fn current() -> Result<Arc<Handle<Context>>, Code> {
    CURRENT.with_borrow(Clone::clone).ok_or(NO_CONTEXT)
}

/// The context of `aclrtSetDevice`, which the process shares.
fn primary() -> Result<Arc<Handle<Context>>, Code> {
    static PRIMARY: OnceLock<Arc<Handle<Context>>> = OnceLock::new();
    device()?;
    Ok(Arc::clone(PRIMARY.get_or_init(Context::create)))
}

impl Context {
    fn create() -> Arc<Handle<Self>> {
        Handle::new(Self { default_stream: OnceLock::new(), streams: Mutex::default() })
    }

    /// The default stream of a context.
    pub(crate) fn default_stream(context: &Arc<Handle<Self>>) -> Result<Arc<Handle<Stream>>, Code> {
        let stream = &context.object.default_stream;
        if stream.get().is_none() {
            let _ = stream.set(Handle::new(Stream::new(Arc::as_ptr(context).addr(), 0)?));
        }
        stream.get().cloned().ok_or(NO_DEVICE)
    }

    /// The program has created a stream in the context.
    pub(crate) fn add(&self, stream: Arc<Handle<Stream>>) {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
    }

    /// The program has destroyed a stream of the context.
    pub(crate) fn remove(&self, stream: *const Handle<Stream>) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|other| !std::ptr::eq(Arc::as_ptr(other), stream));
    }
}

fn only_device(number: i32) -> Result<(), Code> {
    if number == 0 { Ok(()) } else { Err(INVALID_PARAMETER) }
}

acl! {
    fn aclInit(_configuration: *const c_char) { device().map(drop) }
    fn aclFinalize() { Ok(()) }
    // SAFETY: as the vendor's headers demand.
    fn aclrtGetDeviceCount(count: *mut u32) { unsafe { write(count, 1) } }
    fn aclrtSetDevice(number: i32) {
        only_device(number)?;
        let context = primary()?;
        CURRENT.set(Some(context));
        Ok(())
    }
    fn aclrtResetDevice(number: i32) {
        only_device(number)?;
        CURRENT.set(None);
        Ok(())
    }
    fn aclrtGetDevice(number: *mut i32) {
        current()?;
        // SAFETY: as the vendor's headers demand.
        unsafe { write(number, 0) }
    }
    fn aclrtCreateContext(context: *mut ContextHandle, number: i32) {
        only_device(number)?;
        let new = Context::create();
        CURRENT.set(Some(Arc::clone(&new)));
        // SAFETY: as the vendor's headers demand.
        unsafe { write(context, Arc::into_raw(new)) }
    }
    fn aclrtDestroyContext(context: ContextHandle) {
        if current().is_ok_and(|current| std::ptr::eq(Arc::as_ptr(&current), context)) {
            CURRENT.set(None);
        }
        // SAFETY: as the vendor's headers demand.
        unsafe { object::destroy(context) }
    }
    fn aclrtSetCurrentContext(context: ContextHandle) {
        // SAFETY: as the vendor's headers demand.
        let context = unsafe { get(context) }?;
        CURRENT.set(Some(context));
        Ok(())
    }
    fn aclrtGetCurrentContext(context: *mut ContextHandle) {
        // SAFETY: as the vendor's headers demand.
        unsafe { write(context, Arc::as_ptr(&current()?)) }
    }
    fn aclrtSynchronizeDevice() {
        let context = current()?;
        Context::default_stream(&context)?.object.wait(-1)?;
        let streams = context.object.streams.lock().unwrap_or_else(PoisonError::into_inner).clone();
        streams.iter().try_for_each(|stream| stream.object.wait(-1))
    }
}

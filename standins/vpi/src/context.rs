//! The device and contexts. Each thread has a stack of contexts; the global context is below all others.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use xsched_sim::SimDevice;
use xsched_standin_streams::object::{self, Handle, Object, get};
use xsched_standin_streams::open_device;

use crate::stream::Stream;
use crate::{Code, INVALID_CONTEXT, INVALID_OPERATION, NO_DEVICE, vpi, vpi_void, write};

/// The simulated device of this process.
pub(crate) fn device() -> Result<&'static SimDevice, Code> {
    static DEVICE: OnceLock<Option<SimDevice>> = OnceLock::new();
    DEVICE.get_or_init(open_device).as_ref().ok_or(NO_DEVICE)
}

/// A context, with its streams, which are destroyed with it.
#[derive(Default)]
pub(crate) struct Context(Mutex<Vec<Arc<Handle<Stream>>>>);

impl Object for Context {
    const TAG: u64 = u64::from_le_bytes(*b"vpi ctxt");
    const INVALID: Code = INVALID_CONTEXT;
}

type ContextHandle = *const Handle<Context>;

impl Context {
    /// The program has created a stream in the context.
    pub(crate) fn add(&self, stream: Arc<Handle<Stream>>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
    }

    /// The program has destroyed a stream of the context.
    pub(crate) fn remove(&self, stream: *const Handle<Stream>) {
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|other| !std::ptr::eq(Arc::as_ptr(other), stream));
    }
}

thread_local!(static STACK: RefCell<Vec<Arc<Handle<Context>>>> = const { RefCell::new(Vec::new()) });

/// The context of the calling thread.
pub(crate) fn current() -> Arc<Handle<Context>> {
    static GLOBAL: OnceLock<Arc<Handle<Context>>> = OnceLock::new();
    let global = || Arc::clone(GLOBAL.get_or_init(|| Handle::new(Context::default())));
    STACK.with_borrow(|stack| stack.last().cloned()).unwrap_or_else(global)
}

vpi! {
    fn vpiContextCreate(_flags: u64, context: *mut ContextHandle) {
        // SAFETY: as the vendor's headers demand.
        unsafe { object::create(context, Context::default()) }
    }
    fn vpiContextPush(context: ContextHandle) {
        // SAFETY: as the vendor's headers demand.
        let context = unsafe { get(context) }?;
        STACK.with_borrow_mut(|stack| stack.push(context));
        Ok(())
    }
    fn vpiContextPop(context: *mut ContextHandle) {
        let popped = STACK.with_borrow_mut(Vec::pop).ok_or(INVALID_OPERATION)?;
        // SAFETY: as the vendor's headers demand. Null is allowed.
        let _ = unsafe { write(context, Arc::as_ptr(&popped)) };
        Ok(())
    }
    fn vpiContextSetCurrent(context: ContextHandle) {
        // SAFETY: as the vendor's headers demand. Null is the global context.
        let context = unsafe { get(context) }.ok();
        STACK.with_borrow_mut(|stack| if let Some(context) = context {
            stack.pop();
            stack.push(context);
        } else {
            stack.clear();
        });
        Ok(())
    }
    fn vpiContextGetCurrent(context: *mut ContextHandle) {
        // SAFETY: as the vendor's headers demand.
        unsafe { write(context, Arc::as_ptr(&current())) }
    }
}

vpi_void! {
    fn vpiContextDestroy(context: ContextHandle) {
        // SAFETY: as the vendor's headers demand.
        let Ok(destroyed) = (unsafe { get(context) }) else { return };
        let streams = std::mem::take(&mut *destroyed.object.0.lock().unwrap_or_else(PoisonError::into_inner));
        for stream in streams {
            // SAFETY: the program does not use the streams of a destroyed context.
            let _ = unsafe { object::destroy(Arc::as_ptr(&stream)) };
        }
        // SAFETY: as the vendor's headers demand.
        let _ = unsafe { object::destroy(context) };
    }
}

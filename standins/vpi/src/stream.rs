//! Streams. Commands are collected until the stream is flushed.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xsched_sim::SimQueue;
use xsched_standin_streams::StreamThread;
use xsched_standin_streams::object::{self, Handle, Object, get};

use crate::event::EventHandle;
use crate::{Code, INVALID_ARGUMENT, NO_DEVICE, OUT_OF_MEMORY, context, vpi, vpi_void, write};

/// How many commands a stream collects before it is flushed in any case.
const STAGED: usize = 16;

type Command = Box<dyn FnOnce(&SimQueue) + Send>;

pub(crate) struct Stream {
    /// The address of the context that it belongs to.
    pub(crate) context: usize,
    flags: u64,
    thread: StreamThread,
    staged: Mutex<Vec<Command>>,
}

impl Object for Stream {
    const TAG: u64 = u64::from_le_bytes(*b"vpi strm");
    const INVALID: Code = INVALID_ARGUMENT;
}

pub(crate) type StreamHandle = *const Handle<Stream>;

impl Stream {
    /// Adds a command, which runs when the stream is flushed.
    pub(crate) fn submit(&self, command: impl FnOnce(&SimQueue) + Send + 'static) {
        let mut staged = self.staged();
        staged.push(Box::new(command));
        if staged.len() >= STAGED {
            let _ = self.run(&mut staged);
        }
    }

    /// Runs the commands that were added.
    pub(crate) fn flush(&self) -> Result<(), Code> {
        self.run(&mut self.staged())
    }

    fn run(&self, staged: &mut Vec<Command>) -> Result<(), Code> {
        staged.drain(..).try_for_each(|command| self.thread.submit(command)).ok_or(NO_DEVICE)
    }

    fn sync(&self) -> Result<(), Code> {
        self.flush()?;
        self.thread.wait(-1);
        Ok(())
    }

    fn staged(&self) -> MutexGuard<'_, Vec<Command>> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

vpi! {
    fn vpiStreamCreate(flags: u64, out: *mut StreamHandle) {
        let current = context::current();
        let thread = StreamThread::new(context::device()?, "vpi").ok_or(OUT_OF_MEMORY)?;
        let stream = Stream { context: Arc::as_ptr(&current).addr(), flags, thread, staged: Mutex::default() };
        // SAFETY: as the vendor's headers demand.
        unsafe { object::create(out, stream)?; current.object.add(get(*out)?) };
        Ok(())
    }
    fn vpiStreamGetFlags(stream: StreamHandle, flags: *mut u64) {
        // SAFETY: as the vendor's headers demand.
        unsafe { write(flags, get(stream)?.object.flags) }
    }
    // SAFETY: as the vendor's headers demand.
    fn vpiStreamFlush(stream: StreamHandle) { unsafe { get(stream) }?.object.flush() }
    // SAFETY: as the vendor's headers demand.
    fn vpiStreamSync(stream: StreamHandle) { unsafe { get(stream) }?.object.sync() }
    fn vpiStreamWaitEvent(stream: StreamHandle, event: EventHandle) {
        // SAFETY: as the vendor's headers demand.
        let (stream, event) = unsafe { (get(stream)?, get(event)?) };
        stream.object.submit(move |_| event.object.signal.wait());
        Ok(())
    }
    fn vpiSubmitHostFunction(stream: StreamHandle, function: Option<unsafe extern "C" fn(*mut c_void)>, data: *mut c_void) {
        let function = function.ok_or(INVALID_ARGUMENT)?;
        // SAFETY: as the vendor's headers demand.
        let stream = unsafe { get(stream) }?;
        let data = data.expose_provenance();
        // SAFETY: the program passes a function for this pointer.
        stream.object.submit(move |_| unsafe { function(std::ptr::with_exposed_provenance_mut(data)) });
        stream.object.flush()
    }
}

vpi_void! {
    fn vpiStreamDestroy(stream: StreamHandle) {
        // SAFETY: as the vendor's headers demand.
        let Ok(destroyed) = (unsafe { get(stream) }) else { return };
        let _ = destroyed.object.sync();
        context::current().object.remove(stream);
        // SAFETY: as the vendor's headers demand.
        let _ = unsafe { object::destroy(stream) };
    }
}

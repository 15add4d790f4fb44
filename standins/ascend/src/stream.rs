//! Streams, their copies, and captures.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xsched_sim::SimQueue;
use xsched_standin_streams::object::{self, Handle, Object, get};
use xsched_standin_streams::{StreamThread, occupy};

use crate::context::{self, Context};
use crate::event::Event;
use crate::kernel::Launch;
use crate::{Code, INVALID_PARAMETER, NO_DEVICE, OTHER_CONTEXT, OUT_OF_MEMORY, TIMEOUT, acl, write};

/// What a command does. Addresses are the program's, which keeps the memory until the command has completed.
#[derive(Clone)]
pub(crate) enum Command {
    Kernel(Launch),
    Copy { to: usize, from: usize, size: usize },
    Fill { to: usize, byte: u8, size: usize },
    Record(Arc<Handle<Event>>),
    Wait(Arc<Handle<Event>>),
    Reset(Arc<Handle<Event>>),
}

pub(crate) struct Stream {
    /// The address of the context that it belongs to.
    context: usize,
    flags: u32,
    thread: StreamThread,
    /// The commands that were captured, while a capture is active.
    captured: Mutex<Option<Vec<Command>>>,
}

impl Object for Stream {
    const TAG: u64 = u64::from_le_bytes(*b"acl strm");
    const INVALID: Code = INVALID_PARAMETER;
}

impl Stream {
    pub(crate) fn new(context: usize, flags: u32) -> Result<Self, Code> {
        let thread = StreamThread::new(context::device()?, "ascend").ok_or(OUT_OF_MEMORY)?;
        Ok(Self { context, flags, thread, captured: Mutex::default() })
    }

    /// Runs a command, or records it while the stream is captured.
    pub(crate) fn submit(&self, command: Command) -> Result<(), Code> {
        if let Some(captured) = self.captured().as_mut() {
            captured.push(command);
            return Ok(());
        }
        self.thread.submit(move |sim| apply(sim, &command)).ok_or(NO_DEVICE)
    }

    /// Waits, without a limit if the timeout in milliseconds is negative.
    pub(crate) fn wait(&self, timeout: i32) -> Result<(), Code> {
        if self.thread.wait(timeout) { Ok(()) } else { Err(TIMEOUT) }
    }

    fn captured(&self) -> MutexGuard<'_, Option<Vec<Command>>> {
        self.captured.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn apply(sim: &SimQueue, command: &Command) {
    match command {
        Command::Kernel(launch) => {
            if occupy(sim, launch.duration()) {
                launch.apply();
            }
        }
        Command::Copy { to, from, size } => {
            let to = std::ptr::with_exposed_provenance_mut::<u8>(*to);
            // SAFETY: the program keeps both until the command has completed.
            unsafe { to.copy_from(std::ptr::with_exposed_provenance(*from), *size) };
        }
        Command::Fill { to, byte, size } => {
            // SAFETY: as above.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(*to).write_bytes(*byte, *size) };
        }
        Command::Record(event) => event.object.0.complete(),
        Command::Wait(event) => event.object.0.wait(),
        Command::Reset(event) => event.object.0.reset(),
    }
}

pub(crate) type StreamHandle = *const Handle<Stream>;

/// The stream of a handle, or the default stream of the current context, which has to be the stream's.
///
/// # Safety
/// As for [`get`].
pub(crate) unsafe fn find(stream: StreamHandle) -> Result<Arc<Handle<Stream>>, Code> {
    let context = context::current()?;
    if stream.is_null() {
        return Context::default_stream(&context);
    }
    // SAFETY: the caller guarantees it.
    let stream = unsafe { get(stream) }?;
    if stream.object.context == Arc::as_ptr(&context).addr() { Ok(stream) } else { Err(OTHER_CONTEXT) }
}

/// `aclmdlRI`: the commands of a capture.
struct Captured(Vec<Command>);

impl Object for Captured {
    const TAG: u64 = u64::from_le_bytes(*b"acl capt");
    const INVALID: Code = INVALID_PARAMETER;
}

acl! {
    fn aclrtCreateStreamWithConfig(out: *mut StreamHandle, _priority: u32, flags: u32) {
        let context = context::current()?;
        let stream = Stream::new(Arc::as_ptr(&context).addr(), flags)?;
        // SAFETY: as the vendor's headers demand.
        unsafe { object::create(out, stream)?; context.object.add(get(*out)?) };
        Ok(())
    }
    fn aclrtDestroyStream(stream: StreamHandle) {
        context::current()?.object.remove(stream);
        // SAFETY: as the vendor's headers demand.
        unsafe { object::destroy(stream) }
    }
    fn aclrtStreamGetFlags(stream: StreamHandle, flags: *mut u32) {
        // SAFETY: as the vendor's headers demand.
        unsafe { write(flags, find(stream)?.object.flags) }
    }
    // SAFETY: as the vendor's headers demand.
    fn aclrtSynchronizeStream(stream: StreamHandle) { unsafe { find(stream) }?.object.wait(-1) }
    fn aclrtSynchronizeStreamWithTimeout(stream: StreamHandle, timeout: i32) {
        // SAFETY: as the vendor's headers demand.
        unsafe { find(stream) }?.object.wait(timeout)
    }
    fn aclrtStreamQuery(stream: StreamHandle, status: *mut i32) {
        // SAFETY: as the vendor's headers demand.
        unsafe { write(status, i32::from(find(stream)?.object.wait(0).is_err())) }
    }
    fn aclrtMemcpyAsync(to: *mut c_void, room: usize, from: *const c_void, size: usize, _kind: i32, stream: StreamHandle) {
        let copy = Command::Copy { to: to.expose_provenance(), from: from.expose_provenance(), size };
        // SAFETY: as the vendor's headers demand.
        if size > room { Err(INVALID_PARAMETER) } else { unsafe { find(stream) }?.object.submit(copy) }
    }
    fn aclrtMemsetAsync(to: *mut c_void, room: usize, value: i32, size: usize, stream: StreamHandle) {
        let byte = u8::try_from(value).map_err(|_| INVALID_PARAMETER)?;
        let fill = Command::Fill { to: to.expose_provenance(), byte, size };
        // SAFETY: as the vendor's headers demand.
        if size > room { Err(INVALID_PARAMETER) } else { unsafe { find(stream) }?.object.submit(fill) }
    }
    fn aclmdlRICaptureBegin(stream: StreamHandle, _mode: i32) {
        // SAFETY: as the vendor's headers demand.
        *unsafe { find(stream) }?.object.captured() = Some(Vec::new());
        Ok(())
    }
    fn aclmdlRICaptureGetInfo(stream: StreamHandle, status: *mut i32, _model: *mut *const c_void) {
        // SAFETY: as the vendor's headers demand.
        unsafe { write(status, i32::from(find(stream)?.object.captured().is_some())) }
    }
    fn aclmdlRICaptureEnd(stream: StreamHandle, model: *mut *const c_void) {
        // SAFETY: as the vendor's headers demand.
        let commands = unsafe { find(stream) }?.object.captured().take().ok_or(INVALID_PARAMETER)?;
        // SAFETY: as the vendor's headers demand.
        unsafe { object::create(model.cast::<*const Handle<Captured>>(), Captured(commands)) }
    }
    fn aclmdlRIExecuteAsync(model: *const c_void, stream: StreamHandle) {
        // SAFETY: as the vendor's headers demand.
        let (model, stream) = unsafe { (get(model.cast::<Handle<Captured>>())?, find(stream)?) };
        model.object.0.iter().try_for_each(|command| stream.object.submit(command.clone()))
    }
}

/// A stream without flags.
///
/// # Safety
/// As for `aclrtCreateStreamWithConfig`.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the vendor's name")]
pub(crate) unsafe extern "C" fn aclrtCreateStream(out: *mut StreamHandle) -> Code {
    // SAFETY: the caller's own argument.
    unsafe { aclrtCreateStreamWithConfig(out, 0, 0) }
}

//! Streams: the submitted commands that have not completed, with their dependencies.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, PoisonError, RwLock};

use crate::capture::{self, Capturing};
use crate::code::{Code, Outcome, write_out};
use crate::driver::{Driver, DriverGuard, Handle, driver, new_handle};
use crate::event::Recording;
use crate::kernel::Effect;
use crate::shared::now;

/// How many commands a stream holds before a launch blocks.
const STREAM_CAPACITY: usize = 1024;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;
/// The handles of the default streams.
const LEGACY: Handle = 1;
const PER_THREAD: Handle = 2;
/// The highest stream priority; the lowest is 0.
const HIGHEST_PRIORITY: c_int = -5;

/// Which stream a function means by a null stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DefaultStream {
    /// The legacy default stream of the context, which synchronizes with its blocking streams.
    Legacy,
    /// The default stream of the calling thread.
    PerThread,
}

/// How a stream synchronizes with the legacy default stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Legacy,
    Blocking,
    NonBlocking,
}

/// A command of a stream.
#[derive(Clone)]
pub(crate) enum Work {
    Kernel {
        ns: u64,
        effect: Effect,
    },
    Copy {
        to: usize,
        from: usize,
        length: usize,
    },
    Put {
        to: usize,
        bytes: Arc<[u8]>,
    },
    Set {
        to: usize,
        value: u32,
        count: usize,
    },
    Host {
        function: unsafe extern "C" fn(*mut c_void),
        data: usize,
        started: bool,
    },
    Record(Arc<Recording>),
    Await(Arc<Recording>),
    WaitValue {
        address: usize,
        value: u32,
        how: c_uint,
    },
    WriteValue {
        address: usize,
        value: u32,
    },
    /// In a graph only. The memory is reserved when the graph is launched.
    GraphAllocation {
        device: usize,
        bytes: u64,
    },
}

/// One entry of a stream.
pub(crate) struct Command {
    pub(crate) number: u64,
    /// When it was submitted.
    pub(crate) at: u64,
    /// Positions that other streams must reach first.
    pub(crate) after: Vec<(Handle, u64)>,
    pub(crate) work: Work,
}

impl Command {
    /// Whether it may have waited for something other than the preceding command of its stream.
    pub(crate) fn waited(&self) -> bool {
        !self.after.is_empty() || matches!(self.work, Work::Await(_) | Work::WaitValue { .. })
    }
}

/// A stream.
pub(crate) struct Stream {
    pub(crate) context: Handle,
    pub(crate) kind: Kind,
    flags: c_uint,
    pub(crate) priority: c_int,
    pub(crate) queue: VecDeque<Command>,
    /// The numbers of the last submitted and the last completed command.
    pub(crate) submitted: u64,
    pub(crate) done: u64,
    /// When the last host function of this stream returned.
    pub(crate) host_function_ended_at: u64,
    pub(crate) capturing: Option<Capturing>,
    /// Destroyed: removed when its work has completed.
    pub(crate) is_destroyed: bool,
}

impl Stream {
    pub(crate) fn new(context: Handle, kind: Kind, flags: c_uint, priority: c_int) -> Self {
        Self {
            context,
            kind,
            flags,
            priority,
            queue: VecDeque::new(),
            submitted: 0,
            done: 0,
            host_function_ended_at: 0,
            capturing: None,
            is_destroyed: false,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.done >= self.submitted
    }
}

thread_local! {
    /// This thread's default stream of each context.
    static OWN: std::cell::RefCell<HashMap<Handle, Handle>> = std::cell::RefCell::default();
}

/// The stream that a handle means. It must belong to the current context.
pub(crate) fn resolve(
    driver: &mut Driver,
    default_stream: DefaultStream,
    stream: Handle,
) -> Result<Handle, Code> {
    let context = driver.current()?;
    let meant = match (stream, default_stream) {
        (0, DefaultStream::Legacy) | (LEGACY, _) => driver.contexts[&context].legacy,
        (0, DefaultStream::PerThread) | (PER_THREAD, _) => OWN.with_borrow_mut(|own| {
            *own.entry(context).or_insert_with(|| {
                let stream = new_handle();
                driver.streams.insert(stream, Stream::new(context, Kind::Blocking, 0, 0));
                stream
            })
        }),
        _ => stream,
    };
    match driver.streams.get(&meant) {
        Some(stream) if !stream.is_destroyed && stream.context == context => Ok(meant),
        _ => Err(Code::ERROR_INVALID_HANDLE),
    }
}

impl Driver {
    /// Whether a stream has completed this command. A removed stream has.
    pub(crate) fn has_done(&self, stream: Handle, number: u64) -> bool {
        self.streams.get(&stream).is_none_or(|stream| stream.done >= number)
    }

    /// The busy streams of a context that synchronize with the legacy default stream, with their last command.
    pub(crate) fn blocking(&self, context: Handle) -> Vec<(Handle, u64)> {
        self.unfinished(|stream| stream.context == context && stream.kind != Kind::NonBlocking)
    }

    /// Busy streams, with their last command.
    pub(crate) fn unfinished(&self, which: impl Fn(&Stream) -> bool) -> Vec<(Handle, u64)> {
        let busy = self.streams.iter().filter(|(_, stream)| !stream.is_idle() && which(stream));
        busy.map(|(handle, stream)| (*handle, stream.submitted)).collect()
    }

    /// Appends a command to a stream without any checks. Returns its number.
    pub(crate) fn push(&mut self, stream: Handle, work: Work, more: &[(Handle, u64)]) -> u64 {
        let Some(its) = self.streams.get(&stream) else { return 0 };
        let (context, kind) = (its.context, its.kind);
        let legacy = self.contexts.get(&context).map_or(0, |context| context.legacy);
        let mut after = match kind {
            Kind::Legacy => self.blocking(context),
            Kind::Blocking => self.unfinished(|one| one.context == context && one.kind == Kind::Legacy),
            Kind::NonBlocking => Vec::new(),
        };
        after.retain(|(other, _)| *other != stream);
        debug_assert!(kind != Kind::Legacy || legacy == stream, "one per context");
        after.extend_from_slice(more);
        let Some(its) = self.streams.get_mut(&stream) else { return 0 };
        its.submitted += 1;
        let number = its.submitted;
        its.queue.push_back(Command { number, at: now(), after, work });
        // The executor finds commands behind another one by itself.
        if its.queue.len() == 1 {
            self.wake(context);
        }
        number
    }
}

/// Waits until a stream has room.
pub(crate) fn with_room(mut driver: DriverGuard, stream: Handle) -> Result<DriverGuard, Code> {
    loop {
        match driver.streams.get(&stream) {
            None => return Err(Code::ERROR_INVALID_HANDLE),
            Some(its) if its.queue.len() < STREAM_CAPACITY => return Ok(driver),
            Some(_) => driver = driver.wait(),
        }
        driver.current()?;
    }
}

/// Waits until streams have reached these positions.
pub(crate) fn wait_for(mut driver: DriverGuard, until: &[(Handle, u64)]) -> Outcome {
    while !until.iter().all(|(stream, number)| driver.has_done(*stream, *number)) {
        driver = driver.wait();
    }
    driver.current().map(drop)
}

/// Held for reading during a submission and for writing while a module is loaded: as in the vendor's driver, loading
/// a module waits for the context's work, and submissions block meanwhile.
static LOADING: RwLock<()> = RwLock::new(());

/// Runs `work` when the current context is idle. Submissions block meanwhile.
pub(crate) fn while_idle<R>(work: impl FnOnce() -> Result<R, Code>) -> Result<R, Code> {
    let _block_submissions = LOADING.write().unwrap_or_else(PoisonError::into_inner);
    let driver = driver()?;
    let context = driver.current()?;
    let until = driver.unfinished(|stream| stream.context == context);
    wait_for(driver, &until)?;
    work()
}

fn submit_to(
    default_stream: DefaultStream,
    stream: Handle,
    work: Work,
) -> Result<(DriverGuard, Handle, u64), Code> {
    let _block_loading = LOADING.read().unwrap_or_else(PoisonError::into_inner);
    let mut driver = driver()?;
    let stream = resolve(&mut driver, default_stream, stream)?;
    capture::forbid_implicit(&mut driver, stream)?;
    if driver.streams[&stream].capturing.is_some() {
        capture::add(&mut driver, stream, work)?;
        return Ok((driver, stream, 0));
    }
    let mut driver = with_room(driver, stream)?;
    let number = driver.push(stream, work, &[]);
    Ok((driver, stream, number))
}

/// Submits a command, or records it if the stream is capturing.
pub(crate) fn submit(default_stream: DefaultStream, stream: Handle, work: Work) -> Outcome {
    submit_to(default_stream, stream, work).map(drop)
}

/// Submits a command to the default stream and waits until it has completed.
pub(crate) fn submit_and_wait(default_stream: DefaultStream, work: Work) -> Outcome {
    let mut guard = driver()?;
    let stream = resolve(&mut guard, default_stream, 0)?;
    capture::forbid(&mut guard, stream)?;
    capture::forbid_unsafe(&mut guard)?;
    drop(guard);
    let (driver, stream, number) = submit_to(default_stream, 0, work)?;
    wait_for(driver, &[(stream, number)])
}

pub(crate) unsafe fn create(out: *mut Handle, flags: c_uint) -> Outcome {
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { create_with_priority(out, flags, 0) }
}

pub(crate) unsafe fn create_with_priority(out: *mut Handle, flags: c_uint, priority: c_int) -> Outcome {
    let mut driver = driver()?;
    let context = driver.current()?;
    let kind = match flags {
        0 => Kind::Blocking,
        NON_BLOCKING => Kind::NonBlocking,
        _ => return Err(Code::ERROR_INVALID_VALUE),
    };
    let stream = new_handle();
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, stream) }?;
    driver.streams.insert(stream, Stream::new(context, kind, flags, priority.clamp(HIGHEST_PRIORITY, 0)));
    Ok(())
}

pub(crate) unsafe fn priority_range(least: *mut c_int, greatest: *mut c_int) -> Outcome {
    driver()?.current()?;
    if !least.is_null() {
        // SAFETY: not null, so the caller guarantees that it is valid.
        unsafe { write_out(least, 0) }?;
    }
    // SAFETY: as above.
    if greatest.is_null() { Ok(()) } else { unsafe { write_out(greatest, HIGHEST_PRIORITY) } }
}

pub(crate) unsafe fn destroy(stream: Handle) -> Outcome {
    let mut driver = driver()?;
    let stream = resolve(&mut driver, DefaultStream::Legacy, stream)?;
    let Some(its) = driver.streams.get_mut(&stream) else { return Err(Code::ERROR_INVALID_HANDLE) };
    if its.kind == Kind::Legacy {
        return Err(Code::ERROR_INVALID_HANDLE);
    }
    its.is_destroyed = true;
    let captured = its.capturing.take();
    if its.is_idle() {
        driver.streams.remove(&stream);
    }
    if let Some(captured) = captured {
        capture::invalidate(&mut driver, captured.id);
    }
    Ok(())
}

/// The positions that must be reached for this stream to be synchronized: for the legacy stream, those of all blocking
/// streams.
fn extent(driver: &Driver, stream: Handle) -> Vec<(Handle, u64)> {
    let its = &driver.streams[&stream];
    match its.kind {
        Kind::Legacy => driver.blocking(its.context),
        _ => vec![(stream, its.submitted)],
    }
}

pub(crate) unsafe fn synchronize(default_stream: DefaultStream, stream: Handle) -> Outcome {
    let mut driver = driver()?;
    let stream = resolve(&mut driver, default_stream, stream)?;
    capture::forbid(&mut driver, stream)?;
    capture::forbid_unsafe(&mut driver)?;
    let until = extent(&driver, stream);
    wait_for(driver, &until)
}

pub(crate) unsafe fn query(default_stream: DefaultStream, stream: Handle) -> Outcome {
    let mut driver = driver()?;
    let stream = resolve(&mut driver, default_stream, stream)?;
    capture::forbid(&mut driver, stream)?;
    capture::forbid_unsafe(&mut driver)?;
    let done = extent(&driver, stream).iter().all(|(stream, number)| driver.has_done(*stream, *number));
    if done { Ok(()) } else { Err(Code::ERROR_NOT_READY) }
}

pub(crate) unsafe fn priority(default_stream: DefaultStream, stream: Handle, out: *mut c_int) -> Outcome {
    let mut driver = driver()?;
    let stream = resolve(&mut driver, default_stream, stream)?;
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, driver.streams[&stream].priority) }
}

pub(crate) unsafe fn flags(default_stream: DefaultStream, stream: Handle, out: *mut c_uint) -> Outcome {
    let mut driver = driver()?;
    let stream = resolve(&mut driver, default_stream, stream)?;
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, driver.streams[&stream].flags) }
}

pub(crate) unsafe fn context(default_stream: DefaultStream, stream: Handle, out: *mut Handle) -> Outcome {
    let mut driver = driver()?;
    let stream = resolve(&mut driver, default_stream, stream)?;
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, driver.streams[&stream].context) }
}

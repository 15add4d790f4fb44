//! Streams: what was submitted and has not been done, and what has to be done before.

use std::collections::{HashMap, VecDeque};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, PoisonError, RwLock};

use crate::capture::{self, Capturing};
use crate::code::{Code, Outcome, put};
use crate::event::Mark;
use crate::kernel::Effect;
use crate::shared::now;
use crate::world::{Handle, Held, World, new_handle, world};

/// How much a stream holds before a launch has to wait.
const DEPTH: usize = 1024;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;
/// The names of the default streams.
const LEGACY: Handle = 1;
const PER_THREAD: Handle = 2;
/// The most important priority; the least important is 0.
const HIGHEST: c_int = -5;

/// What a function means by no stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The one default stream of the context, which waits for the others and they for it.
    Legacy,
    /// The calling thread's own.
    PerThread,
}

/// How a stream stands to the legacy default stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Legacy,
    Blocking,
    NonBlocking,
}

/// What a stream can be given to do.
#[derive(Clone)]
pub(crate) enum Work {
    Kernel { ns: u64, effect: Effect },
    Copy { to: usize, from: usize, length: usize },
    Put { to: usize, bytes: Arc<[u8]> },
    Set { to: usize, value: u32, count: usize },
    Host { function: unsafe extern "C" fn(*mut c_void), data: usize, begun: bool },
    Record(Arc<Mark>),
    Await(Arc<Mark>),
    WaitValue { address: usize, value: u32, how: c_uint },
    WriteValue { address: usize, value: u32 },
}

/// One entry of a stream.
pub(crate) struct Command {
    pub(crate) number: u64,
    /// When it was submitted.
    pub(crate) at: u64,
    /// Streams and how far they have to be.
    pub(crate) after: Vec<(Handle, u64)>,
    pub(crate) work: Work,
}

impl Command {
    /// Whether it may have had to wait for something else than its turn in its own stream.
    pub(crate) fn waited(&self) -> bool {
        !self.after.is_empty() || matches!(self.work, Work::Await(_) | Work::WaitValue { .. })
    }
}

/// See the head of this file.
pub(crate) struct Stream {
    pub(crate) context: Handle,
    pub(crate) kind: Kind,
    flags: c_uint,
    pub(crate) priority: c_int,
    pub(crate) queue: VecDeque<Command>,
    /// The last that was submitted, and the last that was done.
    pub(crate) submitted: u64,
    pub(crate) done: u64,
    /// Until when a host function kept it, last time one did.
    pub(crate) held_until: u64,
    pub(crate) capturing: Option<Capturing>,
    /// Destroyed: gone when its work is done.
    pub(crate) doomed: bool,
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
            held_until: 0,
            capturing: None,
            doomed: false,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.done >= self.submitted
    }
}

thread_local! {
    /// This thread's own default stream of each context.
    static OWN: std::cell::RefCell<HashMap<Handle, Handle>> = std::cell::RefCell::default();
}

/// The stream a program means, and its context, which must be the current one.
pub(crate) fn resolve(world: &mut World, form: Form, stream: Handle) -> Result<Handle, Code> {
    let context = world.current()?;
    let meant = match (stream, form) {
        (0, Form::Legacy) | (LEGACY, _) => world.contexts[&context].legacy,
        (0, Form::PerThread) | (PER_THREAD, _) => OWN.with_borrow_mut(|own| {
            *own.entry(context).or_insert_with(|| {
                let stream = new_handle();
                world.streams.insert(stream, Stream::new(context, Kind::Blocking, 0, 0));
                stream
            })
        }),
        _ => stream,
    };
    match world.streams.get(&meant) {
        Some(stream) if !stream.doomed && stream.context == context => Ok(meant),
        _ => Err(Code::ERROR_INVALID_HANDLE),
    }
}

impl World {
    /// Whether a stream has come that far. One that is gone has.
    pub(crate) fn has_done(&self, stream: Handle, number: u64) -> bool {
        self.streams.get(&stream).is_none_or(|stream| stream.done >= number)
    }

    /// Streams of a context that wait for the legacy default stream and it for them, and how far they are to come.
    pub(crate) fn blocking(&self, context: Handle) -> Vec<(Handle, u64)> {
        self.unfinished(|stream| stream.context == context && stream.kind != Kind::NonBlocking)
    }

    /// Streams that have something left to do, and how far they are to come.
    pub(crate) fn unfinished(&self, which: impl Fn(&Stream) -> bool) -> Vec<(Handle, u64)> {
        let busy = self.streams.iter().filter(|(_, stream)| !stream.is_idle() && which(stream));
        busy.map(|(handle, stream)| (*handle, stream.submitted)).collect()
    }

    /// Puts something into a stream, whatever its state. Answers its number.
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
        // What comes behind something else is found by who does that.
        if its.queue.len() == 1 {
            self.wake(context);
        }
        number
    }
}

/// Dependencies until there is room in a stream.
pub(crate) fn with_room(mut world: Held, stream: Handle) -> Result<Held, Code> {
    loop {
        match world.streams.get(&stream) {
            None => return Err(Code::ERROR_INVALID_HANDLE),
            Some(its) if its.queue.len() < DEPTH => return Ok(world),
            Some(_) => world = world.wait(),
        }
        world.current()?;
    }
}

/// Dependencies until streams have come that far.
pub(crate) fn wait_for(mut world: Held, until: &[(Handle, u64)]) -> Outcome {
    while !until.iter().all(|(stream, number)| world.has_done(*stream, *number)) {
        world = world.wait();
    }
    world.current().map(drop)
}

/// Held for reading by who gives a stream something to do, for writing by who loads code: as with the real one, nobody
/// gets anything into a stream while code is loaded, and that waits for what the context has to do.
static LOADING: RwLock<()> = RwLock::new(());

/// Dependencies until the current context has nothing to do. Nobody gives it anything meanwhile.
pub(crate) fn with_nothing_to_do<R>(work: impl FnOnce() -> Result<R, Code>) -> Result<R, Code> {
    let _nobody_submits = LOADING.write().unwrap_or_else(PoisonError::into_inner);
    let world = world()?;
    let context = world.current()?;
    let until = world.unfinished(|stream| stream.context == context);
    wait_for(world, &until)?;
    work()
}

fn submit_to(form: Form, stream: Handle, work: Work) -> Result<(Held, Handle, u64), Code> {
    let _nobody_loads = LOADING.read().unwrap_or_else(PoisonError::into_inner);
    let mut world = world()?;
    let stream = resolve(&mut world, form, stream)?;
    capture::forbid_implicit(&mut world, stream)?;
    if world.streams[&stream].capturing.is_some() {
        capture::add(&mut world, stream, work)?;
        return Ok((world, stream, 0));
    }
    let mut world = with_room(world, stream)?;
    let number = world.push(stream, work, &[]);
    Ok((world, stream, number))
}

/// Gives a stream something to do, or records it if the stream is being captured.
pub(crate) fn submit(form: Form, stream: Handle, work: Work) -> Outcome {
    submit_to(form, stream, work).map(drop)
}

/// Gives the default stream something to do and waits until it is done.
pub(crate) fn submit_and_wait(form: Form, work: Work) -> Outcome {
    let mut held = world()?;
    let stream = resolve(&mut held, form, 0)?;
    capture::forbid(&mut held, stream)?;
    capture::forbid_unsafe(&mut held)?;
    drop(held);
    let (world, stream, number) = submit_to(form, 0, work)?;
    wait_for(world, &[(stream, number)])
}

pub(crate) unsafe fn create(out: *mut Handle, flags: c_uint) -> Outcome {
    // SAFETY: the caller vouches for `out`.
    unsafe { create_with_priority(out, flags, 0) }
}

pub(crate) unsafe fn create_with_priority(out: *mut Handle, flags: c_uint, priority: c_int) -> Outcome {
    let mut world = world()?;
    let context = world.current()?;
    let kind = match flags {
        0 => Kind::Blocking,
        NON_BLOCKING => Kind::NonBlocking,
        _ => return Err(Code::ERROR_INVALID_VALUE),
    };
    let stream = new_handle();
    // SAFETY: the caller vouches for `out`.
    unsafe { put(out, stream) }?;
    world.streams.insert(stream, Stream::new(context, kind, flags, priority.clamp(HIGHEST, 0)));
    Ok(())
}

pub(crate) unsafe fn priority_range(least: *mut c_int, greatest: *mut c_int) -> Outcome {
    world()?.current()?;
    if !least.is_null() {
        // SAFETY: not null, so the caller vouches for the room.
        unsafe { put(least, 0) }?;
    }
    // SAFETY: as above.
    if greatest.is_null() { Ok(()) } else { unsafe { put(greatest, HIGHEST) } }
}

pub(crate) unsafe fn destroy(stream: Handle) -> Outcome {
    let mut world = world()?;
    let stream = resolve(&mut world, Form::Legacy, stream)?;
    let Some(its) = world.streams.get_mut(&stream) else { return Err(Code::ERROR_INVALID_HANDLE) };
    if its.kind == Kind::Legacy {
        return Err(Code::ERROR_INVALID_HANDLE);
    }
    its.doomed = true;
    let captured = its.capturing.take();
    if its.is_idle() {
        world.streams.remove(&stream);
    }
    if let Some(captured) = captured {
        capture::invalidate(&mut world, captured.id);
    }
    Ok(())
}

/// How far streams have to come until this one is synchronised: the legacy one stands for all that wait for it.
fn extent(world: &World, stream: Handle) -> Vec<(Handle, u64)> {
    let its = &world.streams[&stream];
    match its.kind {
        Kind::Legacy => world.blocking(its.context),
        _ => vec![(stream, its.submitted)],
    }
}

pub(crate) unsafe fn synchronize(form: Form, stream: Handle) -> Outcome {
    let mut world = world()?;
    let stream = resolve(&mut world, form, stream)?;
    capture::forbid(&mut world, stream)?;
    capture::forbid_unsafe(&mut world)?;
    let until = extent(&world, stream);
    wait_for(world, &until)
}

pub(crate) unsafe fn query(form: Form, stream: Handle) -> Outcome {
    let mut world = world()?;
    let stream = resolve(&mut world, form, stream)?;
    capture::forbid(&mut world, stream)?;
    capture::forbid_unsafe(&mut world)?;
    let done = extent(&world, stream).iter().all(|(stream, number)| world.has_done(*stream, *number));
    if done { Ok(()) } else { Err(Code::ERROR_NOT_READY) }
}

pub(crate) unsafe fn priority(form: Form, stream: Handle, out: *mut c_int) -> Outcome {
    let mut world = world()?;
    let stream = resolve(&mut world, form, stream)?;
    // SAFETY: the caller vouches for `out`.
    unsafe { put(out, world.streams[&stream].priority) }
}

pub(crate) unsafe fn flags(form: Form, stream: Handle, out: *mut c_uint) -> Outcome {
    let mut world = world()?;
    let stream = resolve(&mut world, form, stream)?;
    // SAFETY: the caller vouches for `out`.
    unsafe { put(out, world.streams[&stream].flags) }
}

pub(crate) unsafe fn context(form: Form, stream: Handle, out: *mut Handle) -> Outcome {
    let mut world = world()?;
    let stream = resolve(&mut world, form, stream)?;
    // SAFETY: the caller vouches for `out`.
    unsafe { put(out, world.streams[&stream].context) }
}

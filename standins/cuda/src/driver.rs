//! What this process has made: contexts, streams, events, graphs, memory. One lock around all of it.
//!
//! Handles are numbers that are given out once. A number that stands for nothing is answered with an error, as a driver
//! does where it can tell.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::capture::{CaptureState, Exec, Graph};
use crate::code::Code;
use crate::event::Event;
use crate::kernel::Kernel;
use crate::memory::Memory;
use crate::rm::Objects;
use crate::shared::Seat;
use crate::stream::Stream;

/// A handle as programs hold it.
pub(crate) type Handle = usize;

/// A context: an address space, streams, and a seat at a device.
pub(crate) struct Context {
    pub(crate) device: usize,
    pub(crate) seat: Arc<Seat>,
    /// Its default stream of the old kind.
    pub(crate) legacy: Handle,
    /// What it failed with, for good.
    pub(crate) failure: Option<Code>,
    /// Its channels are disabled.
    pub(crate) suspended: bool,
    /// Its executor sleeps.
    pub(crate) asleep: bool,
    pub(crate) primary: bool,
}

/// The context of a device that libraries share. It has its handle for ever, also while it is not there.
pub(crate) struct Primary {
    pub(crate) handle: Handle,
    /// How many want it.
    pub(crate) retained: u32,
}

/// See the head of this file.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) contexts: HashMap<Handle, Context>,
    /// Contexts that were destroyed.
    pub(crate) destroyed: HashSet<Handle>,
    /// By device.
    pub(crate) primaries: HashMap<usize, Primary>,
    pub(crate) streams: HashMap<Handle, Stream>,
    pub(crate) events: HashMap<Handle, Event>,
    /// Loaded modules, and whose they are.
    pub(crate) modules: HashMap<Handle, Handle>,
    pub(crate) functions: HashMap<Handle, Kernel>,
    pub(crate) graphs: HashMap<Handle, Arc<Graph>>,
    pub(crate) execs: HashMap<Handle, Exec>,
    pub(crate) captures: HashMap<Handle, CaptureState>,
    pub(crate) memory: Memory,
    pub(crate) objects: Objects,
}

static WORLD: Mutex<Option<World>> = Mutex::new(None);
/// Rung when something has been done by the device.
static PROGRESS: Condvar = Condvar::new();
/// Whether `cuInit` was called, and by whom.
static BEGUN: AtomicU8 = AtomicU8::new(NOT_YET);
const NOT_YET: u8 = 0;
const HERE: u8 = 1;
const BEFORE_THE_FORK: u8 = 2;

/// The world, for as long as its lock is held.
pub(crate) struct Held(MutexGuard<'static, Option<World>>);

/// Takes the lock. As with the vendor's driver, a child of a process that has used it cannot.
pub(crate) fn world() -> Result<Held, Code> {
    if BEGUN.load(Ordering::Acquire) != HERE {
        return Err(Code::ERROR_NOT_INITIALIZED);
    }
    let mut held = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
    held.get_or_insert_default();
    Ok(Held(held))
}

/// `cuInit`: the world begins.
pub(crate) fn begin() -> Result<(), Code> {
    extern "C" fn in_the_child() {
        BEGUN.store(BEFORE_THE_FORK, Ordering::Release);
    }
    match BEGUN.compare_exchange(NOT_YET, HERE, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: what it calls in a child stores a number.
        Ok(_) if unsafe { libc::pthread_atfork(None, None, Some(in_the_child)) } != 0 => {
            Err(Code::ERROR_OUT_OF_MEMORY)
        }
        Err(BEFORE_THE_FORK) => Err(Code::ERROR_NOT_INITIALIZED),
        _ => Ok(()),
    }
}

/// A handle that nobody has yet.
pub(crate) fn new_handle() -> Handle {
    static NEXT: AtomicUsize = AtomicUsize::new(0x5ca1_ab1e_0000);
    NEXT.fetch_add(64, Ordering::Relaxed)
}

/// Wakes those who wait for the device.
fn ring() {
    PROGRESS.notify_all();
}

impl Held {
    /// Sleeps until the device has done something. Others may have the lock meanwhile.
    pub(crate) fn wait(self) -> Self {
        Self(PROGRESS.wait(self.0).unwrap_or_else(PoisonError::into_inner))
    }
}

impl std::ops::Deref for Held {
    type Target = World;
    fn deref(&self) -> &World {
        self.0.as_ref().expect("`world` has put it there")
    }
}

impl std::ops::DerefMut for Held {
    fn deref_mut(&mut self) -> &mut World {
        self.0.as_mut().expect("`world` has put it there")
    }
}

thread_local! {
    /// The contexts that are current on this thread, the last one on top.
    static CURRENT: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
}

/// Does something with this thread's stack of contexts.
pub(crate) fn with_current<R>(work: impl FnOnce(&mut Vec<Handle>) -> R) -> R {
    CURRENT.with_borrow_mut(work)
}

impl World {
    /// The context that is current on this thread, if it works.
    pub(crate) fn current(&self) -> Result<Handle, Code> {
        let top = with_current(|stack| stack.last().copied()).ok_or(Code::ERROR_INVALID_CONTEXT)?;
        let context = self.contexts.get(&top).ok_or(Code::ERROR_INVALID_CONTEXT)?;
        context.failure.map_or(Ok(top), Err)
    }

    /// Tells everybody that something has been done: those who wait for it, and the other contexts' executors.
    pub(crate) fn mark_busy(&self, by: Handle) {
        ring();
        for context in self.contexts.keys().filter(|context| **context != by) {
            self.wake(*context);
        }
    }

    /// Makes a context's executor look for work.
    pub(crate) fn wake(&self, context: Handle) {
        if let Some(context) = self.contexts.get(&context).filter(|context| context.asleep) {
            context.seat.wake();
        }
    }
}

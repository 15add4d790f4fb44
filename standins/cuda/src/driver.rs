//! What this process has created: contexts, streams, events, graphs, memory. One lock protects all of it.
//!
//! Handles are numbers that are never reused. An invalid handle is rejected with an error, as the vendor's driver does
//! where it can detect one.

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
use crate::shared::RunlistEntry;
use crate::stream::Stream;

/// A handle as programs see it.
pub(crate) type Handle = usize;

/// A context: an address space, streams, and an entry in a device's runlist.
pub(crate) struct Context {
    pub(crate) device: usize,
    pub(crate) entry: Arc<RunlistEntry>,
    /// Its legacy default stream.
    pub(crate) legacy: Handle,
    /// The sticky error that it failed with.
    pub(crate) failure: Option<Code>,
    /// Its channels are disabled.
    pub(crate) is_disabled: bool,
    /// Its executor thread sleeps.
    pub(crate) is_asleep: bool,
    pub(crate) primary: bool,
}

/// A device's primary context. It keeps its handle, even while it is not active.
pub(crate) struct Primary {
    pub(crate) handle: Handle,
    /// How often it was retained and not released.
    pub(crate) retained: u32,
}

/// The state of the driver in this process.
#[derive(Default)]
pub(crate) struct Driver {
    pub(crate) contexts: HashMap<Handle, Context>,
    /// Contexts that were destroyed.
    pub(crate) destroyed: HashSet<Handle>,
    /// By device index.
    pub(crate) primaries: HashMap<usize, Primary>,
    pub(crate) streams: HashMap<Handle, Stream>,
    pub(crate) events: HashMap<Handle, Event>,
    /// Loaded modules, with their context.
    pub(crate) modules: HashMap<Handle, Handle>,
    pub(crate) functions: HashMap<Handle, Kernel>,
    pub(crate) graphs: HashMap<Handle, Arc<Graph>>,
    pub(crate) execs: HashMap<Handle, Exec>,
    pub(crate) captures: HashMap<Handle, CaptureState>,
    pub(crate) memory: Memory,
    pub(crate) objects: Objects,
}

static DRIVER: Mutex<Option<Driver>> = Mutex::new(None);
/// Notified when the device has completed something.
static PROGRESS: Condvar = Condvar::new();
/// Whether `cuInit` was called, and in which process.
static INITIALIZED: AtomicU8 = AtomicU8::new(NO);
const NO: u8 = 0;
const IN_THIS_PROCESS: u8 = 1;
const IN_A_PARENT: u8 = 2;

/// The driver's state while its lock is held.
pub(crate) struct DriverGuard(MutexGuard<'static, Option<Driver>>);

/// Takes the lock. Fails in a child of a process that has used the driver, as with the vendor's.
pub(crate) fn driver() -> Result<DriverGuard, Code> {
    if INITIALIZED.load(Ordering::Acquire) != IN_THIS_PROCESS {
        return Err(Code::ERROR_NOT_INITIALIZED);
    }
    let mut guard = DRIVER.lock().unwrap_or_else(PoisonError::into_inner);
    guard.get_or_insert_default();
    Ok(DriverGuard(guard))
}

/// `cuInit`.
pub(crate) fn initialize() -> Result<(), Code> {
    extern "C" fn mark_child() {
        INITIALIZED.store(IN_A_PARENT, Ordering::Release);
    }
    match INITIALIZED.compare_exchange(NO, IN_THIS_PROCESS, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: the handler only stores a number.
        Ok(_) if unsafe { libc::pthread_atfork(None, None, Some(mark_child)) } != 0 => {
            Err(Code::ERROR_OUT_OF_MEMORY)
        }
        Err(IN_A_PARENT) => Err(Code::ERROR_NOT_INITIALIZED),
        _ => Ok(()),
    }
}

/// A handle that has never been used.
pub(crate) fn new_handle() -> Handle {
    static NEXT: AtomicUsize = AtomicUsize::new(0x5ca1_ab1e_0000);
    NEXT.fetch_add(64, Ordering::Relaxed)
}

/// Wakes the threads that wait for the device.
fn notify_waiters() {
    PROGRESS.notify_all();
}

impl DriverGuard {
    /// Sleeps until the device has completed something; releases the lock meanwhile.
    pub(crate) fn wait(self) -> Self {
        Self(PROGRESS.wait(self.0).unwrap_or_else(PoisonError::into_inner))
    }
}

impl std::ops::Deref for DriverGuard {
    type Target = Driver;
    fn deref(&self) -> &Driver {
        self.0.as_ref().expect("`driver` has initialized it")
    }
}

impl std::ops::DerefMut for DriverGuard {
    fn deref_mut(&mut self) -> &mut Driver {
        self.0.as_mut().expect("`driver` has initialized it")
    }
}

thread_local! {
    /// The stack of contexts of this thread; the last one is current.
    static CURRENT: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
}

/// Runs an operation on this thread's stack of contexts.
pub(crate) fn with_current<R>(work: impl FnOnce(&mut Vec<Handle>) -> R) -> R {
    CURRENT.with_borrow_mut(work)
}

impl Driver {
    /// The context that is current on this thread, if it has not failed.
    pub(crate) fn current(&self) -> Result<Handle, Code> {
        let top = with_current(|stack| stack.last().copied()).ok_or(Code::ERROR_INVALID_CONTEXT)?;
        let context = self.contexts.get(&top).ok_or(Code::ERROR_INVALID_CONTEXT)?;
        context.failure.map_or(Ok(top), Err)
    }

    /// Notifies the threads that wait for the device, and the executors of the other contexts.
    pub(crate) fn notify_progress(&self, by: Handle) {
        notify_waiters();
        for context in self.contexts.keys().filter(|context| **context != by) {
            self.wake(*context);
        }
    }

    /// Makes a context's executor check for work.
    pub(crate) fn wake(&self, context: Handle) {
        if let Some(context) = self.contexts.get(&context).filter(|context| context.is_asleep) {
            context.entry.wake();
        }
    }
}

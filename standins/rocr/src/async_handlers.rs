//! Functions that are called when a signal has a value. As in AMD's runtime, one thread calls all of them.
//!
//! AMD's HIP runtime frees what its handlers use when the process exits, and does not wait for them: it relies on the thread being
//! fast. Here the thread shares few cores with the device and the program, and is often milliseconds late. So destroying a queue
//! waits for the handlers that are due ([`finish_due`]): HIP does that before it frees anything.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::runtime;
use crate::signals::{self, WaitMode, is_satisfied, signal};
use crate::status::{INVALID_ARGUMENT, INVALID_SIGNAL, Status, to_status};
use crate::threads::Thread;

type Handler = extern "C" fn(i64, *mut c_void) -> bool;
type Function = extern "C" fn(*mut c_void);

/// What the thread waits for.
#[derive(Clone, Copy)]
enum Work {
    Handler { signal: u64, condition: u32, value: i64, handler: Handler, argument: usize },
    Function { function: Function, argument: usize },
}

impl Work {
    /// The value of the signal, if the work is due.
    fn due(&self) -> Option<i64> {
        match self {
            Self::Handler { signal: handle, condition, value, .. } => {
                let now = signal(*handle)?.load();
                is_satisfied(now, *condition, *value).then_some(now)
            }
            Self::Function { .. } => Some(0),
        }
    }
}

static WORK: Mutex<Vec<Work>> = Mutex::new(Vec::new());
static THREAD: Mutex<Option<Thread>> = Mutex::new(None);
static IS_STOPPING: AtomicBool = AtomicBool::new(false);
/// Whether the thread is inside a handler.
static IS_CALLING: AtomicBool = AtomicBool::new(false);
/// How long `finish_due` waits at most: a handler may wait for a lock that the caller holds.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

fn work() -> std::sync::MutexGuard<'static, Vec<Work>> {
    WORK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `hsa_amd_signal_async_handler`.
pub(crate) extern "C" fn add(
    handle: u64,
    condition: u32,
    value: i64,
    handler: Option<Handler>,
    argument: *mut c_void,
) -> Status {
    let Some(handler) = handler else { return INVALID_ARGUMENT };
    if signal(handle).is_none_or(|signal| signal.queue().is_some()) {
        return INVALID_SIGNAL;
    }
    let argument = argument.expose_provenance();
    to_status(push(Work::Handler { signal: handle, condition, value, handler, argument }))
}

/// `hsa_amd_async_function`.
pub(crate) extern "C" fn add_function(function: Option<Function>, argument: *mut c_void) -> Status {
    let Some(function) = function else { return INVALID_ARGUMENT };
    to_status(push(Work::Function { function, argument: argument.expose_provenance() }))
}

fn push(new: Work) -> Result<(), Status> {
    runtime::require_running()?;
    work().push(new);
    let mut thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner);
    if thread.is_none() {
        IS_STOPPING.store(false, Ordering::Release);
        *thread = Some(Thread::spawn("rocr-async", run).ok_or(crate::status::OUT_OF_RESOURCES)?);
    }
    drop(thread);
    signals::notify();
    Ok(())
}

/// Calls what is due until the runtime ends.
fn run() {
    while !IS_STOPPING.load(Ordering::Acquire) {
        let next = signals::wait_until(None, WaitMode::Blocked, || {
            if IS_STOPPING.load(Ordering::Acquire) {
                return Some(None);
            }
            let mut work = work();
            let found = work.iter().enumerate().find_map(|(index, work)| Some((index, work.due()?)));
            // Removed while it runs: the handler may be called again only after it returned.
            let found = found.map(|(index, value)| Some((work.remove(index), value)));
            // Set under the lock of `work`: `finish_due` sees the handler there or here.
            IS_CALLING.store(found.is_some(), Ordering::SeqCst);
            found
        });
        let Some(Some((due, value))) = next else { continue };
        match due {
            Work::Handler { handler, argument, .. } => {
                if handler(value, std::ptr::with_exposed_provenance_mut(argument)) {
                    work().push(due);
                }
            }
            Work::Function { function, argument } => {
                function(std::ptr::with_exposed_provenance_mut(argument));
            }
        }
        IS_CALLING.store(false, Ordering::SeqCst);
        signals::notify();
    }
}

/// Waits until the handlers that are due have returned, unless the caller is one of them.
pub(crate) fn finish_due() {
    let thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner);
    if thread.as_ref().is_none_or(Thread::is_current) {
        return;
    }
    drop(thread);
    let finished = || {
        let work = work();
        let is_finished = !IS_CALLING.load(Ordering::SeqCst) && work.iter().all(|work| work.due().is_none());
        is_finished.then_some(())
    };
    signals::wait_until(Some(Instant::now() + FINISH_TIMEOUT), WaitMode::Blocked, finished);
}

/// Stops the thread. Handlers that were not called are dropped, as in AMD's runtime.
pub(crate) fn stop() {
    let thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner).take();
    IS_STOPPING.store(true, Ordering::Release);
    signals::notify();
    if let Some(thread) = thread {
        thread.join();
    }
    work().clear();
}

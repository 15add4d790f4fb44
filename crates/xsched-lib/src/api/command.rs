//! Commands: functions of the program's that a queue calls when it is their turn.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use xsched_core::Ticket;
use xsched_interpose::OutermostHook;

use super::api;
use super::failure::{Answer, Failure};
use super::handles::{Kind, no_place, put};
use super::types::{HwCommandHandle, HwQueueHandle, Launch, XResult, kXSchedSuccess};
use crate::runtime::{existing_runtime, runtime_for_api};

/// A function of the program's and what it is called with.
pub(crate) struct Command {
    launch: unsafe extern "C" fn(HwQueueHandle, *mut c_void) -> XResult,
    data: *mut c_void,
    /// Where it was submitted last.
    submitted: Mutex<Option<(u64, Ticket)>>,
    /// What it answered last.
    answered: AtomicI32,
}

// SAFETY: whoever makes a command hands over `data` to be used on another thread; we never look at it.
unsafe impl Send for Command {}
// SAFETY: as above; all else is atomic or behind a lock.
unsafe impl Sync for Command {}

impl Kind for Command {
    const NUMBER: u64 = 3;
    const NAME: &'static str = "command";
}

thread_local! {
    /// The XQueue whose command runs on this thread; 0: none.
    static RUNNING: Cell<u64> = const { Cell::new(0) };
}

/// Whether this thread runs a command of this XQueue.
pub(super) fn runs_here(queue: u64) -> bool {
    RUNNING.try_with(Cell::get) == Ok(queue)
}

/// Whether this thread runs a command at all.
pub(super) fn any_runs_here() -> bool {
    RUNNING.try_with(Cell::get).is_ok_and(|queue| queue != 0)
}

impl Command {
    /// Calls the program's function.
    pub(super) fn call(&self, hw_queue: HwQueueHandle) -> XResult {
        // SAFETY: whoever made the command vouches for both, as long as it may be called.
        let answer = unsafe { (self.launch)(hw_queue, self.data) };
        self.answered.store(answer, Ordering::SeqCst);
        answer
    }

    /// Calls the program's function for a queue whose turn it is: its launches need not wait at a gate again.
    pub(super) fn call_for(&self, queue: u64, hw_queue: HwQueueHandle) {
        let _outermost = OutermostHook::enter();
        let before = RUNNING.try_with(|running| running.replace(queue));
        self.call(hw_queue);
        let _ = RUNNING.try_with(|running| running.set(before.unwrap_or(0)));
    }

    /// Notes where it was submitted.
    pub(super) fn submitted(&self, queue: u64, ticket: Ticket) {
        *self.submitted.lock().unwrap_or_else(PoisonError::into_inner) = Some((queue, ticket));
    }

    /// What to wait for, if it was submitted to this queue last.
    pub(super) fn ticket(&self, queue: u64) -> Option<Ticket> {
        let submitted = self.submitted.lock().unwrap_or_else(PoisonError::into_inner);
        submitted.as_ref().filter(|(where_, _)| *where_ == queue).map(|(_, ticket)| ticket.clone())
    }

    /// What it answered last, as a failure if it was one.
    pub(super) fn answer(&self) -> Answer {
        match self.answered.load(Ordering::SeqCst) {
            kXSchedSuccess => Ok(()),
            code => Err(Failure::of_callback(code)),
        }
    }
}

/// The command behind a handle.
pub(super) fn get(command: HwCommandHandle) -> Answer<Arc<Command>> {
    match existing_runtime() {
        Some(runtime) => runtime.handles().commands.get(command),
        None => Err(super::handles::unknown::<Command>(command)),
    }
}

api! {
    /// Makes a command of a function, to be called with the hardware queue it is to launch on, and with `data`.
    ///
    /// The function is called on a thread of XSched's, or of the program's if the XQueue was created with
    /// kQueueCreateFlagBlockingSubmit. It must not throw. A command may be submitted again, also while it waits.
    fn HwCommandCreateCallback(cmd: *mut HwCommandHandle, launch: Launch, data: *mut c_void) = create;

    /// Forgets a command. If it was submitted and waits, it is launched all the same: keep `data` until then.
    fn HwCommandDestroy(cmd: HwCommandHandle) = destroy;
}

fn create(cmd: *mut HwCommandHandle, launch: Launch, data: *mut c_void) -> Answer {
    let launch = launch.ok_or_else(|| Failure::invalid("a null pointer: a command needs a function"))?;
    if cmd.is_null() {
        return Err(no_place());
    }
    let runtime = runtime_for_api().ok_or_else(Failure::over)?;
    let command =
        Command { launch, data, submitted: Mutex::default(), answered: AtomicI32::new(kXSchedSuccess) };
    let (handle, _) = runtime.handles().commands.insert(|_| command);
    // SAFETY: the program vouches for `cmd`.
    unsafe { put(cmd, handle) }
}

fn destroy(cmd: HwCommandHandle) -> Answer {
    match existing_runtime() {
        Some(runtime) => runtime.handles().commands.remove(cmd).map(drop),
        None => Err(super::handles::unknown::<Command>(cmd)),
    }
}

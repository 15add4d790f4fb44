//! Commands: functions of the program that a queue calls, in order, when launching is allowed.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use xsched_core::Ticket;
use xsched_interpose::OutermostHook;

use super::api;
use super::failure::{ApiResult, Failure};
use super::handles::{HandleKind, null_result_pointer, write_result};
use super::types::{HwCommandHandle, HwQueueHandle, LaunchCallback, XResult, kXSchedSuccess};
use crate::runtime::{existing_runtime, runtime_for_api};

/// A function of the program and its argument.
pub(crate) struct Command {
    launch: unsafe extern "C" fn(HwQueueHandle, *mut c_void) -> XResult,
    data: *mut c_void,
    /// Its last submission: the XQueue and the ticket.
    submitted: Mutex<Option<(u64, Ticket)>>,
    /// What the function returned last.
    returned: AtomicI32,
}

// SAFETY: the program that creates a command allows its function to use `data` on another thread; the library does not
// dereference it.
unsafe impl Send for Command {}
// SAFETY: as above; the rest is atomic or behind a lock.
unsafe impl Sync for Command {}

impl HandleKind for Command {
    const NUMBER: u64 = 3;
    const NAME: &'static str = "command";
}

thread_local! {
    /// The XQueue whose command runs on this thread, or 0.
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
    /// Calls the program's function on a hardware queue.
    pub(super) fn call(&self, hw_queue: HwQueueHandle) -> XResult {
        // SAFETY: the program guarantees that both are valid until the command is destroyed and not pending.
        let code = unsafe { (self.launch)(hw_queue, self.data) };
        self.returned.store(code, Ordering::SeqCst);
        code
    }

    /// Calls the program's function for an XQueue that may launch: the launches of the function pass no gate again.
    pub(super) fn call_for(&self, queue: u64, hw_queue: HwQueueHandle) {
        let _outermost = OutermostHook::enter_all();
        let before = RUNNING.try_with(|running| running.replace(queue));
        self.call(hw_queue);
        let _ = RUNNING.try_with(|running| running.set(before.unwrap_or(0)));
    }

    /// Records its submission.
    pub(super) fn submitted(&self, queue: u64, ticket: Ticket) {
        *self.submitted.lock().unwrap_or_else(PoisonError::into_inner) = Some((queue, ticket));
    }

    /// The ticket of its last submission, if that was to this XQueue.
    pub(super) fn ticket(&self, queue: u64) -> Option<Ticket> {
        let submitted = self.submitted.lock().unwrap_or_else(PoisonError::into_inner);
        submitted
            .as_ref()
            .filter(|(submitted_to, _)| *submitted_to == queue)
            .map(|(_, ticket)| ticket.clone())
    }

    /// What the function returned last.
    pub(super) fn result(&self) -> ApiResult {
        match self.returned.load(Ordering::SeqCst) {
            kXSchedSuccess => Ok(()),
            code => Err(Failure::of_callback(code)),
        }
    }
}

/// The command behind a handle.
pub(super) fn get(command: HwCommandHandle) -> ApiResult<Arc<Command>> {
    match existing_runtime() {
        Some(runtime) => runtime.handles().commands.get(command),
        None => Err(super::handles::unknown_handle::<Command>(command)),
    }
}

api! {
    /// Creates a command from a function, which is called with the hardware queue to launch on and with `data`.
    ///
    /// The function is called on a thread of XSched, or on the submitting thread if the XQueue was created with
    /// kQueueCreateFlagBlockingSubmit. It must not throw. A command may be submitted again, also while it is waiting.
    fn HwCommandCreateCallback(cmd: *mut HwCommandHandle, launch: LaunchCallback, data: *mut c_void) = create;

    /// Destroys a command. A submission that is waiting is still launched: keep `data` until then.
    fn HwCommandDestroy(cmd: HwCommandHandle) = destroy;
}

fn create(cmd: *mut HwCommandHandle, launch: LaunchCallback, data: *mut c_void) -> ApiResult {
    let launch = launch.ok_or_else(|| Failure::invalid("the function is a null pointer"))?;
    if cmd.is_null() {
        return Err(null_result_pointer());
    }
    let runtime = runtime_for_api().ok_or_else(Failure::process_exiting)?;
    let command =
        Command { launch, data, submitted: Mutex::default(), returned: AtomicI32::new(kXSchedSuccess) };
    let (handle, _) = runtime.handles().commands.insert(|_| command);
    // SAFETY: the program guarantees that `cmd` may be written.
    unsafe { write_result(cmd, handle) }
}

fn destroy(cmd: HwCommandHandle) -> ApiResult {
    match existing_runtime() {
        Some(runtime) => runtime.handles().commands.remove(cmd).map(drop),
        None => Err(super::handles::unknown_handle::<Command>(cmd)),
    }
}

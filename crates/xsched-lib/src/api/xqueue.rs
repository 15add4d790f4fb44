//! The XQueue: a hardware queue that can be suspended and resumed.

use std::sync::Arc;

use xsched_core::{Level, LevelRequest, Limit, Outcome, Resume, Suspend};
use xsched_interpose::OutermostHook;
use xsched_ipc::ScheduledQueue;
use xsched_ipc::threads::without_signals;

use super::failure::{ApiResult, Failure};
use super::handles::{HandleKind, null_result_pointer, unknown_handle, write_result};
use super::hwqueue::{self, HwQueue};
use super::types::{
    HwCommandHandle, HwQueueHandle, XPreemptLevel, XQueueHandle, XQueueState, int64_t,
    kQueueCreateFlagBlockingSubmit, kQueueResumeFlagDropCommands, kQueueSuspendFlagSyncHwQueue,
    kQueueSuspendFlagWaitAll, kQueueSuspendFlagWaitIdle,
};
use super::{api, command};
use crate::runtime::{Runtime, existing_runtime};

/// One XQueue.
pub(crate) struct Queue {
    handle: u64,
    /// The handle of the hardware queue, and the hardware queue.
    hw_handle: u64,
    hw: Arc<HwQueue>,
    scheduled: Arc<ScheduledQueue>,
    /// It was scheduled before the program created the XQueue, and stays scheduled when the program destroys it.
    was_scheduled: bool,
}

impl HandleKind for Queue {
    const NUMBER: u64 = 2;
    const NAME: &'static str = "XQueue";
}

impl Queue {
    pub(super) fn scheduled(&self) -> &Arc<ScheduledQueue> {
        &self.scheduled
    }

    /// A command that waits for its own queue would deadlock.
    fn not_from_its_command(&self) -> ApiResult {
        if command::runs_here(self.handle) {
            return Err(Failure::not_allowed("a command cannot wait for its own queue"));
        }
        Ok(())
    }
}

/// The XQueue behind a handle.
pub(super) fn get(xq: XQueueHandle) -> ApiResult<Arc<Queue>> {
    match existing_runtime() {
        Some(runtime) => runtime.handles().queues.get(xq),
        None => Err(unknown_handle::<Queue>(xq)),
    }
}

api! {
    /// Creates an XQueue on a hardware queue. From then on, launches on the vendor's queue are scheduled.
    ///
    /// `level` is one of XPreemptLevel; kXSchedErrorNotSupported if the device lacks it. `flags` combines values of
    /// XQueueCreateFlag. A hardware queue has at most one XQueue: kXSchedErrorNotAllowed if it has one.
    fn XQueueCreate(xq: *mut XQueueHandle, hwq: HwQueueHandle, level: int64_t, flags: int64_t) = create;

    /// Destroys an XQueue. Its waiting commands are launched first, also if it is suspended, and no command function runs
    /// when this returns. The hardware queue continues unscheduled.
    fn XQueueDestroy(xq: XQueueHandle) = destroy;

    /// Returns the XQueue of a hardware queue; kXSchedErrorNotFound if it has none.
    fn XQueueGet(xq: *mut XQueueHandle, hwq: HwQueueHandle) = find;

    /// Changes the preemption level of the queue, also while it is suspended.
    fn XQueueSetPreemptLevel(xq: XQueueHandle, level: XPreemptLevel) = set_level;

    /// Sets how many commands may be in flight (1 to 65536), and after how many commands a marker is placed (1 to
    /// `threshold`). Commands that are in flight are not affected.
    fn XQueueSetLaunchConfig(xq: XQueueHandle, threshold: int64_t, batch_size: int64_t) = set_launch_config;

    /// Submits a command. Commands of a queue are launched in the order of submission. The function returns at once, with
    /// two exceptions: with kQueueCreateFlagBlockingSubmit it launches the command on the calling thread, and if
    /// thousands of commands wait in a queue that is not suspended, it waits for room.
    fn XQueueSubmit(xq: XQueueHandle, cmd: HwCommandHandle) = submit;

    /// Waits until a command that was submitted to this queue has completed on the device, and returns the result of its
    /// function. kXSchedErrorNotFound if it was dropped, or not submitted to this queue.
    fn XQueueWait(xq: XQueueHandle, cmd: HwCommandHandle) = wait;

    /// Waits until everything that was submitted or launched so far has completed on the device.
    fn XQueueWaitAll(xq: XQueueHandle) = wait_all;

    /// Returns whether the queue has work: kQueueStateReady or kQueueStateIdle.
    fn XQueueQuery(xq: XQueueHandle, state: *mut XQueueState) = query;

    /// Suspends the queue: holds new launches at once, and preempts work on the device according to the preemption level.
    /// Suspending a suspended queue has no effect. `flags` combines values of XQueueSuspendFlag.
    fn XQueueSuspend(xq: XQueueHandle, flags: int64_t) = suspend;

    /// Resumes the queue. Resuming a queue that is not suspended has no effect. `flags` combines values of XQueueResumeFlag.
    fn XQueueResume(xq: XQueueHandle, flags: int64_t) = resume;

    /// Returns how many commands wait in the queue or are in flight, as far as they are counted.
    fn XQueueProfileHwCommandCount(xq: XQueueHandle, count: *mut int64_t) = count_commands;
}

fn checked_level(level: int64_t) -> ApiResult<LevelRequest> {
    let level = Level::from_number(level)
        .ok_or_else(|| Failure::invalid(format_args!("level {level} does not exist: allowed is 1 to 3")))?;
    Ok(LevelRequest::Exactly(level))
}

/// Rejects unknown bits. -1 stands for all known bits.
fn checked_flags(flags: int64_t, known: int64_t, what: &str) -> ApiResult<int64_t> {
    match flags {
        -1 => Ok(known),
        flags if flags & !known == 0 => Ok(flags),
        _ => Err(Failure::invalid(format_args!("flags {flags:#x} for {what}: allowed is {known:#x}"))),
    }
}

fn create(xq: *mut XQueueHandle, hwq: HwQueueHandle, level: int64_t, flags: int64_t) -> ApiResult {
    if xq.is_null() {
        return Err(null_result_pointer());
    }
    let (runtime, _) = hwqueue::get(hwq)?;
    let level = checked_level(level)?;
    let flags = checked_flags(flags, kQueueCreateFlagBlockingSubmit.into(), "XQueueCreate")?;
    let _outermost = OutermostHook::enter_all();
    // Serializes creation, and excludes the destruction of the hardware queue.
    let _lock = runtime.handles().by_key();
    let (_, hw_queue) = hwqueue::get(hwq)?;
    let mut own = hw_queue.queue();
    if own.is_some() {
        return Err(Failure::not_allowed("the hardware queue has an XQueue already: XQueueGet returns it"));
    }
    let was_scheduled = runtime.scheduled_queue(hw_queue.key);
    let scheduled = match &was_scheduled {
        Some(scheduled) => {
            scheduled.set_level(level)?;
            Arc::clone(scheduled)
        }
        None => runtime.schedule_for_api(hw_queue.key, &hw_queue.hw, level)?,
    };
    // The program controls the queue, so that every launch has to be counted: the program can wait for it.
    scheduled.launch_path().gate().count_all();
    if flags & int64_t::from(kQueueCreateFlagBlockingSubmit) != 0 && !scheduled.launch_where_submitted() {
        return Err(Failure::not_allowed(
            "commands of this queue are already launched by the queue's own thread",
        ));
    }
    let handle = add_handle(runtime, hwq, &hw_queue, scheduled, was_scheduled.is_some());
    *own = Some(handle);
    // SAFETY: the program guarantees that `xq` may be written.
    unsafe { write_result(xq, handle) }
}

fn add_handle(
    runtime: &Runtime,
    hw_handle: u64,
    hw_queue: &Arc<HwQueue>,
    scheduled: Arc<ScheduledQueue>,
    was_scheduled: bool,
) -> u64 {
    let hw = Arc::clone(hw_queue);
    runtime.handles().queues.insert(|handle| Queue { handle, hw_handle, hw, scheduled, was_scheduled }).0
}

fn destroy(xq: XQueueHandle) -> ApiResult {
    let runtime = existing_runtime().ok_or_else(|| unknown_handle::<Queue>(xq))?;
    let queue = runtime.handles().queues.remove(xq)?;
    let _outermost = OutermostHook::enter_all();
    if queue.was_scheduled {
        queue.scheduled.resume(Resume::default())?;
        if queue.scheduled.has_worker() && !command::runs_here(xq) {
            queue.scheduled.wait_all()?;
        }
    } else {
        // Before the waiting commands: the program can no longer resume the queue, so that nothing may hold them.
        queue.scheduled.retire();
        queue.scheduled.finish();
        let _lock = runtime.handles().by_key();
        runtime.unschedule(queue.hw.key);
    }
    let mut own = queue.hw.queue();
    if *own == Some(xq) {
        *own = None;
    }
    Ok(())
}

fn find(xq: *mut XQueueHandle, hwq: HwQueueHandle) -> ApiResult {
    if xq.is_null() {
        return Err(null_result_pointer());
    }
    let (runtime, _) = hwqueue::get(hwq)?;
    let _lock = runtime.handles().by_key();
    let (_, hw_queue) = hwqueue::get(hwq)?;
    let mut own = hw_queue.queue();
    let handle = if let Some(handle) = *own {
        handle
    } else {
        let was_scheduled = runtime.scheduled_queue(hw_queue.key);
        let scheduled =
            was_scheduled.ok_or_else(|| Failure::not_found("the hardware queue has no XQueue"))?;
        scheduled.launch_path().gate().count_all();
        *own.insert(add_handle(runtime, hwq, &hw_queue, scheduled, true))
    };
    // SAFETY: the program guarantees that `xq` may be written.
    unsafe { write_result(xq, handle) }
}

fn set_level(xq: XQueueHandle, level: XPreemptLevel) -> ApiResult {
    let queue = get(xq)?;
    let level = checked_level(level.into())?;
    let _outermost = OutermostHook::enter_all();
    queue.scheduled.set_level(level)?;
    Ok(())
}

fn set_launch_config(xq: XQueueHandle, threshold: int64_t, batch_size: int64_t) -> ApiResult {
    let queue = get(xq)?;
    queue.scheduled.set_own_limit(Limit::count(threshold, batch_size)?);
    Ok(())
}

fn submit(xq: XQueueHandle, cmd: HwCommandHandle) -> ApiResult {
    let queue = get(xq)?;
    let command = command::get(cmd)?;
    let scheduled = &queue.scheduled;
    if !scheduled.has_worker() {
        without_signals(|| scheduled.start())?;
    } else if scheduled.launches_where_submitted() {
        queue.not_from_its_command()?;
    }
    let (theirs, hw_handle) = (Arc::clone(&command), queue.hw_handle);
    let ticket = scheduled.submit(move || theirs.call_for(xq, hw_handle))?;
    command.submitted(xq, ticket);
    // A command that waits here for room in another queue could prevent that queue from making room.
    if !command::any_runs_here() {
        scheduled.wait_for_room();
    }
    Ok(())
}

fn wait(xq: XQueueHandle, cmd: HwCommandHandle) -> ApiResult {
    let queue = get(xq)?;
    let command = command::get(cmd)?;
    queue.not_from_its_command()?;
    let none = || Failure::not_found("the command was not submitted to this queue, or was dropped");
    let ticket = command.ticket(xq).ok_or_else(none)?;
    let _outermost = OutermostHook::enter_all();
    match queue.scheduled.wait(&ticket)? {
        Outcome::Completed => command.result(),
        Outcome::Dropped => Err(none()),
    }
}

fn wait_all(xq: XQueueHandle) -> ApiResult {
    let queue = get(xq)?;
    queue.not_from_its_command()?;
    let _outermost = OutermostHook::enter_all();
    Ok(queue.scheduled.wait_all()?)
}

fn query(xq: XQueueHandle, state: *mut XQueueState) -> ApiResult {
    let queue = get(xq)?;
    let _outermost = OutermostHook::enter_all();
    // SAFETY: the program guarantees that `state` may be written.
    unsafe { write_result(state, queue.scheduled.state() as XQueueState) }
}

fn suspend(xq: XQueueHandle, flags: int64_t) -> ApiResult {
    let queue = get(xq)?;
    let known = kQueueSuspendFlagSyncHwQueue | kQueueSuspendFlagWaitAll | kQueueSuspendFlagWaitIdle;
    let flags = checked_flags(flags, known.into(), "XQueueSuspend")?;
    let has = |flag: i32| flags & int64_t::from(flag) != 0;
    let _outermost = OutermostHook::enter_all();
    if command::runs_here(xq) {
        if flags != 0 {
            queue.not_from_its_command()?;
        }
        return Ok(queue.scheduled.suspend_from_command()?);
    }
    Ok(queue.scheduled.suspend(Suspend {
        sync_hw_queue: has(kQueueSuspendFlagSyncHwQueue),
        wait_all: has(kQueueSuspendFlagWaitAll),
        wait_idle: has(kQueueSuspendFlagWaitIdle),
    })?)
}

fn resume(xq: XQueueHandle, flags: int64_t) -> ApiResult {
    let queue = get(xq)?;
    let flags = checked_flags(flags, kQueueResumeFlagDropCommands.into(), "XQueueResume")?;
    let _outermost = OutermostHook::enter_all();
    Ok(queue.scheduled.resume(Resume { drop_commands: flags != 0 })?)
}

fn count_commands(xq: XQueueHandle, count: *mut int64_t) -> ApiResult {
    let queue = get(xq)?;
    let _outermost = OutermostHook::enter_all();
    let commands = i64::try_from(queue.scheduled.commands()).unwrap_or(i64::MAX);
    // SAFETY: the program guarantees that `count` may be written.
    unsafe { write_result(count, commands) }
}

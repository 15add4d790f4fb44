//! The XQueue: a hardware queue that can be suspended and resumed.

use std::sync::Arc;

use xsched_core::{Level, LevelRequest, Limit, Outcome, Resume, Suspend};
use xsched_interpose::OutermostHook;
use xsched_ipc::ScheduledQueue;
use xsched_ipc::threads::without_signals;

use super::failure::{Answer, Failure};
use super::handles::{Kind, no_place, put, unknown};
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
    /// The hardware queue's handle, and what it stands for.
    hw_handle: u64,
    hw: Arc<HwQueue>,
    joined: Arc<ScheduledQueue>,
    /// It was scheduled before the program asked for it, and stays so when the program no longer does.
    adopted: bool,
}

impl Kind for Queue {
    const NUMBER: u64 = 2;
    const NAME: &'static str = "XQueue";
}

impl Queue {
    pub(super) fn joined(&self) -> &Arc<ScheduledQueue> {
        &self.joined
    }

    /// Waiting for the queue from one of its own commands would never end.
    fn not_from_its_command(&self) -> Answer {
        if command::runs_here(self.handle) {
            return Err(Failure::not_allowed("a command cannot wait for its own queue"));
        }
        Ok(())
    }
}

/// The XQueue behind a handle.
pub(super) fn get(xq: XQueueHandle) -> Answer<Arc<Queue>> {
    match existing_runtime() {
        Some(runtime) => runtime.handles().queues.get(xq),
        None => Err(unknown::<Queue>(xq)),
    }
}

api! {
    /// Makes an XQueue on a hardware queue. From now on launches on the vendor's queue are under control.
    ///
    /// `level` is one of XPreemptLevel; one the device lacks is answered with kXSchedErrorNotSupported. `flags` is made
    /// of XQueueCreateFlag. A hardware queue has one XQueue at most: a second is answered with kXSchedErrorNotAllowed.
    fn XQueueCreate(xq: *mut XQueueHandle, hwq: HwQueueHandle, level: int64_t, flags: int64_t) = create;

    /// Destroys an XQueue. What waits in it is launched first, whether it was suspended or not, and none of its commands
    /// runs when this returns. The hardware queue goes on without control.
    fn XQueueDestroy(xq: XQueueHandle) = destroy;

    /// Finds the XQueue of a hardware queue; kXSchedErrorNotFound if it has none.
    fn XQueueGet(xq: *mut XQueueHandle, hwq: HwQueueHandle) = find;

    /// Changes how deep the queue is stopped when it is suspended, also while it is.
    fn XQueueSetPreemptLevel(xq: XQueueHandle, level: XPreemptLevel) = set_level;

    /// Changes how many commands may be in flight (1 to 65536) and after how many the device is asked how far it is
    /// (1 to `threshold`). What is in flight already stays there.
    fn XQueueSetLaunchConfig(xq: XQueueHandle, threshold: int64_t, batch_size: int64_t) = set_launch_config;

    /// Hands over a command, to be launched when it is its turn. Commands of a queue are launched in the order they
    /// were submitted. Returns at once, but for two cases: with kQueueCreateFlagBlockingSubmit it is launched here,
    /// and with some thousand commands waiting in a queue that is not suspended it waits for room.
    fn XQueueSubmit(xq: XQueueHandle, cmd: HwCommandHandle) = submit;

    /// Dependencies until a command that was submitted to this queue has completed on the device, and answers what its
    /// function answered. kXSchedErrorNotFound if it was dropped, or never submitted here.
    fn XQueueWait(xq: XQueueHandle, cmd: HwCommandHandle) = wait;

    /// Dependencies until everything that was submitted or launched so far has completed on the device.
    fn XQueueWaitAll(xq: XQueueHandle) = wait_all;

    /// Whether the queue has work: kQueueStateReady or kQueueStateIdle.
    fn XQueueQuery(xq: XQueueHandle, state: *mut XQueueState) = query;

    /// Stops new launches at once, and what is on the device as deep as the level reaches. May be repeated. `flags` is
    /// made of XQueueSuspendFlag.
    fn XQueueSuspend(xq: XQueueHandle, flags: int64_t) = suspend;

    /// Lets launches go on where they were stopped. May be repeated. `flags` is made of XQueueResumeFlag.
    fn XQueueResume(xq: XQueueHandle, flags: int64_t) = resume;

    /// How many commands wait in the queue or are in flight, as far as they are counted.
    fn XQueueProfileHwCommandCount(xq: XQueueHandle, count: *mut int64_t) = count_commands;
}

fn checked_level(level: int64_t) -> Answer<LevelRequest> {
    let level = Level::from_number(level)
        .ok_or_else(|| Failure::invalid(format_args!("level {level} does not exist: allowed is 1 to 3")))?;
    Ok(LevelRequest::Exactly(level))
}

/// Refuses bits that mean nothing. All of them at once mean all that mean something.
fn checked_flags(flags: int64_t, known: int64_t, what: &str) -> Answer<int64_t> {
    match flags {
        -1 => Ok(known),
        flags if flags & !known == 0 => Ok(flags),
        _ => Err(Failure::invalid(format_args!("flags {flags:#x} for {what}: allowed is {known:#x}"))),
    }
}

fn create(xq: *mut XQueueHandle, hwq: HwQueueHandle, level: int64_t, flags: int64_t) -> Answer {
    if xq.is_null() {
        return Err(no_place());
    }
    let (runtime, _) = hwqueue::get(hwq)?;
    let level = checked_level(level)?;
    let flags = checked_flags(flags, kQueueCreateFlagBlockingSubmit.into(), "XQueueCreate")?;
    let _outermost = OutermostHook::enter();
    // One at a time, and only while nobody destroys the hardware queue.
    let _known = runtime.handles().known();
    let (_, hw_queue) = hwqueue::get(hwq)?;
    let mut own = hw_queue.queue();
    if own.is_some() {
        return Err(Failure::not_allowed("the hardware queue has an XQueue already: XQueueGet tells which"));
    }
    let adopted = runtime.scheduled_queue(hw_queue.key);
    let joined = match &adopted {
        Some(joined) => {
            joined.set_level(level)?;
            Arc::clone(joined)
        }
        None => runtime.schedule_for_api(hw_queue.key, &hw_queue.hw, level)?,
    };
    // The program drives it: what it does is counted, so that it can be waited for.
    joined.launch_path().gate().count_all();
    if flags & int64_t::from(kQueueCreateFlagBlockingSubmit) != 0 && !joined.launch_where_submitted() {
        return Err(Failure::not_allowed(
            "commands of this queue are launched by a thread of its own already",
        ));
    }
    let handle = give_handle(runtime, hwq, &hw_queue, joined, adopted.is_some());
    *own = Some(handle);
    // SAFETY: the program vouches for `xq`.
    unsafe { put(xq, handle) }
}

fn give_handle(
    runtime: &Runtime,
    hw_handle: u64,
    hw_queue: &Arc<HwQueue>,
    joined: Arc<ScheduledQueue>,
    adopted: bool,
) -> u64 {
    let hw = Arc::clone(hw_queue);
    runtime.handles().queues.insert(|handle| Queue { handle, hw_handle, hw, joined, adopted }).0
}

fn destroy(xq: XQueueHandle) -> Answer {
    let runtime = existing_runtime().ok_or_else(|| unknown::<Queue>(xq))?;
    let queue = runtime.handles().queues.remove(xq)?;
    let _outermost = OutermostHook::enter();
    if queue.adopted {
        queue.joined.resume(Resume::default())?;
        if queue.joined.has_worker() && !command::runs_here(xq) {
            queue.joined.wait_all()?;
        }
    } else {
        // Before the commands that wait: nobody can let them go any more, so nobody may hold them.
        queue.joined.retire();
        queue.joined.finish();
        let _known = runtime.handles().known();
        runtime.unschedule(queue.hw.key);
    }
    let mut own = queue.hw.queue();
    if *own == Some(xq) {
        *own = None;
    }
    Ok(())
}

fn find(xq: *mut XQueueHandle, hwq: HwQueueHandle) -> Answer {
    if xq.is_null() {
        return Err(no_place());
    }
    let (runtime, _) = hwqueue::get(hwq)?;
    let _known = runtime.handles().known();
    let (_, hw_queue) = hwqueue::get(hwq)?;
    let mut own = hw_queue.queue();
    let handle = if let Some(handle) = *own {
        handle
    } else {
        let adopted = runtime.scheduled_queue(hw_queue.key);
        let joined = adopted.ok_or_else(|| Failure::not_found("the hardware queue has no XQueue"))?;
        joined.launch_path().gate().count_all();
        *own.insert(give_handle(runtime, hwq, &hw_queue, joined, true))
    };
    // SAFETY: the program vouches for `xq`.
    unsafe { put(xq, handle) }
}

fn set_level(xq: XQueueHandle, level: XPreemptLevel) -> Answer {
    let queue = get(xq)?;
    let level = checked_level(level.into())?;
    let _outermost = OutermostHook::enter();
    queue.joined.set_level(level)?;
    Ok(())
}

fn set_launch_config(xq: XQueueHandle, threshold: int64_t, batch_size: int64_t) -> Answer {
    let queue = get(xq)?;
    queue.joined.set_own_limit(Limit::count(threshold, batch_size)?);
    Ok(())
}

fn submit(xq: XQueueHandle, cmd: HwCommandHandle) -> Answer {
    let queue = get(xq)?;
    let command = command::get(cmd)?;
    let joined = &queue.joined;
    if !joined.has_worker() {
        without_signals(|| joined.start())?;
    } else if joined.launches_where_submitted() {
        queue.not_from_its_command()?;
    }
    let (theirs, hw_handle) = (Arc::clone(&command), queue.hw_handle);
    let ticket = joined.submit(move || theirs.call_for(xq, hw_handle))?;
    command.submitted(xq, ticket);
    // A command that waits for another queue's room may keep that queue from making it.
    if !command::any_runs_here() {
        joined.wait_for_room();
    }
    Ok(())
}

fn wait(xq: XQueueHandle, cmd: HwCommandHandle) -> Answer {
    let queue = get(xq)?;
    let command = command::get(cmd)?;
    queue.not_from_its_command()?;
    let none = || Failure::not_found("the command was not submitted to this queue, or was dropped");
    let ticket = command.ticket(xq).ok_or_else(none)?;
    let _outermost = OutermostHook::enter();
    match queue.joined.wait(&ticket)? {
        Outcome::Completed => command.answer(),
        Outcome::Dropped => Err(none()),
    }
}

fn wait_all(xq: XQueueHandle) -> Answer {
    let queue = get(xq)?;
    queue.not_from_its_command()?;
    let _outermost = OutermostHook::enter();
    Ok(queue.joined.wait_all()?)
}

fn query(xq: XQueueHandle, state: *mut XQueueState) -> Answer {
    let queue = get(xq)?;
    let _outermost = OutermostHook::enter();
    // SAFETY: the program vouches for `state`.
    unsafe { put(state, queue.joined.state() as XQueueState) }
}

fn suspend(xq: XQueueHandle, flags: int64_t) -> Answer {
    let queue = get(xq)?;
    let known = kQueueSuspendFlagSyncHwQueue | kQueueSuspendFlagWaitAll | kQueueSuspendFlagWaitIdle;
    let flags = checked_flags(flags, known.into(), "XQueueSuspend")?;
    let has = |flag: i32| flags & int64_t::from(flag) != 0;
    let _outermost = OutermostHook::enter();
    if command::runs_here(xq) {
        if flags != 0 {
            queue.not_from_its_command()?;
        }
        return Ok(queue.joined.suspend_from_command()?);
    }
    Ok(queue.joined.suspend(Suspend {
        sync_hw_queue: has(kQueueSuspendFlagSyncHwQueue),
        wait_all: has(kQueueSuspendFlagWaitAll),
        wait_idle: has(kQueueSuspendFlagWaitIdle),
    })?)
}

fn resume(xq: XQueueHandle, flags: int64_t) -> Answer {
    let queue = get(xq)?;
    let flags = checked_flags(flags, kQueueResumeFlagDropCommands.into(), "XQueueResume")?;
    let _outermost = OutermostHook::enter();
    Ok(queue.joined.resume(Resume { drop_commands: flags != 0 })?)
}

fn count_commands(xq: XQueueHandle, count: *mut int64_t) -> Answer {
    let queue = get(xq)?;
    let _outermost = OutermostHook::enter();
    let commands = i64::try_from(queue.joined.commands()).unwrap_or(i64::MAX);
    // SAFETY: the program vouches for `count`.
    unsafe { put(count, commands) }
}

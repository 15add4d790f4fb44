//! The Level Zero platform: `libze_loader.so.1`, the loader in front of the drivers of Intel GPUs and NPUs.
//!
//! Work reaches a device in two ways. Regular lists are recorded and then executed on a command queue; commands that are appended to an
//! immediate list run at once. Both, a command queue and an immediate list, are queues of the core. The hooks of the append functions
//! hold commands of immediate lists, and only record what the commands of regular lists wait for.
//!
//! The loader calls the drivers through their tables, not by name, so no launch passes a gate twice.
//!
//! * [`queue`]: a command queue or an immediate list as a hardware queue. [`markers`]: its markers.
//! * [`dependencies`]: what commands wait for.
//! * [`vendor`]: Level Zero's functions and structures.

mod api;
#[cfg(test)]
mod conformance;
mod dependencies;
mod markers;
mod queue;
mod vendor;

use std::ffi::{c_uint, c_void};

use xsched_interpose::run_isolated;

use crate::event_wait_lists::{self, from_c_list};
use crate::hooks::hooks;
use crate::loader::VendorIdentity;
use crate::platforms::Platform;
use crate::queue_hooks;
use crate::runtime::runtime;
use crate::tracked_queue::ApiQueue;
use dependencies::Waits;
use markers::{Events, Fences, MarkerKind, Markers};
use vendor::{Code, Event, Handle, List, Queue, QueueDescription, SUCCESS};

/// The loader. Drivers export the same functions, but not those that describe the loader.
static VENDOR: VendorIdentity = VendorIdentity {
    exports: &[c"zeCommandQueueExecuteCommandLists", c"zelLoaderGetVersions"],
    files: &["libze_loader.so"],
};

/// The platform, for the registry.
pub(crate) static PLATFORM: Platform = Platform {
    vendor: &VENDOR,
    hooks: &[&LIBRARY],
    bypasses_hook: None,
    observe_ioctl: None,
    at_exit: None,
    #[cfg(test)]
    header: &api::HEADER,
};

type Pointer = *mut c_void;
type EventList = *const Event;

/// Hooks functions that append a command: their first argument is a list, and their last arguments are the event that it signals and the
/// events that it waits for. Synchronization commands are not work and are never held.
macro_rules! level_zero {
    (
        work { $( fn $work:ident($($a:ident: $at:ty),*); )* }
        synchronization { $( fn $other:ident($($b:ident: $bt:ty),*); )* }
        $($rest:tt)*
    ) => { hooks! {
        prefix "ze";
        if missing return vendor::UNINITIALIZED;
        $( fn $work(list: List, $($a: $at,)* signal: Event, count: c_uint, waits: EventList) -> Code
            = |real, list, $(_: $at,)* signal, count, waits| append(real, list, signal, count, waits, true); )*
        $( fn $other(list: List, $($b: $bt,)* signal: Event, count: c_uint, waits: EventList) -> Code
            = |real, list, $(_: $bt,)* signal, count, waits| append(real, list, signal, count, waits, false); )*
        $($rest)*
    } };
}

level_zero! {
    work {
        fn zeCommandListAppendLaunchKernel(kernel: Handle, groups: Pointer);
        fn zeCommandListAppendLaunchCooperativeKernel(kernel: Handle, groups: Pointer);
        fn zeCommandListAppendLaunchKernelIndirect(kernel: Handle, groups: Pointer);
        fn zeCommandListAppendLaunchMultipleKernelsIndirect(kernels: c_uint, list_of_kernels: Pointer, number: Pointer, groups: Pointer);
        fn zeCommandListAppendMemoryCopy(to: Pointer, from: Pointer, size: usize);
        fn zeCommandListAppendMemoryFill(to: Pointer, pattern: Pointer, pattern_size: usize, size: usize);
        fn zeCommandListAppendMemoryCopyRegion(to: Pointer, to_region: Pointer, to_pitch: c_uint, to_slice: c_uint, from: Pointer, from_region: Pointer, from_pitch: c_uint, from_slice: c_uint);
        fn zeCommandListAppendMemoryCopyFromContext(to: Pointer, context: Handle, from: Pointer, size: usize);
        fn zeCommandListAppendImageCopy(to: Handle, from: Handle);
        fn zeCommandListAppendImageCopyRegion(to: Handle, from: Handle, to_region: Pointer, from_region: Pointer);
        fn zeCommandListAppendImageCopyToMemory(to: Pointer, from: Handle, region: Pointer);
        fn zeCommandListAppendImageCopyFromMemory(to: Handle, from: Pointer, region: Pointer);
        fn zeCommandListAppendImageCopyToMemoryExt(to: Pointer, from: Handle, region: Pointer, row: c_uint, slice: c_uint);
        fn zeCommandListAppendImageCopyFromMemoryExt(to: Handle, from: Pointer, region: Pointer, row: c_uint, slice: c_uint);
    }
    synchronization {
        fn zeCommandListAppendBarrier();
        fn zeCommandListAppendMemoryRangesBarrier(ranges: c_uint, sizes: Pointer, starts: Pointer);
        fn zeCommandListAppendWriteGlobalTimestamp(to: Pointer);
        fn zeCommandListAppendQueryKernelTimestamps(events: c_uint, queried: EventList, to: Pointer, offsets: Pointer);
    }
    fn zeCommandListAppendSignalEvent(list: List, event: Event) -> Code
        = |real, list, event| append(real, list, event, 0, std::ptr::null(), false);
    fn zeCommandListAppendWaitOnEvents(list: List, count: c_uint, waits: EventList) -> Code
        = |real, list, count, waits| append(real, list, Handle::NONE, count, waits, false);
    fn zeCommandListImmediateAppendCommandListsExp(list: List, count: c_uint, lists: *const List, signal: Event, count_of_waits: c_uint, waits: EventList) -> Code
        = append_lists;
    fn zeCommandQueueExecuteCommandLists(queue: Queue, count: c_uint, lists: *const List, fence: Handle) -> Code = execute;
    fn zeCommandQueueCreate(context: Handle, device: Handle, description: *const QueueDescription, queue: *mut Queue) -> Code
        = create::<Fences>;
    fn zeCommandListCreateImmediate(context: Handle, device: Handle, description: *const QueueDescription, list: *mut List) -> Code
        = create::<Events>;
    fn zeCommandQueueDestroy(queue: Queue) -> Code = destroy;
    fn zeCommandListDestroy(list: List) -> Code = |real, list| destroy(|| forget(real, || dependencies::forget_list(list)), list);
    fn zeCommandListReset(list: List) -> Code = |real, list| forget(real, || dependencies::forget_list(list));
    fn zeCommandListAppendEventReset(list: List, event: Event) -> Code
        = |real, _, event| forget(real, || dependencies::forget_event(event));
    fn zeEventHostReset(event: Event) -> Code = |real, event| forget(real, || dependencies::forget_event(event));
    fn zeEventDestroy(event: Event) -> Code = |real, event| forget(real, || dependencies::forget_event(event));
    fn zeCommandQueueSynchronize(queue: Queue, timeout: u64) -> Code = synchronize;
    fn zeCommandListHostSynchronize(list: List, timeout: u64) -> Code = synchronize;
    fn zeFenceHostSynchronize(fence: Handle, timeout: u64) -> Code = |real, _, _| after_wait(real);
    fn zeFenceQueryStatus(fence: Handle) -> Code = |real, _| after_wait(real);
    fn zeEventHostSynchronize(event: Event, timeout: u64) -> Code = |real, _, _| after_wait(real);
    fn zeEventQueryStatus(event: Event) -> Code = |real, _| after_wait(real);
}

fn create<K: MarkerKind>(
    real: impl FnOnce() -> Code,
    context: Handle,
    device: Handle,
    description: *const QueueDescription,
    queue: *mut Queue,
) -> Code {
    let code = real();
    // SAFETY: the vendor's function has read the description and written the handle, if it succeeded.
    let arguments = unsafe { (description.as_ref(), queue.as_ref()) };
    if let (SUCCESS, (Some(description), Some(queue))) = (code, arguments) {
        run_isolated(|| queue::created::<K>(*queue, context, device, description));
        queue_hooks::queue_created(*queue, || queue::open::<K>(*queue));
    }
    code
}

/// Destroys a queue, or a list of either kind.
fn destroy(real: impl FnOnce() -> Code, queue: Queue) -> Code {
    queue_hooks::release_queue(|| forget(real, || queue::destroyed(queue)), queue)
}

/// Calls `real`, which resets or destroys an object, after `forget`.
fn forget(real: impl FnOnce() -> Code, forget: impl FnOnce()) -> Code {
    run_isolated(forget);
    real()
}

fn append(
    real: impl FnOnce() -> Code,
    list: List,
    signal: Event,
    count: c_uint,
    waits: EventList,
    is_work: bool,
) -> Code {
    // SAFETY: the program passes the same list to the vendor's function.
    let waits = unsafe { from_c_list(count, waits) };
    let has_events = !signal.is_none() || !waits.is_empty();
    let Some(runtime) = runtime().filter(|_| has_events || is_work) else { return real() };
    let mut waits_for = Waits::No;
    if has_events {
        run_isolated(|| {
            if runtime.is_tracked(list.addr()) {
                waits_for = dependencies::append(list, waits, signal);
            } else {
                dependencies::record(list, waits, signal);
            }
        });
    }
    launch::<Events>(real, list, waits_for, is_work)
}

fn append_lists(
    real: impl FnOnce() -> Code,
    list: List,
    count: c_uint,
    lists: *const List,
    signal: Event,
    count_of_waits: c_uint,
    waits: EventList,
) -> Code {
    if runtime().is_none() {
        return real();
    }
    let mut waits_for = Waits::No;
    run_isolated(|| {
        // SAFETY: the program passes the same lists to the vendor's function.
        let (lists, waits) = unsafe { (from_c_list(count, lists), from_c_list(count_of_waits, waits)) };
        waits_for = dependencies::execute(list, lists).max(dependencies::append(list, waits, signal));
    });
    launch::<Events>(real, list, waits_for, true)
}

fn execute(
    real: impl FnOnce() -> Code,
    queue: Queue,
    count: c_uint,
    lists: *const List,
    _fence: Handle,
) -> Code {
    if runtime().is_none() {
        return real();
    }
    let mut waits_for = Waits::No;
    // SAFETY: the program passes the same lists to the vendor's function.
    run_isolated(|| waits_for = dependencies::execute(queue, unsafe { from_c_list(count, lists) }));
    launch::<Fences>(real, queue, waits_for, true)
}

/// Calls `real`, which launches commands on a queue, or records them.
fn launch<K: MarkerKind>(real: impl FnOnce() -> Code, queue: Queue, waits: Waits, is_work: bool) -> Code {
    let launch = || {
        if is_work { queue_hooks::launch(real, queue, || queue::is_synchronous(queue)) } else { real() }
    };
    match waits {
        Waits::No => launch(),
        Waits::ForQueue => event_wait_lists::launch_waiting_for_any_queue(launch, queue),
        Waits::ForProgram => event_wait_lists::launch_waiting_for_program::<Markers<K>, _>(launch, queue),
    }
}

/// A wait with a timeout may return before the queue is idle.
fn synchronize(real: impl FnOnce() -> Code, queue: Queue, timeout: u64) -> Code {
    if timeout == u64::MAX {
        queue_hooks::synchronize(real, queue)
    } else {
        queue_hooks::query(real, Some(queue.addr()))
    }
}

/// Calls `real`, which waits for a fence or an event, or queries it. If that was the last work of a queue, the queue is idle.
fn after_wait(real: impl FnOnce() -> Code) -> Code {
    queue_hooks::after_wait(real, |code| *code == SUCCESS)
}

/// A queue that the program passes to the C interface.
fn api_queue(device: *mut c_void, queue: *mut c_void) -> Option<ApiQueue> {
    let queue = (!device.is_null()).then_some(queue)?;
    ApiQueue::from_handle(&LIBRARY, "libze_loader.so", queue, queue::open::<Fences>)
}

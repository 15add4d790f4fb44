//! Markers: fences on command queues, and events behind barriers on immediate lists. They are reset and used again, because creating one
//! is expensive.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, Mutex};

use super::queue::{Created, find, lock};
use super::vendor::{self, Code, Description, Handle};
use crate::event_queue::EventApi;
use crate::hooks::call;
use crate::loader::Function;

/// How long a marker may take to complete whose queue the program destroys. The program has waited for its own work.
const COMPLETION_TIMEOUT_NS: u64 = 100_000_000;
const EVENTS_OF_A_POOL: u32 = 16;

/// A fence with the empty list that it is executed with; or an event.
#[derive(Clone, Copy)]
pub(crate) struct Marker {
    signal: Handle,
    list: Handle,
}

/// The markers of a queue that are not in use, and the pools of its events.
#[derive(Default)]
pub(crate) struct Spare {
    markers: Vec<Marker>,
    pools: Vec<Handle>,
    /// A marker never completed, so that its pool cannot be destroyed.
    has_lost_marker: bool,
}

/// The markers in use, by the handle of the fence or event.
static PLACED: Mutex<BTreeMap<usize, (Arc<Created>, Marker)>> = Mutex::new(BTreeMap::new());

/// The vendor's functions for fences or for events.
pub(crate) struct Functions {
    query: &'static Function<unsafe extern "C" fn(Handle) -> Code>,
    wait: &'static Function<unsafe extern "C" fn(Handle, u64) -> Code>,
    reset: &'static Function<unsafe extern "C" fn(Handle) -> Code>,
}

/// How one kind of queue is marked.
pub(crate) trait MarkerKind: 'static {
    /// Whether any thread may use the queue, and not only the launching thread.
    const ANY_THREAD: bool;

    fn functions() -> Functions;

    /// Adds markers to the spare ones.
    fn create(queue: Handle, created: &Created, spare: &mut Spare) -> Result<(), String>;

    fn place(queue: Handle, marker: Marker) -> Result<(), String>;

    /// Destroys the markers of a queue that is about to be destroyed.
    fn destroy(spare: &mut Spare);
}

/// The markers of command queues: a fence completes after everything that was executed before it.
pub(crate) struct Fences;

impl MarkerKind for Fences {
    const ANY_THREAD: bool = true;

    fn functions() -> Functions {
        Functions { query: &vendor::QUERY_FENCE, wait: &vendor::WAIT_FOR_FENCE, reset: &vendor::RESET_FENCE }
    }

    fn create(queue: Handle, created: &Created, spare: &mut Spare) -> Result<(), String> {
        let mut marker = Marker { signal: Handle::NONE, list: Handle::NONE };
        let (fence, list) = (Description::fence(), Description::list(created.ordinal));
        // SAFETY: a queue of the program, its context and its device; descriptions of the types that the functions read, and room for
        // the handles.
        let recorded = unsafe {
            call!(vendor::CREATE_FENCE, queue, &raw const fence, &raw mut marker.signal)
                .and_then(|()| {
                    call!(
                        vendor::CREATE_LIST,
                        created.context,
                        created.device,
                        &raw const list,
                        &raw mut marker.list
                    )
                })
                .and_then(|()| call!(vendor::APPEND_BARRIER, marker.list, Handle::NONE, 0, ptr::null()))
                .and_then(|()| call!(vendor::CLOSE_LIST, marker.list))
        };
        spare.markers.push(marker);
        recorded.map_err(|why| {
            Self::destroy(spare);
            format!("no fence: {why}")
        })
    }

    fn place(queue: Handle, marker: Marker) -> Result<(), String> {
        // SAFETY: the caller keeps the queue from being destroyed; the marker is not in use.
        unsafe { call!(vendor::EXECUTE, queue, 1, &raw const marker.list, marker.signal) }
    }

    fn destroy(spare: &mut Spare) {
        for Marker { signal, list } in spare.markers.drain(..) {
            for (destroy, handle) in [(&vendor::DESTROY_FENCE, signal), (&vendor::DESTROY_LIST, list)] {
                if !handle.is_none() {
                    // SAFETY: `create` created it, and it is not in use. A failure cannot be handled.
                    let _ = unsafe { call!(destroy, handle) };
                }
            }
        }
    }
}

/// The markers of immediate lists: an event behind a barrier.
pub(crate) struct Events;

impl MarkerKind for Events {
    /// The program may not use a list on two threads at once, and so may not this library.
    const ANY_THREAD: bool = false;

    fn functions() -> Functions {
        Functions { query: &vendor::QUERY_EVENT, wait: &vendor::WAIT_FOR_EVENT, reset: &vendor::RESET_EVENT }
    }

    fn create(_list: Handle, created: &Created, spare: &mut Spare) -> Result<(), String> {
        let (mut pool, description) = (Handle::NONE, Description::pool(EVENTS_OF_A_POOL));
        // SAFETY: the context of a list of the program, a description of the type that the function reads, and room for the handle.
        unsafe {
            call!(vendor::CREATE_POOL, created.context, &raw const description, 0, ptr::null(), &raw mut pool)
        }
        .map_err(|why| format!("no events: {why}"))?;
        spare.pools.push(pool);
        for index in 0..EVENTS_OF_A_POOL {
            let (mut signal, description) = (Handle::NONE, Description::event(index));
            // SAFETY: as above.
            unsafe { call!(vendor::CREATE_EVENT, pool, &raw const description, &raw mut signal) }
                .map_err(|why| format!("no events: {why}"))?;
            spare.markers.push(Marker { signal, list: Handle::NONE });
        }
        Ok(())
    }

    fn place(list: Handle, marker: Marker) -> Result<(), String> {
        // SAFETY: the caller keeps the list from being destroyed; the marker is not in use.
        unsafe { call!(vendor::APPEND_BARRIER, list, marker.signal, 0, ptr::null()) }
    }

    fn destroy(spare: &mut Spare) {
        for marker in spare.markers.drain(..) {
            // SAFETY: `create` created the event, and it is not in use. A failure cannot be handled.
            let _ = unsafe { call!(vendor::DESTROY_EVENT, marker.signal) };
        }
        for pool in spare.pools.drain(..).filter(|_| !spare.has_lost_marker) {
            // SAFETY: as above, for a pool without events.
            let _ = unsafe { call!(vendor::DESTROY_POOL, pool) };
        }
    }
}

/// The functions of [`EventApi`] for a kind of markers.
pub(crate) struct Markers<K>(PhantomData<K>);

impl<K: MarkerKind> EventApi for Markers<K> {
    fn record(queue: Handle) -> Result<Handle, String> {
        let created = find(queue)?;
        let marker = {
            let mut spare = lock(&created.spare);
            if spare.markers.is_empty() {
                K::create(queue, &created, &mut spare)?;
            }
            spare.markers.pop().ok_or("no marker")?
        };
        if let Err(why) = K::place(queue, marker) {
            lock(&created.spare).markers.push(marker);
            return Err(why);
        }
        lock(&PLACED).insert(marker.signal.addr(), (created, marker));
        Ok(marker.signal)
    }

    /// The marker of a device that was lost never completes otherwise.
    fn is_complete(signal: Handle) -> bool {
        // SAFETY: a marker that `record` returned and that is not released.
        K::functions().query.get().is_none_or(|query| unsafe { query(signal) } != vendor::NOT_READY)
    }

    fn release(signal: Handle) {
        let placed = lock(&PLACED).remove(&signal.addr());
        let Some((created, marker)) = placed else { return };
        let Functions { wait, reset, .. } = K::functions();
        if !Self::is_complete(signal) {
            // SAFETY: as above.
            let _ = unsafe { call!(wait, signal, COMPLETION_TIMEOUT_NS) };
        }
        // SAFETY: as above. The device does not use a marker that has completed.
        let is_usable = Self::is_complete(signal) && unsafe { call!(reset, signal) }.is_ok();
        let mut spare = lock(&created.spare);
        if is_usable {
            spare.markers.push(marker);
        } else {
            spare.has_lost_marker = true;
        }
    }

    fn synchronize(queue: Handle) -> Result<(), String> {
        let (signal, wait) = (Self::record(queue)?, K::functions().wait);
        // SAFETY: `record` returned it.
        let waited = unsafe { call!(wait, signal, u64::MAX) };
        Self::release(signal);
        waited
    }
}

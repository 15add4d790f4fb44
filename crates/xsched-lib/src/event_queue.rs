//! A hardware queue whose markers are events of the vendor that can be queried.
//!
//! A platform implements [`EventApi`] for level 1, and [`StopPoints`] for level 2.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xsched_core::{
    Capabilities, DeviceId, HalError, HwQueue, Level, LevelCost, LevelRequest, Marker, Nanos, Progress,
};
use xsched_interpose::{Handle, RevocableHandle};

use crate::event_wait_lists;
use crate::tracked_queue::VendorQueue;

/// The vendor's functions for events. Errors are described in the vendor's terms.
pub(crate) trait EventApi: 'static {
    /// Records a new event behind everything launched on the queue, and submits it to the device.
    fn record(queue: Handle) -> Result<Handle, String>;

    /// Whether an event has completed. Never waits.
    fn is_complete(event: Handle) -> bool;

    /// How long after it was recorded an event completed, if the device measures it.
    fn duration(event: Handle) -> Option<Nanos> {
        let _ = event;
        None
    }

    /// Releases an event.
    fn release(event: Handle);

    /// Waits until everything launched on the queue has completed.
    fn synchronize(queue: Handle) -> Result<(), String>;
}

/// A recorded event, which is released when it is dropped.
pub(crate) struct Event<A: EventApi> {
    handle: Handle,
    recorded_at: Nanos,
    api: PhantomData<fn() -> A>,
}

impl<A: EventApi> Event<A> {
    /// The event that `record` records.
    pub(crate) fn record(record: impl FnOnce() -> Result<Handle, String>) -> Result<Self, String> {
        let recorded_at = Nanos::now();
        Ok(Self { handle: record()?, recorded_at, api: PhantomData })
    }

    pub(crate) fn is_complete(&self) -> bool {
        A::is_complete(self.handle)
    }
}

impl<A: EventApi> Drop for Event<A> {
    fn drop(&mut self) {
        A::release(self.handle);
    }
}

/// The stop points of a queue: level 2.
pub(crate) trait StopPoints: Send + Sync {
    /// Places a stop point behind an event that was just recorded.
    fn place(&self, queue: Handle, event: Handle);

    /// Stalls the queue at the next stop point, until [`StopPoints::resume`].
    fn stop(&self);

    /// Resumes the queue.
    fn resume(&self);

    /// Whether the queue has work. A queue without work does not stall.
    fn set_has_work(&self, has_work: bool);
}

/// See the head of this file.
pub(crate) struct EventQueue<A: EventApi> {
    queue: RevocableHandle<Handle>,
    key: usize,
    /// The addresses of the objects with which the queue is destroyed; 0 if there is none.
    owners: [usize; 2],
    device: DeviceId,
    capabilities: Capabilities,
    markers: Mutex<Markers<A>>,
    stop_points: Option<Arc<dyn StopPoints>>,
    can_mark_from_any_thread: bool,
}

struct Markers<A: EventApi> {
    pending: VecDeque<(Marker, Event<A>)>,
    last: Marker,
    completed: Progress,
}

impl<A: EventApi> EventQueue<A> {
    /// A queue of a device, which error messages name. `no_interrupt` is the reason why it lacks level 3, and level 2 unless
    /// stop points are added.
    pub(crate) fn new(queue: Handle, device: DeviceId, name: String, no_interrupt: &str) -> Self {
        let markers =
            Mutex::new(Markers { pending: VecDeque::new(), last: 0, completed: Progress::default() });
        let capabilities = Capabilities::block_only(name, no_interrupt);
        Self {
            queue: RevocableHandle::new(queue),
            key: queue.addr(),
            owners: [0; 2],
            device,
            capabilities,
            markers,
            stop_points: None,
            can_mark_from_any_thread: true,
        }
    }

    /// The same queue with level 2, or with the reason why it lacks level 2.
    pub(crate) fn with_stop_points(self, stop_points: Result<Arc<dyn StopPoints>, String>) -> Self {
        let cost = stop_points.as_ref().map(|_| LevelCost::default()).map_err(Clone::clone);
        Self { stop_points: stop_points.ok(), capabilities: self.capabilities.with_deactivate(cost), ..self }
    }

    /// The same queue, which is destroyed together with the object at this address. A queue has at most two such objects.
    pub(crate) fn owned_by(self, owner: usize) -> Self {
        Self { owners: [owner, self.owners[0]], ..self }
    }

    /// The same queue, which only the launching thread may mark: the vendor does not allow two threads to use it at once.
    pub(crate) fn marked_by_launching_thread(self) -> Self {
        Self { can_mark_from_any_thread: false, ..self }
    }

    fn markers(&self) -> MutexGuard<'_, Markers<A>> {
        self.markers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `work` with the queue, unless the program has released it.
    fn with<R>(
        &self,
        what: &'static str,
        work: impl FnOnce(Handle) -> Result<R, String>,
    ) -> Result<R, HalError> {
        let done = self.queue.with(work).unwrap_or_else(|| Err("the queue was released".to_owned()));
        done.map_err(|why| HalError::Driver { device: self.capabilities.device().to_owned(), what, why })
    }

    fn resume(&self) {
        if let Some(stop_points) = &self.stop_points {
            stop_points.resume();
        }
    }
}

impl<A: EventApi> VendorQueue for EventQueue<A> {
    fn revoke(&self) {
        self.queue.revoke();
        let mut markers = self.markers();
        // Events keep the queue and its context alive, which the program is destroying.
        markers.pending.clear();
        markers.completed = Progress { marker: Marker::MAX, at: None };
        drop(markers);
        self.resume();
        event_wait_lists::forget_queue(self.key);
    }

    fn belongs_to(&self, owner: usize) -> bool {
        owner != 0 && self.owners.contains(&owner)
    }
}

impl<A: EventApi> HwQueue for EventQueue<A> {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mark(&self) -> Result<Marker, HalError> {
        // Held while the event is recorded, so that the numbers have the order of the events on the device.
        let mut markers = self.markers();
        let event = self.with("placing a marker", |queue| {
            let event = Event::record(|| A::record(queue))?;
            if let Some(stop_points) = &self.stop_points {
                stop_points.place(queue, event.handle);
            }
            Ok(event)
        })?;
        markers.last += 1;
        let marker = markers.last;
        markers.pending.push_back((marker, event));
        Ok(marker)
    }

    fn progress(&self) -> Progress {
        let mut markers = self.markers();
        while let Some((marker, event)) = markers.pending.pop_front() {
            if !event.is_complete() {
                markers.pending.push_front((marker, event));
                break;
            }
            let at = A::duration(event.handle).map(|duration| event.recorded_at + duration);
            markers.completed = Progress { marker, at };
        }
        markers.completed
    }

    fn can_mark_from_any_thread(&self) -> bool {
        self.can_mark_from_any_thread
    }

    fn check_waitable(&self) -> Result<(), HalError> {
        self.with("waiting for a marker", |queue| {
            if event_wait_lists::waits_for_program(queue.addr()) {
                return Err("the queue waits for an event that the program completes".to_owned());
            }
            Ok(())
        })
    }

    fn synchronize(&self) -> Result<(), HalError> {
        self.with("synchronizing", A::synchronize)
    }

    fn preempt(&self, level: Level) -> Result<(), HalError> {
        // The gate alone enforces level 1.
        if self.capabilities.negotiate(LevelRequest::Exactly(level))? > Level::Block
            && let Some(stop_points) = &self.stop_points
        {
            stop_points.stop();
        }
        Ok(())
    }

    fn restore(&self) -> Result<(), HalError> {
        self.resume();
        Ok(())
    }

    fn set_has_work(&self, has_work: bool) {
        if let Some(stop_points) = &self.stop_points {
            stop_points.set_has_work(has_work);
        }
    }
}

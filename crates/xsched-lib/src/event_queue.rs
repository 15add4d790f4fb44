//! A hardware queue of level 1 whose markers are events of the vendor's, asked one after the other whether they are done.
//! What a platform adds is [`Vendor`], and [`StopPoints`] where it has level 2.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xsched_core::{
    Capabilities, DeviceId, HalError, HwQueue, Level, LevelCost, LevelRequest, Marker, Nanos, Progress,
};
use xsched_interpose::{Handle, RevocableHandle};

use crate::event_wait_lists;
use crate::tracked_queue::VendorQueue;

/// What is a vendor's own about queues and events. Errors are in the vendor's words.
pub(crate) trait EventApi: 'static {
    /// Puts an event on a queue, behind these events, or behind everything launched so far if there are none, and has the
    /// device know of it.
    fn mark(queue: Handle, behind: &[Handle]) -> Result<Handle, String>;

    /// Whether an event is done. Never waits.
    fn is_done(event: Handle) -> bool;

    /// How long after it was placed an event of ours was done, where the device tells.
    fn took(event: Handle) -> Option<Nanos> {
        let _ = event;
        None
    }

    /// The queue that an event is on; none if it is for the program to complete.
    fn queue_of(event: Handle) -> Handle;

    /// Gives back an event of ours.
    fn release(event: Handle);

    /// Dependencies until everything launched on the queue so far is done.
    fn synchronize(queue: Handle) -> Result<(), String>;
}

/// An event of ours, given back when it is dropped.
pub(crate) struct Event<V: EventApi> {
    handle: Handle,
    placed: Nanos,
    vendor: PhantomData<fn() -> V>,
}

impl<V: EventApi> Event<V> {
    /// See [`EventApi::mark`].
    pub(crate) fn place(queue: Handle, behind: &[Handle]) -> Result<Self, String> {
        let placed = Nanos::now();
        Ok(Self { handle: V::mark(queue, behind)?, placed, vendor: PhantomData })
    }

    pub(crate) fn is_done(&self) -> bool {
        V::is_done(self.handle)
    }
}

impl<V: EventApi> Drop for Event<V> {
    fn drop(&mut self) {
        V::release(self.handle);
    }
}

/// Where a queue can be stopped: level 2.
pub(crate) trait StopPoints: Send + Sync {
    /// Puts one behind an event that was just placed.
    fn place(&self, queue: Handle, event: Handle);

    /// Stops the queue at the next one it comes to, until [`StopPoints::go`].
    fn stop(&self);

    /// Lets it run on.
    fn go(&self);

    /// Whether it has anything to do. If not, it stands nowhere.
    fn set_has_work(&self, has_work: bool);
}

/// See the head of this file.
pub(crate) struct EventQueue<V: EventApi> {
    lease: RevocableHandle<Handle>,
    key: usize,
    device: DeviceId,
    capabilities: Capabilities,
    marks: Mutex<Marks<V>>,
    stops: Option<Arc<dyn StopPoints>>,
}

struct Marks<V: EventApi> {
    placed: VecDeque<(Marker, Event<V>)>,
    last: Marker,
    reached: Progress,
}

impl<V: EventApi> EventQueue<V> {
    /// A queue of this device, called so in messages, which says why it has no more than level 1.
    pub(crate) fn new(queue: Handle, device: DeviceId, name: String, no_more: &str) -> Self {
        let marks = Mutex::new(Marks { placed: VecDeque::new(), last: 0, reached: Progress::default() });
        let capabilities = Capabilities::block_only(name, no_more);
        Self {
            lease: RevocableHandle::new(queue),
            key: queue.addr(),
            device,
            capabilities,
            marks,
            stops: None,
        }
    }

    /// The same queue with level 2, or with a reason of its own for lacking it.
    pub(crate) fn with_stops(self, stops: Result<Arc<dyn StopPoints>, String>) -> Self {
        let level_2 = stops.as_ref().map(|_| LevelCost::default()).map_err(Clone::clone);
        Self { stops: stops.ok(), capabilities: self.capabilities.with_deactivate(level_2), ..self }
    }

    fn marks(&self) -> MutexGuard<'_, Marks<V>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the queue, as long as the program has it.
    fn with<R>(
        &self,
        what: &'static str,
        work: impl FnOnce(Handle) -> Result<R, String>,
    ) -> Result<R, HalError> {
        let done = self.lease.with(work).unwrap_or_else(|| Err("the queue was released".to_owned()));
        done.map_err(|why| HalError::Driver { device: self.capabilities.device().to_owned(), what, why })
    }

    fn go(&self) {
        if let Some(stops) = &self.stops {
            stops.go();
        }
    }
}

impl<V: EventApi> VendorQueue for EventQueue<V> {
    fn revoke(&self) {
        self.lease.revoke();
        let mut marks = self.marks();
        // Events keep the queue and its context alive, which the program wants gone.
        marks.placed.clear();
        marks.reached = Progress { marker: Marker::MAX, at: None };
        drop(marks);
        self.go();
        event_wait_lists::forget(self.key);
    }
}

impl<V: EventApi> HwQueue for EventQueue<V> {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mark(&self) -> Result<Marker, HalError> {
        // Held while the event is placed, so that events lie on the device in the order they have here.
        let mut marks = self.marks();
        let event = self.with("placing a marker", |queue| {
            let event = Event::place(queue, &[])?;
            if let Some(stops) = &self.stops {
                stops.place(queue, event.handle);
            }
            Ok(event)
        })?;
        marks.last += 1;
        let marker = marks.last;
        marks.placed.push_back((marker, event));
        Ok(marker)
    }

    fn progress(&self) -> Progress {
        let mut marks = self.marks();
        while let Some((marker, event)) = marks.placed.pop_front() {
            if !event.is_done() {
                marks.placed.push_front((marker, event));
                break;
            }
            let at = V::took(event.handle).map(|took| event.placed + took);
            marks.reached = Progress { marker, at };
        }
        marks.reached
    }

    fn check_waitable(&self) -> Result<(), HalError> {
        self.with("waiting for a marker", |queue| {
            let stuck = event_wait_lists::for_program(queue.addr());
            if stuck { Err("the queue waits for the program".to_owned()) } else { Ok(()) }
        })
    }

    fn synchronize(&self) -> Result<(), HalError> {
        self.with("synchronizing", V::synchronize)
    }

    fn preempt(&self, level: Level) -> Result<(), HalError> {
        // Level 1 is the gate's alone.
        if self.capabilities.negotiate(LevelRequest::Exactly(level))? > Level::Block
            && let Some(stops) = &self.stops
        {
            stops.stop();
        }
        Ok(())
    }

    fn restore(&self) -> Result<(), HalError> {
        self.go();
        Ok(())
    }

    fn set_has_work(&self, has_work: bool) {
        if let Some(stops) = &self.stops {
            stops.set_has_work(has_work);
        }
    }
}

//! A hardware queue of level 1, or 2, whose markers are events of the vendor's, asked one after the other whether they are
//! done. What a platform adds is [`Vendor`].

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use xsched_core::{Capabilities, DeviceId, HalError, HwQueue, Level, LevelRequest, Marker, Nanos, Progress};
use xsched_interpose::Lease;

use crate::station::Leased;

/// How long to wait before asking an event again.
const POLL: Duration = Duration::from_micros(50);

/// What is a vendor's own about a queue. Errors are in the vendor's words.
pub(crate) trait Vendor: Send + Sync + 'static {
    /// The handle of a queue.
    type Queue: Copy + Send + Sync;
    /// An event, given back when it is dropped.
    type Event: Send;

    /// Puts an event behind everything launched on the queue so far, and has the device know of it.
    fn mark(&self, queue: Self::Queue) -> Result<Self::Event, String>;

    /// Whether an event is done. Never waits.
    fn is_done(&self, event: &Self::Event) -> bool;

    /// When an event that is done was done, where the device tells.
    fn done_at(&self, event: &Self::Event) -> Option<Nanos> {
        let _ = event;
        None
    }

    /// Waits until everything launched on the queue so far is done.
    fn synchronize(&self, queue: Self::Queue) -> Result<(), String>;

    /// Whether what is on the queue may be waiting for the program itself. Then nobody may wait for the queue.
    fn waits_for_program(&self, queue: Self::Queue) -> bool {
        let _ = queue;
        false
    }

    /// Stops what the device holds of the queue and has not begun, until [`Vendor::go`]. For devices with level 2.
    fn stop(&self) {}

    /// Lets it run on.
    fn go(&self) {}

    /// The program's last hold on the queue is about to go.
    fn end(&self) {}
}

/// See the head of this file.
pub(crate) struct Polled<V: Vendor> {
    lease: Lease<V::Queue>,
    device: DeviceId,
    capabilities: Capabilities,
    marks: Mutex<Marks<V::Event>>,
    vendor: V,
}

struct Marks<E> {
    placed: VecDeque<(Marker, E)>,
    reached: Progress,
}

impl<V: Vendor> Polled<V> {
    /// A queue of this device, which has the levels of `capabilities`: none above the second.
    pub(crate) fn new(queue: V::Queue, device: DeviceId, capabilities: Capabilities, vendor: V) -> Self {
        let marks = Mutex::new(Marks { placed: VecDeque::new(), reached: Progress::default() });
        Self { lease: Lease::new(queue), device, capabilities, marks, vendor }
    }

    fn marks(&self) -> MutexGuard<'_, Marks<V::Event>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, what: &'static str, why: String) -> HalError {
        HalError::Driver { device: self.capabilities.device().to_owned(), what, why }
    }

    /// Does something with the queue, as long as the program has it.
    fn with<R>(
        &self,
        what: &'static str,
        work: impl FnOnce(V::Queue) -> Result<R, String>,
    ) -> Result<R, HalError> {
        let done = self.lease.with(work).unwrap_or_else(|| Err("the queue was released".to_owned()));
        done.map_err(|why| self.failed(what, why))
    }
}

impl<V: Vendor> Leased for Polled<V> {
    fn end(&self) {
        self.lease.end();
        let mut marks = self.marks();
        // Events keep the queue and its context alive, which the program wants gone.
        marks.placed.clear();
        marks.reached = Progress { marker: Marker::MAX, at: None };
        drop(marks);
        self.vendor.end();
    }
}

impl<V: Vendor> HwQueue for Polled<V> {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mark(&self, marker: Marker) -> Result<(), HalError> {
        // Held while the event is placed, so that events lie on the device in the order they have here.
        let mut marks = self.marks();
        let event = self.with("placing a marker", |queue| self.vendor.mark(queue))?;
        marks.placed.push_back((marker, event));
        Ok(())
    }

    fn progress(&self) -> Progress {
        let mut marks = self.marks();
        while let Some((marker, event)) = marks.placed.pop_front() {
            if !self.vendor.is_done(&event) {
                marks.placed.push_front((marker, event));
                break;
            }
            marks.reached = Progress { marker, at: self.vendor.done_at(&event) };
        }
        marks.reached
    }

    fn wait(&self, marker: Marker, timeout: Duration) -> Result<bool, HalError> {
        let deadline = Nanos::now() + timeout.into();
        loop {
            if self.progress().marker >= marker {
                return Ok(true);
            }
            self.with("waiting for a marker", |queue| {
                let stuck = self.vendor.waits_for_program(queue);
                if stuck { Err("the queue waits for the program".to_owned()) } else { Ok(()) }
            })?;
            let left = deadline - Nanos::now();
            if left == Nanos::ZERO {
                return Ok(false);
            }
            std::thread::sleep(POLL.min(left.into()));
        }
    }

    fn synchronize(&self) -> Result<(), HalError> {
        self.with("synchronizing", |queue| self.vendor.synchronize(queue))
    }

    fn preempt(&self, level: Level) -> Result<(), HalError> {
        // Level 1 is the gate's alone.
        if self.capabilities.negotiate(LevelRequest::Exactly(level))? > Level::Block {
            self.vendor.stop();
        }
        Ok(())
    }

    fn restore(&self) -> Result<(), HalError> {
        self.vendor.go();
        Ok(())
    }
}

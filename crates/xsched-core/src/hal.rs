//! The hardware abstraction: what the core requires of one hardware queue, and what it guarantees to the platform.
//!
//! A platform implements [`HwQueue`] once. Only `device`, `capabilities`, `mark`, `progress`, `synchronize`, `preempt` and
//! `restore` are required; the other functions have defaults for a device without that feature. [`crate::NullQueue`] is a
//! template, and the conformance suite (feature `conformance`) checks the contract below for any platform.
//!
//! Launching is not part of the trait: programs launch through the vendor's own functions, on their own threads.
//!
//! # Contract
//!
//! The core guarantees to a platform:
//! 1. `preempt`, `restore` and `order_changed` of one queue are never called at the same time.
//! 2. `preempt` is called only with a level that `capabilities` offers.
//! 3. No function is called after the queue was dropped.
//!
//! All other functions may be called from any thread at any time, also while another thread is inside `preempt` or `mark`.
//!
//! A platform guarantees to the core:
//! 1. Commands of one queue complete in the order in which they were launched.
//! 2. A marker completes when everything launched on the queue before it has completed, and not earlier.
//! 3. Marker numbers increase in the order in which the markers lie on the device, whichever thread placed them.
//! 4. `progress` never decreases and never blocks.
//! 5. A queue that offers level 2 can be stopped at every marker, if not between any two commands.
//! 6. `preempt` and `restore` may be repeated without effect.
//! 7. `restore` resumes a queue while other threads are blocked inside the driver on that queue.
//! 8. A call that cannot be carried out returns an error. It does not panic, print or end the process.
//!
//! # When the functions are called
//!
//! | function                 | by which thread                                    | when                                              |
//! |--------------------------|----------------------------------------------------|---------------------------------------------------|
//! | `mark`                   | a launching thread; the watcher thread             | the window needs a marker; the queue may be idle  |
//! | `progress`               | launching threads, the watcher thread              | the window is full; the queue may be idle         |
//! | `wait`                   | a launching thread                                 | the window of a throttled queue is full           |
//! | `order_changed`          | the enforcer thread                                | the order changed, at level 3                     |
//! | `set_has_work`           | the enforcer thread, launching and waiting threads | before a stop and during it                       |
//! | `preempt`, `restore`     | the enforcer thread; a thread of the program       | the order or the program stops or resumes a queue |
//! | `trigger_context_switch` | a launching thread                                 | before a large launch of an idle leader           |
//! | `defer`                  | a launching thread                                 | before a launch of a host-bound leader            |
//! | `release_deferred`       | a thread that waits or launches; the timer thread  | the program waits, or the slack has passed        |

use std::time::Duration;

use crate::deferral::HoldPoint;
use crate::gate::Order;
use crate::ids::DeviceId;
use crate::level::{Capabilities, Level};
use crate::sync::sleep;
use crate::time::Nanos;
use crate::window::DEFAULT_STOP_DISTANCE;

/// The number of a marker on its queue. The first is greater than 0, and each is greater than its predecessor.
pub type Marker = u64;

/// How far a queue has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The last marker that has completed; 0 before the first.
    pub marker: Marker,
    /// When it completed, by the device's clock converted to [`Nanos::now`]. `None` if the device does not report times: the
    /// core then uses the time at which it called [`HwQueue::progress`].
    pub at: Option<Nanos>,
}

/// How often the default [`HwQueue::wait`] reads the progress.
const PROGRESS_POLL_INTERVAL: Duration = Duration::from_micros(50);

/// Why a hardware queue did not carry out a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HalError {
    /// The device does not offer the requested level. The message names the level that it offers and the reason.
    #[error(transparent)]
    Level(#[from] crate::level::LevelError),
    /// The driver rejected the call.
    #[error("{device}: {what} failed: {why}")]
    Driver {
        /// The device's name for messages.
        device: String,
        /// The operation, as in "placing a marker".
        what: &'static str,
        /// The driver's error.
        why: String,
    },
}

/// One hardware queue of one device. The module's documentation states the contract.
pub trait HwQueue: Send + Sync {
    /// The device to which the queue belongs.
    fn device(&self) -> DeviceId;

    /// The levels at which the queue can be preempted.
    fn capabilities(&self) -> &Capabilities;

    /// Places a marker behind everything launched on the queue before this call, and returns its number.
    ///
    /// May block for as long as a launch may, such as on a queue that is full.
    fn mark(&self) -> Result<Marker, HalError>;

    /// The last marker that has completed. One load or a cheap query: launching threads call this.
    fn progress(&self) -> Progress;

    /// Waits until `marker` has completed or the time has passed. Returns whether it has completed.
    ///
    /// The default polls [`HwQueue::progress`] every 50 us. Override it if the device can wake a thread.
    fn wait(&self, marker: Marker, timeout: Duration) -> Result<bool, HalError> {
        let deadline = Nanos::now() + timeout.into();
        loop {
            if self.progress().marker >= marker {
                return Ok(true);
            }
            self.check_waitable()?;
            let left = deadline - Nanos::now();
            if left == Nanos::ZERO {
                return Ok(false);
            }
            sleep(PROGRESS_POLL_INTERVAL.min(left.into()));
        }
    }

    /// Returns an error if the queue may be waiting for the program itself, such as for an event that the program sets.
    ///
    /// The thread that would wait may be the thread that has to set it. The core then launches without waiting for room.
    fn check_waitable(&self) -> Result<(), HalError> {
        Ok(())
    }

    /// Whether the device has work of this queue, by a query that places nothing on the queue and waits for nothing. `None` if the
    /// device cannot tell.
    ///
    /// The watcher thread samples queues of free tasks with it, whose launches are not counted.
    fn query_busy(&self) -> Option<bool> {
        None
    }

    /// Waits until everything launched so far has completed.
    fn synchronize(&self) -> Result<(), HalError>;

    /// Stops the queue on the device. Returns once the device has stopped it.
    ///
    /// At [`Level::Deactivate`] commands that have not started do not start; the running command may complete. At
    /// [`Level::Interrupt`] the running command stops too.
    fn preempt(&self, level: Level) -> Result<(), HalError>;

    /// Resumes the queue where it was stopped.
    fn restore(&self) -> Result<(), HalError>;

    /// Reports whether the queue has work: commands that were launched and have not completed. Until the first call it has.
    ///
    /// Called before each stop and while the queue is stopped. A stopped queue without work must not stall: programs also copy
    /// and synchronize there, which is not counted as work, so that the scheduler would not resume the queue for them.
    fn set_has_work(&self, has_work: bool) {
        let _ = has_work;
    }

    /// The scheduler's order for this queue has changed.
    ///
    /// For devices that can be configured in advance, such as with time slices. Called only at [`Level::Interrupt`], and with
    /// [`Order::Free`] when the queue leaves that level.
    fn order_changed(&self, order: Order) {
        let _ = order;
    }

    /// Makes the device switch to this queue's context now: a large launch follows, which takes long to reach the device.
    ///
    /// Called only for a leader that is idle, while other tasks may use the device.
    fn trigger_context_switch(&self) {}

    /// Whether the device preempts a queue with the order [`Order::Yield`] by itself at [`Level::Interrupt`], as configured in
    /// [`HwQueue::order_changed`]. Then [`HwQueue::preempt`] is called only for the orders evict and drain and for a queue
    /// that its program suspends.
    fn preempts_by_time_slice(&self) -> bool {
        false
    }

    /// Whether commands that are launched on a queue stopped at level 2 or 3 stay behind the point where it was stopped. The
    /// core places a marker before the first of them. Then launching threads need not wait at the gate during the stop.
    fn accepts_launches_while_stopped(&self) -> bool {
        false
    }

    /// How much estimated work the core launches between two markers of a queue that is preempted at level 2 or 3. A queue that is
    /// stopped at its markers completes up to that much work after the order, and the marker costs device time each time.
    fn stop_distance(&self) -> Nanos {
        DEFAULT_STOP_DISTANCE
    }

    /// Whether [`HwQueue::defer`] can hold launches.
    fn can_defer(&self) -> bool {
        false
    }

    /// Places a hold point behind everything launched so far: the device runs what is launched from now on only after
    /// [`HwQueue::release_deferred`] was called with this point or a later one. Points ascend, and wrap around.
    ///
    /// The point may have been released before this is called.
    fn defer(&self, point: HoldPoint) -> Result<(), HalError> {
        let _ = point;
        let (device, what) = (self.capabilities().device().to_owned(), "deferring launches");
        Err(HalError::Driver { device, what, why: "the device cannot hold launches".to_owned() })
    }

    /// Has the device run what is launched behind the hold points up to this one. Must be quick and must not block.
    fn release_deferred(&self, point: HoldPoint) {
        let _ = point;
    }

    /// The last hold point at which the device has arrived: everything launched before it has completed. One load.
    fn deferred_progress(&self) -> HoldPoint {
        0
    }

    /// Whether any thread may call [`HwQueue::mark`], and not only the launching thread.
    fn can_mark_from_any_thread(&self) -> bool {
        true
    }
}

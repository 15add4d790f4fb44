//! The contract between the core and a platform: what a hardware queue must be able to do.
//!
//! What the core guarantees to a backend:
//! 1. `preempt` and `restore` of one queue are never called at the same time.
//! 2. `preempt` is only asked for a level that `capabilities` offers.
//! 3. Nothing is called after the queue was dropped.
//!
//! What a backend guarantees to the core:
//! 1. Commands of one queue complete in the order they were launched.
//! 2. A marker completes when everything launched on the queue before it has, and not sooner.
//! 3. Markers have numbers that grow in the order they lie on the device, whoever places them.
//! 4. `progress` never goes back and never blocks.
//! 5. A queue that offers level 2 can be stopped at every marker, if not between any two commands.
//! 6. `preempt` and `restore` may be repeated without effect.
//! 7. A call that cannot be carried out answers with an error; it neither panics nor prints.
//!
//! The conformance suite (feature `conformance`) checks all of this for any backend.

use std::time::Duration;

use crate::gate::Order;
use crate::ids::DeviceId;
use crate::level::{Capabilities, Level};
use crate::sync::sleep;
use crate::time::Nanos;

/// The number of a marker on its queue: the first has more than 0, each a greater one than the one before.
pub type Marker = u64;

/// How far a queue has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The last marker that completed; 0 before the first.
    pub marker: Marker,
    /// When it completed by the device's clock, where the device tells. Without it the core takes the time at which
    /// it looked.
    pub at: Option<Nanos>,
}

/// How long whoever waits for a marker sleeps before it looks again.
const LOOK_AGAIN: Duration = Duration::from_micros(50);

/// Why the hardware did not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HalError {
    /// This queue cannot be stopped that deep; the message says what it has and why.
    #[error(transparent)]
    Level(#[from] crate::level::LevelError),
    /// The driver refused.
    #[error("{device}: {what} failed: {why}")]
    Driver {
        /// The device, in words.
        device: String,
        /// What was attempted.
        what: &'static str,
        /// What the driver said.
        why: String,
    },
}

/// One hardware queue of one device, as the core sees it.
///
/// Launching is not part of it: programs launch through the vendor's own functions, on their own threads; the core
/// only needs to know how far the queue has come and how to stop it.
pub trait HwQueue: Send + Sync {
    /// The device the queue belongs to.
    fn device(&self) -> DeviceId;

    /// The levels the queue can be preempted at.
    fn capabilities(&self) -> &Capabilities;

    /// Asks the device to report the marker that is answered once everything launched before this call has completed.
    fn mark(&self) -> Result<Marker, HalError>;

    /// How far the device has come: one load, or a cheap query.
    fn progress(&self) -> Progress;

    /// Dependencies until `marker` has completed or the time is up; says whether it completed. By itself it asks for the progress
    /// again and again.
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
            sleep(LOOK_AGAIN.min(left.into()));
        }
    }

    /// Fails if the queue may be waiting for the program itself: the thread that would wait may be the one to let it go on.
    fn check_waitable(&self) -> Result<(), HalError> {
        Ok(())
    }

    /// Dependencies until everything launched so far has completed.
    fn synchronize(&self) -> Result<(), HalError>;

    /// Stops what the device holds of this queue: at [`Level::Deactivate`] commands that have not begun, at
    /// [`Level::Interrupt`] the running one too. Returns once the device has stopped.
    fn preempt(&self, level: Level) -> Result<(), HalError>;

    /// Lets the queue run on where it was stopped.
    fn restore(&self) -> Result<(), HalError>;

    /// Whether anything was launched on the queue that is not done; it has, until this is called. Called before it is
    /// stopped, and while it is. A queue that has nothing must not stand still: programs copy and wait there, too, which
    /// nobody sees, and so nobody would let them go on.
    fn set_has_work(&self, has_work: bool) {
        let _ = has_work;
    }

    /// The scheduler's order for this queue is another now. For devices that can be told beforehand who may take them
    /// from whom, as with timeslices; only called at [`Level::Interrupt`], else with [`Order::Free`].
    fn order_changed(&self, order: Order) {
        let _ = order;
    }

    /// Something is about to be launched that takes its time to get to the device, which others may be using: has the device
    /// turn to this queue meanwhile. Only called for a queue that has nothing to do.
    fn trigger_context_switch(&self) {}

    /// Whether at [`Level::Interrupt`] the device takes itself from a queue that was told to hold, by what it was told in
    /// [`HwQueue::order_changed`]. Then [`HwQueue::preempt`] is only asked for where the queue has to stand still.
    fn preempts_by_time_slice(&self) -> bool {
        false
    }

    /// Whether what is launched on a queue that is stopped at level 2 or 3 stays behind the point where it was stopped, as
    /// long as a marker is placed first. Then the program's threads need not wait while it is.
    fn accepts_launches_while_stopped(&self) -> bool {
        false
    }

    /// Whether any thread may call [`HwQueue::mark`], and not only the one that launches.
    fn can_mark_from_any_thread(&self) -> bool {
        true
    }
}

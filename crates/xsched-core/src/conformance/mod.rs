//! The test suite that every platform's [`HwQueue`] passes. One line in a test file runs all of it:
//!
//! ```text
//! xsched_core::conformance!(MySubject::new());
//! ```
//!
//! where `MySubject` implements [`Subject`]: how to create a queue, how to launch a command on it as a program would, and how
//! to count completed commands without markers.
//!
//! The levels that the device offers are exercised. The levels that it lacks must be rejected with a reason.

#![allow(clippy::missing_panics_doc, reason = "checks panic on failure, as tests do")]

mod hardware;
mod scheduling;

pub use hardware::*;
pub use scheduling::*;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::HwQueue;

/// The platform under test.
pub trait Subject: Send + Sync + 'static {
    /// The platform's hardware queue.
    type Queue: HwQueue + 'static;

    /// Creates an empty queue on the device.
    fn queue(&self) -> Arc<Self::Queue>;

    /// Launches one command of about this duration with the vendor's own call, which the core does not see.
    fn launch(&self, queue: &Self::Queue, duration: Duration);

    /// How many commands launched on the queue have completed, by evidence other than markers.
    fn finished(&self, queue: &Self::Queue) -> u64;
}

/// Defines one test for every check of the suite. The argument is an expression that creates a [`Subject`]; it is evaluated
/// once per test.
#[macro_export]
macro_rules! conformance {
    ($subject:expr) => {
        $crate::conformance!(@tests $subject,
            markers_follow_the_work_before_them
            waiting_ends_with_the_marker_or_the_timeout
            synchronize_covers_everything_launched
            queues_do_not_share_markers
            markers_of_several_threads_are_unique_and_complete
            offered_levels_stop_the_device_and_missing_levels_are_rejected
            preempting_and_restoring_may_be_repeated
            random_preemptions_lose_nothing
            launches_behind_a_hold_point_wait_for_its_release
            suspended_queue_launches_nothing_and_resumes_in_order
            suspending_with_sync_leaves_nothing_on_the_device
            suspending_waits_for_submitted_commands
            pending_commands_can_be_dropped
            suspending_and_resuming_may_be_repeated
            missing_level_is_rejected_with_the_highest_level_and_the_reason
            throttled_queue_completes_everything
            two_xqueues_on_one_hardware_queue_wait_for_their_own_markers
        );
    };
    (@tests $subject:expr, $($check:ident)*) => {
        $(
            #[test]
            fn $check() {
                $crate::conformance::$check(&$subject);
            }
        )*
    };
}

/// Waits until a condition is true, and fails the test if it is not within 30 s.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not happen within 30 s");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A small generator of pseudo-random numbers with a seed: every run is the same.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

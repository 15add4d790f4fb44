//! The test suite that every backend passes. One line in a test file runs it all:
//!
//! ```text
//! xsched_core::conformance!(MySubject::new());
//! ```
//!
//! where `MySubject` implements [`Subject`]: how to make a queue, how to launch a command on it as a program would,
//! and how to know by evidence other than markers how many commands have finished.
//!
//! Levels the backend offers are exercised; levels it lacks must be refused with a reason.

#![allow(clippy::missing_panics_doc, reason = "checks fail by panicking, as tests do")]

mod hardware;
mod scheduling;

pub use hardware::*;
pub use scheduling::*;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::HwQueue;

/// A backend under test.
pub trait Subject: Send + Sync + 'static {
    /// Its hardware queue.
    type Queue: HwQueue + 'static;

    /// A new, empty queue on the device.
    fn queue(&self) -> Arc<Self::Queue>;

    /// Launches one command of about this length, past the core, as the vendor's own call would.
    fn launch(&self, queue: &Self::Queue, length: Duration);

    /// How many commands launched on the queue have finished, by the device's own account.
    fn finished(&self, queue: &Self::Queue) -> u64;
}

/// Makes one test of every check of the suite. The argument is an expression that makes a [`Subject`]; it is
/// evaluated once per test.
#[macro_export]
macro_rules! conformance {
    ($subject:expr) => {
        $crate::conformance!(@tests $subject,
            markers_follow_the_work_before_them
            waiting_ends_with_the_marker_or_the_time
            synchronize_covers_everything_launched
            queues_do_not_share_markers
            threads_place_markers_of_their_own
            offered_levels_stop_the_device_and_others_are_refused
            preempting_and_restoring_may_be_repeated
            a_storm_of_preemptions_loses_nothing
            a_suspended_queue_launches_nothing_and_resumes_in_order
            suspending_with_sync_leaves_nothing_on_the_device
            suspending_waits_for_submitted_commands
            waiting_commands_can_be_dropped
            suspending_and_resuming_may_be_repeated
            a_missing_level_is_an_error_that_says_what_there_is
            a_paced_queue_completes_everything
            a_queue_that_is_controlled_again_is_waited_for_as_before
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

/// Dependencies for something that must come, and fails the test if it does not.
pub(crate) fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(30);
    while !happened() {
        assert!(Instant::now() < patience, "{what} did not happen within 30 s");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A small repeatable source of randomness: the same storm every time.
pub(crate) struct Dice(u64);

impl Dice {
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

//! What is known about one of the program's queues.

use std::sync::Arc;

use xsched_core::{HwQueue, LevelRequest, Limit};
use xsched_ipc::report::{Severity, report};
use xsched_ipc::{Client, JoinedQueue};

/// A hardware queue that the program may destroy at any time.
pub(crate) trait Leased: HwQueue {
    /// The vendor's queue is about to be destroyed. Afterwards nothing is called on it any more.
    fn end(&self);
}

/// One queue of the program.
pub(crate) struct Station {
    hw: Arc<dyn Leased>,
    /// None: it cannot be scheduled.
    queue: Option<Arc<JoinedQueue>>,
}

impl Station {
    /// Puts a queue under the scheduler's control, if that is possible.
    pub(crate) fn new<H: Leased + 'static>(
        client: &Client,
        hw: H,
        level: LevelRequest,
        limit: Option<Limit>,
    ) -> Self {
        let hw = Arc::new(hw);
        let queue = client.join(Arc::clone(&hw) as _, level);
        if let (Ok(queue), Some(limit)) = (&queue, limit) {
            queue.set_paced_limit(limit);
        }
        if let Err(why) = &queue {
            report(Severity::Error, format_args!("a queue runs unscheduled: {why}"));
        }
        Self { hw, queue: queue.ok() }
    }

    /// Calls `real` as soon as the queue may launch.
    #[inline]
    pub(crate) fn launch(&self, real: &mut dyn FnMut()) {
        match &self.queue {
            Some(queue) => queue.launch(real),
            None => real(),
        }
    }

    /// Calls `real`, which waits until the queue's work is done.
    pub(crate) fn synchronize(&self, real: &mut dyn FnMut()) {
        match &self.queue {
            Some(queue) => queue.lane().synchronized(real),
            None => real(),
        }
    }

    /// The queue, if it is scheduled, for a launch on several at once.
    pub(crate) fn queue(&self) -> Option<Arc<JoinedQueue>> {
        self.queue.clone()
    }

    /// The vendor's queue is about to be destroyed.
    pub(crate) fn retire(&self) {
        if let Some(queue) = &self.queue {
            queue.retire();
        }
        self.hw.end();
    }
}

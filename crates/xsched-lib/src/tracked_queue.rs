//! What is known about one of the program's queues.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use xsched_core::{HwQueue, LevelRequest, Limit, Wait};
use xsched_interpose::Handle;
use xsched_ipc::report::{Severity, report};
use xsched_ipc::{Client, ScheduledQueue};

use crate::loader::VendorLibrary;

/// A hardware queue that the program may destroy at any time.
pub(crate) trait VendorQueue: HwQueue {
    /// The vendor's queue is about to be destroyed. Afterwards nothing is called on it any more.
    fn revoke(&self);

    /// Whether it ends when the vendor's thing at this address does, which queues belong to.
    fn belongs_to(&self, owner: usize) -> bool {
        let _ = owner;
        false
    }
}

/// A vendor queue that a program passes to the C interface.
pub(crate) struct ApiQueue {
    /// The key under which the platform's hooks track the queue.
    pub(crate) key: usize,
    /// Opens the queue for scheduling; returns none if the vendor's library rejects the queue.
    pub(crate) open: Box<dyn FnOnce() -> Option<Arc<dyn VendorQueue>>>,
}

impl ApiQueue {
    /// A queue with this key.
    pub(crate) fn new<Q: VendorQueue + 'static>(
        key: usize,
        open: impl FnOnce() -> Option<Q> + 'static,
    ) -> Self {
        Self { key, open: Box::new(move || open().map(|queue| Arc::new(queue) as _)) }
    }

    /// A queue of a platform that tracks queues by their handles. None if the handle is null, or if no library with this file
    /// name is loaded.
    pub(crate) fn from_handle<Q: VendorQueue + 'static>(
        library: &VendorLibrary,
        file: &str,
        queue: *mut c_void,
        open: fn(Handle) -> Option<Q>,
    ) -> Option<Self> {
        // SAFETY: the program passes a queue that it created, or null.
        let queue = unsafe { Handle::from_pointer(queue) };
        let usable = library.find_loaded(file) && !queue.is_none();
        usable.then(|| Self::new(queue.addr(), move || open(queue)))
    }
}

/// One queue of the program.
pub(crate) struct TrackedQueue {
    hw: Arc<dyn VendorQueue>,
    /// None: it cannot be scheduled.
    queue: Option<Arc<ScheduledQueue>>,
    /// The program's, where the vendor's queues can be shared.
    holds: AtomicUsize,
}

impl TrackedQueue {
    /// A queue that may be under control already.
    pub(crate) fn of(hw: Arc<dyn VendorQueue>, queue: Option<Arc<ScheduledQueue>>) -> Self {
        Self { hw, queue, holds: AtomicUsize::new(1) }
    }

    /// The same queue, under control now, or no more.
    pub(crate) fn again(&self, queue: Option<Arc<ScheduledQueue>>) -> Self {
        let holds = AtomicUsize::new(self.holds.load(Ordering::Acquire));
        Self { hw: Arc::clone(&self.hw), queue, holds }
    }

    pub(crate) fn hw(&self) -> &Arc<dyn VendorQueue> {
        &self.hw
    }

    /// Puts a queue under the scheduler's control, if that is possible.
    pub(crate) fn new<H: VendorQueue + 'static>(
        client: &Client,
        hw: H,
        level: LevelRequest,
        limit: Option<Limit>,
    ) -> Self {
        let hw = Arc::new(hw);
        let queue = client.join(Arc::clone(&hw) as _, level);
        if let (Ok(queue), Some(limit)) = (&queue, limit) {
            queue.set_throttled_limit(limit);
        }
        if let Err(why) = &queue {
            report(Severity::Error, format_args!("a queue runs unscheduled: {why}"));
        }
        Self { hw, queue: queue.ok(), holds: AtomicUsize::new(1) }
    }

    /// Calls `real` as soon as the queue may launch.
    #[inline]
    pub(crate) fn launch(&self, real: &mut dyn FnMut()) {
        match &self.queue {
            Some(queue) => queue.launch(real),
            None => real(),
        }
    }

    /// The same for a `real` that takes its time to get to the device.
    pub(crate) fn launch_large(&self, real: &mut dyn FnMut()) {
        match &self.queue {
            Some(queue) => queue.launch_path().launch_large(real),
            None => real(),
        }
    }

    /// The same for a `real` that returns once what it launched is done, and all that was launched before.
    pub(crate) fn launch_and_finish(&self, real: &mut dyn FnMut()) {
        match &self.queue {
            Some(queue) => queue.launch_path().launch_and_finish(real),
            None => real(),
        }
    }

    /// What the scheduler knows it as, if it is scheduled.
    pub(crate) fn queue(&self) -> Option<Arc<ScheduledQueue>> {
        self.queue.clone()
    }

    /// The program takes another hold on the queue.
    pub(crate) fn retain(&self) {
        self.holds.fetch_add(1, Ordering::AcqRel);
    }

    /// The program gives up a hold on the queue. Answers whether it was the last.
    pub(crate) fn release(&self) -> bool {
        self.holds.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Calls `real`, which waits until the queue's work is done.
    pub(crate) fn synchronize(&self, real: &mut dyn FnMut()) {
        match &self.queue {
            Some(queue) => queue.launch_path().synchronized(real),
            None => real(),
        }
    }

    /// Calls `ask`, which says whether the queue's work is done, without waiting.
    pub(crate) fn query(&self, ask: &mut dyn FnMut() -> bool) {
        let wait = self.queue.as_ref().map(|queue| queue.launch_path().begin_wait());
        if ask() {
            wait.into_iter().for_each(Wait::over);
        }
    }

    /// The vendor's queue is about to be destroyed.
    pub(crate) fn retire(&self) {
        if let Some(queue) = &self.queue {
            queue.retire();
        }
        self.hw.revoke();
    }
}

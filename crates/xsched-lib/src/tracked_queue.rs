//! A queue of the program that the library tracks.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use xsched_core::{HwQueue, LaunchPath};
use xsched_interpose::Handle;
use xsched_ipc::ScheduledQueue;

use crate::loader::VendorLibrary;

/// A hardware queue of a vendor's library, which the program can destroy at any time.
pub(crate) trait VendorQueue: HwQueue {
    /// The program is about to destroy the vendor's queue. No vendor function is called on it after this returns.
    fn revoke(&self);

    /// Whether the queue is destroyed together with the object of the vendor at this address, such as a context.
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
    /// None: the queue runs unscheduled.
    scheduled: Option<Arc<ScheduledQueue>>,
    /// The program's references to the vendor's queue, where a queue can be shared.
    references: AtomicUsize,
}

impl TrackedQueue {
    /// A queue with one reference.
    pub(crate) fn new(hw: Arc<dyn VendorQueue>, scheduled: Option<Arc<ScheduledQueue>>) -> Self {
        Self { hw, scheduled, references: AtomicUsize::new(1) }
    }

    /// The same queue, scheduled by another XQueue or unscheduled.
    pub(crate) fn with_scheduled(&self, scheduled: Option<Arc<ScheduledQueue>>) -> Self {
        let references = AtomicUsize::new(self.references.load(Ordering::Acquire));
        Self { hw: Arc::clone(&self.hw), scheduled, references }
    }

    /// The hardware queue.
    pub(crate) fn hw(&self) -> &Arc<dyn VendorQueue> {
        &self.hw
    }

    /// Its XQueue, if it is scheduled.
    pub(crate) fn scheduled(&self) -> Option<&Arc<ScheduledQueue>> {
        self.scheduled.as_ref()
    }

    /// The path of its launches to the device, if it is scheduled.
    #[inline]
    pub(crate) fn launch_path(&self) -> Option<&LaunchPath> {
        self.scheduled.as_ref().map(|queue| &**queue.launch_path())
    }

    /// The program adds a reference.
    pub(crate) fn retain(&self) {
        self.references.fetch_add(1, Ordering::AcqRel);
    }

    /// The program drops a reference. Returns whether it was the last one.
    pub(crate) fn release(&self) -> bool {
        self.references.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Calls `is_complete`, which queries without waiting whether the queue's work has completed.
    pub(crate) fn query(&self, is_complete: &mut dyn FnMut() -> bool) {
        let wait = self.launch_path().map(LaunchPath::begin_wait);
        if is_complete()
            && let Some(wait) = wait
        {
            wait.finish();
        }
    }

    /// The vendor's queue is about to be destroyed.
    pub(crate) fn prepare_destruction(&self) {
        if let Some(queue) = &self.scheduled {
            queue.retire();
        }
        self.hw.revoke();
    }
}

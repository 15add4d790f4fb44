//! The state that the threads of one scheduled process share: its queues, and the binding to its scheduler.
//!
//! ```text
//!   private page ──bind_to──► page of a scheduler ──scheduler lost──► the same page, no scheduler
//!        ▲                         ▲      │                                    │
//!        └────────unbind───────────┼──────┘            bind_to a new page      │
//!                                  └───────────────────────────────────────────┘
//! ```

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use xsched_core::page_protocol::Rebindable;
use xsched_core::{Deferral, DeviceId, Nanos, Order, QueueId, SchedulerLink};

use crate::dependencies::DependencyTracker;
use crate::former_pages::FormerPages;
use crate::heartbeat::HeartbeatMonitor;
use crate::kernel_log::KernelLog;
use crate::local::Membership;
use crate::notifier::Notifier;
use crate::page::Page;
use crate::process_threads::{ProcessThreads, WATCHER_WAKE_MASK};
use crate::protocol::JobKey;
use crate::scheduled_queue::ScheduledQueue;
use crate::service_connection::{ServiceConnection, SocketIdentity};

/// How long a process that exits waits for a query of the watcher.
const SAMPLE_TIMEOUT: Nanos = Nanos::from_millis(10);
const SAMPLE_POLL_INTERVAL: Duration = Duration::from_micros(50);

/// How a process reaches the scheduler of its page.
pub(crate) enum SchedulerEndpoint {
    /// A scheduler that made the page, through its notifier.
    Notifier(Notifier),
    /// The local scheduler.
    Local(Arc<Membership>),
    /// The service, through its socket.
    Service(Arc<ServiceConnection>),
    /// There is no scheduler.
    None,
}

/// The page that a process uses, and the scheduler that reads it.
pub(crate) struct SchedulerBinding {
    pub(crate) page: Arc<Page>,
    pub(crate) endpoint: SchedulerEndpoint,
}

impl SchedulerBinding {
    /// Whether a scheduler reads the page.
    pub(crate) fn has_scheduler(&self) -> bool {
        !matches!(self.endpoint, SchedulerEndpoint::None)
    }

    /// The same page without a scheduler.
    fn without_scheduler(&self) -> Arc<Self> {
        Arc::new(Self { page: Arc::clone(&self.page), endpoint: SchedulerEndpoint::None })
    }
}

/// See the head of this file.
pub(crate) struct ScheduledProcess {
    binding: Rebindable<SchedulerBinding>,
    /// Used before the first scheduler, and again after [`ScheduledProcess::unbind`].
    private_page: Arc<Page>,
    former_pages: FormerPages,
    threads: ProcessThreads,
    queues: Mutex<Vec<QueueEntry>>,
    last_queue: AtomicU64,
    pub(crate) dependencies: DependencyTracker,
    /// Some queues of the process are stopped while others run.
    is_partly_stopped: AtomicBool,
    /// The process was partly stopped once: from then on dependencies between queues are tracked.
    tracks_dependencies: AtomicBool,
    /// The watcher does not poll: it has to be woken.
    watcher_sleeps: AtomicBool,
    /// What identifies the jobs of the process.
    jobs: Mutex<Vec<JobKey>>,
    /// The watcher has to notify the scheduler on behalf of a launching thread.
    relays_notification: AtomicBool,
    /// The watcher asks the device whether free queues are busy.
    is_sampling: AtomicBool,
    heartbeat: HeartbeatMonitor,
    deferral: Arc<Deferral>,
    pub(crate) kernel_log: KernelLog,
    inherited: Inherited,
}

struct QueueEntry {
    device: DeviceId,
    queue: Weak<ScheduledQueue>,
}

impl QueueEntry {
    fn exists(&self) -> bool {
        self.queue.strong_count() > 0
    }
}

/// What a child after fork inherits and must not use. Atomics, because the child cannot take locks that the parent's threads
/// may have held.
struct Inherited {
    /// The page in use, and while the process is being rebound the previous one.
    pages: [AtomicPtr<std::ffi::c_void>; 2],
    /// The descriptor of the connection to the service, or -1; and the identity of its socket.
    socket: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
}

impl ScheduledProcess {
    pub(crate) fn new(page: Arc<Page>, endpoint: SchedulerEndpoint) -> Self {
        let inherited = Inherited {
            pages: [AtomicPtr::new(page.address()), AtomicPtr::default()],
            socket: AtomicI32::new(-1),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
        };
        Self {
            private_page: Arc::clone(&page),
            binding: Rebindable::new(Arc::new(SchedulerBinding { page, endpoint })),
            former_pages: FormerPages::default(),
            threads: ProcessThreads::default(),
            queues: Mutex::default(),
            last_queue: AtomicU64::new(0),
            dependencies: DependencyTracker::default(),
            is_partly_stopped: AtomicBool::new(false),
            tracks_dependencies: AtomicBool::new(false),
            watcher_sleeps: AtomicBool::new(true),
            jobs: Mutex::default(),
            relays_notification: AtomicBool::new(false),
            is_sampling: AtomicBool::new(false),
            heartbeat: HeartbeatMonitor::default(),
            deferral: Arc::default(),
            kernel_log: KernelLog::default(),
            inherited,
        }
    }

    /// The current page and scheduler.
    pub(crate) fn binding(&self) -> Arc<SchedulerBinding> {
        self.binding.get()
    }

    /// The current binding, and the value of its page's futex to sleep on until an order or the binding changes.
    pub(crate) fn observe_orders(&self) -> (Arc<SchedulerBinding>, u32) {
        self.binding.observe(|binding| binding.page.orders())
    }

    /// What identifies the jobs of the process.
    pub(crate) fn jobs(&self) -> Vec<JobKey> {
        lock(&self.jobs).clone()
    }

    /// Sets what identifies the jobs of the process. Returns whether that has changed.
    pub(crate) fn set_jobs(&self, keys: Vec<JobKey>) -> bool {
        let mut jobs = lock(&self.jobs);
        let is_changed = *jobs != keys;
        *jobs = keys;
        is_changed
    }

    /// The deferred launches of the process.
    pub(crate) fn deferral_handle(&self) -> &Arc<Deferral> {
        &self.deferral
    }

    pub(crate) fn threads(&self) -> &ProcessThreads {
        &self.threads
    }

    /// An identifier that no other queue of this process ever had.
    pub(crate) fn next_queue_id(&self) -> QueueId {
        QueueId(self.last_queue.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Adds the queue on `device` that `create` creates on the current page. The process is not rebound meanwhile.
    pub(crate) fn add_queue<E>(
        &self,
        device: DeviceId,
        create: impl FnOnce(&SchedulerBinding) -> Result<Arc<ScheduledQueue>, E>,
    ) -> Result<Arc<ScheduledQueue>, E> {
        let mut queues = lock(&self.queues);
        let queue = create(&self.binding())?;
        queues.retain(QueueEntry::exists);
        queues.push(QueueEntry { device, queue: Arc::downgrade(&queue) });
        Ok(queue)
    }

    /// The queues that exist.
    pub(crate) fn queues(&self) -> Vec<Arc<ScheduledQueue>> {
        lock(&self.queues).iter().filter_map(|entry| entry.queue.upgrade()).collect()
    }

    /// The queues that exist on one device.
    pub(crate) fn queues_on(&self, device: DeviceId) -> Vec<Arc<ScheduledQueue>> {
        let queues = lock(&self.queues);
        queues
            .iter()
            .filter(|entry| entry.device == device)
            .filter_map(|entry| entry.queue.upgrade())
            .collect()
    }

    /// The devices that have queues. Takes no handle on a queue: to drop the last one takes locks.
    pub(crate) fn devices(&self) -> Vec<DeviceId> {
        let mut devices: Vec<_> =
            lock(&self.queues).iter().filter(|entry| entry.exists()).map(|entry| entry.device).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// Records whether some queues are stopped while others run. Returns whether that has just become true.
    pub(crate) fn set_partly_stopped(&self, is_partly_stopped: bool) -> bool {
        !self.is_partly_stopped.swap(is_partly_stopped, Ordering::SeqCst) && is_partly_stopped
    }

    /// Whether some queues are stopped while others run.
    pub(crate) fn is_partly_stopped(&self) -> bool {
        self.is_partly_stopped.load(Ordering::SeqCst)
    }

    /// Tracks dependencies between queues from now on. Returns whether they were not tracked before.
    pub(crate) fn start_dependency_tracking(&self) -> bool {
        !self.tracks_dependencies.swap(true, Ordering::SeqCst)
    }

    /// Whether dependencies between queues are tracked.
    pub(crate) fn tracks_dependencies(&self) -> bool {
        self.tracks_dependencies.load(Ordering::SeqCst)
    }

    /// The watcher calls this just before it stops or starts to poll.
    pub(crate) fn set_watcher_sleeps(&self, sleeps: bool) {
        self.watcher_sleeps.store(sleeps, Ordering::SeqCst);
    }

    /// Notifies the scheduler if a launching thread has left that to the watcher.
    pub(crate) fn relay_notification(&self) {
        if self.relays_notification.swap(false, Ordering::SeqCst) {
            self.notify();
        }
    }

    /// Calls `sample` with the time between samples, if a scheduler wants samples. Returns none if it does not.
    pub(crate) fn while_sampling<R>(&self, sample: impl FnOnce(Duration) -> R) -> Option<R> {
        // This thread sets the flag first and reads the binding second; `end_sampling` is called after the binding was replaced.
        // SeqCst on both sides: this thread finds no scheduler, or the other thread finds the flag.
        self.is_sampling.store(true, Ordering::SeqCst);
        let binding = self.binding();
        let has_scheduler = !matches!(binding.endpoint, SchedulerEndpoint::None);
        let interval = binding.page.sample_interval().filter(|_| has_scheduler);
        let result = interval.map(sample);
        self.is_sampling.store(false, Ordering::SeqCst);
        result
    }

    /// Waits until the watcher queries no device, for at most 10 ms. Call this after the process has left its scheduler for good:
    /// the driver may not be called while its own exit handlers run.
    pub(crate) fn end_sampling(&self) {
        let deadline = Nanos::now() + SAMPLE_TIMEOUT;
        while self.is_sampling.load(Ordering::SeqCst) && Nanos::now() < deadline {
            std::thread::sleep(SAMPLE_POLL_INTERVAL);
        }
    }

    /// Has the watcher poll the queues at once.
    pub(crate) fn poll_now(&self) {
        let binding = self.binding();
        let orders = binding.page.orders();
        orders.word().fetch_add(1, Ordering::SeqCst);
        orders.wake_masked(WATCHER_WAKE_MASK);
    }

    /// Moves the process and all its queues to the page of a scheduler, unless `is_wanted` returns false.
    pub(crate) fn bind_to(
        &self,
        page: &Arc<Page>,
        endpoint: SchedulerEndpoint,
        is_wanted: impl FnOnce() -> bool,
    ) -> bool {
        let queues = lock(&self.queues);
        if !is_wanted() {
            return false;
        }
        let moving: Vec<_> = queues.iter().filter_map(|entry| entry.queue.upgrade()).collect();
        let [current, previous] = &self.inherited.pages;
        previous.store(current.load(Ordering::SeqCst), Ordering::SeqCst);
        current.store(page.address(), Ordering::SeqCst);
        // A thread never sleeps on zero here: it would not notice that the page was replaced by zeros.
        page.orders().word().fetch_add(1, Ordering::SeqCst);
        let binding = Arc::new(SchedulerBinding { page: Arc::clone(page), endpoint });
        let old = self.binding.replace(Arc::clone(&binding));
        if !Arc::ptr_eq(&old.page, page) {
            for queue in &moving {
                queue.move_to(&binding);
            }
            self.dependencies.publish_again(&moving);
        }
        previous.store(std::ptr::null_mut(), Ordering::SeqCst);
        // Before `moving` is dropped: the last handle on a queue is dropped without this lock.
        drop(queues);
        // The threads that sleep on the old page find the new one.
        old.page.orders().bump();
        self.notify();
        self.poll_now();
        if old.page.is_attached() && !Arc::ptr_eq(&old.page, page) {
            self.former_pages.add(&old.page);
        }
        true
    }

    /// Leaves the scheduler. The process is unscheduled from now on.
    pub(crate) fn unbind(&self) {
        let old = self.binding();
        self.bind_to(&self.private_page, SchedulerEndpoint::None, || true);
        self.disconnect(&old);
        self.free_all_queues();
    }

    /// The scheduler is gone: frees all queues at once. They stay on its page.
    pub(crate) fn on_scheduler_lost(&self) {
        while !self.leave(&self.binding()) {}
    }

    /// Leaves a scheduler that is gone and frees all queues, unless the process is bound to another one by now. Returns whether it
    /// was not.
    fn leave(&self, lost: &Arc<SchedulerBinding>) -> bool {
        let is_current = self.binding.replace_if(lost, lost.without_scheduler());
        if is_current {
            self.disconnect(lost);
            self.free_all_queues();
        }
        is_current
    }

    /// This connection to the service is closed. If the process is bound to another scheduler by now, it stays bound.
    pub(crate) fn on_service_lost(&self, connection: &Arc<ServiceConnection>) {
        let binding = self.binding();
        let is_ours =
            matches!(&binding.endpoint, SchedulerEndpoint::Service(ours) if Arc::ptr_eq(ours, connection));
        if !is_ours || !self.leave(&binding) {
            connection.shut_down();
        }
    }

    /// Has the scheduler of a previous binding notice that the process has left.
    pub(crate) fn disconnect(&self, old: &SchedulerBinding) {
        match &old.endpoint {
            SchedulerEndpoint::Service(connection) => {
                self.record_connection(None);
                connection.shut_down();
            }
            SchedulerEndpoint::Local(member) => member.look(),
            SchedulerEndpoint::Notifier(_) | SchedulerEndpoint::None => {}
        }
    }

    /// Frees every queue and resumes the devices.
    fn free_all_queues(&self) {
        let queues = self.queues();
        for queue in &queues {
            queue.launch_path().gate().set_order(Order::Free);
            queue.launch_path().gate().mark_decided();
        }
        // The enforcers resume their devices meanwhile: a device that is slow does not delay the next one.
        self.binding().page.orders().bump();
        for queue in &queues {
            // If a device refuses now, its enforcer retries.
            let _ = queue.launch_path().enforce();
        }
    }

    /// The program has closed the descriptor of the connection. The scheduler cannot be notified any more, so its orders must
    /// not hold the process either.
    fn on_descriptor_closed(&self, binding: &Arc<SchedulerBinding>) {
        self.binding.replace_if(binding, binding.without_scheduler());
    }

    /// Records the connection before the first message is sent, so that a child after fork does not use it; and records none
    /// before it is closed.
    pub(crate) fn record_connection(&self, connection: Option<&ServiceConnection>) {
        let record = &self.inherited;
        record.socket.store(-1, Ordering::SeqCst);
        if let Some(SocketIdentity { fd, device, inode }) = connection.map(ServiceConnection::identity) {
            record.device.store(device, Ordering::SeqCst);
            record.inode.store(inode, Ordering::SeqCst);
            record.socket.store(fd, Ordering::SeqCst);
        }
    }

    /// Called in a child after fork, before anything else: the page and the connection belong to the parent. Takes no lock.
    /// The queues are free in the child. The child must drop neither them nor this.
    pub(crate) fn detach_in_child(&self) {
        for page in &self.inherited.pages {
            let address = page.swap(std::ptr::null_mut(), Ordering::SeqCst);
            if !address.is_null() {
                // SAFETY: both pages were mapped when the parent forked: `binding` holds the current one, and `bind_to` holds
                // the previous one while its address is recorded here. A child after fork has one thread.
                unsafe { Page::detach_in_child(address) };
            }
        }
        let record = &self.inherited;
        let socket = SocketIdentity {
            fd: record.socket.swap(-1, Ordering::SeqCst),
            device: record.device.load(Ordering::SeqCst),
            inode: record.inode.load(Ordering::SeqCst),
        };
        if socket.fd >= 0 && socket.is_current() {
            // Closed and not shut down: the parent still uses the connection.
            // SAFETY: the descriptor is the parent's connection, and no code in this child uses or closes it from now on.
            unsafe { rustix::io::close(socket.fd) };
        }
    }
}

impl SchedulerLink for ScheduledProcess {
    fn notify(&self) {
        let binding = self.binding();
        match &binding.endpoint {
            SchedulerEndpoint::Notifier(notifier) => notifier.notify(),
            SchedulerEndpoint::Local(member) => member.notify(),
            // Nothing is sent while a notification is pending: the scheduler has yet to read the page.
            SchedulerEndpoint::Service(connection) if binding.page.notify() => {
                match connection.connection() {
                    Ok(connection) => connection.notify(),
                    Err(_) => self.on_descriptor_closed(&binding),
                }
            }
            SchedulerEndpoint::Service(_) | SchedulerEndpoint::None => {}
        }
    }

    /// Wakes the watcher, whose scheduling policy never lets it preempt another thread, to notify the scheduler.
    fn notify_without_preemption(&self) {
        self.relays_notification.store(true, Ordering::SeqCst);
        self.poll_now();
    }

    fn watch(&self) {
        let binding = self.binding();
        let orders = binding.page.orders();
        // The word changes first: a watcher that is about to sleep either sees the change, or is seen to sleep here.
        orders.word().fetch_add(1, Ordering::SeqCst);
        if self.watcher_sleeps.load(Ordering::SeqCst) {
            orders.wake_masked(WATCHER_WAKE_MASK);
        }
    }

    fn deferral(&self) -> Option<&Deferral> {
        Some(&self.deferral)
    }

    fn is_alive(&self) -> bool {
        let binding = self.binding();
        binding.has_scheduler() && self.heartbeat.is_fresh(binding.page.heartbeat(), Nanos::now())
    }
}

impl Drop for ScheduledProcess {
    fn drop(&mut self) {
        // The threads hold no handle on the process while they sleep. Woken, they find it gone and return.
        let binding = self.binding();
        binding.page.orders().bump();
        if let SchedulerEndpoint::Service(connection) = &binding.endpoint {
            connection.shut_down();
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::Connection;

    #[test]
    fn child_after_fork_uses_neither_page_nor_connection_of_its_parent() {
        let (ours, theirs) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let (ours, theirs) = (Connection::from_fd(ours), Connection::from_fd(theirs));
        let ours = Arc::new(ServiceConnection::new(ours).unwrap());
        let process = ScheduledProcess::new(Page::private().unwrap(), SchedulerEndpoint::None);
        let page = Page::create().unwrap();
        process.record_connection(Some(&ours));
        assert!(process.bind_to(&page, SchedulerEndpoint::Service(Arc::clone(&ours)), || true));
        let gate = &page.slot(3).unwrap().gate;
        gate.set_order(Order::Throttled);
        // SAFETY: the child makes system calls and writes atomics, then ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            process.detach_in_child();
            let was_free = gate.order() == Order::Free;
            gate.set_order(Order::Yield);
            page.orders().bump();
            let closed = ours.connection().is_err();
            // SAFETY: ends the child without running anything of the test's process.
            unsafe { libc::_exit(i32::from(!(was_free && closed))) };
        }
        let mut status = -1;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child still had the page or the connection");
        assert_eq!(gate.order(), Order::Throttled, "the child wrote into its parent's page");
        // The connection is open: earlier notifications can be received, and nothing after them.
        while let Some(packet) = theirs.receive::<crate::protocol::Request>(false).unwrap() {
            assert!(matches!(packet, crate::socket::Packet::Notification));
        }
    }
}

//! The state that all hooks share, from the program's first queue or allocation to its exit.
//!
//! ```text
//!   not started ──first use────► running ──exit──► ended          not wanted, ended: hooks only forward
//!      ▲    └──► not wanted ──C API──► ▲│
//!      └────── child of a fork ◄────────┘   the parent's runtime is abandoned: its threads and its page are the parent's
//! ```
//! The runtime starts with the first queue or the first allocation of device memory if the environment requests scheduling,
//! otherwise with the first call of the C interface.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use xsched_core::deferral::DEFAULT_SLACK;
use xsched_core::{DeviceId, LevelRequest, Nanos};
use xsched_interpose::{Guard, HandleTable, lifetime, run_isolated};
use xsched_ipc::environment::{Environment, Scheduler};
use xsched_ipc::ignored_variables::ignored_variables;
use xsched_ipc::memory::{self, MemoryAccount};
use xsched_ipc::report::{Severity, report, report_to_user};
use xsched_ipc::{Client, ClientInfo, JoinError, ScheduledQueue, SchedulerError, socket};

use crate::api::Handles;
use crate::platforms::PLATFORMS;
use crate::tracked_queue::{TrackedQueue, VendorQueue};

/// The program's connection to its scheduler, and its queues by their keys.
///
/// A key is the address of the vendor's handle, or another number that the platform's hooks derive from the queue.
pub(crate) struct Runtime {
    environment: Environment,
    client: Client,
    queues: HandleTable<TrackedQueue>,
    /// The handles of the C interface.
    handles: Handles,
    /// The program has allocated device memory, or asked for its size.
    is_memory_counted: AtomicBool,
}

/// Null: not started. [`NOT_WANTED`] and [`ENDED`]: no runtime. Otherwise a runtime that is never freed.
static RUNTIME: AtomicPtr<Runtime> = AtomicPtr::new(ptr::null_mut());
/// The environment does not request scheduling; the C interface can still start a runtime.
const NOT_WANTED: *mut Runtime = ptr::without_provenance_mut(1);
/// The process is exiting.
const ENDED: *mut Runtime = ptr::without_provenance_mut(2);

/// The runtime, for hooks. Starts it on first use if the environment requests scheduling.
#[inline]
pub(crate) fn runtime() -> Option<&'static Runtime> {
    // Acquire: pairs with the Release in `start`, so that the contents are visible with the address.
    let address = RUNTIME.load(Ordering::Acquire);
    if address.is_null() {
        return start_from_hook();
    }
    at(address)
}

/// Starts the runtime in a hook: the start must not unwind into the program, nor change its `errno`.
#[cold]
fn start_from_hook() -> Option<&'static Runtime> {
    run_isolated(|| start(ptr::null_mut(), Runtime::if_requested));
    existing_runtime()
}

#[inline]
fn at(address: *mut Runtime) -> Option<&'static Runtime> {
    if address.is_null() || address == NOT_WANTED || address == ENDED {
        return None;
    }
    // SAFETY: every other address was leaked by `start`.
    Some(unsafe { &*address })
}

/// The runtime, for functions of the C interface that create something: started if there is none. None if the process is
/// exiting.
pub(crate) fn runtime_for_api() -> Option<&'static Runtime> {
    let before = RUNTIME.load(Ordering::Acquire);
    if before.is_null() || before == NOT_WANTED {
        start(before, Runtime::new);
        // A hook on another thread may have stored `NOT_WANTED` in between.
        if RUNTIME.load(Ordering::Acquire) == NOT_WANTED {
            start(NOT_WANTED, Runtime::new);
        }
    }
    existing_runtime()
}

/// The runtime, if it has started.
pub(crate) fn existing_runtime() -> Option<&'static Runtime> {
    at(RUNTIME.load(Ordering::Acquire))
}

/// The account of the program's device memory, with the limits in force: the first call reads the environment, and joins the service
/// if it schedules the program, because a limit has to hold from the first allocation on.
#[inline]
pub(crate) fn memory_account() -> &'static MemoryAccount {
    if let Some(runtime) = runtime()
        && !runtime.is_memory_counted.load(Ordering::Acquire)
    {
        run_isolated(|| runtime.client.connect_to_service());
        runtime.is_memory_counted.store(true, Ordering::Release);
    }
    memory::account()
}

/// Replaces `before` by the runtime that `create` returns, or by [`NOT_WANTED`], unless another thread has replaced it.
#[cold]
fn start(before: *mut Runtime, create: impl FnOnce(Environment) -> Option<Runtime>) {
    if !register_handlers() {
        return;
    }
    let warn = |_: &str, line: String| report(Severity::Warning, format_args!("{line}"));
    let environment = Environment::read(|name| std::env::var(name).ok(), warn);
    for (name, why) in ignored_variables(|name| std::env::var_os(name).is_some()) {
        report(Severity::Debug, format_args!("{name} has no effect: {why}"));
    }
    memory::account().set_limit(environment.memory);
    let new = create(environment).map_or(NOT_WANTED, |runtime| Box::into_raw(Box::new(runtime)));
    let stored = RUNTIME.compare_exchange(before, new, Ordering::AcqRel, Ordering::Acquire);
    if stored.is_err() && new != NOT_WANTED {
        // SAFETY: allocated above, and not shared.
        drop(unsafe { Box::from_raw(new) });
    } else if let Some(runtime) = at(new) {
        // After it was stored: a communicator that another thread creates meanwhile is published by that thread.
        crate::collectives::publish(runtime);
        crate::deferral::apply(runtime.client.deferral());
    }
}

/// Registers the handlers for fork and exit, once. Without them the runtime cannot start safely.
fn register_handlers() -> bool {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    if IS_REGISTERED.swap(true, Ordering::AcqRel) {
        return true;
    }
    // A panic of the library goes to its log: the standard error stream belongs to the program.
    std::panic::set_hook(Box::new(|panic| report(Severity::Error, format_args!("internal error: {panic}"))));
    lifetime::at_fork_in_child(detach_in_child)
        && crate::loader::register_fork_handlers()
        && lifetime::at_exit(end)
}

/// In a forked child: the next queue of the child starts a new runtime.
extern "C" fn detach_in_child() {
    memory::account().detach_in_child();
    if let Some(runtime) = existing_runtime() {
        RUNTIME.store(ptr::null_mut(), Ordering::Release);
        // It is never dropped, neither here nor in the parent.
        runtime.client.detach_in_child();
    }
}

/// The process exits: calls of its exit handlers go straight to the vendor's functions.
extern "C" fn end() {
    /// Not freed, because other threads may be using it; reachable, so that leak checkers do not report it.
    static ENDED_RUNTIME: AtomicPtr<Runtime> = AtomicPtr::new(ptr::null_mut());
    let address = RUNTIME.swap(ENDED, Ordering::AcqRel);
    ENDED_RUNTIME.store(address, Ordering::Release);
    if let Some(runtime) = at(address) {
        runtime.client.shut_down();
        for at_exit in PLATFORMS.iter().filter_map(|platform| platform.at_exit) {
            at_exit();
        }
    }
}

impl Runtime {
    /// A runtime, if the environment requests scheduling of every queue.
    fn if_requested(environment: Environment) -> Option<Self> {
        let is_requested =
            environment.schedules_every_queue && !matches!(environment.scheduler, Scheduler::Application);
        if is_requested { Self::new(environment) } else { None }
    }

    /// None if there is no memory for the page.
    fn new(environment: Environment) -> Option<Self> {
        let client = match environment.scheduler {
            Scheduler::Application => Client::unscheduled().map_err(SchedulerError::from),
            Scheduler::Service => {
                Client::with_service(client_info(&environment)).map_err(SchedulerError::from)
            }
            Scheduler::Local(policy, params) => {
                Client::with_local_scheduler(policy, params, environment.hints())
            }
        };
        let client = client.or_else(|error| {
            static IS_REPORTED: AtomicBool = AtomicBool::new(false);
            report_to_user(&IS_REPORTED, format_args!("running unscheduled: {error}"));
            Client::unscheduled()
        });
        let client = client.ok()?;
        crate::duplicate_library::report_duplicate();
        client.deferral().set_slack(environment.slack.unwrap_or(DEFAULT_SLACK));
        Some(Self {
            environment,
            client,
            queues: HandleTable::default(),
            handles: Handles::default(),
            is_memory_counted: AtomicBool::new(false),
        })
    }

    /// The settings from the environment.
    pub(crate) fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The connection to the scheduler.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The handles of the C interface.
    pub(crate) fn handles(&self) -> &Handles {
        &self.handles
    }

    /// What this process reports to the service about itself.
    pub(crate) fn client_info(&self) -> ClientInfo {
        client_info(&self.environment)
    }

    /// The state of a tracked queue. A thread can hold four guards at a time.
    #[inline]
    pub(crate) fn queue(&self, key: usize) -> Option<Guard<'_, TrackedQueue>> {
        self.queues.get(key)
    }

    /// The same, after `track` has tracked the queue if it was not tracked. For queues that were created before the hooks
    /// were in place, or by the parent of this process.
    #[inline]
    pub(crate) fn queue_or_track(
        &self,
        key: usize,
        track: impl FnOnce() -> bool,
    ) -> Option<Guard<'_, TrackedQueue>> {
        match self.queue(key) {
            Some(queue) => Some(queue),
            None => self.track_and_find(key, track),
        }
    }

    /// Out of line, to keep the launch of a tracked queue small.
    #[cold]
    fn track_and_find(&self, key: usize, track: impl FnOnce() -> bool) -> Option<Guard<'_, TrackedQueue>> {
        track().then(|| self.queue(key)).flatten()
    }

    /// Whether a queue is tracked.
    pub(crate) fn is_tracked(&self, key: usize) -> bool {
        self.queue(key).is_some()
    }

    /// The XQueue of a queue that is scheduled.
    pub(crate) fn scheduled_queue(&self, key: usize) -> Option<Arc<ScheduledQueue>> {
        self.queue(key).and_then(|queue| queue.scheduled().cloned())
    }

    /// Tracks and schedules a queue. `open` opens it, or returns none if the vendor's library rejects it. Returns whether this
    /// call tracked it: another thread may have, the table may be full, or the environment may not request it.
    pub(crate) fn track<Q: VendorQueue + 'static>(
        &self,
        key: usize,
        open: impl FnOnce() -> Option<Q>,
    ) -> bool {
        if !self.environment.schedules_every_queue {
            return false;
        }
        let Some(hw) = open() else { return false };
        let hw: Arc<dyn VendorQueue> = Arc::new(hw);
        let scheduled = self.schedule(&hw, self.environment.level);
        if let Err(error) = &scheduled {
            static IS_REPORTED: AtomicBool = AtomicBool::new(false);
            report_to_user(&IS_REPORTED, format_args!("a queue runs unscheduled: {error}"));
        }
        self.queues.insert(key, TrackedQueue::new(hw, scheduled.ok())).is_ok()
    }

    /// Tracks a queue that the program passed to the C interface, and returns it. None if `open` does.
    pub(crate) fn track_for_api(
        &self,
        key: usize,
        open: impl FnOnce() -> Option<Arc<dyn VendorQueue>>,
    ) -> Option<Arc<dyn VendorQueue>> {
        let tracked = || self.queue(key).map(|queue| Arc::clone(queue.hw()));
        if let Some(hw) = tracked() {
            return Some(hw);
        }
        let hw = open()?;
        let scheduled =
            self.environment.schedules_every_queue.then(|| self.schedule(&hw, self.environment.level));
        match self.queues.insert(key, TrackedQueue::new(Arc::clone(&hw), scheduled.and_then(Result::ok))) {
            Ok(()) => Some(hw),
            // Another thread has tracked it; or the table is full, and launches on the queue are not intercepted.
            Err(_) => tracked().or(Some(hw)),
        }
    }

    /// Schedules a queue that the program drives through the C interface.
    pub(crate) fn schedule_for_api(
        &self,
        key: usize,
        hw: &Arc<dyn VendorQueue>,
        level: LevelRequest,
    ) -> Result<Arc<ScheduledQueue>, JoinError> {
        let queue = self.schedule(hw, level)?;
        self.replace_scheduled(key, Some(&queue));
        self.client.sync_with_scheduler();
        Ok(queue)
    }

    fn schedule(
        &self,
        hw: &Arc<dyn VendorQueue>,
        level: LevelRequest,
    ) -> Result<Arc<ScheduledQueue>, JoinError> {
        let queue = self.client.join(Arc::clone(hw) as _, level)?;
        if let Some(limit) = self.environment.limit {
            queue.set_throttled_limit(limit);
        }
        Ok(queue)
    }

    /// Stops scheduling a queue. It stays tracked.
    pub(crate) fn unschedule(&self, key: usize) {
        self.replace_scheduled(key, None);
    }

    fn replace_scheduled(&self, key: usize, scheduled: Option<&Arc<ScheduledQueue>>) {
        if let Some(queue) = self.queues.remove(key, |old| old.with_scheduled(scheduled.cloned())) {
            // Its slot has just become free.
            let _ = self.queues.insert(key, queue);
        }
    }

    /// Untracks a queue whose handle the program destroyed, unless it is scheduled.
    pub(crate) fn untrack_unless_scheduled(&self, key: usize) {
        if self.queue(key).is_some_and(|queue| queue.scheduled().is_none()) {
            self.queues.remove(key, |_| ());
        }
    }

    /// Untracks a queue that is about to be destroyed.
    pub(crate) fn untrack(&self, key: usize) {
        self.handles.forget_vendor_queue(key);
        self.queues.remove(key, TrackedQueue::prepare_destruction);
    }

    /// Untracks the queues of an object that is about to be destroyed with its queues.
    pub(crate) fn untrack_all_owned_by(&self, owner: usize) {
        for key in self.queues.handles_where(|queue| queue.hw().belongs_to(owner)) {
            self.untrack(key);
        }
    }

    /// Calls `real`, which waits for all work on a device.
    pub(crate) fn synchronize(&self, device: DeviceId, real: &mut dyn FnMut()) {
        self.client.synchronized(device, real, |()| true);
    }

    /// The program has observed the completion of some work, for which it has waited since `begun`: the enforcer thread checks soon which queues are idle.
    pub(crate) fn poll_soon(&self, begun: Nanos) {
        self.client.poll_soon(begun);
    }

    /// The program has waited for work on a queue, which may be idle now.
    pub(crate) fn poll_idle(&self, key: usize) {
        if let Some(queue) = self.scheduled_queue(key)
            && queue.launch_path().may_have_become_idle()
        {
            queue.launch_path().poll_idle();
        }
    }

    /// Whether dependencies between queues have to be recorded.
    pub(crate) fn tracks_dependencies(&self) -> bool {
        self.client.tracks_dependencies()
    }

    /// Records that later work of one queue waits for the work that another queue has now.
    pub(crate) fn depends_on(&self, waiter: usize, holder: usize) {
        if let (Some(waiter), Some(holder)) = (self.scheduled_queue(waiter), self.scheduled_queue(holder))
            && let Some(point) = holder.record()
        {
            waiter.depends_on(&holder, point);
        }
    }

    /// Records that the last work of a queue may wait for any thread of the program.
    pub(crate) fn depends_on_any(&self, waiter: usize) {
        if let Some(waiter) = self.scheduled_queue(waiter) {
            waiter.depends_on_any();
        }
    }
}

fn client_info(environment: &Environment) -> ClientInfo {
    ClientInfo {
        sockets: socket::candidates(),
        name: environment.name.clone(),
        hint_request: environment.hint_request.clone(),
        grant_token: environment.grant_token.clone(),
        memory_group: environment.memory.and(environment.memory_group.clone()),
        memory: Some(memory::account()),
    }
}

//! What the hooks share, from the program's first queue to its exit.
//!
//! ```text
//!   nothing ──first queue──► a runtime ──exit──► over          over, or unwanted: hooks only forward
//!      ▲  └──► unwanted ──API──► ▲│
//!      └──── child of a fork ◄────┘   the parent's runtime is left behind, unused: its threads and its page are not ours
//! ```
//! A runtime begins with the first queue where the environment asks for it, else with the program's first call of the API.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use xsched_core::{DeviceId, LevelRequest};
use xsched_interpose::{Table, lifetime};
use xsched_ipc::environment::{Environment, Scheduler};
use xsched_ipc::report::{Severity, report};
use xsched_ipc::{Client, ClientInfo, JoinError, ScheduledQueue, SchedulerError, socket};

use crate::api::Handles;
use crate::platforms::PLATFORMS;
use crate::tracked_queue::{TrackedQueue, VendorQueue};

/// The program's connection to its scheduler, and its queues by the vendor's handles.
pub(crate) struct Runtime {
    environment: Environment,
    client: Client,
    queues: Table<TrackedQueue>,
    /// What the program knows queues and commands by, if it uses the API.
    handles: Handles,
}

/// Null: nothing yet. [`UNWANTED`]: nothing unless the program asks for it. [`OVER`]: nothing any more. Else a runtime that
/// is never freed.
static WORLD: AtomicPtr<Runtime> = AtomicPtr::new(ptr::null_mut());
/// The addresses of no runtime.
const UNWANTED: *mut Runtime = ptr::without_provenance_mut(1);
const OVER: *mut Runtime = ptr::without_provenance_mut(2);

/// The runtime, if hooks are to do anything but forward. Begins it with the program's first queue.
#[inline]
pub(crate) fn runtime() -> Option<&'static Runtime> {
    // Acquire: who sees the runtime sees what is in it. Pairs with the Release in `begin`.
    let runtime = WORLD.load(Ordering::Acquire);
    if runtime.is_null() {
        begin(runtime, Runtime::asked_for_by_environment);
        return as_world(WORLD.load(Ordering::Acquire));
    }
    as_world(runtime)
}

#[inline]
fn as_world(runtime: *mut Runtime) -> Option<&'static Runtime> {
    if runtime.is_null() || runtime == UNWANTED || runtime == OVER {
        return None;
    }
    // SAFETY: none of the addresses that are no runtime, so it is one that `begin` leaked.
    Some(unsafe { &*runtime })
}

/// The runtime, begun if there is none: the program asks for it itself. None if its exit has begun.
pub(crate) fn runtime_for_api() -> Option<&'static Runtime> {
    let before = WORLD.load(Ordering::Acquire);
    if before.is_null() || before == UNWANTED {
        begin(before, Runtime::new);
        // A hook may have been quicker to find that the environment does not ask for one.
        if WORLD.load(Ordering::Acquire) == UNWANTED {
            begin(UNWANTED, Runtime::new);
        }
    }
    existing_runtime()
}

/// The runtime, if there is one.
pub(crate) fn existing_runtime() -> Option<&'static Runtime> {
    as_world(WORLD.load(Ordering::Acquire))
}

/// Puts what `make` makes in the place of `before`, unless another thread was quicker.
#[cold]
fn begin(before: *mut Runtime, make: impl FnOnce(Environment) -> Option<Runtime>) {
    if !watch_lifetime() {
        return;
    }
    let complain = |line: String| report(Severity::Warning, format_args!("{line}"));
    let environment = Environment::read(|name| std::env::var(name).ok(), complain);
    let new = make(environment).map_or(UNWANTED, |runtime| Box::into_raw(Box::new(runtime)));
    let put = WORLD.compare_exchange(before, new, Ordering::AcqRel, Ordering::Acquire);
    if put.is_err() && new != UNWANTED {
        // Another thread was quicker.
        // SAFETY: made above, and shown to nobody.
        drop(unsafe { Box::from_raw(new) });
    }
}

/// Asks once to be told of forks and of the exit. Without it nothing can be done safely.
fn watch_lifetime() -> bool {
    static ASKED: AtomicBool = AtomicBool::new(false);
    if ASKED.swap(true, Ordering::AcqRel) {
        return true;
    }
    // Our own faults are ours: the program's standard error is not.
    std::panic::set_hook(Box::new(|fault| report(Severity::Error, format_args!("a fault of ours: {fault}"))));
    lifetime::in_every_child(detach_in_child) && lifetime::at_exit(leave)
}

/// In a child of the program: begins anew with its next queue.
extern "C" fn detach_in_child() {
    if let Some(runtime) = existing_runtime() {
        WORLD.store(ptr::null_mut(), Ordering::Release);
        // It is never dropped, neither here nor in the parent.
        runtime.client.detach_in_child();
    }
}

/// The program ends: what its exit handlers still do goes straight to the vendor's functions.
extern "C" fn leave() {
    /// It is never freed, for threads may be in it; nor is it lost, which who looks for lost memory at the end would say.
    static LEFT: AtomicPtr<Runtime> = AtomicPtr::new(ptr::null_mut());
    let left = WORLD.swap(OVER, Ordering::AcqRel);
    LEFT.store(left, Ordering::Release);
    if let Some(runtime) = as_world(left) {
        runtime.client.shut_down();
        for at_exit in PLATFORMS.iter().filter_map(|platform| platform.at_exit) {
            at_exit();
        }
    }
}

impl Runtime {
    /// None: this program's queues are not to be scheduled unless it says so itself.
    fn asked_for_by_environment(environment: Environment) -> Option<Self> {
        let asked_for =
            environment.schedules_every_queue && !matches!(environment.scheduler, Scheduler::Application);
        if asked_for { Self::new(environment) } else { None }
    }

    /// None: there is no memory for one.
    fn new(environment: Environment) -> Option<Self> {
        let made = match environment.scheduler {
            Scheduler::Application => Client::unscheduled().map_err(SchedulerError::from),
            Scheduler::Service => {
                Client::with_service(introduction(&environment)).map_err(SchedulerError::from)
            }
            Scheduler::Local(policy, params) => {
                Client::with_local_scheduler(policy, params, environment.hints())
            }
        };
        let client = made.or_else(|why| {
            report(Severity::Error, format_args!("running unscheduled: {why}"));
            Client::unscheduled()
        });
        let client = client.ok()?;
        crate::duplicate_library::report_duplicate();
        Some(Self { environment, client, queues: Table::default(), handles: Handles::default() })
    }

    /// What the environment says.
    pub(crate) fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The connection to the scheduler.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// What the program knows its queues and commands by.
    pub(crate) fn handles(&self) -> &Handles {
        &self.handles
    }

    /// What this program tells the service about itself.
    pub(crate) fn introduction(&self) -> ClientInfo {
        introduction(&self.environment)
    }

    /// What is known about a queue that the program shows us itself, known from now on. None if `take` can make nothing
    /// of it.
    pub(crate) fn introduce(
        &self,
        handle: usize,
        take: impl FnOnce() -> Option<Arc<dyn VendorQueue>>,
    ) -> Option<Arc<dyn VendorQueue>> {
        let known =
            |runtime: &Self| runtime.with(handle, |tracked| tracked.map(|tracked| Arc::clone(tracked.hw())));
        if let Some(hw) = known(self) {
            return Some(hw);
        }
        let hw = take()?;
        // Where every queue is scheduled, this one is too.
        let queue = self.environment.schedules_every_queue.then(|| self.join(&hw, self.environment.level));
        match self.queues.insert(handle, TrackedQueue::of(Arc::clone(&hw), queue.and_then(Result::ok))) {
            Ok(()) => Some(hw),
            // Another thread was quicker; or there is no room, and launches on it are not seen.
            Err(_) => known(self).or(Some(hw)),
        }
    }

    /// The XQueue of a queue that is scheduled.
    pub(crate) fn joined(&self, handle: usize) -> Option<Arc<ScheduledQueue>> {
        self.with(handle, |tracked| tracked.and_then(TrackedQueue::queue))
    }

    /// Puts a queue under control.
    pub(crate) fn control(
        &self,
        handle: usize,
        hw: &Arc<dyn VendorQueue>,
        level: LevelRequest,
    ) -> Result<Arc<ScheduledQueue>, JoinError> {
        let queue = self.join(hw, level)?;
        self.replace(handle, Some(&queue));
        self.client.sync_with_scheduler();
        Ok(queue)
    }

    fn join(&self, hw: &Arc<dyn VendorQueue>, level: LevelRequest) -> Result<Arc<ScheduledQueue>, JoinError> {
        let queue = self.client.join(Arc::clone(hw) as _, level)?;
        if let Some(limit) = self.environment.limit {
            queue.set_throttled_limit(limit);
        }
        Ok(queue)
    }

    /// A queue is under control no more. It is still known.
    pub(crate) fn release(&self, handle: usize) {
        self.replace(handle, None);
    }

    fn replace(&self, handle: usize, queue: Option<&Arc<ScheduledQueue>>) {
        if let Some(tracked) = self.queues.remove(handle, |old| old.again(queue.map(Arc::clone))) {
            // It was there a moment ago, so there is room for it.
            let _ = self.queues.insert(handle, tracked);
        }
    }

    /// A queue that the program no longer shows us, and that nobody schedules.
    pub(crate) fn forget(&self, handle: usize) {
        if self.with(handle, |tracked| tracked.is_some_and(|tracked| tracked.queue().is_none())) {
            self.queues.remove(handle, |_| ());
        }
    }

    /// Takes note of a queue. `take` makes what the core needs of it, or answers none if that cannot be done.
    pub(crate) fn track<H: VendorQueue + 'static>(
        &self,
        handle: usize,
        take: impl FnOnce() -> Option<H>,
    ) -> bool {
        if !self.environment.schedules_every_queue {
            return false;
        }
        let Some(hw) = take() else { return false };
        let tracked = TrackedQueue::new(&self.client, hw, self.environment.level, self.environment.limit);
        match self.queues.insert(handle, tracked) {
            Ok(()) => true,
            // Another thread was quicker, or there is no room for more.
            Err(tracked) => {
                drop(tracked);
                false
            }
        }
    }

    /// Calls `work` with what is known about a queue.
    #[inline]
    pub(crate) fn with<R>(&self, handle: usize, work: impl FnOnce(Option<&TrackedQueue>) -> R) -> R {
        self.queues.with(handle, work)
    }

    /// Calls `real`, which waits for everything on a device.
    pub(crate) fn synchronize(&self, device: DeviceId, real: &mut dyn FnMut()) {
        self.client.synchronized(device, real, |()| true);
    }

    /// The program has seen that some work of its is done.
    pub(crate) fn poll_soon(&self) {
        self.client.poll_soon();
    }

    /// Whether a queue is scheduled.
    pub(crate) fn knows(&self, handle: usize) -> bool {
        self.with(handle, |tracked| tracked.is_some())
    }

    /// What is launched on a queue from now on waits for what is on another already.
    pub(crate) fn depends_on(&self, waiter: usize, holder: usize) {
        if let (Some(waiter), Some(holder)) = (self.joined(waiter), self.joined(holder))
            && let Some(point) = holder.record()
        {
            waiter.depends_on(&holder, point);
        }
    }

    /// Whether it is to be written down which queue waits for which.
    pub(crate) fn tracks_dependencies(&self) -> bool {
        self.client.tracks_dependencies()
    }

    /// What was put on a queue last may wait for any thread of the program.
    pub(crate) fn depends_on_any(&self, waiter: usize) {
        if let Some(waiter) = self.joined(waiter) {
            waiter.depends_on_any();
        }
    }

    /// The program has waited for something on a queue: it may have become idle.
    pub(crate) fn look_for_idle(&self, handle: usize) {
        if let Some(queue) = self.joined(handle)
            && queue.launch_path().may_have_become_idle()
        {
            queue.launch_path().poll_idle();
        }
    }

    /// What queues belong to is about to be destroyed, and they with it.
    pub(crate) fn untrack_all_owned_by(&self, owner: usize) {
        for handle in self.queues.which(|tracked| tracked.hw().belongs_to(owner)) {
            self.untrack(handle);
        }
    }

    /// A queue is about to be destroyed.
    pub(crate) fn untrack(&self, handle: usize) {
        self.handles.retire(handle);
        self.queues.remove(handle, TrackedQueue::retire);
    }
}

fn introduction(environment: &Environment) -> ClientInfo {
    ClientInfo {
        sockets: socket::candidates(),
        name: environment.name.clone(),
        hint_request: environment.hint_request.clone(),
    }
}

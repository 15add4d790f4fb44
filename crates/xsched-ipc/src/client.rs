//! The client: puts the queues of a process under the control of a scheduler.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use xsched_core::{
    Deferral, DeviceId, Hints, HwQueue, LevelError, LevelRequest, Nanos, SchedulerLink as _, Wait,
};
use xsched_policy::{Params, PolicyInfo};

use crate::hinting::{self, HintFailure};
use crate::local::Membership;
use crate::notifier::Notifier;
use crate::page::{Page, PageError, SLOTS};
use crate::parking::{self, MovableMemory};
use crate::process_threads::PARKING_WAKE_MASK;
use crate::protocol::{HintRequest, JobKey, Request};
use crate::scheduled_process::{ScheduledProcess, SchedulerEndpoint, lock};
use crate::scheduled_queue::ScheduledQueue;
use crate::service_link::{ClientInfo, ServiceLink};

/// Why a queue is not scheduled.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The device does not support the preemption level.
    #[error(transparent)]
    Level(#[from] LevelError),
    /// All slots of the page are in use.
    #[error(
        "this process already has {SLOTS} scheduled queues, which is the maximum: this queue runs unscheduled"
    )]
    NoSlot,
    /// A thread could not be started.
    #[error("cannot start a thread that carries out the scheduler's orders: {0}")]
    NoThread(#[from] std::io::Error),
}

/// Why a process could not be bound to a scheduler.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    /// A thread could not be started.
    #[error("cannot start a thread for the local scheduler or for its orders: {0}")]
    NoThread(#[from] std::io::Error),
    /// The shared page could not be created.
    #[error(transparent)]
    Page(#[from] PageError),
}

/// The connection of a process to its scheduler. Starts its threads with the first queue.
pub struct Client {
    process: Arc<ScheduledProcess>,
    state: Mutex<ClientState>,
}

struct ClientState {
    /// The process has had a queue or has allocated device memory: a scheduler is bound as soon as it is selected.
    is_started: bool,
    selected: SelectedScheduler,
    /// The local scheduler, once it was started. It is kept: the process may select it again.
    local: Option<Arc<Membership>>,
    /// The parameters of the local scheduler's policy.
    params: Params,
}

#[derive(Clone)]
enum SelectedScheduler {
    None,
    /// The scheduler that made the page given to [`Client::new`].
    PageOwner,
    Local(Arc<Membership>),
    Service(Arc<ServiceLink>),
}

impl Client {
    fn with(page: Arc<Page>, endpoint: SchedulerEndpoint, selected: SelectedScheduler) -> Self {
        let state = ClientState { is_started: false, selected, local: None, params: Params::default() };
        Self { process: Arc::new(ScheduledProcess::new(page, endpoint)), state: Mutex::new(state) }
    }

    /// A process that is scheduled through a page which its scheduler made.
    #[must_use]
    pub fn new(page: Arc<Page>, notifier: Notifier) -> Self {
        Self::with(page, SchedulerEndpoint::Notifier(notifier), SelectedScheduler::PageOwner)
    }

    /// A process without a scheduler.
    pub fn unscheduled() -> Result<Self, PageError> {
        Ok(Self::with(Page::private()?, SchedulerEndpoint::None, SelectedScheduler::None))
    }

    /// A process that the service schedules. It connects with the first queue, and again whenever the service was gone. It
    /// runs unscheduled while it is not connected.
    pub fn with_service(info: ClientInfo) -> Result<Self, PageError> {
        let client = Self::unscheduled()?;
        lock(&client.state).selected = SelectedScheduler::Service(Arc::new(ServiceLink::new(info)));
        Ok(client)
    }

    /// A process with a local scheduler.
    pub fn with_local_scheduler(
        policy: &'static PolicyInfo,
        params: Params,
        hints: Hints,
    ) -> Result<Self, SchedulerError> {
        let client = Self::unscheduled()?;
        client.use_local_scheduler(policy, params, hints)?;
        Ok(client)
    }

    /// Leaves the scheduler. Queues that the program itself has suspended stay suspended.
    pub fn use_no_scheduler(&self) {
        let mut state = lock(&self.state);
        state.stop_service_link();
        state.selected = SelectedScheduler::None;
        self.process.unbind();
    }

    /// Binds the process to a local scheduler with this policy.
    pub fn use_local_scheduler(
        &self,
        policy: &'static PolicyInfo,
        params: Params,
        hints: Hints,
    ) -> Result<(), SchedulerError> {
        let mut state = lock(&self.state);
        let member = match &state.local {
            Some(member) => Arc::clone(member),
            None => Arc::new(Membership::start(policy, hints)?),
        };
        state.local = Some(Arc::clone(&member));
        state.params = params;
        member.set_policy(Some(policy), params);
        if matches!(state.selected, SelectedScheduler::Local(_)) {
            return Ok(());
        }
        state.stop_service_link();
        state.selected = SelectedScheduler::Local(Arc::clone(&member));
        self.bind_selected(&state)?;
        drop(state);
        self.sync_with_scheduler();
        Ok(())
    }

    /// Binds the process to the service. Waits until the service has replied and has read the page, with a timeout.
    pub fn use_service(&self, info: ClientInfo) -> Result<(), SchedulerError> {
        let mut state = lock(&self.state);
        if matches!(state.selected, SelectedScheduler::Service(_)) {
            return Ok(());
        }
        state.stop_service_link();
        self.process.unbind();
        let service = Arc::new(ServiceLink::new(info));
        state.selected = SelectedScheduler::Service(Arc::clone(&service));
        self.bind_selected(&state)?;
        if state.is_started {
            service.wait_for_first_attempt(hinting::SERVICE_REPLY_TIMEOUT);
        }
        drop(state);
        self.sync_with_scheduler();
        Ok(())
    }

    /// Waits until the scheduler has read the page and written its orders, so that the next launch obeys them. A service that
    /// does not reply is waited for once.
    pub fn sync_with_scheduler(&self) {
        hinting::sync_with_scheduler(&self.process.binding().endpoint);
    }

    /// The parameters of the local scheduler's policy.
    #[must_use]
    pub fn params(&self) -> Params {
        lock(&self.state).params
    }

    /// Changes the parameters of the policy that schedules this process. The service may refuse.
    pub fn configure(&self, change: impl FnOnce(&mut Params)) -> Result<(), HintFailure> {
        let mut state = lock(&self.state);
        let previous = state.params;
        let mut params = previous;
        change(&mut params);
        match &state.selected {
            SelectedScheduler::None | SelectedScheduler::PageOwner => {}
            SelectedScheduler::Local(member) => member.set_policy(None, params),
            SelectedScheduler::Service(_) => {
                if let SchedulerEndpoint::Service(connection) = &self.process.binding().endpoint {
                    let timeslice_us = i64::try_from(params.timeslice.get().0 / 1_000).unwrap_or(i64::MAX);
                    let timeslice_us = (params.timeslice != previous.timeslice).then_some(timeslice_us);
                    let k = (params.k != previous.k).then_some(params.k);
                    connection.request(&Request::Policy { name: None, timeslice_us, k })?;
                }
            }
        }
        state.params = params;
        Ok(())
    }

    /// Changes the hints of the process with its current scheduler.
    pub fn hint(&self, hint_request: &HintRequest) -> Result<(), HintFailure> {
        hint_request.applied_to(Hints::default())?;
        match &self.process.binding().endpoint {
            SchedulerEndpoint::Local(member) => Ok(member.hint(hint_request)?),
            SchedulerEndpoint::Service(connection) => {
                connection.request(&Request::Hint(hint_request.clone()))
            }
            SchedulerEndpoint::Notifier(_) | SchedulerEndpoint::None => Ok(()),
        }
    }

    /// Sets what identifies the jobs of this process: its tasks are held and resumed together with those of the other members.
    /// It is sent to every later scheduler too.
    pub fn set_jobs(&self, keys: Vec<JobKey>) {
        if !self.process.set_jobs(keys.clone()) {
            return;
        }
        match &self.process.binding().endpoint {
            SchedulerEndpoint::Local(member) => member.set_jobs(keys),
            SchedulerEndpoint::Service(connection) => connection.post(&Request::Jobs(keys)),
            SchedulerEndpoint::Notifier(_) | SchedulerEndpoint::None => {}
        }
    }

    /// Puts a hardware queue under the scheduler's control. The first call waits up to 100 ms for the service, and the first
    /// launch of each queue up to [`xsched_core::FIRST_ORDER_TIMEOUT`] for the scheduler's first order.
    pub fn join(&self, hw: Arc<dyn HwQueue>, level: LevelRequest) -> Result<Arc<ScheduledQueue>, JoinError> {
        hw.capabilities().negotiate(level)?;
        self.start()?;
        let device = hw.device();
        let queue = self
            .process
            .add_queue(device, |binding| ScheduledQueue::new(&self.process, binding, hw, level))?;
        self.process.threads().ensure_enforcer(&self.process, device)?;
        self.process.notify();
        Ok(queue)
    }

    /// Connects to the service now, if it schedules this process, and not only with the first queue: it may limit the device memory
    /// that the process is about to allocate. Waits up to 100 ms.
    pub fn connect_to_service(&self) {
        let is_due = {
            let state = lock(&self.state);
            !state.is_started && matches!(state.selected, SelectedScheduler::Service(_))
        };
        // Without a thread the process runs unscheduled, which its first queue reports.
        if is_due {
            let _ = self.start();
        }
    }

    fn start(&self) -> std::io::Result<()> {
        let mut state = lock(&self.state);
        if state.is_started {
            return Ok(());
        }
        state.is_started = true;
        self.bind_selected(&state).inspect_err(|_| state.is_started = false)
    }

    /// Binds the process to the selected scheduler, if it was started.
    fn bind_selected(&self, state: &ClientState) -> std::io::Result<()> {
        if !state.is_started {
            return Ok(());
        }
        let process = &self.process;
        match &state.selected {
            SelectedScheduler::None => {}
            SelectedScheduler::PageOwner => process.threads().start(process)?,
            SelectedScheduler::Service(service) => service.start(process)?,
            SelectedScheduler::Local(member) => {
                process.threads().start(process)?;
                let old = process.binding();
                process.bind_to(member.page(), SchedulerEndpoint::Local(Arc::clone(member)), || true);
                process.disconnect(&old);
                member.set_jobs(process.jobs());
                for (slot, hint_request) in
                    process.queues().iter().filter_map(|queue| queue.own_hint_request())
                {
                    // A queue that was destroyed meanwhile needs no hint.
                    let _ = member.hint_queue(slot, &hint_request);
                }
            }
        }
        Ok(())
    }

    /// Calls `real`, which waits for all work on a device, and marks the queues of the device idle if `completed` returns true.
    pub fn synchronized<R>(
        &self,
        device: DeviceId,
        real: impl FnOnce() -> R,
        completed: impl FnOnce(&R) -> bool,
    ) -> R {
        let mut queues = self.process.queues_on(device);
        queues.retain(|queue| !queue.launch_path().gate().is_free());
        let waits: Vec<_> = queues.iter().map(|queue| queue.launch_path().begin_wait()).collect();
        let result = real();
        if completed(&result) {
            waits.into_iter().for_each(Wait::finish);
        }
        result
    }

    /// Whether dependencies between queues have to be reported: once some queues of the process were stopped while others ran.
    #[must_use]
    pub fn tracks_dependencies(&self) -> bool {
        self.process.tracks_dependencies()
    }

    /// Has the watcher poll soon, if a queue may have become idle. A thread has waited since `begun` for work of one of the queues.
    pub fn poll_soon(&self, begun: Nanos) {
        let queues = self.process.queues();
        for queue in &queues {
            queue.launch_path().waited(begun);
        }
        // `count` and not `any`: every queue has to be marked.
        if queues.iter().filter(|queue| queue.launch_path().may_have_become_idle()).count() > 0 {
            self.process.poll_now();
        }
    }

    /// Starts the thread that moves the device memory of the process when the scheduler orders it.
    pub fn start_parking(&self, memory: Arc<dyn MovableMemory>) -> std::io::Result<()> {
        parking::start(&self.process, memory)
    }

    /// Has the thread that moves device memory publish what has changed.
    pub fn wake_parking(&self) {
        let binding = self.process.binding();
        let orders = binding.page.orders();
        orders.word().fetch_add(1, Ordering::SeqCst);
        orders.wake_masked(PARKING_WAKE_MASK);
    }

    /// The deferred launches of the process.
    #[must_use]
    pub fn deferral(&self) -> &Deferral {
        self.process.deferral_handle()
    }

    /// Frees every queue and leaves the scheduler for good. Call this when the process is about to exit.
    pub fn shut_down(&self) {
        self.deferral().set_slack(Nanos::ZERO);
        let mut state = lock(&self.state);
        state.stop_service_link();
        state.selected = SelectedScheduler::None;
        if let Some(local) = &state.local {
            local.release();
        }
        self.process.on_scheduler_lost();
        self.process.end_sampling();
    }

    /// Leaves the page and the connection to the parent. Call this in a child after fork, before anything else. It takes no
    /// lock and makes only system calls. The child's copies of the queues are free. The child must drop neither them nor this
    /// client: it forgets them and creates a new client.
    pub fn detach_in_child(&self) {
        self.process.detach_in_child();
    }
}

impl ClientState {
    /// Has the service link not connect again.
    fn stop_service_link(&self) {
        if let SelectedScheduler::Service(service) = &self.selected {
            service.stop();
        }
    }
}

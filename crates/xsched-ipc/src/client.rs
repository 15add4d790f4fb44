//! The program's end: puts queues under the control of a scheduler, once there is one.

use std::sync::{Arc, Mutex};

use xsched_core::{DeviceId, Hints, HwQueue, LevelError, LevelRequest, SchedulerLink as _, Wait};
use xsched_policy::{Params, PolicyInfo};

use crate::hinting::{self, HintFailure};
use crate::local::Membership;
use crate::notifier::Notifier;
use crate::page::{Page, PageError, SLOTS};
use crate::program::{Call, Program, lock};
use crate::protocol::{HintRequest, Request};
use crate::scheduled_queue::ScheduledQueue;
use crate::service_link::{ClientInfo, ServiceLink};

pub use crate::program::PATIENCE;

/// Why a queue could not be put under control.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The device cannot be preempted that deep.
    #[error(transparent)]
    Level(#[from] LevelError),
    /// Every slot is taken.
    #[error("this program has {SLOTS} queues under control already; this one runs unscheduled")]
    NoSlot,
    /// No thread could be started.
    #[error("no thread to carry out the scheduler's orders: {0}")]
    NoThread(#[from] std::io::Error),
}

/// Why a program could not be given a scheduler.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    /// No thread could be started.
    #[error("no thread for the scheduler, or to carry out its orders: {0}")]
    NoThread(#[from] std::io::Error),
    /// There is no memory to share with it.
    #[error(transparent)]
    Page(#[from] PageError),
}

/// A program's connection to its scheduler. Starts its threads with the first queue.
pub struct Client {
    program: Arc<Program>,
    follows: Mutex<Follows>,
}

/// Whose orders a program follows.
struct Follows {
    /// It has queues: from now on there is somebody to be scheduled.
    started: bool,
    whom: Whom,
    /// The scheduler inside the process, once it was started. It is kept for when the program comes back to it.
    local: Option<Arc<Membership>>,
    /// What a scheduler of the program's own is set to.
    params: Params,
}

#[derive(Clone)]
enum Whom {
    Nobody,
    /// Whose page was handed over.
    Page,
    Local(Arc<Membership>),
    Service(Arc<ServiceLink>),
}

impl Client {
    fn made(page: Arc<Page>, call: Call, whom: Whom) -> Self {
        let follows = Follows { started: false, whom, local: None, params: Params::default() };
        Self { program: Arc::new(Program::new(page, call)), follows: Mutex::new(follows) }
    }

    /// Joins a scheduler through the page it made for this program.
    #[must_use]
    pub fn new(page: Arc<Page>, notifier: Notifier) -> Self {
        Self::made(page, Call::Notifier(notifier), Whom::Page)
    }

    /// Nobody schedules: the program alone decides.
    pub fn unscheduled() -> Result<Self, PageError> {
        Ok(Self::made(Page::private()?, Call::Nobody, Whom::Nobody))
    }

    /// Joins the service with the first queue, and again whenever the service was gone. Until then, and in between,
    /// the program runs unscheduled.
    pub fn with_service(introduction: ClientInfo) -> Result<Self, PageError> {
        let client = Self::unscheduled()?;
        lock(&client.follows).whom = Whom::Service(Arc::new(ServiceLink::new(introduction)));
        Ok(client)
    }

    /// Has a scheduler inside this process schedule it.
    pub fn with_local_scheduler(
        policy: &'static PolicyInfo,
        params: Params,
        hints: Hints,
    ) -> Result<Self, SchedulerError> {
        let client = Self::unscheduled()?;
        client.use_local_scheduler(policy, params, hints)?;
        Ok(client)
    }

    /// From now on the program alone decides. What it suspended itself stays suspended.
    pub fn use_no_scheduler(&self) {
        let mut follows = lock(&self.follows);
        follows.leave();
        follows.whom = Whom::Nobody;
        self.program.go_home();
    }

    /// From now on a scheduler inside this process schedules it, by this policy.
    pub fn use_local_scheduler(
        &self,
        policy: &'static PolicyInfo,
        params: Params,
        hints: Hints,
    ) -> Result<(), SchedulerError> {
        let mut follows = lock(&self.follows);
        let member = match &follows.local {
            Some(member) => Arc::clone(member),
            None => Arc::new(Membership::start(policy, hints)?),
        };
        follows.local = Some(Arc::clone(&member));
        follows.params = params;
        member.set_policy(Some(policy), params);
        if matches!(follows.whom, Whom::Local(_)) {
            return Ok(());
        }
        follows.leave();
        follows.whom = Whom::Local(Arc::clone(&member));
        self.begin(&follows)?;
        drop(follows);
        self.sync_with_scheduler();
        Ok(())
    }

    /// From now on the service schedules the program. Gives it a moment to answer, and to take note of the queues.
    pub fn use_service(&self, introduction: ClientInfo) -> Result<(), SchedulerError> {
        let mut follows = lock(&self.follows);
        if matches!(follows.whom, Whom::Service(_)) {
            return Ok(());
        }
        follows.leave();
        self.program.go_home();
        let service = Arc::new(ServiceLink::new(introduction));
        follows.whom = Whom::Service(Arc::clone(&service));
        self.begin(&follows)?;
        if follows.started {
            service.wait_for_first_attempt(hinting::PATIENCE);
        }
        drop(follows);
        self.sync_with_scheduler();
        Ok(())
    }

    /// Dependencies a moment until the scheduler has seen the queues there are, so that what is launched next obeys its orders.
    pub fn sync_with_scheduler(&self) {
        hinting::sync_with_scheduler(&self.program.seat().call);
    }

    /// What a scheduler of the program's own is set to.
    #[must_use]
    pub fn params(&self) -> Params {
        lock(&self.follows).params
    }

    /// Changes the settings of the policy that schedules this program; the service's only where that allows it.
    pub fn configure(&self, change: impl FnOnce(&mut Params)) -> Result<(), HintFailure> {
        let mut follows = lock(&self.follows);
        let before = follows.params;
        let mut params = before;
        change(&mut params);
        match &follows.whom {
            Whom::Nobody | Whom::Page => {}
            Whom::Local(member) => member.set_policy(None, params),
            Whom::Service(_) => {
                if let Call::Service(line) = &self.program.seat().call {
                    let timeslice_us = i64::try_from(params.timeslice.get().0 / 1_000).unwrap_or(i64::MAX);
                    let timeslice_us = (params.timeslice != before.timeslice).then_some(timeslice_us);
                    let k = (params.k != before.k).then_some(params.k);
                    line.ask(&Request::Policy { name: None, timeslice_us, k })?;
                }
            }
        }
        follows.params = params;
        Ok(())
    }

    /// Changes the hint_request of the whole program, for the scheduler it has now.
    pub fn hint(&self, hint_request: &HintRequest) -> Result<(), HintFailure> {
        hint_request.applied_to(Hints::default())?;
        match &self.program.seat().call {
            Call::Local(member) => Ok(member.hint(hint_request)?),
            Call::Service(line) => line.ask(&Request::Hint(hint_request.clone())),
            Call::Notifier(_) | Call::Nobody => Ok(()),
        }
    }

    /// Puts a hardware queue under the scheduler's control. The first one waits a moment for the service to answer.
    pub fn join(&self, hw: Arc<dyn HwQueue>, level: LevelRequest) -> Result<Arc<ScheduledQueue>, JoinError> {
        hw.capabilities().negotiate(level)?;
        self.start()?;
        let queue = self.program.add(|page| ScheduledQueue::new(&self.program, page, hw, level))?;
        self.program.notify();
        Ok(queue)
    }

    fn start(&self) -> std::io::Result<()> {
        let mut follows = lock(&self.follows);
        if follows.started {
            return Ok(());
        }
        follows.started = true;
        self.begin(&follows).inspect_err(|_| follows.started = false)
    }

    /// Meets the scheduler, if there are queues to be scheduled.
    fn begin(&self, follows: &Follows) -> std::io::Result<()> {
        if !follows.started {
            return Ok(());
        }
        match &follows.whom {
            Whom::Nobody => {}
            Whom::Page => self.program.start_agents()?,
            Whom::Service(service) => service.start(&self.program)?,
            Whom::Local(member) => {
                self.program.start_agents()?;
                let left = self.program.seat();
                self.program.take_seat(member.page(), Call::Local(Arc::clone(member)), || true);
                self.program.part_from(&left);
                for (slot, hint_request) in
                    self.program.living().iter().filter_map(|queue| queue.own_hint_request())
                {
                    // One that left meanwhile needs no hint.
                    let _ = member.hint_queue(slot, &hint_request);
                }
            }
        }
        Ok(())
    }

    /// Calls `real`, which waits for everything on a device, and takes note of the queues that are idle afterwards.
    /// `completed` says whether it did.
    pub fn synchronized<R>(
        &self,
        device: DeviceId,
        real: impl FnOnce() -> R,
        completed: impl FnOnce(&R) -> bool,
    ) -> R {
        let mut queues = self.program.living();
        queues.retain(|queue| {
            queue.launch_path().hw().device() == device && !queue.launch_path().gate().is_free()
        });
        let waits: Vec<_> = queues.iter().map(|queue| queue.launch_path().begin_wait()).collect();
        let result = real();
        if completed(&result) {
            waits.into_iter().for_each(Wait::over);
        }
        result
    }

    /// Whether some queues of the program were stopped once while others ran: since then it matters who waits for whom.
    #[must_use]
    pub fn tracks_dependencies(&self) -> bool {
        self.program.tracks_dependencies()
    }

    /// Some queue may have become idle: finds out soon which.
    pub fn poll_soon(&self) {
        let queues = self.program.living();
        // All of them take note.
        if queues.iter().filter(|queue| queue.launch_path().may_have_become_idle()).count() > 0 {
            self.program.poll_now();
        }
    }

    /// Frees every queue and leaves the scheduler for good: the program is about to end.
    pub fn shut_down(&self) {
        let mut follows = lock(&self.follows);
        follows.leave();
        follows.whom = Whom::Nobody;
        if let Some(local) = &follows.local {
            local.release();
        }
        self.program.lose_scheduler();
    }

    /// To be called in a child after fork, before anything else is done there: leaves the scheduler's page and the
    /// connection to the parent. Takes no lock and makes system calls only. The child's copies of the queues are free
    /// and must not be dropped, nor may this: forget them, and begin anew.
    pub fn detach_in_child(&self) {
        self.program.detach_in_child();
    }
}

impl Follows {
    /// Does not connect again.
    fn leave(&self) {
        if let Whom::Service(service) = &self.whom {
            service.stop();
        }
    }
}

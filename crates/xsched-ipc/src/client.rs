//! The program's end: puts queues under the control of a scheduler, once there is one.

use std::sync::{Arc, Mutex};

use xsched_core::{DeviceId, HwQueue, LevelError, LevelRequest, Link as _, Wait};

use crate::agent;
use crate::bell::Bell;
use crate::joined::JoinedQueue;
use crate::page::{Page, PageError, SLOTS};
use crate::program::{Call, Program, lock};
use crate::service_link::{Introduction, ServiceLink};

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
    NoAgent(#[from] std::io::Error),
}

/// A program's connection to its scheduler. Starts its threads with the first queue.
pub struct Client {
    program: Arc<Program>,
    started: Mutex<bool>,
    /// None: the scheduler is the one whose page was handed over.
    service: Option<Arc<ServiceLink>>,
}

impl Client {
    /// Joins a scheduler through the page it made for this program.
    #[must_use]
    pub fn new(page: Arc<Page>, bell: Bell) -> Self {
        Self {
            program: Arc::new(Program::new(page, Call::Bell(bell))),
            started: Mutex::new(false),
            service: None,
        }
    }

    /// Joins the service with the first queue, and again whenever the service was gone. Until then, and in between,
    /// the program runs unscheduled.
    pub fn of_service(introduction: Introduction) -> Result<Self, PageError> {
        Ok(Self {
            program: Arc::new(Program::new(Page::private()?, Call::Nobody)),
            started: Mutex::new(false),
            service: Some(Arc::new(ServiceLink::new(introduction))),
        })
    }

    /// Puts a hardware queue under the scheduler's control. The first one waits a moment for the service to answer.
    pub fn join(&self, hw: Arc<dyn HwQueue>, level: LevelRequest) -> Result<Arc<JoinedQueue>, JoinError> {
        hw.capabilities().negotiate(level)?;
        self.start()?;
        let queue = self.program.add(|page| JoinedQueue::new(&self.program, page, hw, level))?;
        self.program.ring();
        Ok(queue)
    }

    fn start(&self) -> std::io::Result<()> {
        let mut started = lock(&self.started);
        if *started {
            return Ok(());
        }
        match &self.service {
            None => agent::start(&self.program)?,
            Some(service) => service.start(&self.program)?,
        }
        *started = true;
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
        queues.retain(|queue| queue.lane().hw().device() == device && !queue.lane().gate().is_free());
        let waits: Vec<_> = queues.iter().map(|queue| queue.lane().begin_wait()).collect();
        let result = real();
        if completed(&result) {
            waits.into_iter().for_each(Wait::over);
        }
        result
    }

    /// Whether some queues of the program are stopped while others run: then it matters who waits for whom.
    #[must_use]
    pub fn is_divided(&self) -> bool {
        self.program.is_divided()
    }

    /// Some queue may have become idle: finds out soon which.
    pub fn look_soon(&self) {
        let contended = |queue: &Arc<JoinedQueue>| !queue.lane().gate().is_free();
        if self.program.living().iter().any(contended) {
            self.program.seat().page.orders().bump();
        }
    }

    /// Frees every queue and leaves the scheduler for good: the program is about to end.
    pub fn leave(&self) {
        if let Some(service) = &self.service {
            service.stop();
        }
        self.program.lose_scheduler();
    }

    /// To be called in a child after fork, before anything else is done there: leaves the scheduler's page and the
    /// connection to the parent. Takes no lock and makes system calls only. The child's copies of the queues are free
    /// and must not be dropped, nor may this: forget them, and begin anew.
    pub fn leave_to_parent(&self) {
        self.program.leave_to_parent();
    }
}

//! The local scheduler: the coordinator on a thread of this process. A process schedules its own queues with it, and the demo
//! schedules the programs that it starts.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use xsched_core::{HintError, Hints, Nanos, Process};
use xsched_policy::{Params, PolicyInfo};

use crate::client::SchedulerError;
use crate::coordinator::{ClientId, Coordinator};
use crate::hinting::HintFailure;
use crate::notifier::Notifier;
use crate::page::Page;
use crate::protocol::{HintRequest, JobKey};

/// A running scheduler. Stops when dropped, and frees all queues.
pub struct LocalScheduler {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

struct Inner {
    coordinator: Mutex<Coordinator>,
    notifier: Notifier,
    stop: AtomicBool,
}

impl LocalScheduler {
    /// Starts the thread.
    pub fn start(policy: &'static PolicyInfo) -> std::io::Result<Self> {
        let inner = Arc::new(Inner {
            coordinator: Mutex::new(Coordinator::new(policy)),
            notifier: Notifier::new()?,
            stop: AtomicBool::new(false),
        });
        let for_thread = Arc::clone(&inner);
        let thread = std::thread::Builder::new().name("xsched".to_owned()).spawn(move || for_thread.run())?;
        Ok(Self { inner, thread: Some(thread) })
    }

    /// Adds a program, which may be this one: it joins through the page and a handle on the notifier.
    #[must_use = "the program is scheduled until it is removed by this"]
    pub fn admit(&self, process: Process, page: Arc<Page>, hints: Hints) -> ClientId {
        self.with(|coordinator| coordinator.add_client(process, page, hints))
    }

    /// The notifier that programs use.
    #[must_use]
    pub fn notifier(&self) -> &Notifier {
        &self.inner.notifier
    }

    /// Calls `change`, and has the scheduler's thread run a round.
    pub fn with<R>(&self, change: impl FnOnce(&mut Coordinator) -> R) -> R {
        let result = change(&mut self.inner.coordinator());
        self.inner.notifier.notify();
        result
    }
}

/// This process as the program of its local scheduler.
pub(crate) struct Membership {
    scheduler: LocalScheduler,
    id: ClientId,
    page: Arc<Page>,
}

impl Membership {
    /// Starts a scheduler for this process alone.
    pub(crate) fn start(policy: &'static PolicyInfo, hints: Hints) -> Result<Self, SchedulerError> {
        let scheduler = crate::threads::without_signals(|| LocalScheduler::start(policy))?;
        let page = Page::create()?;
        let process = Process { id: xsched_core::ProcessId(std::process::id()), ..Process::default() };
        let id = scheduler.admit(process, Arc::clone(&page), hints);
        Ok(Self { scheduler, id, page })
    }

    pub(crate) fn page(&self) -> &Arc<Page> {
        &self.page
    }

    pub(crate) fn notify(&self) {
        self.scheduler.notifier().notify();
    }

    /// Calls `change` and runs a round before returning, so that the orders that follow from it are in force: the scheduler's
    /// thread would run the round only after it was woken.
    fn change_and_run_round<R>(&self, change: impl FnOnce(&mut Coordinator) -> R) -> R {
        self.scheduler.with(|coordinator| {
            let result = change(coordinator);
            // The scheduler's thread is notified by `with` and finds out itself when the next round is due.
            let _ = coordinator.step(Nanos::now());
            result
        })
    }

    /// Changes the policy and its settings.
    pub(crate) fn set_policy(&self, policy: Option<&'static PolicyInfo>, params: Params) {
        self.change_and_run_round(|coordinator| {
            if let Some(policy) = policy {
                coordinator.set_policy(policy);
            }
            coordinator.configure(params);
        });
    }

    /// Changes the hints of the whole process.
    pub(crate) fn hint(&self, hint_request: &HintRequest) -> Result<(), HintError> {
        self.change_and_run_round(|coordinator| {
            let hints = hint_request.applied_to(coordinator.hints(self.id).unwrap_or_default())?;
            coordinator.set_hints(self.id, hints);
            Ok(())
        })
    }

    /// Gives the queue in a slot hints of its own.
    pub(crate) fn hint_queue(&self, slot: usize, hint_request: &HintRequest) -> Result<(), HintFailure> {
        self.change_and_run_round(|coordinator| {
            let now = Nanos::now();
            coordinator.look_at(self.id, now);
            let before = coordinator.queue_hints(self.id, slot).ok_or(HintFailure::UnknownQueue)?;
            let hints = hint_request.applied_to(before)?;
            if coordinator.set_queue_hints(self.id, slot, hints, now) {
                Ok(())
            } else {
                Err(HintFailure::TooManyQueueHints)
            }
        })
    }

    /// Sets the jobs of this process.
    pub(crate) fn set_jobs(&self, keys: Vec<JobKey>) {
        self.change_and_run_round(|coordinator| coordinator.set_jobs(self.id, keys, Nanos::now()));
    }

    /// Has the scheduler read the page and write its orders before this returns.
    pub(crate) fn sync_with_scheduler(&self) {
        self.change_and_run_round(|_| ());
    }

    /// Reads the page after a queue was removed, so that the next queue in its slot is known as a new one.
    pub(crate) fn look(&self) {
        self.scheduler.with(|coordinator| coordinator.look_at(self.id, Nanos::now()));
    }

    /// Frees all queues: the process is about to exit.
    pub(crate) fn release(&self) {
        self.scheduler.with(Coordinator::release_all);
    }
}

impl Drop for LocalScheduler {
    fn drop(&mut self) {
        self.inner.stop.store(true, Ordering::SeqCst);
        self.inner.notifier.notify();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.inner.coordinator().release_all();
    }
}

impl Inner {
    fn coordinator(&self) -> MutexGuard<'_, Coordinator> {
        self.coordinator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        crate::threads::make_this_thread_prompt();
        while !self.stop.load(Ordering::SeqCst) {
            let next = self.coordinator().step(Nanos::now());
            let timeout = next.map(|at| {
                let left = std::time::Duration::from(at - Nanos::now());
                Timespec {
                    tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                    tv_nsec: left.subsec_nanos().into(),
                }
            });
            // Interrupted or timed out: an extra round does no harm.
            let _ =
                poll(&mut [PollFd::from_borrowed_fd(self.notifier.as_fd(), PollFlags::IN)], timeout.as_ref());
            self.notifier.acknowledge();
        }
    }
}

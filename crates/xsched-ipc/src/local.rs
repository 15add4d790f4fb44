//! A scheduler on a thread of this process: for a process that schedules its own queues, and for whoever starts
//! programs and hands them their pages.

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
use crate::protocol::HintRequest;

/// A running scheduler. Stops when dropped, and frees everybody.
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
        let theirs = Arc::clone(&inner);
        let thread = std::thread::Builder::new().name("xsched".to_owned()).spawn(move || theirs.run())?;
        Ok(Self { inner, thread: Some(thread) })
    }

    /// Takes in a program, which may be this one: it joins through the page and a handle on the notifier.
    #[must_use = "the program is scheduled until it is removed by this"]
    pub fn admit(&self, process: Process, page: Arc<Page>, hints: Hints) -> ClientId {
        self.with(|coordinator| coordinator.add_client(process, page, hints))
    }

    /// The notifier that programs ring.
    #[must_use]
    pub fn notifier(&self) -> &Notifier {
        &self.inner.notifier
    }

    /// Changes something, and has it taken into account at once.
    pub fn with<R>(&self, change: impl FnOnce(&mut Coordinator) -> R) -> R {
        let result = change(&mut self.inner.coordinator());
        self.inner.notifier.notify();
        result
    }
}

/// This process as a program of its own scheduler.
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

    /// Changes something, and gives the orders that follow from it before returning: the scheduler's own thread would only
    /// a moment later.
    fn at_once<R>(&self, change: impl FnOnce(&mut Coordinator) -> R) -> R {
        self.scheduler.with(|coordinator| {
            let result = change(coordinator);
            // When the next round is due, its thread finds out when it is called now.
            let _ = coordinator.step(Nanos::now());
            result
        })
    }

    /// Changes the policy and its settings.
    pub(crate) fn set_policy(&self, policy: Option<&'static PolicyInfo>, params: Params) {
        self.at_once(|coordinator| {
            if let Some(policy) = policy {
                coordinator.set_policy(policy);
            }
            coordinator.configure(params);
        });
    }

    /// Changes the hint_request of the whole process.
    pub(crate) fn hint(&self, hint_request: &HintRequest) -> Result<(), HintError> {
        self.at_once(|coordinator| {
            let hints = hint_request.applied_to(coordinator.hints(self.id).unwrap_or_default())?;
            coordinator.set_hints(self.id, hints);
            Ok(())
        })
    }

    /// Gives the queue in a slot hint_request of its own.
    pub(crate) fn hint_queue(&self, slot: usize, hint_request: &HintRequest) -> Result<(), HintFailure> {
        self.at_once(|coordinator| {
            let now = Nanos::now();
            coordinator.look_at(self.id, now);
            let had = coordinator.queue_hints(self.id, slot).ok_or(HintFailure::UnknownQueue)?;
            let hints = hint_request.applied_to(had)?;
            if coordinator.set_queue_hints(self.id, slot, hints, now) {
                Ok(())
            } else {
                Err(HintFailure::TooManyQueueHints)
            }
        })
    }

    /// Has the scheduler take note of everything the program shows, and give its orders.
    pub(crate) fn sync_with_scheduler(&self) {
        self.at_once(|_| ());
    }

    /// A queue has left: whoever takes its slot next is another.
    pub(crate) fn look(&self) {
        self.scheduler.with(|coordinator| coordinator.look_at(self.id, Nanos::now()));
    }

    /// Lets everybody go: the program ends.
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
        while !self.stop.load(Ordering::SeqCst) {
            let next = self.coordinator().step(Nanos::now());
            let timeout = next.map(|at| {
                let left = std::time::Duration::from(at - Nanos::now());
                Timespec {
                    tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                    tv_nsec: left.subsec_nanos().into(),
                }
            });
            // Interrupted or timed out: a round too many does no harm.
            let _ =
                poll(&mut [PollFd::from_borrowed_fd(self.notifier.as_fd(), PollFlags::IN)], timeout.as_ref());
            self.notifier.acknowledge();
        }
    }
}

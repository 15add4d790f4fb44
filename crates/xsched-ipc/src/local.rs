//! A scheduler on a thread of this process: for a process that schedules its own queues, and for whoever starts
//! programs and hands them their pages.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use xsched_core::{Hints, Nanos, Process};
use xsched_policy::PolicyInfo;

use crate::bell::Bell;
use crate::coordinator::{ClientId, Coordinator};
use crate::page::Page;

/// A running scheduler. Stops when dropped, and frees everybody.
pub struct LocalScheduler {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

struct Inner {
    coordinator: Mutex<Coordinator>,
    bell: Bell,
    stop: AtomicBool,
}

impl LocalScheduler {
    /// Starts the thread.
    pub fn start(policy: &'static PolicyInfo) -> std::io::Result<Self> {
        let inner = Arc::new(Inner {
            coordinator: Mutex::new(Coordinator::new(policy)),
            bell: Bell::new()?,
            stop: AtomicBool::new(false),
        });
        let theirs = Arc::clone(&inner);
        let thread = std::thread::Builder::new().name("xsched".to_owned()).spawn(move || theirs.run())?;
        Ok(Self { inner, thread: Some(thread) })
    }

    /// Takes in a program, which may be this one: it joins through the page and a handle on the bell.
    #[must_use = "the program is scheduled until it is removed by this"]
    pub fn admit(&self, process: Process, page: Arc<Page>, hints: Hints) -> ClientId {
        self.with(|coordinator| coordinator.add_client(process, page, hints))
    }

    /// The bell that programs ring.
    #[must_use]
    pub fn bell(&self) -> &Bell {
        &self.inner.bell
    }

    /// Changes something, and has it taken into account at once.
    pub fn with<R>(&self, change: impl FnOnce(&mut Coordinator) -> R) -> R {
        let result = change(&mut self.inner.coordinator());
        self.inner.bell.ring();
        result
    }
}

impl Drop for LocalScheduler {
    fn drop(&mut self) {
        self.inner.stop.store(true, Ordering::SeqCst);
        self.inner.bell.ring();
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
            let _ = poll(&mut [PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN)], timeout.as_ref());
            self.bell.answer();
        }
    }
}

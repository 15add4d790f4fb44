//! The thread that makes all calls to the runtime that may fail. HIP keeps the last error of each thread until the thread reads
//! it, so a failing call on a program's thread would leave an error that the program finds later. The thread also queries
//! markers, because `hipEventQuery` reports an event that is not complete as an error.

use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use xsched_interpose::OutermostHook;
use xsched_ipc::threads::without_signals;

/// How long the thread sleeps between two polls.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// How many intervals [`shut_down`] waits for a call in progress: 0.1 s.
const SHUTDOWN_INTERVALS: usize = 2000;

/// The longest that [`call`] waits for its result. The initialization of a runtime takes the longest.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Something that the thread polls.
pub(super) trait Polled: Send + Sync {
    /// Returns whether to poll again.
    fn poll(&self) -> bool;
}

type Job = Box<dyn FnOnce() + Send>;

struct RuntimeThread {
    pid: u32,
    /// The process is exiting: make no more calls.
    is_shut_down: AtomicBool,
    /// Held during calls.
    calling: Mutex<()>,
    state: Mutex<State>,
    wakeup: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    polled: Vec<Weak<dyn Polled>>,
    /// Set by [`wake`]; cleared before the next poll.
    is_woken: bool,
    is_asleep: bool,
}

static THREAD: AtomicPtr<RuntimeThread> = AtomicPtr::new(ptr::null_mut());

/// The thread of this process, started on first use, and again in a child after fork. Never freed.
fn thread() -> Option<&'static RuntimeThread> {
    let known = THREAD.load(Ordering::Acquire);
    // SAFETY: null, or a value that was leaked below.
    if let Some(thread) = unsafe { known.as_ref() }.filter(|thread| thread.pid == std::process::id()) {
        return Some(thread);
    }
    let new: &'static RuntimeThread = Box::leak(Box::new(RuntimeThread {
        pid: std::process::id(),
        is_shut_down: AtomicBool::new(false),
        calling: Mutex::new(()),
        state: Mutex::default(),
        wakeup: Condvar::new(),
    }));
    let new_address = ptr::from_ref(new).cast_mut();
    if THREAD.compare_exchange(known, new_address, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return thread();
    }
    let builder = std::thread::Builder::new().name("xsched-hip".to_owned());
    without_signals(|| builder.spawn(move || run(new))).ok()?;
    Some(new)
}

fn lock(thread: &RuntimeThread) -> MutexGuard<'_, State> {
    thread.state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(thread: &'static RuntimeThread) {
    // Calls from here go to the runtime directly, not through the hooks.
    let _inside = OutermostHook::enter();
    let mut has_pending = false;
    loop {
        let mut state = lock(thread);
        while state.jobs.is_empty() && !state.is_woken && !has_pending {
            state.is_asleep = true;
            state = thread.wakeup.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.is_asleep = false;
        }
        state.is_woken = false;
        let jobs = std::mem::take(&mut state.jobs);
        state.polled.retain(|polled| polled.strong_count() > 0);
        let polled: Vec<_> = state.polled.iter().filter_map(Weak::upgrade).collect();
        drop(state);
        let calling = thread.calling.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_shut_down.load(Ordering::Acquire) {
            return;
        }
        for job in jobs {
            // A job that panics sends no result, so its caller gets none.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
        }
        has_pending = polled.iter().filter(|polled| polled.poll()).count() > 0;
        drop(polled);
        drop(calling);
        if has_pending {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// For a process that exits: no call begins after this. Waits up to 0.1 s for a call in progress.
pub(super) fn shut_down() {
    let known = THREAD.load(Ordering::Acquire);
    // SAFETY: null, or a value that `thread` leaked.
    let Some(thread) = (unsafe { known.as_ref() }).filter(|thread| thread.pid == std::process::id()) else {
        return;
    };
    thread.is_shut_down.store(true, Ordering::Release);
    for _ in 0..SHUTDOWN_INTERVALS {
        if thread.calling.try_lock().is_ok() {
            break;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    // Threads that wait in `call` return without a result.
    lock(thread).jobs.clear();
}

/// Runs `work` on the thread and returns its result. None if the process exits, if `work` panics, or after [`CALL_TIMEOUT`].
pub(super) fn call<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Option<R> {
    let thread = thread()?;
    if thread.is_shut_down.load(Ordering::Acquire) {
        return None;
    }
    let (sender, receiver) = sync_channel(1);
    lock(thread).jobs.push_back(Box::new(move || {
        let _ = sender.send(work());
    }));
    thread.wakeup.notify_one();
    receiver.recv_timeout(CALL_TIMEOUT).ok()
}

/// Polls something on the thread until it is dropped.
pub(super) fn poll(polled: Weak<dyn Polled>) {
    if let Some(thread) = thread() {
        lock(thread).polled.push(polled);
    }
}

/// Makes the thread poll soon.
pub(super) fn wake() {
    let Some(thread) = thread() else { return };
    let mut state = lock(thread);
    state.is_woken = true;
    if state.is_asleep {
        thread.wakeup.notify_one();
    }
}

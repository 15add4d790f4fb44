//! The thread that makes those calls to the runtime that may fail: each thread has a last error of its own, and the
//! program's threads are the program's. It also asks markers, which answer "not ready" with an error.

use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use xsched_interpose::OutermostHook;
use xsched_ipc::threads::without_signals;

/// How long to wait before asking the markers again.
const POLL: Duration = Duration::from_micros(50);

/// How often the end is put off for a call under way: a tenth of a second in all.
const PATIENCE: usize = 2000;

/// No answer takes longer: not even that of a runtime that begins.
const LONGEST: Duration = Duration::from_secs(60);

/// Something to be asked again and again.
pub(super) trait Watched: Send + Sync {
    /// Looks. Answers whether there is something left to wait for.
    fn look(&self) -> bool;
}

type Job = Box<dyn FnOnce() + Send>;

struct Keeper {
    pid: u32,
    /// The program ends: no call is made any more.
    over: AtomicBool,
    /// Held during calls.
    calling: Mutex<()>,
    state: Mutex<State>,
    notifier: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    watched: Vec<Weak<dyn Watched>>,
    /// Something was placed since the last look.
    news: bool,
    asleep: bool,
}

static KEEPER: AtomicPtr<Keeper> = AtomicPtr::new(ptr::null_mut());

/// The keeper of this process: made when it is first needed, and anew in a child. Never freed.
fn keeper() -> Option<&'static Keeper> {
    let known = KEEPER.load(Ordering::Acquire);
    // SAFETY: null, or one that was leaked below.
    if let Some(keeper) = unsafe { known.as_ref() }.filter(|keeper| keeper.pid == std::process::id()) {
        return Some(keeper);
    }
    let new: &'static Keeper = Box::leak(Box::new(Keeper {
        pid: std::process::id(),
        over: AtomicBool::new(false),
        calling: Mutex::new(()),
        state: Mutex::default(),
        notifier: Condvar::new(),
    }));
    let new_address = ptr::from_ref(new).cast_mut();
    if KEEPER.compare_exchange(known, new_address, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return keeper();
    }
    let builder = std::thread::Builder::new().name("xsched-hip".to_owned());
    without_signals(|| builder.spawn(move || keep(new))).ok()?;
    Some(new)
}

fn lock(keeper: &Keeper) -> MutexGuard<'_, State> {
    keeper.state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep(keeper: &'static Keeper) {
    // What we call from here goes straight to the runtime.
    let _inside = OutermostHook::enter();
    let mut pending = false;
    loop {
        let mut state = lock(keeper);
        while state.jobs.is_empty() && !state.news && !pending {
            state.asleep = true;
            state = keeper.notifier.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.asleep = false;
        }
        state.news = false;
        let jobs = std::mem::take(&mut state.jobs);
        state.watched.retain(|watched| watched.strong_count() > 0);
        let watched: Vec<_> = state.watched.iter().filter_map(Weak::upgrade).collect();
        drop(state);
        let calling = keeper.calling.lock().unwrap_or_else(PoisonError::into_inner);
        if keeper.over.load(Ordering::Acquire) {
            return;
        }
        for job in jobs {
            // A job that panics answers nobody.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
        }
        pending = watched.iter().filter(|watched| watched.look()).count() > 0;
        drop(watched);
        drop(calling);
        if pending {
            std::thread::sleep(POLL);
        }
    }
}

/// The program ends: waits, though not for ever, until no call of ours is under way, and has none made any more.
pub(super) fn end() {
    let known = KEEPER.load(Ordering::Acquire);
    // SAFETY: null, or one that was leaked.
    let Some(keeper) = (unsafe { known.as_ref() }).filter(|keeper| keeper.pid == std::process::id()) else {
        return;
    };
    keeper.over.store(true, Ordering::Release);
    for _ in 0..PATIENCE {
        if keeper.calling.try_lock().is_ok() {
            break;
        }
        std::thread::sleep(POLL);
    }
    // Who waits for an answer gets none.
    lock(keeper).jobs.clear();
}

/// Has something done by the thread, and waits for its answer. None if it cannot be had.
pub(super) fn ask<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Option<R> {
    let keeper = keeper()?;
    if keeper.over.load(Ordering::Acquire) {
        return None;
    }
    let (sender, receiver) = sync_channel(1);
    lock(keeper).jobs.push_back(Box::new(move || {
        let _ = sender.send(work());
    }));
    keeper.notifier.notify_one();
    receiver.recv_timeout(LONGEST).ok()
}

/// Has something looked at while it exists.
pub(super) fn watch(watched: Weak<dyn Watched>) {
    if let Some(keeper) = keeper() {
        lock(keeper).watched.push(watched);
    }
}

/// There is something new to look at.
pub(super) fn wake() {
    let Some(keeper) = keeper() else { return };
    let mut state = lock(keeper);
    state.news = true;
    if state.asleep {
        keeper.notifier.notify_one();
    }
}

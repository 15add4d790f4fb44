//! The thread that makes all calls to the runtime that may fail. HIP keeps the last error of each thread until the thread reads
//! it, so a failing call on a program's thread would leave an error that the program finds later. The thread also queries
//! markers, because `hipEventQuery` reports an event that is not complete as an error.
//!
//! A thread that opens a library holds the loader's lock while it runs the library's constructors. The runtime takes this lock,
//! too: when it is initialized, and when a thread calls it for the first time. A constructor that launches work therefore
//! cannot wait for this thread. The thread takes the lock before each call, and a caller that finds the thread blocked there
//! continues without a result.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::os::unix::fs::FileExt as _;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use xsched_interpose::OutermostHook;
use xsched_ipc::report::{Severity, report};
use xsched_ipc::threads::without_signals;

/// How long the thread sleeps between two polls.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// How many intervals [`shut_down`] waits for a call in progress: 0.1 s.
const SHUTDOWN_INTERVALS: usize = 2000;

/// The longest that [`call`] waits for its result. The initialization of a runtime takes the longest.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// How long [`call`] waits before it examines whether the thread is blocked by the loader's lock.
const LOADER_LOCK_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// How many of these intervals [`call`] waits for a job to begin behind those of other threads: 5 s.
const BEGIN_INTERVALS: u32 = 250;

/// Something that the thread polls.
pub(super) trait Polled: Send + Sync {
    /// Returns whether to poll again.
    fn poll(&self) -> bool;
}

/// Work for the thread. Exactly one thread changes `progress` from [`WAITING`].
struct Job {
    work: Box<dyn FnOnce() + Send>,
    progress: Arc<AtomicU8>,
}

const WAITING: u8 = 0;
const BEGUN: u8 = 1;
const CANCELLED: u8 = 2;

struct RuntimeThread {
    pid: u32,
    /// The kernel's id of the thread; 0 until it has started.
    id: AtomicI32,
    is_taking_loader_lock: AtomicBool,
    /// A caller gave up because the thread did not begin its job, and the thread has neither reached that job nor got the
    /// loader's lock since.
    is_blocked: AtomicBool,
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
    let new = RuntimeThread::new();
    let new_address = ptr::from_ref(new).cast_mut();
    if THREAD.compare_exchange(known, new_address, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return thread();
    }
    let is_started = without_signals(|| start_thread(new));
    // Later calls find this entry: they must not wait for a thread that does not exist.
    new.is_shut_down.store(!is_started, Ordering::Release);
    is_started.then_some(new)
}

/// Starts the thread. Returns whether it was. Not by the standard library, whose threads take the loader's lock before they
/// run any of this code, so that their ids would not be known.
fn start_thread(thread: &'static RuntimeThread) -> bool {
    extern "C" fn begin(thread: *mut c_void) -> *mut c_void {
        // SAFETY: `start_thread` passes a value that is never freed.
        let thread = unsafe { &*thread.cast::<RuntimeThread>() };
        // SAFETY: the call has no arguments and always succeeds.
        thread.id.store(unsafe { libc::gettid() }, Ordering::Release);
        thread.pass_loader_lock();
        // SAFETY: the calling thread, and a C string of fewer than 16 bytes.
        unsafe { libc::pthread_setname_np(libc::pthread_self(), c"xsched-hip".as_ptr()) };
        // A panic ends the thread; callers then wait for their results in vain, and get none.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(thread)));
        ptr::null_mut()
    }
    let (mut id, argument) = (std::mem::MaybeUninit::uninit(), ptr::from_ref(thread).cast_mut().cast());
    // SAFETY: `id` has room for the result; `begin` receives the type it expects, and does not unwind.
    unsafe {
        let is_started = libc::pthread_create(id.as_mut_ptr(), ptr::null(), begin, argument) == 0;
        if is_started {
            libc::pthread_detach(id.assume_init());
        }
        is_started
    }
}

fn lock(thread: &RuntimeThread) -> MutexGuard<'_, State> {
    thread.state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(thread: &'static RuntimeThread) {
    // Calls from here go to the runtime directly, not through the hooks.
    let _inside = OutermostHook::enter_all();
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
        if !jobs.is_empty() {
            thread.pass_loader_lock();
        }
        let calling = thread.calling.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_shut_down.load(Ordering::Acquire) {
            return;
        }
        for job in jobs {
            let begins = job.progress.compare_exchange(WAITING, BEGUN, Ordering::AcqRel, Ordering::Acquire);
            if begins.is_ok() {
                // A job that panics sends no result, so its caller gets none.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job.work));
            }
            thread.is_blocked.store(false, Ordering::Release);
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

impl RuntimeThread {
    /// Never freed.
    fn new() -> &'static Self {
        Box::leak(Box::new(Self {
            pid: std::process::id(),
            id: AtomicI32::new(0),
            is_taking_loader_lock: AtomicBool::new(false),
            is_blocked: AtomicBool::new(false),
            is_shut_down: AtomicBool::new(false),
            calling: Mutex::new(()),
            state: Mutex::default(),
            wakeup: Condvar::new(),
        }))
    }

    /// Returns when the loader's lock was free.
    fn pass_loader_lock(&self) {
        self.is_taking_loader_lock.store(true, Ordering::Release);
        // SAFETY: all zeros is a valid value of this plain struct of addresses.
        let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
        // SAFETY: `info` is writable; `dladdr` accepts any address, and takes the lock.
        unsafe { libc::dladdr(ptr::from_ref(&THREAD).cast(), &raw mut info) };
        self.is_taking_loader_lock.store(false, Ordering::Release);
        self.is_blocked.store(false, Ordering::Release);
    }

    /// Whether the thread is blocked since a caller gave up: by the loader's lock, or inside the job of another caller, where
    /// the runtime takes that lock. A thread that got the lock may be ready to run, and is worth waiting for.
    fn is_still_blocked(&self) -> bool {
        self.is_blocked.load(Ordering::Acquire) && waits_for_lock(self.id.load(Ordering::Acquire))
    }

    /// Whether the thread, which has not begun a job after so many intervals, waits for the loader's lock. On a busy machine it
    /// may be ready to run instead.
    fn is_blocked_by_loader(&self, intervals: u32) -> bool {
        let id = self.id.load(Ordering::Acquire);
        let waits = id != 0 && self.is_taking_loader_lock.load(Ordering::Acquire) && waits_for_lock(id);
        waits || intervals >= BEGIN_INTERVALS
    }
}

/// Whether a thread of this process sleeps in the kernel, and not because of a lock that was unlocked since: the thread that unlocks
/// wakes one waiter, and the next one sleeps until that one has run, which takes long on a busy machine.
fn waits_for_lock(id: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{id}/stat")).unwrap_or_default();
    // The state follows the name, which is in parentheses.
    let is_sleeping = stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'));
    is_sleeping && has_futex_changed(id) != Some(true)
}

/// Whether the word that a thread of this process waits for has changed since it began to wait. None if it waits for something else,
/// or the kernel does not tell.
fn has_futex_changed(id: i32) -> Option<bool> {
    let call = std::fs::read_to_string(format!("/proc/self/task/{id}/syscall")).ok()?;
    let mut words = call.split(' ');
    if words.next()?.parse() != Ok(libc::SYS_futex) {
        return None;
    }
    let mut argument = || usize::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (address, _operation, expected) = (argument()?, argument()?, argument()?);
    // Through a file: the word may have been unmapped meanwhile, and the program may have forbidden itself the system calls of
    // debuggers, some of which end it.
    let mut word = [0; size_of::<u32>()];
    std::fs::File::open("/proc/self/mem").ok()?.read_exact_at(&mut word, address as u64).ok()?;
    // The upper half of the register means nothing.
    Some(u64::from(u32::from_ne_bytes(word)) != expected as u64 & u64::from(u32::MAX))
}

/// Runs `work` on the thread and returns its result. None if the process exits, if `work` panics, if the thread is blocked, or
/// after [`CALL_TIMEOUT`].
pub(super) fn call<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Option<R> {
    call_on(thread()?, work)
}

fn call_on<R: Send + 'static>(
    thread: &RuntimeThread,
    work: impl FnOnce() -> R + Send + 'static,
) -> Option<R> {
    // A constructor may launch often: only its first launch waits.
    if thread.is_shut_down.load(Ordering::Acquire) || thread.is_still_blocked() {
        return None;
    }
    let (sender, receiver) = sync_channel(1);
    let progress = Arc::new(AtomicU8::new(WAITING));
    let work = Box::new(move || {
        let _ = sender.send(work());
    });
    lock(thread).jobs.push_back(Job { work, progress: Arc::clone(&progress) });
    thread.wakeup.notify_one();
    for intervals in 1.. {
        match receiver.recv_timeout(LOADER_LOCK_CHECK_INTERVAL) {
            Ok(result) => return Some(result),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) if progress.load(Ordering::Acquire) == BEGUN => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if thread.is_blocked_by_loader(intervals) {
            // Before the job is cancelled: when the thread reaches a cancelled job, it is not blocked any more.
            thread.is_blocked.store(true, Ordering::Release);
            let cancelled =
                progress.compare_exchange(WAITING, CANCELLED, Ordering::AcqRel, Ordering::Acquire);
            if cancelled.is_ok() {
                report_blocked();
                return None;
            }
            thread.is_blocked.store(false, Ordering::Release);
            break;
        }
    }
    receiver.recv_timeout(CALL_TIMEOUT).ok()
}

/// Reports once that launches are not scheduled because the thread is blocked.
fn report_blocked() {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if !REPORTED.swap(true, Ordering::Relaxed) {
        let line = "a library launches work while it is being loaded: HIP is scheduled once it is loaded";
        report(Severity::Info, format_args!("{line}"));
    }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use super::*;

    #[test]
    fn only_the_first_caller_waits_for_a_thread_that_is_blocked_inside_a_job() {
        let thread = RuntimeThread::new();
        assert!(start_thread(thread));
        let (unblock, blocked) = channel::<()>();
        let (has_begun, begun) = channel();
        let blocking = std::thread::spawn(move || {
            call_on(thread, move || {
                has_begun.send(()).unwrap();
                blocked.recv().is_ok()
            })
        });
        begun.recv().unwrap();
        let duration_of_call = || {
            let start = Instant::now();
            assert_eq!(call_on(thread, || ()), None);
            start.elapsed()
        };
        let (first, second) = (duration_of_call(), duration_of_call());
        assert!(2 * second < first, "{second:?} after {first:?}");
        unblock.send(()).unwrap();
        assert_eq!(blocking.join().unwrap(), Some(true));
        while thread.is_blocked.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        assert_eq!(call_on(thread, || 7), Some(7), "the thread has reached the cancelled job");
    }

    /// Has the calls of debuggers fail on this thread, as a program does that confines itself. Other threads keep them.
    fn forbid_calls_of_debuggers() {
        const LOAD_NUMBER: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
        const IS_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
        let step = |code, jt, k| libc::sock_filter { code: u16::try_from(code).unwrap(), jt, jf: 0, k };
        let number = |call: libc::c_long| u32::try_from(call).unwrap();
        let mut steps = [
            step(LOAD_NUMBER, 0, 0),
            step(IS_EQUAL, 2, number(libc::SYS_process_vm_readv)),
            step(IS_EQUAL, 1, number(libc::SYS_ptrace)),
            step(RETURN, 0, libc::SECCOMP_RET_ALLOW),
            step(RETURN, 0, libc::SECCOMP_RET_ERRNO | u32::try_from(libc::EPERM).unwrap()),
        ];
        let program =
            libc::sock_fprog { len: u16::try_from(steps.len()).unwrap(), filter: steps.as_mut_ptr() };
        // SAFETY: the kernel copies the program, which returns on every path.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
        }
    }

    #[test]
    fn unlocked_lock_is_found_although_the_program_has_forbidden_the_calls_of_debuggers() {
        static WORD: AtomicU32 = AtomicU32::new(0);
        let futex = |call: libc::c_int, value: u32| {
            // SAFETY: the word is static, and there is no time limit.
            unsafe {
                libc::syscall(libc::SYS_futex, WORD.as_ptr(), call, value, ptr::null::<libc::timespec>())
            }
        };
        // Every bit of the word counts, and the register has more.
        for locked in [2, u32::MAX] {
            WORD.store(locked, Ordering::SeqCst);
            let (sender, id) = channel();
            let waiting = std::thread::spawn(move || {
                // SAFETY: the call has no arguments and always succeeds.
                sender.send(unsafe { libc::gettid() }).unwrap();
                while WORD.load(Ordering::SeqCst) == locked {
                    futex(libc::FUTEX_WAIT, locked);
                }
            });
            let id = id.recv().unwrap();
            let found = std::thread::spawn(move || {
                forbid_calls_of_debuggers();
                let start = Instant::now();
                let wait_until = |expected| {
                    while has_futex_changed(id) != Some(expected) {
                        assert!(start.elapsed() < CALL_TIMEOUT, "{:?}", has_futex_changed(id));
                        std::thread::yield_now();
                    }
                };
                wait_until(false);
                WORD.store(0, Ordering::SeqCst);
                wait_until(true);
            });
            let found = found.join();
            WORD.store(0, Ordering::SeqCst);
            futex(libc::FUTEX_WAKE, 1);
            waiting.join().unwrap();
            found.unwrap();
        }
    }
}

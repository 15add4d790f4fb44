//! The executor: one thread per context that runs the commands of the context's streams.
//!
//! ```text
//!   streams ─heads─► ready? ─copies, host functions─► run at once, whichever context has the device
//!                      └─kernels, records, waits, writes─► run while the context has the device (runlist.rs)
//! ```
//!
//! A kernel consumes the time that the context had the device. So its duration is exact however the host schedules this
//! thread, and a preemption only delays the kernel.

use std::collections::HashSet;
use std::sync::Arc;

use crate::code::Code;
use crate::driver::{Driver, DriverGuard, Handle, driver};
use crate::shared::{RunlistEntry, RunlistStatus, now};
use crate::stream::{Command, Work};
use crate::stream_memory_ops;

/// How often a stream that waits for a word in memory polls it, in nanoseconds.
const MEMORY_WAIT_POLL: u64 = 50_000;
/// How often a kernel that waits for kernels on other devices polls them, in nanoseconds.
const MEETING_POLL: u64 = 20_000;
/// How often a context that waits for the device checks whether the owner's process is alive, in nanoseconds.
const OWNER_CHECK_INTERVAL: u64 = 1_000_000;
/// How long an executor without work sleeps at most, in nanoseconds.
const MAX_SLEEP: u64 = 3_600_000_000_000;

/// Starts the executor of a context.
pub(crate) fn start(context: Handle, entry: Arc<RunlistEntry>) -> Result<(), Code> {
    let thread = std::thread::Builder::new().name("standin-cuda".to_owned());
    let executor = Executor { context, entry, running: None, consumed: 0 };
    without_signals(|| thread.spawn(move || executor.run())).map(drop).map_err(|_| Code::ERROR_OUT_OF_MEMORY)
}

/// Runs `work` with all signals blocked, so that threads started in it do not handle the program's signals.
pub(crate) fn without_signals<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: all zero is a valid value of these sets, which live until the calls return.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        result
    }
}

struct Running {
    stream: Handle,
    /// The remaining time, in nanoseconds.
    left: u64,
}

struct Executor {
    context: Handle,
    entry: Arc<RunlistEntry>,
    running: Option<Running>,
    /// How much of the time that the context had the device has been consumed, or passed without work.
    consumed: u64,
}

/// Aborts the process if the executor panics: otherwise its program would block on the device without an error.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

impl Executor {
    fn run(mut self) {
        let _abort_on_panic = AbortOnPanic;
        if let Some(least) = std::num::NonZeroU64::new(1) {
            let _ = rustix::thread::set_current_timer_slack(Some(least));
        }
        loop {
            let wake_count = self.entry.wake_count();
            let Ok(mut driver) = driver() else { return };
            // The handle may belong to a new context by now.
            if !driver.contexts.get(&self.context).is_some_and(|its| Arc::ptr_eq(&its.entry, &self.entry)) {
                return;
            }
            let until = self.step(&mut driver);
            if let Some(context) = driver.contexts.get_mut(&self.context) {
                context.is_asleep = true;
            }
            drop(driver);
            self.entry.sleep(wake_count, until);
        }
    }

    /// Runs what can run now. Returns when there will be something to run again.
    fn step(&mut self, driver: &mut DriverGuard) -> u64 {
        let Some(context) = driver.contexts.get_mut(&self.context) else { return 0 };
        context.is_asleep = false;
        let is_disabled = context.is_disabled;
        let mut wants = self.wants_device(driver, is_disabled);
        let mut status = self.entry.report(wants, self.used_at_end(driver));
        let mut progress = false;
        // The device may switch between any two commands of a stream.
        while self.advance(driver, status, is_disabled) {
            progress = true;
            wants = self.wants_device(driver, is_disabled);
            status = self.entry.report(wants, self.used_at_end(driver));
        }
        let still = self.wants_device(driver, is_disabled);
        let mut last = status;
        if still.is_some() != wants.is_some() {
            last = self.entry.report(still, self.used_at_end(driver));
        }
        if still.is_none() && self.running.is_none() {
            // Unused device time is lost: a later command cannot have started before its submission.
            self.consumed = last.used;
        }
        if progress {
            driver.notify_progress(self.context);
        }
        self.next_wakeup(driver, last, still.is_some())
    }

    fn next_wakeup(&self, driver: &Driver, status: RunlistStatus, wants: bool) -> u64 {
        let mut until = status.now + MAX_SLEEP;
        if wants {
            until = match (status.switched_at, &self.running) {
                (Some(switched_at), Some(running)) => switched_at.max(status.now) + running.left,
                (Some(switched_at), None) => switched_at.max(status.now),
                (None, _) => status.next_switch.unwrap_or(u64::MAX).min(status.now + OWNER_CHECK_INTERVAL),
            };
        }
        let stalled = |command: &Command| matches!(command.work, Work::WaitValue { .. });
        if heads(driver, self.context).any(|(_, command)| stalled(command)) {
            until = until.min(status.now + MEMORY_WAIT_POLL);
        }
        until
    }

    /// Since when there has been work for the device, if there is any.
    fn wants_device(&self, driver: &Driver, is_disabled: bool) -> Option<u64> {
        if is_disabled {
            return None;
        }
        if self.running.is_some() {
            return Some(u64::MAX);
        }
        let ready = ready(driver, self.context).filter(|(_, command)| needs_compute_engine(&command.work));
        // A command that waited for something else is ready since an unknown time: count from now.
        let since = |stream: Handle, command: &Command| {
            if command.waited() {
                u64::MAX
            } else {
                command.at.max(driver.streams[&stream].host_function_ended_at)
            }
        };
        ready.map(|(stream, command)| since(stream, command)).min()
    }

    /// What [`RunlistStatus::used`] will be when everything that needs no host has run.
    fn used_at_end(&self, driver: &Driver) -> u64 {
        let mut left = 0_u64;
        for (handle, stream) in driver.streams.iter().filter(|(_, stream)| stream.context == self.context) {
            for (place, command) in stream.queue.iter().enumerate() {
                left = left.saturating_add(match &command.work {
                    // It runs until kernels of other devices run too.
                    Work::Kernel { effect, .. } if effect.waits(&driver.memory) => return u64::MAX,
                    Work::Kernel { ns, .. } => match &self.running {
                        Some(running) if place == 0 && running.stream == *handle => running.left,
                        _ => *ns,
                    },
                    Work::Host { .. } | Work::Await(_) | Work::WaitValue { .. } => break,
                    _ => 0,
                });
            }
        }
        self.consumed.saturating_add(left)
    }

    /// Performs one round. Returns whether anything was completed or started.
    fn advance(&mut self, driver: &mut DriverGuard, status: RunlistStatus, is_disabled: bool) -> bool {
        let mut done = self.run_kernel(driver, status);
        if is_disabled {
            return done;
        }
        let has_device = status.switched_at.is_some_and(|switched_at| switched_at <= status.now)
            || status.used > self.consumed;
        let ready: HashSet<_> = ready(driver, self.context)
            .filter(|(_, command)| !matches!(command.work, Work::Kernel { .. }))
            .filter(|(_, command)| has_device || !needs_compute_engine(&command.work))
            .map(|(stream, _)| stream)
            .collect();
        for stream in ready {
            done |= self.perform(driver, stream, status.now - self.unused(status));
        }
        if self.running.is_none() && has_device {
            done |= self.start_kernel(driver, status);
        }
        done
    }

    /// How much of the time that the context had the device is not consumed yet.
    fn unused(&self, status: RunlistStatus) -> u64 {
        status.used.saturating_sub(self.consumed).min(status.now)
    }

    fn run_kernel(&mut self, driver: &mut DriverGuard, status: RunlistStatus) -> bool {
        let unused = self.unused(status);
        let Some(running) = &mut self.running else { return false };
        let taken = running.left.min(unused);
        running.left -= taken;
        self.consumed += taken;
        if running.left > 0 {
            return false;
        }
        let stream = running.stream;
        let effect =
            driver.streams.get(&stream).and_then(|its| its.queue.front()).map(|command| &command.work);
        if let Some(Work::Kernel { effect, .. }) = effect
            && effect.waits(&driver.memory)
        {
            running.left = MEETING_POLL;
            return false;
        }
        self.running = None;
        if let Some(Work::Kernel { effect, .. }) = effect.cloned() {
            if let Err(code) = effect.apply(&driver.memory) {
                fail(driver, self.context, code);
                return true;
            }
            finish(driver, stream);
        }
        true
    }

    fn start_kernel(&mut self, driver: &Driver, status: RunlistStatus) -> bool {
        let kernels = ready(driver, self.context).filter_map(|(stream, command)| match command.work {
            Work::Kernel { ns, .. } => {
                let its = &driver.streams[&stream];
                Some((its.priority, command.at.max(its.host_function_ended_at), stream, ns))
            }
            _ => None,
        });
        let Some((_, at, stream, left)) = kernels.min() else { return false };
        // It cannot have started before its submission.
        let unused = self.unused(status).min(status.now.saturating_sub(at));
        self.consumed = status.used - unused;
        self.running = Some(Running { stream, left });
        let begun = driver.streams.get(&stream).and_then(|its| its.queue.front());
        if let Some(Command { work: Work::Kernel { effect, .. }, .. }) = begun {
            effect.begin(&driver.memory);
        }
        true
    }

    /// Performs a command that takes no device time. Returns whether it was performed.
    fn perform(&self, driver: &mut DriverGuard, stream: Handle, at: u64) -> bool {
        let Driver { streams, memory, .. } = &mut **driver;
        let Some(command) = streams.get_mut(&stream).and_then(|its| its.queue.front_mut()) else {
            return false;
        };
        let number = command.number;
        match &mut command.work {
            Work::Kernel { .. } => return false,
            Work::Host { function, data, started } => {
                *started = true;
                let (function, data) = (*function, *data);
                let context = self.context;
                let thread = std::thread::Builder::new().name("standin-cuda-host".to_owned());
                let call = move || {
                    // SAFETY: the program guarantees that its function can be called when the stream reaches it.
                    unsafe { function(data as *mut _) };
                    let Ok(mut driver) = crate::driver::driver() else { return };
                    if driver.streams.get(&stream).is_some_and(|its| its.done + 1 == number) {
                        finish(&mut driver, stream);
                        if let Some(its) = driver.streams.get_mut(&stream) {
                            its.host_function_ended_at = now();
                        }
                        driver.notify_progress(0);
                    }
                };
                if without_signals(|| thread.spawn(call)).is_err() {
                    fail(driver, context, Code::ERROR_OUT_OF_MEMORY);
                }
                return true;
            }
            Work::Copy { to, from, length } => {
                // SAFETY: the submission checked the device's side, and the program guarantees the host's.
                unsafe { std::ptr::copy(*from as *const u8, *to as *mut u8, *length) };
            }
            Work::Put { to, bytes } => {
                // SAFETY: as above for the destination; the source is owned by the command.
                unsafe { std::ptr::copy(bytes.as_ptr(), *to as *mut u8, bytes.len()) };
            }
            Work::Set { to, value, count } => {
                for n in 0..*count {
                    // SAFETY: as above.
                    unsafe { (*to as *mut u32).add(n).write_volatile(*value) };
                }
            }
            Work::Record(recording) => recording.complete(at),
            Work::WriteValue { address, .. } | Work::WaitValue { address, .. }
                if !memory.reaches(*address, 4) =>
            {
                fail(driver, self.context, Code::ERROR_ILLEGAL_ADDRESS);
                return true;
            }
            Work::WriteValue { address, value } => stream_memory_ops::write(*address, *value),
            Work::Await(_) | Work::WaitValue { .. } | Work::GraphAllocation { .. } => {}
        }
        finish(driver, stream);
        true
    }
}

/// The command at the head of each stream of a context.
fn heads(driver: &Driver, context: Handle) -> impl Iterator<Item = (Handle, &Command)> {
    let its = driver.streams.iter().filter(move |(_, stream)| stream.context == context);
    its.filter_map(|(handle, stream)| Some((*handle, stream.queue.front()?)))
}

/// The commands at the heads that can run now.
fn ready(driver: &Driver, context: Handle) -> impl Iterator<Item = (Handle, &Command)> {
    heads(driver, context).filter(|(_, command)| {
        let free = match &command.work {
            Work::Host { started, .. } => !started,
            Work::Await(recording) => recording.completed_at().is_some(),
            Work::WaitValue { address, value, how } => {
                !driver.memory.reaches(*address, 4) || stream_memory_ops::is_satisfied(*address, *value, *how)
            }
            _ => true,
        };
        free && command.after.iter().all(|(stream, number)| driver.has_done(*stream, *number))
    })
}

/// Copies run on the copy engines and host functions on the host; everything else needs the compute engine.
fn needs_compute_engine(work: &Work) -> bool {
    !matches!(work, Work::Copy { .. } | Work::Put { .. } | Work::Set { .. } | Work::Host { .. })
}

/// Removes the completed command at the head of a stream.
fn finish(driver: &mut Driver, stream: Handle) {
    let Some(its) = driver.streams.get_mut(&stream) else { return };
    if let Some(command) = its.queue.pop_front() {
        its.done = command.number;
    }
    if its.is_destroyed && its.is_idle() {
        driver.streams.remove(&stream);
    }
}

/// Fails a context with a sticky error: its pending work is dropped.
fn fail(driver: &mut Driver, context: Handle, code: Code) {
    if let Some(context) = driver.contexts.get_mut(&context) {
        context.failure = Some(code);
    }
    for stream in driver.streams.values_mut().filter(|stream| stream.context == context) {
        for command in stream.queue.drain(..) {
            if let Work::Record(recording) = command.work {
                recording.complete(1);
            }
        }
        stream.done = stream.submitted;
    }
}

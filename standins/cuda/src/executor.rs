//! The device at work: one thread per context that does what the context's streams hold.
//!
//! ```text
//!   streams ─heads─► ready? ─copies, host functions─► done at once, whoever has the device
//!                      └─kernels, records, waits, writes─► done while the context has the device (turns.rs)
//! ```
//!
//! A kernel takes the time it was launched with off the time the context has had the device. So its length is right
//! whenever the host lets this thread run, and what interrupts it costs it nothing but time.

use std::collections::HashSet;
use std::sync::Arc;

use crate::code::Code;
use crate::shared::{Seat, Turn, now};
use crate::stream::{Command, Work};
use crate::waits;
use crate::world::{Handle, Held, World, world};

/// How often a stream that waits for a word in memory looks at it.
const POLL: u64 = 50_000;
/// How often somebody who waits for the device looks whether its owner still lives.
const PATIENCE: u64 = 1_000_000;
const FOREVER: u64 = 3_600_000_000_000;

/// Starts the executor of a context.
pub(crate) fn start(context: Handle, seat: Arc<Seat>) -> Result<(), Code> {
    let thread = std::thread::Builder::new().name("standin-cuda".to_owned());
    let executor = Executor { context, seat, running: None, consumed: 0 };
    without_signals(|| thread.spawn(move || executor.run())).map(drop).map_err(|_| Code::ERROR_OUT_OF_MEMORY)
}

/// The program's signals are not for threads of ours.
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
    /// How much of its time is left.
    left: u64,
}

struct Executor {
    context: Handle,
    seat: Arc<Seat>,
    running: Option<Running>,
    /// How much of the time that the context had the device was used, or let go by.
    consumed: u64,
}

/// A device whose executor has failed would never answer again: better to end, and be seen.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

impl Executor {
    fn run(mut self) {
        let _bomb = Bomb;
        if let Some(least) = std::num::NonZeroU64::new(1) {
            let _ = rustix::thread::set_current_timer_slack(Some(least));
        }
        loop {
            let heard = self.seat.heard();
            let Ok(mut world) = world() else { return };
            // Another may have its handle by now.
            if !world.contexts.get(&self.context).is_some_and(|its| Arc::ptr_eq(&its.seat, &self.seat)) {
                return;
            }
            let until = self.step(&mut world);
            if let Some(context) = world.contexts.get_mut(&self.context) {
                context.asleep = true;
            }
            drop(world);
            self.seat.sleep(heard, until);
        }
    }

    /// Does what can be done now. Answers when there will be something again.
    fn step(&mut self, world: &mut Held) -> u64 {
        let Some(context) = world.contexts.get_mut(&self.context) else { return 0 };
        context.asleep = false;
        let suspended = context.suspended;
        let mut wants = self.wants_device(world, suspended);
        let mut turn = self.seat.look(wants);
        let mut progress = false;
        // The device may change hands between any two commands of a stream.
        while self.advance(world, turn, suspended) {
            progress = true;
            wants = self.wants_device(world, suspended);
            turn = self.seat.look(wants);
        }
        let still = self.wants_device(world, suspended);
        let mut last = turn;
        if still.is_some() != wants.is_some() {
            last = self.seat.look(still);
        }
        if still.is_none() && self.running.is_none() {
            // What was not used is lost: nothing that comes later can have begun before it came.
            self.consumed = last.used;
        }
        if progress {
            world.mark_busy(self.context);
        }
        self.next_look(world, last, still.is_some())
    }

    fn next_look(&self, world: &World, turn: Turn, wants: bool) -> u64 {
        let mut until = turn.now + FOREVER;
        if wants {
            until = match (turn.begins, &self.running) {
                (Some(begins), Some(running)) => begins.max(turn.now) + running.left,
                (Some(begins), None) => begins.max(turn.now),
                (None, _) => turn.next_change.unwrap_or(u64::MAX).min(turn.now + PATIENCE),
            };
        }
        let stalled = |command: &Command| matches!(command.work, Work::WaitValue { .. });
        if heads(world, self.context).any(|(_, command)| stalled(command)) {
            until = until.min(turn.now + POLL);
        }
        until
    }

    /// Since when there has been something to run, if there is.
    fn wants_device(&self, world: &World, suspended: bool) -> Option<u64> {
        if suspended {
            return None;
        }
        if self.running.is_some() {
            return Some(u64::MAX);
        }
        let ready = ready(world, self.context).filter(|(_, command)| needs_device(&command.work));
        // What waited for something else may be ready since later than it came: then it is since now.
        let since = |stream: Handle, command: &Command| {
            if command.waited() { u64::MAX } else { command.at.max(world.streams[&stream].held_until) }
        };
        ready.map(|(stream, command)| since(stream, command)).min()
    }

    /// One round. Answers whether anything was done.
    fn advance(&mut self, world: &mut Held, turn: Turn, suspended: bool) -> bool {
        let mut done = self.run_kernel(world, turn);
        if suspended {
            return done;
        }
        let has_device = turn.begins.is_some_and(|begins| begins <= turn.now) || turn.used > self.consumed;
        let ready: HashSet<_> = ready(world, self.context)
            .filter(|(_, command)| !matches!(command.work, Work::Kernel { .. }))
            .filter(|(_, command)| has_device || !needs_device(&command.work))
            .map(|(stream, _)| stream)
            .collect();
        for stream in ready {
            done |= self.perform(world, stream, turn.now - self.unused(turn));
        }
        if self.running.is_none() && has_device {
            done |= self.begin_kernel(world, turn);
        }
        done
    }

    /// How much of the time that the context had the device can still be used.
    fn unused(&self, turn: Turn) -> u64 {
        turn.used.saturating_sub(self.consumed).min(turn.now)
    }

    fn run_kernel(&mut self, world: &mut Held, turn: Turn) -> bool {
        let unused = self.unused(turn);
        let Some(running) = &mut self.running else { return false };
        let taken = running.left.min(unused);
        running.left -= taken;
        self.consumed += taken;
        if running.left > 0 {
            return false;
        }
        let stream = running.stream;
        self.running = None;
        let effect =
            world.streams.get(&stream).and_then(|its| its.queue.front()).map(|command| &command.work);
        if let Some(Work::Kernel { effect, .. }) = effect.cloned() {
            if let Err(code) = effect.apply(&world.memory) {
                fail(world, self.context, code);
                return true;
            }
            finish(world, stream);
        }
        true
    }

    fn begin_kernel(&mut self, world: &World, turn: Turn) -> bool {
        let kernels = ready(world, self.context).filter_map(|(stream, command)| match command.work {
            Work::Kernel { ns, .. } => {
                let its = &world.streams[&stream];
                Some((its.priority, command.at.max(its.held_until), stream, ns))
            }
            _ => None,
        });
        let Some((_, at, stream, left)) = kernels.min() else { return false };
        // It cannot have begun before it came.
        let unused = self.unused(turn).min(turn.now.saturating_sub(at));
        self.consumed = turn.used - unused;
        self.running = Some(Running { stream, left });
        true
    }

    /// Does what takes no time. Answers whether it was done.
    fn perform(&self, world: &mut Held, stream: Handle, at: u64) -> bool {
        let World { streams, memory, .. } = &mut **world;
        let Some(command) = streams.get_mut(&stream).and_then(|its| its.queue.front_mut()) else {
            return false;
        };
        let number = command.number;
        match &mut command.work {
            Work::Kernel { .. } => return false,
            Work::Host { function, data, begun } => {
                *begun = true;
                let (function, data) = (*function, *data);
                let context = self.context;
                let thread = std::thread::Builder::new().name("standin-cuda-host".to_owned());
                let call = move || {
                    // SAFETY: the program vouches for its own function, whenever the stream comes to it.
                    unsafe { function(data as *mut _) };
                    let Ok(mut world) = crate::world::world() else { return };
                    if world.streams.get(&stream).is_some_and(|its| its.done + 1 == number) {
                        finish(&mut world, stream);
                        if let Some(its) = world.streams.get_mut(&stream) {
                            its.held_until = now();
                        }
                        world.mark_busy(0);
                    }
                };
                if without_signals(|| thread.spawn(call)).is_err() {
                    fail(world, context, Code::ERROR_OUT_OF_MEMORY);
                }
                return true;
            }
            Work::Copy { to, from, length } => {
                // SAFETY: the device's side was found to be its own, and the program vouches for the other.
                unsafe { std::ptr::copy(*from as *const u8, *to as *mut u8, *length) };
            }
            Work::Put { to, bytes } => {
                // SAFETY: as above, for where it goes; the bytes are ours.
                unsafe { std::ptr::copy(bytes.as_ptr(), *to as *mut u8, bytes.len()) };
            }
            Work::Set { to, value, count } => {
                for n in 0..*count {
                    // SAFETY: as above.
                    unsafe { (*to as *mut u32).add(n).write_volatile(*value) };
                }
            }
            Work::Record(mark) => mark.reach(at),
            Work::WriteValue { address, .. } | Work::WaitValue { address, .. }
                if !memory.reaches(*address, 4) =>
            {
                fail(world, self.context, Code::ERROR_ILLEGAL_ADDRESS);
                return true;
            }
            Work::WriteValue { address, value } => waits::write(*address, *value),
            Work::Await(_) | Work::WaitValue { .. } => {}
        }
        finish(world, stream);
        true
    }
}

/// What the streams of a context would do next.
fn heads(world: &World, context: Handle) -> impl Iterator<Item = (Handle, &Command)> {
    let its = world.streams.iter().filter(move |(_, stream)| stream.context == context);
    its.filter_map(|(handle, stream)| Some((*handle, stream.queue.front()?)))
}

/// What they can do now.
fn ready(world: &World, context: Handle) -> impl Iterator<Item = (Handle, &Command)> {
    heads(world, context).filter(|(_, command)| {
        let free = match &command.work {
            Work::Host { begun, .. } => !begun,
            Work::Await(mark) => mark.reached().is_some(),
            Work::WaitValue { address, value, how } => {
                !world.memory.reaches(*address, 4) || waits::has_come(*address, *value, *how)
            }
            _ => true,
        };
        free && command.after.iter().all(|(stream, number)| world.has_done(*stream, *number))
    })
}

/// Copies have engines of their own, and host functions the host.
fn needs_device(work: &Work) -> bool {
    !matches!(work, Work::Copy { .. } | Work::Put { .. } | Work::Set { .. } | Work::Host { .. })
}

/// A stream has done what was at its head.
fn finish(world: &mut World, stream: Handle) {
    let Some(its) = world.streams.get_mut(&stream) else { return };
    if let Some(command) = its.queue.pop_front() {
        its.done = command.number;
    }
    if its.doomed && its.is_idle() {
        world.streams.remove(&stream);
    }
}

/// A context is no good any more: nothing of what it was given is done.
fn fail(world: &mut World, context: Handle, code: Code) {
    if let Some(context) = world.contexts.get_mut(&context) {
        context.failure = Some(code);
    }
    for stream in world.streams.values_mut().filter(|stream| stream.context == context) {
        for command in stream.queue.drain(..) {
            if let Work::Record(mark) = command.work {
                mark.reach(1);
            }
        }
        stream.done = stream.submitted;
    }
}

//! Queues: a thread for each runs its commands in order on a queue of the simulated device.

use std::ffi::c_void;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use xsched_core::HwQueue as _;
use xsched_sim::SimQueue;

use crate::event::Event;
use crate::list::{Action, Command, List};
use crate::object::{self, Handle, Object};
use crate::{Code, DEVICE_LOST, INVALID_ARGUMENT, NOT_READY, OUT_OF_MEMORY, SUCCESS, device, to_code};

/// `ze_command_queue_desc_t`.
#[repr(C)]
pub(crate) struct Description {
    structure: u32,
    next: *const c_void,
    ordinal: u32,
    index: u32,
    flags: u32,
    mode: u32,
    priority: u32,
}

const SYNCHRONOUS: u32 = 1;

pub(crate) struct Queue {
    commands: Sender<Command>,
    progress: Arc<Progress>,
    is_synchronous: bool,
}

/// How many commands were submitted and how many have completed.
#[derive(Default)]
struct Progress {
    counts: Mutex<(u64, u64)>,
    changed: Condvar,
}

impl Progress {
    fn counts(&self) -> MutexGuard<'_, (u64, u64)> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Object for Queue {
    const TAG: u64 = u64::from_le_bytes(*b"ze queue");
}

impl Queue {
    /// A queue with its thread, which ends when the queue is destroyed and its commands have completed.
    ///
    /// # Safety
    /// The description is null or valid.
    pub(crate) unsafe fn new(description: *const Description) -> Result<Self, Code> {
        // SAFETY: the caller guarantees it.
        let description = unsafe { description.as_ref() }.ok_or(INVALID_ARGUMENT)?;
        let sim = device::device()?.queue().map_err(|_| OUT_OF_MEMORY)?;
        let (commands, received) = channel();
        let progress = Arc::<Progress>::default();
        let reported = Arc::clone(&progress);
        let thread = std::thread::Builder::new().name("levelzero".to_owned());
        thread.spawn(move || run(&sim, &received, &reported)).map_err(|_| OUT_OF_MEMORY)?;
        Ok(Self { commands, progress, is_synchronous: description.mode == SYNCHRONOUS })
    }

    /// Submits commands, and waits for them if the queue is synchronous.
    pub(crate) fn submit(&self, commands: Vec<Command>) -> Result<(), Code> {
        {
            // Held while they are sent, so that the count never lags behind the queue.
            let mut counts = self.progress.counts();
            for command in commands {
                counts.0 += 1;
                self.commands.send(command).map_err(|_| DEVICE_LOST)?;
            }
        }
        if self.is_synchronous { self.wait(u64::MAX) } else { Ok(()) }
    }

    fn wait(&self, timeout: u64) -> Result<(), Code> {
        let counts = self.progress.counts();
        let end = counts.0;
        // The longest timeout is 584 years.
        let timeout = Duration::from_nanos(timeout);
        let waited = self.progress.changed.wait_timeout_while(counts, timeout, |counts| counts.1 < end);
        if waited.unwrap_or_else(PoisonError::into_inner).1.timed_out() { Err(NOT_READY) } else { Ok(()) }
    }
}

fn run(sim: &SimQueue, commands: &Receiver<Command>, progress: &Progress) {
    for command in commands {
        for event in &command.waits {
            event.object.wait(u64::MAX);
        }
        apply(sim, &command.action);
        if let Some(event) = command.signal {
            event.object.set(true);
        }
        progress.counts().1 += 1;
        progress.changed.notify_all();
    }
}

fn apply(sim: &SimQueue, action: &Action) {
    match action {
        Action::Nothing => {}
        Action::Kernel(launch) => {
            // A device that has removed the process runs nothing.
            if sim.launch(launch.duration()).is_ok() && sim.synchronize().is_ok() {
                launch.apply();
            }
        }
        Action::Copy { to, from, size } => {
            let to = std::ptr::with_exposed_provenance_mut::<u8>(*to);
            // SAFETY: the program keeps both until the command has completed.
            unsafe { to.copy_from(std::ptr::with_exposed_provenance(*from), *size) };
        }
        Action::Fill { to, pattern, size } => {
            let to = std::ptr::with_exposed_provenance_mut::<u8>(*to);
            for (n, byte) in (0..*size).zip(pattern.iter().cycle()) {
                // SAFETY: as above.
                unsafe { to.add(n).write(*byte) };
            }
        }
        Action::Reset(event) => event.object.set(false),
    }
}

type QueueHandle = *const Handle<Queue>;

pub(crate) unsafe extern "C" fn create(
    _context: *const c_void,
    _device: *const c_void,
    description: *const Description,
    out: *mut QueueHandle,
) -> Code {
    // SAFETY: the program passes a description, and room for a handle.
    to_code(unsafe { Queue::new(description).and_then(|queue| object::create(out, queue)) })
}

pub(crate) unsafe extern "C" fn destroy(queue: QueueHandle) -> Code {
    // SAFETY: the program passes a handle from `create`.
    to_code(unsafe { object::destroy(queue) })
}

pub(crate) unsafe extern "C" fn execute(
    queue: QueueHandle,
    count: u32,
    lists: *const *const Handle<List>,
    fence: *const Handle<Event>,
) -> Code {
    // SAFETY: the program passes handles from the functions that create them, and a list of that length.
    let arguments =
        unsafe { object::get(queue).and_then(|queue| Ok((queue, object::get_all(count, lists)?))) };
    to_code(arguments.and_then(|(queue, lists)| {
        let mut commands = Vec::new();
        for list in lists {
            commands.extend(list.object.recorded()?);
        }
        if !fence.is_null() {
            // SAFETY: as above.
            let signal = Some(unsafe { object::get(fence) }?);
            commands.push(Command { waits: Vec::new(), action: Action::Nothing, signal });
        }
        queue.object.submit(commands)
    }))
}

pub(crate) unsafe extern "C" fn synchronize(queue: QueueHandle, timeout: u64) -> Code {
    // SAFETY: the program passes a handle from `create`.
    to_code(unsafe { object::get(queue) }.and_then(|queue| queue.object.wait(timeout)))
}

/// A fence is an event that the end of an execution signals.
pub(crate) unsafe extern "C" fn create_fence(
    queue: QueueHandle,
    _description: *const c_void,
    out: *mut *const Handle<Event>,
) -> Code {
    // SAFETY: the program passes a handle from `create`, and room for a handle.
    match unsafe { object::get(queue).and_then(|_| object::create(out, Event::default())) } {
        Ok(()) => SUCCESS,
        Err(code) => code,
    }
}

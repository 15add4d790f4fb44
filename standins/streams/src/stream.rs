//! A stream: a thread runs its commands in order on a queue of the simulated device.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use xsched_core::HwQueue as _;
use xsched_sim::{SimDevice, SimQueue};

/// A command. Addresses in it are the program's, which keeps the memory until the command has completed.
type Command = Box<dyn FnOnce(&SimQueue) + Send>;

/// A stream with its thread, which ends when the stream is dropped and its commands have completed.
pub struct StreamThread {
    commands: Sender<Command>,
    progress: Arc<Progress>,
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

impl StreamThread {
    /// A stream on a device, with a thread of this name. None if the device has no queue left.
    #[must_use]
    pub fn new(device: &SimDevice, name: &str) -> Option<Self> {
        let sim = device.queue().ok()?;
        let (commands, received) = channel();
        let progress = Arc::<Progress>::default();
        let reported = Arc::clone(&progress);
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread.spawn(move || run(&sim, &received, &reported)).ok()?;
        Some(Self { commands, progress })
    }

    /// Submits a command. None if the thread has ended.
    pub fn submit(&self, command: impl FnOnce(&SimQueue) + Send + 'static) -> Option<()> {
        // Held while it is sent, so that the count never lags behind the stream.
        let mut counts = self.progress.counts();
        counts.0 += 1;
        self.commands.send(Box::new(command)).ok()
    }

    /// Waits until the commands submitted so far have completed, without a limit if the timeout in milliseconds is negative. Returns
    /// whether they have.
    pub fn wait(&self, timeout: i32) -> bool {
        let timeout = u64::try_from(timeout).map_or(Duration::MAX, Duration::from_millis);
        let counts = self.progress.counts();
        let end = counts.0;
        let waited = self.progress.changed.wait_timeout_while(counts, timeout, |counts| counts.1 < end);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

/// Runs something on the simulated device for this time. False on a device that has removed the process, which runs nothing.
#[must_use]
pub fn occupy(sim: &SimQueue, duration: Duration) -> bool {
    sim.launch(duration).is_ok() && sim.synchronize().is_ok()
}

fn run(sim: &SimQueue, commands: &Receiver<Command>, progress: &Progress) {
    for command in commands {
        command(sim);
        progress.counts().1 += 1;
        progress.changed.notify_all();
    }
}

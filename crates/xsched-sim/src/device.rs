//! The device as one process sees it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use xsched_core::{Capabilities, DeviceId, Nanos};

use crate::config::Config;
use crate::error::{AttachError, SimError};
use crate::lock::LockOwner;
use crate::model::{Model, QueueError, SlotId, Span, Usage};
use crate::notifier::Notification;
use crate::process::{Process, current_pid};
use crate::queue::SimQueue;
use crate::segment::{Guard, Segment};

/// How often the owner of a context with work is checked for being alive, and how long a waiting thread sleeps at most
/// while another context has work.
const OWNER_CHECK_INTERVAL: Nanos = Nanos::from_millis(10);
/// The minimum time between two such checks, each of which takes about 10 us.
const MIN_OWNER_CHECK_GAP: Nanos = Nanos::from_millis(1);
/// How long a waiting thread sleeps at most on an uncontended device: bounds the delay of a missed notification.
const MAX_SLEEP: Nanos = Nanos::from_secs(1);

/// A simulated accelerator, attached to this process as one context. Clones share the attachment, which ends when the
/// last clone and the last of their queues are dropped.
///
/// ```
/// use std::time::Duration;
/// use xsched_core::HwQueue;
/// use xsched_sim::{Config, SimDevice};
///
/// let device = SimDevice::create(&Config::default())?;
/// let queue = device.queue()?;
/// queue.launch(Duration::from_micros(100))?;
/// let marker = queue.mark()?;
/// queue.synchronize()?;
/// assert_eq!(queue.progress().marker, marker);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SimDevice {
    attachment: Arc<Attachment>,
}

impl SimDevice {
    /// Creates a device in anonymous memory. Other processes attach through [`SimDevice::fd`].
    pub fn create(config: &Config) -> Result<Self, AttachError> {
        Self::attach(Segment::create(config)?, &config.name())
    }

    /// Creates a device that other processes open by its path, where no file may exist yet. `/dev/shm` and
    /// `$XDG_RUNTIME_DIR` are suitable directories. The caller removes the file when it is no longer needed.
    pub fn create_at(path: impl AsRef<Path>, config: &Config) -> Result<Self, AttachError> {
        let path = path.as_ref();
        Self::attach(Segment::create_at(path, config)?, &path.display().to_string())
    }

    /// Attaches to the device that another process created at `path`.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, AttachError> {
        let path = path.as_ref();
        Self::attach(Segment::open(path)?, &path.display().to_string())
    }

    /// Attaches to the device behind a descriptor that came from [`SimDevice::fd`] of another process.
    pub fn from_fd(fd: OwnedFd) -> Result<Self, AttachError> {
        let what = "the device behind the descriptor";
        Self::attach(Segment::attach(fd, what)?, what)
    }

    fn attach(segment: Segment, what: &str) -> Result<Self, AttachError> {
        let process = Process::current();
        let lock_owner = LockOwner::new(process);
        let mut guard = segment.lock(&lock_owner);
        let config = guard.config();
        let context = guard.attach(process.pid, process.started).or_else(|| {
            remove_dead_contexts(&mut guard, process);
            guard.attach(process.pid, process.started)
        });
        drop(guard);
        let context = context.ok_or_else(|| AttachError::Full { what: what.to_owned() })?;
        let capabilities = config.capabilities();
        let attachment = Attachment { segment, lock_owner, process, context, config, capabilities };
        Ok(Self { attachment: Arc::new(attachment) })
    }

    /// The descriptor to hand to another process; closed on exec unless the flag is cleared.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.attachment.segment.fd()
    }

    /// Opens a hardware queue.
    pub fn queue(&self) -> Result<SimQueue, SimError> {
        let mut guard = self.attachment.enter()?;
        let id = guard.open_queue(self.attachment.context).or_else(|| {
            // Queues of processes that exited without closing them, and that have no work for which they would be checked.
            remove_dead_contexts(&mut guard, self.attachment.process);
            guard.open_queue(self.attachment.context)
        });
        drop(guard);
        let id = id.ok_or_else(|| SimError::TooManyQueues { device: self.attachment.config.name() })?;
        Ok(SimQueue::new(Arc::clone(&self.attachment), id))
    }

    /// The device's id.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.attachment.config.device
    }

    /// The configuration that the device was created with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.attachment.config
    }

    /// The preemption levels of the device.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        &self.attachment.capabilities
    }

    /// The number of this process's context in [`SimDevice::usage`] and in the timeline.
    #[must_use]
    pub fn context(&self) -> u32 {
        self.attachment.context.index
    }

    /// How much device time each context has used so far. Checks every attached process, so not for a hot path.
    pub fn usage(&self) -> Result<Vec<Usage>, SimError> {
        let mut guard = self.attachment.enter()?;
        remove_dead_contexts(&mut guard, self.attachment.process);
        Ok(guard.usage())
    }

    /// A reader of the device's timeline, which starts at the oldest span that is kept.
    #[must_use]
    pub fn timeline(&self) -> Timeline {
        Timeline { attachment: Arc::clone(&self.attachment), cursor: 0, dropped: 0 }
    }
}

impl AsFd for SimDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

impl std::fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimDevice").field("config", self.config()).finish_non_exhaustive()
    }
}

/// A reader of the device's spans. Each reader has its own cursor and sees every span.
pub struct Timeline {
    attachment: Arc<Attachment>,
    cursor: u64,
    dropped: u64,
}

impl Timeline {
    /// Appends the spans that have ended since the last call to `out`, in order of time.
    pub fn drain(&mut self, out: &mut Vec<Span>) -> Result<(), SimError> {
        let guard = self.attachment.enter()?;
        let (cursor, dropped) = guard.log().read_since(self.cursor, out);
        self.cursor = cursor;
        self.dropped += dropped;
        Ok(())
    }

    /// How many spans were overwritten before this reader read them.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// What a waiting thread learns from the model about the condition that it waits for.
pub(crate) enum WaitStatus {
    /// The condition holds.
    Reached,
    /// It does not hold yet, and cannot before this time unless a process submits, restores or removes work.
    NotBefore(Nanos),
    /// It depends on a marker that has not been placed.
    MarkerNotPlaced,
}

/// The attachment of one process to a device: one context.
pub(crate) struct Attachment {
    pub(crate) segment: Segment,
    pub(crate) lock_owner: LockOwner,
    process: Process,
    context: SlotId,
    config: Config,
    pub(crate) capabilities: Capabilities,
}

impl Attachment {
    /// Takes the lock, advances the model to the present, and checks one context for a dead owner if that is due.
    pub(crate) fn enter(&self) -> Result<Guard<'_>, SimError> {
        let caller = current_pid();
        if caller != self.process.pid {
            return Err(SimError::Forked { device: self.config.name(), owner: self.process.pid, caller });
        }
        let mut guard = self.segment.lock(&self.lock_owner);
        if let Some(context) = guard.next_owner_check(OWNER_CHECK_INTERVAL, MIN_OWNER_CHECK_GAP) {
            remove_if_dead(&mut guard, context, self.process);
        }
        if guard.is_attached(self.context) { Ok(guard) } else { Err(self.removed()) }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Whether the caller is the process that attached, and not its child.
    pub(crate) fn is_attached_process(&self) -> bool {
        current_pid() == self.process.pid
    }

    fn removed(&self) -> SimError {
        SimError::Gone { device: self.config.name() }
    }

    /// Runs an operation on the model that can fail only because the queue has been removed.
    pub(crate) fn with<T>(
        &self,
        operation: impl FnOnce(&mut Guard<'_>) -> Result<T, QueueError>,
    ) -> Result<T, SimError> {
        let mut guard = self.enter()?;
        operation(&mut guard).map_err(|_| self.removed())
    }

    /// Sleeps until `check` returns `Reached` (returns true) or the deadline passes (returns false).
    ///
    /// Nothing changes before the next event, and the condition does not hold before the time that `check` returns. So
    /// the thread sleeps until the later of the two, unless it is notified.
    pub(crate) fn wait(
        &self,
        deadline: Nanos,
        mut check: impl FnMut(&mut Model) -> Result<WaitStatus, QueueError>,
    ) -> Result<bool, SimError> {
        loop {
            let mut guard = self.enter()?;
            let (earliest, on_marker) = match check(&mut guard).map_err(|_| self.removed())? {
                WaitStatus::Reached => return Ok(true),
                WaitStatus::NotBefore(time) => (time, time == Nanos::MAX),
                WaitStatus::MarkerNotPlaced => (Nanos::MAX, true),
            };
            let now = guard.now();
            if now >= deadline {
                return Ok(false);
            }
            let event = guard.next_event().unwrap_or(Nanos::MAX);
            let contended =
                guard.live_contexts().any(|c| c != self.context.index && guard.context_has_work(c));
            let wake = now + if contended { OWNER_CHECK_INTERVAL } else { MAX_SLEEP };
            let seen = guard.register_sleeper(on_marker);
            drop(guard);
            self.segment.sleep(seen, earliest.max(event).min(deadline).min(wake));
        }
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // After fork, the child has a copy of this attachment, but the context belongs to the parent.
        if let Ok(mut guard) = self.enter() {
            guard.remove_context(self.context.index);
            guard.notify(Notification::StateChanged);
        }
    }
}

/// Removes every context that belongs to a dead process.
fn remove_dead_contexts(guard: &mut Guard<'_>, caller: Process) {
    for context in guard.live_contexts() {
        remove_if_dead(guard, context, caller);
    }
}

fn remove_if_dead(guard: &mut Guard<'_>, context: u32, caller: Process) {
    let (pid, started) = guard.owner(context);
    let owner = Process { pid, started };
    if owner != caller && !owner.is_alive() {
        guard.remove_context(context);
        guard.notify(Notification::StateChanged);
    }
}

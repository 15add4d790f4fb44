//! The device as one process sees it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use xsched_core::{Capabilities, DeviceId, Nanos};

use crate::config::Config;
use crate::error::{AttachError, SimError};
use crate::lock::Locker;
use crate::model::{Model, Name, Refusal, Span, Usage};
use crate::process::{Process, current_pid};
use crate::queue::SimQueue;
use crate::segment::{Guard, Segment};
use crate::sleep::Ring;

/// How often the owner of a context with work is looked after, and how long who sleeps trusts that it lives.
const INSPECTION: Nanos = Nanos::from_millis(10);
/// The least time between two such looks, each of which takes some ten microseconds.
const PAUSE: Nanos = Nanos::from_millis(1);
/// How long anybody sleeps without looking, so that no missed wake-up lasts.
const HEARTBEAT: Nanos = Nanos::from_secs(1);

/// A simulated accelerator, attached to this process as one context. Clones share the attachment; it ends with the
/// last of them and of their queues.
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
    /// Makes a device in anonymous memory. Other processes reach it through [`SimDevice::fd`].
    pub fn create(config: &Config) -> Result<Self, AttachError> {
        Self::attach(Segment::create(config)?, &config.name())
    }

    /// Makes a device that other processes reach by its path, which must be free. `/dev/shm` and `$XDG_RUNTIME_DIR`
    /// are good places. The file stays until somebody removes it.
    pub fn create_at(path: impl AsRef<Path>, config: &Config) -> Result<Self, AttachError> {
        let path = path.as_ref();
        Self::attach(Segment::create_at(path, config)?, &path.display().to_string())
    }

    /// Attaches to the device another process made at `path`.
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
        let locker = Locker::new(process);
        let mut guard = segment.lock(&locker);
        let config = guard.config();
        let context = guard.attach(process.pid, process.started).or_else(|| {
            remove_dead(&mut guard, process);
            guard.attach(process.pid, process.started)
        });
        drop(guard);
        let context = context.ok_or_else(|| AttachError::Full { what: what.to_owned() })?;
        let capabilities = config.capabilities();
        let attachment = Attachment { segment, locker, process, context, config, capabilities };
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
        let name = guard.open_queue(self.attachment.context);
        drop(guard);
        let name = name.ok_or_else(|| SimError::TooManyQueues { device: self.attachment.config.name() })?;
        Ok(SimQueue::new(Arc::clone(&self.attachment), name))
    }

    /// What the device is called.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.attachment.config.device
    }

    /// What the device was made with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.attachment.config
    }

    /// The levels the device has.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        &self.attachment.capabilities
    }

    /// The number of this process's context in [`SimDevice::usage`] and in the timeline.
    #[must_use]
    pub fn context(&self) -> u32 {
        self.attachment.context.index
    }

    /// How much device time each context has used until now. Looks after every process, so not for a hot path.
    pub fn usage(&self) -> Result<Vec<Usage>, SimError> {
        let mut guard = self.attachment.enter()?;
        remove_dead(&mut guard, self.attachment.process);
        Ok(guard.usage())
    }

    /// Reads who had the device when, beginning with the oldest span that is kept.
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

/// A reader of the device's spans with a place of its own; readers do not take spans from each other.
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

    /// How many spans were overwritten before this reader came to them.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

/// What somebody waits for.
pub(crate) enum Goal {
    /// It has come to pass.
    Reached,
    /// It has not, and will not before this time unless somebody acts.
    NotBefore(Nanos),
    /// It depends on a marker that nobody has placed yet.
    NotPlaced,
}

/// One process's hold on a device.
pub(crate) struct Attachment {
    pub(crate) segment: Segment,
    pub(crate) locker: Locker,
    process: Process,
    context: Name,
    config: Config,
    pub(crate) capabilities: Capabilities,
}

impl Attachment {
    /// Takes the lock, with the model brought to the present and the dead removed.
    pub(crate) fn enter(&self) -> Result<Guard<'_>, SimError> {
        let caller = current_pid();
        if caller != self.process.pid {
            return Err(SimError::Forked { device: self.config.name(), owner: self.process.pid, caller });
        }
        let mut guard = self.segment.lock(&self.locker);
        if let Some(context) = guard.next_inspection(INSPECTION, PAUSE) {
            remove_if_dead(&mut guard, context, self.process);
        }
        if guard.is_attached(self.context) { Ok(guard) } else { Err(self.gone()) }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Whether the caller is the process that attached, and not its child.
    pub(crate) fn is_mine(&self) -> bool {
        current_pid() == self.process.pid
    }

    fn gone(&self) -> SimError {
        SimError::Gone { device: self.config.name() }
    }

    /// Does something with the model that can fail only because the queue is gone.
    pub(crate) fn with<T>(
        &self,
        act: impl FnOnce(&mut Guard<'_>) -> Result<T, Refusal>,
    ) -> Result<T, SimError> {
        let mut guard = self.enter()?;
        act(&mut guard).map_err(|_| self.gone())
    }

    /// Sleeps until `look` finds its goal reached (true) or the time is up (false).
    ///
    /// Nothing changes before the next event, and the goal is not reached before the time `look` tells: so nobody has
    /// to wake before the later of the two, unless the notifier rings.
    pub(crate) fn wait(
        &self,
        deadline: Nanos,
        mut look: impl FnMut(&mut Model) -> Result<Goal, Refusal>,
    ) -> Result<bool, SimError> {
        loop {
            let mut guard = self.enter()?;
            let (earliest, marks_too) = match look(&mut guard).map_err(|_| self.gone())? {
                Goal::Reached => return Ok(true),
                Goal::NotBefore(time) => (time, time == Nanos::MAX),
                Goal::NotPlaced => (Nanos::MAX, true),
            };
            let now = guard.now();
            if now >= deadline {
                return Ok(false);
            }
            let event = guard.next_event().unwrap_or(Nanos::MAX);
            let contended = guard.live_contexts().any(|c| c != self.context.index && guard.set_has_work(c));
            let look_again = now + if contended { INSPECTION } else { HEARTBEAT };
            let heard = guard.listen(marks_too);
            drop(guard);
            self.segment.sleep(heard, earliest.max(event).min(deadline).min(look_again));
        }
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // A child after fork has the parent's memory, but the context is the parent's.
        if let Ok(mut guard) = self.enter() {
            guard.remove_context(self.context.index);
            guard.ring(Ring::Change);
        }
    }
}

/// Removes all contexts whose process is gone.
fn remove_dead(guard: &mut Guard<'_>, me: Process) {
    for context in guard.live_contexts() {
        remove_if_dead(guard, context, me);
    }
}

fn remove_if_dead(guard: &mut Guard<'_>, context: u32, me: Process) {
    let (pid, started) = guard.owner(context);
    let owner = Process { pid, started };
    if owner != me && !owner.is_alive() {
        guard.remove_context(context);
        guard.ring(Ring::Change);
    }
}

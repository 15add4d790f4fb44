//! A stream, through the runtime's functions. Markers are events; a thread of ours asks them.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use xsched_core::{
    Capabilities, DeviceId, DeviceKind, HalError, HwQueue, Level, LevelRequest, Marker, Order, Progress,
};
use xsched_interpose::Lease;

use super::vendor::{self, Code, Event, Stream};
use super::{copies, keeper, kfd};
use crate::station::Leased;

/// `hipEventDisableTiming`: the cheapest kind.
const PLAIN_EVENT: u32 = 2;
/// The most devices of one runtime.
const DEVICES: usize = 64;
/// How many events are made at a time.
const EVENTS: usize = 16;

/// Streams being captured, in the whole program. While there are any, nothing of ours is put into a stream.
pub(super) static CAPTURES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The last launch of this thread failed: its error is the program's to find.
    static FAILED: Cell<bool> = const { Cell::new(false) };
    /// Its address is this thread's own, plus the number of a device.
    static ANCHOR: [u8; DEVICES] = const { [0; DEVICES] };
}

/// Calls the real function of a launch and remembers whether it failed.
pub(super) fn noting_failure(real: &mut dyn FnMut() -> Code) -> Code {
    let code = real();
    let _ = FAILED.try_with(|failed| failed.set(code != vendor::SUCCESS));
    code
}

/// Which stream a call means.
#[derive(Clone, Copy)]
pub(super) enum Which {
    Legacy,
    PerThread,
    Made(Stream),
}

impl Which {
    /// As the runtime is to be told.
    fn handle(self) -> Stream {
        match self {
            Self::Legacy => std::ptr::null_mut(),
            Self::PerThread => std::ptr::without_provenance_mut(2),
            Self::Made(stream) => stream,
        }
    }

    /// The stream, if it can be captured at all.
    pub(super) fn capturable(self) -> Option<Stream> {
        (!matches!(self, Self::Legacy)).then(|| self.handle())
    }
}

/// Where a call goes: a stream, with what tells it from all others.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) key: usize,
    copy: usize,
    which: Which,
    /// Known of the default streams alone.
    device: Option<c_int>,
}

impl Place {
    /// The default streams are those of the calling thread's device. The copy has one: so the question does not fail.
    pub(super) fn of(copy: usize, which: Which) -> Option<Self> {
        if let Which::Made(stream) = which {
            return Some(Self { key: stream.addr(), copy, which, device: None });
        }
        let mut device = 0;
        // SAFETY: the place has room for a number.
        if unsafe { vendor::GET_DEVICE.of(copy)?(&raw mut device) } != vendor::SUCCESS {
            return None;
        }
        let number = usize::try_from(device).ok().filter(|number| *number < DEVICES)?;
        let key = match which {
            Which::PerThread => anchor()? + number,
            // Inside the library: no stream has such an address.
            _ => copies::base(copy) + number,
        };
        Some(Self { key, copy, which, device: Some(device) })
    }
}

/// A number that no other thread has at the same time; none on a thread that is ending.
fn anchor() -> Option<usize> {
    ANCHOR.try_with(|anchor| anchor.as_ptr().addr()).ok()
}

#[derive(Clone, Copy)]
struct Handle(Stream);

// SAFETY: the runtime's functions may be called from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

#[derive(Clone, Copy)]
struct EventHandle(Event);

// SAFETY: as for `Handle`.
unsafe impl Send for EventHandle {}

/// See the head of this file.
pub(crate) struct HipStream {
    copy: usize,
    lease: Lease<Handle>,
    /// The address of the only thread that can reach it, for a thread's own default stream.
    own: Option<usize>,
    number: c_int,
    device: DeviceId,
    capabilities: Capabilities,
    marks: Arc<Marks>,
    queues: Option<kfd::Member>,
}

/// What was placed in a stream, and how far it has come.
struct Marks {
    copy: usize,
    number: c_int,
    state: Mutex<MarkState>,
    arrived: Condvar,
}

#[derive(Default)]
struct MarkState {
    placed: VecDeque<(Marker, EventHandle)>,
    unused: Vec<EventHandle>,
    reached: Marker,
}

/// Events that no stream uses any more, by copy and device: making one takes time, and streams come and go.
static SPARE: Mutex<Vec<(usize, c_int, EventHandle)>> = Mutex::new(Vec::new());

fn spare() -> MutexGuard<'static, Vec<(usize, c_int, EventHandle)>> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Marks {
    fn drop(&mut self) {
        let (copy, number) = (self.copy, self.number);
        let mut state = self.state();
        let placed = std::mem::take(&mut state.placed).into_iter().map(|(_, event)| event);
        let unused = std::mem::take(&mut state.unused);
        spare().extend(placed.chain(unused).map(|event| (copy, number, event)));
    }
}

impl Marks {
    fn state(&self) -> MutexGuard<'_, MarkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl keeper::Watched for Marks {
    fn look(&self) -> bool {
        let Some(query) = vendor::EVENT_QUERY.of(self.copy) else { return false };
        // During a capture events are not asked: it could break the capture.
        if CAPTURES.load(Ordering::SeqCst) != 0 {
            return !self.state().placed.is_empty();
        }
        let Some(mut front) = self.state().placed.front().copied() else { return false };
        // Without the lock: a launch that places a marker must not wait for the runtime here.
        // SAFETY: an event that we made and never destroy.
        while unsafe { query(front.1.0) } != vendor::NOT_READY {
            let mut state = self.state();
            if let Some((marker, event)) = state.placed.pop_front() {
                state.unused.push(event);
                state.reached = state.reached.max(marker);
            }
            self.arrived.notify_all();
            match state.placed.front().copied() {
                Some(next) => front = next,
                None => return false,
            }
        }
        true
    }
}

/// What a thread of ours finds out about a stream before it is adopted.
struct Found {
    number: c_int,
    device: DeviceId,
    events: Vec<EventHandle>,
    levels: Result<kfd::Member, String>,
}

impl HipStream {
    /// None if the runtime cannot be asked about it.
    pub(super) fn new(place: Place) -> Option<Self> {
        let Place { copy, which, device, key } = place;
        let handle = Handle(which.handle());
        let found = keeper::ask(move || find_out(copy, handle, device)).flatten()?;
        let capabilities = Capabilities::block_only(format!("device {}", found.device), "");
        let reason = || found.levels.as_ref().map(|_| kfd::COST).map_err(Clone::clone);
        let capabilities = capabilities.with_deactivate(reason()).with_interrupt(reason());
        let state = MarkState { unused: found.events, ..MarkState::default() };
        let marks =
            Arc::new(Marks { copy, number: found.number, state: Mutex::new(state), arrived: Condvar::new() });
        let watched: std::sync::Weak<Marks> = Arc::downgrade(&marks);
        keeper::watch(watched);
        let own = matches!(which, Which::PerThread).then_some(key);
        let queues = found.levels.ok();
        Some(Self {
            copy,
            lease: Lease::new(handle),
            own,
            number: found.number,
            device: found.device,
            capabilities,
            marks,
            queues,
        })
    }

    fn failed(&self, what: &'static str, why: impl Into<String>) -> HalError {
        HalError::Driver { device: self.capabilities.device().to_owned(), what, why: why.into() }
    }

    /// Whether it is the default stream of a thread that is not the calling one.
    fn is_anothers(&self) -> bool {
        let mine = |own: usize| anchor().is_some_and(|anchor| (anchor..anchor + DEVICES).contains(&own));
        self.own.is_some_and(|own| !mine(own))
    }

    /// An event to mark with.
    fn event(&self) -> Option<EventHandle> {
        if let Some(event) = self.marks.state().unused.pop() {
            return Some(event);
        }
        let (copy, number) = (self.copy, self.number);
        let mut events = keeper::ask(move || make_events(copy, number))??;
        let event = events.pop();
        self.marks.state().unused.append(&mut events);
        event
    }
}

/// By a thread of ours: every call here may fail.
fn find_out(copy: usize, Handle(stream): Handle, device: Option<c_int>) -> Option<Found> {
    let ask = || {
        let mut number = 0;
        // SAFETY: the place has room for a number; a stream that is none is refused.
        let code = unsafe { vendor::STREAM_DEVICE.of(copy)?(stream, &raw mut number) };
        (code == vendor::SUCCESS).then_some(number)
    };
    let number = device.or_else(ask)?;
    let mut name = [0_u8; 32];
    // SAFETY: there is room for 31 characters and the zero byte.
    let code = unsafe { vendor::PCI_BUS_ID.of(copy)?(name.as_mut_ptr().cast::<c_char>(), 31, number) };
    let device = (code == vendor::SUCCESS).then(|| pci_address(&name))??;
    let device = DeviceId::new(DeviceKind::Gpu, device);
    Some(Found { number, device, events: make_events(copy, number)?, levels: kfd::Member::new(device) })
}

/// By a thread of ours: the legacy stream is that of the device that is current.
fn record_on_legacy(copy: usize, number: c_int, event: EventHandle) -> Code {
    let both = vendor::SET_DEVICE.of(copy).zip(vendor::EVENT_RECORD.of(copy));
    both.map_or(vendor::NOT_INITIALIZED, |(set, record)| {
        // SAFETY: any number may be asked for; the event is one of this device.
        match unsafe { set(number) } {
            // SAFETY: as above.
            vendor::SUCCESS => unsafe { record(event.0, std::ptr::null_mut()) },
            code => code,
        }
    })
}

/// By a thread of ours: an event belongs to the device that is current when it is made.
fn make_events(copy: usize, number: c_int) -> Option<Vec<EventHandle>> {
    let fits = |spare: &mut (usize, c_int, EventHandle)| (spare.0, spare.1) == (copy, number);
    let left: Vec<_> = spare().extract_if(.., fits).take(EVENTS).map(|(_, _, event)| event).collect();
    if !left.is_empty() {
        return Some(left);
    }
    let create = vendor::EVENT_CREATE.of(copy)?;
    // SAFETY: any number may be asked for.
    if unsafe { vendor::SET_DEVICE.of(copy)?(number) } != vendor::SUCCESS {
        return None;
    }
    let make = |_| {
        let mut event = std::ptr::null_mut();
        // SAFETY: the place has room for a handle.
        (unsafe { create(&raw mut event, PLAIN_EVENT) } == vendor::SUCCESS).then_some(EventHandle(event))
    };
    (0..EVENTS).map(make).collect()
}

/// `0000:c1:00.0` as a number: domain, bus, device and function.
fn pci_address(name: &[u8]) -> Option<u32> {
    let text = std::ffi::CStr::from_bytes_until_nul(name).ok()?.to_str().ok()?;
    let mut parts = text.split([':', '.']).map(|part| u32::from_str_radix(part, 16).ok());
    let mut part = || parts.next().flatten();
    let (domain, bus, slot) = (part()?, part()?, part()?);
    Some((domain << 16) | (bus << 8) | (slot << 3) | part().unwrap_or(0))
}

impl Leased for HipStream {
    fn end(&self) {
        self.lease.end();
        if let Some(queues) = &self.queues {
            queues.leave();
        }
    }
}

impl HwQueue for HipStream {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mark(&self, marker: Marker) -> Result<(), HalError> {
        const WHAT: &str = "placing a marker";
        if CAPTURES.load(Ordering::SeqCst) != 0 {
            return Err(self.failed(WHAT, "a stream is being captured"));
        }
        if FAILED.try_with(|failed| failed.replace(false)).unwrap_or(true) {
            return Err(self.failed(WHAT, "the launch before it failed, and its error is the program's"));
        }
        let record = vendor::EVENT_RECORD.of(self.copy);
        let event = record.zip(self.event());
        let (record, event) = event.ok_or_else(|| self.failed(WHAT, "the runtime makes no events"))?;
        // Without the lock on the marks: the thread that is asked here wants it too.
        let recorded = if self.is_anothers() {
            // Only its own thread can reach it. The legacy stream waits for it, as for all others of the device.
            let (copy, number) = (self.copy, self.number);
            keeper::ask(move || record_on_legacy(copy, number, event))
        } else {
            // SAFETY: the lease makes sure that the stream exists; the event is one of its device.
            self.lease.with(|Handle(stream)| unsafe { record(event.0, stream) })
        };
        let mut state = self.marks.state();
        match recorded {
            Some(vendor::SUCCESS) => {
                state.placed.push_back((marker, event));
                drop(state);
                keeper::wake();
                Ok(())
            }
            code => {
                state.unused.push(event);
                let why = code.map_or("the stream was destroyed".to_owned(), |code| format!("error {code}"));
                Err(self.failed(WHAT, why))
            }
        }
    }

    fn progress(&self) -> Progress {
        Progress { marker: self.marks.state().reached, at: None }
    }

    fn wait(&self, marker: Marker, timeout: Duration) -> Result<bool, HalError> {
        let deadline = Instant::now() + timeout;
        let mut state = self.marks.state();
        loop {
            if state.reached >= marker {
                return Ok(true);
            }
            if CAPTURES.load(Ordering::SeqCst) != 0 {
                return Err(self.failed("waiting for a marker", "a stream is being captured"));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let woken = self.marks.arrived.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn synchronize(&self) -> Result<(), HalError> {
        const WHAT: &str = "synchronizing";
        let synchronize = vendor::STREAM_SYNCHRONIZE.of(self.copy);
        let synchronize = synchronize.ok_or_else(|| self.failed(WHAT, "the runtime lacks it"))?;
        // SAFETY: the lease makes sure that the stream exists.
        match self.lease.with(|Handle(stream)| unsafe { synchronize(stream) }) {
            Some(vendor::SUCCESS) => Ok(()),
            Some(code) => Err(self.failed(WHAT, format!("error {code}"))),
            None => Err(self.failed(WHAT, "the stream was destroyed")),
        }
    }

    /// Streams share hardware queues, and nobody says which: the queues of the process are stopped on this device once all
    /// its streams there are to stop. Until then the gate alone holds this one.
    fn preempt(&self, level: Level) -> Result<(), HalError> {
        self.capabilities.negotiate(LevelRequest::Exactly(level))?;
        let stopped = self.queues.as_ref().map_or(Ok(()), |queues| queues.set_stopped(true));
        stopped.map_err(|why| self.failed("stopping the queues", why))
    }

    fn restore(&self) -> Result<(), HalError> {
        let going = self.queues.as_ref().map_or(Ok(()), |queues| queues.set_stopped(false));
        going.map_err(|why| self.failed("letting the queues run on", why))
    }

    fn order_changed(&self, order: Order) {
        if let Some(queues) = &self.queues {
            queues.follow(order);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::pci_address;

    #[test]
    fn addresses_on_the_bus_are_understood() {
        assert_eq!(pci_address(b"0000:c1:00.0\0"), Some(0xc100));
        assert_eq!(pci_address(b"0002:03:1f.2\0rest"), Some((2 << 16) | (3 << 8) | (0x1f << 3) | 2));
        assert_eq!(pci_address(b"no address\0"), None);
    }
}

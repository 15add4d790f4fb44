//! A stream, through the runtime's functions. Markers are events; a thread of ours asks them.

use std::ffi::{c_char, c_int};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use xsched_core::LevelCost;
use xsched_core::{
    Capabilities, DeviceId, DeviceKind, HalError, HwQueue, Level, LevelRequest, Marker, Order, Progress,
};
use xsched_interpose::RevocableHandle;
use xsched_ipc::report::{Severity, report};

use super::group::Member;
use super::marks::{self, CAPTURES, EventHandle, Marks};
use super::stall::{self, Word};
use super::vendor::{self, Code, Stream};
use super::{copies, keeper, kfd};
use crate::tracked_queue::VendorQueue;

/// The most devices of one runtime.
const DEVICES: usize = 64;
thread_local! {
    /// Its address is this thread's own, plus the number of a device.
    static ANCHOR: [u8; DEVICES] = const { [0; DEVICES] };
}

/// Which stream a call means.
#[derive(Clone, Copy, PartialEq, Eq)]
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

    /// The number of its device, where it is known.
    pub(super) fn number(self) -> Option<c_int> {
        self.device
    }
}

/// A number that no other thread has at the same time; none on a thread that is ending.
fn anchor() -> Option<usize> {
    ANCHOR.try_with(|anchor| anchor.as_ptr().addr()).ok()
}

#[derive(Clone, Copy)]
struct Handle(Stream);

// SAFETY: the runtime's functions may be called from any thread.
unsafe impl Send for Which {}
// SAFETY: as above.
unsafe impl Sync for Which {}
// SAFETY: as above.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// See the head of this file.
pub(crate) struct HipStream {
    copy: usize,
    lease: RevocableHandle<Handle>,
    which: Which,
    key: usize,
    number: c_int,
    device: DeviceId,
    capabilities: Capabilities,
    marks: Arc<Marks>,
    queues: Option<Member>,
    stall: Option<&'static Word>,
}

/// What a thread of ours finds out about a stream before it is adopted.
struct Found {
    number: c_int,
    device: DeviceId,
    events: Vec<EventHandle>,
    levels: Levels,
}

/// How deep a stream can be stopped, and by what.
struct Levels {
    deactivate: Result<LevelCost, String>,
    interrupt: Result<LevelCost, String>,
    queues: Option<Member>,
    stall: Option<&'static Word>,
}

impl Levels {
    /// By a thread of ours, on which the device is current.
    fn find(copy: usize, number: c_int, device: DeviceId) -> Self {
        static TOLD: AtomicBool = AtomicBool::new(false);
        let no_driver = match Member::by_driver(device) {
            Ok(member) => {
                let cost = Ok(kfd::COST);
                return Self { deactivate: cost.clone(), interrupt: cost, queues: Some(member), stall: None };
            }
            Err(why) => why,
        };
        let stalls = stall::word(copy, number).and_then(|word| Ok((word, Member::by_stalls(device, word)?)));
        if !TOLD.swap(true, Ordering::Relaxed) {
            let level = if stalls.is_ok() { 2 } else { 1 };
            report(Severity::Warning, format_args!("HIP is scheduled at level {level}: {no_driver}"));
        }
        match stalls {
            Ok((word, member)) => {
                let (queues, stall) = (Some(member), Some(word));
                Self { deactivate: Ok(stall::COST), interrupt: Err(no_driver), queues, stall }
            }
            Err(why) => Self { deactivate: Err(why), interrupt: Err(no_driver), queues: None, stall: None },
        }
    }
}

impl HipStream {
    /// None if the runtime cannot be asked about it.
    pub(super) fn new(place: Place) -> Option<Self> {
        let Place { copy, which, device, key } = place;
        let handle = Handle(which.handle());
        let found = keeper::ask(move || find_out(copy, handle, device)).flatten()?;
        let Levels { deactivate, interrupt, queues, stall } = found.levels;
        let capabilities = Capabilities::block_only(format!("device {}", found.device), "");
        let capabilities = capabilities.with_deactivate(deactivate).with_interrupt(interrupt);
        let marks = Arc::new(Marks::new(copy, found.number, found.events));
        let watched: std::sync::Weak<Marks> = Arc::downgrade(&marks);
        keeper::watch(watched);
        Some(Self {
            copy,
            lease: RevocableHandle::new(handle),
            which,
            key,
            number: found.number,
            device: found.device,
            capabilities,
            marks,
            queues,
            stall,
        })
    }

    fn failed(&self, what: &'static str, why: impl Into<String>) -> HalError {
        HalError::Driver { device: self.capabilities.device().to_owned(), what, why: why.into() }
    }

    /// Whether the calling thread would reach another stream by its handle: default streams are those of the thread's
    /// device, or of the thread itself.
    fn is_out_of_reach(&self) -> bool {
        match self.which {
            Which::Made(_) => false,
            default => Place::of(self.copy, default).is_none_or(|place| place.key != self.key),
        }
    }

    /// Places a marker, while no stream is captured.
    fn place_marker(&self) -> Result<Marker, String> {
        let record = vendor::EVENT_RECORD.of(self.copy);
        let event = record.zip(self.marks.event());
        let (record, event) = event.ok_or("the runtime makes no events")?;
        let place = |event: EventHandle| {
            let recorded = if self.is_out_of_reach() {
                // The legacy stream of its device is it, or waits for it as for all others there.
                let (copy, number) = (self.copy, self.number);
                keeper::ask(move || record_on_legacy(copy, number, event))
            } else {
                self.lease.with(|Handle(stream)| {
                    // SAFETY: the lease makes sure that the stream exists; the event is one of its device.
                    let code = unsafe { record(event.0, stream) };
                    if let (vendor::SUCCESS, Some(word)) = (code, self.stall) {
                        word.place(self.copy, stream);
                    }
                    code
                })
            };
            match recorded {
                Some(vendor::SUCCESS) => Ok(()),
                Some(code) => Err(format!("error {code}")),
                None => Err("the stream was destroyed".to_owned()),
            }
        };
        self.marks.place(event, place)
    }
}

/// The device of a stream; none if it is not one of this copy's. Asked by a thread of ours.
pub(super) fn device_of_stream(copy: usize, stream: Stream) -> Option<c_int> {
    let stream = Handle(stream);
    keeper::ask(move || ask_for_device(copy, stream)).flatten()
}

fn ask_for_device(copy: usize, Handle(stream): Handle) -> Option<c_int> {
    let mut number = 0;
    // SAFETY: the place has room for a number; a stream that is none is refused.
    let code = unsafe { vendor::STREAM_DEVICE.of(copy)?(stream, &raw mut number) };
    (code == vendor::SUCCESS).then_some(number)
}

/// By a thread of ours: every call here may fail.
fn find_out(copy: usize, stream: Handle, device: Option<c_int>) -> Option<Found> {
    let number = device.or_else(|| ask_for_device(copy, stream))?;
    let mut name = [0_u8; 32];
    // SAFETY: there is room for 31 characters and the zero byte.
    let code = unsafe { vendor::PCI_BUS_ID.of(copy)?(name.as_mut_ptr().cast::<c_char>(), 31, number) };
    let device = (code == vendor::SUCCESS).then(|| pci_address(&name))??;
    let device = DeviceId::new(DeviceKind::Gpu, device);
    let events = marks::make_events(copy, number)?;
    // SAFETY: any number may be asked for.
    let current = unsafe { vendor::SET_DEVICE.of(copy)?(number) } == vendor::SUCCESS;
    current.then(|| Found { number, device, events, levels: Levels::find(copy, number, device) })
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

/// `0000:c1:00.0` as a number: domain, bus, device and function.
fn pci_address(name: &[u8]) -> Option<u32> {
    let text = std::ffi::CStr::from_bytes_until_nul(name).ok()?.to_str().ok()?;
    let mut parts = text.split([':', '.']).map(|part| u32::from_str_radix(part, 16).ok());
    let mut part = || parts.next().flatten();
    let (domain, bus, slot) = (part()?, part()?, part()?);
    Some((domain << 16) | (bus << 8) | (slot << 3) | part().unwrap_or(0))
}

impl VendorQueue for HipStream {
    fn revoke(&self) {
        self.lease.revoke();
        if let Some(queues) = &self.queues {
            queues.leave();
        }
    }

    fn belongs_to(&self, device: usize) -> bool {
        usize::try_from(self.number).is_ok_and(|number| copies::base(self.copy) + number == device)
    }
}

impl HwQueue for HipStream {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mark(&self) -> Result<Marker, HalError> {
        let placed = marks::may_be_placed().map_err(str::to_owned).and_then(|()| {
            let placed = CAPTURES.unless_capturing(|| self.place_marker());
            placed.unwrap_or_else(|| Err("a stream is being captured".to_owned()))
        });
        placed.map_err(|why| self.failed("placing a marker", why))
    }

    fn progress(&self) -> Progress {
        Progress { marker: self.marks.reached(), at: None }
    }

    fn wait(&self, marker: Marker, timeout: Duration) -> Result<bool, HalError> {
        let known = self.marks.wait(marker, timeout);
        known.ok_or_else(|| self.failed("waiting for a marker", "a stream is being captured"))
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

    fn set_has_work(&self, has_work: bool) {
        if let Some(queues) = &self.queues {
            queues.set_has_work(has_work);
        }
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

//! A HIP stream as a hardware queue of the core.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use xsched_core::{
    Capabilities, DEFAULT_STOP_DISTANCE, DeviceId, DeviceKind, HalError, HwQueue, Level, Marker, Nanos,
    Order, Progress,
};
use xsched_ipc::kfd_topology::{Match, Topology};

use super::event_markers::{self, EventHandle};
use super::kfd;
use super::marked_stream::MarkedStream;
use super::preemption::{Preemption, StopSupport};
use super::stall_points;
use super::vendor::{self, Stream};
use super::{runtime_copies, runtime_thread};
use crate::tracked_queue::VendorQueue;

/// The most devices of one runtime.
const MAX_DEVICES: usize = 64;
thread_local! {
    /// Its address plus the ordinal of a device is the key of this thread's default stream on that device.
    static THREAD_KEYS: [u8; MAX_DEVICES] = const { [0; MAX_DEVICES] };
}

/// The stream that an argument denotes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamKind {
    /// The legacy default stream of the calling thread's device.
    Legacy,
    /// The calling thread's own default stream.
    PerThread,
    /// A stream that the program created.
    Created(Stream),
}

impl StreamKind {
    /// The handle that denotes it in calls to the runtime.
    pub(super) fn handle(self) -> Stream {
        match self {
            Self::Legacy => std::ptr::null_mut(),
            Self::PerThread => std::ptr::without_provenance_mut(2),
            Self::Created(stream) => stream,
        }
    }

    /// The handle of a stream that can be captured. The legacy default stream cannot.
    pub(super) fn capturable(self) -> Option<Stream> {
        (!matches!(self, Self::Legacy)).then(|| self.handle())
    }
}

/// One stream of one copy of the runtime, with the key under which it is known.
#[derive(Clone, Copy)]
pub(super) struct StreamId {
    pub(super) key: usize,
    pub(super) copy: usize,
    pub(super) kind: StreamKind,
    /// The device's ordinal, known for default streams only.
    ordinal: Option<c_int>,
}

impl StreamId {
    /// Default streams are those of the calling thread's device. The copy must have a device: then `hipGetDevice` does not
    /// fail.
    pub(super) fn resolve(copy: usize, kind: StreamKind) -> Option<Self> {
        if let StreamKind::Created(stream) = kind {
            return Some(Self { key: stream.addr(), copy, kind, ordinal: None });
        }
        let mut ordinal = 0;
        // SAFETY: `ordinal` has room for the result.
        if unsafe { vendor::GET_DEVICE.of(copy)?(&raw mut ordinal) } != vendor::SUCCESS {
            return None;
        }
        let offset = usize::try_from(ordinal).ok().filter(|offset| *offset < MAX_DEVICES)?;
        let key = match kind {
            StreamKind::PerThread => thread_key()? + offset,
            // An address inside the runtime's library: no stream has it.
            _ => runtime_copies::base(copy) + offset,
        };
        Some(Self { key, copy, kind, ordinal: Some(ordinal) })
    }

    /// The ordinal of the device, if this is a default stream.
    pub(super) fn ordinal(self) -> Option<c_int> {
        self.ordinal
    }
}

/// An address that is unique among the living threads; none on a thread that is exiting.
fn thread_key() -> Option<usize> {
    THREAD_KEYS.try_with(|keys| keys.as_ptr().addr()).ok()
}

/// A stream's handle, for any thread.
#[derive(Clone, Copy)]
pub(super) struct Handle(pub(super) Stream);

// SAFETY: the runtime's functions may be called from any thread.
unsafe impl Send for StreamKind {}
// SAFETY: as above.
unsafe impl Sync for StreamKind {}
// SAFETY: as above.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// A stream of the program that is scheduled.
pub(crate) struct HipStream {
    stream: MarkedStream,
    preemption: Preemption,
}

/// What the runtime thread finds out about a stream.
struct StreamInfo {
    ordinal: c_int,
    device: DeviceId,
    events: Vec<EventHandle>,
    stop_support: StopSupport,
}

impl HipStream {
    /// None if the runtime does not report the stream's device.
    pub(super) fn new(stream: StreamId) -> Option<Self> {
        let StreamId { copy, kind, ordinal, .. } = stream;
        let handle = Handle(kind.handle());
        let info = runtime_thread::call(move || stream_info(copy, handle, ordinal)).flatten()?;
        info.stop_support.report_once("HIP");
        let stall_word = match &info.stop_support {
            StopSupport::StallPoints { word, .. } => Some(*word),
            _ => None,
        };
        let stream = MarkedStream::new(stream, info.ordinal, info.events, stall_word);
        stream.prepare();
        // On this thread: the runtime thread serves all devices and must not wait for the lock of one. After the stream was
        // prepared: queues that are stopped resume until the new stream is stopped, too.
        Some(Self { stream, preemption: Preemption::register(info.device, info.stop_support) })
    }
}

/// The ordinal of a stream's device; none if the stream does not belong to this copy.
pub(super) fn device_of_stream(copy: usize, stream: Stream) -> Option<c_int> {
    let stream = Handle(stream);
    runtime_thread::call(move || query_device(copy, stream)).flatten()
}

/// For the runtime thread: the call may fail.
fn query_device(copy: usize, Handle(stream): Handle) -> Option<c_int> {
    let mut ordinal = 0;
    // SAFETY: `ordinal` has room for the result; the runtime rejects an invalid stream.
    let code = unsafe { vendor::STREAM_DEVICE.of(copy)?(stream, &raw mut ordinal) };
    (code == vendor::SUCCESS).then_some(ordinal)
}

/// For the runtime thread: each call may fail. The device of an ordinal, which is the current one afterwards, and how its queues are
/// stopped.
fn describe_device(copy: usize, ordinal: c_int) -> Option<(DeviceId, StopSupport)> {
    let mut name = [0_u8; 32];
    // SAFETY: `name` has room for 31 characters and a zero byte.
    let code = unsafe { vendor::PCI_BUS_ID.of(copy)?(name.as_mut_ptr().cast::<c_char>(), 31, ordinal) };
    let address = (code == vendor::SUCCESS).then(|| parse_pci_address(&name))??;
    // SAFETY: the runtime rejects an ordinal that does not exist.
    let is_current = unsafe { vendor::SET_DEVICE.of(copy)?(ordinal) } == vendor::SUCCESS;
    is_current.then(|| device_at(copy, address))
}

/// For the runtime thread. The device of an ordinal.
pub(super) fn device_of_ordinal(copy: usize, ordinal: c_int) -> Option<DeviceId> {
    describe_device(copy, ordinal).map(|(device, _)| device)
}

/// For the runtime thread: each call may fail.
fn stream_info(copy: usize, stream: Handle, ordinal: Option<c_int>) -> Option<StreamInfo> {
    let ordinal = ordinal.or_else(|| query_device(copy, stream))?;
    let events = event_markers::allocate_events(copy, ordinal)?;
    let (device, stop_support) = describe_device(copy, ordinal)?;
    let find_word = || stall_points::find_word(copy, ordinal);
    Some(StreamInfo { ordinal, device, events, stop_support: stop_support.or_stall_points(find_word) })
}

/// The device at the address that the runtime reports for the current device, and how its queues are stopped. Runtimes report
/// one address for all partitions of a GPU; then a queue that the runtime creates shows which of them this is.
fn device_at(copy: usize, address: u32) -> (DeviceId, StopSupport) {
    let id = |address: u32| DeviceId::new(DeviceKind::Gpu, address);
    let partitions = match Topology::read().gpu_at(address) {
        Match::One { address, .. } => return (id(address), StopSupport::find_kfd(id(address))),
        Match::Unknown => return (id(address), StopSupport::find_kfd(id(address))),
        Match::Several(partitions) => partitions,
    };
    let gpu = kfd::gpu_of_created_queue(|| create_and_destroy_queue(copy));
    if let Some((_, address)) = partitions.iter().find(|(partition, _)| Some(*partition) == gpu) {
        return (id(*address), StopSupport::find_kfd(id(*address)));
    }
    let (count, device) = (partitions.len(), id(address));
    let why = format!("the {count} partitions at {device} cannot be told apart, and are one device");
    (device, StopSupport::gate_only(why))
}

/// For the runtime thread: creates a stream on the current device that has a queue of its own, and destroys it.
fn create_and_destroy_queue(copy: usize) {
    // Two compute units, which every partition has. HIP 7.2 crashes if the mask has units that the device does not have.
    const FIRST_UNITS: [u32; 1] = [3];
    let functions = vendor::STREAM_CREATE_WITH_MASK.of(copy).zip(vendor::STREAM_DESTROY.of(copy));
    if let Some((create, destroy)) = functions {
        let mut stream = std::ptr::null_mut();
        // SAFETY: `stream` has room for a handle, and the mask has one word.
        if unsafe { create(&raw mut stream, 1, FIRST_UNITS.as_ptr()) } == vendor::SUCCESS {
            // SAFETY: created above.
            unsafe { destroy(stream) };
        }
    }
}

/// Domain, bus, device and function of an address such as `0000:c1:00.0`, as one number.
fn parse_pci_address(name: &[u8]) -> Option<u32> {
    let text = std::ffi::CStr::from_bytes_until_nul(name).ok()?.to_str().ok()?;
    let mut parts = text.split([':', '.']).map(|part| u32::from_str_radix(part, 16).ok());
    let mut part = || parts.next().flatten();
    let (domain, bus, slot) = (part()?, part()?, part()?);
    Some((domain << 16) | (bus << 8) | (slot << 3) | part().unwrap_or(0))
}

impl VendorQueue for HipStream {
    fn revoke(&self) {
        self.stream.handle.revoke();
        self.preemption.unregister();
    }

    fn belongs_to(&self, device: usize) -> bool {
        self.stream.belongs_to(device)
    }
}

impl HwQueue for HipStream {
    fn device(&self) -> DeviceId {
        self.preemption.device()
    }

    fn capabilities(&self) -> &Capabilities {
        self.preemption.capabilities()
    }

    fn mark(&self) -> Result<Marker, HalError> {
        let placed = self.stream.mark();
        if placed.is_ok() {
            self.preemption.set_launched();
        }
        placed.map_err(|why| self.preemption.error("placing a marker", why))
    }

    fn progress(&self) -> Progress {
        Progress { marker: self.stream.markers.reached(), at: None }
    }

    fn wait(&self, marker: Marker, timeout: Duration) -> Result<bool, HalError> {
        let is_reached = self.stream.markers.wait(marker, timeout);
        is_reached.ok_or_else(|| self.preemption.error("waiting for a marker", "a stream is being captured"))
    }

    fn query_busy(&self) -> Option<bool> {
        self.preemption.query_busy()
    }

    fn synchronize(&self) -> Result<(), HalError> {
        let error = |why: String| self.preemption.error("synchronizing", why);
        let synchronize = vendor::STREAM_SYNCHRONIZE.of(self.stream.copy);
        let synchronize =
            synchronize.ok_or_else(|| error("the runtime lacks hipStreamSynchronize".to_owned()))?;
        // SAFETY: while the handle is held the program cannot destroy the stream.
        match self.stream.handle.with(|Handle(stream)| unsafe { synchronize(stream) }) {
            Some(vendor::SUCCESS) => Ok(()),
            Some(code) => Err(error(format!("error {code}"))),
            None => Err(error("the stream was destroyed".to_owned())),
        }
    }

    /// The hardware queues stop once all streams of the process on the device are preempted; see [`super::device_queues`].
    fn preempt(&self, level: Level) -> Result<(), HalError> {
        self.preemption.preempt(level)
    }

    fn restore(&self) -> Result<(), HalError> {
        self.preemption.restore()
    }

    fn set_has_work(&self, has_work: bool) {
        self.preemption.set_has_work(has_work);
    }

    fn order_changed(&self, order: Order) {
        self.preemption.set_order(order);
    }

    fn stop_distance(&self) -> Nanos {
        // The kernel driver stops a queue anywhere: there markers only measure the work in flight.
        if self.stream.has_stall_points() { stall_points::DISTANCE } else { DEFAULT_STOP_DISTANCE }
    }
}

#[cfg(test)]
mod tests {
    use super::parse_pci_address;

    #[test]
    fn pci_addresses_are_parsed() {
        assert_eq!(parse_pci_address(b"0000:c1:00.0\0"), Some(0xc100));
        assert_eq!(parse_pci_address(b"0002:03:1f.2\0rest"), Some((2 << 16) | (3 << 8) | (0x1f << 3) | 2));
        assert_eq!(parse_pci_address(b"no address\0"), None);
    }
}

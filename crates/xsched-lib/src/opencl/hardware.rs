//! An OpenCL command queue. Markers are OpenCL's own, asked for their status.

use std::ffi::c_uint;
use std::sync::Arc;

use xsched_core::{Capabilities, DeviceId, DeviceKind, LevelCost, Nanos};

use super::stall::Stalls;
use super::vendor::{self, Event, Handle, Queue};
use super::waits;
use crate::polled::{Polled, Vendor};

/// What a queue stopped at a user event costs here was measured, and it keeps its order.
const STALLS_WELL: &str = "Portable Computing Language";
const NO_LEVEL_2: &str = "whether this implementation stops at user events in time is not known";
const NO_LEVEL_3: &str = "OpenCL cannot stop a kernel that runs";

/// A queue that the program has made; none if it is the device's own, or if the vendor cannot be asked.
pub(crate) fn take(queue: Queue) -> Option<Polled<CommandQueue>> {
    let properties = properties(queue)?;
    if properties & vendor::ON_DEVICE != 0 {
        return None;
    }
    // SAFETY: a queue that has just been made.
    let device = vendor::handle(unsafe { vendor::ask(&vendor::OF_QUEUE, queue, vendor::QUEUE_DEVICE) });
    let (id, name) = identify(device);
    // SAFETY: as above.
    let context = vendor::handle(unsafe { vendor::ask(&vendor::OF_QUEUE, queue, vendor::QUEUE_CONTEXT) });
    let stalls = name.contains(STALLS_WELL).then(|| Stalls::new(context));
    let level_2 = stalls.as_ref().map(|_| LevelCost::default()).ok_or_else(|| NO_LEVEL_2.to_owned());
    let capabilities = Capabilities::block_only(name, NO_LEVEL_3).with_deactivate(level_2);
    let profiled = properties & vendor::PROFILED != 0;
    let vendor = CommandQueue { queue: Shared(queue), profiled, stalls };
    Some(Polled::new(Shared(queue), id, capabilities, vendor))
}

/// Whether commands of a queue complete in the order they were enqueued.
pub(crate) fn is_in_order(queue: Queue) -> bool {
    properties(queue).is_some_and(|properties| properties & vendor::OUT_OF_ORDER == 0)
}

fn properties(queue: Queue) -> Option<u64> {
    // SAFETY: a queue that the program is using.
    unsafe { vendor::ask(&vendor::OF_QUEUE, queue, vendor::QUEUE_PROPERTIES) }.map(u64::from_ne_bytes)
}

/// By its address on the PCI bus, so that a GPU is the same one to CUDA; else by what it is called.
fn identify(device: Handle) -> (DeviceId, String) {
    let platform = vendor::handle(about(device, vendor::DEVICE_PLATFORM));
    // SAFETY: the platform of a device.
    let platform = unsafe { vendor::ask(&vendor::OF_PLATFORM, platform, vendor::PLATFORM_NAME) };
    let name = format!("{} ({})", text(about(device, vendor::DEVICE_NAME)), text(platform));
    let kind = match about(device, vendor::DEVICE_TYPE).map_or(0, u64::from_ne_bytes) {
        kind if kind & vendor::CPU != 0 => DeviceKind::Cpu,
        kind if kind & vendor::GPU != 0 => DeviceKind::Gpu,
        _ => DeviceKind::Unknown,
    };
    // SAFETY: only called with a device.
    let pci = pci(|what, bytes| unsafe { vendor::fill(&vendor::OF_DEVICE, device, what, bytes) });
    (pci.map_or_else(|| DeviceId::named(kind, &name), |at| DeviceId::new(kind, at)), name)
}

/// Asks as Khronos, NVIDIA and AMD each have it. `ask` fills the bytes if there is an answer of their number.
fn pci(ask: impl Fn(c_uint, &mut [u8]) -> bool) -> Option<u32> {
    let number = |what: c_uint| {
        let mut bytes = [0; 4];
        ask(what, &mut bytes).then_some(u32::from_ne_bytes(bytes))
    };
    let (mut parts, mut topology) = ([0; 16], [0; 24]);
    if ask(vendor::PCI, &mut parts) {
        let part = |n: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| parts[4 * n + byte]));
        return Some((part(0) << 16) | (part(1) << 8) | (part(2) << 3) | part(3));
    }
    if let (Some(bus), Some(slot)) = (number(vendor::PCI_BUS_NV), number(vendor::PCI_SLOT_NV)) {
        return Some((number(vendor::PCI_DOMAIN_NV).unwrap_or(0) << 16) | (bus << 8) | slot);
    }
    let on_the_bus = ask(vendor::TOPOLOGY_AMD, &mut topology) && topology[0] == 1;
    let [bus, slot, function] = [topology[21], topology[22], topology[23]].map(u32::from);
    on_the_bus.then_some((bus << 8) | (slot << 3) | function)
}

fn about<const N: usize>(device: Handle, what: c_uint) -> Option<[u8; N]> {
    // SAFETY: only called with a device.
    unsafe { vendor::ask(&vendor::OF_DEVICE, device, what) }
}

fn text(bytes: Option<[u8; 200]>) -> String {
    let bytes = bytes.unwrap_or([0; 200]);
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
}

/// A handle that any thread may use, which OpenCL allows for all but kernels.
#[derive(Clone, Copy)]
pub(crate) struct Shared(pub(crate) Handle);

// SAFETY: OpenCL's functions may be called from any thread, with queues and events.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// An event of ours.
pub(crate) struct Mark {
    event: Shared,
    placed: Nanos,
}

impl Mark {
    /// Behind everything enqueued so far, or, if there are any, behind these events.
    pub(crate) fn place(queue: Queue, events: &[Event]) -> Result<Self, String> {
        let needed = vendor::MARK.get().zip(vendor::FLUSH.get());
        let (mark, flush) = needed.ok_or("the library has no markers")?;
        let (placed, mut event) = (Nanos::now(), std::ptr::null_mut());
        let count = c_uint::try_from(events.len()).unwrap_or(0);
        let list = if count == 0 { std::ptr::null() } else { events.as_ptr() };
        // SAFETY: whoever calls this has seen to it that the queue exists; the events are as many as is said, and the
        // place has room for a handle. What is not flushed may never be done.
        let (code, _) = unsafe { (mark(queue, count, list, &raw mut event), flush(queue)) };
        if code == vendor::SUCCESS { Ok(Self { event: Shared(event), placed }) } else { Err(error(code)) }
    }

    /// Whether it is done, or will never be: an event whose command failed has a status below 0.
    pub(crate) fn is_done(&self) -> bool {
        // SAFETY: an event of ours.
        let status = unsafe { vendor::ask(&vendor::OF_EVENT, self.event.0, vendor::EVENT_STATUS) };
        status.map(i32::from_ne_bytes).is_none_or(|status| status <= 0)
    }

    fn time(&self, which: c_uint) -> Option<u64> {
        // SAFETY: an event of ours.
        unsafe { vendor::ask(&vendor::TIME_OF_EVENT, self.event.0, which) }.map(u64::from_ne_bytes)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Some(release) = vendor::RELEASE_EVENT.get() {
            // SAFETY: our own event, given back once.
            unsafe { release(self.event.0) };
        }
    }
}

fn error(code: i32) -> String {
    format!("error {code}")
}

/// What is OpenCL's own about a queue.
pub(crate) struct CommandQueue {
    queue: Shared,
    profiled: bool,
    /// Where it can be stopped, if it can.
    stalls: Option<Arc<Stalls>>,
}

impl Vendor for CommandQueue {
    type Queue = Shared;
    type Event = Mark;

    fn mark(&self, queue: Shared) -> Result<Mark, String> {
        let mark = Mark::place(queue.0, &[])?;
        if let Some(stalls) = &self.stalls {
            stalls.place(queue.0, mark.event.0);
        }
        Ok(mark)
    }

    fn is_done(&self, mark: &Mark) -> bool {
        mark.is_done()
    }

    /// Both times are of the device's clock, which we cannot read; but we know when the marker was enqueued by ours.
    fn done_at(&self, mark: &Mark) -> Option<Nanos> {
        let times = self.profiled.then(|| mark.time(vendor::TIME_END).zip(mark.time(vendor::TIME_QUEUED)));
        let (end, queued) = times.flatten()?;
        Some(mark.placed + Nanos(end.checked_sub(queued)?))
    }

    fn synchronize(&self, queue: Shared) -> Result<(), String> {
        let finish = vendor::FINISH.get().ok_or("the library has no clFinish")?;
        // SAFETY: the lease makes sure that the queue exists.
        let code = unsafe { finish(queue.0) };
        if code == vendor::SUCCESS { Ok(()) } else { Err(error(code)) }
    }

    fn waits_for_program(&self, queue: Shared) -> bool {
        waits::for_program(queue.0)
    }

    fn stop(&self) {
        if let Some(stalls) = &self.stalls {
            stalls.stop();
        }
    }

    fn go(&self) {
        if let Some(stalls) = &self.stalls {
            stalls.go();
        }
    }

    fn end(&self) {
        self.go();
        waits::forget(self.queue.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of 32-bit numbers.
    fn bytes(numbers: &[u32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
    }

    /// What a device is taken for that answers these questions.
    fn address(answers: &[(c_uint, Vec<u8>)]) -> Option<String> {
        let ask = |what: c_uint, place: &mut [u8]| {
            let answer = answers.iter().find(|(asked, answer)| *asked == what && answer.len() == place.len());
            answer.inspect(|(_, answer)| place.copy_from_slice(answer)).is_some()
        };
        pci(ask).map(|address| DeviceId::new(DeviceKind::Gpu, address).to_string())
    }

    #[test]
    fn a_gpu_is_the_same_whoever_tells_its_address() {
        let khronos = (vendor::PCI, bytes(&[0, 0x41, 3, 1]));
        assert_eq!(address(&[khronos]).as_deref(), Some("0000:41:03.1"));
        let nvidia = [(vendor::PCI_BUS_NV, 0x41), (vendor::PCI_SLOT_NV, 0x19), (vendor::PCI_DOMAIN_NV, 0)];
        let nvidia = nvidia.map(|(what, number)| (what, bytes(&[number])));
        assert_eq!(address(&nvidia).as_deref(), Some("0000:41:03.1"));
        let mut topology = vec![0; 24];
        (topology[0], topology[21], topology[22], topology[23]) = (1, 0x41, 3, 1);
        assert_eq!(address(&[(vendor::TOPOLOGY_AMD, topology)]).as_deref(), Some("0000:41:03.1"));
        assert_eq!(address(&[(vendor::TOPOLOGY_AMD, vec![0; 24])]), None);
        assert_eq!(address(&[]), None);
    }
}

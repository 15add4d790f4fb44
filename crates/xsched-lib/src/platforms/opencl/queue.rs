//! An OpenCL command queue as a hardware queue of the core. Markers are OpenCL's own, polled for their status.

use xsched_core::{DeviceId, DeviceKind, Nanos};

use super::stop_points::stop_points;
use super::vendor::{self, Event, Handle, Queue};
use crate::event_queue::{EventApi, EventQueue};
use crate::event_wait_lists::{self, WaitListApi};
use crate::hooks::call;

/// A queue that the program created; none if it is an on-device queue, or if the vendor does not report its device.
pub(crate) fn new_queue(queue: Queue) -> Option<EventQueue<OpenCl>> {
    vendor::QUEUE_PROPERTIES.of(queue).filter(|properties| properties & vendor::ON_DEVICE == 0)?;
    let device = vendor::QUEUE_DEVICE.of(queue)?;
    let (id, name) = identify(device);
    let level_1 = EventQueue::new(queue, id, name, "OpenCL cannot interrupt a running kernel");
    Some(level_1.with_stop_points(stop_points(queue, device)))
}

/// The device's id and name. A PCI address identifies it, so that it is the same device to CUDA and HIP; otherwise its name
/// does.
fn identify(device: Handle) -> (DeviceId, String) {
    let name = vendor::DEVICE_NAME.text(device);
    let kind = match vendor::DEVICE_TYPE.of(device) {
        Some(kind) if kind & vendor::CPU != 0 => DeviceKind::Cpu,
        Some(kind) if kind & vendor::GPU != 0 => DeviceKind::Gpu,
        _ => DeviceKind::Unknown,
    };
    let id = pci_address(device)
        .map_or_else(|| DeviceId::named(kind, &name), |address| DeviceId::new(kind, address));
    (id, name)
}

/// The PCI address, by the queries of Khronos, NVIDIA or AMD.
fn pci_address(device: Handle) -> Option<u32> {
    let nvidia = || {
        let (bus, slot) = (vendor::PCI_BUS_NV.of(device)?, vendor::PCI_SLOT_NV.of(device)?);
        Some([vendor::PCI_DOMAIN_NV.of(device).unwrap_or(0), bus, slot >> 3, slot & 7])
    };
    let amd = || {
        let topology = vendor::TOPOLOGY_AMD.of(device).filter(|topology| topology[0] == 1)?;
        Some([0, topology[21], topology[22], topology[23]].map(u32::from))
    };
    let [domain, bus, slot, function] = vendor::PCI.of(device).or_else(nvidia).or_else(amd)?;
    Some((domain << 16) | (bus << 8) | (slot << 3) | function)
}

/// OpenCL's functions for queues and events.
pub(crate) struct OpenCl;

impl EventApi for OpenCl {
    fn record(queue: Queue) -> Result<Event, String> {
        Self::record_after(queue, &[])
    }

    /// The event of a failed command has a status below 0.
    fn is_complete(event: Event) -> bool {
        vendor::EVENT_STATUS.of(event).is_none_or(|status| status <= 0)
    }

    /// Known for queues with profiling only. The times are of a clock that cannot be read otherwise.
    fn duration(event: Event) -> Option<Nanos> {
        let done = vendor::TIME_DONE.of(event)?;
        done.checked_sub(vendor::TIME_QUEUED.of(event)?).map(Nanos)
    }

    fn release(event: Event) {
        // SAFETY: `record` created the event, and the caller releases it once. A failure cannot be handled.
        let _ = unsafe { call!(vendor::RELEASE_EVENT, event) };
    }

    fn synchronize(queue: Queue) -> Result<(), String> {
        // SAFETY: the caller makes sure that the queue exists.
        unsafe { call!(vendor::FINISH, queue) }
    }
}

impl WaitListApi for OpenCl {
    /// Without events, the marker waits for everything launched before it.
    fn record_after(queue: Queue, events: &[Event]) -> Result<Event, String> {
        let mut event = Handle::NONE;
        let (count, list) = event_wait_lists::to_c_list(events);
        // SAFETY: the caller makes sure that the queue exists; `count` is the length of the list, and `event` has room for
        // a handle.
        let marked = unsafe { call!(vendor::MARK, queue, count, list, &raw mut event) };
        // SAFETY: as above. Commands that are not flushed may never be submitted.
        let _ = unsafe { call!(vendor::FLUSH, queue) };
        marked.map(|()| event)
    }

    fn queue_of(event: Event) -> Queue {
        vendor::EVENT_QUEUE.of(event).unwrap_or(Handle::NONE)
    }
}

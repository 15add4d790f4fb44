//! An OpenCL command queue. Markers are OpenCL's own, asked for their status.

use xsched_core::{DeviceId, DeviceKind, Nanos};

use super::stall;
use super::vendor::{self, Event, Handle, Queue};
use crate::event_queue::{EventApi, EventQueue};
use crate::event_wait_lists;
use crate::hooks::call;

/// A queue that the program has made; none if it is the device's own, or if the vendor cannot be asked.
pub(crate) fn take(queue: Queue) -> Option<EventQueue<OpenCl>> {
    vendor::QUEUE_PROPERTIES.of(queue).filter(|how| how & vendor::ON_DEVICE == 0)?;
    let device = vendor::QUEUE_DEVICE.of(queue)?;
    let (id, name) = identify(device);
    let level_1 = EventQueue::new(queue, id, name, "OpenCL cannot stop a kernel that runs");
    Some(level_1.with_stops(stall::points(queue, device)))
}

/// By its address on the PCI bus, so that a GPU is the same one to CUDA; else by what it is called.
fn identify(device: Handle) -> (DeviceId, String) {
    let name = vendor::DEVICE_NAME.text(device);
    let kind = match vendor::DEVICE_TYPE.of(device) {
        Some(kind) if kind & vendor::CPU != 0 => DeviceKind::Cpu,
        Some(kind) if kind & vendor::GPU != 0 => DeviceKind::Gpu,
        _ => DeviceKind::Unknown,
    };
    (pci(device).map_or_else(|| DeviceId::named(kind, &name), |at| DeviceId::new(kind, at)), name)
}

/// Asks as Khronos, NVIDIA and AMD each have it.
fn pci(device: Handle) -> Option<u32> {
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

/// What is OpenCL's own about queues and events.
pub(crate) struct OpenCl;

impl EventApi for OpenCl {
    fn mark(queue: Queue, behind: &[Event]) -> Result<Event, String> {
        let mut event = Handle::NONE;
        let (count, list) = event_wait_lists::to_c_list(behind);
        // SAFETY: whoever calls this has seen to it that the queue exists; the events are as many as is said, and the
        // place has room for a handle.
        let marked = unsafe { call!(vendor::MARK, queue, count, list, &raw mut event) };
        // SAFETY: as above. What is not flushed may never be done.
        let _ = unsafe { call!(vendor::FLUSH, queue) };
        marked.map(|()| event)
    }

    /// One whose command failed has a status below 0.
    fn is_done(event: Event) -> bool {
        vendor::EVENT_STATUS.of(event).is_none_or(|status| status <= 0)
    }

    /// Only a queue with profiling has times, of a clock that we cannot read.
    fn took(event: Event) -> Option<Nanos> {
        let done = vendor::TIME_DONE.of(event)?;
        done.checked_sub(vendor::TIME_QUEUED.of(event)?).map(Nanos)
    }

    fn queue_of(event: Event) -> Queue {
        vendor::EVENT_QUEUE.of(event).unwrap_or(Handle::NONE)
    }

    fn release(event: Event) {
        // SAFETY: an event of ours, given back once. There is nothing to be done if that fails.
        let _ = unsafe { call!(vendor::RELEASE_EVENT, event) };
    }

    fn synchronize(queue: Queue) -> Result<(), String> {
        // SAFETY: the lease makes sure that the queue exists.
        unsafe { call!(vendor::FINISH, queue) }
    }
}

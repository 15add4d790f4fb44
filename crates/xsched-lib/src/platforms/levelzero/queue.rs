//! A command queue or an immediate list as a hardware queue of the core. [`super::markers`] has the markers of both.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xsched_core::{DeviceId, DeviceKind};
use xsched_ipc::report::report_to_user;

use super::markers::{MarkerKind, Markers, Spare};
use super::vendor::{self, DeviceProperties, Handle, PciProperties, QueueDescription};
use crate::event_queue::EventQueue;
use crate::hooks::call;

/// What the program created a queue with, and the markers for it.
pub(crate) struct Created {
    pub(crate) context: Handle,
    pub(crate) device: Handle,
    /// The group of queues that it belongs to.
    pub(crate) ordinal: u32,
    is_synchronous: bool,
    pub(crate) spare: Mutex<Spare>,
    destroy: fn(&mut Spare),
}

impl Drop for Created {
    fn drop(&mut self) {
        (self.destroy)(&mut lock(&self.spare));
    }
}

/// The queues of the program, by handle.
static CREATED: Mutex<BTreeMap<usize, Arc<Created>>> = Mutex::new(BTreeMap::new());
static SYNCHRONOUS_QUEUES: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The program has created a queue.
pub(crate) fn created<K: MarkerKind>(queue: Handle, context: Handle, device: Handle, by: &QueueDescription) {
    let is_synchronous = by.mode == vendor::SYNCHRONOUS;
    SYNCHRONOUS_QUEUES.fetch_add(usize::from(is_synchronous), Ordering::Relaxed);
    let (ordinal, spare) = (by.ordinal, Mutex::default());
    let created = Created { context, device, ordinal, is_synchronous, spare, destroy: K::destroy };
    lock(&CREATED).insert(queue.addr(), Arc::new(created));
}

/// The program is about to destroy a queue, which is not tracked any more.
pub(crate) fn destroyed(queue: Handle) {
    // Dropped without the lock.
    let created = lock(&CREATED).remove(&queue.addr());
    if created.is_some_and(|created| created.is_synchronous) {
        SYNCHRONOUS_QUEUES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether every launch on a queue waits for its work.
pub(crate) fn is_synchronous(queue: Handle) -> bool {
    SYNCHRONOUS_QUEUES.load(Ordering::Relaxed) > 0
        && lock(&CREATED).get(&queue.addr()).is_some_and(|queue| queue.is_synchronous)
}

/// What a queue was created with.
pub(crate) fn find(queue: Handle) -> Result<Arc<Created>, String> {
    lock(&CREATED).get(&queue.addr()).cloned().ok_or_else(|| "its creation was not intercepted".to_owned())
}

/// Opens a queue. If the driver lacks what markers need, reports that, and the queue runs unscheduled.
pub(crate) fn open<K: MarkerKind>(queue: Handle) -> Option<EventQueue<Markers<K>>> {
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    let opened = find(queue).and_then(|created| {
        K::create(queue, &created, &mut lock(&created.spare))?;
        let (id, name) = identify(created.device)?;
        let opened = EventQueue::new(queue, id, name, "Level Zero cannot stop a queue");
        Ok(if K::ANY_THREAD && !created.is_synchronous {
            opened
        } else {
            opened.marked_by_launching_thread()
        })
    });
    let report = |why: &String| {
        report_to_user(&IS_REPORTED, format_args!("a Level Zero queue runs unscheduled: {why}"));
    };
    opened.inspect_err(report).ok()
}

/// The device's id and name. A PCI address identifies it, so that it is the same device to other interfaces; otherwise its name does.
fn identify(device: Handle) -> Result<(DeviceId, String), String> {
    let (mut properties, mut pci) = (DeviceProperties::new(), PciProperties::new());
    // SAFETY: the device of a queue that the program created, and a structure of the type that the function fills.
    unsafe { call!(vendor::DEVICE_PROPERTIES, device, &raw mut properties) }
        .map_err(|why| format!("the properties of its device: {why}"))?;
    let kind = match properties.kind {
        vendor::GPU => DeviceKind::Gpu,
        vendor::CPU => DeviceKind::Cpu,
        vendor::NPU => DeviceKind::Npu,
        _ => DeviceKind::Unknown,
    };
    // SAFETY: as above.
    let id = match unsafe { call!(vendor::PCI_PROPERTIES, device, &raw mut pci) } {
        Ok(()) => {
            let [domain, bus, slot, function] = pci.address;
            DeviceId::new(kind, (domain << 16) | (bus << 8) | (slot << 3) | function)
        }
        Err(_) => DeviceId::named(kind, &properties.name()),
    };
    Ok((id, properties.name()))
}

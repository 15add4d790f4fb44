//! A queue of `ROCr` as a hardware queue of the core. A marker is a barrier packet after all packets in the queue, which
//! decrements a signal when it completes.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use xsched_core::{Capabilities, DeviceId, DeviceKind, HalError, HwQueue, Level, Marker, Order, Progress};
use xsched_interpose::RevocableHandle;
use xsched_ipc::kfd_topology::device_address;

use super::doorbells::Doorbell;
use super::table::{self, MULTIPLE_PRODUCERS, Packet, QueueHandle};
use crate::platforms::hip::preemption::{Preemption, StopSupport};
use crate::tracked_queue::VendorQueue;

/// How long [`HwQueue::synchronize`] sleeps between two reads of the signal.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// The initial value of a queue's signal. The device decrements it by one for each marker.
const INITIAL_SIGNAL_VALUE: i64 = i64::MAX / 2;

/// The marker signal of each queue, by its doorbell signal, until the queue is destroyed.
static MARKER_SIGNALS: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// Removes and returns the marker signal of a queue that is about to be destroyed.
pub(super) fn take_marker_signal(doorbell: u64) -> Option<u64> {
    let mut signals = MARKER_SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
    let index = signals.iter().position(|known| known.0 == doorbell)?;
    Some(signals.swap_remove(index).1)
}

#[derive(Clone, Copy)]
struct Handle(QueueHandle);
// SAFETY: the runtime's functions may be called from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// See the head of this file.
pub(super) struct HsaQueue {
    handle: RevocableHandle<Handle>,
    doorbell: &'static Doorbell,
    /// The doorbell's signal. If that of `doorbell` differs, its entry belongs to another queue now.
    doorbell_signal: u64,
    marker_signal: u64,
    markers: Mutex<PacketMarkers>,
    preemption: Preemption,
}

/// A marker is the number of packets up to and including its own.
#[derive(Default)]
struct PacketMarkers {
    pending: VecDeque<Marker>,
    completed: u64,
    reached: Marker,
}

impl HsaQueue {
    /// None if the runtime does not report the queue's device.
    pub(super) fn new(doorbell: &'static Doorbell) -> Option<Self> {
        let doorbell_signal = doorbell.signal();
        let device = device_of(doorbell.agent())?;
        let mut marker_signal = 0;
        let create = table::SIGNAL_CREATE.get()?;
        // SAFETY: an empty list of consumers permits all agents; `marker_signal` has room for a handle.
        let status = unsafe { create(INITIAL_SIGNAL_VALUE, 0, std::ptr::null(), &raw mut marker_signal) };
        if status != table::SUCCESS {
            return None;
        }
        let mut signals = MARKER_SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
        signals.retain(|known| known.0 != doorbell_signal);
        signals.push((doorbell_signal, marker_signal));
        drop(signals);
        let stop_support = StopSupport::find_kfd(device);
        stop_support.report_once("HSA");
        let handle = RevocableHandle::new(Handle(doorbell.queue()));
        let preemption = Preemption::register(device, stop_support);
        Some(Self { handle, doorbell, doorbell_signal, marker_signal, markers: Mutex::default(), preemption })
    }

    fn markers(&self) -> MutexGuard<'_, PacketMarkers> {
        self.markers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Places a barrier packet after all packets in the queue. Fails if the program has written packets without ringing the
    /// doorbell for them: ringing it for the marker would submit those, too.
    fn place_marker(&self) -> Result<Marker, &'static str> {
        let placed = self.handle.with(|Handle(queue)| {
            // SAFETY: while the handle is held the program cannot destroy the queue.
            let (kind, base, size) = unsafe { ((*queue).kind, (*queue).base, u64::from((*queue).size)) };
            if kind != MULTIPLE_PRODUCERS || self.doorbell.signal() != self.doorbell_signal {
                return Err("only the program may write to the queue");
            }
            let (Some(read_index), Some(exchange_write_index), Some(ring)) =
                (table::READ_INDEX.get(), table::EXCHANGE_WRITE_INDEX.get(), table::STORE_RELEASE.get())
            else {
                return Err("the runtime was shut down");
            };
            let index = self.doorbell.rung_packets();
            // The device may have read further than the recorded packets: then a program's thread is submitting some.
            // SAFETY: as above.
            let unread = unsafe { index.checked_sub(read_index(queue)) };
            let has_room = unread.is_some_and(|unread| unread + 1 < size);
            // SAFETY: as above.
            if !has_room || unsafe { exchange_write_index(queue, index, index + 1) } != index {
                return Err("the queue is full, or the program is writing to it");
            }
            let slot = usize::try_from(index & (size - 1)).unwrap_or(0);
            // SAFETY: the exchange of the write index has reserved this packet, and there was room for it.
            unsafe {
                let packet = base.add(slot);
                packet.byte_add(4).cast::<u8>().write_bytes(0, size_of::<Packet>() - 4);
                (*packet).completion_signal = self.marker_signal;
                // Release: the device sees a complete packet.
                (*packet).header.store(Packet::BARRIER_AND | Packet::BARRIER_BIT, Ordering::Release);
                ring(self.doorbell_signal, index.cast_signed());
            }
            self.doorbell.record_ring(index.cast_signed());
            Ok(index + 1)
        });
        placed.unwrap_or(Err("the queue was destroyed"))
    }
}

/// The device of an agent, by its PCI address.
fn device_of(agent: u64) -> Option<DeviceId> {
    /// `HSA_AMD_AGENT_INFO_BDFID` and `HSA_AMD_AGENT_INFO_DOMAIN`.
    const BDF_ID: u32 = 0xa006;
    const DOMAIN: u32 = 0xa00f;
    let info = |attribute: u32| {
        let mut value = 0_u32;
        // SAFETY: `value` has room for each of the attributes.
        let status = unsafe { table::AGENT_INFO.get()?(agent, attribute, (&raw mut value).cast::<c_void>()) };
        (status == table::SUCCESS).then_some(value)
    };
    // As in the driver's topology, with the number of a partition.
    let address = device_address(info(DOMAIN).unwrap_or(0), info(BDF_ID)?);
    Some(DeviceId::new(DeviceKind::Gpu, address))
}

impl VendorQueue for HsaQueue {
    fn revoke(&self) {
        self.handle.revoke();
        self.preemption.unregister();
    }
}

impl HwQueue for HsaQueue {
    fn device(&self) -> DeviceId {
        self.preemption.device()
    }

    fn capabilities(&self) -> &Capabilities {
        self.preemption.capabilities()
    }

    fn mark(&self) -> Result<Marker, HalError> {
        // Locked while the marker is placed, so that markers are pending in the order of their packets.
        let mut markers = self.markers();
        let marker = self.place_marker().map_err(|why| self.preemption.error("placing a marker", why))?;
        markers.pending.push_back(marker);
        self.preemption.set_launched();
        Ok(marker)
    }

    fn progress(&self) -> Progress {
        let mut markers = self.markers();
        let value = self.handle.with(|_| {
            // SAFETY: the signal exists while the queue does, and the program cannot destroy the queue while the handle is
            // held.
            table::SIGNAL_LOAD.get().map(|load| unsafe { load(self.marker_signal) })
        });
        match value.flatten() {
            Some(value) => {
                let completed = u64::try_from(INITIAL_SIGNAL_VALUE.saturating_sub(value)).unwrap_or(0);
                while markers.completed < completed {
                    markers.completed += 1;
                    markers.reached = markers.pending.pop_front().unwrap_or(markers.reached);
                }
            }
            None => markers.reached = Marker::MAX,
        }
        Progress { marker: markers.reached, at: None }
    }

    /// A packet that may wait for the program must not be waited for: the calling thread may be the one that ends the wait.
    fn check_waitable(&self) -> Result<(), HalError> {
        if self.doorbell.program_dependency() > self.markers().reached {
            let why = "the queue waits for the program";
            return Err(self.preemption.error("waiting for a marker", why));
        }
        Ok(())
    }

    fn query_busy(&self) -> Option<bool> {
        self.preemption.query_busy()
    }

    fn synchronize(&self) -> Result<(), HalError> {
        let marker = self.mark()?;
        while self.progress().marker < marker {
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

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
}

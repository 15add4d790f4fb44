//! A queue of `ROCr`'s. A marker is a barrier packet behind everything in the queue, which counts a signal of ours down.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use xsched_core::{
    Capabilities, DeviceId, DeviceKind, HalError, HwQueue, Level, LevelRequest, Marker, Order, Progress,
};
use xsched_interpose::RevocableHandle;
use xsched_ipc::report::{Severity, report};

use super::doorbells::Doorbell;
use super::table::{self, MANY_WRITERS, Packet, QueueHandle};
use crate::platforms::hip::group::Member;
use crate::platforms::hip::kfd;
use crate::tracked_queue::VendorQueue;

/// How long to wait before looking at the signal again.
const POLL: Duration = Duration::from_micros(50);

/// What the signal of a queue begins with: the device counts it down by one for each marker.
const START: i64 = i64::MAX / 2;

/// Signals by doorbell, until their queues are destroyed.
static SIGNALS: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// The signal of a queue that is about to be destroyed.
pub(super) fn take_signal(doorbell: u64) -> Option<u64> {
    let mut signals = SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
    let at = signals.iter().position(|known| known.0 == doorbell)?;
    Some(signals.swap_remove(at).1)
}

#[derive(Clone, Copy)]
struct Handle(QueueHandle);
// SAFETY: the runtime's functions may be called from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// See the head of this file.
pub(super) struct HsaQueue {
    lease: RevocableHandle<Handle>,
    doorbell: &'static Doorbell,
    /// The doorbell's handle: what has its place after it is not meant.
    rings: u64,
    signal: u64,
    device: DeviceId,
    capabilities: Capabilities,
    marks: Mutex<Marks>,
    queues: Option<Member>,
}

/// The number of a marker is that of the packets before and with it.
#[derive(Default)]
struct Marks {
    placed: VecDeque<Marker>,
    counted: u64,
    reached: Marker,
}

impl HsaQueue {
    /// None if the runtime cannot be asked about it.
    pub(super) fn new(doorbell: &'static Doorbell) -> Option<Self> {
        let rings = doorbell.signal();
        let device = device_of(doorbell.agent())?;
        let mut signal = 0;
        // SAFETY: any number of agents may use it; the place has room for a handle.
        let status = unsafe { table::SIGNAL_CREATE.get()?(START, 0, std::ptr::null(), &raw mut signal) };
        if status != table::SUCCESS {
            return None;
        }
        let mut signals = SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
        signals.retain(|known| known.0 != rings);
        signals.push((rings, signal));
        drop(signals);
        let queues = Member::by_driver(device);
        if let Err(why) = &queues {
            tell_once(why);
        }
        let cost = queues.as_ref().map(|_| kfd::COST).map_err(Clone::clone);
        let capabilities = Capabilities::block_only(format!("device {device}"), "");
        let capabilities = capabilities.with_deactivate(cost.clone()).with_interrupt(cost);
        let lease = RevocableHandle::new(Handle(doorbell.queue()));
        let (marks, queues) = (Mutex::default(), queues.ok());
        Some(Self { lease, doorbell, rings, signal, device, capabilities, marks, queues })
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, what: &'static str, why: impl Into<String>) -> HalError {
        HalError::Driver { device: self.capabilities.device().to_owned(), what, why: why.into() }
    }

    /// Puts a marker behind everything in the queue. Only where nothing was written that was not rung for: to ring for the
    /// marker would ring for that too.
    fn place(&self) -> Result<Marker, &'static str> {
        let full = "the queue is full, or being written to";
        let placed = self.lease.with(|Handle(queue)| {
            // SAFETY: the lease makes sure that the queue exists.
            let (kind, base, size) = unsafe { ((*queue).kind, (*queue).base, u64::from((*queue).size)) };
            if kind != MANY_WRITERS || self.doorbell.signal() != self.rings {
                return Err("only its program may write to the queue");
            }
            let (Some(read), Some(change), Some(ring)) =
                (table::READ_INDEX.get(), table::CHANGE_WRITE_INDEX.get(), table::STORE_RELEASE.get())
            else {
                return Err("the runtime has ended");
            };
            let index = self.doorbell.packets();
            // The device may have read further than we have been told: then it is being written to.
            // SAFETY: as above.
            let room = unsafe { index.checked_sub(read(queue)) }.is_some_and(|unread| unread + 1 < size);
            // SAFETY: as above.
            if !room || unsafe { change(queue, index, index + 1) } != index {
                return Err(full);
            }
            let place = usize::try_from(index & (size - 1)).unwrap_or(0);
            // SAFETY: the packet is ours since the index was changed, and there was room for it.
            unsafe {
                let packet = base.add(place);
                packet.byte_add(4).cast::<u8>().write_bytes(0, size_of::<Packet>() - 4);
                (*packet).done = self.signal;
                // Release: the device sees a whole packet.
                (*packet).header.store(Packet::BARRIER_AND | Packet::IN_ORDER, Ordering::Release);
                ring(self.rings, index.cast_signed());
            }
            self.doorbell.rung(index.cast_signed());
            Ok(index + 1)
        });
        placed.unwrap_or(Err("the queue was destroyed"))
    }

    /// What may only go on once the program does something must not be waited for.
    fn waits_for_program(&self, marks: &Marks) -> bool {
        self.doorbell.depends() > marks.reached
    }
}

fn tell_once(why: &str) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        report(Severity::Warning, format_args!("HSA is scheduled at level 1: {why}"));
    }
}

/// A device by its address on the bus.
fn device_of(agent: u64) -> Option<DeviceId> {
    /// `HSA_AMD_AGENT_INFO_BDFID` and `HSA_AMD_AGENT_INFO_DOMAIN`.
    const ADDRESS: u32 = 0xa006;
    const DOMAIN: u32 = 0xa00f;
    let ask = |what: u32| {
        let mut answer = 0_u32;
        // SAFETY: the place has room for what is asked.
        let status = unsafe { table::AGENT_INFO.get()?(agent, what, (&raw mut answer).cast::<c_void>()) };
        (status == table::SUCCESS).then_some(answer)
    };
    let address = ask(ADDRESS)? & 0xffff;
    Some(DeviceId::new(DeviceKind::Gpu, (ask(DOMAIN).unwrap_or(0) << 16) | address))
}

impl VendorQueue for HsaQueue {
    fn revoke(&self) {
        self.lease.revoke();
        if let Some(queues) = &self.queues {
            queues.leave();
        }
    }
}

impl HwQueue for HsaQueue {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mark(&self) -> Result<Marker, HalError> {
        // Held meanwhile, so that markers lie in the queue in the order they have here.
        let mut marks = self.marks();
        let marker = self.place().map_err(|why| self.failed("placing a marker", why))?;
        marks.placed.push_back(marker);
        Ok(marker)
    }

    fn progress(&self) -> Progress {
        let mut marks = self.marks();
        let value = self.lease.with(|_| {
            // SAFETY: the signal lives as long as the queue, which the lease makes sure of.
            table::SIGNAL_LOAD.get().map(|load| unsafe { load(self.signal) })
        });
        match value.flatten() {
            Some(value) => {
                let counted = u64::try_from(START.saturating_sub(value)).unwrap_or(0);
                while marks.counted < counted {
                    marks.counted += 1;
                    marks.reached = marks.placed.pop_front().unwrap_or(marks.reached);
                }
            }
            None => marks.reached = Marker::MAX,
        }
        Progress { marker: marks.reached, at: None }
    }

    fn check_waitable(&self) -> Result<(), HalError> {
        if self.waits_for_program(&self.marks()) {
            return Err(self.failed("waiting for a marker", "the queue waits for the program"));
        }
        Ok(())
    }

    fn synchronize(&self) -> Result<(), HalError> {
        let marker = self.mark()?;
        while self.progress().marker < marker {
            std::thread::sleep(POLL);
        }
        Ok(())
    }

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

//! The thread of a scheduled process that moves its device memory to the host and back, as the scheduler orders.
//!
//! ```text
//!   resident ─order to park─► draining ─► moving out ─► parked ─order to unpark, or no scheduler─► moving in ─► resident
//!       ▲                        │            │            ▲                                           │
//!       └──── not drained in time, no host memory, a failed copy    the device is full ────────────────┘
//! ```
//! Data is in one place at least at any time: memory is released only after all of it was copied. Without a scheduler, and if
//! the scheduler is silent, the process brings its memory back and runs.

use std::sync::{Arc, Weak};
use std::time::Duration;

use xsched_core::call_gate::CallGate;
use xsched_core::{HEARTBEAT, SchedulerLink as _};

use crate::page::{Parking, ParkingFailure, ParkingOrder, ParkingState};
use crate::process_threads::{ORDER_WAIT_TIMEOUT, PARKING_WAKE_MASK, repeat_on_orders};
use crate::scheduled_process::ScheduledProcess;

/// How long the work that was launched may take to complete. A thread that is held for as long abandons the parking.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// How much device memory a process has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// How much can be moved, in bytes.
    pub movable: u64,
    /// The kinds of memory that stay: bits of [`crate::page::Staying`].
    pub staying: u32,
}

/// Device memory that can be moved. A platform implements it.
pub trait MovableMemory: Send + Sync {
    /// The gate of all calls that use the memory.
    fn gate(&self) -> &CallGate;

    /// How much memory there is.
    fn amounts(&self) -> Amounts;

    /// Waits until the devices have completed everything that the process has launched. No call is in progress.
    fn drain(&self) -> Result<(), ParkingFailure>;

    /// Moves the memory to the host. On failure all of it is on the device, and valid. `report` is called with the bytes that
    /// were copied so far.
    fn move_out(&self, report: &dyn Fn(u64)) -> Result<(), ParkingFailure>;

    /// Moves the memory back. On failure all of it is in memory of the host. `report` is called with the bytes that are still
    /// there.
    fn move_in(&self, report: &dyn Fn(u64)) -> Result<(), ParkingFailure>;
}

/// The body of the thread. Returns when the process is gone.
pub(crate) fn run(process: &Weak<ScheduledProcess>, memory: &dyn MovableMemory) {
    let mut thread = Thread { memory, published: Parking::default(), answered: None };
    repeat_on_orders(process, PARKING_WAKE_MASK, |process| Some(thread.step(process)));
}

struct Thread<'a> {
    memory: &'a dyn MovableMemory,
    published: Parking,
    /// The order that was carried out or given up.
    answered: Option<ParkingOrder>,
}

impl Thread<'_> {
    /// Carries out the present order. Returns how long to wait for the next one at most.
    fn step(&mut self, process: &ScheduledProcess) -> Duration {
        let binding = process.binding();
        let order = binding.page.parking_order();
        let is_parked = self.memory.gate().is_committed();
        let has_scheduler = binding.has_scheduler() && (!order.parks || process.is_alive());
        let parks = order.parks && has_scheduler;
        if parks && !is_parked && self.answered != Some(order) {
            let result = self.park(process);
            self.answer(process, order, result.err());
        } else if !parks && is_parked {
            let result = self.unpark(process);
            self.answer(process, order, result.err());
        } else {
            if self.published.answered != order.number && parks == is_parked {
                self.published.failure = None;
                self.published.answered = order.number;
                self.answered = Some(order);
            }
            self.publish(process, self.settled_state());
        }
        // A parked process checks whether the scheduler is alive, and whether there is room on the device.
        if self.memory.gate().is_committed() { HEARTBEAT } else { ORDER_WAIT_TIMEOUT }
    }

    fn settled_state(&self) -> ParkingState {
        if self.memory.gate().is_committed() { ParkingState::Parked } else { ParkingState::Resident }
    }

    fn park(&mut self, process: &ScheduledProcess) -> Result<(), ParkingFailure> {
        let gate = self.memory.gate();
        gate.close();
        self.publish(process, ParkingState::Draining);
        let drained = gate.wait_until_empty(DRAIN_TIMEOUT).then_some(()).ok_or(ParkingFailure::NotDrained);
        drained.and_then(|()| self.memory.drain()).inspect_err(|_| {
            gate.open();
        })?;
        // A thread that was held for too long has abandoned it, or the scheduler is gone.
        if !gate.commit() {
            return Err(ParkingFailure::NotDrained);
        }
        self.publish(process, ParkingState::MovingOut);
        let moved =
            self.memory.move_out(&|bytes| self.publish_moved(process, ParkingState::MovingOut, bytes));
        if moved.is_err() {
            gate.open();
        }
        moved
    }

    fn unpark(&mut self, process: &ScheduledProcess) -> Result<(), ParkingFailure> {
        self.memory.move_in(&|bytes| self.publish_moved(process, ParkingState::MovingIn, bytes))?;
        self.memory.gate().open();
        Ok(())
    }

    fn answer(&mut self, process: &ScheduledProcess, order: ParkingOrder, failure: Option<ParkingFailure>) {
        self.answered = Some(order);
        self.published.answered = order.number;
        self.published.failure = failure;
        self.publish(process, self.settled_state());
    }

    /// Publishes the state, and notifies the scheduler if something has changed.
    fn publish(&mut self, process: &ScheduledProcess, state: ParkingState) {
        let before = process.binding().page.parking();
        let Amounts { movable, staying } = self.memory.amounts();
        self.published = Parking {
            state,
            movable,
            moved: if state == ParkingState::Parked { movable } else { 0 },
            held_threads: self.memory.gate().held(),
            ..self.published
        }
        .with_staying(staying);
        process.binding().page.set_parking(&self.published);
        if before != self.published {
            process.notify();
        }
    }

    /// Publishes how much is in memory of the host. The scheduler reads it for status reports only.
    fn publish_moved(&self, process: &ScheduledProcess, state: ParkingState, moved: u64) {
        process.binding().page.set_parking(&Parking { state, moved, ..self.published });
    }
}

/// Starts the thread.
pub(crate) fn start(process: &Arc<ScheduledProcess>, memory: Arc<dyn MovableMemory>) -> std::io::Result<()> {
    let process = Arc::downgrade(process);
    crate::threads::start("xsched-swap", crate::threads::CpuScheduling::Inherited, move || {
        run(&process, &*memory);
    })
}

//! Programs whose device memory is moved to the host and back: the orders, and what follows from them for the schedule.

use xsched_core::{Nanos, Order};

use super::program::Program;
use super::{ClientId, Coordinator};
use crate::page::{Parking, ParkingOrder, ParkingState};

/// For how long the queues of a program that drains may run whatever their precedence. Longer than a program waits for its own calls.
const DRAIN_LIMIT: Nanos = Nanos::from_secs(60);

/// What a program was ordered, and what it has published when its page was read last.
#[derive(Debug, Default)]
pub(super) struct ProgramParking {
    order: ParkingOrder,
    ordered_at: Nanos,
    published: Parking,
}

/// What was ordered and published, for status reports.
#[derive(Clone, Copy, Debug)]
pub struct ParkingReport {
    /// The order in force.
    pub order: ParkingOrder,
    /// What the program publishes.
    pub published: Parking,
}

impl ParkingReport {
    /// Whether the program has carried out the order, or has given it up.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.published.answered == self.order.number
    }

    /// Whether the program is parked or was ordered to park, and has not given that up.
    #[must_use]
    pub fn is_parked(&self) -> bool {
        let is_given_up = self.is_settled() && self.published.failure.is_some();
        self.published.state.is_held() || (self.order.parks && !is_given_up)
    }
}

impl ProgramParking {
    /// Takes over what the program has published. Returns whether it is parked now and was not before, or the reverse.
    pub(super) fn read(&mut self, published: Parking) -> bool {
        let was_held = self.is_held();
        self.published = published;
        was_held != self.is_held()
    }

    /// Whether the calls of the program are held.
    pub(super) fn is_held(&self) -> bool {
        self.published.state.is_held()
    }

    /// Whether the device has to complete what the program has launched. Also while the memory moves: the driver waits for all streams
    /// when it unmaps memory. For a limited time: a program that claims it for longer is scheduled like any other.
    fn must_complete(&self, now: Nanos) -> bool {
        self.order.parks
            && matches!(self.published.state, ParkingState::Draining | ParkingState::MovingOut)
            && now - self.ordered_at < DRAIN_LIMIT
    }

    /// Whether the program has to know that the scheduler is alive.
    fn needs_heartbeat(&self) -> bool {
        self.order.parks
    }
}

impl Program {
    /// Orders the program to park, or to bring its memory back.
    fn order_parking(&mut self, parks: bool, now: Nanos) {
        let number = self.parking.order.number.wrapping_add(1) & (u32::MAX >> 1);
        self.parking.order = ParkingOrder { number: number.max(1), parks };
        self.parking.ordered_at = now;
        self.page.set_heartbeat(now);
        self.page.set_parking_order(self.parking.order);
        self.page.orders().bump();
    }

    /// What it was ordered and publishes now. None if its memory cannot be moved.
    pub(super) fn report_parking(&self) -> Option<ParkingReport> {
        let published = self.page.parking();
        let is_movable = published.state != ParkingState::Fixed;
        is_movable.then_some(ParkingReport { order: self.parking.order, published })
    }

    /// The scheduler ends: the program brings its memory back.
    pub(super) fn release_parking(&mut self) {
        if self.parking.order.parks {
            self.order_parking(false, Nanos::now());
        }
    }
}

impl Coordinator {
    /// What a program was ordered and publishes. None if its memory cannot be moved.
    #[must_use]
    pub fn parking(&self, id: ClientId) -> Option<ParkingReport> {
        let program = &self.programs[self.place_of(id)?];
        program.report_parking()
    }

    /// Orders a program to park, or to bring its memory back.
    pub fn set_parked(&mut self, id: ClientId, parks: bool, now: Nanos) {
        if let Some(place) = self.place_of(id) {
            self.programs[place].order_parking(parks, now);
            self.needs_alignment = true;
        }
    }

    /// Takes over the orders of the pipeline. A program that is about to be parked completes what it has launched, whatever its
    /// precedence: it launches nothing more, and its memory cannot move before.
    pub(super) fn take_orders(&mut self, now: Nanos) {
        self.orders.clear();
        self.orders.extend_from_slice(self.pipeline.orders());
        for program in self.programs.iter().filter(|program| program.parking.must_complete(now)) {
            for place in program.queues.iter().filter_map(|queue| queue.place) {
                if let Some(order) = self.orders.get_mut(place).filter(|order| order.stops()) {
                    *order = Order::Throttled;
                }
            }
        }
    }

    /// Whether some program is parked, and has to know that the scheduler is alive.
    pub(super) fn has_parked(&self) -> bool {
        self.programs.iter().any(|program| program.parking.needs_heartbeat())
    }
}

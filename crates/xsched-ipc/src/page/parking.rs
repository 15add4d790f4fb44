//! The part of the page by which the scheduler has a process move its device memory to the host and back.
//!
//! ```text
//!   scheduler: order = 2n + 1 (park) or 2n (unpark), n is the number of the order ─► wakes the process
//!   process:   state, amounts; `answered` = the number of the last order that it has carried out or given up
//! ```

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::Page;

/// Where the device memory of a process is. Also the number in the page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum ParkingState {
    /// The process cannot move its memory: it was not started with `--swap`, or has allocated nothing that can be moved.
    #[default]
    Fixed = 0,
    /// On the device.
    Resident = 1,
    /// The process launches nothing more and waits for what it has launched.
    Draining = 2,
    /// The process moves its memory to the host.
    MovingOut = 3,
    /// In memory of the host.
    Parked = 4,
    /// The process moves its memory back.
    MovingIn = 5,
}

impl ParkingState {
    fn from_number(number: u32) -> Self {
        [Self::Fixed, Self::Resident, Self::Draining, Self::MovingOut, Self::Parked, Self::MovingIn]
            .into_iter()
            .find(|state| *state as u32 == number)
            .unwrap_or_default()
    }

    /// Whether calls of the process that use the memory are held.
    #[must_use]
    pub fn is_held(self) -> bool {
        !matches!(self, Self::Fixed | Self::Resident)
    }
}

/// Why a process has not carried out the last order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ParkingFailure {
    /// What it had launched did not complete in time.
    NotDrained = 1,
    /// The host has too little memory, or `--swap-limit` permits no more.
    NoHostMemory = 2,
    /// The driver failed to copy the memory.
    CopyFailed = 3,
    /// The device is full: the memory cannot come back.
    NoDeviceMemory = 4,
}

impl ParkingFailure {
    const ALL: [Self; 4] = [Self::NotDrained, Self::NoHostMemory, Self::CopyFailed, Self::NoDeviceMemory];

    /// The reason, to follow "not parked: " or "still parked: ".
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::NotDrained => "its work did not complete within 10 s",
            Self::NoHostMemory => "the host has too little memory for it, or --swap-limit permits no more",
            Self::CopyFailed => "the driver failed to copy the memory",
            Self::NoDeviceMemory => "the device has too little free memory",
        }
    }
}

/// Memory that stays on the device when the process is parked. Also the bit in the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Staying {
    /// Allocations of at most 1 MiB, which share pages.
    Small = 0,
    /// Managed memory.
    Managed = 1,
    /// Memory pools and stream-ordered allocations.
    Pools = 2,
    /// Arrays.
    Arrays = 3,
    /// Physical memory that the program maps itself.
    Mapped = 4,
    /// Memory nodes of graphs.
    Graphs = 5,
    /// Memory that was exported, or registered for RDMA.
    Exported = 6,
    /// The program sees several devices.
    Devices = 7,
    /// Memory that the driver could not back by chunks, or that was allocated while a stream was captured.
    Plain = 8,
}

impl Staying {
    const ALL: [Self; 9] = [
        Self::Small,
        Self::Managed,
        Self::Pools,
        Self::Arrays,
        Self::Mapped,
        Self::Graphs,
        Self::Exported,
        Self::Devices,
        Self::Plain,
    ];

    /// Its bit.
    #[must_use]
    pub const fn bit(self) -> u32 {
        1 << self as u32
    }

    /// What it is, for users.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Small => "allocations of at most 1 MiB",
            Self::Managed => "managed memory",
            Self::Pools => "memory pools",
            Self::Arrays => "arrays",
            Self::Mapped => "memory that the program maps itself",
            Self::Graphs => "memory nodes of graphs",
            Self::Exported => "exported or registered memory",
            Self::Devices => "all memory, because the program sees several devices",
            Self::Plain => "memory that the driver does not back by chunks",
        }
    }
}

/// What a process publishes about its device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parking {
    /// Where the memory is.
    pub state: ParkingState,
    /// How much can be moved, in bytes.
    pub movable: u64,
    /// How much of that is in memory of the host.
    pub moved: u64,
    /// How many threads of the process are held because its memory is not on the device.
    pub held_threads: u32,
    /// The number of the last order that it has carried out or given up.
    pub answered: u32,
    /// Why it has not carried out that order.
    pub failure: Option<ParkingFailure>,
    /// The kinds of memory that stay: bits of [`Staying`].
    pub(crate) staying: u32,
}

impl Parking {
    /// With the kinds of memory that stay, as bits of [`Staying`].
    #[must_use]
    pub fn with_staying(self, staying: u32) -> Self {
        Self { staying, ..self }
    }

    /// The kinds of memory that stay when the process is parked.
    pub fn staying(&self) -> impl Iterator<Item = Staying> + use<> {
        let bits = self.staying;
        Staying::ALL.into_iter().filter(move |kind| bits & kind.bit() != 0)
    }
}

/// The order of the scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParkingOrder {
    /// Its number: a later order has another one.
    pub number: u32,
    /// Park; else unpark.
    pub parks: bool,
}

#[derive(Debug)]
#[repr(C)]
pub(super) struct ParkingWords {
    order: AtomicU32,
    state: AtomicU32,
    movable: AtomicU64,
    moved: AtomicU64,
    held_threads: AtomicU32,
    staying: AtomicU32,
    answered: AtomicU32,
    failure: AtomicU32,
}

impl Page {
    /// Sets the order. The caller wakes the process.
    pub fn set_parking_order(&self, order: ParkingOrder) {
        let word = order.number << 1 | u32::from(order.parks);
        self.header().parking.order.store(word, Ordering::SeqCst);
    }

    /// The order of the scheduler: unpark, in a new page.
    #[must_use]
    pub fn parking_order(&self) -> ParkingOrder {
        let word = self.header().parking.order.load(Ordering::SeqCst);
        ParkingOrder { number: word >> 1, parks: word & 1 != 0 }
    }

    /// Publishes what the process does with its memory. One thread at a time.
    pub fn set_parking(&self, parking: &Parking) {
        let words = &self.header().parking;
        words.movable.store(parking.movable, Ordering::Relaxed);
        words.moved.store(parking.moved, Ordering::Relaxed);
        words.held_threads.store(parking.held_threads, Ordering::Relaxed);
        words.staying.store(parking.staying, Ordering::Relaxed);
        words.failure.store(parking.failure.map_or(0, |failure| failure as u32), Ordering::Relaxed);
        words.state.store(parking.state as u32, Ordering::Relaxed);
        // Release: a scheduler that finds the answer reads the rest. Pairs with the Acquire in `parking`.
        words.answered.store(parking.answered, Ordering::Release);
    }

    /// What the process has published.
    #[must_use]
    pub fn parking(&self) -> Parking {
        let words = &self.header().parking;
        let answered = words.answered.load(Ordering::Acquire);
        let failure = words.failure.load(Ordering::Relaxed);
        Parking {
            state: ParkingState::from_number(words.state.load(Ordering::Relaxed)),
            movable: words.movable.load(Ordering::Relaxed),
            moved: words.moved.load(Ordering::Relaxed),
            held_threads: words.held_threads.load(Ordering::Relaxed),
            staying: words.staying.load(Ordering::Relaxed),
            answered,
            failure: ParkingFailure::ALL.into_iter().find(|known| *known as u32 == failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parking_is_read_as_published() {
        let page = Page::create().unwrap();
        assert_eq!(page.parking(), Parking::default());
        assert_eq!(page.parking_order(), ParkingOrder::default());
        let parking = Parking {
            state: ParkingState::MovingIn,
            movable: 7,
            moved: 3,
            held_threads: 2,
            answered: 9,
            failure: Some(ParkingFailure::NoDeviceMemory),
            staying: Staying::Small.bit() | Staying::Plain.bit() | 1 << 30,
        };
        page.set_parking(&parking);
        assert_eq!(page.parking(), parking);
        assert_eq!(parking.staying().collect::<Vec<_>>(), [Staying::Small, Staying::Plain]);
        let order = ParkingOrder { number: 5, parks: true };
        page.set_parking_order(order);
        assert_eq!(page.parking_order(), order);
    }

    #[test]
    fn invalid_states_are_those_of_a_process_that_cannot_be_parked() {
        let page = Page::create().unwrap();
        page.header().parking.state.store(77, Ordering::SeqCst);
        page.header().parking.failure.store(77, Ordering::SeqCst);
        assert_eq!(page.parking(), Parking::default());
    }
}

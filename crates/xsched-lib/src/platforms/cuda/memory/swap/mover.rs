//! Moves the ranges to the host and back. Only the thread of the library calls this, while no call of the program is in progress.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use xsched_core::call_gate::CallGate;
use xsched_ipc::page::ParkingFailure;
use xsched_ipc::parking::{Amounts, MovableMemory};

use super::arena::Arena;
use super::ranges::{self, Range};
use super::{GATE, STAYING};
use crate::platforms::cuda::contexts;
use crate::platforms::cuda::stream::with_current;
use crate::platforms::cuda::vendor::{self, Code, Stream, checked};

/// How much is copied before the copies are waited for, and the progress is reported.
const BATCH: usize = 64 << 20;

/// The process exits: its driver may not be called any more.
static IS_STOPPED: AtomicBool = AtomicBool::new(false);
/// Held while the driver is called.
static BUSY: Mutex<()> = Mutex::new(());

/// The memory of this process that can be moved.
pub(super) struct Memory {
    state: Mutex<State>,
}

struct State {
    arena: Arena,
    /// Where the data of each chunk is: the first address of its range, and the places of its chunks.
    places: Vec<(usize, Vec<*mut c_void>)>,
}

// SAFETY: the places are addresses in the arena, which belongs to this value alone.
unsafe impl Send for State {}

impl Memory {
    pub(super) fn new(limit: Option<u64>) -> Self {
        Self { state: Mutex::new(State { arena: Arena::with_limit(limit), places: Vec::new() }) }
    }
}

/// From now on the driver is not called. Waits until it is not being called.
pub(super) fn stop() {
    IS_STOPPED.store(true, Ordering::SeqCst);
    drop(BUSY.lock());
}

/// Calls `work`, which calls the driver, unless the process exits.
fn while_running<R>(
    failure: ParkingFailure,
    work: impl FnOnce() -> Result<R, ParkingFailure>,
) -> Result<R, ParkingFailure> {
    let _busy = BUSY.lock().unwrap_or_else(PoisonError::into_inner);
    if IS_STOPPED.load(Ordering::SeqCst) { Err(failure) } else { work() }
}

/// Waits for all work in the calling thread's context.
pub(super) fn synchronize_context() -> Code {
    // SAFETY: the function has no parameters.
    vendor::CTX_SYNCHRONIZE.get().map_or(vendor::SUCCESS, |synchronize| unsafe { synchronize() })
}

impl MovableMemory for Memory {
    fn gate(&self) -> &CallGate {
        &GATE
    }

    fn amounts(&self) -> Amounts {
        Amounts { movable: ranges::movable(), staying: STAYING.load(Ordering::Relaxed) }
    }

    fn drain(&self) -> Result<(), ParkingFailure> {
        // Not while `BUSY` is held: it may take as long as the work of the program.
        for context in contexts::all() {
            // A context that has failed runs nothing any more.
            with_current(context as *mut c_void, synchronize_context);
        }
        Ok(())
    }

    fn move_out(&self, report: &dyn Fn(u64)) -> Result<(), ParkingFailure> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while_running(ParkingFailure::CopyFailed, || state.move_out(report))
    }

    fn move_in(&self, report: &dyn Fn(u64)) -> Result<(), ParkingFailure> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while_running(ParkingFailure::CopyFailed, || state.move_in(report))
    }
}

impl State {
    fn move_out(&mut self, report: &dyn Fn(u64)) -> Result<(), ParkingFailure> {
        let mut ranges = ranges::all();
        let mut moving: Vec<_> =
            ranges.values_mut().filter(|range| !range.is_pinned && range.is_resident()).collect();
        let Some(context) = moving.first().map(|range| range.context) else { return Ok(()) };
        let sizes: Vec<_> = moving.iter().flat_map(|range| &range.chunks).map(|chunk| chunk.bytes).collect();
        // The arena is registered in a context.
        let placed = with_current(context as *mut c_void, || self.arena.place(&sizes)).flatten();
        let mut placed = placed.ok_or(ParkingFailure::NoHostMemory)?.into_iter();
        let destinations: Vec<(usize, Vec<_>)> = moving
            .iter()
            .map(|range| (range.address(), placed.by_ref().take(range.chunks.len()).collect()))
            .collect();
        let copied =
            copy_all(moving.iter().map(|range| &**range).zip(&destinations), Direction::ToHost, report);
        if copied.is_err() {
            self.arena.clear();
            return Err(ParkingFailure::CopyFailed);
        }
        // All data is in memory of the host.
        for (range, places) in moving.iter_mut().zip(destinations) {
            let unmapped = with_current(range.context as *mut c_void, || range.unmap())
                .unwrap_or(Err(vendor::NOT_SUPPORTED));
            if unmapped.is_ok() {
                self.places.push(places);
            }
        }
        Ok(())
    }

    fn move_in(&mut self, report: &dyn Fn(u64)) -> Result<(), ParkingFailure> {
        let mut ranges = ranges::all();
        // The ranges in the order of their places: both are in the order of addresses.
        let places = &self.places;
        let is_away = |address: &usize| places.binary_search_by_key(address, |(address, _)| *address).is_ok();
        let mut moving: Vec<_> =
            ranges.iter_mut().filter(|(address, _)| is_away(address)).map(|(_, range)| range).collect();
        let backed = back(&mut moving);
        let copied = backed.and_then(|()| {
            let pairs = moving.iter().map(|range| &**range).zip(places);
            copy_all(pairs, Direction::ToDevice, report).inspect_err(|_| take_away(&mut moving))
        });
        match copied {
            Ok(()) => {
                self.places.clear();
                self.arena.clear();
                Ok(())
            }
            Err(vendor::OUT_OF_MEMORY) => Err(ParkingFailure::NoDeviceMemory),
            Err(_) => Err(ParkingFailure::CopyFailed),
        }
    }
}

/// Backs all ranges with memory, or none.
fn back(ranges: &mut [&mut Range]) -> Result<(), Code> {
    for at in 0..ranges.len() {
        if let Err(code) = ranges[at].create_chunks() {
            ranges[..at].iter_mut().for_each(|range| range.release_chunks());
            return Err(code);
        }
    }
    for at in 0..ranges.len() {
        if let Err(code) = ranges[at].map() {
            take_away(&mut ranges[..at]);
            ranges[at..].iter_mut().for_each(|range| range.release_chunks());
            return Err(code);
        }
    }
    Ok(())
}

/// Takes the memory of ranges away again, whose data is still in memory of the host.
fn take_away(ranges: &mut [&mut Range]) {
    for range in ranges {
        // A driver that does not unmap what it has mapped has failed: nothing else can be done.
        let _ = with_current(range.context as *mut c_void, || range.unmap());
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToHost,
    ToDevice,
}

/// Copies the chunks of ranges to or from their places, and waits for the copies.
fn copy_all<'a>(
    pairs: impl Iterator<Item = (&'a Range, &'a (usize, Vec<*mut c_void>))>,
    direction: Direction,
    report: &dyn Fn(u64),
) -> Result<(), Code> {
    let pairs: Vec<_> = pairs.collect();
    let total: u64 = pairs.iter().map(|(range, _)| range.size() as u64).sum();
    let mut copied = 0;
    for (range, (_, places)) in pairs {
        let done = with_current(range.context as *mut c_void, || {
            copy_range(range, places, direction, &mut |bytes| {
                copied += bytes;
                report(if direction == Direction::ToHost { copied } else { total - copied });
            })
        });
        done.unwrap_or(Err(vendor::NOT_SUPPORTED))?;
    }
    Ok(())
}

fn copy_range(
    range: &Range,
    places: &[*mut c_void],
    direction: Direction,
    copied: &mut dyn FnMut(u64),
) -> Result<(), Code> {
    let stream = OwnStream::create()?;
    let mut address = range.address();
    let mut pending = 0;
    for (chunk, place) in range.chunks.iter().zip(places) {
        checked(copy(address, *place, chunk.bytes, direction, stream.0))?;
        address += chunk.bytes;
        pending += chunk.bytes;
        if pending >= BATCH {
            stream.synchronize()?;
            copied(std::mem::take(&mut pending) as u64);
        }
    }
    stream.synchronize()?;
    copied(pending as u64);
    Ok(())
}

fn copy(address: usize, place: *mut c_void, bytes: usize, direction: Direction, stream: Stream) -> Code {
    let (to_host, to_device) = (vendor::COPY_TO_HOST.get(), vendor::COPY_TO_DEVICE.get());
    let Some((to_host, to_device)) = to_host.zip(to_device) else { return vendor::NOT_SUPPORTED };
    // SAFETY: the chunk is mapped at the address, and the place has as many bytes.
    unsafe {
        match direction {
            Direction::ToHost => to_host(place, address, bytes, stream),
            Direction::ToDevice => to_device(address, place, bytes, stream),
        }
    }
}

/// A stream of the library's own: it waits for no other stream.
struct OwnStream(Stream);

impl OwnStream {
    fn create() -> Result<Self, Code> {
        /// `CU_STREAM_NON_BLOCKING`.
        const NON_BLOCKING: u32 = 1;
        let mut stream = std::ptr::null_mut();
        let create = vendor::STREAM_CREATE.get().ok_or(vendor::NOT_SUPPORTED)?;
        // SAFETY: `stream` has room for a handle.
        checked(unsafe { create(&raw mut stream, NON_BLOCKING) })?;
        Ok(Self(stream))
    }

    fn synchronize(&self) -> Result<(), Code> {
        let synchronize = vendor::STREAM_SYNCHRONIZE.get().ok_or(vendor::NOT_SUPPORTED)?;
        // SAFETY: `create` created the stream.
        checked(unsafe { synchronize(self.0) })
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        if let Some(destroy) = vendor::STREAM_DESTROY.get() {
            // SAFETY: `create` created the stream.
            unsafe { destroy(self.0) };
        }
    }
}

//! What the process's streams on one GPU together make of it.
//!
//! Timeslices and stopping concern a process's channels, which its streams share: a stream alone can only be stopped at
//! its stop points, and all together are taken off the GPU where they are.
//!
//! The GPU changes from one process to another when the slice of the one that runs has ended. With the shortest slice
//! for what may be interrupted and a long one for what may not, the important process takes the GPU from a running
//! kernel, and keeps it while it has something to run.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use xsched_core::{DeviceId, LevelCost, Nanos, Order};

use super::marks::Marks;
use super::rm::Groups;

/// What the driver gives a context when it is made.
const USUAL_US: u64 = 2048;
/// For whom nobody may interrupt.
const LONG_US: u64 = 10_000;
/// For whom somebody may. Two with this slice would only change places: one of them runs at a time.
const SHORT_US: u64 = 1;

/// One GPU, as far as this process uses it.
struct Device {
    id: DeviceId,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    members: Vec<(u64, Member)>,
    last: u64,
    /// The slice in force, if it is not the usual one.
    slice: Option<u64>,
    /// Whether the driver lets us set slices, once that was tried.
    may_slice: Option<Result<(), String>>,
    stopped: Stopped,
}

/// How all streams of the process together are stopped.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Stopped {
    #[default]
    No,
    /// Each stands at its next stop point, if it has anything to do.
    Standing,
    /// Their channels are disabled.
    Disabled,
}

struct Member {
    marks: Arc<Marks>,
    order: Order,
    /// Whether it was told to stop.
    stop: bool,
}

/// How long streams are given to come to their stop points, which are about a millisecond apart, before their channels are
/// disabled: that is for kernels that do not end. Stop points cost nothing, and the GPU works meanwhile.
const TO_COME_TO_A_STOP: Duration = Duration::from_millis(10);
const LOOK: Duration = Duration::from_micros(20);

static DEVICES: Mutex<Vec<Arc<Device>>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One stream among those of its process on a GPU.
pub(crate) struct Membership {
    device: Arc<Device>,
    number: u64,
}

impl Device {
    fn of(id: DeviceId) -> Arc<Self> {
        let mut devices = lock(&DEVICES);
        let known = devices.iter().find(|device| device.id == id).cloned();
        known.unwrap_or_else(|| {
            let device = Arc::new(Self { id, state: Mutex::default() });
            devices.push(Arc::clone(&device));
            device
        })
    }
}

impl Membership {
    pub(crate) fn on(id: DeviceId, marks: Arc<Marks>) -> Self {
        let device = Device::of(id);
        let number = {
            let mut state = lock(&device.state);
            state.last += 1;
            let number = state.last;
            state.members.push((number, Member { marks, order: Order::Free, stop: false }));
            number
        };
        Self { device, number }
    }

    /// The scheduler's order for this stream.
    pub(crate) fn follow(&self, order: Order) -> Result<(), String> {
        self.change(|member| member.order = order)
    }

    /// Takes the stream off the GPU, if it is the last of them; or lets it on again.
    pub(crate) fn stop(&self, stop: bool) -> Result<(), String> {
        self.change(|member| member.stop = stop)
    }

    /// The stream has nothing to do any more.
    pub(crate) fn rest(&self) -> Result<(), String> {
        lock(&self.device.state).rest(self.device.id)
    }

    fn change(&self, change: impl FnOnce(&mut Member)) -> Result<(), String> {
        let mut state = lock(&self.device.state);
        if let Some((_, member)) = state.members.iter_mut().find(|(number, _)| *number == self.number) {
            change(member);
        }
        state.carry_out(self.device.id)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut state = lock(&self.device.state);
        state.members.retain(|(number, _)| *number != self.number);
        // A driver that refuses now refused before.
        let _ = state.carry_out(self.device.id);
    }
}

impl State {
    fn carry_out(&mut self, device: DeviceId) -> Result<(), String> {
        let mut done = Ok(());
        let slice = self.slice();
        if slice != self.slice {
            done = Groups::on(device).set_timeslice(slice.unwrap_or(USUAL_US));
            self.slice = slice;
        }
        // Who comes while the others are stopped, and is to stop as well, does not let them go on first.
        let leaves = |member: &Member| matches!(member.order, Order::Evict | Order::Drain);
        let joins = |member: &Member| self.stopped != Stopped::No && leaves(member);
        let stops = |member: &Member| member.stop || joins(member);
        let stop = !self.members.is_empty() && self.members.iter().all(|(_, member)| stops(member));
        done.and(match (stop, self.stopped) {
            (true, Stopped::No) => self.stop(device),
            (false, Stopped::Disabled) => {
                let goes_on = Groups::on(device).disable(false);
                // Else the next who asks tries again: nobody may stay disabled.
                if goes_on.is_ok() {
                    self.stopped = Stopped::No;
                }
                goes_on
            }
            (false, _) => {
                self.stopped = Stopped::No;
                Ok(())
            }
            (true, _) => Ok(()),
        })
    }

    fn stop(&mut self, device: DeviceId) -> Result<(), String> {
        let are_still = || self.members.iter().all(|(_, member)| member.marks.is_still());
        let at_once = self.members.iter().any(|(_, member)| member.order == Order::Evict);
        let patience = Instant::now() + if at_once { Duration::ZERO } else { TO_COME_TO_A_STOP };
        let mut were_still = are_still();
        while were_still || Instant::now() < patience {
            std::thread::sleep(LOOK);
            // Twice, for the reason given at `Marks::is_still`.
            if std::mem::replace(&mut were_still, are_still()) && were_still {
                self.stopped = Stopped::Standing;
                return Ok(());
            }
        }
        // Also if it fails: some channels may have been disabled.
        self.stopped = Stopped::Disabled;
        Groups::on(device).disable(true)
    }

    /// What was running may have come to its end just before its channels were disabled. Then they must not stay so: the
    /// program may copy, and to everybody it looks as if it had nothing to do.
    fn rest(&mut self, device: DeviceId) -> Result<(), String> {
        let has_nothing = self.members.iter().all(|(_, member)| member.marks.has_nothing());
        if self.stopped == Stopped::Disabled && has_nothing {
            Groups::on(device).disable(false)?;
            self.stopped = Stopped::Standing;
        }
        Ok(())
    }

    /// The best that is due to one of the streams: an important one must not suffer for the others.
    fn slice(&self) -> Option<u64> {
        let of = |order: Order| match order {
            Order::Free => None,
            Order::Throttled | Order::Yield | Order::Evict | Order::Drain => Some(SHORT_US),
            Order::Peer => Some(USUAL_US),
            Order::Leader => Some(LONG_US),
        };
        self.members.iter().filter_map(|(_, member)| of(member.order)).max()
    }
}

/// Whether running kernels can be interrupted on a GPU, or why not.
pub(crate) fn interrupts(id: DeviceId) -> Result<LevelCost, String> {
    let groups = Groups::on(id);
    if groups.is_empty() {
        return Err(if mps_is_there() {
            "the program shares its context with others through MPS, which cannot be parted".to_owned()
        } else {
            "no channel group of the program was seen: was the library loaded before the driver?".to_owned()
        });
    }
    may_slice(id, &groups)?;
    // Seen on an H200: stopping channels takes 0.6 ms, letting them go on 0.2 ms.
    Ok(LevelCost { preempt: Nanos::from_micros(600), restore: Nanos::from_micros(200) })
}

/// Sets the slice that is in force once more: some drivers tell it, and refuse to have it set.
fn may_slice(id: DeviceId, groups: &Groups) -> Result<(), String> {
    let device = Device::of(id);
    let mut state = lock(&device.state);
    let tried = state.may_slice.get_or_insert_with(|| groups.set_timeslice(groups.timeslice()?));
    tried.clone()
}

fn mps_is_there() -> bool {
    let directory = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").unwrap_or_else(|| "/tmp/nvidia-mps".into());
    std::path::Path::new(&directory).join("control").exists()
}

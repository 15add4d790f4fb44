//! The streams of this process on a device, which are stopped together.
//!
//! Streams share hardware queues, and which stream uses which is the runtime's secret. To stop one could stop another that
//! is more important: so a device's queues are stopped once every stream there is to stop, and go on with the first that is
//! not. Until then the gate alone holds those that are to stop.

use std::sync::{Mutex, MutexGuard, PoisonError};

use xsched_core::{DeviceId, Order};

use super::stall::Word;
use super::{kfd, mask};

/// How a device's queues are stopped.
enum Means {
    /// By the driver, which calls the GPU so; none: there is only one.
    Driver(Option<u32>),
    /// By stall points, which look at these words.
    Stalls(Vec<&'static Word>),
}

/// The streams of this process on one device, and what its queues were told last.
struct Group {
    device: DeviceId,
    means: Means,
    streams: usize,
    to_stop: usize,
    /// Of those that are to stop, these have something to do. If none has, the queues run on: programs copy there, too,
    /// which nobody sees.
    busy: usize,
    stopped: bool,
    /// None: as the program made them.
    priority: Option<u32>,
    /// Somebody more important is there.
    preempts_by_time_slice: bool,
}

static GROUPS: Mutex<Vec<Group>> = Mutex::new(Vec::new());

fn groups() -> MutexGuard<'static, Vec<Group>> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One stream's part in its device's queues.
pub(super) struct Member {
    device: DeviceId,
    state: Mutex<State>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct State {
    wish: Wish,
    has_work: bool,
}

impl State {
    fn stops(self) -> bool {
        self.wish == Wish::Stop
    }

    fn is_busy(self) -> bool {
        self.stops() && self.has_work
    }
}

/// What one stream wants.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    Run,
    Stop,
    /// It is no more.
    Gone,
}

impl Member {
    fn new(device: DeviceId) -> Self {
        Self { device, state: Mutex::new(State { wish: Wish::Run, has_work: true }) }
    }

    /// Joins the streams of a device whose queues the driver stops, or says why it cannot. Not for a program's thread: it
    /// opens files.
    pub(super) fn by_driver(device: DeviceId) -> Result<Self, String> {
        kfd::driver().as_ref().map_err(Clone::clone)?;
        Self::join(device, Means::Driver(kfd::gpu_at(device)))
    }

    /// Joins the streams of a device that have stall points.
    pub(super) fn by_stalls(device: DeviceId, word: &'static Word) -> Result<Self, String> {
        Self::join(device, Means::Stalls(vec![word]))
    }

    fn join(device: DeviceId, means: Means) -> Result<Self, String> {
        let mut groups = groups();
        let Some(group) = groups.iter_mut().find(|group| group.device == device) else {
            let (stopped, preempts_by_time_slice) = (false, false);
            groups.push(Group {
                device,
                means,
                streams: 1,
                to_stop: 0,
                busy: 0,
                stopped,
                priority: None,
                preempts_by_time_slice,
            });
            return Ok(Self::new(device));
        };
        if let (Means::Stalls(words), Means::Stalls(new)) = (&mut group.means, means) {
            // Another copy of the runtime has a word of its own.
            let known = new.iter().all(|word| words.iter().any(|known| std::ptr::eq(*known, *word)));
            if !known {
                words.extend(new);
            }
        }
        group.streams += 1;
        if group.priority.is_some() {
            // Its queue may be new, too.
            group.tell_importance();
        }
        // A stream that is new has not been told to stop.
        group.settle()?;
        Ok(Self::new(device))
    }

    /// Stops the queues if no stream wants them any more; lets them go if one does.
    pub(super) fn set_stopped(&self, stop: bool) -> Result<(), String> {
        self.change(|state| state.wish = if stop { Wish::Stop } else { Wish::Run })
    }

    /// Whether the stream has something to do.
    pub(super) fn set_has_work(&self, has_work: bool) {
        // A device that refuses is asked again with the next change.
        let _ = self.change(|state| state.has_work = has_work);
    }

    /// The stream is no more.
    pub(super) fn leave(&self) {
        // A device that is gone has nothing to be told.
        let _ = self.change(|state| state.wish = Wish::Gone);
    }

    fn change(&self, change: impl FnOnce(&mut State)) -> Result<(), String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *state;
        let mut after = before;
        change(&mut after);
        if after == before || before.wish == Wish::Gone {
            return Ok(());
        }
        let mut groups = groups();
        let Some(group) = groups.iter_mut().find(|group| group.device == self.device) else { return Ok(()) };
        group.to_stop = group.to_stop - usize::from(before.stops()) + usize::from(after.stops());
        group.busy = group.busy - usize::from(before.is_busy()) + usize::from(after.is_busy());
        group.streams -= usize::from(after.wish == Wish::Gone);
        *state = after;
        group.settle()
    }

    /// Tells the hardware how important the queues are.
    pub(super) fn follow(&self, order: Order) {
        let wanted = match order {
            Order::Free => None,
            Order::Leader => Some(kfd::FIRST),
            // Whoever may be stopped.
            _ => Some(kfd::LAST),
        };
        let mut groups = groups();
        let Some(group) = groups.iter_mut().find(|group| group.device == self.device) else { return };
        let preempts_by_time_slice = order == Order::Throttled || order.stops();
        if (group.priority, group.preempts_by_time_slice) != (wanted, preempts_by_time_slice) {
            (group.priority, group.preempts_by_time_slice) = (wanted, preempts_by_time_slice);
            group.tell_importance();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Group {
    /// Makes the queues what the streams want.
    fn settle(&mut self) -> Result<(), String> {
        let stop = self.busy > 0 && self.to_stop == self.streams;
        if stop == self.stopped {
            return Ok(());
        }
        self.stopped = stop;
        let told = self.tell();
        if told.is_err() {
            self.stopped = !stop;
        }
        told
    }

    /// Importance is a help, not a promise: what is refused is left as it was.
    fn tell_importance(&self) {
        let _ = self.tell();
        if let Means::Driver(gpu) = &self.means {
            mask::follow(*gpu, self.preempts_by_time_slice);
        }
    }

    fn tell(&self) -> Result<(), String> {
        match &self.means {
            Means::Driver(gpu) => kfd::tell(*gpu, self.stopped, self.priority),
            Means::Stalls(words) => {
                for word in words {
                    word.set(self.stopped);
                }
                Ok(())
            }
        }
    }
}

/// A word is written no more.
pub(super) fn forget(word: &'static Word) {
    for group in groups().iter_mut() {
        if let Means::Stalls(words) = &mut group.means {
            words.retain(|known| !std::ptr::eq(*known, word));
        }
    }
}

/// The program ends: what its exit handlers wait for must be able to come.
pub(super) fn release_all() {
    for mut group in groups().drain(..) {
        group.busy = 0;
        group.priority = None;
        let _ = group.settle();
    }
}

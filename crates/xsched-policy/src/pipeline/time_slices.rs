//! Time slices: of several throttled processes on a device one runs at a time, if the policy's grants are exclusive.
//!
//! ```text
//!   A ████████            ████            a slice ends after 200 ms, or when its holder has no work;
//!   B         ████████        ████        the process that has had least is next
//!   C                     ██      ██      a process that was idle and is a slice behind the holder need not wait for the
//!                                         end of the holder's slice
//! ```
//!
//! Two throttled processes that ran together would preempt each other in short intervals and pay for a context switch each
//! time. A switch costs something too, so in the first 10 ms of its slice a holder keeps the device in its short idle gaps.

use std::mem;

use xsched_core::{DeviceId, Nanos, Order, ProcessId};

use super::{DeviceTasks, WakeUp};
use crate::TaskView;

/// How long one of several throttled processes has the device. Long against the change from one process to the next. A process
/// that is idle at times does not wait for the end of a slice.
const SLICE: Nanos = Nanos::from_millis(200);
/// How long it has the device at least while it has work, whichever process becomes ready.
const MIN_SLICE: Nanos = Nanos::from_millis(10);

/// The slice that runs on a device.
#[derive(Clone, Copy, Debug)]
struct Slice {
    holder: ProcessId,
    started: Nanos,
    /// Up to when the holder's time has been counted; none while a leader has the device.
    counted_to: Option<Nanos>,
}

/// How much device time a process has had in slices.
#[derive(Clone, Copy, Debug)]
struct Account {
    process: ProcessId,
    used: Nanos,
}

/// The slices of one device.
#[derive(Debug)]
struct DeviceSlices {
    device: DeviceId,
    slice: Option<Slice>,
    /// In ascending order of process.
    accounts: Vec<Account>,
    /// What a process has had at least that was ready all the time.
    floor: Nanos,
}

/// The slices of all devices where throttled processes have run.
#[derive(Debug, Default)]
pub(super) struct TimeSlices {
    /// In ascending order of device.
    devices: Vec<DeviceSlices>,
    /// Processes that compete for the device being planned, kept for its memory.
    contenders: Vec<ProcessId>,
}

impl TimeSlices {
    /// Lets one of several throttled processes run, and orders the tasks of the rest to drain.
    pub(super) fn run_one_process(&mut self, now: Nanos, tasks: &mut DeviceTasks, wake_up: &mut WakeUp) {
        let is_throttled = |tasks: &DeviceTasks, index: usize| {
            tasks.orders[index] == Order::Throttled && !tasks.completes_peers(index)
        };
        if (0..tasks.orders.len()).any(|index| tasks.loses_slice(index).is_some()) {
            // Jobs share this device: the slice was decided for all their devices together.
            self.pause(tasks.device, now);
            for index in 0..tasks.orders.len() {
                if is_throttled(tasks, index) && tasks.loses_slice(index) == Some(true) {
                    tasks.orders[index] = Order::Drain;
                }
            }
            return;
        }
        let throttled =
            (0..tasks.orders.len()).filter(|&index| tasks.views[index].ready && is_throttled(tasks, index));
        let contenders = throttled.map(|index| (tasks.slice_process(index), tasks.statuses[index].has_work));
        let Some(holder) = self.holder(now, tasks.device, contenders, wake_up) else { return };
        // Tasks without work too: they must not start while another process has the slice.
        for index in 0..tasks.orders.len() {
            if is_throttled(tasks, index) && tasks.slice_process(index) != holder {
                tasks.orders[index] = Order::Drain;
            }
        }
    }

    /// A leader has the device, or no process needs it: time is not counted.
    pub(super) fn pause(&mut self, device: DeviceId, now: Nanos) {
        if let Ok(place) = self.place_of(device) {
            self.devices[place].pause(now);
        }
    }

    /// Forgets devices and processes without tasks.
    pub(super) fn forget_absent(&mut self, views: &[TaskView]) {
        for slices in &mut self.devices {
            let begin = views.partition_point(|task| task.device < slices.device);
            let end = views.partition_point(|task| task.device <= slices.device);
            let here = &views[begin..end];
            slices.accounts.retain(|account| here.iter().any(|task| task.process == account.process));
        }
        self.devices.retain(|slices| !slices.accounts.is_empty());
    }

    fn place_of(&self, device: DeviceId) -> Result<usize, usize> {
        self.devices.binary_search_by_key(&device, |slices| slices.device)
    }

    /// The process that has the slice among the contenders. Of each contender is given whether it has work now; if not, it is
    /// in a short idle gap. A contender alone has a slice too: a process that becomes ready 1 us later waits for its end, unless
    /// it has had much less.
    fn holder(
        &mut self,
        now: Nanos,
        device: DeviceId,
        contenders: impl Iterator<Item = (ProcessId, bool)>,
        wake_up: &mut WakeUp,
    ) -> Option<ProcessId> {
        let place = self.place_of(device);
        let last = place.ok().and_then(|place| self.devices[place].count(now));
        let just_started = last.filter(|slice| now < slice.started + MIN_SLICE).map(|slice| slice.holder);
        self.contenders.clear();
        self.contenders.extend(
            contenders
                .filter(|(process, has_work)| *has_work || Some(*process) == just_started)
                .map(|(process, _)| process),
        );
        self.contenders.sort_unstable();
        self.contenders.dedup();
        if self.contenders.is_empty() {
            self.pause(device, now);
            return None;
        }
        let place = place.unwrap_or_else(|place| {
            let accounts = Vec::new();
            self.devices.insert(place, DeviceSlices { device, slice: None, accounts, floor: Nanos::ZERO });
            place
        });
        let slices = &mut self.devices[place];
        let min_used = slices.admit(&self.contenders);
        let continues = last.filter(|slice| {
            self.contenders.binary_search(&slice.holder).is_ok() && now < slices.end_of(slice, min_used, now)
        });
        let slice = continues.unwrap_or_else(|| {
            let holder = slices.next(&self.contenders, min_used, last.map(|slice| slice.holder));
            Slice { holder, started: now, counted_to: None }
        });
        slices.slice = Some(Slice { counted_to: Some(now), ..slice });
        if self.contenders.len() > 1 {
            wake_up.at(slices.end_of(&slice, min_used, now));
        }
        Some(slice.holder)
    }
}

impl DeviceSlices {
    fn pause(&mut self, now: Nanos) {
        self.count(now);
        if let Some(slice) = &mut self.slice {
            slice.counted_to = None;
        }
    }

    /// Adds what the holder had since it was counted last. Returns the slice.
    fn count(&mut self, now: Nanos) -> Option<Slice> {
        let slice = self.slice.as_mut()?;
        if let Some(counted_to) = &mut slice.counted_to {
            let span = now - mem::replace(counted_to, now);
            let place = self.accounts.binary_search_by_key(&slice.holder, |account| account.process);
            if let Ok(place) = place {
                self.accounts[place].used += span;
            }
        }
        self.slice
    }

    /// Opens accounts for the contenders: one that was idle is behind the rest by one slice at most, one that is new not at
    /// all. Returns the least that a contender has had.
    fn admit(&mut self, contenders: &[ProcessId]) -> Nanos {
        let mut min_used = Nanos::MAX;
        for &process in contenders {
            let used = match self.accounts.binary_search_by_key(&process, |account| account.process) {
                Ok(place) => {
                    let account = &mut self.accounts[place];
                    account.used = account.used.max(self.floor - SLICE);
                    account.used
                }
                Err(place) => {
                    self.accounts.insert(place, Account { process, used: self.floor });
                    self.floor
                }
            };
            min_used = min_used.min(used);
        }
        self.floor = self.floor.max(min_used);
        min_used
    }

    fn used(&self, process: ProcessId) -> Option<Nanos> {
        let place = self.accounts.binary_search_by_key(&process, |account| account.process).ok()?;
        Some(self.accounts[place].used)
    }

    /// When a slice ends if no task changes before.
    fn end_of(&self, slice: &Slice, min_used: Nanos, now: Nanos) -> Nanos {
        let ahead = self.used(slice.holder).unwrap_or(min_used) - min_used;
        let one_slice_ahead = now + (SLICE - ahead);
        one_slice_ahead.max(slice.started + MIN_SLICE).min(slice.started + SLICE)
    }

    /// The contender that has had least; among several, the next one after the last holder.
    fn next(&self, contenders: &[ProcessId], min_used: Nanos, last: Option<ProcessId>) -> ProcessId {
        let mut equals = contenders.iter().copied().filter(|process| self.used(*process) == Some(min_used));
        let first = equals.clone().next();
        equals.find(|process| Some(*process) > last).or(first).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceId = DeviceId(7);

    fn holder(slices: &mut TimeSlices, contenders: &[u32], ms: u64) -> Option<u32> {
        holder_and_wake_up(slices, contenders, ms).0
    }

    fn holder_and_wake_up(
        slices: &mut TimeSlices,
        contenders: &[u32],
        ms: u64,
    ) -> (Option<u32>, Option<Nanos>) {
        let contenders = contenders.iter().map(|id| (ProcessId(*id), true));
        let mut wake_up = WakeUp::default();
        let holder = slices.holder(Nanos::from_millis(ms), DEVICE, contenders, &mut wake_up);
        (holder.map(|process| process.0), wake_up.0)
    }

    #[test]
    fn slices_go_round_and_new_processes_do_not_shorten_the_running_one() {
        let mut slices = TimeSlices::default();
        assert_eq!(holder(&mut slices, &[5, 9, 5], 0), Some(5));
        assert_eq!(holder(&mut slices, &[3, 5, 9], 199), Some(5));
        assert_eq!(holder(&mut slices, &[3, 5, 9], 200), Some(9));
        assert_eq!(holder(&mut slices, &[3, 5, 9], 400), Some(3));
        assert_eq!(holder(&mut slices, &[5, 9], 401), Some(5), "a process without work loses its slice");
    }

    #[test]
    fn process_that_was_idle_for_1_ms_has_lost_its_slice() {
        let mut slices = TimeSlices::default();
        let end = Some(SLICE);
        assert_eq!(holder_and_wake_up(&mut slices, &[5, 9], 0), (Some(5), end));
        assert_eq!(holder_and_wake_up(&mut slices, &[9], 30), (Some(9), None), "5 has no work");
        assert_eq!(holder(&mut slices, &[5, 9], 31), Some(9));
        assert_eq!(holder(&mut slices, &[5, 9], 229), Some(9));
        assert_eq!(holder(&mut slices, &[5, 9], 230), Some(5));
        assert_eq!(holder(&mut slices, &[], 81), None);
    }

    #[test]
    fn holder_keeps_the_device_in_a_short_gap_only_at_the_start_of_its_slice() {
        let mut slices = TimeSlices::default();
        assert_eq!(holder(&mut slices, &[4, 5], 0), Some(4));
        let in_a_gap = [(ProcessId(4), false), (ProcessId(5), true)];
        for (ms, expected) in [(9, 4), (10, 5), (11, 5)] {
            let now = Nanos::from_millis(ms);
            let holder = slices.holder(now, DEVICE, in_a_gap.into_iter(), &mut WakeUp::default());
            assert_eq!(holder, Some(ProcessId(expected)), "after {ms} ms");
        }
    }

    #[test]
    fn process_with_little_work_does_not_wait_for_whole_slices() {
        let mut slices = TimeSlices::default();
        // 4 and 6 always have work; 5 works for 2 ms, and has work again 8 ms later.
        let (mut worked, mut arrives, mut waited) = (0, 20, 0);
        let mut used = [0_u64; 7];
        for ms in 0..10_000 {
            let has_work = ms >= arrives;
            let contenders: &[u32] = if has_work { &[4, 5, 6] } else { &[4, 6] };
            let holder = holder(&mut slices, contenders, ms).unwrap();
            used[holder as usize] += 1;
            if holder == 5 {
                worked += 1;
                if worked == 2 {
                    (worked, arrives) = (0, ms + 9);
                }
            } else if has_work {
                waited += 1;
            }
        }
        let pieces = used[5] / 2;
        assert!(pieces > 500, "{pieces} pieces of 2 ms in 10 s");
        assert!(waited / pieces <= 10, "it waits for {} ms each time", waited / pieces);
        assert!(used[4].abs_diff(used[6]) <= 240, "4 and 6 are equals: {used:?}");
    }

    #[test]
    fn process_that_was_idle_for_long_does_not_hold_the_rest_for_long() {
        let mut slices = TimeSlices::default();
        for ms in 0..10_000 {
            assert_eq!(holder(&mut slices, &[4], ms), Some(4));
        }
        for ms in 10_000..20_000 {
            holder(&mut slices, &[4, 5], ms);
        }
        for ms in 20_000..30_000 {
            assert_eq!(holder(&mut slices, &[4], ms), Some(4));
        }
        let mut first = 0;
        while holder(&mut slices, &[4, 5], 30_000 + first) != Some(5) {
            first += 1;
        }
        assert!(first <= 10, "it runs after {first} ms");
        let kept = (first..first + 1_000)
            .take_while(|ms| holder(&mut slices, &[4, 5], 30_000 + ms) == Some(5))
            .count();
        assert!((200..=400).contains(&kept), "for {kept} ms");
    }

    #[test]
    fn time_of_a_leader_is_not_counted() {
        let mut slices = TimeSlices::default();
        assert_eq!(holder(&mut slices, &[4, 5], 0), Some(4));
        slices.pause(DEVICE, Nanos::from_millis(20));
        slices.pause(DEVICE, Nanos::from_millis(40));
        assert_eq!(holder(&mut slices, &[5], 60), Some(5), "4 has no work");
        assert_eq!(slices.devices[0].used(ProcessId(4)), Some(Nanos::from_millis(20)));
    }

    #[test]
    fn processes_and_devices_without_tasks_are_forgotten() {
        let mut slices = TimeSlices::default();
        holder(&mut slices, &[4, 5], 0);
        let left = TaskView { device: DEVICE, process: ProcessId(5), ..TaskView::default() };
        slices.forget_absent(&[left]);
        assert_eq!(slices.devices[0].accounts.len(), 1);
        slices.forget_absent(&[TaskView { device: DeviceId(8), ..left }]);
        assert!(slices.devices.is_empty());
    }
}

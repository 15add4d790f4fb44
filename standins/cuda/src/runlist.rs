//! The runlist of a device: which context has the device, by time slices, over all processes.
//!
//! ```text
//!   A  ████████████░░░░              ████  a time slice of A ends, and B has work
//!   B              ░░░░████████            ░░░░  the context switch costs time
//!   C                          ░░░░██      B runs out of work: the switch follows at once
//! ```
//!
//! The device switches to the next context when the running context's time slice has ended and another context has work,
//! or when the running context runs out of work. Without contention, time slices follow each other without a gap.
//!
//! No thread drives the runlist. Its state follows from what the contexts reported and from the current time: every
//! access first calls [`Runlist::advance`], no matter how late. So a process that the host did not schedule for some time
//! neither keeps the device too long nor loses the device time that it was due. A process that is stopped does not report
//! that its work has ended: the device finds that out by itself ([`STOPPED_AFTER`]), as a GPU does.

/// The maximum number of contexts on a device.
pub(crate) const MAX_CONTEXTS: usize = 64;
/// The time slice of a new context, in nanoseconds: the vendor driver's default.
pub(crate) const DEFAULT_TIME_SLICE: u64 = 2_048_000;

/// A context that had the device for so much longer than its work takes has none left: its process is stopped, and does not
/// report it. In nanoseconds; much longer than a busy machine takes to schedule a process.
const STOPPED_AFTER: u64 = 50_000_000;

/// A context in the runlist. Times are in nanoseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    /// The process of the context; 0 if the entry is free.
    pub(crate) pid: u32,
    /// Whether it has work; else 0.
    runnable: u32,
    /// When `runnable` last changed.
    since: u64,
    slice: u64,
    /// For how long it had the device and work in total.
    used: u64,
    /// What `used` will be when the work that it has reported has ended.
    used_at_end: u64,
    /// The device memory of the process, in bytes; the same in all entries of the process.
    memory: u64,
}

/// The runlist. All zero is a device that has not been used.
#[repr(C)]
#[derive(Clone, Debug)]
pub(crate) struct Runlist {
    /// The index of the context that has the device, or had it last, plus one.
    owner: u64,
    /// When the context switch to the owner is complete.
    switched_at: u64,
    /// When the owner's first time slice started; further ones follow without a gap.
    slices_start: u64,
    /// The time up to which device time has been accounted.
    accounted_until: u64,
    slots: [Entry; MAX_CONTEXTS],
}

impl Runlist {
    #[cfg(test)]
    fn new() -> Self {
        Self {
            owner: 0,
            switched_at: 0,
            slices_start: 0,
            accounted_until: 0,
            slots: [Entry::default(); MAX_CONTEXTS],
        }
    }

    /// The context that has the device, or had it last.
    pub(crate) fn owner(&self) -> Option<usize> {
        usize::try_from(self.owner).ok()?.checked_sub(1).filter(|slot| *slot < MAX_CONTEXTS)
    }

    /// When the context switch to the owner is complete.
    pub(crate) fn switched_at(&self) -> u64 {
        self.switched_at
    }

    /// For how long this context had the device and work.
    pub(crate) fn used(&self, slot: usize) -> u64 {
        self.slots[slot].used
    }

    /// The process of a context; 0 if the entry is free.
    pub(crate) fn pid(&self, slot: usize) -> u32 {
        self.slots[slot].pid
    }

    /// The device memory of the process of a context.
    pub(crate) fn memory(&self, slot: usize) -> u64 {
        self.slots[slot].memory
    }

    /// Sets the device memory of a process.
    pub(crate) fn set_memory(&mut self, pid: u32, bytes: u64) {
        for slot in self.slots.iter_mut().filter(|slot| slot.pid == pid) {
            slot.memory = bytes;
        }
    }

    /// Assigns an entry to a new context.
    pub(crate) fn insert(&mut self, slot: usize, pid: u32, now: u64) {
        self.remove(slot, now);
        self.slots[slot] = Entry { pid, since: now, slice: DEFAULT_TIME_SLICE, ..Entry::default() };
    }

    /// Removes a context.
    pub(crate) fn remove(&mut self, slot: usize, now: u64) {
        self.slots[slot] = Entry::default();
        if self.owner() == Some(slot) {
            self.owner = 0;
            self.accounted_until = self.accounted_until.max(now);
        }
    }

    /// The time slice of a context.
    pub(crate) fn time_slice(&self, slot: usize) -> u64 {
        self.slots[slot].slice
    }

    /// Sets the time slice of a context. If it has the device, a new time slice starts.
    pub(crate) fn set_time_slice(&mut self, slot: usize, slice: u64, now: u64, switch: u64) {
        self.advance(now, switch);
        self.slots[slot].slice = slice.max(1);
        if self.owner() == Some(slot) {
            self.slices_start = self.switched_at.max(now);
        }
        self.advance(now, switch);
    }

    /// Reports that a context has work, and since when. The past up to the last access is not revised. `used_at_end` is what
    /// [`Runlist::used`] will be when that work has ended.
    pub(crate) fn set_runnable(&mut self, slot: usize, since: u64, used_at_end: u64, now: u64, switch: u64) {
        self.slots[slot].used_at_end = used_at_end;
        if self.slots[slot].runnable == 0 {
            let since = since.max(self.accounted_until).min(now);
            self.advance(since, switch);
            self.slots[slot].runnable = 1;
            self.slots[slot].since = since;
            if self.owner() == Some(slot) {
                self.slices_start = self.switched_at.max(since);
            }
        }
        self.advance(now, switch);
    }

    /// Reports that a context has no more work.
    pub(crate) fn set_idle(&mut self, slot: usize, now: u64, switch: u64) {
        self.advance(now, switch);
        if self.slots[slot].runnable != 0 {
            self.slots[slot].runnable = 0;
            self.slots[slot].since = now;
            self.advance(now, switch);
        }
    }

    /// The contexts with work, starting after an index.
    pub(crate) fn runnable_after(&self, slot: usize) -> impl Iterator<Item = usize> + '_ {
        (1..=MAX_CONTEXTS).map(move |n| (slot + n) % MAX_CONTEXTS).filter(|n| self.slots[*n].runnable != 0)
    }

    /// When the device switches to another context, if nothing else happens.
    pub(crate) fn next_switch(&self) -> Option<u64> {
        let Some(owner) = self.owner() else {
            let first = self.runnable_after(MAX_CONTEXTS - 1).map(|slot| self.slots[slot].since).min()?;
            return Some(first.max(self.accounted_until));
        };
        let others = self.runnable_after(owner).filter(|slot| *slot != owner);
        let wanted = others.map(|slot| self.slots[slot].since).min()?;
        let its = self.slots[owner];
        if its.runnable == 0 {
            return Some(wanted.max(its.since).max(self.accounted_until));
        }
        let slice = its.slice.max(1);
        let slices = wanted.saturating_sub(self.slices_start).div_ceil(slice).max(1);
        let slice_end = self.slices_start + slices * slice;
        Some(slice_end.min(self.runs_out_at(owner)).max(wanted).max(self.accounted_until))
    }

    /// When the context that has the device has no work left although it has not reported that.
    fn runs_out_at(&self, owner: usize) -> u64 {
        let its = &self.slots[owner];
        let left = its.used_at_end.saturating_add(STOPPED_AFTER).saturating_sub(its.used);
        self.accounted_until.max(self.switched_at).max(its.since).saturating_add(left)
    }

    /// Brings the runlist to the present.
    pub(crate) fn advance(&mut self, now: u64, switch: u64) {
        while let Some(at) = self.next_switch().filter(|at| *at <= now) {
            self.account(at);
            let before = self.owner();
            let first = before.unwrap_or(MAX_CONTEXTS - 1);
            let next = self
                .runnable_after(first)
                .find(|slot| Some(*slot) != before && self.slots[*slot].since <= at);
            // The context that makes the device switch has work, so there always is one.
            let Some(next) = next else { break };
            self.owner = next as u64 + 1;
            // If the device has not been used, or its last context was removed, there is no context to save.
            self.switched_at = at + if before.is_some() { switch } else { 0 };
            self.slices_start = self.switched_at;
        }
        self.account(now);
    }

    fn account(&mut self, until: u64) {
        if let Some(owner) = self.owner() {
            let runs_out = self.runs_out_at(owner) <= until;
            let its = &mut self.slots[owner];
            if its.runnable != 0 {
                its.used += until.saturating_sub(self.accounted_until.max(self.switched_at).max(its.since));
                if runs_out {
                    (its.runnable, its.since) = (0, until);
                }
            }
        }
        self.accounted_until = self.accounted_until.max(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;
    const MS: u64 = 1_000_000;
    const SWITCH: u64 = 180 * US;

    fn device(contexts: usize) -> Runlist {
        let mut runlist = Runlist::new();
        for slot in 0..contexts {
            runlist.insert(slot, 1, 0);
        }
        runlist
    }

    #[test]
    fn single_context_has_the_device_all_the_time() {
        let mut runlist = device(1);
        runlist.set_runnable(0, MS, u64::MAX, MS, SWITCH);
        runlist.advance(101 * MS, SWITCH);
        assert_eq!(runlist.used(0), 100 * MS);
        runlist.set_idle(0, 102 * MS, SWITCH);
        runlist.set_runnable(0, 110 * MS, u64::MAX, 110 * MS, SWITCH);
        runlist.advance(111 * MS, SWITCH);
        assert_eq!(runlist.used(0), 102 * MS, "idle time is not used, and resuming costs nothing");
    }

    #[test]
    fn newcomer_waits_for_the_end_of_the_time_slice_and_for_the_switch() {
        let mut runlist = device(2);
        runlist.set_runnable(0, 0, u64::MAX, 0, SWITCH);
        runlist.set_runnable(1, MS, u64::MAX, MS, SWITCH);
        runlist.advance(3 * MS, SWITCH);
        assert_eq!(runlist.owner(), Some(1));
        assert_eq!(runlist.switched_at(), DEFAULT_TIME_SLICE + SWITCH);
        assert_eq!(runlist.used(0), DEFAULT_TIME_SLICE);
        runlist.set_idle(1, 3 * MS, SWITCH);
        assert_eq!((runlist.owner(), runlist.switched_at()), (Some(0), 3 * MS + SWITCH), "idle: at once");
        assert_eq!(runlist.used(1), 3 * MS - DEFAULT_TIME_SLICE - SWITCH);
    }

    #[test]
    fn short_time_slice_is_preempted_at_once_and_long_one_keeps_the_device() {
        let mut runlist = device(2);
        runlist.set_time_slice(0, US, 0, SWITCH);
        runlist.set_time_slice(1, 10 * MS, 0, SWITCH);
        runlist.set_runnable(0, 0, u64::MAX, 0, SWITCH);
        runlist.set_runnable(1, 5 * MS + 1, u64::MAX, 5 * MS + 1, SWITCH);
        runlist.advance(14 * MS, SWITCH);
        assert_eq!(runlist.owner(), Some(1));
        assert_eq!(runlist.switched_at(), 5 * MS + US + SWITCH);
        runlist.advance(5 * MS + US + SWITCH + 10 * MS, SWITCH);
        assert_eq!(runlist.owner(), Some(0));
    }

    #[test]
    fn contexts_with_minimal_time_slices_spend_most_time_switching() {
        let mut runlist = device(2);
        for slot in 0..2 {
            runlist.set_time_slice(slot, US, 0, SWITCH);
            runlist.set_runnable(slot, 0, u64::MAX, 0, SWITCH);
        }
        runlist.advance(100 * MS, SWITCH);
        let worked = runlist.used(0) + runlist.used(1);
        assert!(worked < MS, "{worked}");
        assert!(runlist.used(0) > 0 && runlist.used(1) > 0);
    }

    #[test]
    fn late_report_of_work_counts_if_the_device_was_idle() {
        let mut runlist = device(2);
        runlist.set_runnable(0, MS, u64::MAX, 4 * MS, SWITCH);
        assert_eq!(runlist.used(0), 3 * MS);
        // The runlist was advanced to 4 ms: the past is not revised.
        runlist.set_runnable(1, 2 * MS, u64::MAX, 5 * MS, SWITCH);
        assert_eq!(runlist.owner(), Some(0));
        assert_eq!(runlist.used(0), 4 * MS);
    }

    #[test]
    fn device_time_is_proportional_to_time_slices() {
        let mut runlist = device(2);
        runlist.set_time_slice(0, 9 * MS, 0, SWITCH);
        runlist.set_time_slice(1, MS, 0, SWITCH);
        runlist.set_runnable(0, 0, u64::MAX, 0, SWITCH);
        runlist.set_runnable(1, 0, u64::MAX, 0, SWITCH);
        runlist.advance(1_000 * MS, SWITCH);
        let (first, second) = (runlist.used(0), runlist.used(1));
        assert!(first > 8 * second && first < 10 * second, "{first} {second}");
    }

    #[test]
    fn context_of_a_stopped_process_loses_the_device_when_its_work_has_ended() {
        let mut runlist = device(2);
        runlist.set_time_slice(0, 10 * MS, 0, SWITCH);
        runlist.set_runnable(0, 0, MS, 0, SWITCH);
        runlist.set_runnable(1, 0, u64::MAX, 0, SWITCH);
        runlist.advance(1_000 * MS, SWITCH);
        assert_eq!(runlist.used(0), MS + STOPPED_AFTER);
        let before = runlist.used(1);
        runlist.advance(2_000 * MS, SWITCH);
        assert_eq!(runlist.used(1) - before, 1_000 * MS);
        // The process continues and has more work.
        let used = runlist.used(0);
        runlist.set_runnable(0, u64::MAX, used + MS, 2_000 * MS, SWITCH);
        runlist.advance(2_100 * MS, SWITCH);
        assert!(runlist.used(0) > used);
    }

    #[test]
    fn removed_context_gets_no_device_time() {
        let mut runlist = device(2);
        runlist.set_runnable(0, 0, u64::MAX, 0, SWITCH);
        runlist.set_runnable(1, 0, u64::MAX, 0, SWITCH);
        runlist.remove(0, MS);
        runlist.advance(2 * MS, SWITCH);
        assert_eq!((runlist.owner(), runlist.switched_at()), (Some(1), MS));
        assert_eq!(runlist.used(1), MS);
    }
}

//! Whose turn it is on the device: the rule by which contexts of all processes share it.
//!
//! ```text
//!   A  ████████████░░░░              ████  one slice of A ends, and B wants the device
//!   B              ░░░░████████            ░░░░  the change costs time
//!   C                          ░░░░██      B has nothing left to run: the change comes at once
//! ```
//!
//! The device changes hands when the slice of whoever has it has ended and somebody else has something to run, or when it
//! has nothing to run itself. While nobody else wants it, slices follow each other without a gap.
//!
//! Nothing here moves by itself. The state is a function of what was said and of the time: whoever looks brings it to the
//! present with [`Turns::advance`], however late it comes. So a process that the host has not scheduled for a while
//! neither keeps the device too long nor loses what it was due.

/// How many contexts can share a device.
pub(crate) const SLOTS: usize = 64;
/// What the driver gives a context when it is made.
pub(crate) const USUAL_SLICE: u64 = 2_048_000;

/// A context, as the device sees it. Times are in nanoseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slot {
    /// Whose it is; 0: nobody's.
    pub(crate) pid: u32,
    /// Whether it has something to run; else 0.
    runnable: u32,
    /// Since when it has, or has not.
    since: u64,
    slice: u64,
    /// For how long it had the device and something to run, all in all.
    used: u64,
}

/// See the head of this file. All zero is a device that nobody has used.
#[repr(C)]
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    /// The slot that has the device, or had it last, plus one.
    owner: u64,
    /// From when on it can use it: the change takes its time.
    begins: u64,
    /// When its first slice began; the others follow.
    epoch: u64,
    /// Until when all is accounted for.
    accounted: u64,
    slots: [Slot; SLOTS],
}

impl Turns {
    #[cfg(test)]
    fn new() -> Self {
        Self { owner: 0, begins: 0, epoch: 0, accounted: 0, slots: [Slot::default(); SLOTS] }
    }

    /// Who has the device, or had it last.
    pub(crate) fn owner(&self) -> Option<usize> {
        usize::try_from(self.owner).ok()?.checked_sub(1).filter(|slot| *slot < SLOTS)
    }

    /// From when on the owner can use the device.
    pub(crate) fn begins(&self) -> u64 {
        self.begins
    }

    /// For how long this context had the device and something to run.
    pub(crate) fn used(&self, slot: usize) -> u64 {
        self.slots[slot].used
    }

    /// Whose a slot is; 0: nobody's.
    pub(crate) fn pid(&self, slot: usize) -> u32 {
        self.slots[slot].pid
    }

    /// Gives a slot to a new context.
    pub(crate) fn admit(&mut self, slot: usize, pid: u32, now: u64) {
        self.vacate(slot, now);
        self.slots[slot] = Slot { pid, since: now, slice: USUAL_SLICE, ..Slot::default() };
    }

    /// A context is no more.
    pub(crate) fn vacate(&mut self, slot: usize, now: u64) {
        self.slots[slot] = Slot::default();
        if self.owner() == Some(slot) {
            self.owner = 0;
            self.accounted = self.accounted.max(now);
        }
    }

    /// The slice of a context.
    pub(crate) fn slice(&self, slot: usize) -> u64 {
        self.slots[slot].slice
    }

    /// Sets the slice of a context. The one that runs begins a new one.
    pub(crate) fn set_slice(&mut self, slot: usize, slice: u64, now: u64, switch: u64) {
        self.advance(now, switch);
        self.slots[slot].slice = slice.max(1);
        if self.owner() == Some(slot) {
            self.epoch = self.begins.max(now);
        }
        self.advance(now, switch);
    }

    /// Says that a context has something to run, and since when: as far back as nobody has looked since.
    pub(crate) fn want(&mut self, slot: usize, since: u64, now: u64, switch: u64) {
        if self.slots[slot].runnable == 0 {
            let since = since.max(self.accounted).min(now);
            self.advance(since, switch);
            self.slots[slot].runnable = 1;
            self.slots[slot].since = since;
            if self.owner() == Some(slot) {
                self.epoch = self.begins.max(since);
            }
        }
        self.advance(now, switch);
    }

    /// Says that a context has nothing to run any more.
    pub(crate) fn rest(&mut self, slot: usize, now: u64, switch: u64) {
        self.advance(now, switch);
        if self.slots[slot].runnable != 0 {
            self.slots[slot].runnable = 0;
            self.slots[slot].since = now;
            self.advance(now, switch);
        }
    }

    /// Those who want the device, beginning after a slot.
    pub(crate) fn wanting_after(&self, slot: usize) -> impl Iterator<Item = usize> + '_ {
        (1..=SLOTS).map(move |n| (slot + n) % SLOTS).filter(|n| self.slots[*n].runnable != 0)
    }

    /// When the device changes hands, if nothing else happens.
    pub(crate) fn next_change(&self) -> Option<u64> {
        let Some(owner) = self.owner() else {
            let first = self.wanting_after(SLOTS - 1).map(|slot| self.slots[slot].since).min()?;
            return Some(first.max(self.accounted));
        };
        let others = self.wanting_after(owner).filter(|slot| *slot != owner);
        let wanted = others.map(|slot| self.slots[slot].since).min()?;
        let its = self.slots[owner];
        if its.runnable == 0 {
            return Some(wanted.max(its.since).max(self.accounted));
        }
        let slice = its.slice.max(1);
        let slices = wanted.saturating_sub(self.epoch).div_ceil(slice).max(1);
        Some((self.epoch + slices * slice).max(self.accounted))
    }

    /// Brings everything to the present.
    pub(crate) fn advance(&mut self, now: u64, switch: u64) {
        while let Some(at) = self.next_change().filter(|at| *at <= now) {
            self.account(at);
            let before = self.owner();
            let first = before.unwrap_or(SLOTS - 1);
            let next =
                self.wanting_after(first).find(|slot| Some(*slot) != before && self.slots[*slot].since <= at);
            // Whoever makes the device change wants it, so there always is one.
            let Some(next) = next else { break };
            self.owner = next as u64 + 1;
            // Nothing has to be saved of a device that nobody has used, or whose last user is no more.
            self.begins = at + if before.is_some() { switch } else { 0 };
            self.epoch = self.begins;
        }
        self.account(now);
    }

    fn account(&mut self, until: u64) {
        if let Some(owner) = self.owner() {
            let its = &mut self.slots[owner];
            if its.runnable != 0 {
                its.used += until.saturating_sub(self.accounted.max(self.begins).max(its.since));
            }
        }
        self.accounted = self.accounted.max(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;
    const MS: u64 = 1_000_000;
    const SWITCH: u64 = 180 * US;

    fn device(contexts: usize) -> Turns {
        let mut turns = Turns::new();
        for slot in 0..contexts {
            turns.admit(slot, 1, 0);
        }
        turns
    }

    #[test]
    fn alone_a_context_has_the_device_all_the_time() {
        let mut turns = device(1);
        turns.want(0, MS, MS, SWITCH);
        turns.advance(101 * MS, SWITCH);
        assert_eq!(turns.used(0), 100 * MS);
        turns.rest(0, 102 * MS, SWITCH);
        turns.want(0, 110 * MS, 110 * MS, SWITCH);
        turns.advance(111 * MS, SWITCH);
        assert_eq!(turns.used(0), 102 * MS, "idle time is not used, and coming back costs nothing");
    }

    #[test]
    fn whoever_comes_waits_for_the_end_of_the_slice_and_for_the_change() {
        let mut turns = device(2);
        turns.want(0, 0, 0, SWITCH);
        turns.want(1, MS, MS, SWITCH);
        turns.advance(3 * MS, SWITCH);
        assert_eq!(turns.owner(), Some(1));
        assert_eq!(turns.begins(), USUAL_SLICE + SWITCH);
        assert_eq!(turns.used(0), USUAL_SLICE);
        turns.rest(1, 3 * MS, SWITCH);
        assert_eq!((turns.owner(), turns.begins()), (Some(0), 3 * MS + SWITCH), "idle: at once");
        assert_eq!(turns.used(1), 3 * MS - USUAL_SLICE - SWITCH);
    }

    #[test]
    fn a_short_slice_gives_way_at_once_and_a_long_one_keeps_the_device() {
        let mut turns = device(2);
        turns.set_slice(0, US, 0, SWITCH);
        turns.set_slice(1, 10 * MS, 0, SWITCH);
        turns.want(0, 0, 0, SWITCH);
        turns.want(1, 5 * MS + 1, 5 * MS + 1, SWITCH);
        turns.advance(14 * MS, SWITCH);
        assert_eq!(turns.owner(), Some(1));
        assert_eq!(turns.begins(), 5 * MS + US + SWITCH);
        turns.advance(5 * MS + US + SWITCH + 10 * MS, SWITCH);
        assert_eq!(turns.owner(), Some(0));
    }

    #[test]
    fn two_with_the_shortest_slices_do_little_but_change() {
        let mut turns = device(2);
        for slot in 0..2 {
            turns.set_slice(slot, US, 0, SWITCH);
            turns.want(slot, 0, 0, SWITCH);
        }
        turns.advance(100 * MS, SWITCH);
        let worked = turns.used(0) + turns.used(1);
        assert!(worked < MS, "{worked}");
        assert!(turns.used(0) > 0 && turns.used(1) > 0);
    }

    #[test]
    fn whoever_says_late_that_it_wanted_the_device_has_had_it_if_nobody_else_did() {
        let mut turns = device(2);
        turns.want(0, MS, 4 * MS, SWITCH);
        assert_eq!(turns.used(0), 3 * MS);
        // Looked at until 4 ms: the past is what it was.
        turns.want(1, 2 * MS, 5 * MS, SWITCH);
        assert_eq!(turns.owner(), Some(0));
        assert_eq!(turns.used(0), 4 * MS);
    }

    #[test]
    fn shares_follow_slices() {
        let mut turns = device(2);
        turns.set_slice(0, 9 * MS, 0, SWITCH);
        turns.set_slice(1, MS, 0, SWITCH);
        turns.want(0, 0, 0, SWITCH);
        turns.want(1, 0, 0, SWITCH);
        turns.advance(1_000 * MS, SWITCH);
        let (first, second) = (turns.used(0), turns.used(1));
        assert!(first > 8 * second && first < 10 * second, "{first} {second}");
    }

    #[test]
    fn a_context_that_is_no_more_has_nothing() {
        let mut turns = device(2);
        turns.want(0, 0, 0, SWITCH);
        turns.want(1, 0, 0, SWITCH);
        turns.vacate(0, MS);
        turns.advance(2 * MS, SWITCH);
        assert_eq!((turns.owner(), turns.begins()), (Some(1), MS));
        assert_eq!(turns.used(1), MS);
    }
}

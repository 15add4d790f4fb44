//! Turns: of several paced programs on a device one runs at a time.
//!
//! ```text
//!   A ████████            ████            a turn ends after 50 ms, or when its holder has nothing to do
//!   B         ████████        ████        then whoever has had least is next
//!   C                     ██      ██      who was away and is behind the holder by a turn need not wait for the end of it
//! ```
//!
//! A change costs something, so a holder is waited for in its short gaps at the beginning of its turn.

use xsched_core::{DeviceId, Nanos, ProcessId};

/// How long one of several paced programs has the device. Long against what a change costs, short against what people
/// notice.
const TURN: Nanos = Nanos::from_millis(50);
/// How long it has it at least while it has work, whoever comes.
const LEAST: Nanos = Nanos::from_millis(10);
/// How long somebody has to leave the device before the next begins anyway.
pub(super) const PATIENCE: Nanos = Nanos::from_millis(15);

/// Who has a device.
#[derive(Clone, Copy, Debug)]
struct Turn {
    device: DeviceId,
    holder: ProcessId,
    began: Nanos,
    /// Up to when the holder's time has been counted; none while somebody more important has the device.
    counted_to: Option<Nanos>,
    /// What everybody has had who was there all the time.
    floor: Nanos,
}

/// How much a program has had of a device beside others.
#[derive(Clone, Copy, Debug)]
struct Account {
    device: DeviceId,
    process: ProcessId,
    had: Nanos,
}

/// The turns on all devices where there are any, and how long to wait for whom.
#[derive(Debug, Default)]
pub(super) struct Turns {
    running: Vec<Turn>,
    accounts: Vec<Account>,
    /// Kept for its memory.
    contenders: Vec<ProcessId>,
    /// Since when somebody waits for another to leave a device.
    handing_over: Vec<(DeviceId, Nanos)>,
    /// When something here is due.
    again_at: Option<Nanos>,
}

impl Turns {
    /// When to look again.
    pub(super) fn next_look(&self) -> Option<Nanos> {
        self.again_at
    }

    /// What was due is being done.
    pub(super) fn begin_round(&mut self) {
        self.again_at = None;
    }

    fn look_at(&mut self, at: Nanos) {
        self.again_at = Some(self.again_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Whose turn it is among the contenders. One alone has a turn too: who comes back the moment after waits for its end,
    /// unless it has had much less. Of each is said whether it has work now; else it is in a gap that may be short.
    pub(super) fn holder(
        &mut self,
        device: DeviceId,
        contenders: impl Iterator<Item = (ProcessId, bool)>,
        now: Nanos,
    ) -> Option<ProcessId> {
        let last = self.count(device, now);
        let just_begun = last.filter(|turn| now < turn.began + LEAST).map(|turn| turn.holder);
        let wants = |(process, has_work)| (has_work || Some(process) == just_begun).then_some(process);
        self.contenders.clear();
        self.contenders.extend(contenders.filter_map(wants));
        self.contenders.sort_unstable();
        self.contenders.dedup();
        if self.contenders.is_empty() {
            self.pause(device, now);
            return None;
        }
        let floor = self.admit(device, last.map_or(Nanos::ZERO, |turn| turn.floor));
        let goes_on =
            last.filter(|turn| self.contenders.contains(&turn.holder) && now < self.end_of(turn, now));
        let next = || Turn { device, holder: self.next(device, last), began: now, counted_to: None, floor };
        let turn = Turn { counted_to: Some(now), floor, ..goes_on.unwrap_or_else(next) };
        if self.contenders.len() > 1 {
            self.look_at(self.end_of(&turn, now));
        }
        self.running.retain(|turn| turn.device != device);
        self.running.push(turn);
        Some(turn.holder)
    }

    /// Somebody more important has the device, or nobody wants it.
    pub(super) fn pause(&mut self, device: DeviceId, now: Nanos) {
        self.count(device, now);
        for turn in self.running.iter_mut().filter(|turn| turn.device == device) {
            turn.counted_to = None;
        }
    }

    /// Forgets devices and programs that are gone.
    pub(super) fn keep(&mut self, is_there: impl Fn(DeviceId, ProcessId) -> bool) {
        self.accounts.retain(|account| is_there(account.device, account.process));
        let accounts = &self.accounts;
        self.running.retain(|turn| accounts.iter().any(|account| account.device == turn.device));
    }

    /// Adds what the holder had since it was counted last. Answers the turn.
    fn count(&mut self, device: DeviceId, now: Nanos) -> Option<Turn> {
        let turn = self.running.iter_mut().find(|turn| turn.device == device)?;
        if let Some(since) = turn.counted_to {
            turn.counted_to = Some(now);
            let its = |account: &&mut Account| (account.device, account.process) == (device, turn.holder);
            self.accounts.iter_mut().filter(its).for_each(|account| account.had += now - since);
        }
        Some(*turn)
    }

    /// Lets the contenders in: who was away is behind the others by one turn at most, who is new not at all. Answers what
    /// everybody has had by now who was there all the time.
    fn admit(&mut self, device: DeviceId, floor: Nanos) -> Nanos {
        for &process in &self.contenders {
            match self
                .accounts
                .iter_mut()
                .find(|account| (account.device, account.process) == (device, process))
            {
                Some(account) => account.had = account.had.max(floor - TURN),
                None => self.accounts.push(Account { device, process, had: floor }),
            }
        }
        self.least(device).map_or(floor, |least| floor.max(least))
    }

    fn had(&self, device: DeviceId, process: ProcessId) -> Option<Nanos> {
        let its = |account: &&Account| (account.device, account.process) == (device, process);
        self.accounts.iter().find(its).map(|account| account.had)
    }

    /// The least that a contender has had.
    fn least(&self, device: DeviceId) -> Option<Nanos> {
        self.contenders.iter().filter_map(|process| self.had(device, *process)).min()
    }

    /// When a turn ends, as things are.
    fn end_of(&self, turn: &Turn, now: Nanos) -> Nanos {
        let had = self.had(turn.device, turn.holder).unwrap_or_default();
        let ahead = had - self.least(turn.device).unwrap_or(had);
        // Then somebody is behind by a turn.
        let behind = (now + (TURN - ahead)).max(turn.began + LEAST);
        behind.min(turn.began + TURN)
    }

    /// Who has had least; among equals it goes round.
    fn next(&self, device: DeviceId, before: Option<Turn>) -> ProcessId {
        let (least, after) = (self.least(device), before.map(|turn| turn.holder));
        let has_least = |process: &&ProcessId| self.had(device, **process) == least;
        let mut equals = self.contenders.iter().filter(has_least);
        let first = equals.clone().next().copied();
        equals.find(|process| Some(**process) > after).copied().or(first).unwrap_or_default()
    }

    /// Whether whoever waits for others to leave the device has to go on waiting.
    pub(super) fn has_patience(&mut self, device: DeviceId, now: Nanos) -> bool {
        let known = self.handing_over.iter().find(|(other, _)| *other == device).map(|(_, since)| *since);
        let since = known.unwrap_or(now);
        if known.is_none() {
            self.handing_over.push((device, now));
        }
        self.look_at(since + PATIENCE);
        now < since + PATIENCE
    }

    pub(super) fn handed_over(&mut self, device: DeviceId) {
        self.handing_over.retain(|(other, _)| *other != device);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceId = DeviceId(7);

    fn holder(turns: &mut Turns, contenders: &[u32], ms: u64) -> Option<u32> {
        let contenders = contenders.iter().map(|id| (ProcessId(*id), true));
        turns.holder(DEVICE, contenders, Nanos::from_millis(ms)).map(|process| process.0)
    }

    #[test]
    fn turns_go_round_and_a_turn_is_not_cut_short_by_newcomers() {
        let mut turns = Turns::default();
        assert_eq!(holder(&mut turns, &[5, 9, 5], 0), Some(5));
        assert_eq!(holder(&mut turns, &[3, 5, 9], 49), Some(5));
        assert_eq!(holder(&mut turns, &[3, 5, 9], 50), Some(9));
        assert_eq!(holder(&mut turns, &[3, 5, 9], 100), Some(3));
        assert_eq!(holder(&mut turns, &[5, 9], 101), Some(5), "who has no work any more gives its turn away");
    }

    #[test]
    fn who_comes_back_the_moment_after_has_lost_its_turn() {
        let mut turns = Turns::default();
        assert_eq!(holder(&mut turns, &[5, 9], 0), Some(5));
        assert_eq!(holder(&mut turns, &[9], 30), Some(9), "the other has no work");
        assert_eq!(turns.next_look(), Some(Nanos::from_millis(50)), "from the first decision");
        assert_eq!(holder(&mut turns, &[5, 9], 31), Some(9));
        assert_eq!(holder(&mut turns, &[5, 9], 79), Some(9));
        assert_eq!(holder(&mut turns, &[5, 9], 80), Some(5));
        assert_eq!(holder(&mut turns, &[], 81), None);
    }

    #[test]
    fn a_short_gap_is_waited_for_at_the_beginning_of_a_turn_only() {
        let mut turns = Turns::default();
        assert_eq!(holder(&mut turns, &[4, 5], 0), Some(4));
        let in_a_gap = [(ProcessId(4), false), (ProcessId(5), true)];
        for (ms, whose) in [(9, 4), (10, 5), (11, 5)] {
            let holder = turns.holder(DEVICE, in_a_gap.into_iter(), Nanos::from_millis(ms));
            assert_eq!(holder, Some(ProcessId(whose)), "after {ms} ms");
        }
    }

    #[test]
    fn who_works_a_little_now_and_then_does_not_wait_for_whole_turns() {
        let mut turns = Turns::default();
        // 4 and 6 never stop; 5 works for 2 ms, and comes back 8 ms after it is done.
        let (mut works, mut comes, mut waited) = (0, 20, 0);
        let mut had = [0_u64; 7];
        for ms in 0..10_000 {
            let is_there = ms >= comes;
            let contenders: &[u32] = if is_there { &[4, 5, 6] } else { &[4, 6] };
            let holder = holder(&mut turns, contenders, ms).unwrap();
            had[holder as usize] += 1;
            if holder == 5 {
                works += 1;
                if works == 2 {
                    (works, comes) = (0, ms + 9);
                }
            } else if is_there {
                waited += 1;
            }
        }
        let rounds = had[5] / 2;
        assert!(rounds > 500, "{rounds} rounds of 2 ms in 10 s");
        assert!(waited / rounds <= 10, "it waits for {} ms each time", waited / rounds);
        assert!(had[4].abs_diff(had[6]) <= 60, "the others are equals: {had:?}");
    }

    #[test]
    fn who_was_away_for_long_does_not_keep_the_others_out_for_long() {
        let mut turns = Turns::default();
        for ms in 0..10_000 {
            assert_eq!(holder(&mut turns, &[4], ms), Some(4));
        }
        for ms in 10_000..20_000 {
            holder(&mut turns, &[4, 5], ms);
        }
        let away = holder(&mut turns, &[4], 20_000);
        assert_eq!(away, Some(4));
        for ms in 20_001..30_000 {
            holder(&mut turns, &[4], ms);
        }
        let mut first = 0;
        while holder(&mut turns, &[4, 5], 30_000 + first) != Some(5) {
            first += 1;
        }
        assert!(first <= 10, "it is let in after {first} ms");
        let kept = (first..first + 1_000)
            .take_while(|ms| holder(&mut turns, &[4, 5], 30_000 + ms) == Some(5))
            .count();
        assert!((50..=100).contains(&kept), "for {kept} ms");
    }

    #[test]
    fn what_somebody_more_important_had_is_not_counted() {
        let mut turns = Turns::default();
        assert_eq!(holder(&mut turns, &[4, 5], 0), Some(4));
        turns.pause(DEVICE, Nanos::from_millis(20));
        turns.pause(DEVICE, Nanos::from_millis(40));
        assert_eq!(holder(&mut turns, &[5], 60), Some(5), "the other has no work");
        assert_eq!(turns.had(DEVICE, ProcessId(4)), Some(Nanos::from_millis(20)));
    }

    #[test]
    fn patience_ends_and_begins_anew_with_the_next_change() {
        let mut turns = Turns::default();
        assert!(turns.has_patience(DEVICE, Nanos::from_millis(10)));
        assert!(turns.has_patience(DEVICE, Nanos::from_millis(24)));
        assert!(!turns.has_patience(DEVICE, Nanos::from_millis(25)));
        turns.handed_over(DEVICE);
        assert!(turns.has_patience(DEVICE, Nanos::from_millis(26)));
    }
}

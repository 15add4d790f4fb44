//! Turns by weight: what UP, PUP, SPUP and CFS have in common.
//!
//! Parties (tasks or processes) take turns. Each has an account of the device time it had, divided by its weight, and
//! counted from where the ready party furthest behind stands:
//!
//! ```text
//!   behind <------ 0 ------> ahead
//!             A    |              A is ready and furthest behind: the next turn is its
//!                  |  B           B is ready and waits
//!                  |      C       C's last command was long: it is charged, and waits longer
//!         [ D      |              D is idle: it may keep a part of a turn, less with every moment, and
//!                  |              takes the turn when it is back in time
//! ```
//!
//! A turn ends when its length has been consumed, when its holder becomes idle, when somebody comes back who still has
//! a part of a turn, or when nothing was consumed for long. In the last case the holder is charged a turn in advance,
//! so that a task which is ready but does nothing cannot keep the others out; the charge is taken back once it consumes.
//! Long-run shares follow the weights whatever the length of commands, because all consumption is charged, whenever it
//! happens.

use std::mem;

use xsched_core::Nanos;

use crate::Grant;
use crate::ledger::Ledger;

/// Nothing consumed by anybody for so many timeslices ends a turn: longer than most commands, short enough to bear.
const PATIENCE: u64 = 4;
/// So many timeslices end a turn in any case, even if leftovers of others keep the device busy.
const LONGEST: u64 = 64;
/// Nobody is more than this many turns of the heaviest party behind: the lightest go slowly but do not stop.
const DEEPEST_DEBT: f64 = 1000.0;
/// Looking more often than this part of a timeslice costs more than it gains; what is consumed beyond is charged.
pub(super) const FINEST_LOOK: u64 = 8;
/// No turn is shorter than this part of a timeslice; the account keeps the shares right.
const SHORTEST_TURN: f64 = 8.0;

/// What a party wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// Must not run now.
    Barred,
    /// Has no work.
    Idle,
    /// Has work.
    Ready,
}

/// What one party brings to a decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim<K> {
    pub(super) key: K,
    /// Its part in relation to the others. Who has none runs when nobody else is ready.
    pub(super) weight: f64,
    pub(super) demand: Demand,
    /// Device time it had since the last decision.
    pub(super) consumed: Nanos,
}

impl<K> Claim<K> {
    /// Parties of rank 0 come before those of rank 1, which have no weight.
    fn rank(&self) -> u8 {
        u8::from(self.weight <= 0.0)
    }

    /// What consumption is divided by: those without weight are equals among themselves.
    fn divisor(&self) -> f64 {
        if self.weight > 0.0 { self.weight } else { 1.0 }
    }
}

/// How long turns are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lengths {
    /// A timeslice on average, in proportion to the weights.
    ByWeight,
    /// A timeslice each; the heavy have more turns.
    Equal,
}

/// One party's account.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    /// Device time by weight; see the picture above.
    ahead: f64,
    /// The part of it that was charged for a turn in which nothing happened.
    advance: f64,
    /// Was a contender at the last decision.
    contended: bool,
    /// When it last stopped being one.
    left_at: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Turn<K> {
    holder: K,
    began: Nanos,
    /// Since when nobody consumed anything.
    quiet_since: Nanos,
    consumed: Nanos,
}

/// The contenders of one decision as a whole: the ready parties of the best rank that is ready.
#[derive(Clone, Copy, Debug)]
struct Field {
    lengths: Lengths,
    timeslice: f64,
    rank: u8,
    contenders: u32,
    weight: f64,
    heaviest: f64,
    /// Parties that are not barred, and those of rank 0 among them.
    present: [u32; 2],
}

impl Field {
    const NOBODY: u8 = u8::MAX;

    fn of<K>(claims: &[Claim<K>], timeslice: Nanos, lengths: Lengths) -> Self {
        let timeslice = timeslice.0.max(1) as f64;
        let (rank, contenders, weight, heaviest, present) = (Self::NOBODY, 0, 0.0, 0.0, [0; 2]);
        let mut field = Self { lengths, timeslice, rank, contenders, weight, heaviest, present };
        for claim in claims.iter().filter(|claim| claim.demand != Demand::Barred) {
            field.present[usize::from(claim.rank())] += 1;
            if claim.demand == Demand::Ready {
                field.rank = field.rank.min(claim.rank());
            }
        }
        for claim in claims.iter().filter(|claim| claim.demand == Demand::Ready && claim.rank() == field.rank)
        {
            field.contenders += 1;
            field.weight += claim.divisor();
            field.heaviest = claim.divisor().max(field.heaviest);
        }
        field
    }

    fn contends<K>(&self, claim: &Claim<K>) -> bool {
        claim.demand == Demand::Ready && claim.rank() == self.rank
    }

    /// A whole turn, by weight.
    fn turn<K>(&self, claim: &Claim<K>) -> f64 {
        match self.lengths {
            Lengths::ByWeight if self.contenders > 0 => {
                let even = self.timeslice * f64::from(self.contenders) / self.weight;
                even.max(self.timeslice / SHORTEST_TURN / claim.divisor())
            }
            _ => self.timeslice / claim.divisor(),
        }
    }

    /// A whole turn, in device time.
    fn turn_length<K>(&self, claim: &Claim<K>) -> Nanos {
        whole(self.turn(claim) * claim.divisor())
    }

    /// What may be left of a turn after an absence: all at first, nothing after everybody else had one.
    fn carried<K>(&self, claim: &Claim<K>, absence: Nanos) -> f64 {
        let round = self.timeslice * f64::from(self.contenders + 1);
        let absence = absence.0 as f64;
        // Most have been away for long, and this is asked for every idle party.
        if absence >= round { 0.0 } else { self.turn(claim) * (1.0 - absence / round) }
    }
}

/// Who has the turn, and what follows for everybody.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verdict {
    /// Index of the claim that has the turn.
    pub(super) chosen: Option<usize>,
    /// When its turn may end though nothing happens.
    pub(super) until: Option<Nanos>,
    rank: u8,
    present: [u32; 2],
}

impl Verdict {
    /// What a party may do: the chosen one runs; idle ones may begin at once where they would get the turn anyway.
    pub(super) fn grant<K>(&self, claims: &[Claim<K>], index: usize) -> Grant {
        let claim = &claims[index];
        let runs = match claim.demand {
            Demand::Barred => false,
            Demand::Idle => claim.rank() < self.rank,
            Demand::Ready => self.chosen == Some(index),
        };
        let rivals: u32 = self.present.iter().take(usize::from(claim.rank()) + 1).sum();
        match (runs, rivals) {
            (false, _) => Grant::Hold,
            (true, 1) => Grant::Unthrottled,
            (true, _) => Grant::Throttled,
        }
    }
}

/// The accounts and the turn.
#[derive(Debug)]
pub(super) struct Turns<K> {
    accounts: Ledger<K, Account>,
    turn: Option<Turn<K>>,
    decided_at: Nanos,
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self { accounts: Ledger::default(), turn: None, decided_at: Nanos::ZERO }
    }
}

impl<K: Copy + Ord> Turns<K> {
    /// Charges what was consumed and says whose turn it is. `claims` are in ascending order of key.
    pub(super) fn decide(
        &mut self,
        now: Nanos,
        claims: &[Claim<K>],
        timeslice: Nanos,
        lengths: Lengths,
    ) -> Verdict {
        let field = Field::of(claims, timeslice, lengths);
        let somebody_returned = self.settle(now, claims, &field);
        let chosen = match self.holder_goes_on(now, claims, timeslice, &field, somebody_returned) {
            Some(index) => Some(index),
            None => self.begin_turn(now, claims, &field),
        };
        let until = match (&self.turn, chosen) {
            (Some(turn), Some(index)) if field.contenders > 1 => {
                let left = field.turn_length(&claims[index]) - turn.consumed;
                // Since the last time anything was measured, it has probably been running.
                let used_up = (turn.quiet_since + left).max(now + Nanos(timeslice.0 / FINEST_LOOK));
                Some(used_up.min(turn.quiet_since + times(PATIENCE, timeslice)))
            }
            _ => None,
        };
        Verdict { chosen, until, rank: field.rank, present: field.present }
    }

    /// Brings the accounts up to date; true if somebody came back who still has a part of a turn.
    fn settle(&mut self, now: Nanos, claims: &[Claim<K>], field: &Field) -> bool {
        let accounts = self.accounts.align(claims.iter().map(|claim| claim.key), Account::default());
        let elapsed = now - mem::replace(&mut self.decided_at, now);
        let mut pace = f64::INFINITY;
        for (account, claim) in accounts.iter_mut().zip(claims) {
            if claim.consumed > Nanos::ZERO {
                account.ahead += claim.consumed.0 as f64 / claim.divisor() - mem::take(&mut account.advance);
            }
            if account.contended {
                pace = pace.min(account.ahead);
            }
        }
        // Those who were ready set the pace. While nobody was, time did, so that old debts are forgotten.
        let pace = match field.contenders {
            _ if pace.is_finite() => pace.max(0.0),
            0 => 0.0,
            _ => elapsed.0 as f64 / field.weight,
        };
        let deepest = if field.contenders > 0 {
            DEEPEST_DEBT * field.timeslice / field.heaviest
        } else {
            f64::INFINITY
        };

        let mut somebody_returned = false;
        for (account, claim) in accounts.iter_mut().zip(claims) {
            let contends = field.contends(claim);
            account.ahead = (account.ahead - pace).min(deepest);
            if account.contended {
                if !contends {
                    account.left_at = now;
                }
            } else {
                if account.ahead < 0.0 {
                    account.ahead = account.ahead.max(-field.carried(claim, now - account.left_at));
                }
                somebody_returned |= contends && account.ahead < 0.0;
            }
            account.contended = contends;
        }
        somebody_returned
    }

    /// The holder's index if its turn goes on.
    fn holder_goes_on(
        &mut self,
        now: Nanos,
        claims: &[Claim<K>],
        timeslice: Nanos,
        field: &Field,
        somebody_returned: bool,
    ) -> Option<usize> {
        let turn = self.turn.as_mut()?;
        let index = claims.binary_search_by_key(&turn.holder, |claim| claim.key).ok()?;
        let claim = &claims[index];
        turn.consumed += claim.consumed;
        if claims.iter().any(|claim| claim.consumed > Nanos::ZERO) {
            turn.quiet_since = now;
        }
        if !field.contends(claim) || turn.consumed >= field.turn_length(claim) || somebody_returned {
            return None;
        }
        let stalled = now - turn.quiet_since >= times(PATIENCE, timeslice)
            || now - turn.began >= times(LONGEST, timeslice);
        if stalled && field.contenders > 1 {
            let account = &mut self.accounts.rows()[index];
            account.ahead += field.turn(claim);
            account.advance += field.turn(claim);
            return None;
        }
        Some(index)
    }

    /// Gives the turn to the contender furthest behind.
    fn begin_turn(&mut self, now: Nanos, claims: &[Claim<K>], field: &Field) -> Option<usize> {
        let accounts = self.accounts.rows();
        let contenders = claims.iter().enumerate().filter(|(_, claim)| field.contends(claim));
        let chosen = contenders
            .map(|(index, _)| index)
            .min_by(|&one, &other| accounts[one].ahead.total_cmp(&accounts[other].ahead));
        self.turn = chosen.map(|index| Turn {
            holder: claims[index].key,
            began: now,
            quiet_since: now,
            consumed: Nanos::ZERO,
        });
        chosen
    }
}

fn times(n: u64, span: Nanos) -> Nanos {
    Nanos(span.0.saturating_mul(n))
}

/// Whole nanoseconds of a span that was calculated with fractions.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "such a cast saturates: too much becomes the end of time, less than nothing becomes nothing"
)]
pub(super) fn whole(ns: f64) -> Nanos {
    Nanos(ns as u64)
}

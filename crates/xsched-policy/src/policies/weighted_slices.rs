//! Weighted time slices: the fair queueing that UP, PUP, SPUP and CFS have in common.
//!
//! Entities (tasks or processes) have time slices. Each has an account of the device time it had, divided by its weight,
//! counted from the ready entity that has had least:
//!
//! ```text
//!   behind <------ 0 ------> ahead
//!             A    |              A is ready and has had least: the next slice is its
//!                  |  B           B is ready and waits
//!                  |      C       C's last command was long: it is charged, and waits longer
//!         [ D      |              D is idle: it keeps a part of a slice, which shrinks with time, and
//!                  |              has the next slice if it is ready again before the part is gone
//! ```
//!
//! A slice ends when its length has been consumed, when its holder becomes idle, when an entity becomes ready that still has
//! a part of a slice, or when nothing was consumed for long. In the last case the holder is charged a slice in advance, so
//! that a task which is ready but uses no device time cannot block the rest; the charge is taken back once it consumes.
//! Long-run shares follow the weights whatever the length of commands, because all consumption is charged, whenever it
//! happens.

use std::mem;

use xsched_core::Nanos;

use crate::Grant;
use crate::ledger::Ledger;

/// A slice in which nothing was consumed ends after this many timeslices: longer than most commands take.
const STALL_TIMESLICES: u64 = 4;
/// A slice ends after this many timeslices in any case, even if work of other entities keeps the device busy.
const MAX_TIMESLICES: u64 = 64;
/// An entity is ahead by at most this many slices of the heaviest one, so that the lightest still runs.
const MAX_AHEAD_SLICES: f64 = 1000.0;
/// A decision is requested no sooner than this fraction of a timeslice from now. What is consumed beyond is charged.
pub(super) const DECISIONS_PER_TIMESLICE: u64 = 8;
/// No slice is shorter than this fraction of a timeslice; the accounts keep the shares right.
const MIN_SLICES_PER_TIMESLICE: f64 = 8.0;

/// Whether an entity has work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// Must not run now.
    Barred,
    /// Has no work.
    Idle,
    /// Has work.
    Ready,
}

/// One entity of a decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entity<K> {
    pub(super) key: K,
    /// Its part in relation to the other entities. One without weight runs while no other is ready.
    pub(super) weight: f64,
    pub(super) demand: Demand,
    /// Device time it had since the last decision.
    pub(super) consumed: Nanos,
}

impl<K> Entity<K> {
    /// Entities of rank 0 precede those of rank 1, which have no weight.
    fn rank(&self) -> u8 {
        u8::from(self.weight <= 0.0)
    }

    /// What consumption is divided by: entities without weight are equals among themselves.
    fn divisor(&self) -> f64 {
        if self.weight > 0.0 { self.weight } else { 1.0 }
    }
}

/// How long slices are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SliceLengths {
    /// A timeslice on average, in proportion to the weights.
    ByWeight,
    /// A timeslice each; heavy entities have more slices.
    Equal,
}

/// One entity's account.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    /// Device time by weight; see the picture above.
    ahead: f64,
    /// The part of it that was charged in advance for a slice in which nothing was consumed.
    advance: f64,
    /// Was a contender at the last decision.
    contended: bool,
    /// When it last stopped being one.
    left_at: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Slice<K> {
    holder: K,
    started: Nanos,
    /// Since when no entity consumed anything.
    stalled_since: Nanos,
    consumed: Nanos,
}

/// The contenders of one decision as a whole: the ready entities of the best rank that is ready.
#[derive(Clone, Copy, Debug)]
struct Contention {
    lengths: SliceLengths,
    timeslice: f64,
    rank: u8,
    contenders: u32,
    weight: f64,
    heaviest: f64,
    /// Entities of each rank that are not barred.
    present: [u32; 2],
}

impl Contention {
    const NO_RANK: u8 = u8::MAX;

    fn of<K>(entities: &[Entity<K>], timeslice: Nanos, lengths: SliceLengths) -> Self {
        let timeslice = timeslice.0.max(1) as f64;
        let (rank, contenders, weight, heaviest, present) = (Self::NO_RANK, 0, 0.0, 0.0, [0; 2]);
        let mut contention = Self { lengths, timeslice, rank, contenders, weight, heaviest, present };
        for entity in entities.iter().filter(|entity| entity.demand != Demand::Barred) {
            contention.present[usize::from(entity.rank())] += 1;
            if entity.demand == Demand::Ready {
                contention.rank = contention.rank.min(entity.rank());
            }
        }
        for entity in entities {
            if contention.includes(entity) {
                contention.contenders += 1;
                contention.weight += entity.divisor();
                contention.heaviest = entity.divisor().max(contention.heaviest);
            }
        }
        contention
    }

    fn includes<K>(&self, entity: &Entity<K>) -> bool {
        entity.demand == Demand::Ready && entity.rank() == self.rank
    }

    /// A whole slice, by weight.
    fn slice<K>(&self, entity: &Entity<K>) -> f64 {
        match self.lengths {
            SliceLengths::ByWeight if self.contenders > 0 => {
                let even = self.timeslice * f64::from(self.contenders) / self.weight;
                even.max(self.timeslice / MIN_SLICES_PER_TIMESLICE / entity.divisor())
            }
            _ => self.timeslice / entity.divisor(),
        }
    }

    /// A whole slice, in device time.
    fn slice_length<K>(&self, entity: &Entity<K>) -> Nanos {
        to_nanos(self.slice(entity) * entity.divisor())
    }

    /// What is left of a slice after an absence: all at first, nothing after every other entity had one.
    fn carried<K>(&self, entity: &Entity<K>, absence: Nanos) -> f64 {
        let all_slices = self.timeslice * f64::from(self.contenders + 1);
        let absence = absence.0 as f64;
        // Checked first: most idle entities have been absent for long, and this runs for each of them.
        if absence >= all_slices { 0.0 } else { self.slice(entity) * (1.0 - absence / all_slices) }
    }
}

/// Which entity has the slice, and what follows for the rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct SliceDecision {
    /// Index of the entity that has the slice.
    pub(super) chosen: Option<usize>,
    /// When its slice may end though no task changes.
    pub(super) until: Option<Nanos>,
    rank: u8,
    present: [u32; 2],
}

impl SliceDecision {
    /// The grant of an entity: the chosen one runs; idle ones may start at once where they would have the slice anyway.
    pub(super) fn grant<K>(&self, entities: &[Entity<K>], index: usize) -> Grant {
        let entity = &entities[index];
        let runs = match entity.demand {
            Demand::Barred => false,
            Demand::Idle => entity.rank() < self.rank,
            Demand::Ready => self.chosen == Some(index),
        };
        let rivals: u32 = self.present.iter().take(usize::from(entity.rank()) + 1).sum();
        match (runs, rivals) {
            (false, _) => Grant::Hold,
            (true, 1) => Grant::Unthrottled,
            (true, _) => Grant::Throttled,
        }
    }
}

/// The accounts and the running slice.
#[derive(Debug)]
pub(super) struct WeightedSlices<K> {
    accounts: Ledger<K, Account>,
    slice: Option<Slice<K>>,
    decided_at: Nanos,
}

impl<K> Default for WeightedSlices<K> {
    fn default() -> Self {
        Self { accounts: Ledger::default(), slice: None, decided_at: Nanos::ZERO }
    }
}

impl<K: Copy + Ord> WeightedSlices<K> {
    /// Charges what was consumed and chooses the entity that has the slice. `entities` are in ascending order of key.
    pub(super) fn decide(
        &mut self,
        now: Nanos,
        entities: &[Entity<K>],
        timeslice: Nanos,
        lengths: SliceLengths,
    ) -> SliceDecision {
        let contention = Contention::of(entities, timeslice, lengths);
        let holder_has_to_yield = self.settle(now, entities, &contention);
        let chosen = match self.holder(now, entities, timeslice, &contention, holder_has_to_yield) {
            Some(index) => Some(index),
            None => self.start_slice(now, entities, &contention),
        };
        let until = match (&self.slice, chosen) {
            (Some(slice), Some(index)) if contention.contenders > 1 => {
                let left = contention.slice_length(&entities[index]) - slice.consumed;
                // The holder has probably been running since the last measurement.
                let used_up =
                    (slice.stalled_since + left).max(now + Nanos(timeslice.0 / DECISIONS_PER_TIMESLICE));
                Some(used_up.min(slice.stalled_since + times(STALL_TIMESLICES, timeslice)))
            }
            _ => None,
        };
        SliceDecision { chosen, until, rank: contention.rank, present: contention.present }
    }

    /// Updates the accounts. Returns whether an entity became ready that still has a part of a slice.
    fn settle(&mut self, now: Nanos, entities: &[Entity<K>], contention: &Contention) -> bool {
        let accounts = self.accounts.align(entities.iter().map(|entity| entity.key), Account::default());
        let elapsed = now - mem::replace(&mut self.decided_at, now);
        let mut least = f64::INFINITY;
        for (account, entity) in accounts.iter_mut().zip(entities) {
            if entity.consumed > Nanos::ZERO {
                account.ahead +=
                    entity.consumed.0 as f64 / entity.divisor() - mem::take(&mut account.advance);
            }
            if account.contended {
                least = least.min(account.ahead);
            }
        }
        // The account that has had least among the contenders becomes 0. While there was none, the time that passed is
        // subtracted, so that old debts expire.
        let origin = match contention.contenders {
            _ if least.is_finite() => least.max(0.0),
            0 => 0.0,
            _ => elapsed.0 as f64 / contention.weight,
        };
        let max_ahead = if contention.contenders > 0 {
            MAX_AHEAD_SLICES * contention.timeslice / contention.heaviest
        } else {
            f64::INFINITY
        };

        let mut has_returned = false;
        for (account, entity) in accounts.iter_mut().zip(entities) {
            let contends = contention.includes(entity);
            account.ahead = (account.ahead - origin).min(max_ahead);
            if account.contended {
                if !contends {
                    account.left_at = now;
                }
            } else {
                if account.ahead < 0.0 {
                    account.ahead = account.ahead.max(-contention.carried(entity, now - account.left_at));
                }
                has_returned |= contends && account.ahead < 0.0;
            }
            account.contended = contends;
        }
        has_returned
    }

    /// The index of the holder if its slice continues.
    fn holder(
        &mut self,
        now: Nanos,
        entities: &[Entity<K>],
        timeslice: Nanos,
        contention: &Contention,
        has_to_yield: bool,
    ) -> Option<usize> {
        let slice = self.slice.as_mut()?;
        let index = entities.binary_search_by_key(&slice.holder, |entity| entity.key).ok()?;
        let entity = &entities[index];
        slice.consumed += entity.consumed;
        if entities.iter().any(|entity| entity.consumed > Nanos::ZERO) {
            slice.stalled_since = now;
        }
        let is_over = slice.consumed >= contention.slice_length(entity);
        if !contention.includes(entity) || is_over || has_to_yield {
            return None;
        }
        let is_stalled = now - slice.stalled_since >= times(STALL_TIMESLICES, timeslice)
            || now - slice.started >= times(MAX_TIMESLICES, timeslice);
        if is_stalled && contention.contenders > 1 {
            let account = &mut self.accounts.rows()[index];
            account.ahead += contention.slice(entity);
            account.advance += contention.slice(entity);
            return None;
        }
        Some(index)
    }

    /// Starts a slice of the contender that has had least.
    fn start_slice(&mut self, now: Nanos, entities: &[Entity<K>], contention: &Contention) -> Option<usize> {
        let accounts = self.accounts.rows();
        let contenders = entities.iter().enumerate().filter(|(_, entity)| contention.includes(entity));
        let chosen = contenders
            .map(|(index, _)| index)
            .min_by(|&one, &other| accounts[one].ahead.total_cmp(&accounts[other].ahead));
        self.slice = chosen.map(|index| Slice {
            holder: entities[index].key,
            started: now,
            stalled_since: now,
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
    reason = "the cast saturates: a negative span becomes zero"
)]
pub(super) fn to_nanos(ns: f64) -> Nanos {
    Nanos(ns as u64)
}

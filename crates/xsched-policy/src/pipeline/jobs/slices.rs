//! Time slices that begin and end on several devices at the same time.
//!
//! ```text
//!   device 0   job 1 ████████    A ████████    job 1 ████████     each unit has all devices that it claims, or none;
//!   device 1   job 1 ████████    B ████████    job 1 ████████     a slice lasts 50 ms
//! ```
//!
//! At the begin of a slice the units are asked in the order of the time that they have had: the one that has had least comes
//! first and has all its devices; the next has its devices if they are free; and so on. A unit without work gives its devices
//! to those that can use them, up to the end of the slice. The unit that has had least is never passed over, so every unit
//! runs.

use xsched_core::{DeviceId, Nanos, ProcessId};

use super::JobId;
use crate::pipeline::WakeUp;

/// Long against the cost of a context switch. Shorter than the 200 ms of `time_slices`: there a process that is idle at times does
/// not wait for the end of a slice, but here it does, because a slice ends on all devices at the same time.
const SLICE: Nanos = Nanos::from_millis(50);
/// How long a unit keeps its devices in a short idle gap after its slice has begun.
const MIN_SLICE: Nanos = Nanos::from_millis(10);

/// What has a time slice: a job on all its devices, or a process without a job on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unit {
    Job(JobId),
    Process(DeviceId, ProcessId),
}

/// A unit needs a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim {
    pub(super) unit: Unit,
    pub(super) device: DeviceId,
    /// It has work there, and is not only in a short idle gap.
    pub(super) has_work: bool,
}

/// A unit that has claimed a device, and the device time it has had in slices.
#[derive(Clone, Copy, Debug)]
struct Account {
    unit: Unit,
    used: Nanos,
    runs: bool,
    /// It claims devices in this round. A range of the claims.
    begin: usize,
    end: usize,
}

/// The slices of all devices that jobs share with other units.
#[derive(Debug, Default)]
pub(super) struct GangSlices {
    /// In ascending order of unit.
    accounts: Vec<Account>,
    /// The unit that each claimed device is given to.
    holders: Vec<(DeviceId, Unit)>,
    /// When the slice began.
    started: Nanos,
    counted_to: Nanos,
    /// What a unit has had at least that was ready all the time.
    floor: Nanos,
    order: Vec<usize>,
}

impl GangSlices {
    /// The unit that has a device. None if no unit has claimed it.
    pub(super) fn holder(&self, device: DeviceId) -> Option<Unit> {
        self.holders.iter().find(|(held, _)| *held == device).map(|(_, unit)| *unit)
    }

    /// Whether a unit has all devices that it claimed.
    pub(super) fn runs(&self, unit: Unit) -> bool {
        let place = self.accounts.binary_search_by_key(&unit, |account| account.unit);
        place.is_ok_and(|place| self.accounts[place].runs)
    }

    /// Forgets jobs that are gone.
    pub(super) fn retain_jobs(&mut self, exists: impl Fn(JobId) -> bool) {
        self.accounts.retain(|account| !matches!(account.unit, Unit::Job(id) if !exists(id)));
    }

    /// Gives the claimed devices to units. Sorts the claims.
    pub(super) fn choose(&mut self, now: Nanos, claims: &mut Vec<Claim>, wake_up: &mut WakeUp) {
        self.count(now);
        self.holders.clear();
        claims.sort_unstable();
        claims.dedup_by_key(|claim| (claim.unit, claim.device));
        let has_expired = now >= self.started + SLICE;
        let just_started = now < self.started + MIN_SLICE;
        self.open_accounts(claims);
        if claims.is_empty() {
            return;
        }
        let accounts = &mut self.accounts;
        self.order.clear();
        self.order.extend((0..accounts.len()).filter(|&place| {
            let account = &accounts[place];
            let has_work = claims[account.begin..account.end].iter().any(|claim| claim.has_work);
            account.begin < account.end && (has_work || (account.runs && just_started))
        }));
        // Units that have a slice keep it until it ends; then the unit that has had least is first.
        self.order.sort_by_key(|&place| (has_expired || !accounts[place].runs, accounts[place].used));
        let is_continued = !has_expired && self.order.iter().any(|&place| accounts[place].runs);
        for account in accounts.iter_mut() {
            account.runs = false;
        }
        for &place in &self.order {
            let account = &mut accounts[place];
            let claimed = &claims[account.begin..account.end];
            let is_taken = |claim: &Claim| self.holders.iter().any(|(device, _)| *device == claim.device);
            if claimed.iter().any(is_taken) {
                continue;
            }
            account.runs = true;
            self.holders.extend(claimed.iter().map(|claim| (claim.device, account.unit)));
        }
        if !is_continued {
            self.started = now;
        }
        if self.order.iter().any(|&place| !accounts[place].runs) {
            wake_up.at(self.started + SLICE);
        }
    }

    /// Adds the time since the last round to the units that had it.
    fn count(&mut self, now: Nanos) {
        let span = now - std::mem::replace(&mut self.counted_to, now);
        for account in self.accounts.iter_mut().filter(|account| account.runs) {
            account.used += span;
        }
    }

    /// Opens accounts for new units, and closes those of processes that claim nothing. A unit that was away is behind the rest
    /// by one slice at most.
    fn open_accounts(&mut self, claims: &[Claim]) {
        for account in &mut self.accounts {
            (account.begin, account.end) = (0, 0);
        }
        let (mut begin, mut min_used) = (0, Nanos::MAX);
        for claimed in claims.chunk_by(|a, b| a.unit == b.unit) {
            let (unit, end) = (claimed[0].unit, begin + claimed.len());
            let place = self.accounts.binary_search_by_key(&unit, |account| account.unit);
            let place = place.unwrap_or_else(|place| {
                let used = self.floor;
                self.accounts.insert(place, Account { unit, used, runs: false, begin, end });
                place
            });
            let account = &mut self.accounts[place];
            account.used = account.used.max(self.floor - SLICE);
            (account.begin, account.end) = (begin, end);
            min_used = min_used.min(account.used);
            begin = end;
        }
        if min_used != Nanos::MAX {
            self.floor = self.floor.max(min_used);
        }
        self.accounts.retain(|account| account.begin < account.end || matches!(account.unit, Unit::Job(_)));
        for account in self.accounts.iter_mut().filter(|account| account.begin == account.end) {
            account.runs = false;
        }
    }
}

//! From what a policy grants to what each task is ordered.
//!
//! ```text
//!   nobody else is there                     Free           on the device, or where the policy looks at all, anywhere
//!   unpaced, first among unequals            Watched        equals beside it: Shared
//!   paced, its process's turn                Paced          another's turn: Stop
//!   held while somebody unpaced runs         Hold           that one takes the device by itself
//!   held while somebody paced runs           Stop           off the device first, then the other begins
//!   suspended by a person                    Stop
//! ```
//!
//! Of several paced programs one runs at a time: a paced program gives way quickly, and two that give way quickly to
//! each other get nothing done. Who takes the place of another begins once the other is off the device, so that what
//! each of them had is known, and neither pays for the other.

use xsched_core::{DeviceId, Nanos, Order, ProcessId};
use xsched_policy::{Grant, Scope, TaskView};

use super::Coordinator;
use crate::page::Slot;

/// How long one of several paced programs has the device. Long against what a change costs, short against what people
/// notice.
const TURN: Nanos = Nanos::from_millis(50);
/// How long somebody has to leave the device before the next begins anyway.
const PATIENCE: Nanos = Nanos::from_millis(15);

/// Who has the device, of several paced programs on it.
#[derive(Clone, Copy, Debug)]
struct Turn {
    device: DeviceId,
    holder: ProcessId,
    until: Nanos,
}

/// The turns on all devices where there are any, and how long to wait for whom.
#[derive(Debug, Default)]
pub(super) struct Turns {
    running: Vec<Turn>,
    /// Since when somebody waits for another to leave a device.
    handing_over: Vec<(DeviceId, Nanos)>,
    contenders: Vec<ProcessId>,
    /// When something here is due.
    again_at: Option<Nanos>,
}

impl Turns {
    /// When to look again.
    pub(super) fn next_look(&self) -> Option<Nanos> {
        self.again_at
    }

    fn look_at(&mut self, at: Nanos) {
        self.again_at = Some(self.again_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Whose turn it is among the contenders. One alone has a turn too: who comes back the moment after waits for its end.
    fn holder(&mut self, device: DeviceId, now: Nanos) -> Option<ProcessId> {
        self.contenders.sort_unstable();
        self.contenders.dedup();
        let first = *self.contenders.first()?;
        let place = self.running.iter().position(|turn| turn.device == device);
        let last = place.map(|place| self.running[place]);
        let goes_on = last.filter(|turn| now < turn.until && self.contenders.contains(&turn.holder));
        let turn = goes_on.unwrap_or_else(|| {
            let after = last.map(|turn| turn.holder);
            let next = self.contenders.iter().find(|process| Some(**process) > after);
            Turn { device, holder: next.copied().unwrap_or(first), until: now + TURN }
        });
        match place {
            Some(place) => self.running[place] = turn,
            None => self.running.push(turn),
        }
        if self.contenders.len() > 1 {
            self.look_at(turn.until);
        }
        Some(turn.holder)
    }

    /// Whether whoever waits for others to leave the device has to go on waiting.
    fn has_patience(&mut self, device: DeviceId, now: Nanos) -> bool {
        let known = self.handing_over.iter().find(|(other, _)| *other == device).map(|(_, since)| *since);
        let since = known.unwrap_or(now);
        if known.is_none() {
            self.handing_over.push((device, now));
        }
        self.look_at(since + PATIENCE);
        now < since + PATIENCE
    }

    fn handed_over(&mut self, device: DeviceId) {
        self.handing_over.retain(|(other, _)| *other != device);
    }
}

impl Coordinator {
    /// Turns the decision into orders, in the order of the tasks.
    pub(super) fn order(&mut self, now: Nanos) {
        let mut turns = std::mem::take(&mut self.turns);
        turns.again_at = None;
        let mut orders = std::mem::take(&mut self.orders);
        let views = std::mem::take(&mut self.views);
        orders.clear();
        for together in views.chunk_by(|a, b| a.device == b.device) {
            let first = orders.len();
            self.grant(together, first, &mut orders);
            let here = &mut orders[first..];
            let unpaced = |order: &Order| matches!(order, Order::Free | Order::Watched | Order::Shared);
            let led = together.iter().zip(&*here).any(|(task, order)| task.ready && unpaced(order));
            if !led {
                // Among equals a gap is not waited for: somebody else has work for it.
                let has_work = |index: usize| self.table.tasks()[first + index].ready;
                take_turns(&mut turns, together, here, has_work, now);
            }
            for (index, order) in here.iter_mut().enumerate() {
                let before = self.accounts[first + index].order;
                // Who is off the device stays off until it may run again.
                if *order == Order::Hold && (!led || before == Order::Stop) {
                    *order = Order::Stop;
                }
            }
            self.hand_over(&mut turns, together, first, here, now);
        }
        turns.running.retain(|turn| views.iter().any(|task| task.device == turn.device));
        self.turns = turns;
        self.orders = orders;
        self.views = views;
    }

    /// What the policy's word means for each task by itself.
    fn grant(&self, together: &[TaskView], first: usize, orders: &mut Vec<Order>) {
        let grant = |index: usize| self.decision.grants()[first + index];
        let mut leaders = together.iter().enumerate().filter(|(index, _)| grant(*index) == Grant::Unpaced);
        let leader = leaders.next().map(|(_, task)| task.process);
        let equals = leaders.any(|(_, task)| Some(task.process) != leader);
        // Nobody counts what a task does that is alone: so there must be nobody either whom it concerns elsewhere.
        let concerned = match self.scheduler.policy().scope {
            Scope::Device => together.len(),
            Scope::Machine => self.decision.grants().len(),
        };
        let alone = concerned == 1;
        for index in 0..together.len() {
            orders.push(match grant(index) {
                _ if self.accounts[first + index].suspended => Order::Stop,
                Grant::Unpaced if alone => Order::Free,
                Grant::Unpaced if equals => Order::Shared,
                Grant::Unpaced => Order::Watched,
                Grant::Paced => Order::Paced,
                Grant::Hold if self.runs[first + index] => Order::Paced,
                Grant::Hold => Order::Hold,
            });
        }
    }

    /// Has those who are to begin wait until the others have left the device.
    fn hand_over(
        &mut self,
        turns: &mut Turns,
        together: &[TaskView],
        first: usize,
        orders: &mut [Order],
        now: Nanos,
    ) {
        let device = together[0].device;
        for (index, task) in together.iter().enumerate() {
            let leaves = orders[index] == Order::Stop;
            let account = &mut self.accounts[first + index];
            if account.order == Order::Stop && !leaves {
                account.let_go_at = now;
            }
            let may_arrive = now < account.let_go_at + PATIENCE;
            let off = task.ready && (leaves || may_arrive) && self.is_off(first + index);
            let account = &mut self.accounts[first + index];
            account.leaving = task.ready && leaves && !off;
            account.arriving = !leaves && off;
        }
        let accounts = &self.accounts[first..];
        let waits = |index: usize, order: Order| {
            let begins = together[index].ready && order == Order::Paced && accounts[index].order.stops();
            let from_another = |other: usize| together[other].process != together[index].process;
            begins && (0..together.len()).any(|other| accounts[other].leaving && from_another(other))
        };
        if !(0..together.len()).any(|index| waits(index, orders[index])) {
            turns.handed_over(device);
        } else if turns.has_patience(device, now) {
            for (index, order) in orders.iter_mut().enumerate() {
                if waits(index, *order) {
                    *order = Order::Stop;
                }
            }
        }
    }

    /// Whether the device runs nothing any more of a task that was told to stop, as far as its program says.
    fn is_off(&self, place: usize) -> bool {
        self.programs.iter().all(|program| {
            let mut queues = program.queues.iter().filter(|queue| queue.place == Some(place) && queue.ready);
            queues.all(|queue| program.page.slot(queue.slot).is_none_or(Slot::is_off))
        })
    }
}

/// Lets one of several paced programs run, and stops the others.
fn take_turns(
    turns: &mut Turns,
    together: &[TaskView],
    orders: &mut [Order],
    has_work: impl Fn(usize) -> bool,
    now: Nanos,
) {
    turns.contenders.clear();
    for (index, task) in together.iter().enumerate() {
        if has_work(index) && orders[index] == Order::Paced {
            turns.contenders.push(task.process);
        }
    }
    let Some(holder) = turns.holder(together[0].device, now) else { return };
    // Who has no work either: it may not begin while another has the turn.
    for (task, order) in together.iter().zip(orders) {
        if *order == Order::Paced && task.process != holder {
            *order = Order::Stop;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceId = DeviceId(7);

    fn holder(turns: &mut Turns, contenders: &[u32], ms: u64) -> Option<u32> {
        turns.contenders = contenders.iter().map(|id| ProcessId(*id)).collect();
        turns.holder(DEVICE, Nanos::from_millis(ms)).map(|process| process.0)
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
    fn patience_ends_and_begins_anew_with_the_next_change() {
        let mut turns = Turns::default();
        assert!(turns.has_patience(DEVICE, Nanos::from_millis(10)));
        assert!(turns.has_patience(DEVICE, Nanos::from_millis(24)));
        assert!(!turns.has_patience(DEVICE, Nanos::from_millis(25)));
        turns.handed_over(DEVICE);
        assert!(turns.has_patience(DEVICE, Nanos::from_millis(26)));
    }
}

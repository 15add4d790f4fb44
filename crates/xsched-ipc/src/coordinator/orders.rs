//! From what a policy grants to what each task is ordered.
//!
//! ```text
//!   nobody else is there                     Free           on the device, or where the policy looks at all, anywhere
//!   unpaced, first among unequals            Watched        equals beside it: Shared
//!   paced, its process's turn                Paced          another's turn: Stop
//!   held while somebody unpaced runs         Hold           that one takes the device by itself
//!   the same, with many short pauses         Freeze         off the device meanwhile, not just out of the way
//!   held while somebody paced runs           Stop           off the device first, then the other begins
//!   suspended by a person                    Stop
//! ```
//!
//! Of several paced programs one runs at a time: a paced program gives way quickly, and two that give way quickly to
//! each other get nothing done. Who takes the place of another begins once the other is off the device, so that what
//! each of them had is known, and neither pays for the other.

use xsched_core::{Nanos, Order};
use xsched_policy::{Grant, Scope, TaskView};

use super::Coordinator;
use super::turns::{PATIENCE, Turns};
use crate::page::Slot;

impl Coordinator {
    /// Turns the decision into orders, in the order of the tasks.
    pub(super) fn order(&mut self, now: Nanos) {
        let mut turns = std::mem::take(&mut self.turns);
        turns.begin_round();
        let mut orders = std::mem::take(&mut self.orders);
        let views = std::mem::take(&mut self.views);
        orders.clear();
        for together in views.chunk_by(|a, b| a.device == b.device) {
            let first = orders.len();
            self.grant(together, first, &mut orders);
            let here = &mut orders[first..];
            let unpaced = |order: &Order| matches!(order, Order::Free | Order::Leader | Order::Peer);
            let leads = |index: usize| together[index].ready && unpaced(&here[index]);
            let led = (0..here.len()).any(leads);
            // It concerns those who are held, if there are any.
            let with_pauses = here.contains(&Order::Yield)
                && (0..here.len()).any(|index| leads(index) && self.is_sync_bound(first + index));
            if led {
                turns.pause(together[0].device, now);
            } else {
                // Among equals a gap is not waited for, once a turn has lasted: somebody else has work for it.
                let has_work = |index: usize| self.table.tasks()[first + index].ready;
                take_turns(&mut turns, together, here, has_work, now);
            }
            for (index, order) in here.iter_mut().enumerate() {
                let before = self.accounts[first + index].order;
                // Who is off the device stays off until it may run again.
                if *order == Order::Yield && (!led || before == Order::Drain) {
                    *order = Order::Drain;
                } else if *order == Order::Yield && (with_pauses || before == Order::Evict) {
                    *order = Order::Evict;
                }
            }
            self.hand_over(&mut turns, together, first, here, now);
        }
        turns.keep(|device, process| {
            views.iter().any(|task| (task.device, task.process) == (device, process))
        });
        self.turns = turns;
        self.orders = orders;
        self.views = views;
    }

    /// What the policy's word means for each task by itself.
    fn grant(&self, together: &[TaskView], first: usize, orders: &mut Vec<Order>) {
        let grant = |index: usize| self.decision.grants()[first + index];
        let mut leaders =
            together.iter().enumerate().filter(|(index, _)| grant(*index) == Grant::Unthrottled);
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
                _ if self.accounts[first + index].suspended => Order::Drain,
                Grant::Unthrottled if alone => Order::Free,
                Grant::Unthrottled if equals => Order::Peer,
                Grant::Unthrottled => Order::Leader,
                Grant::Throttled => Order::Throttled,
                Grant::Hold if self.runs[first + index] => Order::Throttled,
                Grant::Hold => Order::Yield,
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
            let leaves = orders[index] == Order::Drain;
            let account = &mut self.accounts[first + index];
            if account.order == Order::Drain && !leaves {
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
            let begins = together[index].ready && order == Order::Throttled && accounts[index].order.stops();
            let from_another = |other: usize| together[other].process != together[index].process;
            begins && (0..together.len()).any(|other| accounts[other].leaving && from_another(other))
        };
        if !(0..together.len()).any(|index| waits(index, orders[index])) {
            turns.handed_over(device);
        } else if turns.has_patience(device, now) {
            for (index, order) in orders.iter_mut().enumerate() {
                if waits(index, *order) {
                    *order = Order::Drain;
                }
            }
        }
    }

    /// Whether a task waits for each of many small pieces of the work it has now. What its other queues did last says nothing.
    fn is_sync_bound(&self, place: usize) -> bool {
        let mut queues = self.programs.iter().flat_map(|program| &program.queues);
        queues.any(|queue| queue.place == Some(place) && queue.ready && queue.sync_bound)
    }

    /// Whether the device runs nothing any more of a task that was told to stop, as far as its program says.
    fn is_off(&self, place: usize) -> bool {
        self.programs.iter().all(|program| {
            let mut queues = program.queues.iter().filter(|queue| queue.place == Some(place) && queue.ready);
            queues.all(|queue| program.page.slot(queue.slot).is_none_or(Slot::is_drained))
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
    let candidates = together.iter().zip(&*orders).enumerate();
    let candidates = candidates.filter(|(_, (task, order))| task.ready && **order == Order::Throttled);
    let contenders = candidates.map(|(index, (task, _))| (task.process, has_work(index)));
    let Some(holder) = turns.holder(together[0].device, contenders, now) else { return };
    // Who has no work either: it may not begin while another has the turn.
    for (task, order) in together.iter().zip(orders) {
        if *order == Order::Throttled && task.process != holder {
            *order = Order::Drain;
        }
    }
}

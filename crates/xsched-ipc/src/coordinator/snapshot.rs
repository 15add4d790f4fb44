//! Fills the pipeline's snapshot from the tasks and from what their queues report.

use xsched_policy::{TaskStatus, TaskView};

use super::{Coordinator, account, queue_id};

impl Coordinator {
    /// Aligns the accounts with the tasks, and sets for every queue where its task is.
    pub(super) fn align(&mut self) {
        if !std::mem::take(&mut self.needs_alignment) {
            return;
        }
        self.feedback_changed = true;
        account::align(&mut self.accounts, self.table.tasks(), |process| self.suspended.contains(&process));
        for program in &mut self.programs {
            for queue in &mut program.queues {
                queue.place = self.table.position_of(queue_id(program.id, queue.slot));
                if let Some(account) = queue.place.and_then(|place| self.accounts.get_mut(place)) {
                    account.switch_cost = account.switch_cost.max(queue.switch_cost);
                }
            }
        }
    }

    /// Describes all tasks as they are now.
    pub(super) fn fill_snapshot(&mut self) {
        if std::mem::take(&mut self.feedback_changed) {
            self.collect_feedback();
        }
        self.snapshot.clear();
        for (task, account) in self.table.tasks().iter().zip(&self.accounts) {
            let view = TaskView {
                id: task.id,
                process: task.process.id,
                device: task.device,
                ready: false,
                in_gap: false,
                ready_since: task.ready_since,
                used: task.used,
                hints: task.hints,
                nice: task.process.nice,
                focused: task.process.focused,
                switch_cost: account.switch_cost,
            };
            let status = TaskStatus {
                has_work: task.ready,
                is_suspended: account.suspended,
                is_sync_bound: account.is_sync_bound,
                is_drained: account.is_drained,
            };
            self.snapshot.push(view, status);
        }
        for program in &self.programs {
            program.add_dependencies(&mut self.snapshot.dependencies);
        }
    }

    /// Collects for each task what its queues with work report. What idle queues reported before does not count.
    fn collect_feedback(&mut self) {
        for account in &mut self.accounts {
            (account.is_sync_bound, account.is_drained) = (false, true);
        }
        let queues = self.programs.iter().flat_map(|program| &program.queues);
        for queue in queues.filter(|queue| queue.ready) {
            if let Some(account) = queue.place.and_then(|place| self.accounts.get_mut(place)) {
                account.is_sync_bound |= queue.is_sync_bound;
                account.is_drained &= queue.is_drained;
            }
        }
    }
}

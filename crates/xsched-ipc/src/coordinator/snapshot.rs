//! Fills the pipeline's snapshot from the tasks and from what their queues report.

use std::collections::HashSet;

use xsched_core::Nanos;
use xsched_policy::{LaunchedWork, TaskStatus, TaskView};

use super::{Coordinator, account, queue_id};

impl Coordinator {
    /// Aligns the accounts with the tasks, and sets for every queue where its task is.
    pub(super) fn align(&mut self) {
        self.join_jobs_if_changed();
        if !std::mem::take(&mut self.needs_alignment) {
            return;
        }
        (self.feedback_changed, self.permission_changed) = (true, true);
        let mut accounts = std::mem::take(&mut self.accounts);
        let stalled: HashSet<_> = self.stalled_processes().into_iter().collect();
        let suspended: HashSet<_> =
            self.suspended.iter().chain(&self.suspended_with_grant).copied().collect();
        let parked = self.programs.iter().filter(|program| program.parking.is_held());
        let parked: HashSet<_> = parked.map(|program| program.process.id).collect();
        account::align(
            &mut accounts,
            self.table.tasks(),
            |process| suspended.contains(&process),
            |process| stalled.contains(&process),
            |process| parked.contains(&process),
            |process| self.jobs.of(process),
        );
        self.accounts = accounts;
        for account in &mut self.accounts {
            account.is_among_preemptible = true;
        }
        for program in &mut self.programs {
            for queue in &mut program.queues {
                queue.place = self.table.position_of(queue_id(program.id, queue.slot));
                if let Some(account) = queue.place.and_then(|place| self.accounts.get_mut(place)) {
                    account.switch_cost = account.switch_cost.max(queue.switch_cost);
                    account.is_among_preemptible &= queue.is_interruptible;
                }
            }
        }
        for on_device in self.accounts.chunk_by_mut(|a, b| a.device == b.device) {
            let all = on_device.iter().all(|account| account.is_among_preemptible);
            for account in on_device {
                account.is_among_preemptible = all;
                account.has_unscheduled_neighbor =
                    self.unscheduled.iter().any(|(device, _)| *device == account.device);
            }
        }
    }

    /// Whether leaders need not report that they are busy where the device preempts all other tasks for them.
    pub(super) fn permits_unreported_leaders(&self) -> bool {
        // A tracer shows when each task is busy. The members of a job run together, on all of their devices.
        !self.policy().needs.leader_reports
            && !self.is_tracing()
            && self.programs.iter().all(|program| program.job.is_none())
    }

    /// Reads how long leaders were busy without a report.
    pub fn read_unreported(&mut self, now: Nanos) {
        for place in 0..self.programs.len() {
            if self.programs[place].permits_unreported() {
                self.read_page(place, now);
            }
        }
        self.align();
        self.charge(now);
    }

    /// Reads what the samples of free tasks show. The pages of free tasks are not read otherwise.
    pub fn read_samples(&mut self, now: Nanos) {
        self.align();
        let passed = now - std::mem::replace(&mut self.samples_read_at, now);
        let mut busy: Vec<Option<Nanos>> = vec![None; self.accounts.len()];
        for program in &mut self.programs {
            for queue in &mut program.queues {
                let Some(slot) = program.page.slot(queue.slot) else { continue };
                let span = queue.read_samples(slot, now);
                if let Some((span, sum)) = span.zip(queue.place.and_then(|place| busy.get_mut(place))) {
                    // A program that claims that all of its queues were busy all the time has used the device once.
                    *sum = Some((sum.unwrap_or_default() + span).min(passed));
                }
            }
        }
        for (account, busy) in self.accounts.iter_mut().zip(busy) {
            if let Some(busy) = busy {
                account.sampled = Some(account.sampled.unwrap_or_default() + busy);
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
                is_stalled: account.is_stalled,
                is_sync_bound: account.is_sync_bound,
                is_drained: account.is_drained,
                job: account.job,
                has_unscheduled_neighbor: account.has_unscheduled_neighbor && account.is_among_preemptible,
                launched_work: account.launched_work,
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
            account.launched_work = LaunchedWork::Stops;
        }
        let queues = self.programs.iter().flat_map(|program| &program.queues);
        for queue in queues.filter(|queue| queue.ready) {
            if let Some(account) = queue.place.and_then(|place| self.accounts.get_mut(place)) {
                account.is_sync_bound |= queue.is_sync_bound;
                account.is_drained &= queue.is_drained;
                account.launched_work = account.launched_work.max(queue.launched_work);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use xsched_core::{
        DeviceId, Gate, Hints, Level, Nanos, NoScheduler, Order, Priority, Process, ProcessId,
    };
    use xsched_policy::POLICIES;

    use crate::coordinator::Coordinator;
    use crate::page::Page;
    use crate::protocol::{TaskKind, TaskState};

    const DEVICE: DeviceId = DeviceId(1);

    struct Client(Arc<Page>);

    impl Client {
        /// A program with one queue.
        fn join(coordinator: &mut Coordinator, id: u32, priority: i64, level: Level) -> Self {
            let page = Page::create().unwrap();
            let slot = page.allocate_slot(DEVICE).unwrap();
            page.slot(slot).unwrap().publish_settings(level.number(), 0, 0);
            let process = Process { id: ProcessId(id), ..Process::default() };
            let hints = Hints { priority: Priority::new(priority).unwrap(), ..Hints::default() };
            coordinator.add_client(process, Arc::clone(&page), hints);
            Self(page)
        }

        fn gate(&self) -> &Gate {
            &self.0.slot(0).unwrap().gate
        }
    }

    #[test]
    fn only_a_leader_by_time_slices_may_keep_its_work_unreported() {
        let mut coordinator = Coordinator::new(&POLICIES[0]);
        let high = Client::join(&mut coordinator, 1, 100, Level::Interrupt);
        let low = Client::join(&mut coordinator, 2, -100, Level::Interrupt);
        let permissions = |coordinator: &mut Coordinator| {
            coordinator.step(Nanos::from_millis(1));
            (high.gate().permits_unreported(), low.gate().permits_unreported())
        };
        assert_eq!(permissions(&mut coordinator), (true, false));
        coordinator.set_tracing(true);
        assert_eq!(permissions(&mut coordinator), (false, false), "a tracer shows when it is busy");
        coordinator.set_tracing(false);
        assert_eq!(permissions(&mut coordinator), (true, false));
        let share = POLICIES.iter().find(|policy| policy.plain == "share").unwrap();
        coordinator.set_policy(share);
        assert_eq!(permissions(&mut coordinator), (false, false), "the policy depends on when it is busy");
        coordinator.set_policy(&POLICIES[0]);
        assert_eq!(permissions(&mut coordinator), (true, false));
        let _third = Client::join(&mut coordinator, 3, 0, Level::Deactivate);
        assert_eq!(
            permissions(&mut coordinator),
            (false, false),
            "one task cannot be preempted by time slice"
        );
    }

    #[test]
    fn unreported_time_is_charged_to_the_leader_and_not_to_the_task_that_it_preempts() {
        let mut coordinator = Coordinator::new(&POLICIES[0]);
        let high = Client::join(&mut coordinator, 1, 100, Level::Interrupt);
        let low = Client::join(&mut coordinator, 2, -100, Level::Interrupt);
        low.gate().mark_busy(&NoScheduler);
        coordinator.step(Nanos::from_millis(10));
        assert_eq!((high.gate().order(), low.gate().order()), (Order::Leader, Order::Throttled));
        assert!(!high.gate().mark_busy_without_notification(true));
        high.gate().add_unreported(Nanos::from_millis(30));
        coordinator.read_unreported(Nanos::from_millis(110));
        assert_eq!(low.gate().order(), Order::Throttled, "the device preempts it without an order");
        let used: Vec<_> = coordinator.tasks().iter().map(|task| task.used).collect();
        assert_eq!(used, [Nanos::from_millis(30), Nanos::from_millis(70)]);
        // A program that claims more time than has passed is not charged for it.
        high.gate().add_unreported(Nanos::from_secs(1));
        coordinator.read_unreported(Nanos::from_millis(120));
        assert_eq!(coordinator.tasks()[0].used, Nanos::from_millis(40));
    }

    #[test]
    fn samples_of_a_free_task_are_read_once_and_bounded_by_the_time_that_has_passed() {
        let mut coordinator = Coordinator::new(&POLICIES[0]);
        let ms = Nanos::from_millis;
        let alone = Client::join(&mut coordinator, 1, 0, Level::Block);
        let read = |coordinator: &mut Coordinator, now| {
            coordinator.read_samples(now);
            let tasks: Vec<_> = coordinator.report_tasks().map(|task| (task.sampled, task.state)).collect();
            let is_running = tasks[0].1 == TaskState::Running;
            let queues: Vec<_> = coordinator.report_queues().map(|queue| queue.ready).collect();
            assert_eq!(queues, [is_running], "the queues of one report agree with its tasks");
            tasks
        };
        coordinator.step(ms(1_000));
        assert_eq!(alone.gate().order(), Order::Free);
        assert_eq!(read(&mut coordinator, ms(1_100)), [(None, TaskState::Idle)], "no sample was taken");
        let slot = alone.0.slot(0).unwrap();
        slot.add_sample(ms(30), true);
        assert_eq!(read(&mut coordinator, ms(1_200)), [(Some(ms(30)), TaskState::Running)]);
        slot.add_sample(ms(10), false);
        assert_eq!(read(&mut coordinator, ms(1_300)), [(Some(ms(40)), TaskState::Idle)]);
        assert_eq!(read(&mut coordinator, ms(1_400)), [(Some(ms(40)), TaskState::Idle)]);
        slot.add_sample(Nanos::from_secs(100), true);
        assert_eq!(
            read(&mut coordinator, ms(1_450)),
            [(Some(ms(90)), TaskState::Running)],
            "a program cannot have used more time than has passed"
        );
    }

    #[test]
    fn sync_bound_tasks_are_reported() {
        let mut coordinator = Coordinator::new(&POLICIES[0]);
        let [first, _second] = [1, 2].map(|pid| Client::join(&mut coordinator, pid, 0, Level::Block));
        coordinator.step(Nanos::from_millis(1));
        assert!(first.gate().set_sync_bound(true));
        let kinds: Vec<_> = coordinator.report_tasks().map(|task| task.kind).collect();
        assert_eq!(kinds, [Some(TaskKind::SyncBound), None]);
    }

    #[test]
    fn sampled_time_is_not_charged_a_second_time_as_used_time() {
        let mut coordinator = Coordinator::new(&POLICIES[0]);
        let ms = Nanos::from_millis;
        let alone = Client::join(&mut coordinator, 1, 0, Level::Block);
        // It was busy when the other task left, and never waits for its queue.
        alone.gate().mark_busy(&NoScheduler);
        coordinator.step(ms(1_000));
        alone.0.slot(0).unwrap().add_sample(ms(1), true);
        coordinator.read_samples(ms(1_010));
        coordinator.round(ms(1_010));
        let used = coordinator.tasks()[0].used;
        coordinator.round(ms(2_000));
        assert_eq!(coordinator.tasks()[0].used, used);
    }

    #[test]
    fn unreported_time_before_the_last_round_is_charged_too() {
        let mut coordinator = Coordinator::new(&POLICIES[0]);
        let high = Client::join(&mut coordinator, 1, 100, Level::Interrupt);
        let low = Client::join(&mut coordinator, 2, -100, Level::Interrupt);
        low.gate().mark_busy(&NoScheduler);
        coordinator.step(Nanos::from_millis(10));
        assert!(!high.gate().mark_busy_without_notification(true));
        high.gate().add_unreported(Nanos::from_millis(30));
        let used = |coordinator: &Coordinator| -> Vec<_> {
            coordinator.tasks().iter().map(|task| task.used).collect()
        };
        // This round does not read the leader's page.
        coordinator.round(Nanos::from_millis(105));
        assert_eq!(used(&coordinator), [0, 95].map(Nanos::from_millis));
        coordinator.read_unreported(Nanos::from_millis(110));
        assert_eq!(used(&coordinator), [5, 95].map(Nanos::from_millis), "no more than has passed");
        coordinator.round(Nanos::from_millis(210));
        assert_eq!(used(&coordinator), [30, 170].map(Nanos::from_millis));
        coordinator.round(Nanos::from_millis(220));
        assert_eq!(used(&coordinator), [30, 180].map(Nanos::from_millis), "all of it is charged");
    }
}

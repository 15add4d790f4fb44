//! Programs that make no progress while tasks of other programs are held for them.
//!
//! ```text
//!   a program that runs or is leaving the device, and for which another is held
//!      │ has launched since the last check, 100 ms ago ──────────────► it makes progress
//!      │ has not, and its process runs: a long kernel ───────────────► it keeps its precedence
//!      └ has not, and its process does not run ──────────────────────► stalled: the other tasks run
//!                                     its watcher thread polls again ─► not stalled, from that moment on
//! ```
//!
//! The coordinator does no I/O: the caller finds out whether a process runs, for the programs that the coordinator names.

use xsched_core::{DeviceId, Nanos, ProcessId};

use super::account::Account;
use super::program::Program;
use super::{ClientId, Coordinator};
use crate::protocol::TaskState;

/// How often [`Coordinator::stall_suspects`] is to be called while [`Coordinator::needs_stall_checks`].
pub const STALL_CHECK_INTERVAL: Nanos = Nanos::from_millis(100);

/// What the last checks have found about a program.
#[derive(Debug, Default)]
pub(super) struct StallWatch {
    is_stalled: bool,
    /// The launches at the last check at which tasks of other programs were held for it.
    launches: Option<u64>,
    /// The polls of its watcher thread at the last check.
    polls: u32,
    /// Its watcher thread has not polled between the last two checks.
    has_not_polled: bool,
}

/// A device where tasks are held.
struct Contended {
    device: DeviceId,
    /// The process of the first held task.
    process: ProcessId,
    /// Tasks of other processes are held too.
    has_others: bool,
}

impl Contended {
    fn holds_other_than(&self, process: ProcessId) -> bool {
        self.has_others || self.process != process
    }
}

impl Program {
    /// Reads whether a stalled program runs again. Returns whether it does.
    pub(super) fn notice_progress(&mut self) -> bool {
        self.stall.is_stalled && !self.page.is_stalled() && {
            (self.stall.is_stalled, self.stall.launches) = (false, None);
            true
        }
    }

    /// Takes note of its progress since the last check. Returns whether there was none.
    fn check_progress(&mut self, has_precedence: bool) -> bool {
        let polls = self.page.polls();
        self.stall.has_not_polled = std::mem::replace(&mut self.stall.polls, polls) == polls;
        if !has_precedence {
            return false;
        }
        let launches = Some(self.count_launches());
        std::mem::replace(&mut self.stall.launches, launches) == launches
    }

    fn count_launches(&mut self) -> u64 {
        let mut sum = 0_u64;
        for queue in &mut self.queues {
            if let Some(slot) = self.page.slot(queue.slot) {
                queue.count(slot);
            }
            sum = sum.wrapping_add(queue.launches());
        }
        sum
    }
}

impl Coordinator {
    /// The processes that are stalled.
    pub(super) fn stalled_processes(&self) -> Vec<ProcessId> {
        let stalled = self.programs.iter().filter(|program| program.stall.is_stalled);
        stalled.map(|program| program.process.id).collect()
    }

    /// Whether some program runs, or is leaving the device, for which another one is held, or is stalled.
    #[must_use]
    pub fn needs_stall_checks(&self) -> bool {
        let contended = self.accounts.chunk_by(|a, b| a.device == b.device).any(|on_device| {
            let has = |state| on_device.iter().any(|account| account.state == state);
            has(TaskState::Stalled) || (on_device.iter().any(Account::uses_device) && has(TaskState::Held))
        });
        contended || self.programs.iter().any(|program| program.stall.is_stalled)
    }

    /// Names the programs that may be stalled: those without progress since the last call, with all members of their jobs, and
    /// those that are stalled now.
    pub fn stall_suspects(&mut self, suspects: &mut Vec<ClientId>) {
        suspects.clear();
        self.align();
        let contended = self.contended_devices();
        let mut jobs = Vec::new();
        for place in 0..self.programs.len() {
            let has_precedence = self.has_precedence(&self.programs[place], &contended);
            let program = &mut self.programs[place];
            let has_no_progress = program.check_progress(has_precedence);
            if has_no_progress || program.stall.is_stalled {
                suspects.push(program.id);
            }
            jobs.extend(program.job.filter(|_| has_no_progress));
        }
        let peers = self.programs.iter().filter(|program| program.job.is_some_and(|job| jobs.contains(&job)));
        suspects.extend(peers.map(|program| program.id));
        suspects.sort_unstable();
        suspects.dedup();
    }

    /// The devices where tasks are held, in ascending order.
    fn contended_devices(&self) -> Vec<Contended> {
        let tasks: Vec<_> = self.table.tasks().iter().zip(&self.accounts).collect();
        let on_device = tasks.chunk_by(|(a, _), (b, _)| a.device == b.device);
        let contended = on_device.filter_map(|tasks| {
            let held = || tasks.iter().filter(|(_, account)| account.state == TaskState::Held);
            let (first, _) = held().next()?;
            let process = first.process.id;
            let has_others = held().any(|(task, _)| task.process.id != process);
            Some(Contended { device: first.device, process, has_others })
        });
        contended.collect()
    }

    /// Whether a task of another process is held for a task of the program.
    fn has_precedence(&self, program: &Program, contended: &[Contended]) -> bool {
        let runs = |place: usize| self.accounts.get(place).is_some_and(Account::uses_device);
        program.queues.iter().filter(|queue| queue.place.is_some_and(runs)).any(|queue| {
            let place = contended.binary_search_by_key(&queue.device, |contended| contended.device);
            place.is_ok_and(|place| contended[place].holds_other_than(program.process.id))
        })
    }

    /// Sets whether a suspect is stalled: `is_stopped` if no thread of its process can run now. Returns whether that has changed.
    ///
    /// A process that a profiler or `strace` stops for less than [`STALL_CHECK_INTERVAL`] is not stalled: its watcher thread has
    /// polled since the last check.
    pub fn set_stopped(&mut self, id: ClientId, is_stopped: bool) -> bool {
        let Some(place) = self.place_of(id) else { return false };
        let program = &mut self.programs[place];
        let is_stalled = is_stopped && program.stall.has_not_polled;
        let has_changed = std::mem::replace(&mut program.stall.is_stalled, is_stalled) != is_stalled;
        if has_changed {
            program.page.set_stalled(is_stalled);
            // The watcher thread polls as soon as the process runs, whatever it waits for.
            program.page.orders().bump();
            self.needs_alignment = true;
        }
        has_changed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use xsched_core::{Hints, NoScheduler, Order, Priority, Process};
    use xsched_policy::PolicyInfo;

    use super::*;
    use crate::page::Page;
    use crate::protocol::JobKey;

    /// A program with one queue that has work.
    struct Client {
        id: ClientId,
        page: Arc<Page>,
    }

    impl Client {
        fn busy(coordinator: &mut Coordinator, process: u32, device: u64, priority: i64) -> Self {
            let page = Page::create().unwrap();
            let slot = page.allocate_slot(DeviceId(device)).unwrap();
            assert_eq!(slot, 0);
            let process = Process { id: ProcessId(process), ..Process::default() };
            let hints = Hints { priority: Priority::new(priority).unwrap(), ..Hints::default() };
            let client = Self { id: coordinator.add_client(process, Arc::clone(&page), hints), page };
            client.launch();
            client
        }

        fn launch(&self) {
            self.page.slot(0).unwrap().gate.mark_busy(&NoScheduler);
        }

        fn order(&self) -> Order {
            self.page.slot(0).unwrap().gate.order()
        }
    }

    fn coordinator() -> Coordinator {
        Coordinator::new(PolicyInfo::find("priority").unwrap())
    }

    fn suspects(coordinator: &mut Coordinator) -> Vec<ClientId> {
        let mut suspects = Vec::new();
        coordinator.stall_suspects(&mut suspects);
        suspects
    }

    #[test]
    fn program_that_is_stopped_loses_its_precedence_until_it_runs_again() {
        let mut coordinator = coordinator();
        let high = Client::busy(&mut coordinator, 1, 1, 10);
        let low = Client::busy(&mut coordinator, 2, 1, 0);
        coordinator.step(Nanos::from_millis(1));
        assert!(coordinator.needs_stall_checks());
        assert!(low.order().stops());
        assert_eq!(suspects(&mut coordinator), [], "this is the first check");
        high.launch();
        assert_eq!(suspects(&mut coordinator), [], "it has launched");
        assert_eq!(suspects(&mut coordinator), [high.id]);
        assert!(!coordinator.set_stopped(high.id, false), "it has a long kernel");
        assert!(coordinator.set_stopped(high.id, true));
        coordinator.round(Nanos::from_millis(400));
        assert!(!low.order().stops());
        let states = coordinator.report_tasks().map(|task| task.state).collect::<Vec<_>>();
        assert_eq!(states, [TaskState::Stalled, TaskState::Running]);

        assert!(coordinator.needs_stall_checks());
        assert_eq!(suspects(&mut coordinator), [high.id], "it is checked until it runs");
        assert!(high.page.count_poll(), "its watcher thread has to notify the scheduler");
        assert!(!high.page.count_poll());
        coordinator.look_at(high.id, Nanos::from_millis(401));
        coordinator.round(Nanos::from_millis(401));
        assert!(low.order().stops());
        assert_eq!(suspects(&mut coordinator), []);
    }

    #[test]
    fn stopped_program_that_does_not_leave_the_device_is_stalled() {
        let mut coordinator = coordinator();
        let low = Client::busy(&mut coordinator, 1, 1, -2);
        coordinator.step(Nanos::from_millis(1));
        let middle = Client::busy(&mut coordinator, 2, 1, 0);
        let high = Client::busy(&mut coordinator, 3, 1, 2);
        coordinator.step(Nanos::from_millis(2));
        let gate = &high.page.slot(0).unwrap().gate;
        let _ = gate.mark_idle(gate.epoch(), &NoScheduler);
        coordinator.step(Nanos::from_millis(30));
        assert!(
            low.order().stops() && middle.order().stops(),
            "it waits until the other has left the device"
        );
        suspects(&mut coordinator);
        assert_eq!(suspects(&mut coordinator), [low.id]);
        assert!(coordinator.set_stopped(low.id, true));
        coordinator.round(Nanos::from_millis(31));
        assert!(!middle.order().stops(), "it does not wait for a process that is stopped");
    }

    #[test]
    fn program_whose_watcher_thread_polls_is_not_stalled() {
        let mut coordinator = coordinator();
        let high = Client::busy(&mut coordinator, 1, 1, 10);
        let _low = Client::busy(&mut coordinator, 2, 1, 0);
        coordinator.step(Nanos::from_millis(1));
        for _ in 0..2 {
            let _ = high.page.count_poll();
            suspects(&mut coordinator);
        }
        assert!(
            !coordinator.set_stopped(high.id, true),
            "a profiler stops it for less than the interval of the checks"
        );
        assert_eq!(suspects(&mut coordinator), [high.id]);
        assert!(coordinator.set_stopped(high.id, true));
    }

    #[test]
    fn program_for_which_no_other_program_is_held_is_no_suspect() {
        let mut coordinator = coordinator();
        let _alone = Client::busy(&mut coordinator, 1, 1, 10);
        let _other_device = Client::busy(&mut coordinator, 2, 2, 0);
        coordinator.step(Nanos::from_millis(1));
        assert!(!coordinator.needs_stall_checks());
        assert_eq!((suspects(&mut coordinator), suspects(&mut coordinator)), (vec![], vec![]));
    }

    #[test]
    fn job_with_a_stopped_member_is_held_on_all_devices() {
        let mut coordinator = coordinator();
        let ranks = [1, 2].map(|n| Client::busy(&mut coordinator, n, n.into(), 10));
        for rank in &ranks {
            coordinator.set_jobs(rank.id, vec![JobKey::Name("train".into())], Nanos::ZERO);
        }
        let low = Client::busy(&mut coordinator, 3, 1, 0);
        coordinator.step(Nanos::from_millis(1));
        assert!(low.order().stops());
        suspects(&mut coordinator);
        assert_eq!(suspects(&mut coordinator), [ranks[0].id, ranks[1].id], "its peers are suspects too");
        assert!(coordinator.set_stopped(ranks[1].id, true));
        // It need not report that it has left the device.
        for ms in [400, 420] {
            coordinator.round(Nanos::from_millis(ms));
        }
        assert!(!low.order().stops());
        assert!(ranks.iter().all(|rank| rank.order().stops()));
    }
}

//! Properties of every policy, over random histories of tasks that come and go, become ready and idle, and change their hints.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use xsched_core::{Deadline, DeviceId, Hints, Laxity, Nanos, Priority, ProcessId, Share, TaskId, Timeslice};
use xsched_policy::{Decision, Grant, POLICIES, Params, PolicyInfo, Scheduler, Scope, TaskView};

/// One event of a history.
#[derive(Clone, Debug)]
enum Event {
    Arrive { device: u64, process: u32, hints: Hints, ready: bool },
    Ready(usize),
    Idle(usize),
    Hint(usize, Hints),
    Nice(u32, i8),
    Focus(u32),
    Exit(usize),
    Pass(Nanos),
    Configure(Params),
}

fn hints() -> impl Strategy<Value = Hints> {
    let priority = prop_oneof![1 => Just(-256), 6 => -255_i64..=255, 3 => -2_i64..=2];
    let deadline = option::of(1_i64..100_000);
    let laxity = option::of((0_i64..100_000, -255_i64..=255, -255_i64..=255));
    (priority, 0_i64..=100, deadline, laxity).prop_map(|(priority, share, deadline, laxity)| Hints {
        priority: Priority::new(priority).unwrap(),
        share: Share::new(share).unwrap(),
        deadline: deadline.map(|us| Deadline::from_micros(us).unwrap()),
        laxity: laxity.map(|(span, lax, critical)| Laxity::new(span, lax, critical).unwrap()),
    })
}

fn event() -> impl Strategy<Value = Event> {
    let index = || any::<usize>();
    prop_oneof![
        4 => (0_u64..3, 0_u32..4, hints(), any::<bool>())
            .prop_map(|(device, process, hints, ready)| Event::Arrive { device, process, hints, ready }),
        4 => index().prop_map(Event::Ready),
        3 => index().prop_map(Event::Idle),
        1 => (index(), hints()).prop_map(|(index, hints)| Event::Hint(index, hints)),
        1 => (0_u32..4, -20_i8..20).prop_map(|(process, nice)| Event::Nice(process, nice)),
        1 => (0_u32..6).prop_map(Event::Focus),
        2 => index().prop_map(Event::Exit),
        5 => (0_u64..30_000).prop_map(|us| Event::Pass(Nanos::from_micros(us))),
        1 => (100_i64..10_000, 0_usize..4).prop_map(|(us, k)| {
            Event::Configure(Params { timeslice: Timeslice::from_micros(us).unwrap(), k })
        }),
    ]
}

/// A machine under one policy. Ready tasks that are granted share their device evenly.
struct Machine {
    scheduler: Scheduler,
    now: Nanos,
    tasks: Vec<TaskView>,
    out: Decision,
    last_id: u64,
    log: Vec<(Nanos, Decision)>,
}

impl Machine {
    fn new(policy: &'static PolicyInfo) -> Self {
        let (now, last_id) = (Nanos::from_secs(1), 0);
        let scheduler = Scheduler::new(policy);
        Self { scheduler, now, tasks: Vec::new(), out: Decision::default(), last_id, log: Vec::new() }
    }

    fn after(policy: &'static PolicyInfo, history: &[Event]) -> Self {
        let mut machine = Self::new(policy);
        for event in history {
            machine.apply(event);
        }
        machine
    }

    fn apply(&mut self, event: &Event) {
        let count = self.tasks.len();
        let at = |index: &usize| (count > 0).then(|| index % count);
        match event {
            Event::Arrive { device, process, hints, ready } => {
                self.last_id += 1;
                self.tasks.push(TaskView {
                    id: TaskId(self.last_id),
                    process: ProcessId(*process),
                    device: DeviceId(*device),
                    ready: *ready,
                    ready_since: self.now,
                    hints: *hints,
                    ..TaskView::default()
                });
                self.tasks.sort_by_key(|task| (task.device, task.id));
            }
            Event::Ready(index) => {
                let now = self.now;
                if let Some(task) = at(index).map(|index| &mut self.tasks[index]).filter(|task| !task.ready) {
                    (task.ready, task.ready_since) = (true, now);
                }
            }
            Event::Idle(index) => at(index).into_iter().for_each(|index| self.tasks[index].ready = false),
            Event::Hint(index, hints) => at(index).into_iter().for_each(|i| self.tasks[i].hints = *hints),
            Event::Nice(process, nice) => {
                let of_process = self.tasks.iter_mut().filter(|task| task.process.0 == *process);
                of_process.for_each(|task| task.nice = *nice);
            }
            Event::Focus(process) => {
                self.tasks.iter_mut().for_each(|task| task.focused = task.process.0 == *process);
            }
            Event::Exit(index) => {
                if let Some(index) = at(index) {
                    self.tasks.remove(index);
                }
            }
            Event::Pass(span) => return self.pass(*span),
            Event::Configure(params) => self.scheduler.configure(*params),
        }
        self.decide();
    }

    /// Lets time pass; the policy decides whenever it requested that.
    fn pass(&mut self, span: Nanos) {
        let end = self.now + span;
        while let Some(look) = self.out.next_look().filter(|&look| look <= end) {
            self.consume(look - self.now);
            self.decide();
        }
        self.consume(end - self.now);
        self.decide();
    }

    fn consume(&mut self, span: Nanos) {
        let runs: Vec<_> =
            self.tasks.iter().zip(self.out.grants()).map(|(t, grant)| t.ready && grant.runs()).collect();
        for index in (0..self.tasks.len()).filter(|&index| runs[index]) {
            let device = self.tasks[index].device;
            let sharers = (0..runs.len()).filter(|&i| runs[i] && self.tasks[i].device == device).count();
            self.tasks[index].used += Nanos(span.0 / sharers as u64);
        }
        self.now += span;
    }

    fn decide(&mut self) {
        self.scheduler.decide(self.now, &self.tasks, &mut self.out);
        self.log.push((self.now, self.out.clone()));
        self.check();
    }

    /// The tasks an instance decides for together, with their grants.
    fn domains(&self) -> Vec<Vec<(TaskView, Grant)>> {
        let all: Vec<_> = self.tasks.iter().copied().zip(self.out.grants().iter().copied()).collect();
        match self.scheduler.policy().scope {
            Scope::Machine => vec![all],
            Scope::Device => all.chunk_by(|a, b| a.0.device == b.0.device).map(<[_]>::to_vec).collect(),
        }
    }

    /// Can run at some time under this policy.
    fn runnable(&self, task: &TaskView) -> bool {
        let has_quota = task.hints.share.percent() > 0;
        task.hints.priority != Priority::NO_EXECUTE && (self.scheduler.policy().name != "SPUP" || has_quota)
    }

    fn check(&self) {
        let policy = self.scheduler.policy();
        assert_eq!(self.out.grants().len(), self.tasks.len());
        assert!(self.scheduler.tracked() <= self.tasks.len(), "{policy:?} remembers tasks that are gone");
        let look = self.out.next_look();
        assert!(look.is_none_or(|at| at > self.now), "{policy:?} requests a decision for this instant");
        let mut contested = !policy.work_conserving;
        for domain in self.domains() {
            for (task, grant) in &domain {
                let never = task.hints.priority == Priority::NO_EXECUTE;
                assert!(!(never && grant.runs()), "{policy:?} runs {task:?}, whose priority is never");
            }
            let can: Vec<_> = domain.iter().filter(|(task, _)| self.runnable(task)).collect();
            let waits = can.iter().any(|(task, _)| task.ready);
            let runs = can.iter().any(|(task, grant)| task.ready && grant.runs());
            contested |= can.len() > 1;
            if policy.work_conserving {
                assert!(runs || !waits, "{policy:?} leaves a device idle: {domain:?}");
                if let [(_, grant)] = can[..] {
                    assert_eq!(
                        *grant,
                        Grant::Unthrottled,
                        "{policy:?} throttles a task that is alone: {domain:?}"
                    );
                }
            } else {
                assert!(runs || !waits || look.is_some(), "{policy:?} forgets a task that waits: {domain:?}");
            }
        }
        assert!(contested || look.is_none(), "{policy:?} requests a decision without need");
    }

    /// For each domain, whether a task runs or none has work.
    fn served(&self) -> Vec<bool> {
        let waits = |(task, _): &&(TaskView, Grant)| self.runnable(task) && task.ready;
        let served = |domain: &Vec<(TaskView, Grant)>| {
            let mut waiting = domain.iter().filter(waits).peekable();
            waiting.peek().is_none() || waiting.any(|(_, grant)| grant.runs())
        };
        self.domains().iter().map(served).collect()
    }
}

fn policies() -> impl Iterator<Item = &'static PolicyInfo> {
    POLICIES.iter()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No policy panics, and every decision passes `Machine::check`.
    #[test]
    fn every_decision_of_every_policy_is_sound(history in vec(event(), 1..80)) {
        for policy in policies() {
            Machine::after(policy, &history);
        }
    }

    #[test]
    fn same_history_gives_the_same_decisions(history in vec(event(), 1..60)) {
        for policy in policies() {
            prop_assert_eq!(Machine::after(policy, &history).log, Machine::after(policy, &history).log);
        }
    }

    #[test]
    fn tasks_that_are_gone_are_forgotten(history in vec(event(), 1..60)) {
        for policy in policies() {
            let mut machine = Machine::after(policy, &history);
            machine.tasks.clear();
            machine.decide();
            prop_assert_eq!(machine.scheduler.tracked(), 0);
            prop_assert_eq!(machine.out.next_look(), None);
        }
    }

    #[test]
    fn task_held_by_a_quota_runs_in_the_end(history in vec(event(), 1..60)) {
        for policy in policies().filter(|policy| !policy.work_conserving) {
            let mut machine = Machine::after(policy, &history);
            let deadline = machine.now + Nanos::from_secs(20);
            let mut served = machine.served();
            while served.contains(&false) {
                let Some(look) = machine.out.next_look() else { panic!("{policy:?} forgets a task that waits") };
                machine.pass(look - machine.now);
                prop_assert!(machine.now < deadline, "{policy:?} still holds a task");
                for (served, now) in served.iter_mut().zip(machine.served()) {
                    *served |= now;
                }
            }
        }
    }
}

proptest! {
    // Each case is 1.5 s of short time slices.
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Commands run to their end, one at a time, and are measured only then.
    #[test]
    fn no_task_starves(tasks in vec((5_i64..=100, -255_i64..=255, 0_u32..3, 50_u64..2_000), 2..6)) {
        for name in ["UP", "PUP", "SPUP", "CFS", "MLFQ"] {
            let longest = longest_wait(name, &tasks);
            prop_assert!(longest < Nanos::from_secs(1), "{name}: a task waited for {longest}");
        }
    }
}

/// The longest any of the tasks (share, priority, process, length of its commands in microseconds), always ready,
/// goes without a grant, with time slices of 100 us.
fn longest_wait(policy: &str, busy: &[(i64, i64, u32, u64)]) -> Nanos {
    let mut machine = Machine::new(PolicyInfo::find(policy).unwrap());
    let timeslice = Timeslice::from_micros(100).unwrap();
    machine.apply(&Event::Configure(Params { timeslice, ..Params::default() }));
    for &(share, priority, process, _) in busy {
        let priority = Priority::new(priority).unwrap();
        let share = Share::new(share).unwrap();
        let hints = Hints { priority, share, ..Hints::default() };
        machine.apply(&Event::Arrive { device: 0, process, hints, ready: true });
    }
    let mut granted_at = vec![machine.now; busy.len()];
    let (mut longest, mut command) = (Nanos::ZERO, None);
    let end = machine.now + Nanos::from_millis(1_500);
    while machine.now < end {
        for (at, grant) in granted_at.iter_mut().zip(machine.out.grants()) {
            longest = longest.max(machine.now - *at);
            if grant.runs() {
                *at = machine.now;
            }
        }
        let runs = |&index: &usize| machine.out.grants()[index].runs();
        let least = || (0..busy.len()).filter(runs).min_by_key(|&index| machine.tasks[index].used);
        command = command.or_else(|| least().map(|i| (i, machine.now + Nanos::from_micros(busy[i].3))));
        let done = command.map(|(_, done)| done);
        machine.now = done
            .into_iter()
            .chain(machine.out.next_look())
            .min()
            .expect("a task runs, or a decision is requested");
        if let Some((index, _)) = command.take_if(|&mut (_, done)| done == machine.now) {
            machine.tasks[index].used += Nanos::from_micros(busy[index].3);
        }
        machine.scheduler.decide(machine.now, &machine.tasks, &mut machine.out);
    }
    longest
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// What a policy does not declare as a need has no effect on its decisions.
    #[test]
    fn decisions_depend_only_on_declared_needs(history in vec(event(), 1..60)) {
        let without = |keep: fn(&Event) -> bool| -> Vec<_> {
            // The event is replaced, not removed: the policy decides as often.
            let pause = || Event::Pass(Nanos::ZERO);
            history.iter().map(|event| if keep(event) { event.clone() } else { pause() }).collect()
        };
        let without_nice = without(|event| !matches!(event, Event::Nice(..)));
        let without_focus = without(|event| !matches!(event, Event::Focus(_)));
        for policy in policies() {
            let log = |history: &[Event]| Machine::after(policy, history).log;
            prop_assert!(policy.needs.nice || log(&history) == log(&without_nice), "{policy:?} uses nice values");
            prop_assert!(policy.needs.focus || log(&history) == log(&without_focus), "{policy:?} uses the focus");
        }
    }
}

#[test]
fn names_and_numbers_are_unique_and_each_finds_its_policy() {
    let numbers: Vec<_> = policies().map(|policy| policy.number).collect();
    assert_eq!(numbers[..11], (1..=11).collect::<Vec<_>>(), "those of the original C++ XSched");
    assert!(numbers.is_sorted() && numbers[11..].iter().all(|number| *number >= 100), "{numbers:?}");
    let mut names: Vec<_> = policies().flat_map(|policy| [policy.name, policy.plain]).collect();
    for policy in policies() {
        for name in [policy.name, policy.plain, &policy.name.to_lowercase(), &policy.plain.to_uppercase()] {
            assert_eq!(PolicyInfo::find(name).unwrap().number, policy.number, "{name}");
        }
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 2 * POLICIES.len());
}

#[test]
fn error_about_an_unknown_policy_lists_all_policies() {
    let error = PolicyInfo::find("quick").unwrap_err().to_string();
    assert!(error.starts_with("unknown policy `quick`: use one of priority (HPF), "), "{error}");
    for policy in policies() {
        assert!(error.contains(&format!("{} ({})", policy.plain, policy.name)), "{error}");
    }
}

#[test]
fn only_the_quota_policy_is_not_work_conserving() {
    let found: Vec<_> =
        policies().filter(|policy| !policy.work_conserving).map(|policy| policy.name).collect();
    assert_eq!(found, ["SPUP"]);
}

//! What every policy keeps to, over random histories of tasks that come, work, rest, change their minds and go.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use xsched_core::{Deadline, DeviceId, Hints, Laxity, Nanos, Priority, ProcessId, Share, TaskId, Timeslice};
use xsched_policy::{Decision, Grant, POLICIES, Params, PolicyInfo, Scheduler, Scope, TaskView};

/// One thing that happens.
#[derive(Clone, Debug)]
enum Event {
    Arrive { device: u64, process: u32, hints: Hints, ready: bool },
    Ready(usize),
    Idle(usize),
    Hint(usize, Hints),
    Nice(u32, i8),
    Focus(u32),
    Die(usize),
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
    let who = || any::<usize>();
    prop_oneof![
        4 => (0_u64..3, 0_u32..4, hints(), any::<bool>())
            .prop_map(|(device, process, hints, ready)| Event::Arrive { device, process, hints, ready }),
        4 => who().prop_map(Event::Ready),
        3 => who().prop_map(Event::Idle),
        1 => (who(), hints()).prop_map(|(who, hints)| Event::Hint(who, hints)),
        1 => (0_u32..4, -20_i8..20).prop_map(|(process, nice)| Event::Nice(process, nice)),
        1 => (0_u32..6).prop_map(Event::Focus),
        2 => who().prop_map(Event::Die),
        5 => (0_u64..30_000).prop_map(|us| Event::Pass(Nanos::from_micros(us))),
        1 => (100_i64..10_000, 0_usize..4).prop_map(|(us, k)| {
            Event::Configure(Params { timeslice: Timeslice::from_micros(us).unwrap(), k })
        }),
    ]
}

/// A machine under one policy. Ready tasks that are granted share their device evenly.
struct World {
    scheduler: Scheduler,
    now: Nanos,
    tasks: Vec<TaskView>,
    out: Decision,
    born: u64,
    log: Vec<(Nanos, Decision)>,
}

impl World {
    fn new(policy: &'static PolicyInfo) -> Self {
        let (now, born) = (Nanos::from_secs(1), 0);
        let scheduler = Scheduler::new(policy);
        Self { scheduler, now, tasks: Vec::new(), out: Decision::default(), born, log: Vec::new() }
    }

    fn live(policy: &'static PolicyInfo, history: &[Event]) -> Self {
        let mut world = Self::new(policy);
        for event in history {
            world.happen(event);
        }
        world
    }

    fn happen(&mut self, event: &Event) {
        let living = self.tasks.len();
        let at = |who: &usize| (living > 0).then(|| who % living);
        match event {
            Event::Arrive { device, process, hints, ready } => {
                self.born += 1;
                self.tasks.push(TaskView {
                    id: TaskId(self.born),
                    process: ProcessId(*process),
                    device: DeviceId(*device),
                    ready: *ready,
                    ready_since: self.now,
                    hints: *hints,
                    ..TaskView::default()
                });
                self.tasks.sort_by_key(|task| (task.device, task.id));
            }
            Event::Ready(who) => {
                let now = self.now;
                if let Some(task) = at(who).map(|index| &mut self.tasks[index]).filter(|task| !task.ready) {
                    (task.ready, task.ready_since) = (true, now);
                }
            }
            Event::Idle(who) => at(who).into_iter().for_each(|index| self.tasks[index].ready = false),
            Event::Hint(who, hints) => at(who).into_iter().for_each(|i| self.tasks[i].hints = *hints),
            Event::Nice(process, nice) => {
                let theirs = self.tasks.iter_mut().filter(|task| task.process.0 == *process);
                theirs.for_each(|task| task.nice = *nice);
            }
            Event::Focus(process) => {
                self.tasks.iter_mut().for_each(|task| task.focused = task.process.0 == *process);
            }
            Event::Die(who) => {
                if let Some(index) = at(who) {
                    self.tasks.remove(index);
                }
            }
            Event::Pass(span) => return self.pass(*span),
            Event::Configure(params) => self.scheduler.configure(*params),
        }
        self.decide();
    }

    /// Lets time go by; the policy is asked again whenever it wanted to be.
    fn pass(&mut self, span: Nanos) {
        let end = self.now + span;
        while let Some(look) = self.out.next_look().filter(|&look| look <= end) {
            self.work(look - self.now);
            self.decide();
        }
        self.work(end - self.now);
        self.decide();
    }

    fn work(&mut self, span: Nanos) {
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

    /// May run at some time under this policy.
    fn runnable(&self, task: &TaskView) -> bool {
        let has_quota = task.hints.share.percent() > 0;
        task.hints.priority != Priority::NO_EXECUTE && (self.scheduler.policy().name != "SPUP" || has_quota)
    }

    fn check(&self) {
        let policy = self.scheduler.policy();
        assert_eq!(self.out.grants().len(), self.tasks.len());
        assert!(self.scheduler.tracked() <= self.tasks.len(), "{policy:?} remembers the dead");
        let look = self.out.next_look();
        assert!(look.is_none_or(|at| at > self.now), "{policy:?} wants to be asked again at once");
        let mut contested = !policy.work_conserving;
        for domain in self.domains() {
            for (task, grant) in &domain {
                let never = task.hints.priority == Priority::NO_EXECUTE;
                assert!(!(never && grant.runs()), "{policy:?} runs {task:?}, which never may");
            }
            let can: Vec<_> = domain.iter().filter(|(task, _)| self.runnable(task)).collect();
            let waits = can.iter().any(|(task, _)| task.ready);
            let runs = can.iter().any(|(task, grant)| task.ready && grant.runs());
            contested |= can.len() > 1;
            if policy.work_conserving {
                assert!(runs || !waits, "{policy:?} lets a device stand idle: {domain:?}");
                if let [(_, grant)] = can[..] {
                    assert_eq!(*grant, Grant::Unthrottled, "{policy:?} holds a lonely task back: {domain:?}");
                }
            } else {
                assert!(runs || !waits || look.is_some(), "{policy:?} forgets who waits: {domain:?}");
            }
        }
        assert!(contested || look.is_none(), "{policy:?} wants to be asked again for nothing");
    }

    /// For each domain, whether somebody runs or nobody wants to.
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

    /// Nothing panics, somebody always runs who can, nobody does who must not, and all that `World::check` asks.
    #[test]
    fn every_decision_of_every_policy_is_sound(history in vec(event(), 1..80)) {
        for policy in policies() {
            World::live(policy, &history);
        }
    }

    #[test]
    fn the_same_history_gives_the_same_decisions(history in vec(event(), 1..60)) {
        for policy in policies() {
            prop_assert_eq!(World::live(policy, &history).log, World::live(policy, &history).log);
        }
    }

    #[test]
    fn the_dead_are_forgotten(history in vec(event(), 1..60)) {
        for policy in policies() {
            let mut world = World::live(policy, &history);
            world.tasks.clear();
            world.decide();
            prop_assert_eq!(world.scheduler.tracked(), 0);
            prop_assert_eq!(world.out.next_look(), None);
        }
    }

    #[test]
    fn whoever_is_held_back_by_a_quota_runs_in_the_end(history in vec(event(), 1..60)) {
        for policy in policies().filter(|policy| !policy.work_conserving) {
            let mut world = World::live(policy, &history);
            let patience = world.now + Nanos::from_secs(20);
            let mut served = world.served();
            while served.contains(&false) {
                let Some(look) = world.out.next_look() else { panic!("{policy:?} forgets who waits") };
                world.pass(look - world.now);
                prop_assert!(world.now < patience, "{policy:?} still holds somebody back");
                for (served, now) in served.iter_mut().zip(world.served()) {
                    *served |= now;
                }
            }
        }
    }
}

proptest! {
    // Each is a second and a half of short turns.
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Commands run to their end, one at a time, and are reported only then.
    #[test]
    fn nobody_starves(crowd in vec((5_i64..=100, -255_i64..=255, 0_u32..3, 50_u64..2_000), 2..6)) {
        for name in ["UP", "PUP", "SPUP", "CFS", "MLFQ"] {
            let longest = longest_wait(name, &crowd);
            prop_assert!(longest < Nanos::from_secs(1), "{name}: somebody waited for {longest}");
        }
    }
}

/// The longest any of the tasks (share, priority, process, length of its commands in microseconds), always ready,
/// goes without a grant, with turns of 100 us.
fn longest_wait(policy: &str, crowd: &[(i64, i64, u32, u64)]) -> Nanos {
    let mut world = World::new(PolicyInfo::find(policy).unwrap());
    let timeslice = Timeslice::from_micros(100).unwrap();
    world.happen(&Event::Configure(Params { timeslice, ..Params::default() }));
    for &(share, priority, process, _) in crowd {
        let priority = Priority::new(priority).unwrap();
        let share = Share::new(share).unwrap();
        let hints = Hints { priority, share, ..Hints::default() };
        world.happen(&Event::Arrive { device: 0, process, hints, ready: true });
    }
    let mut granted_at = vec![world.now; crowd.len()];
    let (mut longest, mut command) = (Nanos::ZERO, None);
    let end = world.now + Nanos::from_millis(1_500);
    while world.now < end {
        for (at, grant) in granted_at.iter_mut().zip(world.out.grants()) {
            longest = longest.max(world.now - *at);
            if grant.runs() {
                *at = world.now;
            }
        }
        let runs = |&index: &usize| world.out.grants()[index].runs();
        let least = || (0..crowd.len()).filter(runs).min_by_key(|&index| world.tasks[index].used);
        command = command.or_else(|| least().map(|i| (i, world.now + Nanos::from_micros(crowd[i].3))));
        let done = command.map(|(_, done)| done);
        world.now = done.into_iter().chain(world.out.next_look()).min().expect("somebody runs or will");
        if let Some((index, _)) = command.take_if(|&mut (_, done)| done == world.now) {
            world.tasks[index].used += Nanos::from_micros(crowd[index].3);
        }
        world.scheduler.decide(world.now, &world.tasks, &mut world.out);
    }
    longest
}

#[test]
fn names_and_numbers_are_unique_and_each_finds_its_policy() {
    let numbers: Vec<_> = policies().map(|policy| policy.number).collect();
    assert_eq!(numbers, (1..=11).collect::<Vec<_>>());
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
fn an_unknown_policy_is_told_what_there_is() {
    let error = PolicyInfo::find("quick").unwrap_err().to_string();
    assert!(error.starts_with("unknown policy `quick`: use one of priority (HPF), "), "{error}");
    for policy in policies() {
        assert!(error.contains(&format!("{} ({})", policy.plain, policy.name)), "{error}");
    }
}

#[test]
fn only_the_quota_policy_leaves_a_device_idle() {
    let idle: Vec<_> =
        policies().filter(|policy| !policy.work_conserving).map(|policy| policy.name).collect();
    assert_eq!(idle, ["SPUP"]);
}

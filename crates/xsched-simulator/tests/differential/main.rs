//! The service's coordinator and the simulator's driver give the same orders.
//!
//! ```text
//!                      ┌─► pages ─► Coordinator ─► orders in the gates ─┐
//!   random history ────┤                                                ├─► compared after every step
//!                      └─► model of the tasks ─► Driver ─► orders ──────┘
//! ```
//!
//! Processes come and go, queues become busy and idle, hints, suspension, jobs, dependencies, feedback of the device, the policy
//! and its settings change, programs are stopped and continue, and time passes, on several devices. The model in `model.rs` is written from the documentation of
//! tasks, not from the coordinator's code. Device time is an input to both sides and is taken from the coordinator.
//!
//! `cargo test` runs 1,000 histories; `XSCHED_HISTORIES=10000` runs more, and `XSCHED_HISTORY=17` only the one with that seed.

mod model;

use std::sync::Arc;

use xsched_core::{
    Deadline, DeviceId, Hints, Laxity, Nanos, NoScheduler, Order, Priority, Process, ProcessId, Share,
    Timeslice,
};
use xsched_ipc::page::Dependencies;
use xsched_ipc::protocol::JobKey;
use xsched_ipc::{ClientId, Coordinator, Page};
use xsched_policy::{POLICIES, Params};

use self::model::Model;

const PROCESSES: u64 = 5;
const DEVICES: u64 = 3;
const MAX_QUEUES: u64 = 6;
const STEPS: usize = 60;
/// Wake-ups that are followed while time passes; beyond, time jumps.
const MAX_WAKE_UPS: usize = 40;

/// The generator of Steele, Lea and Flood (2014), so that a seed names a history on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn signed(&mut self, low: i64, high: i64) -> i64 {
        low + i64::try_from(self.below(u64::try_from(high - low + 1).unwrap())).unwrap()
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        let bound = u64::try_from(items.len()).unwrap();
        (bound > 0).then(|| items[usize::try_from(self.below(bound)).unwrap()])
    }

    fn process(&mut self) -> ProcessId {
        ProcessId(u32::try_from(1 + self.below(PROCESSES)).unwrap())
    }

    fn hints(&mut self) -> Hints {
        let priority = match self.below(10) {
            0 => -256,
            1..=3 => self.signed(-255, 255),
            _ => self.signed(-1, 1),
        };
        let deadline = self.chance(2).then(|| Deadline::from_micros(self.signed(1, 50_000)).unwrap());
        let laxity = self.chance(4).then(|| {
            Laxity::new(self.signed(0, 50_000), self.signed(-255, 255), self.signed(-255, 255)).unwrap()
        });
        let priority = Priority::new(priority).unwrap();
        Hints { priority, share: Share::new(self.signed(0, 100)).unwrap(), deadline, laxity }
    }

    fn dependencies(&mut self) -> Dependencies {
        let mut slot = || usize::try_from(self.below(MAX_QUEUES + 2)).unwrap();
        let slots = [slot(), slot(), slot(), slot()];
        match self.below(6) {
            0 => Dependencies::Any,
            1 | 2 => Dependencies::NONE,
            n => Dependencies::Slots(slots, usize::try_from(n).unwrap() - 2),
        }
    }

    /// A span of time: often shorter than an idle gap, sometimes longer than a time slice.
    fn span(&mut self) -> Nanos {
        let bound = [50, 1_000, 5_000, 20_000, 120_000];
        let bound = self.pick(&bound).unwrap_or(1);
        Nanos(self.below(bound) * 1_000 + self.below(1_000))
    }
}

/// A queue, by its client and slot.
type QueueKey = (ClientId, usize);

/// One history: the same events on both sides.
struct History {
    random: Random,
    now: Nanos,
    coordinator: Coordinator,
    pages: Vec<(ClientId, Arc<Page>)>,
    model: Model,
    /// The last events, to be shown when a comparison fails.
    log: Vec<String>,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let policy = random.pick(&POLICIES.iter().collect::<Vec<_>>()).unwrap();
        Self {
            random,
            now: Nanos::from_secs(1),
            coordinator: Coordinator::new(policy),
            pages: Vec::new(),
            model: Model::new(policy),
            log: vec![format!("seed {seed}: {policy:?}")],
        }
    }

    fn run(&mut self) {
        for _ in 0..STEPS {
            let event = self.event();
            self.log.push(format!("{} {event}", self.now.0));
            self.step();
        }
    }

    /// Lets one random thing happen on both sides. Returns its description.
    fn event(&mut self) -> String {
        match self.random.below(33) {
            0..=2 => self.add_client(),
            3 if self.random.chance(2) => self.remove_client(),
            3..=7 => self.add_queue(),
            8 => self.remove_queue(),
            9..=12 => self.set_has_work(true),
            13..=15 => self.set_has_work(false),
            16 => self.set_dependencies(),
            17 => self.set_feedback(),
            18 | 19 => self.drain_as_ordered(),
            20 => self.set_hints(),
            21 => self.change_process(),
            22 => self.change_policy(),
            23 => self.set_jobs(),
            24 => self.set_stalled(),
            25 => self.set_unscheduled(),
            _ => self.pass_time(),
        }
    }

    fn page(&self, client: ClientId) -> Arc<Page> {
        Arc::clone(&self.pages.iter().find(|(id, _)| *id == client).unwrap().1)
    }

    fn random_queue(&mut self) -> Option<QueueKey> {
        let keys = self.model.queue_keys();
        self.random.pick(&keys)
    }

    fn add_client(&mut self) -> String {
        let (id, hints) = (self.random.process(), self.random.hints());
        let (nice, focused) = self.model.process(id);
        let page = Page::create().unwrap();
        let process = Process { id, nice, focused };
        let client = self.coordinator.add_client(process, Arc::clone(&page), hints);
        self.pages.push((client, page));
        self.model.add_client(client, id, hints);
        format!("add {client:?} of {id:?} with {hints:?}")
    }

    fn remove_client(&mut self) -> String {
        let clients: Vec<_> = self.pages.iter().map(|(id, _)| *id).collect();
        let Some(client) = self.random.pick(&clients) else { return "nothing".to_owned() };
        self.coordinator.remove_client(client);
        self.pages.retain(|(id, _)| *id != client);
        self.model.remove_client(client);
        format!("remove {client:?}")
    }

    fn add_queue(&mut self) -> String {
        let clients: Vec<_> = self.pages.iter().map(|(id, _)| *id).collect();
        let device = DeviceId(self.random.below(DEVICES));
        let Some(client) = self.random.pick(&clients) else { return "nothing".to_owned() };
        if self.model.queues_of(client) >= usize::try_from(MAX_QUEUES).unwrap() {
            return "nothing".to_owned();
        }
        let page = self.page(client);
        let slot = page.allocate_slot(device).unwrap();
        let cost = Nanos::from_micros(self.random.below(3) * 300);
        page.slot(slot).unwrap().publish_switch_cost(cost);
        self.model.add_queue((client, slot), device, cost);
        format!("add queue {slot} of {client:?} on {device:?} with switch cost {cost}")
    }

    fn remove_queue(&mut self) -> String {
        let Some(key) = self.random_queue() else { return "nothing".to_owned() };
        self.page(key.0).release_slot(key.1);
        self.model.remove_queue(key);
        format!("remove queue {key:?}")
    }

    fn set_has_work(&mut self, has_work: bool) -> String {
        let Some(key) = self.random_queue() else { return "nothing".to_owned() };
        let page = self.page(key.0);
        let gate = &page.slot(key.1).unwrap().gate;
        if has_work {
            gate.mark_busy(&NoScheduler);
        } else {
            gate.mark_idle(gate.epoch(), &NoScheduler);
        }
        self.model.queue(key).has_work = has_work;
        format!("queue {key:?} has work: {has_work}")
    }

    fn set_dependencies(&mut self) -> String {
        let Some(key) = self.random_queue() else { return "nothing".to_owned() };
        let dependencies = self.random.dependencies();
        self.page(key.0).slot(key.1).unwrap().set_dependencies(dependencies);
        self.model.queue(key).dependencies = dependencies;
        format!("queue {key:?} depends on {dependencies:?}")
    }

    fn set_feedback(&mut self) -> String {
        let Some(key) = self.random_queue() else { return "nothing".to_owned() };
        let (sync_bound, drained) = (self.random.chance(2), self.random.chance(2));
        let page = self.page(key.0);
        let slot = page.slot(key.1).unwrap();
        let level = u8::try_from(self.random.below(4)).unwrap();
        slot.publish_settings(level, 0, 0);
        let _ = slot.gate.set_sync_bound(sync_bound);
        slot.set_drained(drained);
        let queue = self.model.queue(key);
        (queue.is_sync_bound, queue.is_drained, queue.level) = (sync_bound, drained, level);
        if self.random.chance(4) {
            // A program that took the scheduler for dead frees itself; the next order is written again.
            slot.gate.set_order(Order::Free);
        }
        format!("queue {key:?} is sync-bound: {sync_bound}, drained: {drained}, level {level}")
    }

    /// What enforcers do: queues that were ordered to drain leave the device, and the rest are on it.
    fn drain_as_ordered(&mut self) -> String {
        for key in self.model.queue_keys() {
            let page = self.page(key.0);
            let slot = page.slot(key.1).unwrap();
            let drained = slot.gate.order() == Order::Drain;
            slot.set_drained(drained);
            self.model.queue(key).is_drained = drained;
        }
        "devices follow the orders".to_owned()
    }

    fn set_hints(&mut self) -> String {
        let hints = self.random.hints();
        let Some(key) = self.random_queue() else { return "nothing".to_owned() };
        if self.random.chance(2) {
            assert!(self.coordinator.set_queue_hints(key.0, key.1, hints, self.now));
            self.model.set_queue_hints(key, hints);
            return format!("queue {key:?} has its own {hints:?}");
        }
        self.coordinator.set_hints(key.0, hints);
        self.model.set_hints(key.0, hints);
        format!("{:?} has {hints:?}", key.0)
    }

    fn set_jobs(&mut self) -> String {
        let clients: Vec<_> = self.pages.iter().map(|(id, _)| *id).collect();
        let Some(client) = self.random.pick(&clients) else { return "nothing".to_owned() };
        let jobs: Vec<_> = (0..self.random.below(3)).map(|_| self.random.below(4)).collect();
        let keys = jobs.iter().map(|job| JobKey::Name(job.to_string())).collect();
        self.coordinator.set_jobs(client, keys, self.now);
        self.model.set_jobs(client, jobs.clone());
        format!("{client:?} has the jobs {jobs:?}")
    }

    fn set_unscheduled(&mut self) -> String {
        let devices = (0..DEVICES).map(DeviceId).filter(|_| self.random.chance(2)).collect::<Vec<_>>();
        self.coordinator.set_unscheduled(devices.iter().map(|device| (*device, 99)).collect());
        self.model.unscheduled.clone_from(&devices);
        format!("unscheduled processes keep {devices:?} busy")
    }

    fn set_stalled(&mut self) -> String {
        let clients: Vec<_> = self.pages.iter().map(|(id, _)| *id).collect();
        let Some(client) = self.random.pick(&clients) else { return "nothing".to_owned() };
        let stalled = self.random.chance(2);
        if stalled || self.random.chance(2) {
            // Two checks, between which its watcher thread does not poll.
            (0..2).for_each(|_| self.coordinator.stall_suspects(&mut Vec::new()));
            self.coordinator.set_stopped(client, stalled);
        } else if self.page(client).count_poll() {
            self.coordinator.look_at(client, self.now);
        }
        self.model.set_stalled(client, stalled);
        format!("{client:?} is stalled: {stalled}")
    }

    fn change_process(&mut self) -> String {
        let process = self.random.process();
        match self.random.below(3) {
            0 => {
                let nice = i8::try_from(self.random.signed(-20, 19)).unwrap();
                self.coordinator.set_nice(process, nice);
                self.model.set_nice(process, nice);
                format!("{process:?} has nice value {nice}")
            }
            1 => {
                let focused = self.random.chance(2).then_some(process);
                self.coordinator.set_focus(focused);
                self.model.focus = focused;
                format!("{focused:?} has the focus")
            }
            _ => {
                let suspended = self.random.chance(2) && self.model.has_process(process);
                self.coordinator.set_suspended(process, suspended);
                self.model.set_suspended(process, suspended);
                format!("{process:?} is suspended: {suspended}")
            }
        }
    }

    fn change_policy(&mut self) -> String {
        if self.random.chance(2) {
            let policy = self.random.pick(&POLICIES.iter().collect::<Vec<_>>()).unwrap();
            self.coordinator.set_policy(policy);
            self.model.driver.set_policy(policy);
            return format!("policy {policy:?}");
        }
        let micros = self.random.signed(100, 20_000);
        let k = usize::try_from(self.random.below(4)).unwrap();
        let params = Params { timeslice: Timeslice::from_micros(micros).unwrap(), k };
        self.coordinator.configure(params);
        self.model.driver.configure(params);
        format!("{params:?}")
    }

    fn pass_time(&mut self) -> String {
        let end = self.now + self.random.span();
        for _ in 0..MAX_WAKE_UPS {
            let Some(at) = self.model.wake_up.filter(|at| *at < end && *at > self.now) else { break };
            self.now = at;
            self.step();
        }
        self.now = end;
        format!("time passes to {}", end.0)
    }

    /// One round on both sides, and the comparison.
    fn step(&mut self) {
        let wake_up = self.coordinator.step(self.now);
        self.model.plan(self.now, self.coordinator.tasks());
        let ids: Vec<_> = self.coordinator.tasks().iter().map(|task| (task.device, task.id)).collect();
        let model_ids: Vec<_> = self.model.driver.tasks().iter().map(|task| (task.device, task.id)).collect();
        assert_eq!(ids, model_ids, "the tasks differ after\n{}", self.log.join("\n"));
        for key in self.model.queue_keys() {
            let order = self.page(key.0).slot(key.1).unwrap().gate.order();
            let expected = self.model.order_of(key);
            assert!(
                order == expected,
                "queue {key:?} has the order {order:?} from the coordinator and {expected:?} from the simulator after\n{}",
                self.log.join("\n")
            );
        }
        // The coordinator also wakes up for its heartbeat, while a task is held.
        let is_held = self.model.driver.orders().iter().any(|order| order.stops());
        let agrees = match self.model.wake_up {
            Some(at) if is_held => wake_up.is_some_and(|other| other <= at),
            expected => is_held || wake_up == expected,
        };
        assert!(
            agrees,
            "wake-up at {wake_up:?}, not {:?}, after\n{}",
            self.model.wake_up,
            self.log.join("\n")
        );
    }
}

fn number(variable: &str) -> Option<u64> {
    Some(std::env::var(variable).ok()?.parse().expect("a number"))
}

#[test]
fn coordinator_and_simulator_give_the_same_orders() {
    let seeds = match number("XSCHED_HISTORY") {
        Some(seed) => seed..seed + 1,
        None => 0..number("XSCHED_HISTORIES").unwrap_or(1_000),
    };
    let mut given = std::collections::BTreeMap::<String, u64>::new();
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let mut history = History::new(seed);
        history.run();
        for order in history.model.driver.orders() {
            *given.entry(format!("{order:?}")).or_default() += 1;
        }
    }
    println!("last orders of {count} histories: {given:?}");
    // A generator that reaches no contention compares nothing.
    assert!(count < 100 || given.len() == 7, "some orders were never given: {given:?}");
}

//! A model of processes, queues and tasks, as the glossary describes them, that feeds the simulator's driver.

use std::collections::BTreeMap;

use xsched_core::{DeviceId, Hints, Nanos, Order, ProcessId, Task, TaskId};
use xsched_ipc::ClientId;
use xsched_ipc::page::Dependencies;
use xsched_policy::{Dependency, JobId, LaunchedWork, Params, PolicyInfo, TaskStatus, TaskView};
use xsched_simulator::Driver;

use crate::QueueKey;

struct ModelClient {
    process: ProcessId,
    hints: Hints,
    jobs: Vec<u64>,
}

/// A queue as its process sees it.
pub(crate) struct ModelQueue {
    task: TaskId,
    switch_cost: Nanos,
    pub(crate) has_work: bool,
    pub(crate) is_sync_bound: bool,
    pub(crate) is_drained: bool,
    pub(crate) level: u8,
    pub(crate) dependencies: Dependencies,
}

struct ModelTask {
    process: ProcessId,
    device: DeviceId,
    /// Made for a queue with hints of its own.
    is_own: bool,
    hints: Hints,
    has_work: bool,
    ready_since: Nanos,
    switch_cost: Nanos,
}

pub(crate) struct Model {
    pub(crate) driver: Driver,
    pub(crate) wake_up: Option<Nanos>,
    pub(crate) focus: Option<ProcessId>,
    clients: BTreeMap<ClientId, ModelClient>,
    queues: BTreeMap<QueueKey, ModelQueue>,
    tasks: BTreeMap<TaskId, ModelTask>,
    last_task: u64,
    nice: BTreeMap<ProcessId, i8>,
    suspended: Vec<ProcessId>,
    /// Devices that unscheduled processes keep busy.
    pub(crate) unscheduled: Vec<DeviceId>,
    /// Clients whose process does not run.
    stalled: Vec<ClientId>,
}

impl Model {
    pub(crate) fn new(policy: &'static PolicyInfo) -> Self {
        Self {
            driver: Driver::new(policy, Params::default()),
            wake_up: None,
            focus: None,
            clients: BTreeMap::new(),
            queues: BTreeMap::new(),
            tasks: BTreeMap::new(),
            last_task: 0,
            nice: BTreeMap::new(),
            suspended: Vec::new(),
            unscheduled: Vec::new(),
            stalled: Vec::new(),
        }
    }

    pub(crate) fn queue_keys(&self) -> Vec<QueueKey> {
        self.queues.keys().copied().collect()
    }

    pub(crate) fn queues_of(&self, client: ClientId) -> usize {
        self.queues.keys().filter(|key| key.0 == client).count()
    }

    pub(crate) fn queue(&mut self, key: QueueKey) -> &mut ModelQueue {
        self.queues.get_mut(&key).unwrap()
    }

    /// The nice value of a process, and whether it has the focus.
    pub(crate) fn process(&self, process: ProcessId) -> (i8, bool) {
        (self.nice.get(&process).copied().unwrap_or(0), self.focus == Some(process))
    }

    pub(crate) fn has_process(&self, process: ProcessId) -> bool {
        self.clients.values().any(|client| client.process == process)
    }

    pub(crate) fn add_client(&mut self, id: ClientId, process: ProcessId, hints: Hints) {
        self.clients.insert(id, ModelClient { process, hints, jobs: Vec::new() });
    }

    pub(crate) fn remove_client(&mut self, id: ClientId) {
        for key in self.queue_keys().into_iter().filter(|key| key.0 == id) {
            self.remove_queue(key);
        }
        let process = self.clients.remove(&id).unwrap().process;
        self.stalled.retain(|client| *client != id);
        if !self.has_process(process) {
            self.nice.remove(&process);
            self.suspended.retain(|other| *other != process);
        }
    }

    pub(crate) fn add_queue(&mut self, key: QueueKey, device: DeviceId, switch_cost: Nanos) {
        let client = &self.clients[&key.0];
        let (process, hints) = (client.process, client.hints);
        let shared = |task: &ModelTask| !task.is_own && (task.process, task.device) == (process, device);
        let task = self.tasks.iter().find(|(_, task)| shared(task)).map(|(id, _)| *id);
        let task = task.unwrap_or_else(|| self.add_task(process, device, hints, false));
        let queue = ModelQueue {
            task,
            switch_cost,
            has_work: false,
            is_sync_bound: false,
            is_drained: false,
            level: 0,
            dependencies: Dependencies::NONE,
        };
        self.queues.insert(key, queue);
    }

    fn add_task(&mut self, process: ProcessId, device: DeviceId, hints: Hints, is_own: bool) -> TaskId {
        self.last_task += 1;
        let id = TaskId(self.last_task);
        let (has_work, ready_since, switch_cost) = (false, Nanos::ZERO, Nanos::ZERO);
        let task = ModelTask { process, device, is_own, hints, has_work, ready_since, switch_cost };
        self.tasks.insert(id, task);
        id
    }

    pub(crate) fn remove_queue(&mut self, key: QueueKey) {
        let task = self.queues.remove(&key).unwrap().task;
        self.remove_task_without_queues(task);
    }

    fn remove_task_without_queues(&mut self, task: TaskId) {
        if !self.queues.values().any(|queue| queue.task == task) {
            self.tasks.remove(&task);
        }
    }

    pub(crate) fn set_hints(&mut self, client: ClientId, hints: Hints) {
        let client = self.clients.get_mut(&client).unwrap();
        client.hints = hints;
        let shared = self.tasks.values_mut().filter(|task| !task.is_own && task.process == client.process);
        shared.for_each(|task| task.hints = hints);
    }

    pub(crate) fn set_queue_hints(&mut self, key: QueueKey, hints: Hints) {
        let old = self.queues[&key].task;
        let task = self.tasks.get_mut(&old).unwrap();
        if task.is_own {
            task.hints = hints;
            return;
        }
        let (process, device) = (task.process, task.device);
        let own = self.add_task(process, device, hints, true);
        self.queue(key).task = own;
        self.remove_task_without_queues(old);
    }

    pub(crate) fn set_jobs(&mut self, client: ClientId, jobs: Vec<u64>) {
        self.clients.get_mut(&client).unwrap().jobs = jobs;
    }

    /// The job of a process: the first of all clients that it reaches through jobs in common and through processes.
    fn job_of(&self, process: ProcessId) -> Option<JobId> {
        let with_jobs = || self.clients.iter().filter(|(_, client)| !client.jobs.is_empty());
        let mut reached: Vec<ClientId> =
            with_jobs().filter(|(_, client)| client.process == process).map(|(id, _)| *id).collect();
        loop {
            let is_linked = |a: &ModelClient, b: &ModelClient| {
                a.process == b.process || a.jobs.iter().any(|job| b.jobs.contains(job))
            };
            let next = with_jobs().find(|(id, client)| {
                !reached.contains(id) && reached.iter().any(|other| is_linked(client, &self.clients[other]))
            });
            match next {
                Some((id, _)) => reached.push(*id),
                None => return reached.iter().min().map(|first| JobId(first.number())),
            }
        }
    }

    pub(crate) fn set_nice(&mut self, process: ProcessId, nice: i8) {
        if self.has_process(process) {
            self.nice.insert(process, nice);
        }
    }

    pub(crate) fn set_stalled(&mut self, client: ClientId, stalled: bool) {
        self.stalled.retain(|other| *other != client);
        self.stalled.extend(stalled.then_some(client));
    }

    pub(crate) fn set_suspended(&mut self, process: ProcessId, suspended: bool) {
        self.suspended.retain(|other| *other != process);
        self.suspended.extend(suspended.then_some(process));
    }

    /// Brings the driver up to date and plans. Device time comes from `measured`.
    pub(crate) fn plan(&mut self, now: Nanos, measured: &[Task]) {
        for index in (0..self.driver.tasks().len()).rev() {
            if !self.tasks.contains_key(&self.driver.tasks()[index].id) {
                self.driver.remove_task(index);
            }
        }
        for (&id, task) in &self.tasks {
            if !self.driver.tasks().iter().any(|view| view.id == id) {
                let view = TaskView { id, process: task.process, device: task.device, ..TaskView::default() };
                self.driver.add_task(view, TaskStatus::default());
            }
        }
        for index in 0..self.driver.tasks().len() {
            self.update_task(index, now, measured);
        }
        let dependencies = self.dependencies();
        self.driver.set_dependencies(dependencies);
        self.wake_up = self.driver.plan(now);
    }

    fn update_task(&mut self, index: usize, now: Nanos, measured: &[Task]) {
        let id = self.driver.tasks()[index].id;
        let job = self.job_of(self.tasks[&id].process);
        let device = self.tasks[&id].device;
        let on_device = self.queues.values().filter(|queue| self.tasks[&queue.task].device == device);
        let has_unscheduled_neighbor =
            self.unscheduled.contains(&device) && on_device.clone().all(|queue| queue.level >= 3);
        let task = self.tasks.get_mut(&id).unwrap();
        let queues = || self.queues.values().filter(|queue| queue.task == id);
        let busy = || queues().filter(|queue| queue.has_work);
        let had_work = std::mem::replace(&mut task.has_work, busy().next().is_some());
        if task.has_work && !had_work {
            task.ready_since = now;
        }
        let cost = queues().map(|queue| queue.switch_cost).max().unwrap_or_default();
        task.switch_cost = task.switch_cost.max(cost);
        let (view, status) = self.driver.task_mut(index);
        view.hints = task.hints;
        view.nice = self.nice.get(&task.process).copied().unwrap_or(0);
        view.focused = self.focus == Some(task.process);
        view.switch_cost = task.switch_cost;
        view.ready_since = task.ready_since;
        view.used = measured.iter().find(|task| task.id == id).map_or(Nanos::ZERO, |task| task.used);
        *status = TaskStatus {
            has_work: task.has_work,
            is_suspended: self.suspended.contains(&task.process),
            is_stalled: self.stalled.iter().any(|client| self.clients[client].process == task.process),
            is_sync_bound: busy().any(|queue| queue.is_sync_bound),
            is_drained: busy().all(|queue| queue.is_drained),
            job,
            has_unscheduled_neighbor,
            launched_work: busy()
                .map(|queue| match queue.level {
                    0 | 1 => LaunchedWork::Continues,
                    2 => LaunchedWork::MayContinue,
                    _ => LaunchedWork::Stops,
                })
                .max()
                .unwrap_or_default(),
        };
    }

    /// Every pair of tasks of which one has a queue that waits for a queue of the other.
    fn dependencies(&self) -> Vec<Dependency> {
        let mut found = Vec::new();
        for (waiter_key, waiter) in self.queues.iter().filter(|(_, queue)| queue.has_work) {
            for (holder_key, holder) in self.queues.iter().filter(|(key, _)| key.0 == waiter_key.0) {
                let waits = match waiter.dependencies {
                    Dependencies::Any => true,
                    Dependencies::Slots(slots, n) => slots[..n].contains(&holder_key.1),
                };
                if waits {
                    let index = |id| self.driver.tasks().iter().position(|task| task.id == id).unwrap();
                    found.push(Dependency { waiter: index(waiter.task), holder: index(holder.task) });
                }
            }
        }
        found
    }

    /// The order of a queue's task.
    pub(crate) fn order_of(&self, key: QueueKey) -> Order {
        let task = self.queues[&key].task;
        let index = self.driver.tasks().iter().position(|view| view.id == task).unwrap();
        self.driver.orders()[index]
    }
}

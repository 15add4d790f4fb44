//! The scheduler of a simulation: keeps the snapshot of its tasks and runs the decision pipeline on it.
//!
//! It is the simulator's counterpart of the service's coordinator. Both only fill snapshots and carry out orders; a test
//! feeds random histories to both and compares the orders.

use xsched_core::{Nanos, Order};
use xsched_policy::{Dependency, Params, Pipeline, PolicyInfo, Snapshot, TaskStatus, TaskView};

/// Tasks and the pipeline that plans for them.
pub struct Driver {
    pipeline: Pipeline,
    snapshot: Snapshot,
}

impl Driver {
    /// Starts without tasks.
    #[must_use]
    pub fn new(policy: &'static PolicyInfo, params: Params) -> Self {
        let mut pipeline = Pipeline::new(policy);
        pipeline.configure(params);
        Self { pipeline, snapshot: Snapshot::default() }
    }

    /// Changes the policy from the next plan on.
    pub fn set_policy(&mut self, policy: &'static PolicyInfo) {
        self.pipeline.set_policy(policy);
    }

    /// Changes the policy's settings from the next plan on.
    pub fn configure(&mut self, params: Params) {
        self.pipeline.configure(params);
    }

    /// Adds a task. Returns its index: tasks are in ascending order of device, then of id.
    pub fn add_task(&mut self, view: TaskView, status: TaskStatus) -> usize {
        let index =
            self.snapshot.views.partition_point(|task| (task.device, task.id) < (view.device, view.id));
        self.snapshot.views.insert(index, view);
        self.snapshot.statuses.insert(index, status);
        index
    }

    /// Removes the task at `index`.
    pub fn remove_task(&mut self, index: usize) {
        self.snapshot.views.remove(index);
        self.snapshot.statuses.remove(index);
    }

    /// The tasks, in ascending order of device, then of id.
    #[must_use]
    pub fn tasks(&self) -> &[TaskView] {
        &self.snapshot.views
    }

    /// The task at `index`, to be changed. Device and id stay; the pipeline sets [`TaskView::ready`].
    pub fn task_mut(&mut self, index: usize) -> (&mut TaskView, &mut TaskStatus) {
        (&mut self.snapshot.views[index], &mut self.snapshot.statuses[index])
    }

    /// Replaces the dependencies between tasks.
    pub fn set_dependencies(&mut self, dependencies: impl IntoIterator<Item = Dependency>) {
        self.snapshot.dependencies.clear();
        self.snapshot.dependencies.extend(dependencies);
    }

    /// Plans for the tasks as they are. Returns when to plan again if nothing changes before.
    pub fn plan(&mut self, now: Nanos) -> Option<Nanos> {
        self.pipeline.plan(now, &mut self.snapshot)
    }

    /// The orders of the last plan, in the order of the tasks.
    #[must_use]
    pub fn orders(&self) -> &[Order] {
        self.pipeline.orders()
    }
}

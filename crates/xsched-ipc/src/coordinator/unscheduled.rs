//! Devices that unscheduled processes keep busy.

use xsched_core::{DeviceId, Order};

use super::Coordinator;
use super::account::Account;
use crate::protocol::TaskState;

impl Account {
    /// Whether it has work and gives way to other tasks by a short time slice.
    fn gives_way(&self) -> bool {
        let is_short = match self.order {
            Order::Free | Order::Leader => false,
            Order::Peer => self.has_unscheduled_neighbor,
            Order::Throttled | Order::Yield | Order::Evict | Order::Drain => true,
        };
        is_short && self.is_among_preemptible && matches!(self.state, TaskState::Running | TaskState::Held)
    }
}

impl Coordinator {
    /// Whether some task has work and gives way to other tasks by a short time slice.
    #[must_use]
    pub fn has_task_that_gives_way(&self) -> bool {
        self.accounts.iter().any(Account::gives_way)
    }

    /// The devices of such tasks.
    #[must_use]
    pub fn devices_with_tasks_that_give_way(&self) -> Vec<DeviceId> {
        let mut devices: Vec<_> = self
            .accounts
            .iter()
            .filter(|account| account.gives_way())
            .map(|account| account.device)
            .collect();
        devices.dedup();
        devices
    }

    /// The devices that an unscheduled process keeps busy, and that process.
    #[must_use]
    pub fn unscheduled(&self) -> &[(DeviceId, u32)] {
        &self.unscheduled
    }

    /// Sets the devices that an unscheduled process keeps busy. Returns whether they have changed.
    pub fn set_unscheduled(&mut self, devices: Vec<(DeviceId, u32)>) -> bool {
        let has_changed = self.unscheduled != devices;
        self.unscheduled = devices;
        self.needs_alignment |= has_changed;
        has_changed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use xsched_core::{Gate, Hints, Level, Nanos, NoScheduler, Priority, Process, ProcessId};
    use xsched_policy::POLICIES;

    use super::*;
    use crate::page::Page;

    const DEVICE: DeviceId = DeviceId(1);

    /// The page of a program with one queue.
    fn join(coordinator: &mut Coordinator, id: u32, priority: i64, level: Level) -> Arc<Page> {
        let page = Page::create().unwrap();
        let slot = page.allocate_slot(DEVICE).unwrap();
        page.slot(slot).unwrap().publish_settings(level.number(), 0, 0);
        let process = Process { id: ProcessId(id), ..Process::default() };
        let hints = Hints { priority: Priority::new(priority).unwrap(), ..Hints::default() };
        coordinator.add_client(process, Arc::clone(&page), hints);
        page
    }

    fn gate(page: &Page) -> &Gate {
        &page.slot(0).unwrap().gate
    }

    #[test]
    fn task_that_gives_way_has_an_ordinary_time_slice_beside_an_unscheduled_process() {
        let mut coordinator = Coordinator::new(&POLICIES[0]);
        let high = join(&mut coordinator, 1, 10, Level::Interrupt);
        let low = join(&mut coordinator, 2, 0, Level::Interrupt);
        coordinator.step(Nanos::from_millis(1));
        assert!(!coordinator.has_task_that_gives_way(), "no task runs");
        gate(&low).mark_busy(&NoScheduler);
        coordinator.step(Nanos::from_millis(2));
        assert_eq!(coordinator.devices_with_tasks_that_give_way(), [DEVICE]);
        assert!(gate(&high).permits_unreported());

        assert!(coordinator.set_unscheduled(vec![(DEVICE, 99)]));
        coordinator.round(Nanos::from_millis(3));
        assert_eq!(gate(&low).order(), Order::Peer);
        assert!(!gate(&high).permits_unreported(), "the task has a time slice that does not give way");
        assert_eq!(coordinator.devices_with_tasks_that_give_way(), [DEVICE], "it is watched until it pauses");
        gate(&high).mark_busy(&NoScheduler);
        coordinator.step(Nanos::from_millis(4));
        assert!(gate(&low).order().stops());

        let _ = gate(&high).mark_idle(gate(&high).epoch(), &NoScheduler);
        assert!(coordinator.set_unscheduled(Vec::new()));
        coordinator.step(Nanos::from_millis(30));
        assert_eq!(gate(&low).order(), Order::Throttled);
    }

    #[test]
    fn task_without_time_slices_stays_throttled() {
        let mut coordinator = Coordinator::new(&POLICIES[0]);
        let _high = join(&mut coordinator, 1, 10, Level::Interrupt);
        let low = join(&mut coordinator, 2, 0, Level::Deactivate);
        gate(&low).mark_busy(&NoScheduler);
        coordinator.set_unscheduled(vec![(DEVICE, 99)]);
        coordinator.step(Nanos::from_millis(1));
        assert_eq!(gate(&low).order(), Order::Throttled);
        assert!(!coordinator.has_task_that_gives_way());
    }
}

//! When the first order of a new queue counts.
//!
//! The first launch of a queue waits until the scheduler has decided about the queue ([`Gate::mark_decided`]), at most 5 ms.
//! That is the case as soon as its order is written, with one exception: a neighbor that was alone on the device until now has
//! launched uncounted, and only its own process can tell whether it has work. Until that process has reported, a throttled queue
//! would launch beside work of higher precedence.
//!
//! [`Gate::mark_decided`]: xsched_core::Gate::mark_decided

use xsched_core::{DeviceId, Order};

use super::Coordinator;
use super::program::Program;

impl Coordinator {
    /// Lets the launches of new queues proceed whose orders have just been written.
    pub(super) fn decide_new_queues(&mut self) {
        if !std::mem::take(&mut self.has_undecided) {
            return;
        }
        let unaccounted: Vec<_> =
            self.programs.iter().map(Program::devices_with_uncounted_launches).collect();
        let has_unaccounted_neighbor = |own: usize, device: DeviceId| {
            unaccounted.iter().enumerate().any(|(place, devices)| place != own && devices.contains(&device))
        };
        for (place, program) in self.programs.iter_mut().enumerate() {
            for queue in program.queues.iter_mut().filter(|queue| queue.is_undecided) {
                // A leader and its peers wait for no other task, and a queue that is held has its decision.
                if queue.order == Order::Throttled && has_unaccounted_neighbor(place, queue.device) {
                    self.has_undecided = true;
                    continue;
                }
                queue.is_undecided = false;
                if let Some(slot) = program.page.slot(queue.slot) {
                    slot.gate.mark_decided();
                }
            }
        }
    }
}

impl Program {
    /// The devices on which it may have work that it has not reported yet. A process that does not run will not report any.
    fn devices_with_uncounted_launches(&self) -> Vec<DeviceId> {
        if self.page.is_stalled() {
            return Vec::new();
        }
        let may_have_work = |slot: usize| {
            self.page.slot(slot).is_some_and(|slot| !slot.gate.is_undecided() && slot.gate.has_uncounted())
        };
        let queues =
            self.queues.iter().filter(|queue| queue.order != Order::Free && may_have_work(queue.slot));
        queues.map(|queue| queue.device).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use xsched_core::{Gate, Hints, Level, Nanos, NoScheduler, Order, Priority, Process, ProcessId};
    use xsched_policy::POLICIES;

    use super::*;
    use crate::page::Page;

    const DEVICE: DeviceId = DeviceId(1);
    const HIGH: i64 = 100;
    const LOW: i64 = -100;

    struct Client(Arc<Page>);

    impl Client {
        /// A program with one queue, which the scheduler does not know yet.
        fn join(coordinator: &mut Coordinator, id: u32, priority: i64) -> Self {
            let page = Page::create().unwrap();
            let slot = page.allocate_undecided_slot(DEVICE).unwrap();
            page.slot(slot).unwrap().publish_settings(Level::Block.number(), 0, 0);
            let process = Process { id: ProcessId(id), ..Process::default() };
            let hints = Hints { priority: Priority::new(priority).unwrap(), ..Hints::default() };
            coordinator.add_client(process, Arc::clone(&page), hints);
            Self(page)
        }

        fn gate(&self) -> &Gate {
            &self.0.slot(0).unwrap().gate
        }

        fn state(&self) -> (Order, bool) {
            (self.gate().order(), self.gate().is_undecided())
        }

        /// What the process's watcher does when it is woken.
        fn account_for_uncounted(&self, has_work: bool) {
            assert!(self.gate().take_uncounted());
            if has_work {
                self.gate().mark_busy(&NoScheduler);
            }
        }
    }

    #[test]
    fn lone_queue_is_decided_in_the_round_that_finds_it() {
        let mut coordinator = Coordinator::new(&POLICIES[0]);
        let alone = Client::join(&mut coordinator, 1, LOW);
        assert_eq!(alone.state(), (Order::Free, true));
        assert!(!alone.gate().is_free(), "its first launch must wait");
        coordinator.step(Nanos::from_millis(1));
        assert_eq!(alone.state(), (Order::Free, false));
        assert!(alone.gate().is_free());
    }

    #[test]
    fn queue_beside_a_busy_leader_is_decided_and_held_in_the_same_round() {
        let mut coordinator = Coordinator::new(&POLICIES[0]);
        let high = Client::join(&mut coordinator, 1, HIGH);
        let _other = Client::join(&mut coordinator, 2, LOW);
        coordinator.step(Nanos::from_millis(1));
        high.account_for_uncounted(true);
        coordinator.step(Nanos::from_millis(2));
        let low = Client::join(&mut coordinator, 3, LOW);
        coordinator.step(Nanos::from_millis(3));
        assert_eq!(low.state(), (Order::Yield, false));
    }

    #[test]
    fn queue_waits_until_a_neighbor_that_was_alone_has_reported_its_work() {
        for has_work in [true, false] {
            let mut coordinator = Coordinator::new(&POLICIES[0]);
            let high = Client::join(&mut coordinator, 1, HIGH);
            coordinator.step(Nanos::from_millis(1));
            assert!(high.gate().is_free(), "it launches uncounted");
            let low = Client::join(&mut coordinator, 2, LOW);
            coordinator.step(Nanos::from_millis(2));
            assert_eq!(low.state(), (Order::Throttled, true), "whether the leader has work is not known");
            assert_eq!(high.state(), (Order::Leader, false));
            coordinator.step(Nanos::from_millis(3));
            assert!(low.gate().is_undecided());
            high.account_for_uncounted(has_work);
            coordinator.step(Nanos::from_millis(4));
            let order = if has_work { Order::Yield } else { Order::Throttled };
            assert_eq!(low.state(), (order, false));
        }
    }

    #[test]
    fn queue_does_not_wait_for_a_neighbor_of_lower_precedence_or_one_that_does_not_run() {
        let mut coordinator = Coordinator::new(&POLICIES[0]);
        let low = Client::join(&mut coordinator, 1, LOW);
        coordinator.step(Nanos::from_millis(1));
        let high = Client::join(&mut coordinator, 2, HIGH);
        coordinator.step(Nanos::from_millis(2));
        assert_eq!(high.state(), (Order::Leader, false), "the first launch of a leader waits for one order");
        assert!(low.gate().has_uncounted());
        high.0.set_stalled(true);
        let third = Client::join(&mut coordinator, 3, 0);
        low.account_for_uncounted(false);
        coordinator.step(Nanos::from_millis(3));
        assert!(high.gate().has_uncounted());
        assert!(!third.gate().is_undecided(), "a stopped process does not report");
    }

    #[test]
    fn queue_beyond_the_limit_of_its_user_does_not_wait() {
        let mut coordinator = Coordinator::new(&POLICIES[0]);
        coordinator.set_queue_limit(0, 0);
        let beyond = Client::join(&mut coordinator, 1, LOW);
        coordinator.step(Nanos::from_millis(1));
        assert_eq!(beyond.state(), (Order::Free, false));
    }
}

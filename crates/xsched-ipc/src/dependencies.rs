//! Which queues of this process depend on which, and how that is published to the scheduler.
//!
//! The scheduler must not hold a queue that a running queue depends on. It reads the dependencies from the slots of the page.
//! The events behind them are kept here, and removed once reached.

use std::sync::{Arc, Mutex, Weak};

use xsched_core::RecordedEvent;

use crate::page::Dependencies;
use crate::scheduled_process::lock;
use crate::scheduled_queue::ScheduledQueue;

#[derive(Default)]
pub(crate) struct DependencyTracker {
    dependencies: Mutex<Vec<Dependency>>,
}

struct Dependency {
    /// The queue that waits.
    consumer: Weak<ScheduledQueue>,
    /// The queue of the event. None: the consumer's work was launched before dependencies were tracked, and may depend on any
    /// queue of the process until the consumer itself has reached the event.
    producer: Option<Weak<ScheduledQueue>>,
    event: RecordedEvent,
}

impl Dependency {
    fn is_resolved(&self) -> bool {
        let queue = self.producer.as_ref().unwrap_or(&self.consumer);
        queue.upgrade().is_none_or(|queue| queue.has_reached(self.event))
    }
}

impl DependencyTracker {
    /// `consumer` waits for an event of `producer`.
    pub(crate) fn add(
        &self,
        consumer: &Arc<ScheduledQueue>,
        producer: &Arc<ScheduledQueue>,
        event: RecordedEvent,
    ) {
        self.insert(consumer, Some(Arc::downgrade(producer)), event);
    }

    /// `consumer` may wait for any queue of the process until it has reached `event` itself.
    pub(crate) fn add_unknown(&self, consumer: &Arc<ScheduledQueue>, event: RecordedEvent) {
        self.insert(consumer, None, event);
    }

    fn insert(
        &self,
        consumer: &Arc<ScheduledQueue>,
        producer: Option<Weak<ScheduledQueue>>,
        event: RecordedEvent,
    ) {
        let mut dependencies = lock(&self.dependencies);
        dependencies.push(Dependency { consumer: Arc::downgrade(consumer), producer, event });
        publish(consumer, &dependencies);
    }

    /// Publishes the dependencies of these queues again: they have moved to other slots.
    pub(crate) fn publish_again(&self, consumers: &[Arc<ScheduledQueue>]) {
        let dependencies = lock(&self.dependencies);
        for consumer in consumers {
            publish(consumer, &dependencies);
        }
    }

    /// Removes the dependencies whose events were reached. Returns whether there were any.
    pub(crate) fn remove_resolved(&self) -> bool {
        // Dropped after the lock is released: to drop the last handle on a queue takes locks.
        let mut changed: Vec<Arc<ScheduledQueue>> = Vec::new();
        let mut dependencies = lock(&self.dependencies);
        dependencies.retain(|dependency| {
            let is_resolved = dependency.is_resolved();
            if is_resolved {
                changed.extend(dependency.consumer.upgrade());
            }
            !is_resolved
        });
        for consumer in &changed {
            publish(consumer, &dependencies);
        }
        drop(dependencies);
        !changed.is_empty()
    }
}

/// Writes the dependencies of a queue into its slot.
fn publish(consumer: &Arc<ScheduledQueue>, dependencies: &[Dependency]) {
    let (mut slots, mut n) = ([0; 4], 0);
    for dependency in dependencies.iter().filter(|entry| entry.consumer.ptr_eq(&Arc::downgrade(consumer))) {
        let Some(producer) = &dependency.producer else {
            return consumer.publish_dependencies(Dependencies::Any);
        };
        // A queue without a slot is unscheduled, and so never held.
        let Some(slot) = producer.upgrade().and_then(|producer| producer.slot()) else { continue };
        if slots[..n].contains(&slot) {
            continue;
        }
        if n == slots.len() {
            return consumer.publish_dependencies(Dependencies::Any);
        }
        slots[n] = slot;
        n += 1;
    }
    consumer.publish_dependencies(Dependencies::Slots(slots, n));
}

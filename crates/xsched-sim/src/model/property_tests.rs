//! Properties that hold for any sequence of submissions, stops and restores, in virtual time.

use proptest::prelude::*;
use xsched_core::{Level, Nanos};

use super::tests::{plain, spans};
use super::*;
use crate::segment::tests::{new_model, overwrite};

/// Contexts and queues of the tested devices: queue `i` belongs to context `i % 3`.
const BUSY_CONTEXTS: usize = 3;
const BUSY_QUEUES: usize = 6;
/// Longer than all submitted work takes, with all its time slices.
const LONGER_THAN_ALL_WORK: Nanos = Nanos::from_secs(100);

#[derive(Clone, Debug)]
enum Operation {
    Run(usize, Nanos),
    Mark(usize),
    /// The first queue waits for the last marker of the second.
    Wait(usize, usize),
    Preempt(usize, Level),
    Restore(usize),
    Pass(Nanos),
}

fn operation() -> impl Strategy<Value = Operation> {
    let queue = 0..BUSY_QUEUES;
    let length = prop_oneof![Just(0), 1..5_000_000_u64].prop_map(Nanos);
    prop_oneof![
        4 => (queue.clone(), length).prop_map(|(q, length)| Operation::Run(q, length)),
        3 => queue.clone().prop_map(Operation::Mark),
        1 => (queue.clone(), queue.clone()).prop_map(|(q, other)| Operation::Wait(q, other)),
        2 => (queue.clone(), prop_oneof![Just(Level::Deactivate), Just(Level::Interrupt)])
            .prop_map(|(q, level)| Operation::Preempt(q, level)),
        2 => queue.prop_map(Operation::Restore),
        4 => (0..3_000_000_u64).prop_map(|t| Operation::Pass(Nanos(t))),
    ]
}

fn corrupt_word() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..4_u64, Just(u64::MAX), (0..4_u64, 0..4_u64).prop_map(|(a, b)| a << 32 | b)]
}

/// A device together with the operations performed on it.
struct TestDevice {
    model: Box<Model>,
    queues: Vec<SlotId>,
    launched: Vec<Vec<Nanos>>,
    marked: Vec<u64>,
}

impl TestDevice {
    fn new(switch_cost: Nanos) -> Self {
        let mut model = new_model(&Config { switch_cost, ..plain() });
        let contexts: Vec<_> = (1..=BUSY_CONTEXTS).map(|n| model.attach(number(n), 1).unwrap()).collect();
        let queues = (0..BUSY_QUEUES).map(|i| model.open_queue(contexts[i % BUSY_CONTEXTS]).unwrap());
        let queues = queues.collect();
        Self { model, queues, launched: vec![Vec::new(); BUSY_QUEUES], marked: vec![0; BUSY_QUEUES] }
    }

    fn apply(&mut self, operation: &Operation) {
        let model = &mut self.model;
        match *operation {
            Operation::Run(q, length) => {
                model.push(self.queues[q], Work::Run(length)).unwrap();
                self.launched[q].push(length);
            }
            Operation::Mark(q) => {
                self.marked[q] += 1;
                model.push(self.queues[q], Work::Mark(self.marked[q])).unwrap();
            }
            Operation::Wait(q, other) => {
                let work = Work::Wait { queue: self.queues[other], marker: self.marked[other] };
                model.push(self.queues[q], work).unwrap();
            }
            Operation::Preempt(q, level) => {
                let _ = model.preempt(self.queues[q], level);
            }
            Operation::Restore(q) => {
                let _ = model.restore(self.queues[q]);
            }
            Operation::Pass(time) => model.advance(model.now() + time),
        }
    }

    fn apply_all(&mut self, operations: &[Operation]) {
        for operation in operations {
            self.apply(operation);
        }
    }

    fn finish(&mut self) {
        for queue in &self.queues {
            self.model.restore(*queue).unwrap();
        }
        self.model.advance(self.model.now() + LONGER_THAN_ALL_WORK);
    }

    fn busy(&self, q: usize) -> Nanos {
        self.model.queue_busy(self.queues[q]).unwrap()
    }
}

fn sum(lengths: &[Nanos]) -> Nanos {
    lengths.iter().fold(Nanos::ZERO, |sum, length| sum + *length)
}

proptest! {
    #[test]
    fn every_command_completes_exactly_once_and_in_order(
        operations in prop::collection::vec(operation(), 1..120),
        switch_cost in prop_oneof![Just(0), Just(100_000_u64)],
    ) {
        let mut device = TestDevice::new(Nanos(switch_cost));
        device.apply_all(&operations);
        device.finish();
        for (q, name) in device.queues.iter().enumerate() {
            let (head, tail) = device.model.positions(*name).unwrap();
            prop_assert_eq!(head, tail, "queue {} is not empty", q);
            prop_assert_eq!(device.model.marker(*name), Ok(device.marked[q]));
            prop_assert_eq!(device.busy(q), sum(&device.launched[q]));
            prop_assert_eq!(device.model.finished(*name), Ok(device.launched[q].len() as u64));

            // The spans of the timeline, added up per command, are the commands that were launched.
            let mut done = vec![Nanos::ZERO];
            for span in spans(&device.model).iter().filter(|span| span.queue == Some(name.index)) {
                *done.last_mut().unwrap() += span.end - span.start;
                if span.kind == SpanKind::Finished {
                    done.push(Nanos::ZERO);
                }
            }
            prop_assert_eq!(done.pop(), Some(Nanos::ZERO));
            let mut expected = device.launched[q].clone();
            expected.retain(|length| *length > Nanos::ZERO);
            prop_assert_eq!(done, expected);
        }
        let used = device.model.usage().iter().fold(Nanos::ZERO, |sum, usage| sum + usage.busy);
        prop_assert_eq!(used, sum(&device.launched.concat()));
    }

    #[test]
    fn spans_never_overlap(operations in prop::collection::vec(operation(), 1..120)) {
        let mut device = TestDevice::new(Nanos::from_micros(100));
        device.apply_all(&operations);
        device.finish();
        for pair in spans(&device.model).windows(2) {
            prop_assert!(pair[0].start < pair[0].end && pair[0].end <= pair[1].start, "{:?}", pair);
        }
    }

    #[test]
    fn timeline_does_not_depend_on_how_often_the_model_is_advanced(operations in prop::collection::vec(operation(), 1..80), step in 1..300_000_u64) {
        let [mut coarse, mut fine] = [(); 2].map(|()| TestDevice::new(Nanos::from_micros(100)));
        for operation in &operations {
            coarse.apply(operation);
            if let Operation::Pass(time) = *operation {
                for at in (0..time.0).step_by(usize::try_from(step).unwrap()) {
                    fine.model.advance(coarse.model.now() - time + Nanos(at));
                }
                fine.model.advance(coarse.model.now());
            } else {
                fine.apply(operation);
            }
        }
        coarse.finish();
        fine.finish();
        prop_assert_eq!(spans(&coarse.model), spans(&fine.model));
    }

    #[test]
    fn repair_of_a_consistent_model_changes_nothing(operations in prop::collection::vec(operation(), 1..80)) {
        let [mut unrepaired, mut repaired] = [(); 2].map(|()| TestDevice::new(Nanos::from_micros(100)));
        for operation in &operations {
            unrepaired.apply(operation);
            repaired.apply(operation);
            repaired.model.repair(repaired.model.now());
        }
        unrepaired.finish();
        repaired.finish();
        prop_assert_eq!(spans(&unrepaired.model), spans(&repaired.model));
        prop_assert_eq!(unrepaired.model.usage(), repaired.model.usage());
    }

    #[test]
    fn earliest_time_is_a_lower_bound(operations in prop::collection::vec(operation(), 1..80), q in 0..BUSY_QUEUES) {
        let mut device = TestDevice::new(Nanos::ZERO);
        device.apply_all(&operations);
        let name = device.queues[q];
        let (head, tail) = device.model.positions(name).unwrap();
        prop_assume!(head < tail);
        let earliest = device.model.earliest(name, tail);
        prop_assume!(earliest > device.model.now());
        device.model.advance(Nanos(earliest.min(device.model.now() + LONGER_THAN_ALL_WORK).0 - 1));
        prop_assert!(device.model.positions(name).unwrap().0 < tail);
    }

    #[test]
    fn usage_of_busy_processes_differs_by_at_most_one_time_slice(
        lengths in prop::collection::vec(prop::collection::vec(1_000..10_000_000_u64, 300), 2..4),
        steps in prop::collection::vec(1..5_000_000_u64, 1..50),
        switch_cost in prop_oneof![Just(0), Just(100_000_u64)],
    ) {
        let config = Config { switch_cost: Nanos(switch_cost), ..plain() };
        let mut model = new_model(&config);
        for (pid, lengths) in lengths.iter().enumerate() {
            let context = model.attach(number(pid + 1), 1).unwrap();
            let queue = model.open_queue(context).unwrap();
            for length in lengths {
                model.push(queue, Work::Run(Nanos(*length))).unwrap();
            }
        }
        for step in steps {
            model.advance(model.now() + Nanos(step));
            prop_assume!((0..lengths.len()).all(|context| model.context_has_work(number(context))));
            let busy: Vec<_> = model.usage().iter().map(|usage| usage.busy).collect();
            let difference = *busy.iter().max().unwrap() - *busy.iter().min().unwrap();
            prop_assert!(difference <= config.slice, "{:?}", busy);
        }
    }

    #[test]
    fn commands_of_a_process_complete_in_the_order_of_submission(
        launches in prop::collection::vec((0..4_usize, 1..3_000_000_u64), 1..60),
        other in 1..50_000_000_u64,
    ) {
        let mut model = new_model(&plain());
        let context = model.attach(1, 1).unwrap();
        let queues: Vec<_> = (0..4).map(|_| model.open_queue(context).unwrap()).collect();
        let competitor = model.attach(2, 1).unwrap();
        let competitor = model.open_queue(competitor).unwrap();
        model.push(competitor, Work::Run(Nanos(other))).unwrap();
        for (queue, length) in &launches {
            model.push(queues[*queue], Work::Run(Nanos(*length))).unwrap();
        }
        model.advance(LONGER_THAN_ALL_WORK);
        let finished = spans(&model).into_iter().filter(|span| span.context == 0 && span.kind == SpanKind::Finished);
        let order: Vec<_> = finished.map(|span| span.queue.unwrap()).collect();
        let expected: Vec<_> = launches.iter().map(|(queue, _)| queues[*queue].index).collect();
        prop_assert_eq!(order, expected);
    }

    #[test]
    fn corrupt_memory_causes_neither_panic_nor_hang(
        operations in prop::collection::vec(operation(), 1..60),
        corruption in prop::collection::vec((any::<prop::sample::Index>(), corrupt_word()), 1..400),
        is_repaired: bool,
    ) {
        let mut device = TestDevice::new(Nanos::from_micros(100));
        let (before, after) = operations.split_at(operations.len() / 2);
        device.apply_all(before);
        let mut now = device.model.now();
        overwrite(&mut device.model, &corruption);
        // A time ahead of the clock is detected and repaired even if no process died.
        if is_repaired || device.model.now() > now {
            device.model.repair(now);
        }
        for operation in after {
            let model = &mut device.model;
            let push = |model: &mut Model, q: usize, work| {
                let _ = model.push(device.queues[q], work);
            };
            match *operation {
                Operation::Run(q, length) => push(model, q, Work::Run(length)),
                Operation::Mark(q) => push(model, q, Work::Mark(1)),
                Operation::Wait(q, other) => push(model, q, Work::Wait { queue: device.queues[other], marker: 1 }),
                Operation::Preempt(q, level) => {
                    let _ = model.preempt(device.queues[q], level);
                }
                Operation::Restore(q) => {
                    let _ = model.restore(device.queues[q]);
                }
                Operation::Pass(time) => {
                    now += time;
                    model.advance(now);
                }
            }
            let model = &device.model;
            let _ = (model.next_event(), model.earliest(device.queues[0], u64::MAX / 3), model.usage(), spans(model));
        }
        (0..number(MAX_CONTEXTS)).for_each(|context| device.model.remove_context(context));
    }
}

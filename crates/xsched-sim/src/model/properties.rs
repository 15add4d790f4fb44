//! What holds whatever is submitted, stopped and restored in whatever order, in virtual time.

use proptest::prelude::*;
use xsched_core::{Level, Nanos};

use super::tests::{plain, spans};
use super::*;
use crate::segment::tests::{new_model, overwrite};

/// Contexts and queues of the devices tried: queue `i` belongs to context `i % 3`.
const BUSY_CONTEXTS: usize = 3;
const BUSY_QUEUES: usize = 6;
/// Longer than everything that is submitted, with all its slices, takes.
const LONG: Nanos = Nanos::from_secs(100);

#[derive(Clone, Debug)]
enum Deed {
    Run(usize, Nanos),
    Mark(usize),
    /// The first queue waits for what the second has marked last.
    Wait(usize, usize),
    Preempt(usize, Level),
    Restore(usize),
    Pass(Nanos),
}

fn deed() -> impl Strategy<Value = Deed> {
    let queue = 0..BUSY_QUEUES;
    let length = prop_oneof![Just(0), 1..5_000_000_u64].prop_map(Nanos);
    prop_oneof![
        4 => (queue.clone(), length).prop_map(|(q, length)| Deed::Run(q, length)),
        3 => queue.clone().prop_map(Deed::Mark),
        1 => (queue.clone(), queue.clone()).prop_map(|(q, other)| Deed::Wait(q, other)),
        2 => (queue.clone(), prop_oneof![Just(Level::Deactivate), Just(Level::Interrupt)])
            .prop_map(|(q, level)| Deed::Preempt(q, level)),
        2 => queue.prop_map(Deed::Restore),
        4 => (0..3_000_000_u64).prop_map(|t| Deed::Pass(Nanos(t))),
    ]
}

fn rubbish_word() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..4_u64, Just(u64::MAX), (0..4_u64, 0..4_u64).prop_map(|(a, b)| a << 32 | b)]
}

/// A device together with what was asked of it.
struct Trial {
    model: Box<Model>,
    queues: Vec<Name>,
    launched: Vec<Vec<Nanos>>,
    marked: Vec<u64>,
}

impl Trial {
    fn new(switch_cost: Nanos) -> Self {
        let mut model = new_model(&Config { switch_cost, ..plain() });
        let contexts: Vec<_> = (1..=BUSY_CONTEXTS).map(|n| model.attach(number(n), 1).unwrap()).collect();
        let queues = (0..BUSY_QUEUES).map(|i| model.open_queue(contexts[i % BUSY_CONTEXTS]).unwrap());
        let queues = queues.collect();
        Self { model, queues, launched: vec![Vec::new(); BUSY_QUEUES], marked: vec![0; BUSY_QUEUES] }
    }

    fn act(&mut self, deed: &Deed) {
        let model = &mut self.model;
        match *deed {
            Deed::Run(q, length) => {
                model.push(self.queues[q], Work::Run(length)).unwrap();
                self.launched[q].push(length);
            }
            Deed::Mark(q) => {
                self.marked[q] += 1;
                model.push(self.queues[q], Work::Mark(self.marked[q])).unwrap();
            }
            Deed::Wait(q, other) => {
                let work = Work::Wait { queue: self.queues[other], marker: self.marked[other] };
                model.push(self.queues[q], work).unwrap();
            }
            Deed::Preempt(q, level) => {
                let _ = model.preempt(self.queues[q], level);
            }
            Deed::Restore(q) => {
                let _ = model.restore(self.queues[q]);
            }
            Deed::Pass(time) => model.advance(model.now() + time),
        }
    }

    fn act_all(&mut self, deeds: &[Deed]) {
        for deed in deeds {
            self.act(deed);
        }
    }

    fn finish(&mut self) {
        for queue in &self.queues {
            self.model.restore(*queue).unwrap();
        }
        self.model.advance(self.model.now() + LONG);
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
        deeds in prop::collection::vec(deed(), 1..120),
        switch_cost in prop_oneof![Just(0), Just(100_000_u64)],
    ) {
        let mut trial = Trial::new(Nanos(switch_cost));
        trial.act_all(&deeds);
        trial.finish();
        for (q, name) in trial.queues.iter().enumerate() {
            let (head, tail) = trial.model.positions(*name).unwrap();
            prop_assert_eq!(head, tail, "queue {} has not run dry", q);
            prop_assert_eq!(trial.model.marker(*name), Ok(trial.marked[q]));
            prop_assert_eq!(trial.busy(q), sum(&trial.launched[q]));
            prop_assert_eq!(trial.model.finished(*name), Ok(trial.launched[q].len() as u64));

            // The pieces of the timeline, put together, are the commands that were launched.
            let mut done = vec![Nanos::ZERO];
            for span in spans(&trial.model).iter().filter(|span| span.queue == Some(name.index)) {
                *done.last_mut().unwrap() += span.end - span.start;
                if span.kind == SpanKind::Finished {
                    done.push(Nanos::ZERO);
                }
            }
            prop_assert_eq!(done.pop(), Some(Nanos::ZERO));
            let mut expected = trial.launched[q].clone();
            expected.retain(|length| *length > Nanos::ZERO);
            prop_assert_eq!(done, expected);
        }
        let used = trial.model.usage().iter().fold(Nanos::ZERO, |sum, usage| sum + usage.busy);
        prop_assert_eq!(used, sum(&trial.launched.concat()));
    }

    #[test]
    fn one_thing_happens_at_a_time(deeds in prop::collection::vec(deed(), 1..120)) {
        let mut trial = Trial::new(Nanos::from_micros(100));
        trial.act_all(&deeds);
        trial.finish();
        for pair in spans(&trial.model).windows(2) {
            prop_assert!(pair[0].start < pair[0].end && pair[0].end <= pair[1].start, "{:?}", pair);
        }
    }

    #[test]
    fn it_does_not_matter_how_often_one_looks(deeds in prop::collection::vec(deed(), 1..80), step in 1..300_000_u64) {
        let [mut seldom, mut often] = [(); 2].map(|()| Trial::new(Nanos::from_micros(100)));
        for deed in &deeds {
            seldom.act(deed);
            if let Deed::Pass(time) = *deed {
                for at in (0..time.0).step_by(usize::try_from(step).unwrap()) {
                    often.model.advance(seldom.model.now() - time + Nanos(at));
                }
                often.model.advance(seldom.model.now());
            } else {
                often.act(deed);
            }
        }
        seldom.finish();
        often.finish();
        prop_assert_eq!(spans(&seldom.model), spans(&often.model));
    }

    #[test]
    fn a_repair_of_what_is_whole_changes_nothing(deeds in prop::collection::vec(deed(), 1..80)) {
        let [mut left_alone, mut repaired] = [(); 2].map(|()| Trial::new(Nanos::from_micros(100)));
        for deed in &deeds {
            left_alone.act(deed);
            repaired.act(deed);
            repaired.model.repair(repaired.model.now());
        }
        left_alone.finish();
        repaired.finish();
        prop_assert_eq!(spans(&left_alone.model), spans(&repaired.model));
        prop_assert_eq!(left_alone.model.usage(), repaired.model.usage());
    }

    #[test]
    fn the_earliest_time_is_never_too_late(deeds in prop::collection::vec(deed(), 1..80), q in 0..BUSY_QUEUES) {
        let mut trial = Trial::new(Nanos::ZERO);
        trial.act_all(&deeds);
        let name = trial.queues[q];
        let (head, tail) = trial.model.positions(name).unwrap();
        prop_assume!(head < tail);
        let earliest = trial.model.earliest(name, tail);
        prop_assume!(earliest > trial.model.now());
        trial.model.advance(Nanos(earliest.min(trial.model.now() + LONG).0 - 1));
        prop_assert!(trial.model.positions(name).unwrap().0 < tail);
    }

    #[test]
    fn processes_that_always_want_the_device_differ_by_a_slice_at_most(
        lengths in prop::collection::vec(prop::collection::vec(1_000..10_000_000_u64, 300), 2..4),
        looks in prop::collection::vec(1..5_000_000_u64, 1..50),
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
        for look in looks {
            model.advance(model.now() + Nanos(look));
            prop_assume!((0..lengths.len()).all(|context| model.set_has_work(number(context))));
            let busy: Vec<_> = model.usage().iter().map(|usage| usage.busy).collect();
            let difference = *busy.iter().max().unwrap() - *busy.iter().min().unwrap();
            prop_assert!(difference <= config.slice, "{:?}", busy);
        }
    }

    #[test]
    fn within_a_process_commands_finish_in_the_order_of_submission(
        launches in prop::collection::vec((0..4_usize, 1..3_000_000_u64), 1..60),
        other in 1..50_000_000_u64,
    ) {
        let mut model = new_model(&plain());
        let context = model.attach(1, 1).unwrap();
        let queues: Vec<_> = (0..4).map(|_| model.open_queue(context).unwrap()).collect();
        let rival = model.attach(2, 1).unwrap();
        let rival = model.open_queue(rival).unwrap();
        model.push(rival, Work::Run(Nanos(other))).unwrap();
        for (queue, length) in &launches {
            model.push(queues[*queue], Work::Run(Nanos(*length))).unwrap();
        }
        model.advance(LONG);
        let finished = spans(&model).into_iter().filter(|span| span.context == 0 && span.kind == SpanKind::Finished);
        let order: Vec<_> = finished.map(|span| span.queue.unwrap()).collect();
        let expected: Vec<_> = launches.iter().map(|(queue, _)| queues[*queue].index).collect();
        prop_assert_eq!(order, expected);
    }

    #[test]
    fn rubbish_neither_panics_nor_hangs(
        deeds in prop::collection::vec(deed(), 1..60),
        rubbish in prop::collection::vec((any::<prop::sample::Index>(), rubbish_word()), 1..400),
        is_repaired: bool,
    ) {
        let mut trial = Trial::new(Nanos::from_micros(100));
        let (before, after) = deeds.split_at(deeds.len() / 2);
        trial.act_all(before);
        let mut now = trial.model.now();
        overwrite(&mut trial.model, &rubbish);
        // A time ahead of the clock is noticed and repaired whether or not anybody died.
        if is_repaired || trial.model.now() > now {
            trial.model.repair(now);
        }
        for deed in after {
            let model = &mut trial.model;
            let push = |model: &mut Model, q: usize, work| {
                let _ = model.push(trial.queues[q], work);
            };
            match *deed {
                Deed::Run(q, length) => push(model, q, Work::Run(length)),
                Deed::Mark(q) => push(model, q, Work::Mark(1)),
                Deed::Wait(q, other) => push(model, q, Work::Wait { queue: trial.queues[other], marker: 1 }),
                Deed::Preempt(q, level) => {
                    let _ = model.preempt(trial.queues[q], level);
                }
                Deed::Restore(q) => {
                    let _ = model.restore(trial.queues[q]);
                }
                Deed::Pass(time) => {
                    now += time;
                    model.advance(now);
                }
            }
            let model = &trial.model;
            let _ = (model.next_event(), model.earliest(trial.queues[0], u64::MAX / 3), model.usage(), spans(model));
        }
        (0..number(CONTEXTS)).for_each(|context| trial.model.remove_context(context));
    }
}

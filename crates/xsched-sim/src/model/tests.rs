//! The rules of the model one by one, in virtual time.

use xsched_core::{Level, LevelCost, Nanos};

use super::*;
use crate::segment::tests::new_model;

const MS: u64 = 1_000_000;

fn ms(n: u64) -> Nanos {
    Nanos::from_millis(n)
}

fn us(n: u64) -> Nanos {
    Nanos::from_micros(n)
}

/// No switch cost; level 2 costs 10 us each way, level 3 costs 100 us and 50 us.
pub(super) fn plain() -> Config {
    Config {
        switch_cost: Nanos::ZERO,
        deactivate: Some(LevelCost { preempt: us(10), restore: us(10) }),
        interrupt: Some(LevelCost { preempt: us(100), restore: us(50) }),
        ..Config::default()
    }
}

/// A device with one queue in each of `count` contexts.
fn device(config: &Config, count: u32) -> (Box<Model>, Vec<SlotId>) {
    let mut model = new_model(config);
    let queues = (0..count)
        .map(|pid| {
            let context = model.attach(pid + 1, 1).unwrap();
            model.open_queue(context).unwrap()
        })
        .collect();
    (model, queues)
}

fn run(model: &mut Model, queue: SlotId, length: Nanos) {
    model.push(queue, Work::Run(length)).unwrap();
}

fn mark(model: &mut Model, queue: SlotId, marker: u64) {
    model.push(queue, Work::Mark(marker)).unwrap();
}

/// The last marker of a queue and its time.
fn report(model: &Model, queue: SlotId) -> (u64, Nanos) {
    (model.queue(queue.index).marker, model.queue(queue.index).marker_at)
}

pub(super) fn spans(model: &Model) -> Vec<Span> {
    let mut spans = Vec::new();
    model.log().read_since(0, &mut spans);
    spans
}

#[test]
fn marker_completes_exactly_when_the_work_before_it_does() {
    let (mut model, queues) = device(&plain(), 1);
    model.advance(ms(1));
    run(&mut model, queues[0], ms(3));
    run(&mut model, queues[0], ms(2));
    mark(&mut model, queues[0], 1);
    model.advance(ms(6) - Nanos(1));
    assert_eq!(report(&model, queues[0]).0, 0);
    model.advance(ms(500));
    assert_eq!(report(&model, queues[0]), (1, ms(6)));
}

#[test]
fn marker_on_an_empty_queue_completes_at_once() {
    let (mut model, queues) = device(&plain(), 1);
    model.advance(ms(7));
    mark(&mut model, queues[0], 1);
    assert_eq!(report(&model, queues[0]), (1, ms(7)));
}

#[test]
fn oldest_command_of_a_context_runs_first() {
    let mut model = new_model(&plain());
    let context = model.attach(1, 1).unwrap();
    let [a, b] = [(); 2].map(|()| model.open_queue(context).unwrap());
    for queue in [a, b, b, a] {
        run(&mut model, queue, ms(1));
    }
    model.advance(ms(10));
    let order: Vec<_> = spans(&model).iter().map(|span| span.queue.unwrap()).collect();
    assert_eq!(order, [a.index, b.index, b.index, a.index]);
}

#[test]
fn contexts_alternate_in_time_slices_and_pay_for_each_switch() {
    let config = Config { switch_cost: us(100), slice: ms(2), ..plain() };
    let (mut model, queues) = device(&config, 2);
    run(&mut model, queues[0], ms(3));
    run(&mut model, queues[1], ms(3));
    model.advance(ms(20));
    let kinds: Vec<_> =
        spans(&model).iter().map(|span| (span.context, span.kind, span.end - span.start)).collect();
    assert_eq!(
        kinds,
        [
            (0, SpanKind::Sliced, ms(2)),
            (1, SpanKind::Switch, us(100)),
            (1, SpanKind::Sliced, ms(2)),
            (0, SpanKind::Switch, us(100)),
            (0, SpanKind::Finished, ms(1)),
            (1, SpanKind::Switch, us(100)),
            (1, SpanKind::Finished, ms(1)),
        ]
    );
}

#[test]
fn newcomer_waits_for_the_end_of_the_running_time_slice() {
    let (mut model, queues) = device(&plain(), 2);
    run(&mut model, queues[0], ms(100));
    model.advance(ms(31));
    run(&mut model, queues[1], ms(1));
    mark(&mut model, queues[1], 1);
    model.advance(ms(50));
    assert_eq!(report(&model, queues[1]), (1, ms(33)));
}

#[test]
fn started_command_completes_before_an_older_one_that_was_stopped() {
    let (mut model, queues) = device(&plain(), 2);
    let context = SlotId { index: 0, generation: model.contexts[0].generation };
    let held = queues[0];
    let started = model.open_queue(context).unwrap();
    model.preempt(held, Level::Deactivate).unwrap();
    model.advance(ms(1));
    run(&mut model, held, ms(1));
    run(&mut model, started, ms(3));
    run(&mut model, queues[1], ms(2));
    model.restore(held).unwrap();
    model.advance(ms(20));
    let order: Vec<_> = spans(&model).iter().map(|span| span.queue.unwrap()).collect();
    assert_eq!(order, [started.index, queues[1].index, started.index, held.index]);
}

#[test]
fn interrupted_command_resumes_where_it_was_stopped() {
    let (mut model, queues) = device(&plain(), 1);
    let queue = queues[0];
    run(&mut model, queue, ms(10));
    mark(&mut model, queue, 1);
    model.advance(ms(2));
    assert_eq!(model.preempt(queue, Level::Interrupt), Ok(ms(2) + us(100)));
    model.advance(ms(50));
    assert_eq!(model.queue_busy(queue), Ok(ms(2) + us(100)));
    assert_eq!(model.restore(queue), Ok(ms(50) + us(50)));
    model.advance(ms(100));
    // 7.9 ms were left.
    assert_eq!(report(&model, queue), (1, ms(50) + us(50) + us(7_900)));
    assert_eq!(model.queue_busy(queue), Ok(ms(10)));
}

#[test]
fn deactivated_queue_completes_only_its_running_command() {
    let (mut model, queues) = device(&plain(), 2);
    let queue = queues[0];
    for marker in 1..=3 {
        run(&mut model, queue, ms(5));
        mark(&mut model, queue, marker);
    }
    // Time slices of another context divide the command meanwhile; it must still count as started.
    run(&mut model, queues[1], ms(20));
    model.advance(ms(1));
    assert_eq!(model.preempt(queue, Level::Deactivate), Ok(ms(1) + us(10)));
    model.advance(ms(100));
    assert_eq!(report(&model, queue).0, 1);
    assert_eq!(model.queue_busy(queue), Ok(ms(5)));
    model.restore(queue).unwrap();
    model.advance(ms(200));
    assert_eq!(report(&model, queue), (3, ms(110) + us(10)));
}

#[test]
fn command_that_starts_before_deactivation_takes_effect_completes() {
    let (mut model, queues) = device(&plain(), 1);
    run(&mut model, queues[0], us(5));
    run(&mut model, queues[0], us(20));
    run(&mut model, queues[0], us(20));
    model.preempt(queues[0], Level::Deactivate).unwrap();
    model.advance(ms(1));
    assert_eq!(model.queue_busy(queues[0]), Ok(us(25)));
}

#[test]
fn preempt_and_restore_may_be_repeated() {
    let (mut model, queues) = device(&plain(), 1);
    let queue = queues[0];
    run(&mut model, queue, ms(10));
    let effect = model.preempt(queue, Level::Interrupt).unwrap();
    model.advance(us(30));
    assert_eq!(
        model.preempt(queue, Level::Interrupt),
        Ok(effect),
        "a repeated request does not postpone the effect"
    );
    assert_eq!(model.preempt(queue, Level::Deactivate), Ok(effect));
    model.advance(ms(1));
    assert_eq!(model.preempt(queue, Level::Deactivate), Ok(ms(1)), "it is stopped at a higher level already");
    let resumes = model.restore(queue).unwrap();
    model.advance(ms(1) + us(20));
    assert_eq!(model.restore(queue), Ok(resumes));
    model.advance(ms(2));
    assert_eq!(model.restore(queue), Ok(ms(2)));
    model.advance(ms(20));
    assert_eq!(model.queue_busy(queue), Ok(ms(10)));
}

#[test]
fn preempt_cancels_a_pending_restore() {
    let (mut model, queues) = device(&plain(), 1);
    run(&mut model, queues[0], ms(10));
    model.preempt(queues[0], Level::Interrupt).unwrap();
    model.advance(ms(1));
    model.restore(queues[0]).unwrap();
    assert_eq!(model.preempt(queues[0], Level::Interrupt), Ok(ms(1)));
    model.advance(ms(100));
    assert_eq!(model.queue_busy(queues[0]), Ok(us(100)));
}

#[test]
fn two_queues_that_wait_for_each_other_alternately_both_complete() {
    let mut model = new_model(&plain());
    let context = model.attach(1, 1).unwrap();
    let [a, b] = [(); 2].map(|()| model.open_queue(context).unwrap());
    for round in 1..=200 {
        run(&mut model, a, us(10));
        mark(&mut model, a, round);
        model.push(b, Work::Wait { queue: a, marker: round }).unwrap();
        run(&mut model, b, us(5));
        mark(&mut model, b, round);
        model.push(a, Work::Wait { queue: b, marker: round }).unwrap();
    }
    model.advance(ms(100));
    assert_eq!(report(&model, a), (200, us(15 * 199 + 10)));
    assert_eq!(report(&model, b), (200, us(15 * 200)));
}

#[test]
fn queue_that_waits_for_a_removed_queue_resumes() {
    let (mut model, queues) = device(&plain(), 2);
    run(&mut model, queues[0], ms(50));
    mark(&mut model, queues[0], 1);
    model.push(queues[1], Work::Wait { queue: queues[0], marker: 1 }).unwrap();
    run(&mut model, queues[1], ms(1));
    mark(&mut model, queues[1], 1);
    model.advance(ms(5));
    model.remove_context(0);
    assert_eq!(model.push(queues[0], Work::Mark(2)), Err(QueueError::Removed));
    model.advance(ms(9));
    assert_eq!(report(&model, queues[1]), (1, ms(6)));
    let usage = model.usage();
    assert_eq!((usage[0].busy, usage[0].attached), (ms(5), false));
    assert_eq!((usage[1].busy, usage[1].attached), (ms(1), true));
}

#[test]
fn slot_of_a_closed_queue_is_reused_with_a_new_id_once_it_is_empty() {
    let (mut model, queues) = device(&plain(), 1);
    run(&mut model, queues[0], ms(3));
    model.preempt(queues[0], Level::Interrupt).unwrap();
    model.advance(ms(1));
    model.close_queue(queues[0]).unwrap();
    model.advance(ms(10));
    assert_eq!(model.usage()[0].busy, ms(3));
    let context = SlotId { index: 0, generation: model.contexts[0].generation };
    let again = model.open_queue(context).unwrap();
    assert_eq!(again.index, queues[0].index);
    assert_ne!(again, queues[0]);
    assert_eq!(model.close_queue(queues[0]), Err(QueueError::Removed));
}

#[test]
fn full_queue_rejects_commands_but_accepts_a_marker() {
    let (mut model, queues) = device(&plain(), 1);
    for _ in 0..QUEUE_CAPACITY - 1 {
        run(&mut model, queues[0], ms(1));
    }
    assert_eq!(model.push(queues[0], Work::Run(ms(1))), Err(QueueError::Full));
    mark(&mut model, queues[0], 1);
    mark(&mut model, queues[0], 2);
    let room = model.earliest(queues[0], 1);
    model.advance(room);
    assert_eq!(model.push(queues[0], Work::Run(ms(1))), Err(QueueError::Full), "the marker takes one entry");
    model.advance(ms(2));
    run(&mut model, queues[0], ms(1));
    model.advance(ms(2000));
    assert_eq!(report(&model, queues[0]), (2, Nanos((QUEUE_CAPACITY - 1) * MS)));
}

#[test]
fn earliest_time_is_exact_without_contention_and_unknown_while_stopped() {
    let (mut model, queues) = device(&plain(), 1);
    run(&mut model, queues[0], ms(3));
    run(&mut model, queues[0], ms(2));
    mark(&mut model, queues[0], 1);
    model.advance(ms(1));
    let place = model.position_of(queues[0], 1).unwrap();
    assert_eq!(model.earliest(queues[0], place), ms(5));
    assert_eq!(model.position_of(queues[0], 2), None);
    model.preempt(queues[0], Level::Deactivate).unwrap();
    model.advance(ms(2));
    assert_eq!(model.earliest(queues[0], place), Nanos::MAX);
    assert_eq!(model.earliest(queues[0], 1), ms(3), "the command that has started will complete");
    model.restore(queues[0]).unwrap();
    assert_eq!(model.earliest(queues[0], place), ms(5));
}

#[test]
fn attaching_and_opening_fail_when_the_tables_are_full() {
    let mut model = new_model(&plain());
    let contexts: Vec<_> = std::iter::from_fn(|| model.attach(1, 1)).collect();
    assert_eq!(contexts.len(), MAX_CONTEXTS);
    assert_eq!(std::iter::from_fn(|| model.open_queue(contexts[5])).count(), MAX_QUEUES);
    model.remove_context(5);
    assert_eq!(model.open_queue(contexts[5]), None);
    assert!(model.open_queue(contexts[6]).is_some());
    assert_eq!(model.attach(2, 1).map(|name| name.index), Some(5));
}

#[test]
fn overflowing_log_keeps_the_newest_spans_and_counts_the_lost_ones() {
    let (mut model, queues) = device(&plain(), 1);
    let launched = log::LOG_CAPACITY + 1000;
    for _ in 0..launched {
        run(&mut model, queues[0], us(1));
        model.advance(model.now() + us(1));
    }
    let mut spans = Vec::new();
    assert_eq!(model.log().read_since(0, &mut spans), (launched, 1000));
    assert_eq!(spans.len() as u64, log::LOG_CAPACITY);
    assert_eq!(spans.last().unwrap().end, us(launched));
}

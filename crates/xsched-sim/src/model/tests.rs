//! Each rule of the model by itself, in virtual time.

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
fn device(config: &Config, count: u32) -> (Box<Model>, Vec<Name>) {
    let mut model = new_model(config);
    let queues = (0..count)
        .map(|pid| {
            let context = model.attach(pid + 1, 1).unwrap();
            model.open_queue(context).unwrap()
        })
        .collect();
    (model, queues)
}

fn run(model: &mut Model, queue: Name, length: Nanos) {
    model.push(queue, Work::Run(length)).unwrap();
}

fn mark(model: &mut Model, queue: Name, marker: u64) {
    model.push(queue, Work::Mark(marker)).unwrap();
}

/// The last marker of a queue and its time.
fn report(model: &Model, queue: Name) -> (u64, Nanos) {
    (model.queue(queue.index).marker, model.queue(queue.index).marker_at)
}

pub(super) fn spans(model: &Model) -> Vec<Span> {
    let mut spans = Vec::new();
    model.log().read_since(0, &mut spans);
    spans
}

#[test]
fn a_marker_completes_with_what_was_launched_before_it_at_the_exact_time() {
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
fn a_marker_on_an_empty_queue_completes_at_once() {
    let (mut model, queues) = device(&plain(), 1);
    model.advance(ms(7));
    mark(&mut model, queues[0], 1);
    assert_eq!(report(&model, queues[0]), (1, ms(7)));
}

#[test]
fn within_a_context_the_oldest_command_goes_first() {
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
fn contexts_take_turns_of_one_slice_and_pay_for_the_change() {
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
fn who_comes_while_another_runs_alone_waits_for_the_end_of_its_slice() {
    let (mut model, queues) = device(&plain(), 2);
    run(&mut model, queues[0], ms(100));
    model.advance(ms(31));
    run(&mut model, queues[1], ms(1));
    mark(&mut model, queues[1], 1);
    model.advance(ms(50));
    assert_eq!(report(&model, queues[1]), (1, ms(33)));
}

#[test]
fn what_has_begun_is_finished_before_an_older_command_that_was_held_back() {
    let (mut model, queues) = device(&plain(), 2);
    let context = Name { index: 0, life: model.contexts[0].life };
    let held = queues[0];
    let begun = model.open_queue(context).unwrap();
    model.preempt(held, Level::Deactivate).unwrap();
    model.advance(ms(1));
    run(&mut model, held, ms(1));
    run(&mut model, begun, ms(3));
    run(&mut model, queues[1], ms(2));
    model.restore(held).unwrap();
    model.advance(ms(20));
    let order: Vec<_> = spans(&model).iter().map(|span| span.queue.unwrap()).collect();
    assert_eq!(order, [begun.index, queues[1].index, begun.index, held.index]);
}

#[test]
fn interrupt_freezes_the_running_command_after_its_cost_and_restore_goes_on_exactly_there() {
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
fn deactivate_lets_only_the_running_command_finish() {
    let (mut model, queues) = device(&plain(), 2);
    let queue = queues[0];
    for marker in 1..=3 {
        run(&mut model, queue, ms(5));
        mark(&mut model, queue, marker);
    }
    // Another context cuts it into slices meanwhile, which must not make it count as not begun.
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
fn a_command_that_begins_before_deactivation_takes_effect_finishes() {
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
    assert_eq!(model.preempt(queue, Level::Interrupt), Ok(effect), "a repeated request is not a later one");
    assert_eq!(model.preempt(queue, Level::Deactivate), Ok(effect));
    model.advance(ms(1));
    assert_eq!(model.preempt(queue, Level::Deactivate), Ok(ms(1)), "it is stopped deeper already");
    let resumes = model.restore(queue).unwrap();
    model.advance(ms(1) + us(20));
    assert_eq!(model.restore(queue), Ok(resumes));
    model.advance(ms(2));
    assert_eq!(model.restore(queue), Ok(ms(2)));
    model.advance(ms(20));
    assert_eq!(model.queue_busy(queue), Ok(ms(10)));
}

#[test]
fn a_restore_under_way_is_called_off_by_a_preempt() {
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
fn two_queues_that_wait_for_each_other_in_turn_both_finish() {
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
fn a_queue_that_waits_for_a_removed_one_goes_on() {
    let (mut model, queues) = device(&plain(), 2);
    run(&mut model, queues[0], ms(50));
    mark(&mut model, queues[0], 1);
    model.push(queues[1], Work::Wait { queue: queues[0], marker: 1 }).unwrap();
    run(&mut model, queues[1], ms(1));
    mark(&mut model, queues[1], 1);
    model.advance(ms(5));
    model.remove_context(0);
    assert_eq!(model.push(queues[0], Work::Mark(2)), Err(Refusal::Gone));
    model.advance(ms(9));
    assert_eq!(report(&model, queues[1]), (1, ms(6)));
    let usage = model.usage();
    assert_eq!((usage[0].busy, usage[0].attached), (ms(5), false));
    assert_eq!((usage[1].busy, usage[1].attached), (ms(1), true));
}

#[test]
fn a_closed_queue_runs_dry_and_its_place_is_used_again_under_another_name() {
    let (mut model, queues) = device(&plain(), 1);
    run(&mut model, queues[0], ms(3));
    model.preempt(queues[0], Level::Interrupt).unwrap();
    model.advance(ms(1));
    model.close_queue(queues[0]).unwrap();
    model.advance(ms(10));
    assert_eq!(model.usage()[0].busy, ms(3));
    let context = Name { index: 0, life: model.contexts[0].life };
    let again = model.open_queue(context).unwrap();
    assert_eq!(again.index, queues[0].index);
    assert_ne!(again, queues[0]);
    assert_eq!(model.close_queue(queues[0]), Err(Refusal::Gone));
}

#[test]
fn a_full_queue_takes_no_more_commands_but_always_a_marker() {
    let (mut model, queues) = device(&plain(), 1);
    for _ in 0..RING - 1 {
        run(&mut model, queues[0], ms(1));
    }
    assert_eq!(model.push(queues[0], Work::Run(ms(1))), Err(Refusal::Full));
    mark(&mut model, queues[0], 1);
    mark(&mut model, queues[0], 2);
    let room = model.earliest(queues[0], 1);
    model.advance(room);
    assert_eq!(model.push(queues[0], Work::Run(ms(1))), Err(Refusal::Full), "the marker took a place");
    model.advance(ms(2));
    run(&mut model, queues[0], ms(1));
    model.advance(ms(2000));
    assert_eq!(report(&model, queues[0]), (2, Nanos((RING - 1) * MS)));
}

#[test]
fn the_earliest_time_is_exact_for_who_is_alone_and_unknown_for_who_is_stopped() {
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
    assert_eq!(model.earliest(queues[0], 1), ms(3), "the command that has begun will finish");
    model.restore(queues[0]).unwrap();
    assert_eq!(model.earliest(queues[0], place), ms(5));
}

#[test]
fn tables_that_are_full_say_so() {
    let mut model = new_model(&plain());
    let contexts: Vec<_> = std::iter::from_fn(|| model.attach(1, 1)).collect();
    assert_eq!(contexts.len(), CONTEXTS);
    assert_eq!(std::iter::from_fn(|| model.open_queue(contexts[5])).count(), QUEUES);
    model.remove_context(5);
    assert_eq!(model.open_queue(contexts[5]), None);
    assert!(model.open_queue(contexts[6]).is_some());
    assert_eq!(model.attach(2, 1).map(|name| name.index), Some(5));
}

#[test]
fn a_log_that_overflows_keeps_the_newest_and_counts_the_rest() {
    let (mut model, queues) = device(&plain(), 1);
    let launched = log::LOG + 1000;
    for _ in 0..launched {
        run(&mut model, queues[0], us(1));
        model.advance(model.now() + us(1));
    }
    let mut spans = Vec::new();
    assert_eq!(model.log().read_since(0, &mut spans), (launched, 1000));
    assert_eq!(spans.len() as u64, log::LOG);
    assert_eq!(spans.last().unwrap().end, us(launched));
}

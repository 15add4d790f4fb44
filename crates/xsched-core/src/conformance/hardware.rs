//! Checks of the hardware queue alone.

use std::time::Duration;

use super::{Random, Subject, eventually};
use crate::{HwQueue, Level, Marker};

const SHORT_COMMAND: Duration = Duration::from_micros(300);
/// Long enough that a preemption finds it running, even on a loaded machine.
const LONG_COMMAND: Duration = Duration::from_millis(400);
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(30);

/// A marker completes after everything launched before it, and progress never decreases.
pub fn markers_follow_the_work_before_them<S: Subject>(subject: &S) {
    let (queue, mut random) = (subject.queue(), Random::new(1));
    let mut launched = 0;
    let mut launched_before: Vec<(Marker, u64)> = Vec::new();
    let mut reported = 0;
    let mut check = |launched_before: &[(Marker, u64)]| {
        let marker = queue.progress().marker;
        assert!(marker >= reported, "progress decreased from {reported} to {marker}");
        reported = marker;
        let covered = launched_before.iter().rev().find(|(number, _)| *number <= marker);
        let due = covered.map_or(0, |(_, launched)| *launched);
        let finished = subject.finished(&queue);
        assert!(finished >= due, "marker {marker} reported with {finished} of {due} commands finished");
        marker
    };
    let mut last = 0;
    for _ in 0..60 {
        for _ in 0..random.below(4) {
            subject.launch(&queue, SHORT_COMMAND);
            launched += 1;
        }
        let marker = queue.mark().unwrap();
        assert!(marker > last, "marker {marker} was placed after {last}");
        last = marker;
        launched_before.push((marker, launched));
        check(&launched_before);
    }
    eventually("the last marker", || check(&launched_before) == last);
    assert_eq!(subject.finished(&queue), launched);
}

/// `wait` returns false after the time-out and true once the marker has completed.
pub fn waiting_ends_with_the_marker_or_the_timeout<S: Subject>(subject: &S) {
    let queue = subject.queue();
    subject.launch(&queue, LONG_COMMAND);
    let marker = queue.mark().unwrap();
    let early = queue.wait(marker, Duration::from_micros(1)).unwrap();
    assert!(!early || subject.finished(&queue) == 1, "the marker completed before its command");
    assert!(queue.wait(marker, COMPLETION_TIMEOUT).unwrap());
    assert!(queue.wait(marker, Duration::ZERO).unwrap(), "a completed marker stays completed");
    assert_eq!(subject.finished(&queue), 1);
}

/// `synchronize` returns after everything launched before has completed.
pub fn synchronize_covers_everything_launched<S: Subject>(subject: &S) {
    let queue = subject.queue();
    for round in 1..=5 {
        for _ in 0..7 {
            subject.launch(&queue, SHORT_COMMAND);
        }
        queue.synchronize().unwrap();
        assert_eq!(subject.finished(&queue), round * 7);
    }
}

/// The markers of two queues are independent.
pub fn queues_do_not_share_markers<S: Subject>(subject: &S) {
    let (first, second) = (subject.queue(), subject.queue());
    let last = second.mark().unwrap();
    assert!(second.wait(last, COMPLETION_TIMEOUT).unwrap());
    for _ in 0..3 {
        subject.launch(&first, SHORT_COMMAND);
        let marker = first.mark().unwrap();
        assert!(first.wait(marker, COMPLETION_TIMEOUT).unwrap());
    }
    assert_eq!(second.progress().marker, last);
    subject.launch(&second, SHORT_COMMAND);
    let marker = second.mark().unwrap();
    assert!(second.wait(marker, COMPLETION_TIMEOUT).unwrap());
    assert_eq!((subject.finished(&first), subject.finished(&second)), (3, 1));
}

/// Threads that place markers at the same time get different numbers, and all markers complete.
pub fn markers_of_several_threads_are_unique_and_complete<S: Subject>(subject: &S) {
    const EACH: usize = 50;
    let queue = subject.queue();
    if !queue.can_mark_from_any_thread() {
        return;
    }
    let place = || {
        let markers: Vec<_> = std::iter::repeat_with(|| queue.mark().unwrap()).take(EACH).collect();
        assert!(markers.is_sorted(), "{markers:?}");
        assert!(
            queue.wait(markers[EACH - 1], COMPLETION_TIMEOUT).unwrap(),
            "marker {} did not complete",
            markers[EACH - 1]
        );
        markers
    };
    let mut all: Vec<Marker> = std::thread::scope(|threads| {
        let threads = [(); 4].map(|()| threads.spawn(place));
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 4 * EACH, "two markers have the same number");
    assert_eq!(queue.progress().marker, all[4 * EACH - 1]);
}

/// Levels that the device offers stop the queue. Levels that it lacks are rejected, and the queue runs.
pub fn offered_levels_stop_the_device_and_missing_levels_are_rejected<S: Subject>(subject: &S) {
    for level in [Level::Deactivate, Level::Interrupt] {
        let queue = subject.queue();
        if queue.capabilities().cost(level).is_err() {
            let error =
                queue.preempt(level).expect_err("a level that the device lacks was accepted").to_string();
            assert!(error.contains(&format!("not {}", level.number())), "unclear error: {error}");
            subject.launch(&queue, SHORT_COMMAND);
            queue.synchronize().unwrap();
        } else {
            // Some devices stop all queues of a process together.
            drop(queue);
            check_that_a_level_stops_the_device(subject, level);
        }
    }
}

fn check_that_a_level_stops_the_device<S: Subject>(subject: &S, level: Level) {
    // A preemption after the first command has completed proves nothing: try again.
    for _ in 0..5 {
        let queue = subject.queue();
        let markers = [(); 3].map(|()| {
            subject.launch(&queue, LONG_COMMAND);
            queue.mark().unwrap()
        });
        std::thread::sleep(Duration::from_millis(20));
        queue.preempt(level).unwrap();
        let stopped_at = subject.finished(&queue);
        // At level 2 only the running command may complete.
        let may_finish = u64::from(level == Level::Deactivate);
        std::thread::sleep(LONG_COMMAND * 2);
        let after = subject.finished(&queue);
        assert!(
            after <= stopped_at + may_finish,
            "{level}: completed commands rose from {stopped_at} to {after} while stopped"
        );
        queue.restore().unwrap();
        assert!(queue.wait(markers[2], COMPLETION_TIMEOUT).unwrap(), "{level}: did not resume after restore");
        assert_eq!(subject.finished(&queue), 3);
        if stopped_at == 0 {
            return;
        }
    }
    panic!("{level}: no preemption found the first command running");
}

/// Repeating `preempt` or `restore` has no effect.
pub fn preempting_and_restoring_may_be_repeated<S: Subject>(subject: &S) {
    let queue = subject.queue();
    let level = queue.capabilities().highest();
    queue.restore().unwrap();
    subject.launch(&queue, SHORT_COMMAND);
    for _ in 0..3 {
        if level > Level::Block {
            queue.preempt(level).unwrap();
            queue.preempt(level).unwrap();
        }
        queue.restore().unwrap();
        queue.restore().unwrap();
    }
    queue.synchronize().unwrap();
    assert_eq!(subject.finished(&queue), 1);
}

/// Queues are stopped and resumed at random: every command completes once, and every marker completes.
pub fn random_preemptions_lose_nothing<S: Subject>(subject: &S) {
    let mut random = Random::new(7);
    let queues: Vec<_> = (0..3).map(|_| subject.queue()).collect();
    let levels: Vec<_> = Level::ALL[1..]
        .iter()
        .filter(|level| queues[0].capabilities().cost(**level).is_ok())
        .copied()
        .collect();
    let mut launched = [0_u64; 3];
    let mut marked: [Marker; 3] = [0; 3];
    for _ in 0..400 {
        let n = usize::try_from(random.below(3)).unwrap();
        let queue = &queues[n];
        match random.below(8) {
            0..=2 => {
                subject.launch(queue, Duration::from_micros(random.below(400)));
                launched[n] += 1;
            }
            3 | 4 => {
                let next = queue.mark().unwrap();
                assert!(next > std::mem::replace(&mut marked[n], next));
            }
            5 if !levels.is_empty() => {
                let level = levels[usize::try_from(random.below(levels.len() as u64)).unwrap()];
                queue.preempt(level).unwrap();
            }
            _ => queue.restore().unwrap(),
        }
    }
    for (n, queue) in queues.iter().enumerate() {
        queue.restore().unwrap();
        let last = queue.mark().unwrap();
        assert!(queue.wait(last, COMPLETION_TIMEOUT).unwrap(), "queue {n} did not complete");
        assert_eq!(subject.finished(queue), launched[n], "queue {n}");
    }
}

/// What is launched behind a hold point runs after the point was released, and what was launched before it runs at once. A device
/// that cannot hold launches rejects the point.
pub fn launches_behind_a_hold_point_wait_for_its_release<S: Subject>(subject: &S) {
    let queue = subject.queue();
    if !queue.can_defer() {
        queue.defer(1).expect_err("a device that cannot hold launches accepted a hold point");
        subject.launch(&queue, SHORT_COMMAND);
        queue.synchronize().unwrap();
        return;
    }
    subject.launch(&queue, SHORT_COMMAND);
    queue.defer(1).unwrap();
    subject.launch(&queue, SHORT_COMMAND);
    eventually("arriving at the hold point", || queue.deferred_progress() == 1);
    assert_eq!(subject.finished(&queue), 1);
    // A later point lies behind the first one. Releasing it releases both.
    queue.defer(2).unwrap();
    subject.launch(&queue, SHORT_COMMAND);
    std::thread::sleep(4 * SHORT_COMMAND);
    assert_eq!((subject.finished(&queue), queue.deferred_progress()), (1, 1));
    queue.release_deferred(2);
    queue.release_deferred(1);
    queue.synchronize().unwrap();
    assert_eq!((subject.finished(&queue), queue.deferred_progress()), (3, 2));
    // A point that was released before it is placed holds nothing.
    queue.release_deferred(3);
    queue.defer(3).unwrap();
    subject.launch(&queue, SHORT_COMMAND);
    queue.synchronize().unwrap();
    assert_eq!(subject.finished(&queue), 4);
    // Stop points and hold points are independent.
    let level = queue.capabilities().highest();
    queue.defer(4).unwrap();
    subject.launch(&queue, SHORT_COMMAND);
    if level > Level::Block {
        queue.preempt(level).unwrap();
        queue.release_deferred(4);
        queue.restore().unwrap();
    } else {
        queue.release_deferred(4);
    }
    queue.synchronize().unwrap();
    assert_eq!(subject.finished(&queue), 5);
}

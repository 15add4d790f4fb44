//! Checks of the hardware queue itself.

use std::time::Duration;

use super::{Dice, Subject, eventually};
use crate::{HwQueue, Level, Marker};

const SHORT: Duration = Duration::from_micros(300);
/// Long enough that a preemption meets it running, even on a busy machine.
const LONG: Duration = Duration::from_millis(400);
const PATIENCE: Duration = Duration::from_secs(30);

/// A marker is reported after what was launched before it has finished, never before, and never goes back.
pub fn markers_follow_the_work_before_them<S: Subject>(subject: &S) {
    let (queue, mut dice) = (subject.queue(), Dice::new(1));
    let mut launched = 0;
    let mut before_marker: Vec<(Marker, u64)> = Vec::new();
    let mut reported = 0;
    let mut check = |before_marker: &[(Marker, u64)]| {
        let marker = queue.progress().marker;
        assert!(marker >= reported, "progress went back from {reported} to {marker}");
        reported = marker;
        let covered = before_marker.iter().rev().find(|(number, _)| *number <= marker);
        let due = covered.map_or(0, |(_, launched)| *launched);
        let finished = subject.finished(&queue);
        assert!(finished >= due, "marker {marker} reported with {finished} of {due} commands finished");
        marker
    };
    let mut last = 0;
    for _ in 0..60 {
        for _ in 0..dice.below(4) {
            subject.launch(&queue, SHORT);
            launched += 1;
        }
        let marker = queue.mark().unwrap();
        assert!(marker > last, "{marker} came after {last}");
        last = marker;
        before_marker.push((marker, launched));
        check(&before_marker);
    }
    eventually("the last marker", || check(&before_marker) == last);
    assert_eq!(subject.finished(&queue), launched);
}

/// `wait` answers false when the time is up and true once the marker is there.
pub fn waiting_ends_with_the_marker_or_the_time<S: Subject>(subject: &S) {
    let queue = subject.queue();
    subject.launch(&queue, LONG);
    let marker = queue.mark().unwrap();
    let early = queue.wait(marker, Duration::from_micros(1)).unwrap();
    assert!(!early || subject.finished(&queue) == 1, "waited for a command that still runs");
    assert!(queue.wait(marker, PATIENCE).unwrap());
    assert!(queue.wait(marker, Duration::ZERO).unwrap(), "what has completed stays completed");
    assert_eq!(subject.finished(&queue), 1);
}

/// After `synchronize` nothing launched before is unfinished.
pub fn synchronize_covers_everything_launched<S: Subject>(subject: &S) {
    let queue = subject.queue();
    for round in 1..=5 {
        for _ in 0..7 {
            subject.launch(&queue, SHORT);
        }
        queue.synchronize().unwrap();
        assert_eq!(subject.finished(&queue), round * 7);
    }
}

/// The markers of one queue say nothing about another.
pub fn queues_do_not_share_markers<S: Subject>(subject: &S) {
    let (one, two) = (subject.queue(), subject.queue());
    let last = two.mark().unwrap();
    assert!(two.wait(last, PATIENCE).unwrap());
    for _ in 0..3 {
        subject.launch(&one, SHORT);
        let marker = one.mark().unwrap();
        assert!(one.wait(marker, PATIENCE).unwrap());
    }
    assert_eq!(two.progress().marker, last);
    subject.launch(&two, SHORT);
    let marker = two.mark().unwrap();
    assert!(two.wait(marker, PATIENCE).unwrap());
    assert_eq!((subject.finished(&one), subject.finished(&two)), (3, 1));
}

/// Whoever places a marker gets a number that nobody else has, and all of them come.
pub fn threads_place_markers_of_their_own<S: Subject>(subject: &S) {
    const EACH: usize = 50;
    let queue = subject.queue();
    if !queue.can_mark_from_any_thread() {
        return;
    }
    let place = || {
        let markers: Vec<_> = std::iter::repeat_with(|| queue.mark().unwrap()).take(EACH).collect();
        assert!(markers.is_sorted(), "{markers:?}");
        assert!(queue.wait(markers[EACH - 1], PATIENCE).unwrap(), "{} did not come", markers[EACH - 1]);
        markers
    };
    let mut all: Vec<Marker> = std::thread::scope(|threads| {
        let threads = [(); 4].map(|()| threads.spawn(place));
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 4 * EACH, "some have the same number");
    assert_eq!(queue.progress().marker, all[4 * EACH - 1]);
}

/// Levels that are offered stop the device; those that are not are refused, and the queue runs on.
pub fn offered_levels_stop_the_device_and_others_are_refused<S: Subject>(subject: &S) {
    for level in [Level::Deactivate, Level::Interrupt] {
        let queue = subject.queue();
        if queue.capabilities().cost(level).is_err() {
            let refusal =
                queue.preempt(level).expect_err("a level that is not offered was carried out").to_string();
            assert!(refusal.contains(&format!("not {}", level.number())), "unclear refusal: {refusal}");
            subject.launch(&queue, SHORT);
            queue.synchronize().unwrap();
        } else {
            // Some devices stop all queues of a process together, or none.
            drop(queue);
            stops_the_device(subject, level);
        }
    }
}

fn stops_the_device<S: Subject>(subject: &S, level: Level) {
    // A preemption that came too late to meet the command running proves nothing: try again.
    for _ in 0..5 {
        let queue = subject.queue();
        let markers = [(); 3].map(|()| {
            subject.launch(&queue, LONG);
            queue.mark().unwrap()
        });
        std::thread::sleep(Duration::from_millis(20));
        queue.preempt(level).unwrap();
        let stopped_at = subject.finished(&queue);
        // At level 2 the command that had begun may finish, and no other.
        let may_finish = u64::from(level == Level::Deactivate);
        std::thread::sleep(LONG * 2);
        let after = subject.finished(&queue);
        assert!(after <= stopped_at + may_finish, "{level}: went from {stopped_at} to {after} while stopped");
        queue.restore().unwrap();
        assert!(queue.wait(markers[2], PATIENCE).unwrap(), "{level}: did not go on after restore");
        assert_eq!(subject.finished(&queue), 3);
        if stopped_at == 0 {
            return;
        }
    }
    panic!("{level}: no preemption met the first command still running");
}

/// Repeating a preemption or a restore changes nothing.
pub fn preempting_and_restoring_may_be_repeated<S: Subject>(subject: &S) {
    let queue = subject.queue();
    let level = queue.capabilities().highest();
    queue.restore().unwrap();
    subject.launch(&queue, SHORT);
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

/// Whatever is stopped and let go at random moments, every command finishes once and every marker is reported.
pub fn a_storm_of_preemptions_loses_nothing<S: Subject>(subject: &S) {
    let mut dice = Dice::new(7);
    let queues: Vec<_> = (0..3).map(|_| subject.queue()).collect();
    let levels: Vec<_> = Level::ALL[1..]
        .iter()
        .filter(|level| queues[0].capabilities().cost(**level).is_ok())
        .copied()
        .collect();
    let mut launched = [0_u64; 3];
    let mut marked: [Marker; 3] = [0; 3];
    for _ in 0..400 {
        let n = usize::try_from(dice.below(3)).unwrap();
        let queue = &queues[n];
        match dice.below(8) {
            0..=2 => {
                subject.launch(queue, Duration::from_micros(dice.below(400)));
                launched[n] += 1;
            }
            3 | 4 => {
                let next = queue.mark().unwrap();
                assert!(next > std::mem::replace(&mut marked[n], next));
            }
            5 if !levels.is_empty() => {
                let level = levels[usize::try_from(dice.below(levels.len() as u64)).unwrap()];
                queue.preempt(level).unwrap();
            }
            _ => queue.restore().unwrap(),
        }
    }
    for (n, queue) in queues.iter().enumerate() {
        queue.restore().unwrap();
        let last = queue.mark().unwrap();
        assert!(queue.wait(last, PATIENCE).unwrap(), "queue {n} did not come to its end");
        assert_eq!(subject.finished(queue), launched[n], "queue {n}");
    }
}

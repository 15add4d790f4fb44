//! The window with a model of a device that runs one command at a time.
#![cfg(not(loom))]

use proptest::prelude::*;
use std::collections::VecDeque;
use xsched_core::{Level, Limit, Marker, Nanos, Progress, Window};

/// A device that runs commands of given durations in order and reports markers.
#[derive(Default)]
struct Device {
    now: Nanos,
    /// Completion times of commands, and of markers with their number.
    commands: VecDeque<Nanos>,
    markers: VecDeque<(Nanos, Marker)>,
    reported: Progress,
    marked: Marker,
    busy_until: Nanos,
}

impl Device {
    fn launch(&mut self, length: Nanos) {
        self.busy_until = self.busy_until.max(self.now) + length;
        self.commands.push_back(self.busy_until);
    }

    fn mark(&mut self) -> Marker {
        self.marked += 1;
        self.markers.push_back((self.busy_until.max(self.now), self.marked));
        self.marked
    }

    fn advance(&mut self, to: Nanos) {
        self.now = to;
        self.commands.retain(|done| *done > to);
        while let Some((at, marker)) = self.markers.front().copied().filter(|(at, _)| *at <= to) {
            self.markers.pop_front();
            self.reported = Progress { marker, at: Some(at) };
        }
    }
}

/// Launches commands as fast as the window admits them; calls `check` after each launch.
fn drive(
    limit: Limit,
    lengths: &[Nanos],
    mut check: impl FnMut(&Window, &Device, Nanos),
) -> (Window, Device) {
    let (mut window, mut device) = (Window::new(limit), Device::default());
    for length in lengths {
        loop {
            window.observe(device.reported, device.now);
            if let Some(place) = window.reserve(|| device.now) {
                device.launch(*length);
                if window.launched(place, || device.now) {
                    window.marked(device.mark());
                }
                check(&window, &device, *length);
                // A launch takes 300 ns.
                let later = device.now + Nanos(300);
                device.advance(later);
                break;
            }
            if window.oldest_marker().is_none() {
                assert!(window.has_unmarked(), "the window is full, but nothing was launched");
                window.marked(device.mark());
            }
            let (marker_at, _) = *device.markers.front().expect("a full window has an outstanding marker");
            device.advance(window.room_at().unwrap_or(Nanos::MAX).min(marker_at));
        }
    }
    (window, device)
}

proptest! {
    #[test]
    fn estimated_work_never_exceeds_the_budget_by_more_than_one_command(
        budget_us in 10_u64..5_000,
        lengths in prop::collection::vec(100_u64..20_000_000, 1..300),
    ) {
        let budget = Nanos::from_micros(budget_us);
        let lengths: Vec<_> = lengths.into_iter().map(Nanos).collect();
        drive(Limit::Budget(budget), &lengths, |window, _, _| {
            let load = window.in_flight();
            let one = Nanos(load.work.0 / u64::from(load.commands.max(1)));
            assert!(
                load.work <= budget + one || load.commands <= Limit::MIN_COMMANDS,
                "{load:?} in flight with a budget of {budget}"
            );
        });
    }

    #[test]
    fn real_work_of_steady_commands_stays_within_the_budget_and_one_command(
        budget_us in 100_u64..5_000,
        length_ns in 1_000_u64..20_000_000,
    ) {
        let (budget, length) = (Nanos::from_micros(budget_us), Nanos(length_ns));
        let mut launched = 0;
        drive(Limit::Budget(budget), &vec![length; 2_000], |_, device, length| {
            launched += 1;
            // What a task of higher precedence would wait for. The first durations are learned.
            let left = device.busy_until - device.now;
            let allowed = budget + length + Nanos(length.0 / 100);
            assert!(
                launched < 50 || left <= allowed,
                "{left} of commands of {length} in flight with a budget of {budget}"
            );
        });
    }

    #[test]
    fn limit_of_commands_is_never_exceeded(threshold in 1_i64..64, batch in 1_i64..64, n in 1_usize..300) {
        let limit = Limit::count(threshold, batch.min(threshold)).unwrap();
        drive(limit, &vec![Nanos(5_000); n], |window, device, _| {
            assert!(i64::from(window.in_flight().commands) <= threshold);
            assert!(device.commands.len() <= usize::try_from(threshold).unwrap());
        });
    }

    #[test]
    fn device_never_idles_once_the_duration_is_known(length_us in 20_u64..10_000) {
        let length = Nanos::from_micros(length_us);
        let (_, device) = drive(Limit::for_level(Level::Block), &vec![length; 1_000], |_, _, _| {});
        let ideal = Nanos(length.0 * 1_000);
        prop_assert!(
            device.busy_until.0 <= ideal.0 + ideal.0 / 50,
            "1000 commands of {length} took {}, {ideal} would be ideal", device.busy_until
        );
    }
}

#[test]
fn short_commands_fill_the_budget() {
    let mut max_in_flight = 0;
    drive(Limit::for_level(Level::Block), &vec![Nanos(2_000); 5_000], |window, _, _| {
        max_in_flight = max_in_flight.max(window.in_flight().commands);
    });
    assert!(max_in_flight > 100, "only {max_in_flight} commands of 2 us in flight with a budget of 1 ms");
}

#[test]
fn time_spent_suspended_does_not_count_as_work() {
    let (mut window, mut device) =
        drive(Limit::for_level(Level::Block), &vec![Nanos(50_000); 100], |_, _, _| {});
    let before = window.estimate().unwrap();
    let place = window.reserve(|| Nanos::from_secs(1)).unwrap();
    window.launched(place, || Nanos::from_secs(1));
    let marker = device.mark();
    window.marked(marker);
    window.resumed(Nanos::from_secs(9));
    window.observe(Progress { marker, at: Some(Nanos::from_secs(9) + Nanos(50_000)) }, Nanos::MAX);
    assert!(
        window.estimate().unwrap() <= before + Nanos(1_000),
        "{} from {before}",
        window.estimate().unwrap()
    );
}

#[test]
fn limits_out_of_range_are_rejected_by_name() {
    let error = |limit: Result<Limit, xsched_core::HintError>| limit.unwrap_err().to_string();
    assert_eq!(
        error(Limit::count(0, 1)),
        "threshold 0 is out of range: allowed is 1 to 65536 (commands in flight)"
    );
    assert_eq!(error(Limit::count(16, 17)), "batch_size 17 is out of range: allowed is 1 to the threshold");
    assert_eq!(error(Limit::budget(Nanos(9))), "budget 9 ns is out of range: allowed is 10 us to 10 s");
}

/// From level 2 on a launching thread rarely waits for room, so that markers are observed long after they completed.
#[test]
fn durations_are_learned_and_stop_points_stay_close_without_waiting() {
    let mut window = Window::new(Limit::for_level(Level::Interrupt));
    window.set_level(Level::Interrupt);
    let mut device = Device::default();
    // The first commands of a program differ from those that follow.
    let lengths = [vec![Nanos(2_000); 50], vec![Nanos(400_000); 2_000]].concat();
    let (mut since_stop, mut late) = (Nanos::ZERO, Vec::new());
    for (n, length) in lengths.into_iter().enumerate() {
        let place = loop {
            if let Some(place) = window.reserve(|| device.now) {
                break place;
            }
            let (at, _) = *device.markers.front().expect("a full window has an outstanding marker");
            device.advance(at);
            window.observe(Progress { at: None, ..device.reported }, device.now);
        };
        device.launch(length);
        since_stop += length;
        if window.launched(place, || device.now) {
            window.observe_late(Progress { at: None, ..device.reported }, device.now);
            window.marked(device.mark());
            late.extend((n > 1_000).then_some(since_stop));
            since_stop = Nanos::ZERO;
        }
        // The host is slightly faster than the device.
        let later = device.now + Nanos(length.0 * 9 / 10);
        device.advance(later);
    }
    let furthest = late.iter().max().expect("some");
    assert!(*furthest <= Nanos::from_millis(2), "{furthest} from one stop point to the next");
}

/// The markers of a window that is filled at once, with commands of this length, and the work between each and the next.
fn stop_distances(length: Nanos) -> Vec<Nanos> {
    let mut window = Window::new(Limit::for_level(Level::Deactivate));
    window.set_level(Level::Deactivate);
    window.set_stop_distance(Nanos::from_micros(500));
    let (mut device, mut distances) = (Device::default(), Vec::new());
    let mut since_stop = Nanos::ZERO;
    // The first command shows how long they are.
    for _ in 0..2 {
        while let Some(place) = window.reserve(|| device.now) {
            device.launch(length);
            since_stop += length;
            if window.launched(place, || device.now) {
                window.marked(device.mark());
                distances.push(std::mem::take(&mut since_stop));
            }
        }
        if device.now == Nanos::ZERO {
            device.advance(device.busy_until);
            window.observe(device.reported, device.now);
            distances.clear();
        }
    }
    distances
}

#[test]
fn stop_points_are_as_far_apart_as_the_platform_requests() {
    // Work that a leader waits for: the rest of the command that runs, not of two.
    for us in [340, 400, 490, 500, 510, 700, 2_000] {
        let length = Nanos::from_micros(us);
        let distances = stop_distances(length);
        let all = distances.iter().fold(Nanos::ZERO, |sum, distance| sum + *distance);
        assert!(distances.iter().all(|distance| *distance == length), "{us} us: {distances:?}");
        assert!(all >= Nanos::from_millis(190), "{us} us: stop points in the first {all} of 200 ms");
    }
    let distances = stop_distances(Nanos::from_micros(20));
    let near = |distance: &Nanos| (Nanos::from_micros(480)..=Nanos::from_micros(520)).contains(distance);
    assert!(distances.iter().all(near), "{distances:?}");
}

/// The device completes a command, the queue is stopped and resumed, and only then is the completion observed.
#[test]
fn work_that_was_completed_before_a_stop_does_not_count_as_short() {
    let length = Nanos::from_millis(2);
    let mut window = Window::new(Limit::for_level(Level::Deactivate));
    window.set_level(Level::Deactivate);
    let mut device = Device::default();
    for round in 0..20 {
        for _ in 0..2 {
            let place = window.reserve(|| device.now).expect("two commands fit");
            device.launch(length);
            assert!(
                window.launched(place, || device.now),
                "round {round}: no stop point behind 2 ms of work"
            );
            window.marked(device.mark());
        }
        // Both have completed or are under way, and the queue was stopped meanwhile.
        device.advance(device.now + length);
        window.resumed(device.now);
        device.advance(device.now + Nanos::from_micros(20));
        window.observe_late(Progress { at: None, ..device.reported }, device.now);
        device.advance(device.now + length);
        window.observe_late(Progress { at: None, ..device.reported }, device.now);
    }
}

//! What each level does for programs on a GPU, and what it costs the others: on the stand-in for NVIDIA's driver.

#[allow(dead_code, reason = "the other tests with actors use the rest")]
mod actor;
#[allow(dead_code, reason = "the other tests with this machine use the rest")]
mod machine;
#[allow(dead_code, reason = "the other tests that measure use the rest")]
mod measured;
#[allow(dead_code, reason = "the other tests on this stage use the rest")]
mod stage;

use std::process::Command;
use std::time::Duration;

use actor::Actor;
use machine::Machine;
use measured::{claim, measured, percentile, tell};
use stage::{Stage, eventually};
use xsched_ipc::protocol::TaskState;

/// Ten kernels, 5 ms in all, every 15 ms.
const REQUESTS: [&str; 6] = ["load", "requests", "50", "10", "500", "15000"];
const HIGH: [&str; 4] = ["--priority", "high", "--name", "high"];

/// How long requests take beside something else, which has begun.
fn beside(others: Vec<Command>, requests: Command) -> Vec<u64> {
    let others: Vec<_> = others.into_iter().map(Actor::enter).collect();
    for other in &others {
        other.line();
    }
    let latencies = Actor::enter(requests).latencies();
    for other in &others {
        other.line();
    }
    latencies
}

#[test]
fn level_2_stops_queued_work_at_its_next_stop_point() {
    // Short kernels, and many of them: what there is to wait for is what is queued.
    const BATCH: [&str; 4] = ["load", "batch", "64", "300"];
    measured(|| {
        let bare = Machine::new(Stage::without_service());
        let alone = Actor::enter(bare.direct(&REQUESTS)).latencies();
        let native = beside(vec![bare.direct(&BATCH)], bare.direct(&REQUESTS));
        let at = |level: &[&str]| {
            let machine = Machine::new(Stage::with_service());
            let low = [&["--priority", "low"], level].concat();
            beside(vec![machine.run(&low, &BATCH)], machine.run(&[&HIGH, level].concat(), &REQUESTS))
        };
        // As much queued at either level: level 1 has to wait for it.
        let blocked = at(&["--level", "1", "--budget", "16ms"]);
        let stopped = at(&["--level", "2", "--budget", "16ms"]);
        tell(&[
            ("alone", &alone),
            ("native", &native),
            ("level 1, 16 ms queued", &blocked),
            ("level 2", &stopped),
        ]);
        for percent in [50, 90] {
            let [alone, native, blocked, stopped] =
                [&alone, &native, &blocked, &stopped].map(|scene| percentile(scene, percent));
            let told = || format!("alone {alone}, native {native}, level 1 {blocked}, level 2 {stopped} us");
            claim(2 * native > 3 * alone, || format!("the batch does no harm: {}", told()))?;
            claim(2 * stopped < alone + native, || format!("no better than native: {}", told()))?;
            claim(2 * stopped < alone + blocked, || format!("what is queued was waited for: {}", told()))?;
        }
        Ok(())
    });
}

/// `xsched set`, as a person would.
fn set(machine: &Machine, whom: &Actor, what: &str) {
    let done = machine.stage.xsched(&["set", &whom.pid().to_string(), what]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn a_suspended_kernel_stands_still_and_goes_on_when_it_is_resumed() {
    const LONG: [&str; 2] = ["long", "700"];
    let took = |actor: &mut Actor| {
        let line = actor.line();
        actor.ends_well();
        let (ms, sum) = line.split_once(' ').unwrap();
        assert_eq!(sum, "5", "its data is wrong");
        ms.parse::<u64>().unwrap()
    };
    measured(|| {
        let bare = Machine::new(Stage::without_service());
        let alone = Actor::enter(bare.direct(&REQUESTS)).latencies();
        let mut native = Actor::enter(bare.direct(&LONG));
        native.line();
        let undisturbed = took(&mut native);

        let machine = Machine::new(Stage::with_service());
        let mut long = Actor::enter(machine.run(&["--name", "long"], &LONG));
        assert_eq!(long.line(), "launched");
        let state =
            || machine.stage.status().tasks.iter().find(|task| task.name == "long").map(|task| task.state);
        // Alone on its device nobody counts what it does: that it runs is not to be seen from outside.
        eventually("it is scheduled", || state().is_some());
        set(&machine, &long, "--suspend");
        let suspended = std::time::Instant::now();
        eventually("it is suspended", || state() == Some(TaskState::Suspended));
        // Longer than all of the kernel: it would end meanwhile if it ran on.
        let meanwhile = Actor::enter(machine.run(&[], &REQUESTS)).latencies();
        claim(suspended.elapsed().as_millis() > u128::from(undisturbed), || "too short to tell".into())?;
        claim(long.lines.try_recv().is_err(), || "it ended though it was suspended".into())?;
        let away = u64::try_from(suspended.elapsed().as_millis()).unwrap();
        set(&machine, &long, "--resume");
        let disturbed = took(&mut long);
        println!("a kernel of 700 ms took {undisturbed} ms, and {disturbed} ms with {away} ms suspended");
        tell(&[("alone", &alone), ("beside a suspended kernel", &meanwhile)]);
        claim(4 * disturbed > 4 * undisturbed + 3 * away, || {
            "it made progress while it was suspended".into()
        })?;
        for percent in [50, 90] {
            let [alone, meanwhile] = [&alone, &meanwhile].map(|scene| percentile(scene, percent));
            claim(2 * meanwhile < 3 * alone, || format!("not as if alone: {meanwhile} us, not {alone} us"))?;
        }
        Ok(())
    });
}

#[test]
fn whoever_is_killed_while_suspended_leaves_the_device_to_others() {
    measured(|| {
        let machine = Machine::new(Stage::with_service());
        let mut long = Actor::enter(machine.run(&["--name", "long"], &["long", "60000"]));
        assert_eq!(long.line(), "launched");
        let other = Actor::enter(machine.run(&["--name", "other"], &["load", "batch", "4", "1000"]));
        other.line();
        set(&machine, &long, "--suspend");
        let state =
            || machine.stage.status().tasks.iter().find(|task| task.name == "long").map(|task| task.state);
        eventually("it is suspended", || state() == Some(TaskState::Suspended));
        let second = || std::thread::sleep(Duration::from_millis(800));
        let (beside_it, ()) = other.pace(second);
        long.kill();
        eventually("it is forgotten", || state().is_none());
        let (after_it, ()) = other.pace(second);
        println!(
            "{beside_it:.0} rounds of 4 ms in a second beside a suspended program, {after_it:.0} after it was killed"
        );
        claim(after_it > 0.5 * beside_it && beside_it > 0.5 * after_it, || {
            format!("{beside_it}, {after_it}")
        })?;
        Ok(())
    });
}

/// Suspends a program that has just launched one kernel of 1.5 s.
fn suspended(machine: &Machine, program: &[&str]) -> Actor {
    let long = Actor::enter(machine.run(&["--name", "long"], program));
    assert_eq!(long.line(), "launched");
    let state =
        || machine.stage.status().tasks.iter().find(|task| task.name == "long").map(|task| task.state);
    eventually("it is scheduled", || state().is_some());
    set(machine, &long, "--suspend");
    eventually("it is suspended", || state() == Some(TaskState::Suspended));
    assert!(long.lines.recv_timeout(Duration::from_millis(1_700)).is_err(), "it runs on");
    long
}

#[test]
fn a_suspended_kernel_goes_on_when_the_service_dies() {
    let mut machine = Machine::new(Stage::with_service());
    let mut long = suspended(&machine, &["long", "1500"]);
    machine.stage.kill_service();
    assert!(long.line().ends_with(" 5"), "its data is right");
    long.ends_well();
}

#[test]
fn a_suspended_program_that_exits_leaves_nothing_stopped() {
    let machine = Machine::new(Stage::with_service());
    let mut long = suspended(&machine, &["long", "1500", "exit"]);
    long.tell();
    assert_eq!(long.line(), "ended at exit");
    assert_eq!(long.child.wait().unwrap().code(), Some(3));
}

#[test]
fn several_background_programs_share_what_one_would_have() {
    const BATCH: [&str; 4] = ["load", "batch", "4", "1000"];
    measured(|| {
        let bare = Machine::new(Stage::without_service());
        let alone = Actor::enter(bare.direct(&REQUESTS)).latencies();
        let native = beside((0..3).map(|_| bare.direct(&BATCH)).collect(), bare.direct(&REQUESTS));
        let with = |backgrounds: usize| {
            let machine = Machine::new(Stage::with_service());
            let low = ["--priority", "low"];
            let all: Vec<_> = (0..backgrounds).map(|_| Actor::enter(machine.run(&low, &BATCH))).collect();
            for one in &all {
                one.line();
            }
            Actor::paces(&all.iter().collect::<Vec<_>>(), || {
                Actor::enter(machine.run(&HIGH, &REQUESTS)).latencies()
            })
        };
        let (one, beside_one) = with(1);
        let (three, beside_three) = with(3);
        tell(&[
            ("alone", &alone),
            ("native beside three", &native),
            ("scheduled beside one", &beside_one),
            ("scheduled beside three", &beside_three),
        ]);
        let sum: f64 = three.iter().sum();
        println!("rounds of 4 ms in a second: one {:.0}, three {sum:.0} ({three:.0?})", one[0]);
        claim(sum > 0.65 * one[0], || format!("they are in each other's way: {sum} instead of {}", one[0]))?;
        claim(three.iter().all(|each| *each > 0.15 * sum), || format!("one of them starves: {three:?}"))?;
        for percent in [50, 90] {
            let [alone, native, scheduled] =
                [&alone, &native, &beside_three].map(|scene| percentile(scene, percent));
            let told = || format!("alone {alone} us, native {native} us, scheduled {scheduled} us");
            claim(native > 2 * alone, || format!("they do no harm: {}", told()))?;
            claim(3 * scheduled < 2 * alone + native, || format!("far from alone: {}", told()))?;
        }
        Ok(())
    });
}

/// Whoever loads code keeps the others out of the driver until the streams have nothing to do. One that stands still has to be
/// let go on all the same.
#[test]
fn programs_that_load_code_while_they_take_turns_come_through() {
    let machine = Machine::new(Stage::with_service());
    let low = ["--priority", "low"];
    let all: Vec<_> = (0..3).map(|_| Actor::enter(machine.run(&low, &["loader", "4", "500"]))).collect();
    let _requests = Actor::enter(machine.run(&HIGH, &["load", "requests", "1000000", "2", "500", "5000"]));
    for one in &all {
        one.line();
    }
    Actor::none_stands_still(&all);
}

/// Copies are not launches: a program that waits for one looks as if it had nothing to do, and must not stand still.
#[test]
fn programs_that_wait_for_copies_while_others_have_the_device_come_through() {
    for level in ["2", "3"] {
        let machine = Machine::new(Stage::with_service());
        let at = |priority| ["--priority", priority, "--level", level];
        let readers: Vec<_> = (0..3)
            .map(|_| Actor::enter(machine.run(&at("normal"), &["reader", "3", "200", "700"])))
            .collect();
        let _requests =
            Actor::enter(machine.run(&at("high"), &["load", "requests", "1000000", "4", "500", "5000"]));
        let _batch = Actor::enter(machine.run(&at("low"), &["load", "batch", "4", "700"]));
        for one in &readers {
            one.line();
        }
        println!("at level {level}");
        Actor::none_stands_still(&readers);
    }
}

/// A driver that refuses to disable channels must not leave a program stopped that nobody holds any more.
#[test]
fn whoever_cannot_be_stopped_runs_on_all_the_same() {
    let machine = Machine::lacking(Stage::with_service(), "channel-stops");
    let mut long = Actor::enter(machine.run(&["--name", "long"], &["long", "3000"]));
    assert_eq!(long.line(), "launched");
    let state =
        || machine.stage.status().tasks.iter().find(|task| task.name == "long").map(|task| task.state);
    eventually("it is scheduled", || state().is_some());
    for _ in 0..3 {
        set(&machine, &long, "--suspend");
        eventually("it is suspended", || state() == Some(TaskState::Suspended));
        std::thread::sleep(Duration::from_millis(60));
        set(&machine, &long, "--resume");
    }
    assert!(long.line().ends_with(" 5"), "its data is wrong");
    long.ends_well();
}

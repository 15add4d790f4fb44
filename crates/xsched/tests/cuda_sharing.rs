//! Who has the GPU when, and for how long: shares, gaps, and how a program shows that it is idle. On the stand-in for
//! NVIDIA's driver.

#[allow(dead_code, reason = "the other tests with actors use the rest")]
mod actor;
#[allow(dead_code, reason = "the other tests with this machine use the rest")]
mod machine;
#[allow(dead_code, reason = "the other tests that measure use the rest")]
mod measured;
#[allow(dead_code, reason = "the other tests on this stage use the rest")]
mod stage;

use std::time::Duration;

use actor::Actor;
use machine::Machine;
use measured::{claim, measured, percentile, tell};
use rustix::process::Pid;
use stage::Stage;
use xsched_ipc::protocol::{Reply, Request};

#[test]
fn shares_are_kept() {
    measured(|| {
        let undisturbed = undisturbed();
        for shares in [&[75.0, 25.0][..], &[60.0, 30.0, 10.0]] {
            let machine = Machine::new(Stage::with_service());
            let policy = Request::Policy { name: Some("share".to_owned()), timeslice_us: None, k: None };
            assert!(matches!(machine.stage.ask(&policy), Reply::Policy { .. }), "the policy is not there");
            let all: Vec<_> = shares
                .iter()
                .map(|share: &f64| {
                    let share = format!("{share:.0}");
                    Actor::enter(machine.run(&["--share", &share], &BATCH))
                })
                .collect();
            for one in &all {
                one.line();
            }
            let all: Vec<_> = all.iter().collect();
            let (paces, ()) = Actor::paces(&all, || std::thread::sleep(Duration::from_millis(2_500)));
            let sum: f64 = paces.iter().sum();
            let had: Vec<_> = paces.iter().map(|pace| 100.0 * pace / sum).collect();
            println!("asked {shares:.0?}, had {had:.1?} percent, {sum:.0} rounds of 2 ms in a second");
            for (asked, had) in shares.iter().zip(&had) {
                claim((asked - had).abs() < 5.0, || format!("{had:.1} percent instead of {asked:.0}"))?;
            }
            claim(sum > 0.5 * undisturbed, || {
                format!("half of the device is lost: {sum:.0} of {undisturbed:.0}")
            })?;
        }
        Ok(())
    });
}

/// Four kernels of 0.5 ms, and so on for ever.
const BATCH: [&str; 4] = ["load", "batch", "4", "500"];

/// How many rounds of 2 ms a batch makes in a second if nobody else is there.
fn undisturbed() -> f64 {
    let machine = Machine::new(Stage::with_service());
    let batch = Actor::enter(machine.run(&["--priority", "low"], &BATCH));
    batch.line();
    batch.pace(|| std::thread::sleep(Duration::from_secs(1))).0
}

/// The same beside a program in the foreground that is under way, and how long that one's rounds take.
fn beside(foreground: &[&str]) -> (f64, Vec<u64>) {
    let machine = Machine::new(Stage::with_service());
    let batch = Actor::enter(machine.run(&["--priority", "low"], &BATCH));
    batch.line();
    let front = Actor::enter(machine.run(&["--priority", "high"], &[&["foreground"], foreground].concat()));
    front.line();
    batch.pace(|| front.latencies())
}

#[test]
fn whichever_way_a_program_waits_it_is_found_idle_soon() {
    measured(|| {
        let undisturbed = undisturbed();
        // 3 ms of work, then 17 ms of nothing, of which the batch can use most if it is let. The last never asks.
        for how in ["stream", "context", "query", "event", "copy", "each", "none"] {
            let (pace, _) = beside(&[how, "60", "12", "250", "17000"]);
            println!(
                "{how:>8}: the batch makes {pace:.0} rounds of 2 ms in a second, {undisturbed:.0} undisturbed"
            );
            claim(pace > 0.4 * undisturbed, || format!("{how}: the device is kept from the batch"))?;
        }
        Ok(())
    });
}

#[test]
fn a_foreground_with_short_gaps_keeps_the_device_and_one_with_long_gaps_gives_it_away() {
    // One kernel of 1 ms at a time.
    const EAGER: [&str; 6] = ["foreground", "stream", "500", "1", "1000", "100"];
    measured(|| {
        let bare = Machine::new(Stage::without_service());
        let alone = Actor::enter(bare.direct(&EAGER)).latencies();
        let native = {
            let batch = Actor::enter(bare.direct(&BATCH));
            batch.line();
            Actor::enter(bare.direct(&EAGER)).latencies()
        };
        let (short, eager) = beside(&EAGER[1..]);
        let (long, lazy) = beside(&["stream", "80", "1", "1000", "15000"]);
        tell(&[("alone", &alone), ("native", &native), ("gaps of 0.1 ms", &eager), ("gaps of 15 ms", &lazy)]);
        println!("rounds of 2 ms in a second: {short:.0} with short gaps, {long:.0} with long ones");
        claim(10.0 * short < long, || {
            format!("rounds with short gaps {short:.0}, with long ones {long:.0}")
        })?;
        let [alone, native, eager] = [&alone, &native, &eager].map(|scene| percentile(scene, 50));
        let told = || format!("alone {alone} us, native {native} us, scheduled {eager} us");
        claim(2 * native > 3 * alone, || format!("the batch does no harm: {}", told()))?;
        claim(2 * eager < alone + native, || format!("no better than native: {}", told()))?;
        Ok(())
    });
}

/// In each gap the batch would have the device for a moment, and never come to a point where it stops.
#[test]
fn a_foreground_that_waits_for_each_kernel_does_not_lose_the_device_in_between() {
    for how in ["each", "each-copy"] {
        let pieces = ["foreground", how, "100", "12", "250", "15000"];
        measured(|| {
            let bare = Machine::new(Stage::without_service());
            let alone = Actor::enter(bare.direct(&pieces)).latencies();
            let (pace, scheduled) = beside(&pieces[1..]);
            tell(&[("alone", &alone), ("beside a batch", &scheduled)]);
            println!("the batch makes {pace:.0} rounds of 2 ms in a second");
            let [alone, scheduled] = [&alone, &scheduled].map(|scene| percentile(scene, 50));
            claim(2 * scheduled < 3 * alone, || format!("{how}: alone {alone} us, scheduled {scheduled} us"))
        });
    }
}

/// Telling the scheduler of every end and every beginning takes longer than such a kernel.
#[test]
fn the_scheduler_is_not_called_by_every_kernel_of_a_program_that_waits_for_each() {
    const KERNELS: usize = 3_000;
    measured(|| {
        let machine = Machine::new(Stage::with_service());
        let idle =
            Actor::enter(machine.run(&["--priority", "low"], &["foreground", "stream", "1", "1", "5", "0"]));
        while idle.line() != "idle" {}
        let kernels = KERNELS.to_string();
        let before = times_it_slept(machine.stage.service());
        let steps = machine.run(&["--priority", "high"], &["foreground", "stream", &kernels, "1", "5", "0"]);
        let latencies = Actor::enter(steps).latencies();
        let calls = times_it_slept(machine.stage.service()) - before;
        println!("{calls} calls for {} kernels", latencies.len());
        claim(latencies.len() == KERNELS && calls < KERNELS, || {
            format!("{calls} calls for {KERNELS} kernels")
        })
    });
}

/// A service that has nothing to do sleeps until it is called.
fn times_it_slept(service: Pid) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", service.as_raw_nonzero())).unwrap();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    count.trim().parse().unwrap()
}

//! Several streams, threads and devices in one program, under the scheduler as without: on the stand-in for NVIDIA's
//! driver.

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
use measured::{claim, measured, percentile};
use stage::{Stage, eventually};
use xsched_core::{DeviceId, DeviceKind};
use xsched_ipc::protocol::{HintRequest, Reply, Request, Status, TaskState, TaskStatus};

fn said(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn streams_keep_the_order_that_their_own_priorities_give_them() {
    const ORDER: [&str; 2] = ["streams", "order"];
    // The first begins before the others come.
    const EXPECTED: &str = "lhhhhhhhhlllllll\n";
    let is_kept = |command: &dyn Fn() -> Command| {
        measured(|| {
            let order = said(command());
            claim(order == EXPECTED, || format!("{:?}: {order}", command()))
        });
    };
    let bare = Machine::new(Stage::without_service());
    is_kept(&|| bare.direct(&ORDER));
    let machine = Machine::new(Stage::with_service());
    for level in [&["--level", "1"][..], &["--level", "2"], &[]] {
        is_kept(&|| machine.run(level, &ORDER));
    }
    // Beside somebody more important it is interrupted and goes on, and the order stays.
    let rival = ["foreground", "stream", "1000", "2", "1000", "10000"];
    let rival = Actor::enter(machine.run(&["--priority", "high"], &rival));
    rival.line();
    for level in ["1", "2", "auto"] {
        measured(|| {
            let mut beside = machine.run(&["--priority", "low", "--level", level], &ORDER);
            // What is not let into its stream yet cannot overtake: here there is room for all.
            beside.env("XSCHED_AUTO_XQUEUE_THRESHOLD", "64").env("XSCHED_AUTO_XQUEUE_BATCH_SIZE", "8");
            let order = said(beside);
            println!("level {level}, beside a rival: {order}");
            // While a stream comes by a marker it runs nothing: a kernel of another stream may slip through at each.
            let last = order.rfind('h').expect("they all ended");
            let slipped = order[..last].matches('l').count();
            claim(order.starts_with("lh") && slipped <= 5, || format!("level {level}: {order}"))
        });
    }
}

#[test]
fn a_queue_with_a_priority_of_its_own_is_a_task_of_its_own() {
    measured(|| {
        let machine = Machine::new(Stage::with_service());
        let pair = Actor::enter(machine.run(&["--name", "pair"], &["streams", "pair", "1000"]));
        let rounds = || {
            pair.lines.try_iter().for_each(drop);
            std::thread::sleep(Duration::from_millis(800));
            let mut rounds = [0_usize; 2];
            for line in pair.lines.try_iter() {
                rounds[usize::from(line.starts_with('b'))] += 1;
            }
            rounds
        };
        eventually("both have come", || machine.stage.status().queues.len() == 2);
        let equal = rounds();
        let queue = machine.stage.status().queues[0].handle;
        let hint_request = HintRequest { priority: Some(50), ..HintRequest::default() };
        assert_eq!(machine.stage.ask(&Request::SetQueue { queue, hint_request }), Reply::Done);
        let tasks = machine.stage.status().tasks;
        let own: Vec<_> = tasks.iter().filter(|task| task.own).collect();
        assert_eq!((tasks.len(), own.len(), own[0].priority, own[0].queues), (2, 1, 50, 1), "{tasks:?}");
        let unequal = rounds();
        println!("rounds of 4 ms: {equal:?}, and with one of them more important {unequal:?}");
        let [most, least] = [unequal.iter().max().unwrap(), unequal.iter().min().unwrap()];
        let are_equal = 2 * equal.iter().min().unwrap() > *equal.iter().max().unwrap();
        claim(are_equal, || format!("equals do not have the same: {equal:?}"))?;
        claim(*most > 4 * least, || format!("it has no precedence: {unequal:?}"))?;
        Ok(())
    });
}

#[test]
fn a_stream_with_pauses_and_a_priority_of_its_own_is_served_first_each_time() {
    measured(|| {
        let machine = Machine::new(Stage::with_service());
        let server = Actor::enter(machine.run(&["--name", "server"], &["streams", "server", "1000"]));
        // The middle of some, but for the first ones.
        let middle = || {
            server.lines.try_iter().for_each(drop);
            let mut all: Vec<u64> = (0..30).map(|_| server.line().parse().unwrap()).skip(5).collect();
            all.sort_unstable();
            percentile(&all, 50)
        };
        eventually("both have come", || machine.stage.status().queues.len() == 2);
        let equal = middle();
        let queue = machine.stage.status().queues.iter().map(|queue| queue.handle).min().unwrap();
        let hint_request = HintRequest { priority: Some(50), ..HintRequest::default() };
        assert_eq!(machine.stage.ask(&Request::SetQueue { queue, hint_request }), Reply::Done);
        let first = middle();
        println!("requests of 8 ms: {equal} us beside an equal, {first} us with priority");
        claim(4 * first < 3 * equal, || {
            format!("no precedence: {first} us with priority, {equal} us without")
        })?;
        Ok(())
    });
}

#[test]
fn the_default_streams_of_threads_come_and_go_with_them() {
    let machine = Machine::new(Stage::with_service());
    let mut threads = Actor::enter(machine.run(&["--name", "threads"], &["threads", "6"]));
    assert_eq!(threads.line(), "ready");
    // So that what the others do is counted.
    let rival = ["foreground", "stream", "10000", "1", "1000", "5000"];
    let rival = Actor::enter(machine.run(&["--priority", "high"], &rival));
    rival.line();
    let task = || machine.stage.status().tasks.into_iter().find(|task| task.name == "threads");
    for round in 0..4 {
        threads.tell();
        assert_eq!(threads.line(), "done");
        assert_eq!(task().unwrap().queues, 6, "round {round}: one for each thread");
        eventually("they are idle", || task().unwrap().state == TaskState::Idle);
        threads.tell();
        assert_eq!(threads.line(), "ended", "and their data is right");
        eventually("they are gone", || task().is_none_or(|task| task.queues == 0));
    }
    drop(threads.child.stdin.take());
    threads.ends_well();
}

/// The stand-in's devices by where they are.
fn device(number: u32) -> u64 {
    DeviceId::new(DeviceKind::Gpu, (6 + number) << 3).0
}

fn of<'a>(status: &'a Status, name: &str) -> Vec<&'a TaskStatus> {
    status.tasks.iter().filter(|task| task.name == name).collect()
}

/// A batch on one device beside something important on another or the same: how many rounds of 2 ms it makes in a second.
fn pace_beside(policy: &str, batch_on: &str, important_on: &str, is_held: bool) -> f64 {
    let machine = Machine::with_devices(Stage::with_service(), "2");
    let policy = Request::Policy { name: Some(policy.to_owned()), timeslice_us: None, k: None };
    assert!(matches!(machine.stage.ask(&policy), Reply::Policy { .. }));
    let mut low = machine.run(&["--priority", "low", "--name", "low"], &["load", "batch", "4", "500"]);
    let batch = Actor::enter({
        low.env("CUDA_VISIBLE_DEVICES", batch_on);
        low
    });
    batch.line();
    // Never idle.
    let mut high = machine
        .run(&["--priority", "high", "--name", "high"], &["load", "requests", "1", "1000", "20000", "1"]);
    high.env("CUDA_VISIBLE_DEVICES", important_on);
    let _important = Actor::enter(high);
    eventually("both are there", || machine.stage.status().tasks.len() == 2);
    let status = machine.stage.status();
    let number = |on: &str| u32::from(on == "1" || on.ends_with("01"));
    assert_eq!(of(&status, "low")[0].device, device(number(batch_on)), "by its PCI address");
    assert_eq!(of(&status, "high")[0].device, device(number(important_on)), "by its PCI address");
    if is_held {
        eventually("it is held", || of(&machine.stage.status(), "low")[0].state == TaskState::Held);
    }
    batch.pace(|| std::thread::sleep(Duration::from_millis(700))).0
}

#[test]
fn devices_are_scheduled_each_by_itself_or_all_together_as_the_policy_has_it() {
    const SECOND: &str = "GPU-7374616e-642d-696e-2047-505500000001";
    let apart = pace_beside("HPF", "1", "0", false);
    let by_name = pace_beside("HPF", SECOND, "0", false);
    let same = pace_beside("HPF", SECOND, "1", true);
    let together = pace_beside("HHPF", "1", "0", true);
    println!(
        "rounds of 2 ms in a second: {apart:.0} and {by_name:.0} apart, {same:.0} on the same device, {together:.0} together"
    );
    assert!(by_name > 0.5 * apart, "a device by its name is the one by its number");
    for held in [same, together] {
        assert!(apart > 10.0 * held.max(1.0), "{held} instead of none of {apart}");
    }
}

#[test]
fn slices_are_set_on_the_device_that_is_contended() {
    let machine = Machine::with_devices(Stage::with_service(), "2");
    let slices = |two: &mut Actor| {
        two.tell();
        let line = two.line();
        let (first, second) = line.split_once(' ').unwrap();
        [first, second].map(|us| us.parse::<u64>().unwrap())
    };
    for (order, contended) in [("0,1", 0), ("1,0", 1)] {
        let mut command = machine.run(&["--priority", "low", "--name", "two"], &["two", "500"]);
        command.env("CUDA_VISIBLE_DEVICES", order);
        let mut two = Actor::enter(command);
        assert_eq!(two.line(), if contended == 0 { "6 7" } else { "7 6" });
        eventually("it uses both", || of(&machine.stage.status(), "two").len() == 2);
        let usual = slices(&mut two);
        assert_eq!(usual[0], usual[1]);
        // On the first device of the machine, whatever the other calls it.
        let mut rival = machine
            .run(&["--priority", "high", "--name", "high"], &["load", "requests", "1", "1000", "20000", "1"]);
        rival.env("CUDA_VISIBLE_DEVICES", "0");
        let rival = Actor::enter(rival);
        let mut now = usual;
        eventually("its slices change", || {
            now = slices(&mut two);
            now != usual
        });
        println!("{order}: {now:?} us beside somebody more important on the first, {usual:?} us before");
        assert!(now[contended] < usual[contended] / 100, "not interrupted where it is contended: {now:?}");
        assert_eq!(now[1 - contended], usual[1 - contended], "on the other device nobody is more important");
        drop(rival);
        eventually("they are as before", || slices(&mut two) == usual);
    }
}

//! The CUDA hooks on a machine without a GPU: the real library in front of a stand-in for the driver.

#[allow(dead_code, reason = "the other tests with actors use the rest")]
mod actor;
#[allow(dead_code, reason = "the other tests with this machine use the rest")]
mod machine;
#[allow(dead_code, reason = "the other tests that measure use the rest")]
mod measured;
#[allow(dead_code, reason = "the other tests on this stage use the rest")]
mod stage;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use actor::Actor;
use machine::Machine;
use measured::{claim, measured, percentile, tell};
use stage::{Stage, eventually};
use xsched_core::{DeviceId, DeviceKind};
use xsched_ipc::protocol::{HintRequest, Reply, Request, Target, TaskState};

const LEVELS: [&[&str]; 3] = [&["--level", "1"], &["--level", "2"], &[]];

fn says(mut command: Command, expected: &str) {
    let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains(expected), "{command:?}: {out}{err}");
}

#[test]
fn a_driver_means_the_same_under_the_scheduler_however_it_is_reached() {
    let machine = Machine::new(Stage::with_service());
    says(machine.direct(&["semantics"]), "fault");
    for level in LEVELS {
        for program in ["semantics", "semantics-dlsym", "semantics-look-up"] {
            says(machine.run(level, &[program]), "fault");
        }
    }
}

#[test]
fn data_is_right_whenever_a_program_is_suspended() {
    let machine = Machine::new(Stage::with_service());
    for (level, program) in LEVELS.into_iter().flat_map(|level| {
        ["chain", "chain-dlsym", "chain-look-up"].into_iter().map(move |program| (level, program))
    }) {
        let options: Vec<_> = level.iter().copied().chain(["--name", program]).collect();
        let mut chain = Actor::enter(machine.run(&options, &[program, "40", "200"]));
        assert_eq!(chain.line(), "ready");
        let its_task = || machine.stage.status().tasks.into_iter().find(|task| task.name == program);
        eventually("it is scheduled", || its_task().is_some());
        let device = DeviceId::new(DeviceKind::Gpu, 6 << 3).0;
        assert_eq!(its_task().unwrap().device, device, "the device by its PCI address");
        let whom = Target::Pid(chain.pid());
        // At moments that have nothing to do with what it does.
        for n in 0..20_u64 {
            assert_eq!(machine.stage.ask(&Request::Suspend(whom.clone())), Reply::Done);
            std::thread::sleep(Duration::from_micros(n * 7_919 % 3_000));
            assert_eq!(machine.stage.ask(&Request::Resume(whom.clone())), Reply::Done);
            std::thread::sleep(Duration::from_micros(n * 104_729 % 5_000));
        }
        assert_eq!(chain.line(), "240 of 240", "{program} {level:?}");
        assert_eq!(its_task().unwrap().queues, 4, "both default streams and the two it made");

        // Suspended, it does not get far; resumed, it does all the rest, once.
        assert_eq!(machine.stage.ask(&Request::Suspend(whom.clone())), Reply::Done);
        eventually("it is suspended", || its_task().is_some_and(|task| task.state == TaskState::Suspended));
        chain.tell();
        eventually("a thread is held", || machine.stage.status().queues.iter().any(|queue| queue.ready));
        assert!(
            chain.lines.recv_timeout(Duration::from_millis(100)).is_err(),
            "it ran though it was suspended"
        );
        assert_eq!(machine.stage.ask(&Request::Resume(whom)), Reply::Done);
        assert_eq!(chain.line(), "480 of 480", "{program} {level:?}");
        chain.ends_well();
    }
}

#[test]
fn data_is_right_on_machines_that_lack_things() {
    for lacking in
        ["memory-waits", "new-waits", "timeslices", "resource-manager", "memory-waits,resource-manager"]
    {
        let machine = Machine::lacking(Stage::with_service(), lacking);
        let rival = Actor::enter(
            machine.run(&["--priority", "high"], &["load", "requests", "20", "2", "500", "3000"]),
        );
        says(machine.run(&["--priority", "low"], &["chain-look-up", "20", "100"]), "120 of 120");
        assert_eq!(rival.latencies().len(), 20);
    }
}

#[test]
fn whoever_asks_for_more_than_the_machine_has_is_told() {
    let stderr_of = |without: &'static str| {
        let machine = Machine::lacking(Stage::with_service(), without);
        let mut command = machine.run(&["--level", "3"], &["chain", "4", "100"]);
        let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ready\n24 of 24\n", "it runs all the same");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert_eq!(stderr_of(""), "", "the channels were seen");
    let told = stderr_of("resource-manager");
    assert!(told.contains("channel"), "{told:?}");
}

#[test]
fn whoever_wants_to_know_is_told_why_there_is_no_higher_level() {
    let said = |without: &'static str| {
        let machine = Machine::lacking(Stage::with_service(), without);
        let mut command = machine.run(&[], &["chain", "4", "100"]);
        let output = command.env("XLOG_LEVEL", "INFO").stdin(Stdio::null()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ready\n24 of 24\n");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(said("").contains("CUDA is scheduled at level 3\n"));
    for (without, what) in [
        ("timeslices", "at level 2; level 3 is not available: the driver refuses control 0xa06c0103 "),
        (
            "resource-manager",
            "at level 2; level 3 is not available: no channel group of the program was seen",
        ),
        (
            "resource-manager,memory-waits",
            "at level 1; level 2 is not available: the driver refuses memory waits in a stream (error 801); level 3 is not available: ",
        ),
    ] {
        let told = said(without);
        assert!(told.contains(&format!("CUDA is scheduled {what}")), "{without}: {told}");
    }
}

#[test]
fn a_family_uses_the_driver_as_without_the_scheduler() {
    let machine = Machine::new(Stage::with_service());
    says(machine.direct(&["gpu-family"]), "done");
    for level in LEVELS {
        says(machine.run(level, &["gpu-family"]), "done");
    }
}

/// Ten kernels, 5 ms in all, every 15 ms.
const REQUESTS: [&str; 6] = ["load", "requests", "60", "10", "500", "15000"];
/// Kernels of 5 ms without a gap worth the name.
const BATCH: [&str; 4] = ["load", "batch", "16", "5000"];
const HIGH: [&str; 4] = ["--priority", "high", "--name", "high"];
const LOW: [&str; 4] = ["--priority", "low", "--name", "low"];

#[test]
fn requests_beside_a_batch_take_far_less_than_without_the_scheduler() {
    measured(|| {
        let alone = Actor::enter(Machine::new(Stage::without_service()).direct(&REQUESTS)).latencies();
        let native = {
            let machine = Machine::new(Stage::without_service());
            let batch = Actor::enter(machine.direct(&BATCH));
            batch.line();
            Actor::enter(machine.direct(&REQUESTS)).latencies()
        };
        let scheduled = {
            let machine = Machine::new(Stage::with_service());
            let batch = Actor::enter(machine.run(&LOW, &BATCH));
            batch.line();
            let latencies = Actor::enter(machine.run(&HIGH, &REQUESTS)).latencies();
            batch.line();
            latencies
        };
        tell(&[("alone", &alone), ("native", &native), ("scheduled", &scheduled)]);
        for percent in [50, 90] {
            let [alone, native, scheduled] =
                [&alone, &native, &scheduled].map(|scene| percentile(scene, percent));
            let told = || format!("alone {alone} us, native {native} us, scheduled {scheduled} us");
            claim(2 * native > 3 * alone, || format!("the batch does no harm: {}", told()))?;
            claim(2 * scheduled < alone + native, || format!("no better: {}", told()))?;
        }
        Ok(())
    });
}

/// With its context end a program's streams, and what the device could reach of its memory.
#[test]
fn programs_whose_contexts_come_and_go_run_as_without_us() {
    const ROUNDS: [&str; 3] = ["6", "4", "300"];
    let expected: Vec<_> = (1..=6).map(|round| round.to_string()).collect();
    for program in ["contexts", "contexts-dlsym", "contexts-look-up"] {
        let program = [&[program], &ROUNDS[..]].concat();
        assert_eq!(Actor::enter(Machine::new(Stage::without_service()).direct(&program)).rest(), expected);
        let machine = Machine::new(Stage::with_service());
        let _rival = Actor::enter(machine.run(&HIGH, &["load", "requests", "1000000", "2", "500", "3000"]));
        let _equal = Actor::enter(machine.run(&LOW, &["load", "batch", "2", "500"]));
        for level in ["1", "2", "3"] {
            let options = ["--priority", "low", "--level", level];
            assert_eq!(Actor::enter(machine.run(&options, &program)).rest(), expected, "level {level}");
        }
    }
}

#[test]
fn whoever_is_held_for_a_program_that_is_killed_runs_on() {
    let machine = Machine::new(Stage::with_service());
    let low = Actor::enter(machine.run(&LOW, &["load", "batch", "1", "1000"]));
    low.line();
    // Busy for a minute without a gap.
    let mut high = Actor::enter(machine.run(&HIGH, &["load", "requests", "1", "600", "100000", "1"]));
    let is_held = || {
        let tasks = machine.stage.status().tasks;
        tasks.iter().any(|task| task.name == "low" && task.state == TaskState::Held)
    };
    eventually("it is held", is_held);
    eventually("it makes no step", || low.lines.recv_timeout(Duration::from_millis(100)).is_err());
    high.kill();
    let killed = Instant::now();
    low.line();
    println!("{:?} from the kill to the end of the next kernel of 1 ms", killed.elapsed());
    for _ in 0..20 {
        low.line();
    }
}

#[test]
fn programs_survive_the_service_and_their_data_is_right() {
    let mut stage = Stage::with_service();
    stage.kill_service();
    stage.start_service();
    let mut machine = Machine::new(stage);
    let mut low = Actor::enter(machine.run(&LOW, &["chain", "60", "300"]));
    let high = Actor::enter(machine.run(&HIGH, &REQUESTS));
    assert_eq!(low.line(), "ready");
    high.line();
    machine.stage.kill_service();
    assert_eq!(low.line(), "360 of 360");
    assert_eq!(high.latencies().len(), 59);
    machine.stage.start_service();
    eventually("it joins again", || machine.stage.status().tasks.iter().any(|task| task.name == "low"));
    low.tell();
    assert_eq!(low.line(), "720 of 720");
    low.ends_well();
}

#[test]
fn streams_of_different_importance_that_wait_for_each_other_come_to_their_end() {
    let machine = Machine::new(Stage::with_service());
    for important in 0..2 {
        let mut program = Actor::enter(machine.run(&["--name", "cross"], &["cross"]));
        assert_eq!(program.line(), "ready");
        let pid = program.child.id();
        let its_queues = || machine.stage.status().queues.into_iter().filter(|queue| queue.pid == pid);
        eventually("its queues are known", || its_queues().count() == 2);
        for (n, queue) in its_queues().enumerate() {
            let priority = Some(if n == important { 100 } else { -100 });
            let hint_request = HintRequest { priority, ..HintRequest::default() };
            assert_eq!(
                machine.stage.ask(&Request::SetQueue { queue: queue.handle, hint_request }),
                Reply::Done
            );
        }
        program.tell();
        assert_eq!(program.line(), "200");
        program.ends_well();
    }
}

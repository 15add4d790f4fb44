//! Effect and cost of each preemption level, on the stand-in for NVIDIA's driver.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod cuda_machine;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod measured;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::process::Command;
use std::time::{Duration, Instant};

use cuda_machine::CudaMachine;
use environment::{TestEnvironment, wait_until};
use measured::{percentile, print_latencies, require, retry_comparison};
use test_program::TestProgram;
use xsched_ipc::protocol::TaskState;

/// Ten kernels, 5 ms in all, every 15 ms.
const REQUESTS: [&str; 6] = ["load", "requests", "50", "10", "500", "15000"];
const HIGH_PRIORITY: [&str; 4] = ["--priority", "high", "--name", "high"];

/// The latencies of requests beside batches that are already running and make progress.
fn latencies_beside(batches: Vec<Command>, requests: Command) -> Vec<u64> {
    let batches: Vec<_> = batches.into_iter().map(TestProgram::spawn).collect();
    for batch in &batches {
        batch.next_line();
    }
    let latencies = TestProgram::spawn(requests).latencies();
    for batch in &batches {
        batch.next_line();
    }
    latencies
}

/// The state of the task of this name.
fn state_of(machine: &CudaMachine, name: &str) -> Option<TaskState> {
    machine.env.status().tasks.iter().find(|task| task.name == name).map(|task| task.state)
}

#[test]
fn level_2_stops_queued_work_at_its_next_stop_point() {
    // Short kernels, many of them queued: the queued ones cause the latency.
    const BATCH: [&str; 4] = ["load", "batch", "64", "300"];
    let measure = || {
        let bare = CudaMachine::new(TestEnvironment::without_service());
        let alone = TestProgram::spawn(bare.direct(&REQUESTS)).latencies();
        let native = latencies_beside(vec![bare.direct(&BATCH)], bare.direct(&REQUESTS));
        let at = |level: &[&str]| {
            let machine = CudaMachine::new(TestEnvironment::with_service());
            let low = [&["--priority", "low"], level].concat();
            let batch = vec![machine.run(&low, &BATCH)];
            latencies_beside(batch, machine.run(&[&HIGH_PRIORITY, level].concat(), &REQUESTS))
        };
        // Both levels queue the same amount of work. Level 1 has to wait for it.
        let level_1 = at(&["--level", "1", "--budget", "16ms"]);
        let level_2 = at(&["--level", "2", "--budget", "16ms"]);
        print_latencies(&[
            ("alone", &alone),
            ("native", &native),
            ("level 1, 16 ms queued", &level_1),
            ("level 2", &level_2),
        ]);
        [alone, native, level_1, level_2]
    };
    retry_comparison(measure, |scenarios| {
        for percent in [50, 90] {
            let [alone, native, level_1, level_2] =
                [0, 1, 2, 3].map(|scenario| percentile(&scenarios[scenario], percent));
            let describe =
                || format!("alone {alone}, native {native}, level 1 {level_1}, level 2 {level_2} us");
            require(2 * native > 3 * alone, || {
                format!("the batch does not slow native requests: {}", describe())
            })?;
            require(2 * level_2 < alone + native, || {
                format!("level 2 gains too little over native: {}", describe())
            })?;
            require(2 * level_2 < alone + level_1, || {
                format!("level 2 waited for queued work: {}", describe())
            })?;
        }
        Ok(())
    });
}

/// Runs `xsched set PID OPTION`.
fn set(machine: &CudaMachine, target: &TestProgram, option: &str) {
    let output = machine.env.xsched(&["set", &target.pid().to_string(), option]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn suspended_kernel_stops_and_resumes_where_it_stopped() {
    const KERNEL_MS: u64 = 700;
    const LONG: [&str; 2] = ["long", "700"];
    let duration_of = |program: &mut TestProgram| {
        let line = program.next_line();
        program.expect_success();
        let (ms, sum) = line.split_once(' ').unwrap();
        assert_eq!(sum, "5", "wrong data");
        ms.parse::<u64>().unwrap()
    };
    let measure = || {
        let bare = CudaMachine::new(TestEnvironment::without_service());
        let alone = TestProgram::spawn(bare.direct(&REQUESTS)).latencies();
        let mut native = TestProgram::spawn(bare.direct(&LONG));
        native.next_line();
        let native_ms = duration_of(&mut native);

        let machine = CudaMachine::new(TestEnvironment::with_service());
        let mut long = TestProgram::spawn(machine.run(&["--name", "long"], &LONG));
        assert_eq!(long.next_line(), "launched");
        let launched = Instant::now();
        let state = || state_of(&machine, "long");
        wait_until("the program is scheduled", || state().is_some());
        set(&machine, &long, "--suspend");
        wait_until("the program is suspended", || state() == Some(TaskState::Suspended));
        let suspended = Instant::now();
        // On a busy machine the request may come after the kernel has completed. Then there is nothing to compare.
        let is_in_time = launched.elapsed() < Duration::from_millis(KERNEL_MS);
        // These requests take longer than the kernel: it would complete meanwhile if it were not stopped.
        let beside_suspended = TestProgram::spawn(machine.run(&[], &REQUESTS)).latencies();
        let suspended_ms = u64::try_from(suspended.elapsed().as_millis()).unwrap();
        let has_completed = long.lines.try_recv();
        assert!(has_completed.is_err() || !is_in_time, "the kernel completed while it was suspended");
        set(&machine, &long, "--resume");
        let interrupted_ms = if has_completed.is_ok() { 0 } else { duration_of(&mut long) };
        println!(
            "a kernel of {KERNEL_MS} ms took {native_ms} ms, and {interrupted_ms} ms with {suspended_ms} ms suspended"
        );
        print_latencies(&[("alone", &alone), ("beside a suspended kernel", &beside_suspended)]);
        (is_in_time, native_ms, suspended_ms, interrupted_ms, [alone, beside_suspended])
    };
    retry_comparison(measure, |(is_in_time, native_ms, suspended_ms, interrupted_ms, latencies)| {
        require(is_in_time, || "the kernel completed before it was suspended".into())?;
        require(suspended_ms > native_ms, || "suspended for less time than the kernel needs".into())?;
        require(4 * interrupted_ms > 4 * native_ms + 3 * suspended_ms, || {
            format!("the kernel took {interrupted_ms} ms: it ran while it was suspended")
        })?;
        for percent in [50, 90] {
            let [alone, beside] = [0, 1].map(|scenario| percentile(&latencies[scenario], percent));
            require(2 * beside < 3 * alone, || {
                format!("requests take {beside} us beside a suspended kernel, {alone} us alone")
            })?;
        }
        Ok(())
    });
}

#[test]
fn killing_a_suspended_program_leaves_the_device_usable() {
    let measure = || {
        let machine = CudaMachine::new(TestEnvironment::with_service());
        let mut long = TestProgram::spawn(machine.run(&["--name", "long"], &["long", "60000"]));
        assert_eq!(long.next_line(), "launched");
        let batch = TestProgram::spawn(machine.run(&["--name", "batch"], &["load", "batch", "4", "1000"]));
        batch.next_line();
        set(&machine, &long, "--suspend");
        let state = || state_of(&machine, "long");
        wait_until("the program is suspended", || state() == Some(TaskState::Suspended));
        let sleep = || std::thread::sleep(Duration::from_millis(800));
        let (before_kill, ()) = batch.line_rate(sleep);
        long.kill();
        wait_until("the service has removed the task", || state().is_none());
        let (after_kill, ()) = batch.line_rate(sleep);
        println!(
            "rounds of 4 ms per second: {before_kill:.0} beside a suspended program, {after_kill:.0} after its kill"
        );
        (before_kill, after_kill)
    };
    retry_comparison(measure, |(before_kill, after_kill)| {
        require(after_kill > 0.5 * before_kill && before_kill > 0.5 * after_kill, || {
            format!("{before_kill} rounds per second before the kill, {after_kill} after it")
        })
    });
}

/// Suspends a program that has just launched one kernel of 1.5 s.
fn suspended(machine: &CudaMachine, program: &[&str]) -> TestProgram {
    let long = TestProgram::spawn(machine.run(&["--name", "long"], program));
    assert_eq!(long.next_line(), "launched");
    let state = || machine.env.status().tasks.iter().find(|task| task.name == "long").map(|task| task.state);
    wait_until("it is scheduled", || state().is_some());
    set(machine, &long, "--suspend");
    wait_until("it is suspended", || state() == Some(TaskState::Suspended));
    assert!(long.lines.recv_timeout(Duration::from_millis(1_700)).is_err(), "it runs on");
    long
}

#[test]
fn dead_service_resumes_a_suspended_kernel() {
    let mut machine = CudaMachine::new(TestEnvironment::with_service());
    let mut long = suspended(&machine, &["long", "1500"]);
    machine.env.kill_service();
    assert!(long.next_line().ends_with(" 5"), "wrong data");
    long.expect_success();
}

#[test]
fn suspended_program_can_exit() {
    let machine = CudaMachine::new(TestEnvironment::with_service());
    let mut long = suspended(&machine, &["long", "1500", "exit"]);
    long.send_newline();
    assert_eq!(long.next_line(), "ended at exit");
    assert_eq!(long.child.wait().unwrap().code(), Some(3));
}

#[test]
fn several_background_programs_share_the_time_of_one() {
    const BATCH: [&str; 4] = ["load", "batch", "4", "1000"];
    let measure = || {
        let bare = CudaMachine::new(TestEnvironment::without_service());
        let alone = TestProgram::spawn(bare.direct(&REQUESTS)).latencies();
        let batches = (0..3).map(|_| bare.direct(&BATCH)).collect();
        let native = latencies_beside(batches, bare.direct(&REQUESTS));
        let with = |backgrounds: usize| {
            let machine = CudaMachine::new(TestEnvironment::with_service());
            let low = ["--priority", "low"];
            let programs: Vec<_> =
                (0..backgrounds).map(|_| TestProgram::spawn(machine.run(&low, &BATCH))).collect();
            for program in &programs {
                program.next_line();
            }
            TestProgram::line_rates(&programs.iter().collect::<Vec<_>>(), || {
                TestProgram::spawn(machine.run(&HIGH_PRIORITY, &REQUESTS)).latencies()
            })
        };
        let (one, beside_one) = with(1);
        let (three, beside_three) = with(3);
        print_latencies(&[
            ("alone", &alone),
            ("native beside three", &native),
            ("scheduled beside one", &beside_one),
            ("scheduled beside three", &beside_three),
        ]);
        println!("rounds of 4 ms per second: one program {:.0}, three programs {three:.0?}", one[0]);
        (one[0], three, [alone, native, beside_three])
    };
    retry_comparison(measure, |(one, three, latencies)| {
        let sum: f64 = three.iter().sum();
        require(sum > 0.65 * one, || format!("three programs make {sum} rounds, one program {one}"))?;
        require(three.iter().all(|rate| *rate > 0.15 * sum), || format!("a program starves: {three:?}"))?;
        for percent in [50, 90] {
            let [alone, native, scheduled] =
                [0, 1, 2].map(|scenario| percentile(&latencies[scenario], percent));
            let describe = || format!("alone {alone} us, native {native} us, scheduled {scheduled} us");
            require(native > 2 * alone, || {
                format!("the batches do not slow native requests: {}", describe())
            })?;
            require(3 * scheduled < 2 * alone + native, || {
                format!("scheduling gains too little: {}", describe())
            })?;
        }
        Ok(())
    });
}

/// A thread that loads code holds the driver's lock until all streams of the process are idle. A stream that is stalled at a
/// stop point must be resumed for it.
#[test]
fn programs_that_load_code_between_time_slices_make_progress() {
    let machine = CudaMachine::new(TestEnvironment::with_service());
    let low = ["--priority", "low"];
    let loaders: Vec<_> =
        (0..3).map(|_| TestProgram::spawn(machine.run(&low, &["loader", "4", "500"]))).collect();
    let _requests =
        TestProgram::spawn(machine.run(&HIGH_PRIORITY, &["load", "requests", "1000000", "2", "500", "5000"]));
    for loader in &loaders {
        loader.next_line();
    }
    TestProgram::assert_all_progress(&loaders);
}

/// A copy is not a launch, so a program that waits for a copy counts as idle. It must not stay stalled.
#[test]
fn programs_that_wait_for_copies_beside_a_leader_make_progress() {
    for level in ["2", "3"] {
        let machine = CudaMachine::new(TestEnvironment::with_service());
        let at = |priority| ["--priority", priority, "--level", level];
        let readers: Vec<_> = (0..3)
            .map(|_| TestProgram::spawn(machine.run(&at("normal"), &["reader", "3", "200", "700"])))
            .collect();
        let _requests = TestProgram::spawn(
            machine.run(&at("high"), &["load", "requests", "1000000", "4", "500", "5000"]),
        );
        let _batch = TestProgram::spawn(machine.run(&at("low"), &["load", "batch", "4", "700"]));
        for reader in &readers {
            reader.next_line();
        }
        println!("at level {level}");
        TestProgram::assert_all_progress(&readers);
    }
}

/// A driver that rejects disabling channels must not leave a resumed program stopped.
#[test]
fn program_whose_channels_cannot_be_stopped_completes() {
    let machine = CudaMachine::without_features(TestEnvironment::with_service(), "channel-stops");
    let mut long = TestProgram::spawn(machine.run(&["--name", "long"], &["long", "3000"]));
    assert_eq!(long.next_line(), "launched");
    let state = || machine.env.status().tasks.iter().find(|task| task.name == "long").map(|task| task.state);
    wait_until("it is scheduled", || state().is_some());
    for _ in 0..3 {
        set(&machine, &long, "--suspend");
        wait_until("it is suspended", || state() == Some(TaskState::Suspended));
        std::thread::sleep(Duration::from_millis(60));
        set(&machine, &long, "--resume");
    }
    assert!(long.next_line().ends_with(" 5"), "wrong data");
    long.expect_success();
}

//! The CUDA hooks on a machine without a GPU: the real library over the stand-in for NVIDIA's driver.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod cuda_machine;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod measured;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cuda_machine::CudaMachine;
use environment::{TestEnvironment, wait_until};
use measured::{percentile, print_latencies, require, retry_comparison};
use test_program::TestProgram;
use xsched_core::{DeviceId, DeviceKind};
use xsched_ipc::protocol::{HintRequest, Reply, Request, Target, TaskState};

const LEVELS: [&[&str]; 3] = [&["--level", "1"], &["--level", "2"], &[]];

fn assert_prints(mut command: Command, expected: &str) {
    let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains(expected), "{command:?}: {out}{err}");
}

#[test]
fn driver_semantics_are_unchanged_for_every_way_to_find_functions() {
    let machine = CudaMachine::new(TestEnvironment::with_service());
    assert_prints(machine.direct(&["semantics"]), "fault");
    for level in LEVELS {
        for program in ["semantics", "semantics-dlsym", "semantics-look-up"] {
            assert_prints(machine.run(level, &[program]), "fault");
        }
    }
}

#[test]
fn data_is_correct_when_suspended_at_arbitrary_times() {
    let machine = CudaMachine::new(TestEnvironment::with_service());
    for (level, program) in LEVELS.into_iter().flat_map(|level| {
        ["chain", "chain-dlsym", "chain-look-up"].into_iter().map(move |program| (level, program))
    }) {
        let options: Vec<_> = level.iter().copied().chain(["--name", program]).collect();
        let mut chain = TestProgram::spawn(machine.run(&options, &[program, "40", "200"]));
        assert_eq!(chain.next_line(), "ready");
        let its_task = || machine.env.status().tasks.into_iter().find(|task| task.name == program);
        wait_until("the program is scheduled", || its_task().is_some());
        let device = DeviceId::new(DeviceKind::Gpu, 6 << 3).0;
        assert_eq!(its_task().unwrap().device, device, "the device ID is made of the PCI address");
        let target = Target::Pid(chain.pid());
        // Delays that are unrelated to the program's own timing.
        for n in 0..20_u64 {
            assert_eq!(machine.env.request(&Request::Suspend(target.clone())), Reply::Done);
            std::thread::sleep(Duration::from_micros(n * 7_919 % 3_000));
            assert_eq!(machine.env.request(&Request::Resume(target.clone())), Reply::Done);
            std::thread::sleep(Duration::from_micros(n * 104_729 % 5_000));
        }
        assert_eq!(chain.next_line(), "240 of 240", "{program} {level:?}");
        assert_eq!(its_task().unwrap().queues, 4, "both default streams and the two it made");

        // Suspended, it does not finish; resumed, it does the remaining work exactly once.
        assert_eq!(machine.env.request(&Request::Suspend(target.clone())), Reply::Done);
        wait_until("the program is suspended", || {
            its_task().is_some_and(|task| task.state == TaskState::Suspended)
        });
        chain.send_newline();
        wait_until("a thread is held", || machine.env.status().queues.iter().any(|queue| queue.ready));
        assert!(
            chain.lines.recv_timeout(Duration::from_millis(100)).is_err(),
            "the program ran while it was suspended"
        );
        assert_eq!(machine.env.request(&Request::Resume(target)), Reply::Done);
        assert_eq!(chain.next_line(), "480 of 480", "{program} {level:?}");
        chain.expect_success();
    }
}

#[test]
fn data_is_correct_without_optional_driver_features() {
    for lacking in
        ["memory-waits", "new-waits", "timeslices", "resource-manager", "memory-waits,resource-manager"]
    {
        let machine = CudaMachine::without_features(TestEnvironment::with_service(), lacking);
        let high = TestProgram::spawn(
            machine.run(&["--priority", "high"], &["load", "requests", "20", "2", "500", "3000"]),
        );
        assert_prints(machine.run(&["--priority", "low"], &["chain-look-up", "20", "100"]), "120 of 120");
        assert_eq!(high.latencies().len(), 20);
    }
}

#[test]
fn unavailable_requested_level_is_reported() {
    let stderr_of = |without: &'static str| {
        let machine = CudaMachine::without_features(TestEnvironment::with_service(), without);
        let mut command = machine.run(&["--level", "3"], &["chain", "4", "100"]);
        let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "ready\n24 of 24\n",
            "the program runs at a lower level"
        );
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert_eq!(stderr_of(""), "", "level 3 is available");
    let warning = stderr_of("resource-manager");
    assert!(warning.contains("channel"), "{warning:?}");
}

#[test]
fn log_gives_the_reason_for_missing_levels() {
    let log_of = |without: &'static str| {
        let machine = CudaMachine::without_features(TestEnvironment::with_service(), without);
        let mut command = machine.run(&[], &["chain", "4", "100"]);
        let output = command.env("XLOG_LEVEL", "INFO").stdin(Stdio::null()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "ready\n24 of 24\n");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(log_of("").contains("CUDA is scheduled at level 3\n"));
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
        let log = log_of(without);
        assert!(log.contains(&format!("CUDA is scheduled {what}")), "{without}: {log}");
    }
}

#[test]
fn forked_processes_use_the_driver_as_without_the_scheduler() {
    let machine = CudaMachine::new(TestEnvironment::with_service());
    assert_prints(machine.direct(&["gpu-family"]), "done");
    for level in LEVELS {
        assert_prints(machine.run(level, &["gpu-family"]), "done");
    }
}

/// Ten kernels, 5 ms in all, every 15 ms.
const REQUESTS: [&str; 6] = ["load", "requests", "60", "10", "500", "15000"];
/// Kernels of 5 ms, launched back to back.
const BATCH: [&str; 4] = ["load", "batch", "16", "5000"];
const HIGH_PRIORITY: [&str; 4] = ["--priority", "high", "--name", "high"];
const LOW_PRIORITY: [&str; 4] = ["--priority", "low", "--name", "low"];

#[test]
fn requests_beside_batch_are_much_faster_than_unscheduled() {
    let measure = || {
        let alone =
            TestProgram::spawn(CudaMachine::new(TestEnvironment::without_service()).direct(&REQUESTS))
                .latencies();
        let native = {
            let machine = CudaMachine::new(TestEnvironment::without_service());
            let batch = TestProgram::spawn(machine.direct(&BATCH));
            batch.next_line();
            TestProgram::spawn(machine.direct(&REQUESTS)).latencies()
        };
        let scheduled = {
            let machine = CudaMachine::new(TestEnvironment::with_service());
            let batch = TestProgram::spawn(machine.run(&LOW_PRIORITY, &BATCH));
            batch.next_line();
            let latencies = TestProgram::spawn(machine.run(&HIGH_PRIORITY, &REQUESTS)).latencies();
            batch.next_line();
            latencies
        };
        print_latencies(&[("alone", &alone), ("native", &native), ("scheduled", &scheduled)]);
        [alone, native, scheduled]
    };
    retry_comparison(measure, |scenarios| {
        for percent in [50, 90] {
            let [alone, native, scheduled] =
                [0, 1, 2].map(|scenario| percentile(&scenarios[scenario], percent));
            let describe = || format!("alone {alone} us, native {native} us, scheduled {scheduled} us");
            require(2 * native > 3 * alone, || {
                format!("the batch does not slow native requests: {}", describe())
            })?;
            require(2 * scheduled < alone + native, || {
                format!("scheduling gains too little: {}", describe())
            })?;
        }
        Ok(())
    });
}

/// Destroying a context destroys its streams and unmaps the memory that the device could access.
#[test]
fn programs_that_create_and_destroy_contexts_run_as_unscheduled() {
    const ROUNDS: [&str; 3] = ["6", "4", "300"];
    let expected: Vec<_> = (1..=6).map(|round| round.to_string()).collect();
    for program in ["contexts", "contexts-dlsym", "contexts-look-up"] {
        let program = [&[program], &ROUNDS[..]].concat();
        assert_eq!(
            TestProgram::spawn(CudaMachine::new(TestEnvironment::without_service()).direct(&program))
                .remaining_lines(),
            expected
        );
        let machine = CudaMachine::new(TestEnvironment::with_service());
        let _high = TestProgram::spawn(
            machine.run(&HIGH_PRIORITY, &["load", "requests", "1000000", "2", "500", "3000"]),
        );
        let _peer = TestProgram::spawn(machine.run(&LOW_PRIORITY, &["load", "batch", "2", "500"]));
        for level in ["1", "2", "3"] {
            let options = ["--priority", "low", "--level", level];
            assert_eq!(
                TestProgram::spawn(machine.run(&options, &program)).remaining_lines(),
                expected,
                "level {level}"
            );
        }
    }
}

#[test]
fn killing_the_leader_resumes_the_held_program() {
    let machine = CudaMachine::new(TestEnvironment::with_service());
    let low = TestProgram::spawn(machine.run(&LOW_PRIORITY, &["load", "batch", "1", "1000"]));
    low.next_line();
    // Busy for a minute without an idle gap.
    let mut high =
        TestProgram::spawn(machine.run(&HIGH_PRIORITY, &["load", "requests", "1", "600", "100000", "1"]));
    let is_held = || {
        let tasks = machine.env.status().tasks;
        tasks.iter().any(|task| task.name == "low" && task.state == TaskState::Held)
    };
    wait_until("the program is held", is_held);
    wait_until("the program makes no step", || low.lines.recv_timeout(Duration::from_millis(100)).is_err());
    high.kill();
    let killed = Instant::now();
    low.next_line();
    println!("{:?} from the kill to the completion of the next kernel of 1 ms", killed.elapsed());
    for _ in 0..20 {
        low.next_line();
    }
}

#[test]
fn programs_keep_running_with_correct_data_when_the_service_dies() {
    let mut env = TestEnvironment::with_service();
    env.kill_service();
    env.start_service();
    let mut machine = CudaMachine::new(env);
    let mut low = TestProgram::spawn(machine.run(&LOW_PRIORITY, &["chain", "60", "300"]));
    let high = TestProgram::spawn(machine.run(&HIGH_PRIORITY, &REQUESTS));
    assert_eq!(low.next_line(), "ready");
    high.next_line();
    machine.env.kill_service();
    assert_eq!(low.next_line(), "360 of 360");
    assert_eq!(high.latencies().len(), 59);
    machine.env.start_service();
    wait_until("the program joins the new service", || {
        machine.env.status().tasks.iter().any(|task| task.name == "low")
    });
    low.send_newline();
    assert_eq!(low.next_line(), "720 of 720");
    low.expect_success();
}

#[test]
fn streams_of_different_priority_that_wait_for_each_other_complete() {
    let machine = CudaMachine::new(TestEnvironment::with_service());
    for high in 0..2 {
        let mut program = TestProgram::spawn(machine.run(&["--name", "cross"], &["cross"]));
        assert_eq!(program.next_line(), "ready");
        let pid = program.child.id();
        let its_queues = || machine.env.status().queues.into_iter().filter(|queue| queue.pid == pid);
        wait_until("the service knows both queues", || its_queues().count() == 2);
        for (n, queue) in its_queues().enumerate() {
            let priority = Some(if n == high { 100 } else { -100 });
            let hint_request = HintRequest { priority, ..HintRequest::default() };
            assert_eq!(
                machine.env.request(&Request::SetQueue { queue: queue.handle, hint_request }),
                Reply::Done
            );
        }
        program.send_newline();
        assert_eq!(program.next_line(), "200");
        program.expect_success();
    }
}

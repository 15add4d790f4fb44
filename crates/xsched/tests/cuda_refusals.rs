//! Missing driver features and invalid requests: each causes one clear line, and the program runs. On the stand-in for
//! NVIDIA's driver.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod cuda_machine;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::process::{Command, Output, Stdio};

use cuda_machine::CudaMachine;
use environment::{TestEnvironment, wait_until};
use test_program::TestProgram;

const CHAIN: [&str; 3] = ["chain", "4", "100"];
const CHAINED: &str = "ready\n24 of 24\n";

fn output(mut command: Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap()
}

/// Standard output and standard error as text.
fn text_of(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// The standard error of a program that completes on a machine without some features.
fn stderr_without(without: &'static str, options: &[&str], environment: &[(&str, &str)]) -> String {
    let machine = CudaMachine::without_features(TestEnvironment::with_service(), without);
    let mut command = machine.run(options, &CHAIN);
    command.envs(environment.iter().copied());
    let (out, err) = text_of(&output(command));
    assert_eq!(out, CHAINED, "the program did not complete: {err}");
    err
}

/// The levels of a program's queues without a requested level.
fn levels(without: &'static str) -> Vec<u8> {
    let machine = CudaMachine::without_features(TestEnvironment::with_service(), without);
    let chain = TestProgram::spawn(machine.run(&[], &CHAIN));
    assert_eq!((chain.next_line(), chain.next_line()), ("ready".to_owned(), "24 of 24".to_owned()));
    wait_until("the service knows all queues", || machine.env.status().queues.len() == 4);
    let mut levels: Vec<_> = machine.env.status().queues.iter().map(|queue| queue.level).collect();
    levels.dedup();
    levels
}

#[test]
fn unknown_level_is_named() {
    let machine = CudaMachine::new(TestEnvironment::with_service());
    let rejected = output(machine.run(&["--level", "9"], &CHAIN));
    let (out, err) = text_of(&rejected);
    assert_eq!((rejected.status.code(), out.as_str()), (Some(125), ""));
    assert!(err.contains("level `9` does not exist: use auto, 1, 2 or 3"), "{err}");

    // `xsched run` reports the variable once, whether or not the library logs.
    let bad = [("XSCHED_AUTO_XQUEUE_LEVEL", "9"), ("XLOG_LEVEL", "WARN")];
    for environment in [&bad[..1], &bad] {
        let err = stderr_without("", &[], environment);
        assert!(err.contains("XSCHED_AUTO_XQUEUE_LEVEL is ignored: level `9` does not exist"), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
    }
}

#[test]
fn unavailable_level_is_reported_with_the_reason() {
    let mps = tempfile::tempdir().unwrap();
    std::fs::write(mps.path().join("control"), "").unwrap();
    let mps = [("CUDA_MPS_PIPE_DIRECTORY", mps.path().to_str().unwrap())];
    let cases = [
        ("memory-waits", "2", &[][..], ["not 2", "waits in a stream"]),
        ("new-waits", "2", &[], ["not 2", "waits in a stream"]),
        ("timeslices", "3", &[], ["level 2, not 3", "refuses control 0xa06c0103"]),
        ("resource-manager", "3", &[], ["level 2, not 3", "no channel group of the program was seen"]),
        ("resource-manager", "3", &mps, ["level 2, not 3", "MPS"]),
    ];
    for (without, level, environment, expected) in cases {
        let err = stderr_without(without, &["--level", level], environment);
        for words in expected {
            assert!(err.contains(words), "without {without}, level {level}: {err:?}");
        }
        let variable = [&[("XSCHED_AUTO_XQUEUE_LEVEL", level)], environment].concat();
        let by_variable = stderr_without(without, &[], &variable);
        assert!(by_variable.contains(expected[1]), "without {without}, by variable: {by_variable:?}");
        assert_eq!(err.lines().count(), 1, "{err}");
    }
}

#[test]
fn default_level_is_the_highest_available() {
    for (without, expected) in [
        ("", 3),
        ("memory-waits", 3),
        ("new-waits", 3),
        ("timeslices", 2),
        ("resource-manager", 2),
        ("memory-waits,timeslices", 1),
        ("new-waits,resource-manager", 1),
    ] {
        assert_eq!(levels(without), [expected], "without {without}");
    }
}

#[test]
fn program_without_device_or_driver_fails_as_unscheduled() {
    let machine = CudaMachine::with_devices(TestEnvironment::with_service(), "0");
    for (program, driver) in
        [("chain", true), ("chain-dlsym", true), ("chain-look-up", false), ("chain-dlsym", false)]
    {
        let [native, scheduled] =
            [machine.direct(&[program, "4", "100"]), machine.run(&[], &[program, "4", "100"])].map(
                |mut command| {
                    command.env("XLOG_LEVEL", "DEBG");
                    if !driver {
                        command.env("LD_LIBRARY_PATH", "/nowhere").env_remove("LD_PRELOAD");
                    }
                    let output = output(command);
                    (output.status.code(), text_of(&output))
                },
            );
        assert!(native.0 != Some(0) && !native.1.1.is_empty(), "{native:?}");
        assert_eq!(native, scheduled, "{program}");
        assert!(machine.env.status().tasks.is_empty());
    }
}

#[test]
fn two_copies_schedule_a_program_once() {
    let machine = CudaMachine::new(TestEnvironment::with_service());
    let copy = machine.env.file("libxsched.so", "");
    std::fs::copy(machine.env.library("libxsched.so"), &copy).unwrap();
    for program in ["chain", "chain-dlsym", "chain-look-up"] {
        let mut command = machine.direct(&[program, "4", "100"]);
        let standin =
            command.get_envs().find(|(name, _)| *name == "LD_PRELOAD").unwrap().1.unwrap().to_owned();
        let library = machine.env.library("libxsched.so");
        command
            .env("LD_PRELOAD", format!("{library}:{copy}:{}", standin.display()))
            .env("XSCHED_SCHEDULER", "GLB")
            .env("XSCHED_AUTO_XQUEUE", "ON");
        let mut chain = TestProgram::spawn(command);
        assert_eq!((chain.next_line(), chain.next_line()), ("ready".to_owned(), "24 of 24".to_owned()));
        wait_until("the service has removed the previous program", || machine.env.status().tasks.len() == 1);
        let tasks = machine.env.status().tasks;
        assert_eq!(
            tasks.iter().map(|task| (task.pid, task.queues)).collect::<Vec<_>>(),
            [(chain.pid(), 4)],
            "{program}"
        );
        assert_eq!(machine.env.status().queues[0].level, 3, "{program}: no channels found");
        chain.send_newline();
        assert_eq!(chain.next_line(), "48 of 48");
        chain.expect_success();
    }
}

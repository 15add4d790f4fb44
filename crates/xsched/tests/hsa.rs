//! Programs that use `ROCr` without HIP, on a machine without a GPU. They have no HIP functions to hook, so the library
//! intercepts them through `ROCr`'s tools interface.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod hip_environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod measured;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::os::unix::process::ExitStatusExt as _;

use environment::{TestEnvironment, wait_until};
use hip_environment::{HipEnvironment, hip_build, output_of, stdout_of};
use measured::{require, retry_comparison};
use test_program::TestProgram;
use xsched_ipc::protocol::TaskState;

const HIGH_PRIORITY: [&str; 4] = ["--priority", "high", "--name", "high"];
const LOW_PRIORITY: [&str; 4] = ["--priority", "low", "--name", "low"];
const FORMS: &str = "651 packets, 651 done\n";

/// A program that always has work.
fn spawn_background_load(hip: &HipEnvironment) -> TestProgram {
    let load = TestProgram::spawn(hip.run(&LOW_PRIORITY, &["linked", "work", "100000", "6", "500"]));
    load.next_line();
    load
}

#[test]
fn every_packet_arrives_once_for_every_way_to_get_the_table() {
    // As a tool found in the process, as a tool named by HSA_TOOLS_LIB, through rocprofiler-register.
    for way in ["HSA_STANDIN", "HSA_STANDIN_OLD", "HSA_STANDIN_REGISTER"] {
        let hip =
            HipEnvironment::new(TestEnvironment::with_service()).with("XLOG_LEVEL", "INFO").with(way, "1");
        let _load = spawn_background_load(&hip);
        assert_eq!(stdout_of(hip.direct(&["hsa", "forms"])), FORMS);
        for priority in ["high", "-100"] {
            let output = output_of(&mut hip.run(&["--priority", priority], &["hsa", "forms"]));
            let log = String::from_utf8_lossy(&output.stderr);
            assert_eq!(String::from_utf8_lossy(&output.stdout), FORMS, "{priority}: {log}");
            let way = log
                .lines()
                .filter(|line| line.contains("HSA is scheduled by ROCr's tools interface"))
                .count();
            assert_eq!(way, 1, "{log}");
        }
        assert_eq!(
            stdout_of(hip.run(&HIGH_PRIORITY, &["hsa", "again"])),
            FORMS.repeat(2),
            "after a second hsa_init"
        );
    }
}

#[test]
fn hsa_program_is_a_task_on_the_same_device_as_hip_programs() {
    let hip = HipEnvironment::new(TestEnvironment::with_service());
    let low = TestProgram::spawn(hip.run(&LOW_PRIORITY, &["hsa", "work", "100000", "6", "500"]));
    low.next_line();
    let task = |name: &str| hip.env.status().tasks.into_iter().find(|task| task.name == name);
    wait_until("the program is scheduled", || task("low").is_some_and(|task| task.queues == 2));
    assert!(hip.env.status().queues.iter().all(|queue| queue.level == 3), "the driver stops queues");
    // The HIP program and the HSA program share the device, by its PCI address.
    let high = TestProgram::spawn(hip.run(&HIGH_PRIORITY, &["linked", "work", "1", "100", "20000"]));
    wait_until("the HIP program of higher priority holds it", || {
        task("low").is_some_and(|task| task.state == TaskState::Held)
    });
    wait_until("the queues are inactive", || hip.driver_log().contains(" share 0 "));
    assert_eq!(task("low").map(|task| task.device), task("high").map(|task| task.device));
    drop(high);
    low.lines.try_iter().for_each(drop);
    for _ in 0..3 {
        low.next_line();
    }
}

#[test]
fn request_latency_beside_a_batch_is_close_to_alone() {
    const REQUESTS: [&str; 6] = ["hsa", "requests", "40", "8", "1000", "20"];
    let measure = || {
        let median = |command| {
            let program = TestProgram::spawn(command);
            let mut latencies: Vec<u64> = (0..40).map(|_| program.next_line().parse().unwrap()).collect();
            latencies.sort_unstable();
            latencies[latencies.len() / 2]
        };
        let alone = median(HipEnvironment::new(TestEnvironment::without_service()).direct(&REQUESTS));
        let beside = |options: &[&str], kernel_us: &str| {
            let hip = HipEnvironment::new(TestEnvironment::with_service());
            let low: Vec<_> = LOW_PRIORITY.iter().chain(options).copied().collect();
            let batch = TestProgram::spawn(hip.run(&low, &["hsa", "work", "100000", "6", kernel_us]));
            batch.next_line();
            let latency = median(hip.run(&HIGH_PRIORITY, &REQUESTS));
            batch.lines.try_iter().for_each(drop);
            batch.next_line();
            latency
        };
        // Without the scheduler.
        let hip = HipEnvironment::new(TestEnvironment::without_service());
        let batch = TestProgram::spawn(hip.direct(&["hsa", "work", "100000", "6", "20000"]));
        batch.next_line();
        let native = median(hip.direct(&REQUESTS));
        drop(batch);
        let level_3 = beside(&[], "20000");
        let level_1 = beside(&["--level", "1", "--budget", "4ms"], "2000");
        println!(
            "alone {alone} us; beside 20 ms {native} us, at level 3 {level_3} us; level 1 beside 2 ms {level_1} us"
        );
        (alone, native, level_3, level_1)
    };
    retry_comparison(measure, |(alone, native, level_3, level_1)| {
        let describe =
            || format!("alone {alone} us, native {native} us, level 3 {level_3} us, level 1 {level_1} us");
        // Scheduling removes at least half of the delay that the batch causes, even on a busy machine.
        require(2 * level_3.saturating_sub(alone) <= native.saturating_sub(alone), describe)?;
        // The window of 4 ms, one more command of 2 ms, and the switch between the programs.
        require(level_1 <= alone + 4000 + 2000 + alone / 2, describe)
    });
}

#[test]
fn another_tool_keeps_working() {
    let tool = hip_build().programs.join("libhsatool.so");
    let hip = HipEnvironment::new(TestEnvironment::with_service())
        .with("XLOG_LEVEL", "INFO")
        .with("HSA_TOOLS_LIB", &tool);
    let expected = "round 0\nround 1\nround 2\nthe tool saw 2 queues and every doorbell\n";
    assert_eq!(stdout_of(hip.direct(&["hsa", "work", "3", "7", "100"])), expected);
    let output = output_of(&mut hip.run(&HIGH_PRIORITY, &["hsa", "work", "3", "7", "100"]));
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{log}");
    assert!(log.contains("HSA is scheduled by ROCr's tools interface"), "{log}");
}

#[test]
fn runtime_configured_with_the_library_needs_no_preload() {
    let hip = HipEnvironment::new(TestEnvironment::with_service()).with("XLOG_LEVEL", "INFO");
    let mut command = hip.direct(&["hsa", "again"]);
    command.env("HSA_TOOLS_LIB", hip.env.library("libxsched.so"));
    let output = output_of(command.env("XSCHED_SCHEDULER", "GLB").env("XSCHED_AUTO_XQUEUE", "ON"));
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), FORMS.repeat(2), "{log}");
    assert!(log.contains("HSA is scheduled by ROCr's tools interface"), "{log}");
    assert!(
        log.contains("HSA is scheduled at level 1: none of the program's calls to /dev/kfd was seen"),
        "{log}"
    );
}

#[test]
fn hip_hooks_handle_the_queues_when_hip_is_loaded() {
    let hip = HipEnvironment::new(TestEnvironment::with_service())
        .with("XLOG_LEVEL", "INFO")
        .with("HIP_RUNTIME", hip_build().runtime.join("libamdhip64.so.6"));
    let output = output_of(&mut hip.run(&HIGH_PRIORITY, &["hsa", "forms"]));
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), FORMS, "{log}");
    assert!(log.contains("ROCr's queues are left to libamdhip64.so"), "{log}");
    assert!(!log.contains("HSA is scheduled"), "{log}");
}

#[test]
fn table_of_unexpected_size_is_not_modified() {
    // A table of 352 bytes lacks one of the needed functions.
    for size in ["0", "16", "352"] {
        let hip = HipEnvironment::new(TestEnvironment::with_service())
            .with("XLOG_LEVEL", "WARN")
            .with("HSA_STANDIN_SIZE", size);
        let output = output_of(&mut hip.run(&HIGH_PRIORITY, &["hsa", "forms"]));
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(String::from_utf8_lossy(&output.stdout), FORMS, "{size}: {log}");
        assert!(log.contains("a ROCr runtime's table of functions is not as expected"), "{size}: {log}");
    }
}

/// What `hsa_interface.c` prints for each feature.
const INTERFACE: [(&[&str], &str); 7] = [
    (
        &["errors"],
        "a size that is no power of two: HSA_STATUS_ERROR_INVALID_ARGUMENT\n\
         too many packets: HSA_STATUS_ERROR_OUT_OF_RESOURCES\n\
         too few packets: HSA_STATUS_ERROR_INVALID_ARGUMENT\n\
         a queue of the CPU: HSA_STATUS_ERROR\n\
         no agent: HSA_STATUS_ERROR_INVALID_AGENT\n\
         no attribute: HSA_STATUS_ERROR_INVALID_ARGUMENT\n\
         no queue: HSA_STATUS_ERROR_INVALID_QUEUE\n\
         no pool: HSA_STATUS_ERROR_INVALID_MEMORY_POOL\n\
         no bytes: HSA_STATUS_ERROR_INVALID_ARGUMENT\n\
         too many bytes: HSA_STATUS_ERROR_INVALID_ALLOCATION\n\
         not allocated: HSA_STATUS_ERROR_INVALID_ALLOCATION\n\
         not locked: HSA_STATUS_ERROR\n\
         no signal: HSA_STATUS_ERROR_INVALID_ARGUMENT\n\
         no memory left: HSA_STATUS_ERROR_OUT_OF_RESOURCES\n",
    ),
    (&["doorbell"], "0 left\n"),
    (
        &["signals"],
        "signal 0, value 0, 3 calls, one thread 1\ntimeout 1\nthe child answers 2 and exits with 0\n",
    ),
    (&["copies"], "waits 1, data right, in order 1\n"),
    (&["destruction"], "3 handlers returned before the queue was destroyed\n"),
    (&["fault", "handled"], "event 0 at the address 1\n1 faults, done 1\n"),
    (&["threads"], "4 more threads, 0 after the end\nafter the end: HSA_STATUS_ERROR_NOT_INITIALIZED\n"),
];

#[test]
fn standin_behaves_as_rocr() {
    let hip = HipEnvironment::new(TestEnvironment::without_service());
    for (words, expected) in INTERFACE {
        let words = [&["hsa_interface"], words].concat();
        assert_eq!(stdout_of(hip.direct(&words)), expected, "{words:?}");
    }
    // Without a handler for it, a memory fault ends the process.
    let output = output_of(&mut hip.direct(&["hsa_interface", "fault"]));
    assert_eq!(output.status.signal(), Some(6), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.starts_with("Memory access fault by GPU node-1 on address 0x"), "{text}");
}

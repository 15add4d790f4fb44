//! Device memory of CUDA programs on a machine without a GPU: what is counted, and the limit.
//!
//! The program `memory` compares what the driver reports with a model of its own. Under a limit the reported amounts are those
//! that the library counts.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod cuda_machine;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;

use std::process::{Command, Output, Stdio};

use cuda_machine::CudaMachine;
use environment::TestEnvironment;

/// The memory of the simulated GPU.
const DEVICE_MIB: &str = "512";
const LIMIT: &str = "128M";

/// The ways to find the driver's functions.
const PROGRAMS: [&str; 3] = ["memory", "memory-dlsym", "memory-look-up"];

fn machine() -> CudaMachine {
    CudaMachine::new(TestEnvironment::without_service())
}

/// The program in a process with the library, but without a scheduler.
fn preloaded(machine: &CudaMachine, program: &[&str], limit: Option<&str>) -> Command {
    let mut command = machine.direct(program);
    let libraries = format!("{}:{}", machine.env.library("libxsched.so"), cuda_machine::driver().display());
    command.env("LD_PRELOAD", libraries).env("XSCHED_STANDIN_CUDA_MEMORY_MIB", DEVICE_MIB);
    match limit {
        Some(limit) => command.env("XSCHED_MEMORY", limit),
        None => command.env_remove("XSCHED_MEMORY"),
    };
    command
}

fn output_of(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.ends_with("done\n"), "{command:?}: {text}{errors}");
    output
}

fn lines_of(command: &mut Command) -> Vec<String> {
    let output = output_of(command);
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn every_form_of_memory_is_counted_and_released() {
    let machine = machine();
    for program in PROGRAMS {
        output_of(&mut preloaded(&machine, &[program, "forms"], Some(LIMIT)));
    }
    for limit in [None, Some("25%")] {
        output_of(&mut preloaded(&machine, &["memory", "forms"], limit));
    }
}

#[test]
fn random_sequences_of_allocations_match_a_model() {
    let machine = machine();
    for seed in ["1", "2", "3", "4", "5", "6"] {
        output_of(&mut preloaded(&machine, &["memory", "random", seed, "300"], Some(LIMIT)));
    }
    let command = &mut preloaded(&machine, &["memory", "random", "7", "300"], None);
    output_of(command.env("XSCHED_STANDIN_CUDA_MEMORY_MIB", "128"));
}

#[test]
fn allocations_fail_exactly_at_the_limit() {
    let machine = machine();
    let reached = |program: &str, limit: Option<&str>| {
        lines_of(&mut preloaded(&machine, &[program, "limit"], limit)).swap_remove(0)
    };
    for program in PROGRAMS {
        assert_eq!(reached(program, Some("128M")), "128", "{program}");
    }
    for (limit, expected) in [(Some("129M"), "128"), (Some("25%"), "128"), (None, DEVICE_MIB)] {
        assert_eq!(reached("memory", limit), expected, "{limit:?}");
    }
}

#[test]
fn limit_holds_for_concurrent_threads() {
    let machine = machine();
    output_of(&mut preloaded(&machine, &["memory", "threads", "6"], Some("48M")));
}

#[test]
fn memory_ends_with_its_context() {
    let machine = machine();
    for limit in [None, Some(LIMIT)] {
        output_of(&mut preloaded(&machine, &["memory-look-up", "contexts"], limit));
    }
}

#[test]
fn child_after_fork_gets_the_drivers_errors() {
    let machine = machine();
    output_of(&mut preloaded(&machine, &["memory", "family"], Some(LIMIT)));
}

#[test]
fn reported_sizes_are_those_of_the_limit_and_otherwise_unchanged() {
    let machine = machine();
    let native = {
        let mut command = machine.direct(&["memory", "info"]);
        lines_of(command.env("XSCHED_STANDIN_CUDA_MEMORY_MIB", DEVICE_MIB))
    };
    // Total by device, total and free; then the management library's total, free and used.
    assert_eq!(native[..3], ["512 512 412", "512 412 100", "512 412 100"]);
    for program in PROGRAMS {
        assert_eq!(lines_of(&mut preloaded(&machine, &[program, "info"], None)), native, "{program}");
        let limited = lines_of(&mut preloaded(&machine, &[program, "info"], Some("128M")));
        assert_eq!(limited[..3], ["128 128 28", "128 28 100", "128 28 100"], "{program}");
        let percent = lines_of(&mut preloaded(&machine, &[program, "info"], Some("50%")));
        assert_eq!(percent[..3], ["256 256 156", "256 156 100", "256 156 100"], "{program}");
        // A limit above the size of the device changes nothing.
        assert_eq!(lines_of(&mut preloaded(&machine, &[program, "info"], Some("1G"))), native, "{program}");
    }
}

#[test]
fn first_refusal_is_reported_once() {
    let machine = machine();
    let refusals = |level: Option<&str>| {
        let mut command = preloaded(&machine, &["memory", "limit"], Some("64M"));
        match level {
            Some(level) => command.env("XLOG_LEVEL", level),
            None => command.env_remove("XLOG_LEVEL"),
        };
        let errors = output_of(&mut command).stderr;
        let errors = String::from_utf8_lossy(&errors).into_owned();
        errors.lines().filter(|line| line.contains("out of memory")).map(str::to_owned).collect::<Vec<_>>()
    };
    for level in [None, Some("ERRO")] {
        let reported = refusals(level);
        assert_eq!(reported.len(), 1, "{reported:?}");
        for part in ["memory: ", "2M requested", "64M of 64M in use"] {
            assert!(reported[0].contains(part), "{reported:?}");
        }
    }
    assert!(refusals(Some("")).is_empty(), "an empty level disables all lines");
}

#[test]
fn scheduled_program_has_the_limit_too() {
    let machine = CudaMachine::new(TestEnvironment::with_service());
    for program in PROGRAMS {
        let mut command = machine.run(&[], &[program, "forms"]);
        output_of(command.env("XSCHED_STANDIN_CUDA_MEMORY_MIB", DEVICE_MIB).env("XSCHED_MEMORY", LIMIT));
    }
}

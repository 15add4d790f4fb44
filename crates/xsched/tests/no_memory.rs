//! Programs whose memory is used up: the library does not abort them.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;

use std::time::Duration;

use environment::{TestEnvironment, built_program};

/// Runs a program in which the allocations of the library fail, all after the first `allocations`.
fn check(env: &TestEnvironment, shim: &str, allocations: u32) {
    let mut command = env.preloaded(&["work", "-q", "4", "3", "8", "100"]);
    command.env("LD_PRELOAD", format!("{shim}:{}", env.library("libxsched.so")));
    command.env("NO_MEMORY_AFTER", allocations.to_string());
    let output = assert_cmd::Command::from_std(command).timeout(Duration::from_secs(60)).output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success() && text.contains("round 2"),
        "without memory after {allocations} allocations: {}: {text}{errors}",
        output.status
    );
}

#[test]
fn failed_allocations_of_the_library_do_not_end_the_program() {
    let env = TestEnvironment::with_service();
    let shim = built_program("no_memory", &["-shared", "-fPIC", "-ldl"]).display().to_string();
    // Before, while and after the library connects to the service.
    for allocations in (0..200).chain([300, 500, 1000]) {
        check(&env, &shim, allocations);
    }
}

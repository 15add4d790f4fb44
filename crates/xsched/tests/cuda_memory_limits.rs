//! `xsched run --memory` with CUDA programs on a machine without a GPU.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod cuda_machine;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;

use cuda_machine::CudaMachine;
use environment::TestEnvironment;

/// How many MiB a program can allocate under these options, on a device with 512.
fn reached(machine: &CudaMachine, options: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = machine.run(options, &["memory", "limit"]);
    command.env("XSCHED_STANDIN_CUDA_MEMORY_MIB", "512").envs(variables.iter().copied());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{options:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned()
}

#[test]
fn limit_of_the_option_holds_and_takes_precedence_over_variables() {
    let machine = CudaMachine::new(TestEnvironment::with_service());
    assert_eq!(reached(&machine, &["--memory", "128M"], &[]), "128");
    assert_eq!(reached(&machine, &["--memory", "25%"], &[]), "128");
    assert_eq!(reached(&machine, &[], &[]), "512");
    let hami = [("CUDA_DEVICE_MEMORY_LIMIT_0", "64m"), ("GPU_MEMORY_LIMIT", "32M")];
    assert_eq!(reached(&machine, &[], &hami), "64");
    assert_eq!(reached(&machine, &["--memory", "128M"], &hami), "128");
}

#[test]
fn invalid_limits_are_one_clear_line() {
    let env = TestEnvironment::without_service();
    for (limit, expected) in [
        ("0", "less than 1M"),
        ("20X", "unknown unit"),
        ("120%", "allowed is 1% to 100%"),
        ("-5G", "is not a size"),
    ] {
        let output = env.run(&["--memory", limit], &["true"]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(125), "{error}");
        assert!(error.lines().next().unwrap().contains(expected), "{error}");
    }
}

//! The device memory of HIP programs, counted and limited: on the stand-in for AMD's runtime, and on AMD's own where there is a root.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod hip_environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod rocm_environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod skipped;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use environment::{TestEnvironment, wait_until};
use hip_environment::{HipEnvironment, hip_build, stdout_of};
use rocm_environment::{Rocm, RocmEnvironment};
use test_program::TestProgram;

const LIMITED: [&str; 2] = ["--memory", "64M"];
const LIMIT: u64 = 64 << 20;

/// The forms of allocation that both runtimes have, those of the stand-in, and that of AMD's runtime. AMD's has no arrays on a device
/// without images, as the stand-in for `ROCr` is.
const FORMS: [&str; 7] = [
    "hipMalloc",
    "hipExtMallocWithFlags",
    "hipMallocManaged",
    "hipMallocAsync",
    "hipMallocPitch",
    "hipMemAllocPitch",
    "hipMalloc3D",
];
const ARRAYS: [&str; 4] = ["hipMallocArray", "hipMalloc3DArray", "hipArrayCreate", "hipArray3DCreate"];
const PHYSICAL: [&str; 1] = ["hipMemCreate"];

/// The program, linked and with functions that it looks up.
fn programs() -> [String; 2] {
    static BUILT: OnceLock<()> = OnceLock::new();
    let build = hip_build();
    let programs = ["memory_limit", "memory_limit_looked_up"];
    BUILT.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/hip/memory_limit.c");
        for program in programs {
            // Renamed atomically: another test process may be running the old file.
            let draft = build.programs.join(format!("{program}.{}", std::process::id()));
            let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
            compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-o"]).arg(&draft).arg(&source);
            if program == programs[0] {
                compiler.arg(build.runtime.join("libamdhip64.so.6"));
            } else {
                compiler.arg("-DLOOK_UP");
            }
            let output = compiler.args(["-ldl", "-lpthread"]).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            std::fs::rename(&draft, build.programs.join(program)).unwrap();
        }
    });
    programs.map(str::to_owned)
}

/// A machine on which programs run with options of `xsched run`, or directly without any.
type Run<'a> = &'a dyn Fn(&[&str], &[&str]) -> String;

/// Calls `check` with programs that are intercepted by the runtime's table and by the names of its functions.
fn on_the_standin(check: impl Fn(Run, &[&str])) {
    for (program, by_table) in programs().into_iter().zip([true, false]) {
        let mut hip = HipEnvironment::new(TestEnvironment::with_service());
        if !by_table {
            hip = hip.with("HIP_STANDIN_NO_REGISTER", "1");
        }
        println!("{program}, by table: {by_table}");
        let run = |options: &[&str], words: &[&str]| {
            let words = [&[program.as_str()], words].concat();
            stdout_of(if options.is_empty() { hip.direct(&words) } else { hip.run(options, &words) })
        };
        check(&run, &[&FORMS[..], &ARRAYS].concat());
    }
}

/// Calls `check` with AMD's runtimes, if they are there.
fn on_amds_runtime(check: impl Fn(Run, &[&str])) {
    for rocm in Rocm::ALL {
        let Some(hip) = RocmEnvironment::with_service(rocm) else { continue };
        let Some(program) = hip.compile("memory_limit.c") else { continue };
        let run = |options: &[&str], words: &[&str]| {
            let words = [&[program.as_str()], words].concat();
            stdout_of(if options.is_empty() { hip.direct(&words) } else { hip.run(options, &words) })
        };
        check(&run, &[&FORMS[..], &PHYSICAL].concat());
    }
}

fn assert_counted(run: Run, forms: &[&str]) {
    let mut expected: Vec<_> =
        forms.iter().map(|form| format!("{form}: error 0, 8 MiB, then error 0, 0")).collect();
    if forms.contains(&"hipMemCreate") {
        expected.push("mapped: 8 MiB, then 0".to_owned());
    }
    expected.push("0".to_owned());
    let counted = run(&LIMITED, &["forms"]);
    assert_eq!(counted.lines().collect::<Vec<_>>(), expected);
    assert_eq!(run(&LIMITED, &["reset"]), "8 MiB, then 0\n8 MiB\n");
}

fn assert_refused(run: Run, _forms: &[&str]) {
    let mut expected = vec!["64 MiB, then error 2, last error 2 2 0".to_owned()];
    // The runtime is not asked whether it has the form.
    let forms = [&FORMS[..], &ARRAYS, &PHYSICAL].concat();
    expected.extend(forms.iter().map(|form| format!("{form}: error 2, last error 2")));
    expected.extend(["1 MiB and 1 byte: error 2".to_owned(), "0".to_owned()]);
    let refused = run(&LIMITED, &["refusals"]);
    assert_eq!(refused.lines().collect::<Vec<_>>(), expected);
}

fn assert_sizes(run: Run, _forms: &[&str]) {
    let numbers = |text: String| -> Vec<u64> {
        text.split_whitespace().map(|number| number.parse().unwrap()).collect()
    };
    assert_eq!(numbers(run(&LIMITED, &["sizes"])), [LIMIT; 4]);
    let native = numbers(run(&[], &["sizes"]));
    assert!(native.iter().all(|size| *size > LIMIT), "{native:?}");
    let half: Vec<_> = native.iter().map(|size| size / 2).collect();
    assert_eq!(numbers(run(&["--memory", "50%"], &["sizes"])), half);
    assert_eq!(numbers(run(&["--priority", "high"], &["sizes"])), native, "without a limit");
}

fn assert_same_codes_without_a_limit(run: Run, _forms: &[&str]) {
    assert_eq!(run(&["--priority", "high"], &["codes"]), run(&[], &["codes"]));
}

#[test]
fn every_form_of_allocation_is_counted() {
    on_the_standin(assert_counted);
    on_amds_runtime(assert_counted);
}

#[test]
fn allocations_beyond_the_limit_fail_as_the_runtime_fails_them() {
    on_the_standin(assert_refused);
    on_amds_runtime(assert_refused);
}

#[test]
fn device_has_the_size_of_the_limit() {
    on_the_standin(assert_sizes);
    on_amds_runtime(assert_sizes);
}

#[test]
fn programs_without_a_limit_get_the_same_codes_as_unscheduled() {
    on_the_standin(assert_same_codes_without_a_limit);
    on_amds_runtime(assert_same_codes_without_a_limit);
}

#[test]
fn threads_that_allocate_and_free_at_random_are_counted() {
    let check = |run: Run, _: &[&str]| {
        for seed in ["1", "2"] {
            // Four threads hold up to 96 MiB.
            assert_eq!(run(&["--memory", "32M"], &["random", seed]), "refused some same\n", "{seed}");
        }
    };
    on_the_standin(check);
    on_amds_runtime(check);
}

#[test]
fn status_lists_the_memory_of_a_program_without_a_limit() {
    let hip = HipEnvironment::new(TestEnvironment::with_service());
    // It has 8 bytes, for which the driver allocates a page.
    let _program = TestProgram::spawn(hip.run(&[], &["linked", "reads", "1", "100", "1000"]));
    let task = || hip.env.status().tasks.into_iter().next();
    wait_until("the memory is listed", || task().is_some_and(|task| task.memory_bytes == Some(4096)));
    assert_eq!(task().unwrap().memory_limit_bytes, None);
}

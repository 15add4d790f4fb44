//! Programs for `CoreX` as real processes: on a variant of the stand-in for CUDA that lacks functions newer than CUDA 10.2, the version of `CoreX`'s
//! runtime library, and NVIDIA's resource manager.
//!
//! The programs are in C and contain no XSched code, except the one that tests the C interface.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod c_program;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod measured;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod vendor_programs;

use environment::TestEnvironment;
use vendor_programs::{Load, VendorMachine, VendorPrograms};

static PROGRAMS: VendorPrograms = VendorPrograms {
    name: "corex",
    libraries: &[("libcuda.so.1", "cuda")],
    // Newer than CUDA 10.2.
    lacks: &[
        "cuGetProcAddress",
        "cuGetProcAddress_v2",
        "cuStreamWaitValue32_v2",
        "cuStreamWriteValue32_v2",
        "cuLaunchKernelEx",
        "cuMemAllocAsync",
        "cuMemPoolCreate",
        "cuCtxSynchronize_v2",
        "cuDevicePrimaryCtxRelease_v2",
        "cuDevicePrimaryCtxReset_v2",
    ],
    linked: &["compute", "requests", "capi"],
    opened: None,
};

/// The lines of one round of `compute`.
const STEPS: usize = 4;

fn with_service() -> VendorMachine {
    VendorMachine::new(TestEnvironment::with_service(), &PROGRAMS)
}

fn without_service() -> VendorMachine {
    VendorMachine::new(TestEnvironment::without_service(), &PROGRAMS)
}

#[test]
fn programs_run_as_unscheduled() {
    let output = with_service().assert_same("compute", &["5"], &[]);
    assert_eq!(output.matches("correct").count(), 5 * STEPS, "{output}");
}

#[test]
fn suspended_program_makes_no_step_until_it_is_resumed() {
    with_service().assert_suspended_program_is_held("requests", &["1000000", "2", "100", "0"]);
}

#[test]
fn results_are_correct_under_suspends_and_resumes() {
    with_service().assert_correct_under_suspends("compute");
}

#[test]
fn highest_level_is_1_and_a_higher_one_is_reported() {
    with_service().assert_unavailable_level_is_reported("compute", STEPS);
}

#[test]
fn c_interface_works_on_a_stream() {
    assert_eq!(c_program::printed(&mut without_service().direct("capi", &[])), "correct\n");
}

/// Requests of 20 kernels of 0.2 ms, 5 ms apart, beside kernels of 1 ms that never pause.
#[test]
fn latency_beside_a_batch_is_close_to_alone() {
    let load = Load { requests: &["60", "20", "200", "5"], batch: &["1000000", "20", "1000", "0"] };
    with_service().assert_latency_is_close_to_alone(&without_service(), "CoreX", &load);
}

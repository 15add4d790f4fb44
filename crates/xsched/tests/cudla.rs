//! Programs for cuDLA as real processes, on the stand-ins for `libcudla.so.1` and `libcuda.so.1`. Tasks run on simulated devices.
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

use environment::{TestEnvironment, wait_until};
use test_program::TestProgram;
use vendor_programs::{Load, VendorMachine, VendorPrograms};
use xsched_core::{DeviceId, DeviceKind};

static PROGRAMS: VendorPrograms = VendorPrograms {
    name: "cudla",
    libraries: &[("libcudla.so.1", "cudla"), ("libcuda.so.1", "cuda")],
    lacks: &[],
    linked: &["compute", "requests", "capi"],
    opened: Some("compute"),
};

/// The lines of one round of `compute`.
const STEPS: usize = 7;

fn with_service() -> VendorMachine {
    VendorMachine::new(TestEnvironment::with_service(), &PROGRAMS)
}

fn without_service() -> VendorMachine {
    VendorMachine::new(TestEnvironment::without_service(), &PROGRAMS)
}

#[test]
fn linked_and_opened_programs_run_as_unscheduled() {
    let cudla = with_service();
    for name in ["compute", "compute_opened"] {
        let output = cudla.assert_same(name, &["5"], &[]);
        assert_eq!(output.matches("correct").count(), 5 * STEPS, "{output}");
        assert!(output.ends_with("captured stream: 13\n"), "{output}");
    }
    let without_device = cudla.assert_same("compute", &["1"], &[("XSIM_DEVICE", "/no/such/place/device")]);
    assert_eq!(without_device, "no device: error 3\n");
    cudla.assert_runs_without_the_library("compute_missing");
}

#[test]
fn each_dla_is_a_device() {
    let cudla = with_service();
    for (name, program) in [("linked", "compute"), ("opened", "compute_opened")] {
        let program = TestProgram::spawn(cudla.run(&["--name", name], program, &["1000000"]));
        program.next_line();
        // Two streams and the default stream use the first.
        for (dla, queues) in [("NVIDIA DLA 0", 3), ("NVIDIA DLA 1", 1)] {
            let device = DeviceId::named(DeviceKind::Npu, dla);
            let is_scheduled = || {
                let tasks = cudla.env.status().tasks;
                tasks
                    .iter()
                    .any(|task| task.name == name && DeviceId(task.device) == device && task.queues == queues)
            };
            wait_until("the tasks are scheduled", is_scheduled);
        }
    }
}

#[test]
fn suspended_program_makes_no_step_until_it_is_resumed() {
    let cudla = with_service();
    for kind in ["stream", "default"] {
        cudla.assert_suspended_program_is_held(kind, &["1000000", "2", "100", "0", kind]);
    }
}

#[test]
fn results_are_correct_under_suspends_and_resumes() {
    with_service().assert_correct_under_suspends("compute");
}

#[test]
fn unavailable_level_is_reported_and_the_program_runs() {
    with_service().assert_unavailable_level_is_reported("compute", STEPS);
}

#[test]
fn c_interface_works_on_a_stream() {
    assert_eq!(c_program::printed(&mut without_service().direct("capi", &[])), "correct\n");
}

/// Requests of 20 tasks of 0.2 ms, 5 ms apart, beside tasks of 1 ms that never pause.
#[test]
fn latency_beside_a_batch_is_close_to_alone() {
    let (cudla, native) = (with_service(), without_service());
    for kind in ["stream", "default"] {
        let load = Load {
            requests: &["60", "20", "200", "5", kind],
            batch: &["1000000", "20", "1000", "0", "stream"],
        };
        cudla.assert_latency_is_close_to_alone(&native, kind, &load);
    }
}

//! Programs for VPI as real processes, on the stand-in for `libnvvpi.so`. Algorithms run on the simulated device.
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
mod vendor_programs;

use environment::{TestEnvironment, wait_until};
use test_program::TestProgram;
use vendor_programs::{Load, VendorMachine, VendorPrograms};
use xsched_core::{DeviceId, DeviceKind};
use xsched_ipc::protocol::{Reply, Request, Target};

static PROGRAMS: VendorPrograms = VendorPrograms {
    name: "vpi",
    libraries: &[("libnvvpi.so.3", "vpi")],
    lacks: &[],
    linked: &["compute", "requests", "waits", "capi"],
    opened: Some("compute"),
};

/// The lines of one round of `compute`.
const STEPS: usize = 11;

fn with_service() -> VendorMachine {
    VendorMachine::new(TestEnvironment::with_service(), &PROGRAMS)
}

fn without_service() -> VendorMachine {
    VendorMachine::new(TestEnvironment::without_service(), &PROGRAMS)
}

#[test]
fn linked_and_opened_programs_run_as_unscheduled() {
    let vpi = with_service();
    for name in ["compute", "compute_opened"] {
        let output = vpi.assert_same(name, &["5"], &[]);
        assert_eq!(output.matches("correct").count(), 5 * STEPS, "{output}");
        assert!(output.ends_with("event of another context: 7\n"), "{output}");
    }
    let output = vpi.assert_same("waits", &["3", "40"], &[]);
    assert_eq!(output.matches("correct").count(), 3, "{output}");
    let without_device = vpi.assert_same("compute", &["1"], &[("XSIM_DEVICE", "/no/such/place/device")]);
    assert_eq!(without_device, "no stream: error 8\n");
    vpi.assert_runs_without_the_library("compute_missing");
}

#[test]
fn streams_of_all_contexts_are_scheduled() {
    let vpi = with_service();
    for (name, program) in [("linked", "compute"), ("opened", "compute_opened")] {
        let program = TestProgram::spawn(vpi.run(&["--name", name], program, &["1000000"]));
        program.next_line();
        let its_task = || vpi.env.status().tasks.into_iter().find(|task| task.name == name);
        wait_until("the program is scheduled", || its_task().is_some_and(|task| task.queues == 3));
        assert_eq!(DeviceId(its_task().unwrap().device), DeviceId::named(DeviceKind::Asic, "NVIDIA VPI"));
    }
}

#[test]
fn suspended_program_makes_no_step_until_it_is_resumed() {
    with_service().assert_suspended_program_is_held("pva", &["1000000", "2", "100", "0", "pva"]);
}

#[test]
fn work_on_the_processor_is_not_held() {
    let vpi = with_service();
    let program = TestProgram::spawn(vpi.run(&[], "requests", &["1000000", "2", "100", "0", "cpu"]));
    program.next_line();
    assert_eq!(vpi.env.request(&Request::Suspend(Target::Pid(program.pid()))), Reply::Done);
    for _ in 0..100 {
        assert_ne!(program.next_line(), "wrong");
    }
}

#[test]
fn results_are_correct_under_suspends_and_resumes() {
    with_service().assert_correct_under_suspends("compute");
}

/// A stream that waits for a function of the program must not hold the thread that lets that function return.
#[test]
fn streams_that_wait_for_the_program_complete() {
    let busy = ["1000000", "5", "200", "4", "pva"];
    with_service().assert_waiting_streams_complete(&busy, &["3", "40", "wait"]);
}

#[test]
fn unavailable_level_is_reported_and_the_program_runs() {
    with_service().assert_unavailable_level_is_reported("compute", STEPS);
}

#[test]
fn c_interface_works_on_a_stream() {
    assert_eq!(c_program::printed(&mut without_service().direct("capi", &[])), "correct\n");
}

/// Requests of 20 algorithms of 0.2 ms, 5 ms apart, beside algorithms of 1 ms that never pause.
#[test]
fn latency_beside_a_batch_is_close_to_alone() {
    let load =
        Load { requests: &["60", "20", "200", "5", "pva"], batch: &["1000000", "20", "1000", "0", "pva"] };
    with_service().assert_latency_is_close_to_alone(&without_service(), "VPI", &load);
}

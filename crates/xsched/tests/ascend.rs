//! Programs for Ascend NPUs as real processes, on the stand-in for `libascendcl.so`. Kernels run on the simulated device.
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
use vendor_programs::{HELD_AFTER, Load, VendorMachine, VendorPrograms};
use xsched_core::{DeviceId, DeviceKind};
use xsched_ipc::protocol::{Reply, Request, Target};

static PROGRAMS: VendorPrograms = VendorPrograms {
    name: "ascend",
    libraries: &[("libascendcl.so", "ascend")],
    lacks: &[],
    linked: &["compute", "requests", "waits", "capture", "capi"],
    opened: Some("compute"),
};

fn with_service() -> VendorMachine {
    VendorMachine::new(TestEnvironment::with_service(), &PROGRAMS)
}

fn without_service() -> VendorMachine {
    VendorMachine::new(TestEnvironment::without_service(), &PROGRAMS)
}

#[test]
fn linked_and_opened_programs_run_as_unscheduled() {
    let ascend = with_service();
    for name in ["compute", "compute_opened"] {
        let output = ascend.assert_same(name, &["5"], &[]);
        assert_eq!(output.matches("correct").count(), 35, "{output}");
        assert!(output.ends_with("stream of another context: 107003\n"), "{output}");
    }
    let output = ascend.assert_same("waits", &["3", "40"], &[]);
    assert_eq!(output.matches("correct").count(), 3, "{output}");
    let without_device = ascend.assert_same("compute", &["1"], &[("XSIM_DEVICE", "/no/such/place/device")]);
    assert_eq!(without_device, "no device: error 507000\n");
    ascend.assert_runs_without_the_library("compute_missing");
}

#[test]
fn all_streams_are_scheduled_on_the_physical_device() {
    let ascend = with_service();
    for (name, program, visible) in [("linked", "compute", None), ("opened", "compute_opened", Some("5,3"))] {
        let mut command = ascend.run(&["--name", name], program, &["1000000"]);
        command.envs(visible.map(|visible| ("ASCEND_RT_VISIBLE_DEVICES", visible)));
        let program = TestProgram::spawn(command);
        program.next_line();
        let its_task = || ascend.env.status().tasks.into_iter().find(|task| task.name == name);
        // One in each context, and a default stream.
        wait_until("the program is scheduled", || its_task().is_some_and(|task| task.queues == 3));
        let physical = if visible.is_some() { "Ascend NPU 5" } else { "Ascend NPU 0" };
        assert_eq!(DeviceId(its_task().unwrap().device), DeviceId::named(DeviceKind::Npu, physical));
    }
}

#[test]
fn suspended_program_makes_no_step_until_it_is_resumed() {
    let ascend = with_service();
    for kind in ["stream", "default", "model"] {
        ascend.assert_suspended_program_is_held(kind, &["1000000", "2", "100", "0", kind]);
    }
}

#[test]
fn results_are_correct_under_suspends_and_resumes() {
    with_service().assert_correct_under_suspends("compute");
}

/// A stream that waits for an event must not hold the thread of the program that records it, whichever stream has precedence.
#[test]
fn streams_that_wait_for_events_recorded_later_complete() {
    let busy = ["1000000", "5", "200", "4", "stream"];
    with_service().assert_waiting_streams_complete(&busy, &["3", "40", "wait"]);
}

#[test]
fn captured_launches_are_not_held() {
    let ascend = with_service();
    let mut program = TestProgram::spawn(ascend.run(&["--name", "capture"], "capture", &[]));
    assert_eq!(program.next_line(), "ready");
    let target = Target::Pid(program.pid());
    assert_eq!(ascend.env.request(&Request::Suspend(target.clone())), Reply::Done);
    program.send_newline();
    assert_eq!(program.next_line(), "captured: correct");
    // The captured work itself is.
    assert!(program.lines.recv_timeout(HELD_AFTER).is_err());
    assert_eq!(ascend.env.request(&Request::Resume(target)), Reply::Done);
    assert_eq!(program.remaining_lines(), ["run: correct"]);
}

#[test]
fn unavailable_level_is_reported_and_the_program_runs() {
    with_service().assert_unavailable_level_is_reported("compute", 7);
}

#[test]
fn c_interface_works_on_a_stream() {
    assert_eq!(c_program::printed(&mut without_service().direct("capi", &[])), "correct\n");
}

/// Requests of 20 kernels of 0.2 ms, 5 ms apart, beside kernels of 1 ms that never pause.
#[test]
fn latency_beside_a_batch_is_close_to_alone() {
    let (ascend, native) = (with_service(), without_service());
    for kind in ["stream", "default"] {
        let load = Load {
            requests: &["60", "20", "200", "5", kind],
            batch: &["1000000", "20", "1000", "0", "stream"],
        };
        ascend.assert_latency_is_close_to_alone(&native, kind, &load);
    }
}

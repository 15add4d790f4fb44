//! A GPU that one program uses through CUDA and another through OpenCL is one device to the policy. The GPU is the
//! stand-in for NVIDIA's driver to the one, and to the other `PoCL` behind a driver that says it is at the same place.

#[allow(dead_code, reason = "the other tests with actors use the rest")]
mod actor;
#[allow(dead_code, reason = "the other tests with this machine use the rest")]
mod machine;
#[allow(dead_code, reason = "the other tests that measure use the rest")]
mod measured;
#[allow(dead_code, reason = "the other tests on this stage use the rest")]
mod opencl_stage;
#[allow(dead_code, reason = "the other tests on this stage use the rest")]
mod stage;

use std::time::Duration;

use actor::Actor;
use machine::Machine;
use measured::{claim, measured};
use opencl_stage::{alone, leave_out, programs};
use stage::{Stage, eventually};

/// How many steps an OpenCL program makes in a second, alone and then beside a more important CUDA program that is never
/// idle; and whether the two are on one device.
fn paces(opencl: &[&str], drivers: &str, way: &str) -> (f64, f64, bool) {
    let machine = Machine::new(Stage::with_service());
    let mut opencl = machine.stage.run(&["--priority", "low"], opencl);
    opencl.env("OCL_ICD_VENDORS", drivers).env("ON_A_BUS", way);
    let steps = Actor::enter(opencl);
    steps.line();
    let a_second = || std::thread::sleep(Duration::from_secs(1));
    let (alone, ()) = steps.pace(a_second);

    let cuda = Actor::enter(machine.run(&["--priority", "high"], &["load", "batch", "40", "500"]));
    cuda.line();
    let devices = || machine.stage.status().tasks.iter().map(|task| task.device).collect::<Vec<_>>();
    eventually("both are scheduled", || devices().len() == 2);
    let (beside, ()) = steps.pace(a_second);
    let one_device = devices()[0] == devices()[1];
    println!("{way}: {alone:.0} steps a second alone, {beside:.0} beside CUDA, one device: {one_device}");
    (alone, beside, one_device)
}

#[test]
fn cuda_with_priority_holds_opencl_on_the_same_gpu() {
    let _alone = alone();
    let Some(programs) = programs() else { return };
    let Some(drivers) = programs.driver_on_a_bus() else { return leave_out("PoCL is not installed") };
    let steps = [&*programs.path("cl_requests"), "1000000", "1", "100", "1"];
    let (_, elsewhere, one_device) = paces(&steps, &drivers, "nowhere");
    assert!(!one_device);
    for way in ["khronos", "nvidia", "amd"] {
        measured(|| {
            let (alone, held, one_device) = paces(&steps, &drivers, way);
            assert!(one_device, "{way}");
            claim(5.0 * held < alone && 5.0 * held < elsewhere, || format!("{way}: it is not held"))
        });
    }
}

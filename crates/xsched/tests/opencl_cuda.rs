//! A GPU that one program uses through CUDA and another through OpenCL is one device to the policy. For CUDA the GPU is the
//! stand-in for NVIDIA's driver; for OpenCL it is `PoCL` behind a driver that reports the same PCI address.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod cuda_machine;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod measured;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod opencl_environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod skipped;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::time::Duration;

use cuda_machine::CudaMachine;
use environment::{TestEnvironment, wait_until};
use measured::{require, retry_comparison};
use opencl_environment::{exclusive_cpu, programs};
use skipped::skip;
use test_program::TestProgram;

/// How many steps per second an OpenCL program makes alone, and beside a CUDA program of higher priority that is never
/// idle; and whether both are on one device. `interface` selects how OpenCL reports the PCI address.
fn step_rates(opencl: &[&str], drivers: &str, interface: &str) -> (f64, f64, bool) {
    let machine = CudaMachine::new(TestEnvironment::with_service());
    let mut opencl = machine.env.run(&["--priority", "low"], opencl);
    opencl.env("OCL_ICD_VENDORS", drivers).env("PCI_INTERFACE", interface);
    let steps = TestProgram::spawn(opencl);
    steps.next_line();
    let one_second = || std::thread::sleep(Duration::from_secs(1));
    let (alone, ()) = steps.line_rate(one_second);

    let cuda = TestProgram::spawn(machine.run(&["--priority", "high"], &["load", "batch", "40", "500"]));
    cuda.next_line();
    let devices = || machine.env.status().tasks.iter().map(|task| task.device).collect::<Vec<_>>();
    wait_until("both programs are scheduled", || devices().len() == 2);
    let (beside, ()) = steps.line_rate(one_second);
    let is_one_device = devices()[0] == devices()[1];
    println!(
        "{interface}: {alone:.0} steps per second alone, {beside:.0} beside CUDA, one device: {is_one_device}"
    );
    (alone, beside, is_one_device)
}

#[test]
fn cuda_program_of_higher_priority_holds_opencl_on_the_same_gpu() {
    let _cpu = exclusive_cpu();
    let Some(programs) = programs() else { return };
    let Some(drivers) = programs.driver_with_pci_address() else { return skip("PoCL is not installed") };
    let steps = [&*programs.path("cl_requests"), "1000000", "1", "100", "1"];
    let (_, on_another_device, is_one_device) = step_rates(&steps, &drivers, "none");
    assert!(!is_one_device);
    for interface in ["khronos", "nvidia", "amd"] {
        let measure = || {
            let (alone, held, is_one_device) = step_rates(&steps, &drivers, interface);
            assert!(is_one_device, "{interface}");
            (alone, held)
        };
        retry_comparison(measure, |(alone, held)| {
            require(5.0 * held < alone && 5.0 * held < on_another_device, || {
                format!("{interface}: {held} steps per second, {alone} alone, {on_another_device} elsewhere")
            })
        });
    }
}

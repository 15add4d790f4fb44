//! The probe on machines that are directory trees.

use super::{gfx, probe};
use crate::doctor::State;
use crate::doctor::tests::{close, find, machine};

const MI300: [(&str, &str); 4] = [
    ("/sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 96\ngfx_target_version 0\n"),
    (
        "/sys/class/kfd/kfd/topology/nodes/1/properties",
        "simd_count 1216\ngfx_target_version 90402\nlocation_id 1280\ndomain 0\ndrm_render_minor 128\n",
    ),
    ("/dev/kfd", ""),
    ("/dev/dri/renderD128", ""),
];

#[test]
fn runtime_is_reported_with_its_interception_method() {
    let (_tree, mut machine) = machine(&[
        ("/opt/rocm-6.4.0/lib/libamdhip64.so.6", "\x7fELF librocprofiler-register.so.0 and so on"),
        ("/usr/lib/x86_64-linux-gnu/libamdhip64.so.5", "\x7fELF and so on"),
        ("/usr/lib/x86_64-linux-gnu/libhsa-runtime64.so.1", "\x7fELF and so on"),
        ("/sys/module/amdgpu/parameters/cwsr_enable", "0\n"),
    ]);
    let checks = probe(&machine);
    assert!(find(&checks, "amd libamdhip64.so.6").what.contains("through the API table"));
    assert!(find(&checks, "amd libamdhip64.so.5").what.contains("by the names of its functions"));
    assert!(find(&checks, "amd libhsa-runtime64.so.1").what.contains("through ROCr's tools interface"));
    machine.environment.insert("HSA_TOOLS_LIB".to_owned(), "libtool.so".to_owned());
    let checks = probe(&machine);
    let rocr = find(&checks, "amd libhsa-runtime64.so.1");
    assert!(
        rocr.state == State::Ok
            && rocr.what.contains("`libtool.so` in HSA_TOOLS_LIB is loaded before XSched")
    );
    machine.environment.insert("ROCPROFILER_REGISTER_LIBRARY".to_owned(), "libtool.so".to_owned());
    assert_eq!(find(&probe(&machine), "amd libamdhip64.so.6").state, State::Warning);
}

#[test]
fn driver_without_wave_saving_has_level_1() {
    let mut files = MI300.to_vec();
    files.push(("/sys/module/amdgpu/parameters/cwsr_enable", "0\n"));
    let (_tree, machine) = machine(&files);
    let checks = probe(&machine);
    let gpu = find(&checks, "amd 0000:05:00.0");
    assert!(gpu.state == State::Warning && gpu.what.contains("level 1 works"), "{gpu:?}");
}

#[test]
fn gpu_is_reported_by_address_and_architecture() {
    let (_tree, machine) = machine(&MI300);
    let checks = probe(&machine);
    let gpu = find(&checks, "amd 0000:05:00.0");
    assert_eq!(gpu.state, State::Ok);
    assert!(gpu.what.starts_with("gfx942 GPU: "), "{}", gpu.what);
    close(&machine, "/dev/dri/renderD128");
    let checks = probe(&machine);
    let gpu = find(&checks, "amd 0000:05:00.0");
    assert_eq!(gpu.state, State::Problem);
    assert!(gpu.what.contains("/dev/dri/renderD128"), "{}", gpu.what);
}

#[test]
fn architecture_names_are_those_of_the_vendor() {
    assert_eq!([90_402, 90_010, 110_000, 100_300].map(gfx), ["gfx942", "gfx90a", "gfx1100", "gfx1030"]);
}

#[test]
fn gpu_without_a_driver_is_found_on_the_bus() {
    let (_tree, machine) = machine(&[
        ("/sys/bus/pci/devices/0000:02:00.0/vendor", "0x1002\n"),
        ("/sys/bus/pci/devices/0000:02:00.0/class", "0x120000\n"),
    ]);
    assert!(find(&probe(&machine), "amd 0000:02:00.0").what.contains("/dev/kfd does not exist"));
}

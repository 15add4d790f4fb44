//! The probe on machines that are directory trees.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;

use super::topology::gfx;
use super::{examine_software, probe};
use crate::doctor::State;
use crate::doctor::tests::{close, do_next, find, machine};

const ADDRESS: &str = "amd 0000:05:00.0";
const PCI: &str = "/sys/bus/pci/devices/0000:05:00.0";

const MI300: [(&str, &str); 6] = [
    ("/sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 96\ngfx_target_version 0\n"),
    (
        "/sys/class/kfd/kfd/topology/nodes/1/properties",
        "simd_count 1216\nsimd_per_cu 4\nnum_xcc 8\ngfx_target_version 90402\ndevice_id 29858\nlocation_id 1280\ndomain 0\n\
         drm_render_minor 128\n",
    ),
    ("/dev/kfd", ""),
    ("/dev/dri/renderD128", ""),
    ("/sys/module/amdgpu/parameters/cwsr_enable", "1\n"),
    ("/proc/sys/kernel/osrelease", "6.8.0\n"),
];

/// A GPU in `n` partitions, as the driver lists them.
fn partitioned(n: u32, mode: &str, memory: &str) -> Vec<(String, String)> {
    let mut files: Vec<_> =
        MI300.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    files.remove(1);
    for partition in 0..n {
        let location = 0x500 | (u64::from(partition) << 28);
        let text = format!(
            "simd_count {}\nsimd_per_cu 4\nnum_xcc {}\ngfx_target_version 90402\ndevice_id 29858\nlocation_id {location}\ndomain 0\n\
             drm_render_minor {}\n",
            1216 / n,
            8 / n,
            128 + partition
        );
        files.push((format!("/sys/class/kfd/kfd/topology/nodes/{}/properties", partition + 1), text));
        files.push((format!("/dev/dri/renderD{}", 128 + partition), String::new()));
    }
    files.push((format!("{PCI}/current_compute_partition"), format!("{mode}\n")));
    files.push((format!("{PCI}/current_memory_partition"), format!("{memory}\n")));
    files
}

fn borrowed(files: &[(String, String)]) -> Vec<(&str, &str)> {
    files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect()
}

fn with<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    MI300.iter().copied().chain(more.iter().copied()).collect()
}

#[test]
fn runtime_is_reported_with_its_interception_method() {
    let (_tree, mut machine) = machine(&[
        ("/opt/rocm-6.4.0/lib/libamdhip64.so.6", "\x7fELF librocprofiler-register.so.0 and so on"),
        ("/usr/lib/x86_64-linux-gnu/libamdhip64.so.5", "\x7fELF and so on"),
        ("/usr/lib/x86_64-linux-gnu/libhsa-runtime64.so.1", "\x7fELF and so on"),
        ("/sys/module/amdgpu/parameters/cwsr_enable", "0\n"),
    ]);
    let listed = probe(&machine);
    assert!(listed.iter().all(|check| check.state == State::Absent), "no GPU: {listed:?}");
    let checks = examine_software(&machine, false);
    assert!(find(&checks, "amd libamdhip64.so.6").what.contains("through the API table"));
    assert_eq!(find(&checks, "amd libamdhip64.so.6").facts.as_ref().unwrap()["interception"], "table");
    assert!(find(&checks, "amd libamdhip64.so.5").what.contains("by the names of its functions"));
    assert!(find(&checks, "amd libhsa-runtime64.so.1").what.contains("through ROCr's tools interface"));
    machine.environment.insert("HSA_TOOLS_LIB".to_owned(), "libtool.so".to_owned());
    let checks = examine_software(&machine, false);
    let rocr = find(&checks, "amd libhsa-runtime64.so.1");
    assert!(
        rocr.state == State::Ok
            && rocr.what.contains("`libtool.so` in HSA_TOOLS_LIB is loaded before XSched")
    );
    machine.environment.insert("ROCPROFILER_REGISTER_LIBRARY".to_owned(), "libtool.so".to_owned());
    assert_eq!(find(&examine_software(&machine, false), "amd libamdhip64.so.6").state, State::Warning);
}

#[test]
fn driver_without_wave_saving_has_level_1() {
    let mut files = MI300.to_vec();
    files[4].1 = "0\n";
    let (_tree, machine) = machine(&files);
    let checks = probe(&machine);
    let gpu = find(&checks, ADDRESS);
    assert!(gpu.state == State::Warning && gpu.what.contains("level 1 works"), "{gpu:?}");
    assert_eq!(gpu.facts.as_ref().unwrap()["kernel_level"], 1);
    assert!(find(&checks, "amd driver").what.contains("does not save running waves"));
}

#[test]
fn gpu_is_reported_by_address_model_and_architecture() {
    let (_tree, machine) = machine(&MI300);
    let checks = probe(&machine);
    let gpu = find(&checks, ADDRESS);
    assert_eq!(gpu.state, State::Ok);
    assert!(gpu.what.starts_with("AMD Instinct MI308X (gfx942): levels 1, 2 and 3 work"), "{}", gpu.what);
    let facts = gpu.facts.as_ref().unwrap();
    assert_eq!((&facts["compute_units"], &facts["accelerator_dies"]), (&json!(304), &json!(8)));
}

#[test]
fn every_closed_file_is_named_with_the_group_that_opens_it() {
    let (_tree, machine) = machine(&MI300);
    close(&machine, "/dev/dri/renderD128");
    let checks = probe(&machine);
    let gpu = find(&checks, ADDRESS);
    assert_eq!(gpu.state, State::Problem);
    assert!(gpu.what.contains("may not use /dev/dri/renderD128"), "{}", gpu.what);
    close(&machine, "/dev/kfd");
    let checks = probe(&machine);
    let gpu = find(&checks, ADDRESS);
    assert!(gpu.what.contains("may not use /dev/kfd, /dev/dri/renderD128"), "{}", gpu.what);
    assert!(do_next(gpu).contains("sudo usermod -aG"), "{gpu:?}");
}

#[test]
fn missing_device_files_are_problems() {
    let (_tree, machine) = machine(&MI300);
    fs::remove_dir_all(machine.at("/dev/dri")).unwrap();
    let checks = probe(&machine);
    let gpu = find(&checks, ADDRESS);
    assert!(
        gpu.state == State::Problem && gpu.what.contains("/dev/dri/renderD128 does not exist"),
        "{gpu:?}"
    );
    assert!(do_next(gpu).contains("in a container, pass /dev/dri to it"), "{gpu:?}");
    fs::remove_file(machine.at("/dev/kfd")).unwrap();
    let checks = probe(&machine);
    assert!(find(&checks, ADDRESS).what.contains("/dev/kfd, /dev/dri/renderD128 does not exist"));
    assert!(do_next(find(&checks, ADDRESS)).contains("sudo modprobe amdgpu"));
    assert!(find(&checks, "amd driver").what.contains("cannot be read"));
}

#[test]
fn partitions_are_counted_with_their_modes() {
    for (n, mode, memory) in [
        (1, "SPX", "NPS1"),
        (2, "DPX", "NPS2"),
        (3, "TPX", "NPS1"),
        (4, "QPX", "NPS4"),
        (8, "CPX", "NPS1"),
        (8, "CPX", "NPS8"),
    ] {
        let files = partitioned(n, mode, memory);
        let (_tree, machine) = machine(&borrowed(&files));
        let checks = probe(&machine);
        let gpu = find(&checks, ADDRESS);
        let expected = if n == 1 {
            format!("one partition ({mode}/{memory})")
        } else {
            format!("{n} partitions ({mode}/{memory}), each scheduled by itself")
        };
        assert!(gpu.state == State::Ok && gpu.what.contains(&expected), "{mode}: {}", gpu.what);
        assert_eq!(gpu.facts.as_ref().unwrap()["partitions"], n);
        assert_eq!(gpu.facts.as_ref().unwrap()["render_files"].as_array().unwrap().len(), n as usize);
        assert_eq!(checks.iter().filter(|check| check.name == ADDRESS).count(), 1);
    }
}

#[test]
fn partitions_numbered_by_function_belong_to_one_gpu() {
    let mut files = partitioned(2, "DPX", "NPS1");
    for (path, text) in &mut files {
        if path.ends_with("properties") {
            *text = text.replace(&format!("location_id {}", 0x500_u64 | (1 << 28)), "location_id 1281");
        }
    }
    let (_tree, machine) = machine(&borrowed(&files));
    let checks = probe(&machine);
    assert!(find(&checks, ADDRESS).what.contains("2 partitions (DPX/NPS1), each scheduled by itself"));
    assert!(!checks.iter().any(|check| check.name == "amd 0000:05:00.1"), "{checks:?}");
}

#[test]
fn partitions_without_numbers_are_reported() {
    let mut files = partitioned(2, "DPX", "NPS1");
    for (path, text) in &mut files {
        if path.ends_with("properties") {
            *text = text.replace(&format!("location_id {}", 0x500_u64 | (1 << 28)), "location_id 1280");
        }
    }
    let (_tree, machine) = machine(&borrowed(&files));
    assert!(
        find(&probe(&machine), ADDRESS)
            .what
            .contains("2 partitions (DPX/NPS1) that the driver does not number")
    );
}

#[test]
fn rocm_version_is_judged() {
    for (version, state, expected) in [
        ("5.7.1-98", State::Warning, "older than 6.2"),
        ("6.2.4", State::Ok, "ROCm 6.2.4 in /opt/rocm"),
        ("7.2.0-43", State::Ok, "ROCm 7.2.0-43"),
        ("8.0.0", State::Warning, "newer than 7.2"),
        ("nightly", State::Warning, "has no version that can be read"),
    ] {
        let (_tree, machine) = machine(&[("/opt/rocm-1/.info/version", version)]);
        symlink("rocm-1", machine.at("/opt/rocm")).unwrap();
        let checks = examine_software(&machine, false);
        let rocm = find(&checks, "rocm");
        assert!(rocm.state == state && rocm.what.contains(expected), "{version}: {rocm:?}");
        assert_eq!(checks.len(), 1, "a link is not a second installation: {checks:?}");
    }
    let (_tree, machine) = machine(&[("/usr/lib/x86_64-linux-gnu/libamdhip64.so.6.4.43484", "")]);
    assert!(find(&probe(&machine), "rocm").what.starts_with("ROCm 6.4.43484 in /usr/lib/x86_64-linux-gnu"));
}

#[test]
fn gpu_without_an_installed_rocm_has_no_problem() {
    let (_tree, machine) = machine(&MI300);
    let checks = probe(&machine);
    let rocm = find(&checks, "rocm");
    assert!(rocm.state == State::Ok && rocm.what.contains("in their Python packages"), "{rocm:?}");
}

#[test]
fn driver_is_reported_with_its_versions_and_scheduler() {
    let (_tree, mut machine) = machine(&with(&[
        ("/sys/module/amdgpu/version", "6.12.12\n"),
        ("/sys/module/amdgpu/parameters/sched_policy", "0\n"),
    ]));
    let checks = probe(&machine);
    let driver = find(&checks, "amd driver");
    assert!(driver.state == State::Ok, "{driver:?}");
    for part in ["amdgpu 6.12.12 on Linux 6.8.0", "KFD interface 1.17", "saves running waves", "HWS"] {
        assert!(driver.what.contains(part), "{part}: {}", driver.what);
    }
    machine.kfd_version = |_| Some((2, 0));
    let checks = probe(&machine);
    assert!(find(&checks, "amd driver").what.contains("XSched knows KFD interface 1 only"));
    fs::write(machine.at("/sys/module/amdgpu/parameters/sched_policy"), "2\n").unwrap();
    machine.kfd_version = |_| Some((1, 19));
    assert_eq!(find(&probe(&machine), "amd driver").state, State::Warning);
}

#[test]
fn throttled_gpu_is_a_warning() {
    let clocks = (format!("{PCI}/pp_dpm_sclk"), "0: 132Mhz *\n1: 2100Mhz\n");
    let monitor = |file: &str| format!("{PCI}/hwmon/hwmon3/{file}");
    let sensors = [
        ("power1_cap", "750000000"),
        ("power1_cap_default", "750000000"),
        ("temp2_input", "41000"),
        ("temp2_crit", "100000"),
        ("power1_average", "130000000"),
    ];
    let sensors: Vec<_> = sensors.iter().map(|(file, text)| (monitor(file), *text)).collect();
    let mut files = with(&[(clocks.0.as_str(), clocks.1)]);
    files.extend(sensors.iter().map(|(path, text)| (path.as_str(), *text)));
    let (_tree, machine) = machine(&files);
    let name = "amd clocks 0000:05:00.0";
    let checks = probe(&machine);
    assert_eq!(find(&checks, name).what, "clock 132 of 2100 MHz, 130 of 750 W, 41 degrees Celsius");
    for (file, text, expected) in [
        (monitor("temp2_input"), "98000", "close to the critical 100 degrees"),
        (monitor("power1_cap"), "300000000", "below the default of 750 W"),
        (format!("{PCI}/power_dpm_force_performance_level"), "low\n", "fixes the clocks"),
    ] {
        fs::write(machine.at(&file), text).unwrap();
        let checks = probe(&machine);
        let check = find(&checks, name);
        assert!(check.state == State::Warning && check.what.contains(expected), "{check:?}");
    }
}

#[test]
fn other_processes_on_the_gpu_are_a_warning() {
    let (_tree, machine) =
        machine(&with(&[("/sys/class/kfd/kfd/proc/4711/pasid", "1"), ("/proc/4711/comm", "python3\n")]));
    let checks = probe(&machine);
    let processes = find(&checks, "amd processes");
    assert!(
        processes.state == State::Warning
            && processes.what.contains("1 process uses the compute driver (PID 4711)")
    );
    assert_eq!(processes.facts.as_ref().unwrap()["names"], json!(["python3"]));
    fs::remove_dir_all(machine.at("/sys/class/kfd/kfd/proc/4711")).unwrap();
    assert_eq!(find(&probe(&machine), "amd processes").state, State::Ok);
}

#[test]
fn firmware_of_existing_blocks_is_listed() {
    let path = |name: &str| format!("{PCI}/fw_version/{name}_fw_version");
    let (mec, vce) = (path("mec"), path("vce"));
    let (_tree, machine) = machine(&with(&[(&mec, "0x000000a9\n"), (&vce, "0x00000000\n")]));
    let checks = probe(&machine);
    assert_eq!(find(&checks, ADDRESS).facts.as_ref().unwrap()["firmware"], json!({ "mec": "0x000000a9" }));
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

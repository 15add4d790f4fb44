//! The probe on machines that are directory trees.

use std::fs;

use super::probe;
use crate::doctor::State;
use crate::doctor::tests::{close, do_next, find, machine};

const H200: [(&str, &str); 4] = [
    (
        "/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (root@host)\nGCC version: 12.2.0\n",
    ),
    (
        "/proc/driver/nvidia/gpus/0000:00:06.0/information",
        "Model: \t\t NVIDIA H200\nIRQ:   \t\t 45\nGPU UUID: \t GPU-11111111-2222-3333-4444-555555555555\nBus Location: \t 0000:00:06.0\nDevice Minor: \t 0\n",
    ),
    ("/dev/nvidia0", ""),
    ("/dev/nvidiactl", ""),
];

#[test]
fn levels_depend_on_the_kernel_modules() {
    let (_tree, open) = machine(&H200);
    let checks = probe(&open);
    assert_eq!(find(&checks, "nvidia 0000:00:06.0").state, State::Ok);
    assert!(find(&checks, "nvidia 0000:00:06.0").what.contains(": levels 1, 2 and 3 work. "));

    fs::write(
        open.at("/proc/driver/nvidia/version"),
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat\n",
    )
    .unwrap();
    let checks = probe(&open);
    let gpu = find(&checks, "nvidia 0000:00:06.0");
    assert_eq!(gpu.state, State::Warning);
    assert!(
        gpu.what.contains("535.104.05 (proprietary kernel modules): levels 1 and 2 work"),
        "{}",
        gpu.what
    );
}

#[test]
fn missing_or_inaccessible_device_files_are_problems() {
    let (_tree, machine) = machine(&H200);
    close(&machine, "/dev/nvidia0");
    let checks = probe(&machine);
    let gpu = find(&checks, "nvidia 0000:00:06.0");
    assert_eq!(gpu.state, State::Problem);
    assert!(gpu.what.ends_with("this user may not use /dev/nvidia0"), "{}", gpu.what);
    assert!(do_next(gpu).contains("usermod -aG"), "{}", do_next(gpu));

    fs::remove_file(machine.at("/dev/nvidiactl")).unwrap();
    let checks = probe(&machine);
    assert!(find(&checks, "nvidia 0000:00:06.0").what.contains("/dev/nvidiactl does not exist"));
}

#[test]
fn visible_devices_are_reported_by_address() {
    let second = "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-11111111-9999-3333-4444-555555555555\nDevice Minor: \t 1\n";
    let files = [("/proc/driver/nvidia/gpus/0000:00:07.0/information", second), ("/dev/nvidia1", "")];
    let (_tree, mut machine) = machine(&[&H200[..], &files].concat());
    let name = "CUDA_VISIBLE_DEVICES";
    assert!(!probe(&machine).iter().any(|check| check.name == name), "not set: no finding");
    for (chosen, state, what) in [
        ("1", State::Ok, "programs see 1 is 0000:00:07.0"),
        ("1,0", State::Ok, "programs see 1 is 0000:00:07.0, 0 is 0000:00:06.0"),
        ("GPU-11111111-2", State::Ok, "programs see GPU-11111111-2 is 0000:00:06.0"),
        ("0,GPU-11111111-9999-3333-4444-555555555555", State::Ok, "-555555555555 is 0000:00:07.0"),
        (
            "MIG-1234",
            State::Ok,
            "programs see MIG-1234: a partition of a GPU, which the driver resolves in each program",
        ),
        ("", State::Warning, "``: no GPU here is ``, so programs see no GPU"),
        ("0,5", State::Warning, "`0,5`: no GPU here is `5`, so programs see only 0 is 0000:00:06.0"),
        ("GPU-1111", State::Warning, "no GPU here is `GPU-1111`"),
        ("0,0", State::Warning, "`0,0` names 0000:00:06.0 twice, so programs see no GPU"),
    ] {
        machine.environment.insert(name.to_owned(), chosen.to_owned());
        let checks = probe(&machine);
        let check = find(&checks, name);
        assert_eq!(check.state, state, "{check:?}");
        assert!(check.what.contains(what), "{check:?}");
    }
    // CUDA orders GPUs of different models by speed, not by PCI address.
    let file = machine.at("/proc/driver/nvidia/gpus/0000:00:07.0/information");
    fs::write(file, second.replace("H200", "T4")).unwrap();
    machine.environment.insert(name.to_owned(), "1".to_owned());
    assert!(find(&probe(&machine), name).what.contains("CUDA numbers the fastest GPU first"));
    machine.environment.insert("CUDA_DEVICE_ORDER".to_owned(), "PCI_BUS_ID".to_owned());
    assert_eq!(find(&probe(&machine), name).state, State::Ok);
}

#[test]
fn mps_is_a_warning() {
    let (_tree, machine) = machine(&[&H200[..], &[("/tmp/nvidia-mps/control", "")]].concat());
    assert_eq!(find(&probe(&machine), "nvidia MPS").state, State::Warning);
}

#[test]
fn gpu_without_a_driver_is_found_on_the_bus() {
    let (_tree, machine) = machine(&[
        ("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n"),
        ("/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n"),
        ("/sys/bus/pci/devices/0000:03:00.0/vendor", "0x10de\n"),
        ("/sys/bus/pci/devices/0000:03:00.0/class", "0x040300\n"),
    ]);
    let checks = probe(&machine);
    assert!(find(&checks, "nvidia 0000:01:00.0").what.contains("its driver is not loaded"));
    assert!(
        !checks.iter().any(|check| check.name.contains("0000:03")),
        "a sound device is not an accelerator"
    );
}

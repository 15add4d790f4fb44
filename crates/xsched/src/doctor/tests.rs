//! Examinations of machines that are made up.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use rustix::io::Errno;
use tempfile::TempDir;

use super::kernel::Kernel;
use super::machine::Machine;
use super::platform::Platform;
use super::*;
use crate::term::Glyphs;

/// A machine with a tree of its own, a good kernel, the library, and nothing else.
fn machine(files: &[(&str, &str)]) -> (TempDir, Machine) {
    let tree = tempfile::tempdir().unwrap();
    let root = tree.path().to_owned();
    let good = Kernel { pidfd: Ok(()), sealed_memory: Ok(()), futex: Ok(()), eventfd: Ok(()) };
    let machine = Machine {
        environment: [("XDG_RUNTIME_DIR".to_owned(), "/run/user/1000".to_owned())].into(),
        uid: 1000,
        gids: vec![1000],
        program: Some(root.join("usr/bin/xsched")),
        sockets: vec![root.join("run/xsched/socket")],
        kernel: good,
        driven: vec![],
        // What everybody may do, so that it does not matter who runs the tests.
        may_use: |path| fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o006 == 0o006),
        root,
    };
    let always = [("/usr/lib/libxsched.so", ""), ("/usr/bin/xsched", "")];
    for (path, text) in always.iter().chain(files) {
        let path = machine.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    }
    (tree, machine)
}

fn close(machine: &Machine, path: &str) {
    fs::set_permissions(machine.at(path), fs::Permissions::from_mode(0o660)).unwrap();
}

fn find<'a>(checks: &'a [Check], name: &str) -> &'a Check {
    checks.iter().find(|check| check.name == name).unwrap_or_else(|| panic!("no {name} in {checks:#?}"))
}

fn do_next(check: &Check) -> &str {
    check.do_next.as_deref().unwrap_or_default()
}

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
fn a_bare_machine_has_no_problems() {
    let (_tree, machine) = machine(&[("/proc/sys/kernel/osrelease", "6.1.0\n")]);
    let checks = examine(&machine);
    assert_eq!(count(&checks, State::Problem), 0, "{checks:#?}");
    assert_eq!(find(&checks, "service").state, State::Warning);
    assert!(do_next(find(&checks, "service")).contains("xsched serve"));
    assert!(find(&checks, "simulated").what.contains("levels 1, 2, 3 work"));
    assert!(find(&checks, "kernel").what.contains("Linux 6.1.0"));
    assert!(!checks.iter().any(|check| check.name.starts_with("nvidia") || check.name.starts_with("amd")));
}

#[test]
fn a_user_without_a_place_for_a_socket_is_told_to_make_one() {
    let (_tree, mut machine) = machine(&[]);
    machine.environment.clear();
    let checks = examine(&machine);
    assert_eq!(find(&checks, "service").state, State::Problem);
    assert!(do_next(find(&checks, "service")).contains("export XDG_RUNTIME_DIR"));
    machine.uid = 0;
    assert_eq!(find(&examine(&machine), "service").state, State::Warning, "root has /run");
}

#[test]
fn a_gpu_without_hooks_in_this_build_is_named_and_said_to_be_left_alone() {
    let (_tree, mut machine) = machine(&H200);
    machine.driven = Vec::new();
    let checks = examine(&machine);
    let gpu = find(&checks, "nvidia 0000:00:06.0");
    assert_eq!(gpu.state, State::Warning);
    assert_eq!(
        gpu.what,
        "NVIDIA H200, driver 580.159.04 (open kernel modules): XSched cannot drive it yet, for this build has no \
         hooks for CUDA"
    );
    assert!(do_next(gpu).contains("nothing breaks"));
}

#[test]
fn the_levels_of_an_nvidia_gpu_depend_on_its_kernel_modules() {
    let (_tree, mut open) = machine(&H200);
    open.driven = vec![Platform::Cuda];
    let checks = examine(&open);
    assert_eq!(find(&checks, "nvidia 0000:00:06.0").state, State::Ok);
    assert!(find(&checks, "nvidia 0000:00:06.0").what.contains(": levels 1, 2 and 3 work: "));

    fs::write(
        open.at("/proc/driver/nvidia/version"),
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat\n",
    )
    .unwrap();
    let checks = examine(&open);
    let gpu = find(&checks, "nvidia 0000:00:06.0");
    assert_eq!(gpu.state, State::Warning);
    assert!(
        gpu.what.contains("535.104.05 (proprietary kernel modules): levels 1 and 2 work"),
        "{}",
        gpu.what
    );
}

#[test]
fn device_files_that_are_missing_or_closed_are_problems_with_a_remedy() {
    let (_tree, machine) = machine(&H200);
    close(&machine, "/dev/nvidia0");
    let checks = examine(&machine);
    let gpu = find(&checks, "nvidia 0000:00:06.0");
    assert_eq!(gpu.state, State::Problem);
    assert!(gpu.what.ends_with("this user may not use /dev/nvidia0"), "{}", gpu.what);
    assert!(do_next(gpu).contains("usermod -aG"), "{}", do_next(gpu));

    fs::remove_file(machine.at("/dev/nvidiactl")).unwrap();
    let checks = examine(&machine);
    assert!(find(&checks, "nvidia 0000:00:06.0").what.contains("/dev/nvidiactl is not there"));
}

#[test]
fn what_programs_see_of_several_gpus_is_told_by_address() {
    let second = "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-11111111-9999-3333-4444-555555555555\nDevice Minor: \t 1\n";
    let files = [("/proc/driver/nvidia/gpus/0000:00:07.0/information", second), ("/dev/nvidia1", "")];
    let (_tree, mut machine) = machine(&[&H200[..], &files].concat());
    let name = "CUDA_VISIBLE_DEVICES";
    assert!(!examine(&machine).iter().any(|check| check.name == name), "not set: nothing to tell");
    for (chosen, state, what) in [
        ("1", State::Ok, "programs see 1 is 0000:00:07.0"),
        ("1,0", State::Ok, "programs see 1 is 0000:00:07.0, 0 is 0000:00:06.0"),
        ("GPU-11111111-2", State::Ok, "programs see GPU-11111111-2 is 0000:00:06.0"),
        ("0,GPU-11111111-9999-3333-4444-555555555555", State::Ok, "-555555555555 is 0000:00:07.0"),
        (
            "MIG-1234",
            State::Ok,
            "programs see MIG-1234: a part of a GPU, which the driver looks up in each program",
        ),
        ("", State::Warning, "``: no GPU here is ``, so programs see no GPU"),
        ("0,5", State::Warning, "`0,5`: no GPU here is `5`, so programs see only 0 is 0000:00:06.0"),
        ("GPU-1111", State::Warning, "no GPU here is `GPU-1111`"),
        ("0,0", State::Warning, "`0,0` names 0000:00:06.0 twice, so programs see no GPU"),
    ] {
        machine.environment.insert(name.to_owned(), chosen.to_owned());
        let checks = examine(&machine);
        let check = find(&checks, name);
        assert_eq!(check.state, state, "{check:?}");
        assert!(check.what.contains(what), "{check:?}");
    }
    // GPUs that differ have another order for CUDA than for the bus.
    let file = machine.at("/proc/driver/nvidia/gpus/0000:00:07.0/information");
    fs::write(file, second.replace("H200", "T4")).unwrap();
    machine.environment.insert(name.to_owned(), "1".to_owned());
    assert!(find(&examine(&machine), name).what.contains("CUDA numbers the fastest first"));
    machine.environment.insert("CUDA_DEVICE_ORDER".to_owned(), "PCI_BUS_ID".to_owned());
    assert_eq!(find(&examine(&machine), name).state, State::Ok);
}

#[test]
fn mps_is_noticed() {
    let (_tree, machine) = machine(&[&H200[..], &[("/tmp/nvidia-mps/control", "")]].concat());
    assert_eq!(find(&examine(&machine), "nvidia MPS").state, State::Warning);
}

#[test]
fn a_runtime_is_named_with_the_way_its_programs_are_reached() {
    let (_tree, mut machine) = machine(&[
        ("/opt/rocm-6.4.0/lib/libamdhip64.so.6", "\x7fELF librocprofiler-register.so.0 and so on"),
        ("/usr/lib/x86_64-linux-gnu/libamdhip64.so.5", "\x7fELF and so on"),
        ("/usr/lib/x86_64-linux-gnu/libhsa-runtime64.so.1", "\x7fELF and so on"),
        ("/sys/module/amdgpu/parameters/cwsr_enable", "0\n"),
    ]);
    assert!(
        examine(&machine).iter().all(|check| !check.name.starts_with("amd")),
        "nothing to say without hooks"
    );
    machine.driven = vec![Platform::Hip];
    let checks = examine(&machine);
    assert!(find(&checks, "amd libamdhip64.so.6").what.contains("by its own table"));
    assert!(find(&checks, "amd libamdhip64.so.5").what.contains("by the names of its functions"));
    assert!(find(&checks, "amd libhsa-runtime64.so.1").what.contains("at the doorbells of their queues"));
    machine.environment.insert("HSA_TOOLS_LIB".to_owned(), "libtool.so".to_owned());
    let checks = examine(&machine);
    let below = find(&checks, "amd libhsa-runtime64.so.1");
    assert!(below.state == State::Ok && below.what.contains("`libtool.so` of HSA_TOOLS_LIB comes before us"));
    machine.environment.insert("ROCPROFILER_REGISTER_LIBRARY".to_owned(), "libtool.so".to_owned());
    assert_eq!(find(&examine(&machine), "amd libamdhip64.so.6").state, State::Warning);
}

#[test]
fn a_driver_that_saves_no_waves_has_level_1() {
    let mut files = MI300.to_vec();
    files.push(("/sys/module/amdgpu/parameters/cwsr_enable", "0\n"));
    let (_tree, mut machine) = machine(&files);
    machine.driven = vec![Platform::Hip];
    let checks = examine(&machine);
    let gpu = find(&checks, "amd 0000:05:00.0");
    assert!(gpu.state == State::Warning && gpu.what.contains("level 1 works"), "{gpu:?}");
}

#[test]
fn an_amd_gpu_is_named_by_address_and_architecture() {
    let (_tree, mut machine) = machine(&MI300);
    let checks = examine(&machine);
    let gpu = find(&checks, "amd 0000:05:00.0");
    assert!(gpu.what.starts_with("gfx942 GPU: XSched cannot drive it yet"), "{}", gpu.what);
    machine.driven = vec![Platform::Hip];
    assert_eq!(find(&examine(&machine), "amd 0000:05:00.0").state, State::Ok);
    close(&machine, "/dev/dri/renderD128");
    let checks = examine(&machine);
    let gpu = find(&checks, "amd 0000:05:00.0");
    assert_eq!(gpu.state, State::Problem);
    assert!(gpu.what.contains("/dev/dri/renderD128"), "{}", gpu.what);
}

#[test]
fn gpus_without_a_driver_are_found_on_the_bus() {
    let (_tree, machine) = machine(&[
        ("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n"),
        ("/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n"),
        ("/sys/bus/pci/devices/0000:02:00.0/vendor", "0x1002\n"),
        ("/sys/bus/pci/devices/0000:02:00.0/class", "0x120000\n"),
        ("/sys/bus/pci/devices/0000:03:00.0/vendor", "0x10de\n"),
        ("/sys/bus/pci/devices/0000:03:00.0/class", "0x040300\n"),
    ]);
    let checks = examine(&machine);
    assert!(find(&checks, "nvidia 0000:01:00.0").what.contains("its driver is not loaded"));
    assert!(find(&checks, "amd 0000:02:00.0").what.contains("there is no /dev/kfd"));
    assert!(!checks.iter().any(|check| check.name.contains("0000:03")), "a sound device is no accelerator");
}

#[test]
fn opencl_vendors_are_listed() {
    let (_tree, mut machine) = machine(&[("/etc/OpenCL/vendors/pocl.icd", "libpocl.so.2\n")]);
    let checks = examine(&machine);
    assert!(find(&checks, "OpenCL").what.starts_with("pocl (libpocl.so.2): XSched cannot drive it yet"));
    machine.driven = vec![Platform::OpenCl];
    let checks = examine(&machine);
    let what = &find(&checks, "OpenCL").what;
    assert!(what.starts_with("pocl (libpocl.so.2): programs can be scheduled at level 1"), "{what}");
}

#[test]
fn opencl_that_leads_nowhere_is_said_to() {
    let (_tree, mut machine) = machine(&[("/etc/OpenCL/vendors/gone.icd", "/opt/gone/libgone.so\n")]);
    machine.driven = vec![Platform::OpenCl];
    let checks = examine(&machine);
    assert_eq!(find(&checks, "OpenCL gone").state, State::Problem);
    assert!(do_next(find(&checks, "OpenCL gone")).contains("/etc/OpenCL/vendors/gone.icd"));

    machine.environment.insert("OCL_ICD_VENDORS".into(), "/no/such/place".into());
    let checks = examine(&machine);
    assert!(find(&checks, "OpenCL").what.contains("/no/such/place, where no vendor is"));

    machine.environment.clear();
    machine.environment.insert("XSCHED_OPENCL_LIB".into(), "/no/such/library.so".into());
    let checks = examine(&machine);
    let ignored = find(&checks, "OpenCL");
    assert_eq!(ignored.state, State::Warning);
    assert!(ignored.what.contains("/no/such/library.so, which is not there"), "{}", ignored.what);
}

#[test]
fn a_missing_library_and_a_second_scheduler_are_problems() {
    let (_tree, mut machine) = machine(&[]);
    fs::remove_file(machine.at("/usr/lib/libxsched.so")).unwrap();
    assert_eq!(find(&examine(&machine), "libxsched.so").state, State::Problem);

    for (value, state) in [
        ("/opt/xsched/lib/libshimcuda.so", State::Problem),
        ("/usr/lib/libxsched.so", State::Warning),
        ("/usr/lib/libgone.so", State::Warning),
        ("libjemalloc.so.2", State::Ok),
        ("", State::Ok),
    ] {
        machine.environment.insert("LD_PRELOAD".into(), value.into());
        assert_eq!(find(&examine(&machine), "LD_PRELOAD").state, state, "{value}");
    }
}

#[test]
fn an_old_kernel_is_told_by_what_it_refuses() {
    let (_tree, mut machine) = machine(&[("/proc/sys/kernel/osrelease", "4.18.0\n")]);
    machine.kernel.pidfd = Err(Errno::NOSYS);
    let checks = examine(&machine);
    let pidfd = find(&checks, "pidfd");
    assert_eq!(pidfd.state, State::Problem);
    assert!(pidfd.what.starts_with("Linux 4.18.0 refuses it"), "{}", pidfd.what);
}

#[test]
fn a_container_is_told_what_to_mount() {
    let (_tree, machine) = machine(&[("/.dockerenv", "")]);
    let checks = examine(&machine);
    assert!(do_next(find(&checks, "container")).contains("-v /run/xsched:/run/xsched"));
    let socket = machine.at("/run/xsched/socket");
    fs::create_dir_all(socket.parent().unwrap()).unwrap();
    fs::write(&socket, "").unwrap();
    let checks = examine(&machine);
    assert_eq!(find(&checks, "container").state, State::Ok);
    assert!(find(&checks, "service").what.contains("is left over from one that died"));
}

#[test]
fn the_group_decides_what_a_user_may() {
    let (_tree, mut machine) = machine(&[("/etc/group", "root:x:0:\nxsched:x:990:me\n")]);
    assert!(find(&examine(&machine), "rights").what.starts_with("not in the group"));
    machine.gids.push(990);
    assert!(find(&examine(&machine), "rights").what.starts_with("in the group"));
    machine.uid = 0;
    assert!(find(&examine(&machine), "rights").what.starts_with("root"));
}

#[test]
fn the_report_is_grouped_wrapped_and_says_what_to_do() {
    let checks = [
        Check::ok(Group::System, "kernel", "is new enough"),
        Check::problem(Group::Devices, "nvidia", "one two three four", "five six seven eight nine"),
    ];
    let expected = "\
Devices
  ✗  nvidia: one two
     three four
       do: five six
           seven eight
           nine

System
  ✓  kernel: is new
     enough

1 problem, no warnings
";
    assert_eq!(text(&checks, Some(22), Glyphs::UNICODE, false), expected);
    let plain = text(&checks, None, Glyphs::ASCII, false);
    assert!(plain.is_ascii() && plain.contains("  X  nvidia: one two three four\n"), "{plain}");
}

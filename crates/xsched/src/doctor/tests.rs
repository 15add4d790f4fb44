//! Checks on machines that are directory trees.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use rustix::io::Errno;
use tempfile::TempDir;

use super::kernel::Kernel;
use super::machine::{Machine, access_through_group};
use super::*;
use crate::term::Glyphs;

/// A machine with a directory tree of its own, a kernel with all features, and the library.
pub(crate) fn machine(files: &[(&str, &str)]) -> (TempDir, Machine) {
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
        // The permissions of other users, so that the result does not depend on the user who runs the tests.
        may_use: |path| fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o006 == 0o006),
        kfd_version: |path| path.exists().then_some((1, 17)),
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

pub(crate) fn close(machine: &Machine, path: &str) {
    fs::set_permissions(machine.at(path), fs::Permissions::from_mode(0o660)).unwrap();
}

pub(crate) fn find<'a>(checks: &'a [Check], name: &str) -> &'a Check {
    checks.iter().find(|check| check.name == name).unwrap_or_else(|| panic!("no {name} in {checks:#?}"))
}

pub(crate) fn do_next(check: &Check) -> &str {
    check.do_next.as_deref().unwrap_or_default()
}

#[test]
fn machine_without_accelerators_has_no_problems() {
    let (_tree, machine) = machine(&[("/proc/sys/kernel/osrelease", "6.1.0\n")]);
    let checks = examine(&machine);
    assert_eq!(count(&checks, State::Problem), 0, "{checks:#?}");
    assert_eq!(find(&checks, "service").state, State::Warning);
    assert!(do_next(find(&checks, "service")).contains("xsched serve"));
    assert!(find(&checks, "simulated").what.contains("levels 1, 2, 3 work"));
    assert!(find(&checks, "kernel").what.contains("Linux 6.1.0"));
    for (name, what) in [("nvidia", "no NVIDIA GPU on this machine"), ("amd", "no AMD GPU on this machine")] {
        assert!(find(&checks, name).state == State::Absent && find(&checks, name).what == what);
    }
}

#[test]
fn missing_runtime_directory_is_a_problem() {
    let (_tree, mut machine) = machine(&[]);
    machine.environment.clear();
    let checks = examine(&machine);
    assert_eq!(find(&checks, "service").state, State::Problem);
    assert!(do_next(find(&checks, "service")).contains("export XDG_RUNTIME_DIR"));
    machine.uid = 0;
    assert_eq!(find(&examine(&machine), "service").state, State::Warning, "root has /run");
}

#[test]
fn search_path_of_the_original_is_explained() {
    let files = [("/opt/x/lib/libshimcuda.so", ""), ("/opt/x/lib/xsched/libcuda.so.1", "")];
    let (_tree, mut machine) = machine(&files);
    let checks_with = |machine: &mut Machine, path: &str| {
        machine.environment.insert("LD_LIBRARY_PATH".to_owned(), path.to_owned());
        examine(machine).into_iter().filter(|check| check.name == "LD_LIBRARY_PATH").collect::<Vec<_>>()
    };
    assert_eq!(checks_with(&mut machine, "/usr/lib:/nowhere"), []);
    let [check] = &checks_with(&mut machine, "/opt/x/lib")[..] else { panic!("one finding") };
    assert_eq!(check.state, State::Warning);
    assert!(do_next(check).contains("/opt/x/lib/xsched"), "{check:?}");
    let [check] = &checks_with(&mut machine, "/opt/x/lib/xsched:/usr/lib")[..] else { panic!("one finding") };
    assert!(check.state == State::Warning && do_next(check).contains("XSCHED_SCHEDULER=GLB"), "{check:?}");
    machine.environment.insert("XSCHED_SCHEDULER".to_owned(), "GLB".to_owned());
    let [check] = &checks_with(&mut machine, "/opt/x/lib/xsched:/opt/x/lib")[..] else {
        panic!("one finding")
    };
    assert_eq!(check.state, State::Ok);
}

#[test]
fn missing_library_and_second_scheduler_are_problems() {
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
fn missing_kernel_feature_is_a_problem() {
    let (_tree, mut machine) = machine(&[("/proc/sys/kernel/osrelease", "4.18.0\n")]);
    machine.kernel.pidfd = Err(Errno::NOSYS);
    let checks = examine(&machine);
    let pidfd = find(&checks, "pidfd");
    assert_eq!(pidfd.state, State::Problem);
    assert!(pidfd.what.starts_with("Linux 4.18.0 rejects it"), "{}", pidfd.what);
}

#[test]
fn container_without_a_socket_is_a_warning() {
    let (_tree, machine) = machine(&[("/.dockerenv", "")]);
    let checks = examine(&machine);
    assert!(do_next(find(&checks, "container")).contains("-v /run/xsched:/run/xsched"));
    let socket = machine.at("/run/xsched/socket");
    fs::create_dir_all(socket.parent().unwrap()).unwrap();
    fs::write(&socket, "").unwrap();
    let checks = examine(&machine);
    assert_eq!(find(&checks, "container").state, State::Ok);
    assert!(find(&checks, "service").what.contains("is left over from a service that died"));
}

#[test]
fn rights_depend_on_the_group() {
    let (_tree, mut machine) = machine(&[("/etc/group", "root:x:0:\nxsched:x:990:me\n")]);
    assert!(find(&examine(&machine), "rights").what.starts_with("not in the group"));
    machine.gids.push(990);
    assert!(find(&examine(&machine), "rights").what.starts_with("in the group"));
    machine.uid = 0;
    assert!(find(&examine(&machine), "rights").what.starts_with("root"));
}

#[test]
fn report_is_grouped_and_wrapped() {
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

#[test]
fn job_and_access_control_are_reported() {
    let (_tree, mut machine) = machine(&[
        ("/proc/self/status", "Name:\txsched\nSeccomp:\t2\n"),
        ("/sys/fs/selinux/enforce", "1"),
        ("/proc/self/attr/current", "system_u:system_r:container_t:s0\0"),
        ("/dev/kfd", ""),
    ]);
    machine.environment.insert("SLURM_JOB_ID".into(), "7".into());
    machine.environment.insert("ROCR_VISIBLE_DEVICES".into(), "0".into());
    let checks = examine(&machine);
    assert_eq!(find(&checks, "job").what, "a Slurm job; ROCR_VISIBLE_DEVICES is set");
    let access = find(&checks, "access control");
    assert!(
        access.state == State::Ok && access.what.contains("a seccomp filter and SELinux (enforcing, "),
        "{access:?}"
    );
    close(&machine, "/dev/kfd");
    let checks = examine(&machine);
    let access = find(&checks, "access control");
    assert!(access.state == State::Problem && do_next(access).contains("label=disable"), "{access:?}");
    fs::write(machine.at("/sys/fs/selinux/enforce"), "0").unwrap();
    fs::write(machine.at("/proc/self/attr/current"), "docker-default (enforce)\n").unwrap();
    let checks = examine(&machine);
    assert!(find(&checks, "access control").what.ends_with("the AppArmor profile docker-default (enforce)"));
}

#[test]
fn group_without_a_name_is_given_to_the_container_by_number() {
    let advice = |name, gid| access_through_group("/dev/kfd", name, gid, "render");
    assert!(advice(None, 993).contains("start the container with `--group-add 993`"));
    assert!(advice(Some("video"), 44).starts_with("`sudo usermod -aG video $USER`"));
    assert!(advice(Some("root"), 0).starts_with("`sudo usermod -aG render $USER`"));
}

#[test]
fn commands_are_printed_with_the_findings_as_comments() {
    let checks = [
        Check::ok(Group::System, "kernel", "works"),
        Check::warning(Group::System, "service", "none", "`xsched run` starts one; or run `xsched serve`"),
        Check::problem(Group::Devices, "gpu", "closed", "pass it to the container: `-v /dev/kfd`"),
    ];
    assert_eq!(
        commands(&checks),
        "# service: none\n#   do: `xsched run` starts one; or run `xsched serve`\nxsched run\nxsched serve\n\
         # gpu: closed\n#   do: pass it to the container: `-v /dev/kfd`\n"
    );
}

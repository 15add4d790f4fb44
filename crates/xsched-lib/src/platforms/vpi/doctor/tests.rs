//! The probe on machines that are directory trees.

use super::probe;
use crate::doctor::State;
use crate::doctor::tests::machine;

#[test]
fn nothing_is_reported_without_the_library() {
    let (_tree, machine) = machine(&[]);
    assert!(probe(&machine).is_empty());
}

#[test]
fn each_version_is_reported() {
    let jetson = "/opt/nvidia/vpi3/lib/aarch64-linux-gnu/libnvvpi.so.3";
    let older = "/opt/nvidia/vpi1/lib64/libnvvpi.so.1";
    let (_tree, machine) = machine(&[(jetson, ""), (older, "")]);
    let checks = probe(&machine);
    assert_eq!(checks.len(), 2);
    for (check, library) in checks.iter().zip([older, jetson]) {
        assert_eq!(check.state, State::Ok);
        assert!(check.what.starts_with(library) && check.what.contains("level 1"), "{}", check.what);
    }
}

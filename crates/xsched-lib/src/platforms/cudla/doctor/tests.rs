//! The probe on machines that are directory trees.

use super::probe;
use crate::doctor::State;
use crate::doctor::tests::{find, machine};

#[test]
fn nothing_is_reported_without_the_library() {
    let (_tree, machine) = machine(&[]);
    assert!(probe(&machine).is_empty());
}

#[test]
fn library_is_reported_once() {
    let toolkit = "/usr/local/cuda/lib64/libcudla.so.1";
    let target = "/usr/local/cuda/targets/aarch64-linux/lib/libcudla.so.1";
    let (_tree, machine) = machine(&[(toolkit, ""), (target, "")]);
    let checks = probe(&machine);
    assert_eq!(checks.len(), 1);
    let check = find(&checks, "cuDLA");
    assert_eq!(check.state, State::Ok);
    assert!(check.what.starts_with(toolkit) && check.what.contains("level 1"), "{}", check.what);
}

//! The probe on machines that are directory trees.

use super::probe;
use crate::doctor::State;
use crate::doctor::tests::{find, machine};

#[test]
fn nothing_is_reported_without_the_driver() {
    let (_tree, machine) = machine(&[]);
    assert!(probe(&machine).is_empty());
}

#[test]
fn absent_interfaces_are_one_line() {
    let library = "/usr/local/corex/lib64/libcuda.so.1";
    let (_tree, machine) = machine(&[(library, "")]);
    let checks = probe(&machine);
    assert_eq!(checks.len(), 1);
    let check = find(&checks, "CoreX");
    assert_eq!(check.state, State::Ok);
    for part in [library, "level 1", "level 2 needs memory waits", "level 3 NVIDIA's resource manager"] {
        assert!(check.what.contains(part), "{}", check.what);
    }
}

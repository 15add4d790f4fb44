//! The probe on machines that are directory trees.

use super::probe;
use crate::doctor::State;
use crate::doctor::tests::{do_next, find, machine};

const LOADER: (&str, &str) = ("/usr/lib/x86_64-linux-gnu/libze_loader.so.1", "");

#[test]
fn nothing_is_reported_without_the_loader() {
    let (_tree, machine) = machine(&[]);
    assert!(probe(&machine).is_empty());
}

#[test]
fn drivers_are_listed() {
    let (_tree, machine) = machine(&[LOADER, ("/usr/lib/x86_64-linux-gnu/libze_intel_gpu.so.1", "")]);
    let checks = probe(&machine);
    let what = &find(&checks, "Level Zero").what;
    assert!(what.starts_with("libze_intel_gpu.so.1: programs can be scheduled at level 1"), "{what}");
}

#[test]
fn loader_without_a_driver_is_reported() {
    let (_tree, machine) = machine(&[LOADER]);
    let checks = probe(&machine);
    let check = find(&checks, "Level Zero");
    assert_eq!(check.state, State::Warning);
    assert!(do_next(check).contains("intel-level-zero-gpu"));
}

#[test]
fn missing_driver_of_the_variable_is_reported() {
    let (_tree, mut machine) = machine(&[LOADER]);
    machine.environment.insert("ZE_ENABLE_ALT_DRIVERS".into(), "/no/such/driver.so".into());
    let checks = probe(&machine);
    assert_eq!(checks[0].state, State::Problem);
    assert!(checks[0].what.contains("/no/such/driver.so, which does not exist"), "{}", checks[0].what);
}

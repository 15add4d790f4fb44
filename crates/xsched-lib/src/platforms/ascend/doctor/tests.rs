//! The probe on machines that are directory trees.

use super::probe;
use crate::doctor::State;
use crate::doctor::tests::{do_next, find, machine};

const LIBRARY: (&str, &str) = ("/usr/local/Ascend/ascend-toolkit/latest/lib64/libascendcl.so", "");
const DRIVER: (&str, &str) = ("/dev/davinci_manager", "");

#[test]
fn nothing_is_reported_without_toolkit_and_driver() {
    let (_tree, machine) = machine(&[]);
    assert!(probe(&machine).is_empty());
}

#[test]
fn toolkit_with_a_driver_works() {
    let (_tree, machine) = machine(&[LIBRARY, DRIVER]);
    let checks = probe(&machine);
    let check = find(&checks, "Ascend");
    assert_eq!(check.state, State::Ok);
    assert!(check.what.contains("latest/lib64/libascendcl.so: programs can be scheduled at level 1"));
}

#[test]
fn missing_driver_and_missing_toolkit_are_reported() {
    for (file, next) in [(LIBRARY, "driver of the NPU"), (DRIVER, "CANN toolkit")] {
        let (_tree, machine) = machine(&[file]);
        let checks = probe(&machine);
        let check = find(&checks, "Ascend");
        assert_eq!(check.state, State::Warning);
        assert!(do_next(check).contains(next), "{}", do_next(check));
    }
}

#[test]
fn variable_without_a_toolkit_is_reported() {
    let (_tree, mut machine) = machine(&[LIBRARY, DRIVER]);
    machine.environment.insert("ASCEND_HOME_PATH".into(), "/no/such/toolkit".into());
    let checks = probe(&machine);
    assert_eq!(checks[0].state, State::Problem);
    assert!(checks[0].what.contains("/no/such/toolkit, which has no libascendcl.so"), "{}", checks[0].what);
    assert_eq!(checks[1].state, State::Ok);
}

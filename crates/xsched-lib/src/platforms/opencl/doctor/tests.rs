//! The probe on machines that are directory trees.

use super::probe;
use crate::doctor::State;
use crate::doctor::tests::{do_next, find, machine};

#[test]
fn opencl_vendors_are_listed() {
    let (_tree, machine) = machine(&[("/etc/OpenCL/vendors/pocl.icd", "libpocl.so.2\n")]);
    let checks = probe(&machine);
    let what = &find(&checks, "OpenCL").what;
    assert!(what.starts_with("pocl (libpocl.so.2): programs can be scheduled at level 1"), "{what}");
}

#[test]
fn missing_opencl_files_are_reported() {
    let (_tree, mut machine) = machine(&[("/etc/OpenCL/vendors/gone.icd", "/opt/gone/libgone.so\n")]);
    let checks = probe(&machine);
    assert_eq!(find(&checks, "OpenCL gone").state, State::Problem);
    assert!(do_next(find(&checks, "OpenCL gone")).contains("/etc/OpenCL/vendors/gone.icd"));

    machine.environment.insert("OCL_ICD_VENDORS".into(), "/no/such/place".into());
    let checks = probe(&machine);
    assert!(find(&checks, "OpenCL").what.contains("/no/such/place, which has no .icd file"));

    machine.environment.clear();
    machine.environment.insert("XSCHED_OPENCL_LIB".into(), "/no/such/library.so".into());
    let checks = probe(&machine);
    let ignored = find(&checks, "OpenCL");
    assert_eq!(ignored.state, State::Warning);
    assert!(ignored.what.contains("/no/such/library.so, which does not exist"), "{}", ignored.what);
}

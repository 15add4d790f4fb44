//! The probe on machines that are directory trees.

use super::probe;
use crate::doctor::State;
use crate::doctor::tests::{do_next, find, machine};

#[test]
fn vulkan_drivers_are_listed() {
    let files =
        ["radeon_icd.x86_64", "lvp_icd.x86_64"].map(|file| format!("/usr/share/vulkan/icd.d/{file}.json"));
    let (_tree, machine) = machine(&[(&files[0], "{}"), (&files[1], "{}")]);
    let checks = probe(&machine);
    let what = &find(&checks, "Vulkan").what;
    assert!(what.contains("radeon") && what.contains("lvp") && what.contains("at level 1"), "{what}");
    assert!(!what.contains("icd"), "{what}");
}

#[test]
fn variables_that_keep_the_layer_from_being_used_are_reported() {
    let (_tree, mut machine) = machine(&[]);
    assert!(probe(&machine).is_empty());
    for (name, value, is_reported) in [
        ("XSCHED_VULKAN_LAYER_DISABLE", "1", true),
        ("VK_LOADER_LAYERS_DISABLE", "~implicit~", true),
        ("VK_LOADER_LAYERS_DISABLE", "VK_LAYER_MESA_overlay,*XSCHED*", true),
        ("VK_LOADER_LAYERS_DISABLE", "VK_LAYER_MESA_overlay", false),
        ("VK_DRIVER_FILES", "/no/such/driver.json", true),
    ] {
        machine.environment.clear();
        machine.environment.insert(name.into(), value.into());
        let checks = probe(&machine);
        assert_eq!(!checks.is_empty(), is_reported, "{name}={value}");
        if is_reported {
            let check = find(&checks, "Vulkan");
            assert_eq!(check.state, State::Warning);
            assert!(check.what.contains(name) && do_next(check).contains(name), "{}", check.what);
        }
    }
}

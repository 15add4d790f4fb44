//! The public C interface, from C and C++: everything it promises, linked, preloaded and beside the service.

#[allow(dead_code, reason = "the other tests of the C interface use the rest")]
mod cprogram;
#[allow(dead_code, reason = "the other tests on this stage use the rest")]
mod stage;

use std::path::Path;
use std::process::Command;

use cprogram::{First, build, printed, root};
use stage::Stage;
use xsched_sim::{Config, SimDevice};

/// A program on a simulated device that lacks level 3. It ends by itself, or is ended.
fn on_device(stage: &Stage, program: &Path, arguments: &[&str]) -> Command {
    let config = Config { interrupt: None, ..Config::default() };
    SimDevice::create_at(stage.device(), &config).unwrap();
    let mut words = vec!["timeout", "300", program.to_str().unwrap()];
    words.extend(arguments);
    stage.direct(&words)
}

#[test]
fn it_keeps_its_promises_with_our_hooks_in_the_way() {
    let stage = Stage::without_service();
    let program = build(&stage, "behaviour.c", First::Ours);
    assert!(printed(&mut on_device(&stage, &program, &["hooked"])).ends_with("all\n"));
}

#[test]
fn it_keeps_its_promises_without_our_hooks() {
    let stage = Stage::without_service();
    let program = build(&stage, "behaviour.c", First::Vendors);
    assert!(printed(&mut on_device(&stage, &program, &["unhooked"])).ends_with("all\n"));
}

#[test]
fn it_keeps_its_promises_preloaded() {
    let stage = Stage::without_service();
    let program = build(&stage, "behaviour.c", First::Vendors);
    let mut command = on_device(&stage, &program, &["hooked"]);
    assert!(printed(command.env("LD_PRELOAD", stage.library("libxsched.so"))).ends_with("all\n"));
}

#[test]
fn headers_have_the_references_names_and_numbers_in_cpp_too() {
    let stage = Stage::without_service();
    let program = build(&stage, "headers.cpp", First::Ours);
    assert_eq!(printed(&mut on_device(&stage, &program, &[])), "compiled\n");
}

/// What the library shows of itself: the interface, and the functions it stands in front of. Nothing else, for it lies in
/// the middle of other people's names.
#[test]
fn it_exports_exactly_what_it_should() {
    let stage = Stage::without_service();
    let listed =
        printed(Command::new("nm").args(["-D", "--defined-only"]).arg(stage.library("libxsched.so")));
    let mut exports: Vec<_> = listed.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    exports.sort_unstable();
    let exports = exports.join("\n") + "\n";
    let golden = root().join("crates/xsched-lib/exports.txt");
    if std::env::var_os("XSCHED_WRITE_EXPORTS").is_some() {
        std::fs::write(&golden, &exports).unwrap();
    }
    assert_eq!(
        exports,
        std::fs::read_to_string(&golden).unwrap_or_default(),
        "crates/xsched-lib/exports.txt is written by this test if XSCHED_WRITE_EXPORTS is set"
    );
}

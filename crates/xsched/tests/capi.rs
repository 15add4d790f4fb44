//! The public C interface, from C and C++: its documented behavior, linked and preloaded.

#[allow(dead_code, reason = "the other tests of the C interface use the rest")]
mod c_program;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;

use std::path::Path;
use std::process::Command;

use c_program::{LibraryOrder, build, printed, root};
use environment::TestEnvironment;
use xsched_sim::{Config, SimDevice};

/// A program on a simulated device without level 3, limited to five minutes.
fn on_device(env: &TestEnvironment, program: &Path, arguments: &[&str]) -> Command {
    let config = Config { interrupt: None, ..Config::default() };
    SimDevice::create_at(env.device(), &config).unwrap();
    let mut words = vec!["timeout", "300", program.to_str().unwrap()];
    words.extend(arguments);
    env.direct(&words)
}

#[test]
fn documented_behavior_holds_with_hooks() {
    let env = TestEnvironment::without_service();
    let program = build(&env, "behaviour.c", LibraryOrder::XschedFirst);
    assert!(printed(&mut on_device(&env, &program, &["hooked"])).ends_with("all\n"));
}

#[test]
fn documented_behavior_holds_without_hooks() {
    let env = TestEnvironment::without_service();
    let program = build(&env, "behaviour.c", LibraryOrder::VendorFirst);
    assert!(printed(&mut on_device(&env, &program, &["unhooked"])).ends_with("all\n"));
}

#[test]
fn documented_behavior_holds_preloaded() {
    let env = TestEnvironment::without_service();
    let program = build(&env, "behaviour.c", LibraryOrder::VendorFirst);
    let mut command = on_device(&env, &program, &["hooked"]);
    assert!(printed(command.env("LD_PRELOAD", env.library("libxsched.so"))).ends_with("all\n"));
}

#[test]
fn headers_have_the_names_and_numbers_of_the_original_in_cpp_too() {
    let env = TestEnvironment::without_service();
    let program = build(&env, "headers.cpp", LibraryOrder::XschedFirst);
    assert_eq!(printed(&mut on_device(&env, &program, &[])), "compiled\n");
}

/// The library exports its interface and its hooks, and no other name: any other name could replace one of the program's.
#[test]
fn library_exports_only_the_interface_and_the_hooks() {
    let env = TestEnvironment::without_service();
    let symbols = printed(Command::new("nm").args(["-D", "--defined-only"]).arg(env.library("libxsched.so")));
    let mut exports: Vec<_> = symbols.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
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

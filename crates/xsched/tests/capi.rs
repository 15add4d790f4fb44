//! The public C interface, from C and C++: its documented behavior, linked and preloaded.

#[allow(dead_code, reason = "the other tests of the C interface use the rest")]
mod c_program;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use c_program::{LibraryOrder, build, printed, root, try_build};
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

/// C99 allows one declaration of a type only, and the tests treat pedantic warnings as errors.
#[test]
fn types_are_declared_by_the_headers_alone_and_beside_those_of_the_vendors() {
    let env = TestEnvironment::without_service();
    let programs = root().join("crates/xsched/tests/programs/capi");
    let run = |name: &str, more: &[&str]| {
        let program = try_build(&env, &programs.join(name), LibraryOrder::XschedFirst, more)
            .unwrap_or_else(|output| panic!("{name} {more:?}: {}", String::from_utf8_lossy(&output.stderr)));
        printed(&mut env.direct(&[program.to_str().unwrap()]));
    };
    for order in ["-DVENDOR_ABSENT", "-DVENDOR_FIRST", "-DVENDOR_AFTER"] {
        run("vendor_types.c", &[order]);
        run("vendor_types.c", &[order, "-std=c11"]);
        run("vendor_types.cpp", &[order]);
    }
    run("types_alone.c", &[]);
    run("types_alone.cpp", &[]);
}

/// The library is loaded into processes with symbols of their own, so that it must not export a name by accident. Every
/// export is listed: those of a platform in `exports.txt` in its directory, all others in `crates/xsched-lib/exports.txt`.
#[test]
fn library_exports_exactly_the_listed_symbols() {
    let env = TestEnvironment::without_service();
    let printed = printed(Command::new("nm").args(["-D", "--defined-only"]).arg(env.library("libxsched.so")));
    let exported: BTreeSet<_> = printed.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    let library = root().join("crates/xsched-lib");
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let platforms = std::fs::read_dir(library.join("src/platforms")).unwrap().flatten();
    let of_platforms: String = platforms.map(|entry| read(&entry.path().join("exports.txt"))).collect();
    let of_platforms: BTreeSet<_> = of_platforms.lines().collect();
    let golden = library.join("exports.txt");
    if std::env::var_os("XSCHED_WRITE_EXPORTS").is_some() {
        let of_library: Vec<_> = exported.difference(&of_platforms).map(|name| format!("{name}\n")).collect();
        std::fs::write(&golden, of_library.concat()).unwrap();
    }
    let of_library = read(&golden);
    let listed: BTreeSet<_> = of_platforms.into_iter().chain(of_library.lines()).collect();
    assert_eq!(
        exported,
        listed,
        "with XSCHED_WRITE_EXPORTS set, this test writes the exports that no platform lists to {}",
        golden.display()
    );
}

//! The C examples print what their READMEs show.

#[allow(dead_code, reason = "the other tests of the C interface use the rest")]
mod c_program;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;

use std::path::PathBuf;

use c_program::{LibraryOrder, printed, root, try_build};
use environment::TestEnvironment;

/// Builds an example as its README does.
fn example(env: &TestEnvironment, name: &str) -> PathBuf {
    let source = root().join("examples").join(name).join("main.c");
    // Named after the example: every source file is called main.c.
    let copy = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("example-{name}.c"));
    std::fs::copy(source, &copy).unwrap();
    try_build(env, &copy, LibraryOrder::XschedFirst, &[])
        .unwrap_or_else(|output| panic!("{name}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// The output that the README shows.
fn expected_output(name: &str) -> String {
    let readme = std::fs::read_to_string(root().join("examples").join(name).join("README.md")).unwrap();
    let (_, rest) = readme.split_once("It prints:\n\n```text\n").expect("the README shows the output");
    rest.split_once("```").expect("the block ends").0.to_owned()
}

#[test]
fn interface_examples_print_what_their_readmes_show() {
    for name in ["hints", "priorities", "suspend", "callbacks", "deadlines"] {
        let env = TestEnvironment::without_service();
        let program = example(&env, name);
        let output = printed(&mut env.direct(&["timeout", "60", program.to_str().unwrap()]));
        assert_eq!(output, expected_output(name), "{name}");
    }
}

#[test]
fn example_of_the_service_prints_what_its_readme_shows() {
    let env = TestEnvironment::with_service();
    let program = example(&env, "global");
    let output = printed(&mut env.direct(&["timeout", "60", program.to_str().unwrap()]));
    assert_eq!(output, expected_output("global"));
}

#[test]
fn transparent_example_prints_what_its_readme_shows() {
    let env = TestEnvironment::with_service();
    let program = example(&env, "transparent");
    let output = printed(&mut env.run(&["--priority", "high"], &[program.to_str().unwrap()]));
    assert_eq!(output, expected_output("transparent"));
}

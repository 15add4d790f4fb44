//! The examples in C do what their READMEs say.

#[allow(dead_code, reason = "the other tests of the C interface use the rest")]
mod cprogram;
#[allow(dead_code, reason = "the other tests on this stage use the rest")]
mod stage;

use std::path::PathBuf;

use cprogram::{First, printed, root, try_build};
use stage::Stage;

/// Builds an example as its README does.
fn example(stage: &Stage, name: &str) -> PathBuf {
    let source = root().join("examples").join(name).join("main.c");
    // Named after the example, not after its one file.
    let copy = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("example-{name}.c"));
    std::fs::copy(source, &copy).unwrap();
    try_build(stage, &copy, First::Ours, &[])
        .unwrap_or_else(|output| panic!("{name}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// What the README says that the example prints.
fn promised(name: &str) -> String {
    let readme = std::fs::read_to_string(root().join("examples").join(name).join("README.md")).unwrap();
    let (_, rest) = readme.split_once("It prints:\n\n```text\n").expect("says what is printed");
    rest.split_once("```").expect("says where that ends").0.to_owned()
}

#[test]
fn examples_of_the_interface_print_what_their_readmes_say() {
    for name in ["hints", "priorities", "suspend", "callbacks"] {
        let stage = Stage::without_service();
        let program = example(&stage, name);
        let output = printed(&mut stage.direct(&["timeout", "60", program.to_str().unwrap()]));
        assert_eq!(output, promised(name), "{name}");
    }
}

#[test]
fn the_transparent_example_prints_what_its_readme_says() {
    let stage = Stage::with_service();
    let program = example(&stage, "transparent");
    let output = printed(&mut stage.run(&["--priority", "high"], &[program.to_str().unwrap()]));
    assert_eq!(output, promised("transparent"));
}

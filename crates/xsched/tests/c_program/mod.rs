//! Builds C and C++ programs that use the public interface.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::environment::TestEnvironment;

/// The library names that programs for this or for the original C++ XSched link. All are links to this library.
const LINKS: [&str; 19] = [
    "libxsched.so",
    "libxsched.so.0",
    "libpreempt.so",
    "libhalcuda.so",
    "libhalhip.so",
    "libhalopencl.so",
    "libhallevelzero.so",
    "libhalascend.so",
    "libhalcudla.so",
    "libhalvpi.so",
    "libhalcorex.so",
    "libshimcuda.so",
    "libshimhip.so",
    "libshimopencl.so",
    "libshimlevelzero.so",
    "libshimascend.so",
    "libshimcudla.so",
    "libshimvpi.so",
    "libshimcorex.so",
];

/// The root directory of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The library whose functions the loader finds first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LibraryOrder {
    /// XSched: calls of the vendor's functions go through the hooks.
    XschedFirst,
    /// The vendor: the program uses only the interface of XSched.
    VendorFirst,
}

/// The directory with the libraries under all their names.
pub(crate) fn libraries(env: &TestEnvironment) -> &'static Path {
    static LIBRARIES: OnceLock<PathBuf> = OnceLock::new();
    LIBRARIES.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME"));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        for (name, of) in
            LINKS.map(|name| (name, "libxsched.so")).into_iter().chain([("libxsim.so", "libxsim.so")])
        {
            std::os::unix::fs::symlink(env.library(of), directory.join(name)).unwrap();
        }
        directory
    })
}

/// Builds a program with all warnings as errors. Returns the compiler's output if that fails.
pub(crate) fn try_build(
    env: &TestEnvironment,
    source: &Path,
    first: LibraryOrder,
    more: &[&str],
) -> Result<PathBuf, Output> {
    static DRAFTS: AtomicU32 = AtomicU32::new(0);
    let cpp = source.extension().is_some_and(|extension| extension == "cpp");
    let (compiler, standard) = if cpp { ("CXX", "-std=c++11") } else { ("CC", "-std=gnu99") };
    let compiler = std::env::var_os(compiler).unwrap_or_else(|| if cpp { "c++" } else { "cc" }.into());
    let libraries = libraries(env);
    let name =
        format!("{}-{first:?}{}", source.file_stem().unwrap().display(), more.concat().replace('/', "_"));
    let program = libraries.join(&name);
    // Renamed atomically below: another test may be running the old file.
    let draft = libraries.join(format!("{name}.{}", DRAFTS.fetch_add(1, Ordering::Relaxed)));
    let mut compile = Command::new(compiler);
    compile.args([standard, "-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]).args(more);
    compile.arg("-o").arg(&draft).arg(source);
    compile.arg("-I").arg(root().join("include")).arg("-I").arg(root().join("standins/xsim"));
    compile.arg("-L").arg(libraries).arg(format!("-Wl,-rpath,{}", libraries.display()));
    match first {
        LibraryOrder::XschedFirst => compile.args(["-lpreempt", "-lhalcuda", "-lxsim"]),
        LibraryOrder::VendorFirst => compile.args(["-lxsim", "-lpreempt", "-lhalcuda"]),
    };
    let output = compile.arg("-lpthread").output().unwrap();
    if !output.status.success() {
        return Err(output);
    }
    std::fs::rename(&draft, &program).unwrap();
    Ok(program)
}

/// Builds one of the test programs.
pub(crate) fn build(env: &TestEnvironment, name: &str, first: LibraryOrder) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/capi").join(name);
    try_build(env, &source, first, &[])
        .unwrap_or_else(|output| panic!("{name}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// The output of a program that must exit successfully.
pub(crate) fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out.into_owned()
}

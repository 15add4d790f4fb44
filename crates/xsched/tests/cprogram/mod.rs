//! Programs in C and C++ that use the public interface: how they are built, and what they are linked to.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::stage::Stage;

/// What a program is linked to, written for the reference or for this, and asks the loader for. All are this library.
const LINKS: [&str; 9] = [
    "libxsched.so",
    "libxsched.so.0",
    "libpreempt.so",
    "libhalcuda.so",
    "libhalhip.so",
    "libhalopencl.so",
    "libshimcuda.so",
    "libshimhip.so",
    "libshimopencl.so",
];

/// The repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Which of two libraries the loader finds first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    /// Ours: its hooks are in the way.
    Ours,
    /// The vendor's: nothing but the interface is used.
    Vendors,
}

/// The directory with the libraries under all their names.
pub(crate) fn libraries(stage: &Stage) -> &'static Path {
    static LIBRARIES: OnceLock<PathBuf> = OnceLock::new();
    LIBRARIES.get_or_init(|| {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME"));
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(&place).unwrap();
        for (name, of) in
            LINKS.map(|name| (name, "libxsched.so")).into_iter().chain([("libxsim.so", "libxsim.so")])
        {
            std::os::unix::fs::symlink(stage.library(of), place.join(name)).unwrap();
        }
        place
    })
}

/// Builds a program as strictly as compilers can be told to. Answers why not if it cannot be built.
pub(crate) fn try_build(
    stage: &Stage,
    source: &Path,
    first: First,
    more: &[&str],
) -> Result<PathBuf, Output> {
    static DRAFTS: AtomicU32 = AtomicU32::new(0);
    let cpp = source.extension().is_some_and(|extension| extension == "cpp");
    let (compiler, standard) = if cpp { ("CXX", "-std=c++11") } else { ("CC", "-std=gnu99") };
    let compiler = std::env::var_os(compiler).unwrap_or_else(|| if cpp { "c++" } else { "cc" }.into());
    let libraries = libraries(stage);
    let name =
        format!("{}-{first:?}{}", source.file_stem().unwrap().display(), more.concat().replace('/', "_"));
    let program = libraries.join(&name);
    // Another test may be running it.
    let draft = libraries.join(format!("{name}.{}", DRAFTS.fetch_add(1, Ordering::Relaxed)));
    let mut compile = Command::new(compiler);
    compile.args([standard, "-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]).args(more);
    compile.arg("-o").arg(&draft).arg(source);
    compile.arg("-I").arg(root().join("include")).arg("-I").arg(root().join("standins/xsim"));
    compile.arg("-L").arg(libraries).arg(format!("-Wl,-rpath,{}", libraries.display()));
    match first {
        First::Ours => compile.args(["-lpreempt", "-lhalcuda", "-lxsim"]),
        First::Vendors => compile.args(["-lxsim", "-lpreempt", "-lhalcuda"]),
    };
    let output = compile.arg("-lpthread").output().unwrap();
    if !output.status.success() {
        return Err(output);
    }
    std::fs::rename(&draft, &program).unwrap();
    Ok(program)
}

/// As [`try_build`] of a program of the tests' own, which can always be built.
pub(crate) fn build(stage: &Stage, name: &str, first: First) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/capi").join(name);
    try_build(stage, &source, first, &[])
        .unwrap_or_else(|output| panic!("{name}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// What a program printed, once it has ended well.
pub(crate) fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out.into_owned()
}

//! A test environment with AMD's real HIP runtime: a Debian root with AMD's software, in which the stand-ins for `ROCr` and the
//! kernel driver replace AMD's own.
//!
//! `XSCHED_ROCM_6` and `XSCHED_ROCM_7` name the directories that `scripts/rocm-root 6 DIR` and `scripts/rocm-root 7 DIR` make.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::environment::TestEnvironment;
use crate::skipped::record_skipped;

/// A generation of AMD's software.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rocm {
    /// HIP 6.4: `libamdhip64.so.6`, with AMD's compiler.
    V6,
    /// HIP 7.2: `libamdhip64.so.7`.
    V7,
}

impl Rocm {
    pub(crate) const ALL: [Self; 2] = [Self::V6, Self::V7];

    fn variable(self) -> &'static str {
        match self {
            Self::V6 => "XSCHED_ROCM_6",
            Self::V7 => "XSCHED_ROCM_7",
        }
    }

    /// The file name of the runtime.
    pub(crate) fn runtime(self) -> &'static str {
        match self {
            Self::V6 => "libamdhip64.so.6",
            Self::V7 => "libamdhip64.so.7",
        }
    }

    /// The directory that contains the root; none if there is none.
    fn directory(self) -> Option<PathBuf> {
        let directory = std::env::var_os(self.variable()).map(PathBuf::from)?;
        let runtime = directory.join("root/usr/lib/x86_64-linux-gnu").join(self.runtime());
        runtime.exists().then(|| directory.canonicalize().expect("the directory exists"))
    }

    /// The directory that contains a root with AMD's compiler, for programs of this generation: that of HIP 6, or its own. None, and the
    /// test is skipped, without one.
    pub(crate) fn compiler_root(self) -> Option<PathBuf> {
        let root = compiler_root([Self::V6, self].into_iter().filter_map(Self::directory));
        if root.is_none() {
            record_skipped("XSCHED_ROCM_6 names no root with hipcc (scripts/rocm-root 6 DIR)");
        }
        root
    }
}

/// The first of these directories whose root contains AMD's compiler.
pub(crate) fn compiler_root(mut directories: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    directories.find(|directory| directory.join("root/usr/bin/hipcc").exists())
}

fn run_checked(what: &str, command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{what}: {error}"));
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {text}");
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the sources are there")
}

/// Builds the stand-ins once. Returns the directory that contains `libhsa-runtime64.so.1` and `libkfd_standin.so`.
pub(crate) fn rocr_standins() -> &'static Path {
    static STANDINS: OnceLock<PathBuf> = OnceLock::new();
    STANDINS.get_or_init(|| {
        let built = Path::new(env!("CARGO_BIN_EXE_xsched")).parent().expect("a program is in a directory");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "-p", "rocr-standin", "-p", "kfd-standin", "--target-dir"]);
        cargo.arg(built.parent().expect("the profile's directory is in the target directory"));
        let profile = built.file_name().filter(|name| *name != "debug").unwrap_or("dev".as_ref());
        cargo.arg("--profile").arg(profile);
        run_checked("building the stand-ins", cargo.current_dir(env!("CARGO_MANIFEST_DIR")));
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME")).join("rocr");
        std::fs::create_dir_all(&directory).unwrap();
        let link = repository().join("standins/rocr/link.sh");
        let runtime = directory.join("libhsa-runtime64.so.1");
        run_checked("linking ROCr", Command::new(link).arg(built.join("librocr_standin.a")).arg(runtime));
        let draft = directory.join(format!("driver.{}", std::process::id()));
        std::fs::copy(built.join("libkfd_standin.so"), &draft).unwrap();
        std::fs::rename(draft, directory.join("libkfd_standin.so")).unwrap();
        directory
    })
}

/// An environment with a service in which queues have this level with these options of `xsched run`. Skips the test, with a
/// reason, if the root is not there.
pub(crate) fn with_level(rocm: Rocm, level: u8) -> Option<(RocmEnvironment, Vec<&'static str>)> {
    let environment = RocmEnvironment::with_service(rocm)?;
    Some(match level {
        1 => (environment, vec!["--level", "1"]),
        2 => (environment.without_level_3(), Vec::new()),
        _ => (environment, Vec::new()),
    })
}

/// A test environment in a root with AMD's software.
pub(crate) struct RocmEnvironment {
    pub(crate) env: TestEnvironment,
    pub(crate) rocm: Rocm,
    root: PathBuf,
    directory: tempfile::TempDir,
    variables: Vec<(String, OsString)>,
    binds: Vec<String>,
}

impl RocmEnvironment {
    /// An environment with a service. Skips the test, with a reason, if the root is not there.
    pub(crate) fn with_service(rocm: Rocm) -> Option<Self> {
        Self::new(rocm, TestEnvironment::with_service)
    }

    /// An environment without a service. Skips the test, with a reason, if the root is not there.
    pub(crate) fn without_service(rocm: Rocm) -> Option<Self> {
        Self::new(rocm, TestEnvironment::without_service)
    }

    fn new(rocm: Rocm, env: fn() -> TestEnvironment) -> Option<Self> {
        let Some(root) = rocm.directory() else {
            let number = if rocm == Rocm::V6 { "6" } else { "7" };
            record_skipped(&format!("{} names no root (scripts/rocm-root {number} DIR)", rocm.variable()));
            return None;
        };
        rocr_standins();
        let directory = tempfile::tempdir().unwrap();
        Some(Self { env: env(), rocm, root, directory, variables: Vec::new(), binds: Vec::new() })
    }

    /// The same with an environment variable.
    pub(crate) fn with(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// The same on a machine whose driver cannot stop queues, because it does not save running waves, and with stop points.
    pub(crate) fn without_level_3(self) -> Self {
        self.with("KFD_STANDIN_CWSR", "0").with("GPU_STREAMOPS_CP_WAIT", "1")
    }

    /// The same with one more directory of the host: `DIR`, or `DIR=DIR_IN_THE_ROOT`.
    pub(crate) fn with_directory(mut self, bind: &str) -> Self {
        self.binds.push(bind.to_owned());
        self
    }

    /// A directory for files of the test, which programs in the root see at the same path.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The directory with the root.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The requests that the stand-in for the driver received.
    pub(crate) fn driver_log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("driver.log")).unwrap_or_default()
    }

    /// The file of the ledger of all packets.
    pub(crate) fn ledger(&self) -> PathBuf {
        self.directory.path().join("ledger")
    }

    /// The simulated devices are in the file with this name and further ones that begin with it.
    pub(crate) fn device(&self) -> PathBuf {
        self.directory.path().join("gpu")
    }

    /// A program in the root without the scheduler.
    pub(crate) fn direct(&self, program: &[&str]) -> Command {
        self.in_root(program)
    }

    /// A program in the root under the scheduler.
    pub(crate) fn run(&self, options: &[&str], program: &[&str]) -> Command {
        let mut words = vec![env!("CARGO_BIN_EXE_xsched"), "run"];
        words.extend(options);
        words.push("--");
        words.extend(program);
        self.in_root(&words)
    }

    fn in_root(&self, program: &[&str]) -> Command {
        let script = repository().join("scripts/rocm-root");
        let root = self.root.to_str().expect("the path is text");
        let standins = rocr_standins().to_str().expect("the path is text");
        let mut words =
            vec![script.to_str().expect("the path is text"), "exec", root, "--standins", standins];
        for bind in &self.binds {
            words.extend(["--bind", bind]);
        }
        words.push("--");
        words.extend(program);
        let mut command = self.env.direct(&words);
        command
            .env("ROCR_STANDIN_DEVICE", self.device())
            .env("ROCR_STANDIN_LEDGER", self.ledger())
            .env("KFD_STANDIN_LOG", self.directory.path().join("driver.log"))
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Compiles a HIP program of `tests/programs/hip` for this environment's runtime. None, and the test is skipped, without AMD's
    /// compiler. A program is compiled once for all tests of a test binary.
    pub(crate) fn compile(&self, source: &str) -> Option<String> {
        self.compile_as(["-fPIE", "-pie"], source)
    }

    /// The same for a library.
    pub(crate) fn compile_library(&self, source: &str) -> Option<String> {
        self.compile_as(["-fPIC", "-shared"], source)
    }

    /// `options` are those of the compiler and of the linker.
    fn compile_as(&self, options: [&str; 2], source: &str) -> Option<String> {
        static COMPILING: Mutex<()> = Mutex::new(());
        let compiler_root = self.rocm.compiler_root()?;
        let _compiling = COMPILING.lock().unwrap_or_else(PoisonError::into_inner);
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/hip").join(source);
        let place = rocr_standins().join(self.rocm.variable());
        std::fs::create_dir_all(&place).unwrap();
        let program = place.join(Path::new(source).file_stem().expect("a source has a name"));
        let modified = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
        // A source includes files of its own directory and of the one above.
        let directories = from.ancestors().skip(1).take(2).filter_map(|path| path.read_dir().ok());
        let files = directories.flatten().filter_map(|entry| Some(entry.ok()?.path()));
        if modified(&program) <= files.filter_map(|file| modified(&file)).max() {
            let runtime = self.root.join("root/usr/lib/x86_64-linux-gnu").join(self.rocm.runtime());
            let draft = place.join(format!("draft.{}", std::process::id()));
            let object = draft.with_extension("o");
            let script = repository().join("scripts/rocm-root");
            let in_compiler_root = || {
                let mut command = Command::new(&script);
                command.arg("exec").arg(&compiler_root).arg("--bind").arg(&self.root).arg("--");
                command
            };
            let mut compile = in_compiler_root();
            compile
                .args(["hipcc", "--offload-arch=gfx90a", "-O1", options[0], "-c", "-o"])
                .arg(&object)
                .arg(&from);
            run_checked(source, &mut compile);
            // The symbols have the same versions in both runtimes, so only the file that is linked differs.
            let mut link = in_compiler_root();
            link.args(["hipcc", "-no-hip-rt", options[1], "-Wl,--allow-shlib-undefined", "-o"]).arg(&draft);
            run_checked(source, link.arg(&object).arg(&runtime).args(["-lpthread", "-ldl"]));
            std::fs::rename(&draft, &program).unwrap();
        }
        Some(program.display().to_string())
    }

    /// Compiles a C program of `tests/programs/hip` that uses `ROCr` without HIP, with the compiler of the host.
    pub(crate) fn compile_without_hip(&self, source: &str) -> String {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/hip").join(source);
        let program = self.directory().join(Path::new(source).file_stem().expect("a source has a name"));
        let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-o"]).arg(&program).arg(&from);
        compiler.arg(rocr_standins().join("libhsa-runtime64.so.1")).args(["-ldl", "-lpthread"]);
        run_checked(source, &mut compiler);
        program.display().to_string()
    }
}

//! A test environment with a simulated AMD GPU: the stand-ins for AMD's runtime and driver, and programs that use them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use crate::environment::TestEnvironment;

/// The programs and stand-ins, built once for all tests.
pub(crate) struct HipBuild {
    pub(crate) programs: PathBuf,
    /// The directories of two copies of the runtime.
    pub(crate) runtime: PathBuf,
    pub(crate) second_runtime: PathBuf,
    pub(crate) driver: PathBuf,
}

fn run_checked(what: &str, command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/hip").join(name)
}

/// Builds the stand-ins and the programs once.
pub(crate) fn hip_build() -> &'static HipBuild {
    static BUILD: OnceLock<HipBuild> = OnceLock::new();
    BUILD.get_or_init(|| {
        let built = Path::new(env!("CARGO_BIN_EXE_xsched")).parent().expect("a program is in a directory");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "-p", "hip-standin", "-p", "kfd-standin", "--target-dir"]);
        cargo.arg(built.parent().expect("the profile's directory is in the target directory"));
        let profile = built.file_name().filter(|name| *name != "debug").unwrap_or("dev".as_ref());
        cargo.arg("--profile").arg(profile);
        run_checked("building the stand-ins", cargo.current_dir(env!("CARGO_MANIFEST_DIR")));

        let programs = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME"));
        let [runtime, second_runtime] = ["a", "b"].map(|copy| programs.join(copy));
        for directory in [&runtime, &second_runtime] {
            std::fs::create_dir_all(directory).unwrap();
        }
        let file = runtime.join("libamdhip64.so.6");
        let link = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../standins/hip/link.sh");
        run_checked(
            "linking the runtime",
            Command::new(&link).arg(built.join("libhip_standin.a")).arg(&file),
        );
        let hsa_runtime = runtime.join("libhsa-runtime64.so.1");
        let name = hsa_runtime.file_name().expect("the path ends in a file name");
        run_checked(
            "linking the HSA runtime",
            Command::new(&link).arg(built.join("libhip_standin.a")).arg(&hsa_runtime).arg(name),
        );
        let draft = |to: &str| programs.join(format!("{to}.{}", std::process::id()));
        std::fs::copy(&file, draft("copy")).unwrap();
        std::fs::rename(draft("copy"), second_runtime.join("libamdhip64.so.6")).unwrap();

        let compile = |to: &str, more: &[&str], from: &[&str]| {
            let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
            compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror"]).args(more).arg("-o").arg(draft(to));
            compiler.args(from.iter().map(|name| source(name)));
            if !more.contains(&"-DLOOK_UP") && from.contains(&"consumer.c") {
                compiler.arg(&file);
            }
            if from == ["hsa.c"] {
                compiler.arg(&hsa_runtime);
            }
            run_checked(to, compiler.args(["-ldl", "-lpthread"]));
            // Rename atomically: another test process may be running the old file.
            std::fs::rename(draft(to), programs.join(to)).unwrap();
        };
        let library = ["-shared", "-fPIC"];
        let opening = |names: &[&str]| {
            let files: Vec<_> =
                names.iter().map(|name| format!("\"{}\"", programs.join(name).display())).collect();
            format!("-DOPEN={}", files.join(","))
        };
        compile("linked", &[], &["main.c", "consumer.c"]);
        compile("libconsumer.so", &library, &["consumer.c"]);
        compile("libother.so", &["-shared", "-fPIC", "-DLOOK_UP"], &["consumer.c"]);
        compile("opened", &[&opening(&["libconsumer.so"])], &["main.c"]);
        compile("twice", &[&opening(&["libconsumer.so", "libother.so"])], &["main.c"]);
        compile("looked_up", &["-DLOOK_UP"], &["main.c", "consumer.c"]);
        compile("by_version", &["-DLOOK_UP", "-DBY_VERSION"], &["main.c", "consumer.c"]);
        compile("libnaive.so", &library, &["naive.c"]);
        compile("libprofiler.so", &library, &["profiler.c"]);
        compile("hsa", &[], &["hsa.c"]);
        compile("libhsatool.so", &library, &["hsa_tool.c"]);
        HipBuild { programs, runtime, second_runtime, driver: built.join("libkfd_standin.so") }
    })
}

/// A test environment with AMD's stand-ins.
pub(crate) struct HipEnvironment {
    pub(crate) env: TestEnvironment,
    directory: tempfile::TempDir,
    variables: Vec<(String, OsString)>,
}

impl HipEnvironment {
    pub(crate) fn new(env: TestEnvironment) -> Self {
        hip_build();
        Self { env, directory: tempfile::tempdir().unwrap(), variables: Vec::new() }
    }

    /// The same with an environment variable.
    pub(crate) fn with(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// The requests that the stand-in for the driver received.
    pub(crate) fn driver_log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("driver.log")).unwrap_or_default()
    }

    /// Adds the variables of this environment to a command.
    pub(crate) fn set_variables(&self, mut command: Command) -> Command {
        command
            .env("LD_LIBRARY_PATH", &hip_build().runtime)
            .env("LD_PRELOAD", &hip_build().driver)
            .env("KFD_STANDIN_LOG", self.directory.path().join("driver.log"))
            .env("HIP_STANDIN_DEVICE", self.directory.path().join("gpu"))
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn program(words: &[&str]) -> Vec<String> {
        let mut words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        words[0] = hip_build().programs.join(&words[0]).display().to_string();
        words
    }

    /// A program under the scheduler.
    pub(crate) fn run(&self, options: &[&str], words: &[&str]) -> Command {
        let words = Self::program(words);
        self.set_variables(self.env.run(options, &words.iter().map(String::as_str).collect::<Vec<_>>()))
    }

    /// The same program without the scheduler.
    pub(crate) fn direct(&self, words: &[&str]) -> Command {
        let words = Self::program(words);
        self.set_variables(self.env.direct(&words.iter().map(String::as_str).collect::<Vec<_>>()))
    }
}

/// The output of a program that must exit successfully.
pub(crate) fn stdout_of(mut command: Command) -> String {
    let output = output_of(&mut command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a program to its exit. Returns its output and status.
pub(crate) fn output_of(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap()
}

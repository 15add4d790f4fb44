//! The stand-ins for AMD's runtime and driver, and programs that use them, built once for all tests.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use crate::stage::Stage;

/// Where everything is.
pub(crate) struct Kit {
    pub(crate) programs: PathBuf,
    /// Two copies of the runtime, each in a directory of its own.
    pub(crate) runtime: PathBuf,
    pub(crate) other_runtime: PathBuf,
    pub(crate) driver: PathBuf,
}

fn must(what: &str, command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/hip").join(name)
}

/// See the head of this file.
pub(crate) fn kit() -> &'static Kit {
    static KIT: OnceLock<Kit> = OnceLock::new();
    KIT.get_or_init(|| {
        let built = Path::new(env!("CARGO_BIN_EXE_xsched")).parent().expect("a program lies in a directory");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "-p", "hip-standin", "-p", "kfd-standin", "--target-dir"]);
        cargo.arg(built.parent().expect("a profile's directory lies in the target directory"));
        let profile = built.file_name().filter(|name| *name != "debug").unwrap_or("dev".as_ref());
        cargo.arg("--profile").arg(profile);
        must("building the stand-ins", cargo.current_dir(env!("CARGO_MANIFEST_DIR")));

        let programs = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME"));
        let [runtime, other_runtime] = ["a", "b"].map(|copy| programs.join(copy));
        for directory in [&runtime, &other_runtime] {
            std::fs::create_dir_all(directory).unwrap();
        }
        let file = runtime.join("libamdhip64.so.6");
        let link = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../standins/hip/link.sh");
        must("linking the runtime", Command::new(&link).arg(built.join("libhip_standin.a")).arg(&file));
        let below = runtime.join("libhsa-runtime64.so.1");
        let name = below.file_name().expect("it has one");
        must(
            "linking the runtime below",
            Command::new(&link).arg(built.join("libhip_standin.a")).arg(&below).arg(name),
        );
        let draft = |to: &str| programs.join(format!("{to}.{}", std::process::id()));
        std::fs::copy(&file, draft("copy")).unwrap();
        std::fs::rename(draft("copy"), other_runtime.join("libamdhip64.so.6")).unwrap();

        let compile = |to: &str, more: &[&str], from: &[&str]| {
            let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
            compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror"]).args(more).arg("-o").arg(draft(to));
            compiler.args(from.iter().map(|name| source(name)));
            if !more.contains(&"-DLOOK_UP") && from.contains(&"consumer.c") {
                compiler.arg(&file);
            }
            if from == ["hsa.c"] {
                compiler.arg(&below);
            }
            must(to, compiler.args(["-ldl", "-lpthread"]));
            // In one step: another process that tests may be using it.
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
        Kit { programs, runtime, other_runtime, driver: built.join("libkfd_standin.so") }
    })
}

/// Surroundings of one test.
pub(crate) struct Scene {
    pub(crate) stage: Stage,
    directory: tempfile::TempDir,
    variables: Vec<(String, OsString)>,
}

impl Scene {
    pub(crate) fn new(stage: Stage) -> Self {
        kit();
        Self { stage, directory: tempfile::tempdir().unwrap(), variables: Vec::new() }
    }

    /// The same with an environment variable.
    pub(crate) fn with(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// What the driver was asked for.
    pub(crate) fn driver_log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("driver.log")).unwrap_or_default()
    }

    /// A command in these surroundings.
    pub(crate) fn surround(&self, mut command: Command) -> Command {
        command
            .env("LD_LIBRARY_PATH", &kit().runtime)
            .env("LD_PRELOAD", &kit().driver)
            .env("KFD_STANDIN_LOG", self.directory.path().join("driver.log"))
            .env("HIP_STANDIN_DEVICE", self.directory.path().join("gpu"))
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn program(words: &[&str]) -> Vec<String> {
        let mut words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        words[0] = kit().programs.join(&words[0]).display().to_string();
        words
    }

    /// A program under the scheduler.
    pub(crate) fn run(&self, options: &[&str], words: &[&str]) -> Command {
        let words = Self::program(words);
        self.surround(self.stage.run(options, &words.iter().map(String::as_str).collect::<Vec<_>>()))
    }

    /// The same program without.
    pub(crate) fn direct(&self, words: &[&str]) -> Command {
        let words = Self::program(words);
        self.surround(self.stage.direct(&words.iter().map(String::as_str).collect::<Vec<_>>()))
    }
}

/// What a program said, once it has ended well.
pub(crate) fn said(mut command: Command) -> String {
    let output = ended(&mut command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// How a program ended.
pub(crate) fn ended(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap()
}

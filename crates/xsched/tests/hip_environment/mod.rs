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
        cargo.args([
            "build",
            "--quiet",
            "-p",
            "hip-standin",
            "-p",
            "rocr-standin",
            "-p",
            "kfd-standin",
            "--target-dir",
        ]);
        cargo.arg(built.parent().expect("the profile's directory is in the target directory"));
        let profile = built.file_name().filter(|name| *name != "debug").unwrap_or("dev".as_ref());
        cargo.arg("--profile").arg(profile);
        run_checked("building the stand-ins", cargo.current_dir(env!("CARGO_MANIFEST_DIR")));

        let programs = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME"));
        let [runtime, second_runtime] = ["a", "b"].map(|copy| programs.join(copy));
        for directory in [&runtime, &second_runtime] {
            std::fs::create_dir_all(directory).unwrap();
        }
        let standins = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../standins");
        let link = |standin: &str, file: &Path| {
            let archive = built.join(format!("lib{standin}_standin.a"));
            run_checked(standin, Command::new(standins.join(standin).join("link.sh")).arg(archive).arg(file));
        };
        let file = runtime.join("libamdhip64.so.6");
        link("hip", &file);
        let hsa_runtime = runtime.join("libhsa-runtime64.so.1");
        link("rocr", &hsa_runtime);
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
            if from[0].starts_with("hsa") && !more.contains(&"-shared") {
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
        compile("hsa_interface", &[], &["hsa_interface.c"]);
        build_modules(&programs, &file);
        compile("libhsatool.so", &library, &["hsa_tool.c"]);
        HipBuild { programs, runtime, second_runtime, driver: built.join("libkfd_standin.so") }
    })
}

/// The number of libraries that are linked together; the runtime is used first in the constructor of the first.
const MODULES: usize = 6;

/// Builds libraries that register kernels in their constructors, each linked to all before it. The third also launches there.
fn build_modules(programs: &Path, runtime: &Path) {
    let compile = |to: &str, options: &[String], from: &str, libraries: &[PathBuf]| {
        let draft = programs.join(format!("{to}.{}", std::process::id()));
        let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-Wl,--no-as-needed"]).args(options);
        compiler.arg("-o").arg(&draft).arg(source(from)).args(libraries).arg(runtime).arg("-ldl");
        run_checked(to, compiler.arg(format!("-Wl,-rpath,{}", programs.display())));
        std::fs::rename(draft, programs.join(to)).unwrap();
    };
    let name = |number: usize| format!("libmodule{number}.so");
    for number in 0..MODULES {
        let mut options = vec!["-shared".to_owned(), "-fPIC".to_owned(), format!("-DNUMBER={number}")];
        options.push(format!("-Wl,-soname,{}", name(number)));
        options.extend(number.checked_sub(1).map(|next| format!("-DNEXT={next}")));
        options.extend((number == 2).then(|| "-DLAUNCH_IN_CONSTRUCTOR".to_owned()));
        let before: Vec<_> = (0..number).rev().map(|number| programs.join(name(number))).collect();
        compile(&name(number), &options, "module.c", &before);
    }
    let last = programs.join(name(MODULES - 1));
    compile("modules_linked", &[], "modules.c", std::slice::from_ref(&last));
    compile("modules_opened", &[format!("-DOPEN=\"{}\"", last.display())], "modules.c", &[]);
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

    /// The same on a machine whose driver cannot stop queues, because it does not save running waves.
    pub(crate) fn without_level_3(self) -> Self {
        self.write_driver_file("sys/module/amdgpu/parameters/cwsr_enable", "0\n");
        let root = self.directory.path().join("root");
        self.with("KFD_STANDIN_ROOT", root)
    }

    /// The same on a machine whose driver lists these GPUs: `gpu_id` and `location_id` of each.
    pub(crate) fn with_topology(self, gpus: &[(u32, u32)]) -> Self {
        for (node, (gpu, location)) in gpus.iter().enumerate() {
            let node = format!("sys/class/kfd/kfd/topology/nodes/{}", node + 1);
            self.write_driver_file(&format!("{node}/gpu_id"), &format!("{gpu}\n"));
            let properties = format!("simd_count 416\nsimd_per_cu 4\nlocation_id {location}\ndomain 0\n");
            self.write_driver_file(&format!("{node}/properties"), &properties);
        }
        let root = self.directory.path().join("root");
        self.with("KFD_STANDIN_ROOT", root)
    }

    fn write_driver_file(&self, name: &str, text: &str) {
        let file = self.directory.path().join("root").join(name);
        std::fs::create_dir_all(file.parent().expect("a file is in a directory")).unwrap();
        std::fs::write(file, text).unwrap();
    }

    /// Starts a service that finds the driver's files.
    pub(crate) fn start_service_with_driver_files(&mut self) {
        let preload = format!("LD_PRELOAD={}", hip_build().driver.display());
        let root = format!("KFD_STANDIN_ROOT={}", self.directory.path().join("root").display());
        self.env.start_service_under(&["env", &preload, &root]);
    }

    /// Sets the number of compute units that run waves of a process.
    pub(crate) fn set_occupancy(&self, pid: u32, gpu: u32, units: u32) {
        let file = format!("sys/class/kfd/kfd/proc/{pid}/stats_{gpu}/cu_occupancy");
        self.write_driver_file(&file, &format!("{units}\n"));
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
        let path = Self::program(words);
        let path: Vec<_> = path.iter().map(String::as_str).collect();
        self.set_device(self.set_variables(self.env.run(options, &path)), words)
    }

    /// A program without HIP uses the same device, and its driver describes it.
    fn set_device(&self, mut command: Command, words: &[&str]) -> Command {
        if words[0].starts_with("hsa") {
            command.env("ROCR_STANDIN_DEVICE", self.directory.path().join("gpu"));
        }
        command
    }

    /// The same program without the scheduler.
    pub(crate) fn direct(&self, words: &[&str]) -> Command {
        let path = Self::program(words);
        let path: Vec<_> = path.iter().map(String::as_str).collect();
        self.set_device(self.set_variables(self.env.direct(&path)), words)
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

//! A test environment with a simulated NVIDIA GPU: the stand-in for NVIDIA's driver, and C programs that use it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::environment::TestEnvironment;

/// The programs: name, source, and how the program finds the driver's functions (0: linked, 1: `dlsym`, 2:
/// `cuGetProcAddress`).
const PROGRAMS: [(&str, &str, u32); 26] = [
    ("semantics", "semantics", 0),
    ("semantics-dlsym", "semantics", 1),
    ("semantics-look-up", "semantics", 2),
    ("chain", "chain", 0),
    ("chain-dlsym", "chain", 1),
    ("chain-look-up", "chain", 2),
    ("contexts", "contexts", 0),
    ("contexts-dlsym", "contexts", 1),
    ("contexts-look-up", "contexts", 2),
    ("memory", "memory", 0),
    ("memory-dlsym", "memory", 1),
    ("memory-look-up", "memory", 2),
    ("load", "load", 0),
    ("loader", "loader", 0),
    ("gpu-family", "family", 0),
    ("cross", "cross", 0),
    ("foreground", "foreground", 0),
    ("long", "long", 0),
    ("reader", "reader", 0),
    ("streams", "streams", 0),
    ("swap", "swap", 0),
    ("swap-dlsym", "swap", 1),
    ("swap-look-up", "swap", 2),
    ("threads", "threads", 0),
    ("two", "two", 0),
    ("waits", "waits", 0),
];

fn run_checked(what: &str, command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Builds the stand-in and the programs. Returns their directory.
fn programs() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let built = Path::new(env!("CARGO_BIN_EXE_xsched")).parent().expect("a program is in a directory");
        let profile = built.file_name().filter(|name| *name != "debug").unwrap_or("dev".as_ref());
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "-p", "xsched-standin-cuda", "--profile"]).arg(profile);
        cargo
            .arg("--target-dir")
            .arg(built.parent().expect("the profile's directory is in the target directory"));
        run_checked("building the stand-in", cargo.current_dir(env!("CARGO_MANIFEST_DIR")));

        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gpu");
        std::fs::create_dir_all(&directory).unwrap();
        // Rename atomically: another test process may be running the old file.
        let install = |draft: &Path, name: &str| std::fs::rename(draft, directory.join(name)).unwrap();
        let draft = directory.join(format!("draft.{}", std::process::id()));
        std::fs::copy(built.join("libstandin_cuda.so"), &draft).unwrap();
        install(&draft, "libcuda.so.1");
        // The stand-in for the management library is in the same file.
        let _ = std::fs::remove_file(&draft);
        std::os::unix::fs::symlink("libcuda.so.1", &draft).unwrap();
        install(&draft, "libnvidia-ml.so.1");
        let standin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../standins/cuda");
        let sources = standin.join("tests/programs");
        for (name, source, reach) in PROGRAMS {
            let mut compile = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
            compile
                .args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-I"])
                .arg(&standin)
                .arg("-I")
                .arg(&sources);
            if reach > 0 {
                compile.arg(format!("-DREACH={reach}")).arg("-include").arg(sources.join("reach.h"));
            }
            compile.arg("-o").arg(&draft).arg(sources.join(format!("{source}.c")));
            if reach == 0 {
                compile.arg(directory.join("libcuda.so.1"));
            }
            run_checked(name, compile.args(["-ldl", "-lpthread"]));
            install(&draft, name);
        }
        directory
    })
}

/// The file of the stand-in, for programs that open it themselves.
#[allow(dead_code, reason = "most programs find the driver by its name")]
pub(crate) fn driver() -> PathBuf {
    programs().join("libcuda.so.1")
}

/// A test environment and its simulated GPUs.
pub(crate) struct CudaMachine {
    pub(crate) env: TestEnvironment,
    device: tempfile::TempDir,
    without: &'static str,
    devices: &'static str,
}

impl CudaMachine {
    pub(crate) fn new(env: TestEnvironment) -> Self {
        programs();
        Self { env, device: tempfile::tempdir().unwrap(), without: "", devices: "1" }
    }

    /// A machine without these features, by their names in `standin_cuda.h`.
    pub(crate) fn without_features(env: TestEnvironment, without: &'static str) -> Self {
        Self { without, ..Self::new(env) }
    }

    /// A machine with several devices.
    pub(crate) fn with_devices(env: TestEnvironment, devices: &'static str) -> Self {
        Self { devices, ..Self::new(env) }
    }

    /// Starts a service that finds the stand-in for the management library.
    #[allow(dead_code, reason = "other tests use the service of their environment")]
    pub(crate) fn start_managing_service(&mut self) {
        let libraries = format!("LD_LIBRARY_PATH={}", programs().display());
        let device = format!("XSCHED_STANDIN_CUDA={}", self.device().display());
        self.env.start_service_under(&["env", &libraries, &device]);
    }

    /// The file through which processes share the device.
    #[allow(dead_code, reason = "`run` and `direct` set it in the environment")]
    pub(crate) fn device(&self) -> PathBuf {
        self.device.path().join("gpu")
    }

    /// Adds the variables of this machine to a command.
    pub(crate) fn set_variables(&self, mut command: Command) -> Command {
        command
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env_remove("CUDA_MPS_PIPE_DIRECTORY")
            .env("XSCHED_STANDIN_CUDA_DEVICES", self.devices)
            .env("XSCHED_STANDIN_CUDA", self.device.path().join("gpu"))
            .env("XSCHED_STANDIN_CUDA_WITHOUT", self.without)
            .env("LD_LIBRARY_PATH", programs())
            // Preloaded after libxsched.so, so that its `ioctl` replaces the C library's.
            .env("LD_PRELOAD", programs().join("libcuda.so.1"));
        command
    }

    fn path(program: &[&str]) -> Vec<String> {
        let first = programs().join(program[0]).display().to_string();
        std::iter::once(first).chain(program[1..].iter().map(|&argument| argument.to_owned())).collect()
    }

    /// A program under the scheduler.
    pub(crate) fn run(&self, options: &[&str], program: &[&str]) -> Command {
        let program = Self::path(program);
        let program: Vec<_> = program.iter().map(String::as_str).collect();
        self.set_variables(self.env.run(options, &program))
    }

    /// The same program without the scheduler.
    pub(crate) fn direct(&self, program: &[&str]) -> Command {
        let program = Self::path(program);
        let program: Vec<_> = program.iter().map(String::as_str).collect();
        self.set_variables(self.env.direct(&program))
    }
}

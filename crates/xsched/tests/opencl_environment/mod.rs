//! OpenCL programs for the tests, built once.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::environment::TestEnvironment;
use crate::skipped::skip;

/// Lets one OpenCL test run at a time: each measures and uses all cores.
pub(crate) fn exclusive_cpu() -> MutexGuard<'static, ()> {
    static CPU: Mutex<()> = Mutex::new(());
    CPU.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Many times the length of a step. A program that makes no step in this time is held.
pub(crate) const HELD_AFTER: Duration = Duration::from_millis(200);

/// The programs, built once. Skips the test if OpenCL is not installed.
pub(crate) fn programs() -> Option<&'static Programs> {
    static PROGRAMS: OnceLock<Result<Programs, String>> = OnceLock::new();
    match PROGRAMS.get_or_init(Programs::build) {
        Ok(programs) => Some(programs),
        Err(reason) => {
            skip(&format!("{reason} (Debian: pocl-opencl-icd, ocl-icd-opencl-dev)"));
            None
        }
    }
}

pub(crate) struct Programs {
    directory: PathBuf,
}

impl Programs {
    fn build() -> Result<Self, String> {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("opencl");
        std::fs::create_dir_all(&directory).unwrap();
        let programs = Self { directory };
        for name in ["cl_requests", "cl_compute", "cl_graph", "cl_errors", "cl_recorded"] {
            programs.compile(name, name, &["-lOpenCL"])?;
        }
        programs.compile("cl_compute", "cl_compute_opened", &["-DOPENED"])?;
        programs.compile("cl_errors", "cl_errors_opened", &["-DOPENED"])?;
        programs.compile("cl_recorded", "cl_recorded_opened", &["-DOPENED"])?;
        let probe = Command::new(programs.path("cl_requests")).args(["1", "1", "1", "0"]).output().unwrap();
        let output = [&*probe.stdout, &*probe.stderr].concat();
        let output = String::from_utf8_lossy(&output);
        if probe.status.success() {
            Ok(programs)
        } else {
            Err(format!("no OpenCL device: {}", output.trim()))
        }
    }

    fn compile(&self, from: &str, to: &str, more: &[&str]) -> Result<(), String> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{from}.c"));
        let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        // Renamed atomically below: another test process may be running the old file.
        let draft = self.path(&format!("{to}.{}", std::process::id()));
        compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-o", &draft]).arg(source);
        let output = compiler.args(more).args(["-ldl", "-lpthread"]).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            std::fs::rename(draft, self.path(to)).unwrap();
            return Ok(());
        }
        assert!(errors.contains("CL/cl.h") || errors.contains("-lOpenCL"), "{from}: {errors}");
        Err("no OpenCL to compile with".to_owned())
    }

    /// Builds the OpenCL driver of `cl_pci_driver.c`, which reports a PCI address for `PoCL`'s device. Returns the value
    /// for `OCL_ICD_VENDORS`, or `None` without `PoCL`.
    pub(crate) fn driver_with_pci_address(&self) -> Option<String> {
        let files = std::fs::read_dir("/etc/OpenCL/vendors").ok()?;
        let mut drivers = files.filter_map(|file| std::fs::read_to_string(file.ok()?.path()).ok());
        let pocl = drivers.find(|driver| driver.contains("pocl"))?;
        let vendors = self.directory.join("vendors");
        std::fs::create_dir_all(&vendors).unwrap();
        self.compile(
            "cl_pci_driver",
            "cl_pci_driver.so",
            &["-shared", "-fPIC", &format!("-DPOCL=\"{}\"", pocl.trim())],
        )
        .ok()?;
        std::fs::write(vendors.join("pci.icd"), self.path("cl_pci_driver.so")).unwrap();
        Some(vendors.display().to_string())
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }
}

/// Runs a program directly and under the scheduler. Both runs must print and return the same.
pub(crate) fn assert_same(env: &TestEnvironment, command: &[&str], variables: &[(&str, &str)]) -> String {
    let observe = |mut command: Command| {
        let output: Output = command.envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout), text(&output.stderr), output.status)
    };
    let (direct, scheduled) = (observe(env.direct(command)), observe(env.run(&[], command)));
    assert_eq!(direct, scheduled, "{command:?}");
    direct.0
}

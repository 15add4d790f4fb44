//! OpenCL programs for the tests, built once, and how they are run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::stage::Stage;

/// These tests measure, and each of them uses all cores: one at a time.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Many times the length of a step: who makes none in this time is held.
pub(crate) const QUIET: Duration = Duration::from_millis(200);

/// Says why a test is left out. In CI nothing may be.
pub(crate) fn leave_out(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "{why}");
    println!("left out: {why}");
}

/// The programs, built once; none if there is no OpenCL here, which is said.
pub(crate) fn programs() -> Option<&'static Programs> {
    static PROGRAMS: OnceLock<Result<Programs, String>> = OnceLock::new();
    match PROGRAMS.get_or_init(Programs::build) {
        Ok(programs) => Some(programs),
        Err(why) => {
            leave_out(&format!("{why} (Debian: pocl-opencl-icd, ocl-icd-opencl-dev)"));
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
        let tried = Command::new(programs.path("cl_requests")).args(["1", "1", "1", "0"]).output().unwrap();
        let why = [&*tried.stdout, &*tried.stderr].concat();
        let why = String::from_utf8_lossy(&why);
        if tried.status.success() { Ok(programs) } else { Err(format!("no OpenCL device: {}", why.trim())) }
    }

    fn compile(&self, from: &str, to: &str, more: &[&str]) -> Result<(), String> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{from}.c"));
        let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        // Put in its place in one step: another process that tests may be using it.
        let draft = self.path(&format!("{to}.{}", std::process::id()));
        compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-o", &draft]).arg(source);
        let output = compiler.args(more).args(["-ldl", "-lpthread"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            std::fs::rename(draft, self.path(to)).unwrap();
            return Ok(());
        }
        assert!(said.contains("CL/cl.h") || said.contains("-lOpenCL"), "{from}: {said}");
        Err("no OpenCL to compile with".to_owned())
    }

    /// Builds a driver for OpenCL's loader that stands before `PoCL`, as `cl_on_a_bus.c` says. Answers what to tell the
    /// loader; none if there is no `PoCL`.
    pub(crate) fn driver_on_a_bus(&self) -> Option<String> {
        let files = std::fs::read_dir("/etc/OpenCL/vendors").ok()?;
        let mut drivers = files.filter_map(|file| std::fs::read_to_string(file.ok()?.path()).ok());
        let pocl = drivers.find(|driver| driver.contains("pocl"))?;
        let place = self.directory.join("vendors");
        std::fs::create_dir_all(&place).unwrap();
        self.compile(
            "cl_on_a_bus",
            "cl_on_a_bus.so",
            &["-shared", "-fPIC", &format!("-DPOCL=\"{}\"", pocl.trim())],
        )
        .ok()?;
        std::fs::write(place.join("on_a_bus.icd"), self.path("cl_on_a_bus.so")).unwrap();
        Some(place.display().to_string())
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }
}

/// Runs a program directly and under the scheduler, and demands that nobody can tell the difference.
pub(crate) fn assert_same(stage: &Stage, command: &[&str], variables: &[(&str, &str)]) -> String {
    let seen = |mut command: Command| {
        let output: Output = command.envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout), text(&output.stderr), output.status)
    };
    let (direct, scheduled) = (seen(stage.direct(command)), seen(stage.run(&[], command)));
    assert_eq!(direct, scheduled, "{command:?}");
    direct.0
}

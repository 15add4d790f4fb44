//! Libraries that export functions with a vendor's names, and implement them with another vendor's.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod cuda_machine;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod hip_environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use cuda_machine::CudaMachine;
use environment::{TestEnvironment, wait_until};
use hip_environment::{HipEnvironment, hip_build, stdout_of};
use test_program::TestProgram;
use xsched_core::{DeviceId, DeviceKind};
use xsched_ipc::protocol::{Reply, Request, Target, TaskState};

/// The device ids of AMD's stand-in and of NVIDIA's.
const AMD: u64 = DeviceId::new(DeviceKind::Gpu, 0xc1 << 8).0;
const NVIDIA: u64 = DeviceId::new(DeviceKind::Gpu, 6 << 3).0;

fn compile(name: &str, options: &[&str], sources: &[&str], libraries: &[PathBuf]) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/hip");
    let standin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../standins/cuda");
    let output = hip_build().programs.join(name);
    let draft = hip_build().programs.join(format!("{name}.{}", std::process::id()));
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror"]).args(options).arg("-o").arg(&draft);
    compiler.arg("-I").arg(&standin).arg("-I").arg(standin.join("tests/programs"));
    compiler.args(sources.iter().map(|source| tests.join(source))).args(libraries).arg("-ldl");
    let output_of_compiler = compiler.output().unwrap();
    assert!(
        output_of_compiler.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&output_of_compiler.stderr)
    );
    std::fs::rename(draft, &output).unwrap();
    output
}

/// A library that borrows CUDA's names and launches through HIP.
fn borrowing_library() -> &'static str {
    static LIBRARY: OnceLock<String> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let runtime = hip_build().runtime.join("libamdhip64.so.6");
        let library = compile("libborrowed.so", &["-shared", "-fPIC"], &["borrowed.c"], &[runtime]);
        library.display().to_string()
    })
}

#[test]
fn launches_of_a_library_with_another_vendors_names_are_scheduled() {
    let program = compile("borrower", &[], &["borrower.c"], &[]);
    // Some of the driver's functions, as CuPy's; and all by which the driver is recognized, as ZLUDA's.
    let runtime = hip_build().runtime.join("libamdhip64.so.6");
    let options = ["-shared", "-fPIC", "-DCOMPLETE", "-Wl,-soname,libcuda.so.1"];
    let complete = compile("libcomplete.so", &options, &["borrowed.c"], &[runtime]);
    for (library, table) in [
        (borrowing_library(), true),
        (borrowing_library(), false),
        (complete.to_str().unwrap(), true),
        (complete.to_str().unwrap(), false),
    ] {
        let words = [program.to_str().unwrap(), library, "3"];
        let file = Path::new(library).file_name().unwrap().to_string_lossy();
        let mut hip = HipEnvironment::new(TestEnvironment::with_service());
        if !table {
            hip = hip.with("HIP_STANDIN_NO_REGISTER", "1");
        }
        let direct = stdout_of(hip.direct(&words));
        assert!(direct.starts_with(&format!("its own: {file}, in all libraries: none\n")), "{direct}");
        assert!(direct.ends_with("round 3: 3 arrived\n"), "{direct}");
        assert_eq!(stdout_of(hip.run(&[], &words)), direct, "{file}, by table: {table}");

        let running = TestProgram::spawn(hip.run(&["--name", "borrower"], &[words[0], words[1], "1000000"]));
        let task = || hip.env.status().tasks.into_iter().find(|task| task.name == "borrower");
        wait_until("its launches are scheduled", || task().is_some_and(|task| task.device == AMD));
        assert_eq!(hip.env.request(&Request::Suspend(Target::Pid(running.pid()))), Reply::Done);
        wait_until("it is suspended", || task().is_some_and(|task| task.state == TaskState::Suspended));
        wait_until("its queues are inactive", || hip.driver_log().contains(" share 0 "));
    }
}

#[test]
fn library_with_another_vendors_names_and_that_vendors_driver_are_both_scheduled() {
    let library = borrowing_library();
    let reach = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../standins/cuda/tests/programs/reach.h");
    let options = ["-D_GNU_SOURCE", "-DWITH_CUDA", "-DREACH=1", "-include", reach.to_str().unwrap()];
    let program = compile("borrower_with_cuda", &options, &["borrower.c"], &[]);
    let cuda = CudaMachine::new(TestEnvironment::with_service());
    let hip = HipEnvironment::new(TestEnvironment::with_service())
        .with("XSCHED_STANDIN_CUDA", cuda.device())
        .with("CUDA_VISIBLE_DEVICES", "0")
        .with(
            "LD_LIBRARY_PATH",
            std::env::join_paths([cuda_machine::driver().parent().unwrap(), &hip_build().runtime]).unwrap(),
        );
    let words = [program.to_str().unwrap(), library, "3"];
    let direct = stdout_of(hip.direct(&words));
    assert!(direct.ends_with("round 3: 3 arrived\n"), "{direct}");
    assert_eq!(stdout_of(hip.run(&[], &words)), direct);
    let _running = TestProgram::spawn(hip.run(&["--name", "borrower"], &[words[0], words[1], "1000000"]));
    let devices = || {
        let mut devices: Vec<_> = hip.env.status().tasks.iter().map(|task| task.device).collect();
        devices.sort_unstable();
        devices
    };
    wait_until("both devices are scheduled", || devices() == [NVIDIA.min(AMD), NVIDIA.max(AMD)]);
}

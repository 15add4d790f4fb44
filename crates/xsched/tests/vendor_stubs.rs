//! Programs that are started with `LD_LIBRARY_PATH=<prefix>/lib/xsched` and nothing else, as the original C++ XSched documents it
//! for CUDA: they are scheduled, and reach the vendor's own library.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod cuda_machine;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod hip_environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod opencl_environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod skipped;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cuda_machine::CudaMachine;
use environment::{TestEnvironment, wait_until};
use hip_environment::{HipEnvironment, hip_build};
use opencl_environment::{HELD_AFTER, programs};
use test_program::TestProgram;
use xsched_ipc::protocol::{Reply, Request, Target, TaskState};

/// An installation with the stubs, and a directory with the stand-in for NVIDIA's driver under both of its names.
struct Installation {
    directory: tempfile::TempDir,
}

impl Installation {
    fn new(env: &TestEnvironment) -> Self {
        Self::with_options(env, &[])
    }

    /// With further arguments of `packaging/vendor_stubs`.
    fn with_options(env: &TestEnvironment, options: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let this = Self { directory };
        std::fs::create_dir_all(this.stubs()).unwrap();
        symlink(env.library("libxsched.so"), this.directory.path().join("lib/libxsched.so.0")).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/vendor_stubs");
        let output = Command::new(script).arg(this.stubs()).args(options).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::create_dir(this.driver()).unwrap();
        for name in ["libcuda.so", "libcuda.so.1"] {
            symlink(cuda_machine::driver(), this.driver().join(name)).unwrap();
        }
        this
    }

    fn stubs(&self) -> PathBuf {
        self.directory.path().join("lib/xsched")
    }

    fn driver(&self) -> PathBuf {
        self.directory.path().join("driver")
    }

    /// The same program with the variables that the original documents, and nothing preloaded.
    fn started_as_documented(&self, mut program: Command) -> Command {
        let libraries = format!("{}:{}", self.stubs().display(), self.driver().display());
        program.env("LD_LIBRARY_PATH", libraries).env_remove("LD_PRELOAD");
        program.env("XSCHED_SCHEDULER", "GLB").env("XSCHED_AUTO_XQUEUE", "ON");
        program
    }
}

/// The program is scheduled, and runs nothing while it is suspended.
fn assert_scheduled(env: &TestEnvironment, program: &TestProgram, continues: impl FnOnce()) {
    let its_task = || env.status().tasks.into_iter().find(|task| task.pid == program.pid());
    wait_until("the program is scheduled", || its_task().is_some());
    let target = Target::Pid(program.pid());
    assert_eq!(env.request(&Request::Suspend(target.clone())), Reply::Done);
    wait_until("the program is suspended", || {
        its_task().is_some_and(|task| task.state == TaskState::Suspended)
    });
    continues();
    wait_until("a thread is held", || env.status().queues.iter().any(|queue| queue.ready));
    // What was on the device may complete and be printed first.
    wait_until("the program makes no step", || program.lines.recv_timeout(HELD_AFTER).is_err());
    assert_eq!(env.request(&Request::Resume(target)), Reply::Done);
}

#[test]
fn cuda_programs_are_scheduled_linked_and_with_look_ups() {
    let machine = CudaMachine::new(TestEnvironment::with_service());
    let installation = Installation::new(&machine.env);
    for name in ["chain", "chain-dlsym", "chain-look-up"] {
        let command = installation.started_as_documented(machine.direct(&[name, "40", "200"]));
        let mut chain = TestProgram::spawn(command);
        assert_eq!((chain.next_line(), chain.next_line()), ("ready".to_owned(), "240 of 240".to_owned()));
        let mut input = chain.child.stdin.take().unwrap();
        assert_scheduled(&machine.env, &chain, || std::io::Write::write_all(&mut input, b"\n").unwrap());
        assert_eq!(chain.next_line(), "480 of 480", "{name}");
        chain.expect_success();
    }
}

#[test]
fn programs_with_contexts_run_as_without_xsched() {
    let machine = CudaMachine::new(TestEnvironment::with_service());
    let installation = Installation::new(&machine.env);
    for name in ["contexts", "contexts-dlsym", "contexts-look-up"] {
        let text = |output: &[u8]| String::from_utf8_lossy(output).into_owned();
        let direct = machine.direct(&[name, "6", "4", "200"]).output().unwrap();
        let output =
            installation.started_as_documented(machine.direct(&[name, "6", "4", "200"])).output().unwrap();
        assert!(output.status.success(), "{name}: {output:?}");
        assert_eq!(text(&output.stdout), text(&direct.stdout), "{name}");
        assert_eq!(text(&output.stderr), "", "{name}");
    }
}

#[test]
fn variables_without_effect_are_named_in_the_log() {
    let machine = CudaMachine::new(TestEnvironment::with_service());
    let installation = Installation::new(&machine.env);
    let log = |level: &str| {
        let mut command = installation.started_as_documented(machine.direct(&["chain", "1", "1"]));
        command.env("XSCHED_CUDA_LV3_IMPL", "TRAP").env("XLOG_LEVEL", level).stdin(Stdio::null());
        String::from_utf8_lossy(&command.output().unwrap().stderr).into_owned()
    };
    assert_eq!(log("DEBG").matches("XSCHED_CUDA_LV3_IMPL has no effect: ").count(), 1);
    assert_eq!(log("INFO").matches("XSCHED_CUDA_LV3_IMPL").count(), 0);
}

#[test]
fn without_the_driver_programs_fail_as_they_do_without_xsched() {
    let machine = CudaMachine::new(TestEnvironment::without_service());
    let installation = Installation::new(&machine.env);
    let without_driver = |name: &str| {
        let mut command = installation.started_as_documented(machine.direct(&[name, "1", "1"]));
        let output = command.env("LD_LIBRARY_PATH", installation.stubs()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // A machine with a driver has one in a place that the stubs name.
    if Path::new("/dev/nvidiactl").exists() {
        return skipped::skip("this machine has NVIDIA's driver");
    }
    let (code, message) = without_driver("chain");
    assert_eq!(
        (code, message.lines().count()),
        (Some(127), 1),
        "the loader reports it in one line: {message}"
    );
    assert!(message.contains("libcuda.so.1"), "{message}");
    let (code, message) = without_driver("chain-dlsym");
    assert!(code != Some(0) && message.contains("libcuda.so.1"), "dlopen fails: {message}");
}

#[test]
fn hip_programs_are_scheduled() {
    let hip = HipEnvironment::new(TestEnvironment::with_service());
    let runtime = hip_build().runtime.display().to_string();
    let installation = Installation::with_options(&hip.env, &["$ORIGIN/../libxsched.so.0", runtime.as_str()]);
    let command = hip.direct(&["linked", "work", "1000000", "6", "500"]);
    let mut work = TestProgram::spawn(installation.started_as_documented(command));
    work.next_line();
    assert_scheduled(&hip.env, &work, || ());
    work.next_line();
    work.kill();
}

#[test]
fn opencl_programs_are_scheduled() {
    let env = TestEnvironment::with_service();
    let Some(programs) = programs() else { return };
    let installation = Installation::new(&env);
    let requests = env.direct(&[&programs.path("cl_requests"), "1000000", "1", "100", "1"]);
    let mut command = installation.started_as_documented(requests);
    let errors = tempfile::NamedTempFile::new().unwrap();
    command.stderr(Stdio::from(errors.reopen().unwrap()));
    let mut steps = TestProgram::spawn(command);
    assert_eq!(steps.next_line(), "ready");
    assert_scheduled(&env, &steps, || ());
    steps.next_line();
    steps.kill();
    assert_eq!(std::fs::read_to_string(errors.path()).unwrap(), "", "the loader has no complaint");
}

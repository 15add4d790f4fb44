//! The CUDA hooks on a machine without a GPU: a driver library of the tests' own, reached as the CUDA runtime does it.

#[allow(dead_code, reason = "the other tests on this stage use the rest")]
mod stage;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stage::{Stage, eventually};
use xsched_core::{DeviceId, DeviceKind};
use xsched_ipc::protocol::{Reply, Request, Target, TaskState};

/// Builds the driver and the program that uses it. Answers where they are.
fn build(directory: &Path) -> (PathBuf, PathBuf) {
    let source = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    let compile = |more: &[&str], from: &str, to: &str| {
        let to = directory.join(to);
        let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        compiler
            .args(["-std=gnu11", "-O1", "-Wall", "-Werror"])
            .args(more)
            .arg("-o")
            .arg(&to)
            .arg(source(from));
        let output = compiler.arg("-ldl").output().unwrap();
        assert!(output.status.success(), "{from}: {}", String::from_utf8_lossy(&output.stderr));
        to
    };
    // As the vendor's: it finds its own functions in itself, whatever is preloaded.
    (
        compile(&["-shared", "-fPIC", "-Wl,-Bsymbolic"], "driver", "libcuda.so.1"),
        compile(&[], "runtime", "runtime"),
    )
}

#[test]
fn what_goes_through_the_drivers_own_look_up_is_scheduled_and_launched_once() {
    let stage = Stage::with_service();
    let directory = tempfile::tempdir().unwrap();
    let (driver, program) = build(directory.path());
    let command = [program.to_str().unwrap(), driver.to_str().unwrap()];
    let all = "0 failures, 300 launched, 1 graphs, 1 captured";
    let direct = stage.direct(&command).stdin(Stdio::null()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&direct.stdout), format!("{all}\n0 failures, 301 launched\n"));

    let mut run = stage.run(&["--name", "service", "--priority", "high"], &command);
    let mut child = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), all);
    let its_task = || stage.status().tasks.into_iter().find(|task| task.name == "service");
    eventually("it is scheduled", || its_task().is_some());
    let task = its_task().unwrap();
    assert_eq!(task.device, DeviceId::new(DeviceKind::Gpu, 6 << 3).0, "the device by its PCI address");
    assert_eq!(task.queues, 3, "both default streams and the one it made");

    // A person suspends it: its next launch waits at the gate until it is resumed.
    let whom = Target::Pid(child.id());
    assert_eq!(stage.ask(&Request::Suspend(whom.clone())), Reply::Done);
    eventually("it is suspended", || its_task().is_some_and(|task| task.state == TaskState::Suspended));
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    eventually("a thread is held", || stage.status().queues.iter().any(|queue| queue.ready));
    assert_eq!(child.try_wait().unwrap(), None, "it launched though it was suspended");
    assert_eq!(stage.ask(&Request::Resume(whom)), Reply::Done);
    assert_eq!(lines.next().unwrap().unwrap(), "0 failures, 301 launched");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

//! `xsched trace` as its users run it, with a stand-in for the service.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use assert_cmd::Command;
use assert_cmd::cargo::cargo_bin;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;
use xsched_ipc::protocol::{Event, Reply, Request, Status, What};

#[path = "common/fake_service.rs"]
mod fake_service;
use fake_service::{FakeService, busy};

fn tracing() -> FakeService {
    FakeService::new(|request| match request {
        Request::Status => vec![Reply::Status(Status { now_ns: 1_000, ..busy() })],
        Request::Trace => {
            let event = |at_ns, what| Event { at_ns, task: 1, pid: 4711, device: 0x30, what };
            let first = vec![event(2_000, What::Hold), event(2_500, What::Run)];
            let second = vec![event(4_000, What::Idle)];
            vec![
                Reply::Done,
                Reply::Events { events: first, lost: 0 },
                Reply::Events { events: second, lost: 5 },
            ]
        }
        other => panic!("{other:?}"),
    })
}

fn trace(service: &FakeService, file: &Path) -> Command {
    let mut command = Command::new(cargo_bin!("xsched"));
    command.env("XSCHED_SOCKET", service.socket()).arg("trace").arg("-o").arg(file);
    command
}

fn read(file: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

fn count(trace: &Value, name: &str) -> usize {
    trace["traceEvents"].as_array().unwrap().iter().filter(|thing| thing["name"] == name).count()
}

#[test]
fn a_while_is_recorded() {
    let service = tracing();
    let file = service.directory().join("trace.json");
    let said = contains("3 events in ").and(contains("5 more were lost"));
    trace(&service, &file).args(["--duration", "1ms"]).assert().success().stderr(said);
    let trace = read(&file);
    assert_eq!((count(&trace, "running"), count(&trace, "held"), count(&trace, "preempted")), (1, 1, 1));
    assert_eq!(count(&trace, "5 events lost"), 1);
    assert_eq!(trace["otherData"]["events lost"], "5");
}

#[test]
fn an_interrupt_ends_the_recording_and_leaves_a_whole_file() {
    let service = tracing();
    let file = service.directory().join("trace.json");
    let mut child = std::process::Command::new(cargo_bin!("xsched"))
        .env("XSCHED_SOCKET", service.socket())
        .arg("trace")
        .arg("-o")
        .arg(&file)
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // By the time it asks, it is ready to be interrupted.
    let began = Instant::now();
    while !service.orders().contains(&Request::Trace) {
        assert!(began.elapsed() < Duration::from_secs(60), "nobody asked");
        std::thread::yield_now();
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(count(&read(&file), "held"), 1);
}

#[test]
fn a_command_is_run_meanwhile_and_its_status_passed_on() {
    let service = tracing();
    let file = service.directory().join("trace.json");
    trace(&service, &file).arg("--").arg(cargo_bin!("xsched")).arg("--version").assert().success();
    assert_eq!(count(&read(&file), "held"), 1);
    trace(&service, &file).arg("--").arg(cargo_bin!("xsched")).arg("--nonsense").assert().code(2);
    assert_eq!(count(&read(&file), "held"), 1);
}

#[test]
fn who_ends_the_recording_ends_the_command() {
    let service = tracing();
    let file = service.directory().join("trace.json");
    // Called `xsched`, it is started as it is.
    let command = service.directory().join("xsched");
    let started = service.directory().join("started");
    std::fs::write(&command, format!("#!/bin/sh\n: > '{}'\nexec sleep 1000\n", started.display())).unwrap();
    std::fs::set_permissions(&command, std::fs::Permissions::from_mode(0o700)).unwrap();
    let mut child = std::process::Command::new(cargo_bin!("xsched"))
        .env("XSCHED_SOCKET", service.socket())
        .arg("trace")
        .arg("-o")
        .arg(&file)
        .arg("--")
        .arg(&command)
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while !started.exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "never started");
        std::thread::yield_now();
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    assert_eq!(count(&read(&file), "held"), 1);
}

#[test]
fn a_service_that_ends_leaves_a_whole_file_and_an_error() {
    let service = FakeService::new(|request| match request {
        Request::Status => vec![Reply::Status(busy())],
        _ => vec![],
    });
    let file = service.directory().join("trace.json");
    trace(&service, &file).assert().failure().stderr(contains("closed the connection"));
    assert_eq!(count(&read(&file), "xsched scheduler"), 0);
    assert_eq!(count(&read(&file), "process_name"), 2);
}

#[test]
fn what_cannot_be_done_is_told_before_anything_is_started() {
    let service = tracing();
    let nowhere = service.directory().join("nowhere/trace.json");
    let refused =
        trace(&service, &nowhere).arg("--").arg("touch").arg(service.directory().join("ran")).assert();
    refused.failure().stderr(contains("cannot write"));
    assert!(!service.directory().join("ran").exists());
    let file = service.directory().join("trace.json");
    let mut alone = trace(&service, &file);
    alone.env("XSCHED_SOCKET", service.directory().join("nobody"));
    alone.assert().failure().stderr(contains("no scheduler is running"));
    assert!(!file.exists(), "nothing to write");
    trace(&service, &file).args(["--duration", "soon"]).assert().code(2);
}

//! Metrics, the HTTP interface of the original C++ XSched and a trace, of a real service with a program that joined it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;

use assert_cmd::Command;
use assert_cmd::cargo::cargo_bin;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::{Value, json};
use xsched_ipc::protocol::{Reply, Settings};
use xsched_ipc::socket::Packet;

#[path = "common/live.rs"]
mod live;
use live::{DEVICE, FakeProgram, RunningService, wait_until};

fn http_body(address: SocketAddr, method: &str, target: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(stream, "{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}")
        .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response.split_once("\r\n\r\n").unwrap().1.to_owned()
}

fn json(address: SocketAddr, method: &str, target: &str, body: &str) -> Value {
    serde_json::from_str(&http_body(address, method, target, body)).unwrap()
}

fn queues(service: &RunningService) -> Vec<Value> {
    json(service.http, "GET", "/xqueues", "")["xqueues"].as_array().unwrap().clone()
}

/// A program with a queue of priority 0 in slot 0 and a queue of priority 5 in slot 1.
fn program(service: &RunningService) -> FakeProgram {
    let program = FakeProgram::join(service, "serving \"it\"");
    for threshold in [0, 16] {
        program.queue(threshold);
    }
    program.set_priority(1, 5);
    wait_until("the service knows both queues", || queues(service).len() == 2);
    program
}

#[test]
fn original_http_interface_shows_and_changes_queues() {
    let service = RunningService::new();
    let program = program(&service);
    program.mark_busy(0);
    program.mark_busy(1);
    wait_until("the queue of lower priority is held", || program.is_held(0));

    let queues = queues(&service);
    let pid = std::process::id();
    let held = queues.iter().find(|queue| queue["suspended"] == true).unwrap();
    assert_eq!((&held["device"], &held["pid"], &held["threshold"]), (&json!(DEVICE), &json!(pid), &json!(0)));
    let runs = queues.iter().find(|queue| queue["suspended"] == false).unwrap();
    assert_eq!(
        (&runs["ready"], &runs["threshold"], &runs["batch_size"]),
        (&json!(true), &json!(16), &json!(8))
    );
    let handle = runs["handle"].as_u64().unwrap();
    let one = json(service.http, "GET", &format!("/xqueue/{handle:x}"), "");
    assert_eq!((&one["xqueue"], &one["process"]["pid"]), (runs, &json!(pid)));
    assert!(!one["process"]["cmdline"].as_str().unwrap().is_empty());

    let success = json!({ "info": "success" });
    let target = format!("/config/{handle:x}?threshold=4");
    assert_eq!(json(service.http, "POST", &target, ""), success);
    let Some(Packet::Message(Reply::Configure { slot: 1, settings }, _)) =
        program.connection.receive(true).unwrap()
    else {
        panic!("the program did not receive the settings")
    };
    assert_eq!(settings, Settings { threshold: Some(4), ..Settings::default() });

    let hint = json!({ "hint_type": 1, "pid": pid, "priority": 9 }).to_string();
    assert_eq!(json(service.http, "POST", "/hint", &hint), success);
    wait_until("the raised queue runs", || !program.is_held(0));
    for policy in 1..=11 {
        assert_eq!(json(service.http, "POST", &format!("/policy?policy={policy}"), ""), success);
        assert_eq!(json(service.http, "GET", "/policy", ""), json!({ "policy": policy }));
    }
}

#[test]
fn xcli_works_with_a_real_service() {
    let service = RunningService::new();
    let program = program(&service);
    let links = tempfile::tempdir().unwrap();
    let link = links.path().join("xcli");
    symlink(cargo_bin!("xsched"), &link).unwrap();
    let xcli = |arguments: &[&str]| {
        let mut command = Command::new(&link);
        command.args(["-p", &service.http.port().to_string()]).args(arguments);
        command
    };
    program.mark_busy(0);
    program.mark_busy(1);
    wait_until("the queue of lower priority is held", || program.is_held(0));
    xcli(&["list"]).assert().success().stdout(contains("  held  ").and(contains("  running  ")));
    xcli(&["policy", "-s", "-n", "SPUP"]).assert().success();
    xcli(&["policy", "-q"]).assert().success().stdout(contains("SPUP"));
    xcli(&["hint", "--pid", "1", "-p", "3"]).assert().failure().stderr(contains("pid 1"));
}

#[test]
fn metrics_count_joins_queues_and_rounds() {
    let service = RunningService::new();
    let program = program(&service);
    let page = || http_body(service.metrics, "GET", "/metrics", "");
    let has = |page: &str, text: &str| page.lines().any(|line| line.starts_with(text));
    program.mark_busy(0);
    program.mark_busy(1);
    let tasks = r#"xsched_tasks{device="0000:00:06.0",state="held"} 1"#;
    wait_until("a task is held", || has(&page(), tasks));
    let metrics = page();
    assert!(metrics.contains(r#"name="serving \"it\"",device="0000:00:06.0",uid="#), "{metrics}");
    assert!(has(&metrics, "xsched_joins_total 1"), "{metrics}");
    assert!(has(&metrics, "xsched_queues 2"), "{metrics}");
    assert!(!has(&metrics, "xsched_notifications_total 0"), "{metrics}");
    assert!(!has(&metrics, "xsched_round_seconds_count 0"), "{metrics}");
    assert!(!has(&metrics, "xsched_orders_written_total 0"), "{metrics}");
    drop(program);
    wait_until("the service has removed the program", || has(&page(), "xsched_leaves_total 1"));
    assert!(!page().contains("\nxsched_task_info{"));
}

#[test]
fn trace_shows_running_and_held_tasks() {
    let service = RunningService::new();
    let program = program(&service);
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut child = std::process::Command::new(cargo_bin!("xsched"))
        .env("XSCHED_SOCKET", service.socket())
        .arg("trace")
        .arg("-o")
        .arg(file.path())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(stdout.next().unwrap().unwrap().starts_with("recording"));
    program.mark_busy(0);
    wait_until("the first queue runs", || queues(&service).iter().any(|queue| queue["ready"] == true));
    program.mark_busy(1);
    wait_until("the first queue is held", || program.is_held(0));
    program.mark_idle(1);
    wait_until("the first queue runs again", || !program.is_held(0));
    program.mark_idle(0);
    wait_until("every queue is idle", || queues(&service).iter().all(|queue| queue["ready"] == false));
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .unwrap();
    assert!(child.wait().unwrap().success());

    let trace: Value = serde_json::from_str(&std::fs::read_to_string(file.path()).unwrap()).unwrap();
    let count = |name: &str| {
        trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["name"] == name).count()
    };
    assert_eq!((count("running"), count("held"), count("preempted")), (3, 1, 1), "{trace:#}");
    assert!(count("round") > 0);
    let names =
        trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["name"] == "process_name");
    assert!(names.map(|event| &event["args"]["name"]).any(|name| name == "serving \"it\""), "{trace:#}");
}

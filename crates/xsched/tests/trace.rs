//! `xsched trace` as users run it, with a stand-in for the service and with a real service.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use assert_cmd::Command;
use assert_cmd::cargo::cargo_bin;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;
use xsched_ipc::protocol::{Event, EventKind, Reply, Request, Status};
use xsched_ipc::socket::{Connection, Packet};

#[path = "common/fake_service.rs"]
mod fake_service;
use fake_service::{FakeService, busy};
#[path = "common/live.rs"]
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod live;
use live::{FakeProgram, RunningService, wait_until};
#[path = "common/trace_format.rs"]
mod trace_format;

/// The track of the stand-in's task.
const TASK: &str = "task 1 on 0000:00:06.0";

fn tracing() -> FakeService {
    FakeService::new(|request| match request {
        Request::Status => vec![Reply::Status(Status { now_ns: 1_000, ..busy() })],
        Request::Trace => {
            let event = |at_ns, what| Event { at_ns, task: 1, pid: 4711, device: 0x30, kind: what };
            let launched = EventKind::Launched { queue: 0x1_0000_0000, count: 12 };
            let kernel = |name: &str, began_ns| EventKind::Kernel {
                queue: 0x1_0000_0000,
                name: name.to_owned(),
                count: 7,
                began_ns,
            };
            // The name of the second one may not be seen.
            let kernels = [kernel("_ZN2at4gemmEPf", 1_500), kernel("", 1_500)].map(|kind| event(2_500, kind));
            let mut first = vec![event(2_000, EventKind::Held), event(2_500, EventKind::Running)];
            first.extend(kernels);
            let second = vec![event(3_000, launched), event(4_000, EventKind::Idle)];
            vec![
                Reply::Done,
                Reply::Events { events: first, lost: 0 },
                Reply::Events { events: second, lost: 5 },
            ]
        }
        Request::TraceKernels => vec![Reply::Done],
        reply => panic!("{reply:?}"),
    })
}

fn trace(service: &FakeService, file: &Path) -> Command {
    let mut command = Command::new(cargo_bin!("xsched"));
    command.env("XSCHED_SOCKET", service.socket()).arg("trace").arg("-o").arg(file);
    command
}

fn read(file: &Path) -> Value {
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    trace_format::assert_valid(trace["traceEvents"].as_array().unwrap());
    trace
}

fn count(trace: &Value, name: &str) -> usize {
    trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["name"] == name).count()
}

/// The names of the slices in a track, in order.
fn slices(trace: &Value, name: &str) -> Vec<String> {
    let events = trace["traceEvents"].as_array().unwrap();
    let line = events.iter().find(|event| event["args"]["name"] == name);
    let tid = &line.unwrap_or_else(|| panic!("no {name}: {trace:#}"))["tid"];
    let slices = events.iter().filter(|event| event["ph"] == "X" && event["tid"] == *tid);
    slices.map(|slice| slice["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn trace_records_for_a_duration() {
    let service = tracing();
    let file = service.directory().join("trace.json");
    let stdout = contains("6 events in ").and(contains("5 more were lost"));
    // Long enough for the stand-in to send everything: a separate thread serves each connection.
    trace(&service, &file).args(["--duration", "500ms"]).assert().success().stderr(stdout);
    let trace = read(&file);
    assert_eq!(slices(&trace, TASK), ["running", "held"]);
    assert_eq!(slices(&trace, "queue 0x100000000 of task 1"), ["running", "held"]);
    assert_eq!(count(&trace, "preempted"), 1);
    assert_eq!(count(&trace, "launches of queue 0x100000000 of task 1"), 1);
    assert_eq!(count(&trace, "5 events lost"), 1);
    let events = trace["traceEvents"].as_array().unwrap();
    let kernels: Vec<_> = events.iter().filter(|event| event["cat"] == "kernel").collect();
    assert_eq!(kernels.len(), 1, "{kernels:?}");
    assert_eq!((&kernels[0]["name"], &kernels[0]["ts"]), (&"at::gemm".into(), &0.5.into()));
    assert_eq!(kernels[0]["args"], serde_json::json!({"launches": 7, "symbol": "_ZN2at4gemmEPf"}));
    assert_eq!(trace["otherData"]["events lost"], "5");
}

#[test]
fn page_contains_the_same_trace() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("trace.html");
    let service = tracing();
    trace(&service, &file)
        .args(["--html", "--duration", "500ms"])
        .assert()
        .success()
        .stderr(contains("open it in a browser"));
    let page = std::fs::read_to_string(&file).unwrap();
    let (_, rest) = page.split_once("id=\"trace\">\n").unwrap();
    let (embedded, _) = rest.split_once("</script>").unwrap();
    let embedded: Value = serde_json::from_str(embedded).unwrap();
    assert_eq!(slices(&embedded, TASK), ["running", "held"]);
    assert!(page.ends_with("</html>\n"));
}

#[test]
fn interrupt_ends_the_recording_with_a_complete_file() {
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
    // When it sends the request, it handles interrupts.
    let began = Instant::now();
    while !service.orders().contains(&Request::Trace) {
        assert!(began.elapsed() < Duration::from_secs(60), "no request for a trace");
        std::thread::yield_now();
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .unwrap();
    assert!(child.wait().unwrap().success());
    assert!(slices(&read(&file), TASK).contains(&"held".to_owned()));
}

#[test]
fn traced_command_runs_and_its_status_is_returned() {
    let service = tracing();
    let file = service.directory().join("trace.json");
    trace(&service, &file).arg("--").arg(cargo_bin!("xsched")).arg("--version").assert().success();
    assert!(slices(&read(&file), TASK).contains(&"held".to_owned()));
    trace(&service, &file).arg("--").arg(cargo_bin!("xsched")).arg("--nonsense").assert().code(2);
    assert!(slices(&read(&file), TASK).contains(&"held".to_owned()));
}

#[test]
fn ending_the_recording_ends_the_command() {
    let service = tracing();
    let file = service.directory().join("trace.json");
    // A command called `xsched` is started without `xsched run` in front.
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
    assert!(slices(&read(&file), TASK).contains(&"held".to_owned()));
}

#[test]
fn service_exit_leaves_a_complete_file_and_an_error() {
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
fn errors_are_reported_before_the_command_starts() {
    let service = tracing();
    let nowhere = service.directory().join("nowhere/trace.json");
    let refused =
        trace(&service, &nowhere).arg("--").arg("touch").arg(service.directory().join("ran")).assert();
    refused.failure().stderr(contains("cannot write"));
    assert!(!service.directory().join("ran").exists());
    let file = service.directory().join("trace.json");
    let mut without_service = trace(&service, &file);
    without_service.env("XSCHED_SOCKET", service.directory().join("no-service"));
    without_service.assert().failure().stderr(contains("no scheduler is running"));
    assert!(!file.exists(), "a file was written");
    trace(&service, &file).args(["--duration", "soon"]).assert().code(2);
}

/// Receives the same events as the command, so that a test knows which events the command has received.
struct Listener {
    connection: Connection,
    /// Launches by queue.
    launches: HashMap<u64, u64>,
}

impl Listener {
    fn new(service: &RunningService) -> Self {
        let connection = Connection::to(&service.socket()).unwrap();
        connection.send(&Request::Trace, None, true).unwrap();
        let listener = Self { connection, launches: HashMap::new() };
        assert!(matches!(listener.next(), Reply::Done));
        listener
    }

    fn next(&self) -> Reply {
        match self.connection.receive(true).unwrap() {
            Some(Packet::Message(reply, _)) => reply,
            reply => panic!("{reply:?}"),
        }
    }

    /// Waits for an event, and counts launches until then.
    fn wait_for_event(&mut self, mut wanted: impl FnMut(&EventKind, &HashMap<u64, u64>) -> bool) {
        let mut is_found = false;
        while !is_found {
            let Reply::Events { events, lost } = self.next() else { panic!("no events") };
            assert_eq!(lost, 0);
            for Event { kind: what, .. } in events {
                if let EventKind::Launched { queue, count } = what {
                    *self.launches.entry(queue).or_default() += count;
                }
                is_found |= wanted(&what, &self.launches);
            }
        }
    }
}

fn last_count(trace: &Value, counter: &str) -> Option<u64> {
    let events = trace["traceEvents"].as_array().unwrap();
    events.iter().rfind(|event| event["name"] == counter)?["args"]["launches"].as_u64()
}

#[test]
fn launches_and_waits_of_each_queue_are_in_the_trace() {
    let service = RunningService::new();
    let program = FakeProgram::join(&service, "two-queues");
    let (low, high) = (program.queue(16), program.queue(16));
    program.set_priority(high, 10);
    let file = service.socket().with_file_name("trace.json");
    let mut child = std::process::Command::new(cargo_bin!("xsched"))
        .env("XSCHED_SOCKET", service.socket())
        .arg("trace")
        .arg("-o")
        .arg(&file)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(stdout.next().unwrap().unwrap().contains("recording"));

    let mut listener = Listener::new(&service);
    program.mark_busy(low);
    let mut first = 0;
    listener.wait_for_event(|what, _| match what {
        EventKind::QueueBusy(queue) => {
            first = *queue;
            true
        }
        _ => false,
    });
    // These do not notify the service.
    for _ in 0..4 {
        program.mark_busy(low);
    }
    listener.wait_for_event(|_, launches| launches.get(&first) == Some(&5));
    program.mark_busy(high);
    wait_until("the queue of low priority is held", || program.is_held(low));
    program.mark_idle(high);
    wait_until("the queue of low priority runs", || !program.is_held(low));
    program.mark_idle(low);
    listener.wait_for_event(|what, _| *what == EventKind::QueueIdle(first));
    // When the service replies, it has sent the events to every client.
    let connection = Connection::to(&service.socket()).unwrap();
    connection.send(&Request::Status, None, true).unwrap();
    connection.receive::<Reply>(true).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .unwrap();
    assert!(child.wait().unwrap().success());

    let trace = read(&file);
    let (low, high) = (first, first + (high - low) as u64);
    assert_eq!(slices(&trace, &format!("queue {low:#x} of task 1")), ["running", "held", "running"]);
    assert_eq!(slices(&trace, &format!("queue {high:#x} of task 2")), ["running"]);
    assert_eq!(last_count(&trace, &format!("launches of queue {low:#x} of task 1")), Some(5));
    assert_eq!(last_count(&trace, &format!("launches of queue {high:#x} of task 2")), Some(1));
    assert_eq!(count(&trace, "preempted"), 1);
}

/// Every write to this file fails as on a full disk.
#[test]
fn full_disk_is_a_failure_even_if_the_command_succeeds() {
    let service = tracing();
    let full = Path::new("/dev/full");
    trace(&service, full)
        .args(["--duration", "100ms"])
        .assert()
        .code(1)
        .stderr(contains("cannot write /dev/full"));
    // A command named `xsched` is not run under the scheduler.
    let xsched = cargo_bin!("xsched");
    let with_command = |arguments: &[&str]| {
        let mut command = trace(&service, full);
        command.arg("--").arg(xsched).args(arguments);
        command.assert()
    };
    with_command(&["--version"]).code(1).stderr(contains("cannot write /dev/full"));
    with_command(&["no-such-command"]).code(2).stderr(contains("cannot write /dev/full"));
}

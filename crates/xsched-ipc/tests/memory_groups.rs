//! Limits of device memory that several processes share, each in a process of its own: the binary of this test, started again.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use xsched_core::{DeviceId, LevelRequest, NullQueue};
use xsched_ipc::memory::{MemoryLimit, account};
use xsched_ipc::notifier::Notifier;
use xsched_ipc::protocol::{EventKind, Grant, Reply, Request, Status};
use xsched_ipc::service::{Glob, Options, Rule, Service};
use xsched_ipc::socket::{Connection, Packet};
use xsched_ipc::{Client, ClientInfo};

/// How long a test waits for another process before it fails.
const EVENT_TIMEOUT: Duration = Duration::from_secs(30);
/// That of the null device.
const DEVICE: DeviceId = DeviceId(0);
const TOTAL: u64 = 1_000;
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A process that counts its memory as the library does. It reads commands and prints one line for each.
#[test]
fn role() {
    let Some(socket) = std::env::var_os("MEMORY_TEST_SOCKET") else { return };
    let variable = |name| std::env::var(name).ok();
    let limit = variable("MEMORY_TEST_LIMIT").map(|limit| MemoryLimit::Bytes(limit.parse().unwrap()));
    account().set_limit(limit);
    let info = ClientInfo {
        sockets: vec![socket.into()],
        grant_token: variable("MEMORY_TEST_TOKEN"),
        memory_group: variable("MEMORY_TEST_GROUP"),
        memory: Some(account()),
        ..ClientInfo::default()
    };
    let client = Client::with_service(info).unwrap();
    client.connect_to_service();
    println!("ready");
    let mut queue = None;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (command, amount) = line.split_once(' ').unwrap_or((&line, "0"));
        let bytes = amount.parse().unwrap();
        match command {
            "reserve" => println!("{}", account().reserve(DEVICE, TOTAL, bytes).is_ok()),
            "release" => {
                account().release(DEVICE, bytes);
                println!("done");
            }
            "used" => println!("{}", account().used_together(DEVICE)),
            "limit" => println!("{}", account().limit(TOTAL).unwrap_or(0)),
            "queue" => {
                queue = Some(client.join(Arc::new(NullQueue::default()), LevelRequest::Auto).unwrap());
                println!("done");
            }
            other => panic!("unknown command {other}"),
        }
    }
    drop(queue);
    // Without the output of the test harness.
    std::process::exit(0);
}

/// A process of this test, killed when dropped.
struct TestProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl TestProcess {
    fn start(socket: &Path, variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "role", "--nocapture", "--test-threads=1"])
            .env("MEMORY_TEST_SOCKET", socket)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut process = Self { child, input, output };
        // The test harness prints lines of its own first.
        while !process.line().ends_with("ready") {}
        process
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the process exited");
        line.trim_end().to_owned()
    }

    fn command(&mut self, command: &str) -> String {
        writeln!(self.input, "{command}").unwrap();
        self.line()
    }

    /// Waits until a command has this result.
    fn wait_for(&mut self, command: &str, expected: &str) {
        let began = Instant::now();
        loop {
            let result = self.command(command);
            if result == expected {
                return;
            }
            assert!(began.elapsed() < EVENT_TIMEOUT, "{command}: {result} instead of {expected}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A service on a thread of this process, stopped when dropped.
struct TestService {
    stop: Arc<Notifier>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl TestService {
    fn start(options: Options) -> Self {
        let service = Service::bind(options).unwrap();
        let stop = service.stopper();
        let run = move || {
            service.run().unwrap();
        };
        Self { stop, thread: Some(std::thread::spawn(run)) }
    }
}

impl Drop for TestService {
    fn drop(&mut self) {
        self.stop.notify();
        self.thread.take().unwrap().join().unwrap();
    }
}

fn socket(directory: &tempfile::TempDir) -> PathBuf {
    directory.path().join("socket")
}

fn request(connection: &Connection, request: &Request) -> Reply {
    connection.send(request, None, true).unwrap();
    match connection.receive(true).unwrap() {
        Some(Packet::Message(reply, _)) => reply,
        other => panic!("{other:?}"),
    }
}

fn status(socket: &Path) -> Status {
    match request(&Connection::to(socket).unwrap(), &Request::Status) {
        Reply::Status(status) => status,
        other => panic!("{other:?}"),
    }
}

const RUN: [(&str, &str); 2] = [("MEMORY_TEST_GROUP", "run-1"), ("MEMORY_TEST_LIMIT", "100")];

#[test]
fn processes_of_a_run_share_their_limit_and_a_killed_one_makes_room() {
    let directory = tempfile::tempdir().unwrap();
    let _service = TestService::start(Options::at(socket(&directory)));
    let mut parent = TestProcess::start(&socket(&directory), &RUN);
    assert_eq!(parent.command("reserve 60"), "true");
    let mut child = TestProcess::start(&socket(&directory), &RUN);
    // A process may join later than it is ready.
    child.wait_for("used", "60");
    assert_eq!(child.command("reserve 41"), "false");
    assert_eq!(child.command("reserve 40"), "true");
    let other = [("MEMORY_TEST_GROUP", "run-2"), RUN[1]];
    assert_eq!(TestProcess::start(&socket(&directory), &other).command("reserve 100"), "true", "another run");
    // Killed with SIGKILL: it releases nothing itself.
    drop(parent);
    child.wait_for("reserve 60", "true");
    assert_eq!(child.command("reserve 1"), "false");
}

#[test]
fn limit_holds_alone_without_a_service_and_together_under_the_next_one() {
    let directory = tempfile::tempdir().unwrap();
    let service = TestService::start(Options::at(socket(&directory)));
    let mut a = TestProcess::start(&socket(&directory), &RUN);
    let mut b = TestProcess::start(&socket(&directory), &RUN);
    assert_eq!((a.command("reserve 30"), b.command("reserve 40")), ("true".to_owned(), "true".to_owned()));
    a.wait_for("used", "70");
    drop(service);
    a.wait_for("used", "30");
    assert_eq!((a.command("reserve 71"), a.command("reserve 20")), ("false".to_owned(), "true".to_owned()));
    let _service = TestService::start(Options::at(socket(&directory)));
    // Both join the next service, and enter what they have.
    b.wait_for("used", "90");
    a.wait_for("used", "90");
    assert_eq!((a.command("reserve 11"), a.command("reserve 10")), ("false".to_owned(), "true".to_owned()));
}

#[test]
fn processes_of_a_grant_share_its_limit_while_it_is_in_force() {
    let directory = tempfile::tempdir().unwrap();
    let _service = TestService::start(Options::at(socket(&directory)));
    let tool = Connection::to(&socket(&directory)).unwrap();
    let grant = |memory| {
        let token = Some(TOKEN.to_owned());
        Request::Grant(Grant { name: "job".into(), token, memory, ..Grant::default() })
    };
    assert_eq!(request(&tool, &grant(Some(100))), Reply::Done);
    let token = [("MEMORY_TEST_TOKEN", TOKEN)];
    let mut a = TestProcess::start(&socket(&directory), &token);
    let mut b = TestProcess::start(&socket(&directory), &token);
    a.wait_for("limit", "100");
    b.wait_for("limit", "100");
    assert_eq!(a.command("reserve 70"), "true");
    assert_eq!((b.command("reserve 31"), b.command("reserve 30")), ("false".to_owned(), "true".to_owned()));
    // A new limit is that of the running processes too.
    assert_eq!(request(&tool, &grant(Some(150))), Reply::Done);
    a.wait_for("limit", "150");
    b.wait_for("limit", "150");
    assert_eq!((b.command("reserve 51"), b.command("reserve 50")), ("false".to_owned(), "true".to_owned()));
    assert_eq!(request(&tool, &Request::Revoke("job".into())), Reply::Done);
    a.wait_for("limit", "0");
    assert_eq!(a.command("reserve 900"), "true");
}

#[test]
fn rule_limits_each_process_and_the_status_reports_it() {
    let directory = tempfile::tempdir().unwrap();
    let rule = Rule {
        executable: Some(Glob::new("memory_groups*")),
        cgroup: None,
        user: Some(rustix::process::geteuid().as_raw()),
        priority: None,
        share: None,
        memory: Some(MemoryLimit::Percent(10)),
    };
    let _service = TestService::start(Options { rules: vec![rule], ..Options::at(socket(&directory)) });
    let tracer = Connection::to(&socket(&directory)).unwrap();
    assert_eq!(request(&tracer, &Request::Trace), Reply::Done);
    let mut process = TestProcess::start(&socket(&directory), &[]);
    process.wait_for("limit", "100");
    assert_eq!(process.command("reserve 101"), "false");
    assert_eq!(
        (process.command("reserve 100"), process.command("release 40")),
        ("true".into(), "done".into())
    );
    assert_eq!(status(&socket(&directory)).tasks.len(), 0, "a process without a queue is no task");
    process.command("queue");
    let began = Instant::now();
    let tasks = loop {
        let tasks = status(&socket(&directory)).tasks;
        if !tasks.is_empty() {
            break tasks;
        }
        assert!(began.elapsed() < EVENT_TIMEOUT, "the task is not listed");
    };
    let task = &tasks[0];
    let reported = (task.memory_bytes, task.memory_peak_bytes, task.memory_limit_bytes);
    assert_eq!(reported, (Some(60), Some(100), Some(100)));
    let mut recorded = Vec::new();
    while recorded.is_empty() {
        if let Some(Packet::Message(Reply::Events { events, .. }, _)) = tracer.receive(true).unwrap() {
            recorded.extend(events.into_iter().filter(|event| matches!(event.kind, EventKind::Memory(_))));
        }
    }
    assert_eq!((&recorded[0].kind, recorded[0].task), (&EventKind::Memory(60), task.task));
}

//! The service and its clients, each in a process of its own: the binary of this test, started again with a role.

#[path = "../../xsched/tests/skipped/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod skipped;

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use skipped::record_skipped;
use xsched_core::{DeviceId, Order, SchedulerLink};
use xsched_ipc::Page;
use xsched_ipc::protocol::{
    Caller, EventKind, HintRequest, JobKey, MAX_JOB_KEYS, PROTOCOL, Reply, Request, Settings, Status, Target,
    TaskState,
};
use xsched_ipc::service::{Options, Service, request_shutdown};
use xsched_ipc::socket::{Connection, Packet, SocketError};

/// How long a test waits for another process before it fails.
const EVENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs the role of this process instead of the tests, if it has one.
#[test]
fn role() {
    let Ok(role) = std::env::var("SERVICE_TEST_ROLE") else { return };
    let socket = PathBuf::from(std::env::var_os("SERVICE_TEST_SOCKET").unwrap());
    match role.as_str() {
        "serve" => serve(socket),
        "process" => scheduled_process(&socket),
        "brief" => {
            let joined = JoinedClient::join(&socket, HintRequest::default());
            joined.page.slot(joined.slot).unwrap().gate.mark_busy(&joined);
        }
        "malicious" => malicious(&socket),
        "other_user" => other_user(&socket),
        "tracer" => tracer(&socket),
        other => panic!("unknown role {other}"),
    }
    // Without the output of the test harness.
    std::process::exit(0);
}

fn serve(socket: PathBuf) {
    if std::env::var_os("SERVICE_TEST_REPLACE").is_some() {
        request_shutdown(&socket, EVENT_TIMEOUT).unwrap();
    }
    let service = Service::bind(Options::at(socket)).unwrap();
    println!("ready");
    service.run().unwrap();
}

/// The smallest process that can be scheduled.
struct JoinedClient {
    connection: Connection,
    page: Arc<Page>,
    slot: usize,
    fd: std::os::fd::OwnedFd,
    note: Option<String>,
}

impl SchedulerLink for JoinedClient {
    fn notify(&self) {
        if self.page.notify() {
            self.connection.notify();
        }
    }
    fn is_alive(&self) -> bool {
        true
    }
}

impl JoinedClient {
    fn join(socket: &Path, hint_request: HintRequest) -> Self {
        let connection = Connection::to(socket).unwrap();
        let join = Request::Join {
            protocol: PROTOCOL,
            version: "test".into(),
            name: None,
            hint_request,
            grant_token: None,
            memory_group: None,
        };
        connection.send(&join, None, true).unwrap();
        let Some(Packet::Message(Reply::Welcome { note, .. }, Some(fd))) = connection.receive(true).unwrap()
        else {
            panic!("the service refused")
        };
        let page = Page::attach(&fd).unwrap();
        let slot = page.allocate_slot(DeviceId(1)).unwrap();
        let joined = Self { connection, page, slot, fd, note };
        joined.notify();
        joined
    }

    fn order(&self) -> Order {
        self.page.slot(self.slot).unwrap().gate.order()
    }
}

fn priority(priority: i64) -> HintRequest {
    HintRequest { priority: Some(priority), ..HintRequest::default() }
}

/// Executes the commands that it reads, and prints one line for each.
fn scheduled_process(socket: &Path) {
    let requested = std::env::var("SERVICE_TEST_PRIORITY").unwrap().parse().unwrap();
    let joined = JoinedClient::join(socket, priority(requested));
    println!("ready");
    for line in std::io::stdin().lines() {
        let gate = &joined.page.slot(joined.slot).unwrap().gate;
        match line.unwrap().as_str() {
            "busy" => gate.mark_busy(&joined),
            "idle" => assert!(gate.mark_idle(gate.epoch(), &joined)),
            "order" => {}
            "job" => {
                let jobs = Request::Jobs(vec![JobKey::Name("train".into())]);
                joined.connection.send(&jobs, None, true).unwrap();
                assert!(matches!(joined.connection.receive(true), Ok(Some(Packet::Message(Reply::Done, _)))));
            }
            "heartbeat" => {
                println!("{}", joined.page.heartbeat());
                continue;
            }
            other => panic!("unknown command {other}"),
        }
        println!("{:?}", joined.order());
    }
}

/// Sends notifications without pause and fills its page with random values.
fn malicious(socket: &Path) {
    let joined = JoinedClient::join(socket, HintRequest::default());
    println!("ready");
    let mut state = 88_172_645_463_325_252_u64;
    let mut page = vec![0_u8; 36_864];
    loop {
        for (index, byte) in page.iter_mut().enumerate() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Alternately random values, and values that are valid in most fields.
            *byte = if state & 1 << 60 == 0 { state.to_le_bytes()[0] } else { [2, 0, 0, 0][index % 4] };
        }
        rustix::io::pwrite(&joined.fd, &page, 0).unwrap();
        joined.connection.notify();
    }
}

fn other_user(socket: &Path) {
    let request_reply = |request: Request| -> Reply {
        let connection = Connection::to(socket).unwrap();
        connection.send(&request, None, true).unwrap();
        let Some(Packet::Message(reply, _)) = connection.receive(true).unwrap() else { panic!("no reply") };
        reply
    };
    let refused = |request: Request| match request_reply(request) {
        Reply::Refused { why } => assert!(why.contains("group `xsched`"), "{why}"),
        other => panic!("{other:?}"),
    };
    let pid = std::env::var("SERVICE_TEST_PID").unwrap().parse().unwrap();
    let Reply::Status(status) = request_reply(Request::Status) else { panic!("no status") };
    let task = status.tasks.iter().find(|task| task.pid == pid).unwrap();
    assert_eq!((task.name.as_str(), task.cmdline.as_str()), ("", ""));
    refused(Request::Set { target: Target::Pid(pid), hint_request: priority(-5) });
    refused(Request::Suspend(Target::Pid(pid)));
    refused(Request::Park(Target::Pid(pid)));
    refused(Request::Unpark(Target::Pid(pid)));
    refused(Request::Policy { name: Some("fair".into()), timeslice_us: None, k: None });
    refused(Request::Focus(None));
    refused(Request::Stop);
    refused(Request::ActFor(Caller::User(0)));
    refused(Request::Configure { queue: status.queues[0].handle, settings: Settings::default() });
    // A request above the limit is clamped and reported; the process is scheduled all the same.
    let joined = JoinedClient::join(socket, priority(100));
    assert!(joined.note.as_ref().unwrap().contains("priority 100 was requested, 0 was granted"));
    let joined_reply = |request: Request| {
        joined.connection.send(&request, None, true).unwrap();
        let Some(Packet::Message(reply, _)) = joined.connection.receive::<Reply>(true).unwrap() else {
            panic!()
        };
        reply
    };
    assert_eq!(joined_reply(Request::Hint(priority(-7))), Reply::Done);
    assert!(matches!(joined_reply(Request::Hint(priority(1))), Reply::Refused { .. }));
    // A job of the same name, which another user's process has, is another job and is not shown.
    assert_eq!(joined_reply(Request::Jobs(vec![JobKey::Name("train".into())])), Reply::Done);
    let Reply::Status(status) = request_reply(Request::Status) else { panic!("no status") };
    let jobs: Vec<_> = status.tasks.iter().map(|task| (task.pid == pid, task.job.as_deref())).collect();
    assert!(jobs.contains(&(true, None)) && jobs.contains(&(false, Some("train"))), "{jobs:?}");
    for invalid in [vec![JobKey::Name("two\nlines".into())], vec![JobKey::Name("a".into()); MAX_JOB_KEYS + 1]]
    {
        assert!(matches!(joined_reply(Request::Jobs(invalid)), Reply::Refused { .. }));
    }
    println!("ready");
}

/// Prints the label of the first job that it learns of.
fn tracer(socket: &Path) {
    let connection = Connection::to(socket).unwrap();
    connection.send(&Request::Trace, None, true).unwrap();
    assert!(matches!(connection.receive(true), Ok(Some(Packet::Message(Reply::Done, _)))));
    println!("ready");
    loop {
        let Some(Packet::Message(Reply::Events { events, .. }, _)) = connection.receive(true).unwrap() else {
            continue;
        };
        let label = events.into_iter().find_map(|event| match event.kind {
            EventKind::JobChanged(label) => Some(label),
            _ => None,
        });
        if let Some(label) = label {
            return println!("label `{label}`");
        }
    }
}

/// A process of this test, killed when dropped.
struct TestProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl TestProcess {
    fn start(role: &str, socket: &Path, more: &[(&str, &str)], uid: Option<u32>) -> std::io::Result<Self> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "role", "--nocapture", "--test-threads=1"])
            .env("SERVICE_TEST_ROLE", role)
            .env("SERVICE_TEST_SOCKET", socket)
            .envs(more.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        let mut child = command.spawn()?;
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Ok(Self { child, input, output })
    }

    /// Waits until it prints "ready".
    fn wait_ready(mut self) -> Self {
        let mut line = String::new();
        // The test harness prints lines of its own first.
        while !line.ends_with("ready\n") {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "it exited before it was ready");
        }
        self
    }

    fn command(&mut self, command: &str) -> String {
        writeln!(self.input, "{command}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn wait_for_order(&mut self, order: &str) {
        wait_until(&format!("the order is {order}"), || self.command("order") == order);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A service in a process of its own.
struct TestService {
    process: TestProcess,
    socket: PathBuf,
    _directory: tempfile::TempDir,
}

impl TestService {
    fn start() -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::Builder::new().prefix("xsched-service").tempdir_in("/tmp").unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let socket = directory.path().join("made/for/it/socket");
        let process = TestProcess::start("serve", &socket, &[], None).unwrap().wait_ready();
        Self { process, socket, _directory: directory }
    }

    fn start_process(&self, priority: &str) -> TestProcess {
        TestProcess::start("process", &self.socket, &[("SERVICE_TEST_PRIORITY", priority)], None)
            .unwrap()
            .wait_ready()
    }

    fn request(&self, request: &Request) -> Reply {
        let connection = Connection::to(&self.socket).unwrap();
        connection.send(request, None, true).unwrap();
        let Some(Packet::Message(reply, _)) = connection.receive(true).unwrap() else { panic!("no reply") };
        reply
    }

    fn status(&self) -> Status {
        let connection = Connection::to(&self.socket).unwrap();
        connection.send(&Request::Status, None, true).unwrap();
        let mut whole = Status::default();
        loop {
            let Some(Packet::Message(Reply::Status(part), _)) = connection.receive(true).unwrap() else {
                panic!()
            };
            let (tasks, queues) = (whole.tasks, whole.queues);
            whole = Status {
                tasks: [tasks, part.tasks].concat(),
                queues: [queues, part.queues].concat(),
                ..part
            };
            if !whole.more {
                return whole;
            }
        }
    }

    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.process.child.id())).unwrap().count()
    }
}

fn wait_until(condition: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + EVENT_TIMEOUT;
    while !is_true() {
        assert!(Instant::now() < deadline, "not within {EVENT_TIMEOUT:?}: {condition}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn busy_process_holds_a_process_of_lower_priority_until_it_is_idle() {
    let service = TestService::start();
    let (mut high, mut low) = (service.start_process("10"), service.start_process("-10"));
    low.command("busy");
    low.wait_for_order("Throttled");
    wait_until("it runs", || service.status().tasks.iter().any(|task| task.state == TaskState::Running));
    high.command("busy");
    low.wait_for_order("Yield");
    let status = service.status();
    let held = status.tasks.iter().find(|task| task.pid == low.child.id()).unwrap();
    assert_eq!((held.state, held.preemptions, held.priority), (TaskState::Held, 1, -10));
    wait_until("command lines are known", || {
        service.status().tasks.iter().all(|task| task.cmdline.contains("--exact"))
    });
    high.command("idle");
    low.wait_for_order("Throttled");
    let status = service.status();
    let ran_on = status.tasks.iter().find(|task| task.pid == low.child.id()).unwrap();
    assert!(ran_on.held_ns > 0 && ran_on.wait_p99_us.is_some() && ran_on.launches == 1, "{ran_on:?}");
    drop(high);
    low.wait_for_order("Free");
}

#[test]
fn killed_process_releases_the_processes_it_held() {
    let service = TestService::start();
    let (mut high, mut low) = (service.start_process("10"), service.start_process("-10"));
    low.command("busy");
    high.command("busy");
    low.wait_for_order("Yield");
    let killed = Instant::now();
    high.signal(Signal::KILL);
    low.wait_for_order("Free");
    println!("released {:?} after the process was killed", killed.elapsed());
}

/// Without heartbeats its enforcer would take the scheduler for dead and free it beside the leader.
#[test]
fn idle_process_that_is_held_receives_heartbeats() {
    let service = TestService::start();
    let (mut high, mut low) = (service.start_process("10"), service.start_process("-10"));
    high.command("busy");
    low.wait_for_order("Yield");
    for _ in 0..3 {
        let before = low.command("heartbeat");
        wait_until("the scheduler sends a heartbeat", || low.command("heartbeat") != before);
    }
    assert_eq!(low.command("order"), "Yield");
}

#[test]
fn process_stopped_by_a_signal_does_not_delay_other_processes() {
    let service = TestService::start();
    let (mut high, mut low, stopped) =
        (service.start_process("10"), service.start_process("-10"), service.start_process("-20"));
    stopped.signal(Signal::STOP);
    for _ in 0..20 {
        low.command("busy");
        high.command("busy");
        low.wait_for_order("Yield");
        high.command("idle");
        low.wait_for_order("Throttled");
        low.command("idle");
    }
    stopped.signal(Signal::CONT);
}

#[test]
fn exited_processes_leave_no_tasks_and_no_descriptors() {
    let service = TestService::start();
    let _first = service.start_process("0");
    wait_until("the first is known", || service.status().tasks.len() == 1);
    let before = service.descriptors();
    for _ in 0..25 {
        let processes: Vec<_> =
            (0..8).map(|_| TestProcess::start("brief", &service.socket, &[], None).unwrap()).collect();
        for mut process in processes {
            assert!(process.child.wait().unwrap().success());
        }
    }
    wait_until("only the first is left", || service.status().tasks.len() == 1);
    wait_until("descriptors are closed", || service.descriptors() <= before);
    let Reply::Metrics { text, .. } = service.request(&Request::Metrics) else { panic!("no metrics") };
    for line in ["xsched_joins_total 201", "xsched_leaves_total 200", "xsched_queues 1"] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[test]
fn malformed_packet_closes_only_its_own_connection() {
    let service = TestService::start();
    let (mut high, mut low) = (service.start_process("10"), service.start_process("-10"));
    let mut malicious = TestProcess::start("malicious", &service.socket, &[], None).unwrap().wait_ready();
    for packet in [
        &b"malformed"[..],
        b"{}",
        b"{\"request\":\"join\"}",
        &vec![0; 60_000],
        &vec![b'['; 60_000],
        b"\xff\xfe",
        b"\"status\"",
    ] {
        let connection = Connection::to(&service.socket).unwrap();
        rustix::net::send(&connection, packet, rustix::net::SendFlags::empty()).unwrap();
        let closed = loop {
            match connection.receive::<Reply>(true) {
                Ok(Some(Packet::Message(Reply::Refused { .. }, _))) => {}
                other => break other,
            }
        };
        assert!(matches!(closed, Err(SocketError::Closed)), "{closed:?}");
    }
    for _ in 0..20 {
        low.command("busy");
        high.command("busy");
        low.wait_for_order("Yield");
        high.command("idle");
        wait_until("it is not held", || low.command("order") != "Yield");
        low.command("idle");
    }
    assert!(malicious.child.try_wait().unwrap().is_none(), "the malicious process has exited");
    drop(malicious);
    wait_until("its task is removed", || service.status().tasks.len() == 2);
}

#[test]
fn connection_that_does_not_read_delays_no_other() {
    let service = TestService::start();
    let (mut high, mut low) = (service.start_process("10"), service.start_process("-10"));
    let tracer = Connection::to(&service.socket).unwrap();
    tracer.send(&Request::Trace, None, true).unwrap();
    let tool = Connection::to(&service.socket).unwrap();
    // Until the socket is full in both directions.
    while tool.send(&Request::Status, None, false).is_ok() {}
    for _ in 0..200 {
        low.command("busy");
        high.command("busy");
        low.wait_for_order("Yield");
        high.command("idle");
        low.wait_for_order("Throttled");
        low.command("idle");
    }
    let mut events = Vec::new();
    while !events.iter().any(|what| matches!(what, EventKind::Decision(_))) {
        match tracer.receive::<Reply>(true).unwrap() {
            Some(Packet::Message(Reply::Events { events: more, .. }, _)) => {
                events.extend(more.into_iter().map(|event| event.kind));
            }
            Some(Packet::Message(Reply::Done, _)) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn requests_suspend_a_process_and_change_its_priority_and_the_policy() {
    let service = TestService::start();
    let (mut one, mut two) = (service.start_process("10"), service.start_process("-10"));
    one.command("busy");
    two.command("busy");
    two.wait_for_order("Yield");
    let one_pid = Target::Pid(one.child.id());
    assert_eq!(service.request(&Request::Suspend(one_pid.clone())), Reply::Done);
    one.wait_for_order("Drain");
    wait_until("the process of lower priority runs meanwhile", || two.command("order") != "Yield");
    assert_eq!(service.request(&Request::Resume(one_pid.clone())), Reply::Done);
    two.wait_for_order("Yield");
    let lowest = Request::Set { target: one_pid, hint_request: priority(-20) };
    assert_eq!(service.request(&lowest), Reply::Done);
    one.wait_for_order("Yield");
    let policy = Request::Policy { name: Some("fair".into()), timeslice_us: Some(1_000), k: None };
    assert_eq!(service.request(&policy), Reply::Policy { name: "CFS".into(), timeslice_us: 1_000, k: 1 });
    wait_until("both get time slices", || one.command("order") == "Throttled");
    wait_until("both get time slices", || two.command("order") == "Throttled");
}

#[test]
fn process_changes_its_own_hints_on_another_connection_and_gets_the_previous_ones() {
    let service = TestService::start();
    assert_eq!(
        service.request(&Request::SetOwn(priority(5))),
        Reply::PreviousHints(None),
        "it has not joined yet"
    );
    let too_much = service.request(&Request::SetOwn(priority(256)));
    assert!(matches!(too_much, Reply::Refused { why } if why.contains("-256")));
    let _other = service.start_process("1");
    let _joined = JoinedClient::join(&service.socket, priority(3));
    let Reply::PreviousHints(Some(previous)) = service.request(&Request::SetOwn(priority(5))) else {
        panic!("not joined")
    };
    assert_eq!((previous.priority, previous.share, previous.deadline_us), (Some(3), Some(100), Some(-1)));
    let priorities = || {
        let mut found: Vec<_> = service.status().tasks.iter().map(|task| task.priority).collect();
        found.sort_unstable();
        found
    };
    wait_until("only its own hints change", || priorities() == [1, 5]);
    let Reply::PreviousHints(Some(_)) = service.request(&Request::SetOwn(previous)) else {
        panic!("not joined")
    };
    wait_until("the previous hints can be restored", || priorities() == [1, 3]);
}

#[test]
fn orders_are_written_before_the_reply_is_sent() {
    let service = TestService::start();
    let mut other = service.start_process("0");
    let own = JoinedClient::join(&service.socket, priority(10));
    other.command("busy");
    wait_until("both are known", || service.status().tasks.len() == 2);
    let tools: Vec<_> = (0..32).map(|_| Connection::to(&service.socket).unwrap()).collect();
    service.status();
    for requested in [-10, 10].repeat(5) {
        // The service is stopped meanwhile, so that it finds all requests at once: the hint first, then requests that take long.
        service.process.signal(Signal::STOP);
        own.connection.send(&Request::Hint(priority(requested)), None, true).unwrap();
        for tool in &tools {
            tool.send(&Request::Metrics, None, true).unwrap();
        }
        service.process.signal(Signal::CONT);
        let reply = own.connection.receive(true).unwrap();
        assert_eq!(own.order().stops(), requested < 0, "{requested}");
        assert!(matches!(reply, Some(Packet::Message(Reply::Done, _))), "{reply:?}");
        for tool in &tools {
            while let Some(Packet::Message(Reply::Metrics { more: true, .. }, _)) =
                tool.receive(true).unwrap()
            {}
        }
    }
}

#[test]
fn queue_with_hints_of_its_own_becomes_a_task_of_its_own() {
    let service = TestService::start();
    let _process = service.start_process("10");
    let queue = service.status().queues[0].handle;
    assert_eq!(service.request(&Request::SetQueue { queue, hint_request: priority(-7) }), Reply::Done);
    let tasks = service.status().tasks;
    assert_eq!(tasks.iter().map(|task| (task.own, task.priority)).collect::<Vec<_>>(), [(true, -7)]);
    let nowhere = Request::SetQueue { queue: queue + 1, hint_request: priority(0) };
    assert!(matches!(service.request(&nowhere), Reply::Refused { .. }));
    let too_much = Request::SetQueue { queue, hint_request: priority(256) };
    assert!(matches!(service.request(&too_much), Reply::Refused { why } if why.contains("-256")));
}

#[test]
fn other_user_neither_sees_nor_changes_processes_that_are_not_theirs() {
    if !rustix::process::geteuid().is_root() {
        return record_skipped("only root can become another user");
    }
    let service = TestService::start();
    let mut process = service.start_process("10");
    wait_until("the process is known", || service.status().tasks.len() == 1);
    process.command("job");
    assert_eq!(service.status().tasks[0].job.as_deref(), Some("train"));
    let pid = process.child.id().to_string();
    match TestProcess::start("other_user", &service.socket, &[("SERVICE_TEST_PID", &pid)], Some(65_534)) {
        Ok(other) => drop(other.wait_ready()),
        Err(error) => record_skipped(&format!("the other user cannot execute this test: {error}")),
    }
}

#[test]
fn tracer_of_another_user_does_not_see_the_names_of_jobs() {
    if !rustix::process::geteuid().is_root() {
        return record_skipped("only root can become another user");
    }
    for (uid, label) in [(None, "label `train`"), (Some(65_534), "label ``")] {
        let service = TestService::start();
        let mut process = service.start_process("10");
        wait_until("the process is known", || service.status().tasks.len() == 1);
        let mut tracer = match TestProcess::start("tracer", &service.socket, &[], uid) {
            Ok(tracer) => tracer.wait_ready(),
            Err(error) => {
                return record_skipped(&format!("the other user cannot execute this test: {error}"));
            }
        };
        process.command("job");
        assert_eq!(tracer.command(""), label);
    }
}

/// A connection that acts for a caller has the rights of the caller alone: those of a socket of that user, without its groups.
#[test]
fn connection_that_acts_for_a_caller_has_no_other_rights() {
    let service = TestService::start();
    let process = service.start_process("10");
    wait_until("the process is known", || service.status().tasks.len() == 1);
    let queue = service.status().queues[0].handle;
    let pid = process.child.id();
    let own = rustix::process::geteuid().as_raw();
    for (caller, is_owner) in [
        (Caller::Unknown, false),
        (Caller::User(u32::MAX), false),
        (Caller::User(own.wrapping_add(7_000)), false),
        (Caller::User(own), true),
    ] {
        let connection = Connection::to(&service.socket).unwrap();
        let reply_to = |request: Request| {
            connection.send(&request, None, true).unwrap();
            let Some(Packet::Message(reply, _)) = connection.receive(true).unwrap() else {
                panic!("no reply")
            };
            reply
        };
        assert_eq!(reply_to(Request::ActFor(caller)), Reply::Done);
        let Reply::Status(status) = reply_to(Request::Status) else { panic!("no status") };
        let task = &status.tasks[0];
        assert_eq!((task.pid, task.name.is_empty(), task.cmdline.is_empty()), (pid, !is_owner, !is_owner));
        let Reply::Metrics { text, .. } = reply_to(Request::Metrics) else { panic!("no metrics") };
        assert_eq!(text.contains("name=\"\""), !is_owner, "{text}");
        let set = |n| Request::Set { target: Target::Pid(pid), hint_request: priority(n) };
        for (request, allowed) in [
            (set(-256), is_owner),
            (set(10), is_owner),
            (Request::SetQueue { queue, hint_request: priority(-256) }, is_owner),
            (
                Request::Configure { queue, settings: Settings { level: Some(1), ..Settings::default() } },
                is_owner,
            ),
            (Request::Suspend(Target::Pid(pid)), is_owner),
            (Request::Resume(Target::Pid(pid)), is_owner),
            (Request::Parking(Target::Pid(pid)), is_owner),
            (Request::Policy { name: Some("HPF".into()), timeslice_us: None, k: None }, is_owner),
            (Request::Focus(None), is_owner),
            (Request::ActFor(Caller::User(own)), is_owner),
            (Request::Trace, false),
            (Request::Expect, false),
            (join_request(PROTOCOL), false),
        ] {
            let reply = reply_to(request.clone());
            assert_eq!(!matches!(reply, Reply::Refused { .. }), allowed, "{caller:?} {request:?}: {reply:?}");
        }
        if !is_owner {
            assert!(matches!(reply_to(Request::Stop), Reply::Refused { .. }));
        }
    }
    assert!(service.status().tasks.iter().all(|task| task.state != TaskState::Suspended));
}

fn join_request(protocol: u32) -> Request {
    Request::Join {
        protocol,
        version: "9.9".into(),
        name: None,
        hint_request: HintRequest::default(),
        grant_token: None,
        memory_group: None,
    }
}

#[test]
fn protocol_mismatch_error_names_both_versions() {
    let service = TestService::start();
    let Reply::Refused { why } = service.request(&join_request(99)) else { panic!("not refused") };
    for part in ["9.9", "protocol 99", env!("CARGO_PKG_VERSION"), &format!("protocol {PROTOCOL}")] {
        assert!(why.contains(part), "{part} is not in: {why}");
    }
}

#[test]
fn service_is_replaced_while_processes_are_busy() {
    let mut service = TestService::start();
    let (mut high, mut low) = (service.start_process("10"), service.start_process("-10"));
    low.command("busy");
    high.command("busy");
    low.wait_for_order("Yield");
    let more = [("SERVICE_TEST_REPLACE", "1")];
    let successor = TestProcess::start("serve", &service.socket, &more, None).unwrap().wait_ready();
    let mut old = std::mem::replace(&mut service.process, successor);
    assert!(old.child.wait().unwrap().success());
    assert_eq!(low.command("order"), "Free", "the old service frees all processes before it exits");
    assert!(service.status().tasks.is_empty());
    let (mut high, mut low) = (service.start_process("10"), service.start_process("-10"));
    low.command("busy");
    high.command("busy");
    low.wait_for_order("Yield");
}

//! Clients that harm the service as much as they can: what other clients notice of them.

#[path = "common/live.rs"]
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod live;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod skipped;

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use live::{FakeProgram, RunningService, wait_until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use skipped::record_skipped;
use xsched_core::DeviceId;
use xsched_ipc::protocol::{HintRequest, PROTOCOL, Reply, Request};
use xsched_ipc::socket::{Connection, Packet};
use xsched_ipc::tool::ToolConnection;

const QUEUES: usize = 254;

/// Another user, whose limits apply.
const OTHER_USER: u32 = 65_534;

/// Runs the role of this process instead of the tests, if it has one.
#[test]
fn role() {
    let Ok(role) = std::env::var("HOSTILE_ROLE") else { return };
    let socket = PathBuf::from(std::env::var_os("XSCHED_SOCKET").unwrap());
    let count = std::env::var("HOSTILE_COUNT").unwrap().parse().unwrap();
    match role.as_str() {
        "joins" => joins_and_blocks(&socket, count),
        "queues" => {
            let program = FakeProgram::join_at(&socket, "queues");
            for _ in 0..count {
                program.queue(8);
            }
            report_and_block("ready");
        }
        "refused join" => refused_join(&socket, count),
        "connects" => connects(&socket, count),
        "traces" => {
            let connection = Connection::to(&socket).unwrap();
            connection.send(&Request::Trace, None, true).unwrap();
            let Some(Packet::Message(reply, _)) = connection.receive::<Reply>(true).unwrap() else {
                panic!("no reply")
            };
            report_and_block(&format!("{reply:?}"));
        }
        other => panic!("unknown role {other}"),
    }
    // Without the output of the test harness.
    std::process::exit(0);
}

/// Prints a line, and returns when stdin ends.
fn report_and_block(line: &str) {
    println!("role: {line}");
    let _ = std::io::stdin().read(&mut [0]);
}

/// Joins many times with a busy queue each, and has as many threads.
fn joins_and_blocks(socket: &Path, count: usize) {
    let programs: Vec<_> = (0..count).map(|_| FakeProgram::join_at(socket, "hostile")).collect();
    for program in &programs {
        let hint_request = HintRequest { priority: Some(10), ..HintRequest::default() };
        program.connection.send(&Request::Hint(hint_request), None, true).unwrap();
        program.mark_busy(program.queue(8));
        std::thread::spawn(std::thread::park);
    }
    report_and_block("ready");
}

/// Joins `count` times, and prints why the next join is refused.
fn refused_join(socket: &Path, count: usize) {
    let _programs: Vec<_> = (0..count).map(|_| FakeProgram::join_at(socket, "hostile")).collect();
    let connection = Connection::to(socket).unwrap();
    let hint_request = HintRequest::default();
    let join = Request::Join {
        protocol: PROTOCOL,
        version: "test".into(),
        name: None,
        hint_request,
        grant_token: None,
        memory_group: None,
    };
    connection.send(&join, None, true).unwrap();
    let reply = connection.receive::<Reply>(true).unwrap();
    let Some(Packet::Message(Reply::Refused { why }, _)) = reply else { panic!("{reply:?}") };
    report_and_block(&why);
}

/// Connects at most `count` times, and prints why a connection is refused.
fn connects(socket: &Path, count: usize) {
    let mut connections = Vec::new();
    for _ in 0..count {
        let connection = Connection::to(socket).unwrap();
        // The service handles the request, or has refused the connection.
        let _ = connection.send(&Request::SetOwn(HintRequest::default()), None, true);
        if let Ok(Some(Packet::Message(Reply::Refused { why }, _))) = connection.receive::<Reply>(true) {
            return report_and_block(&why);
        }
        connections.push(connection);
    }
    report_and_block("every connection was accepted");
}

/// A process of this test with a role, killed when dropped.
struct RoleProcess {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl RoleProcess {
    fn start(role: &str, count: usize, service: &RunningService, uid: Option<u32>) -> std::io::Result<Self> {
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["--exact", "role", "--nocapture", "--test-threads=1"])
            .env("HOSTILE_ROLE", role)
            .env("HOSTILE_COUNT", count.to_string())
            .env("XSCHED_SOCKET", service.socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(uid) = uid {
            command.uid(uid).gid(uid).current_dir("/");
        }
        let mut child = command.spawn()?;
        let output = BufReader::new(child.stdout.take().unwrap());
        Ok(Self { child, output })
    }

    /// A process of another user. None, and the test is skipped, if that is not possible.
    fn of_other_user(role: &str, count: usize, service: &RunningService) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            record_skipped("only root can become another user");
            return None;
        }
        let started = Self::start(role, count, service, Some(OTHER_USER));
        started
            .inspect_err(|why| record_skipped(&format!("the other user cannot execute this test: {why}")))
            .ok()
    }

    /// What the process prints.
    fn report(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "it exited before it was ready");
            // The test harness prints lines of its own, and the name of the test without a line end.
            if let Some((_, report)) = line.split_once("role: ") {
                return report.trim_end().to_owned();
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for RoleProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pid_of(service: &RunningService) -> Pid {
    Pid::from_raw(i32::try_from(service.pid()).unwrap()).unwrap()
}

fn is_stopped(service: &RunningService) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", service.pid())).unwrap();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

fn status_requests(service: &RunningService, count: usize) -> Vec<Connection> {
    let request = |_| {
        let connection = Connection::to(&service.socket()).unwrap();
        connection.send(&Request::Status, None, true).unwrap();
        connection
    };
    (0..count).map(request).collect()
}

/// Receives a whole status. Returns the handles of its queues.
fn receive_listing(connection: &Connection) -> Vec<u64> {
    let mut handles = Vec::new();
    loop {
        let packet = connection.receive::<Reply>(true).unwrap();
        let Some(Packet::Message(Reply::Status(part), _)) = packet else { panic!("{packet:?}") };
        handles.extend(part.queues.into_iter().map(|queue| queue.handle));
        if !part.more {
            return handles;
        }
    }
}

/// The largest resident set that the service has had, in bytes.
fn peak_memory(service: &RunningService) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", service.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

#[test]
fn listings_that_no_client_reads_use_no_memory() {
    let service = RunningService::new();
    let programs: Vec<_> = (0..12).map(|_| FakeProgram::join(&service, "queues")).collect();
    for program in &programs {
        for _ in 0..QUEUES {
            program.queue(8);
        }
    }
    let tool = ToolConnection::connect_to_first(vec![service.socket()]).unwrap();
    let all_queues = programs.len() * QUEUES;
    wait_until("all queues are listed", || tool.status().unwrap().queues.len() == all_queues);
    let listing = serde_json::to_vec(&tool.status().unwrap()).unwrap().len();
    let before = peak_memory(&service);
    let unread = status_requests(&service, 200);
    // The users' sessions take turns: those before this one have been sent as much as they accept.
    assert_eq!(tool.status().unwrap().queues.len(), all_queues);
    let growth = peak_memory(&service) - before;
    let requested = unread.len() * listing;
    println!("{growth} bytes for {requested} bytes that no client reads");
    assert!(growth < requested / 8, "{growth} bytes for {requested} bytes that no client reads");
    // A client that reads late gets the whole listing.
    let handles = receive_listing(&unread[0]);
    assert!(handles.is_sorted() && handles.len() == all_queues, "{}", handles.len());
}

#[test]
fn orders_are_written_before_listings_are_sent() {
    let service = RunningService::new();
    let program = FakeProgram::join(&service, "tasks");
    let (low, high) = (program.queue(8), program.queue(8));
    program.set_priority(low, -10);
    program.set_priority(high, 10);
    program.mark_busy(low);
    let tools = status_requests(&service, 100);
    for _ in 0..5 {
        // Their sessions exist, and they are idle.
        for tool in &tools {
            receive_listing(tool);
        }
        wait_until("the task runs", || !program.is_held(low));
        // The service is stopped meanwhile, so that it finds all requests at once, and the notification last.
        kill_process(pid_of(&service), Signal::STOP).unwrap();
        wait_until("the service is stopped", || is_stopped(&service));
        for tool in &tools {
            tool.send(&Request::Status, None, true).unwrap();
        }
        program.mark_busy(high);
        kill_process(pid_of(&service), Signal::CONT).unwrap();
        let mut replies: Vec<_> = tools.iter().map(|tool| PollFd::new(tool, PollFlags::IN)).collect();
        poll(&mut replies, None).unwrap();
        assert!(program.is_held(low), "a listing was sent before the order was written");
        program.mark_idle(high);
    }
}

#[test]
fn user_with_too_many_connections_is_refused() {
    if !rustix::process::geteuid().is_root() {
        record_skipped("only root can become another user");
        return;
    }
    let service = RunningService::with_config("[limits]\nmax_connections = 1\n");
    let as_other_user = |arguments: &[&str]| {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("xsched"));
        command
            .args(arguments)
            .env("XSCHED_SOCKET", service.socket())
            .uid(65_534)
            .gid(65_534)
            .current_dir("/");
        command.stdout(Stdio::null());
        command
    };
    let mut first = match as_other_user(&["top", "--once", "--interval", "60s"]).spawn() {
        Ok(first) => first,
        Err(error) => return record_skipped(&format!("the other user cannot execute xsched: {error}")),
    };
    let refused = || {
        let output = as_other_user(&["policy"]).stdout(Stdio::null()).output().unwrap();
        String::from_utf8_lossy(&output.stderr)
            .contains("user 65534 already has 1 connections to the service")
    };
    wait_until("the second connection is refused", || {
        // The connection below may have come first, so that the first program was refused.
        if first.try_wait().unwrap().is_some() {
            first = as_other_user(&["top", "--once", "--interval", "60s"]).spawn().unwrap();
        }
        refused()
    });
    let root = ToolConnection::connect_to_first(vec![service.socket()]).unwrap();
    assert!(root.status().is_ok(), "root has no such limit");
    first.kill().unwrap();
    first.wait().unwrap();
    wait_until("the next connection is accepted", || !refused());
}

#[test]
fn user_with_too_many_tracers_is_refused() {
    const MAX_TRACERS: usize = 16;
    let service = RunningService::new();
    let request = |connection: &Connection| {
        connection.send(&Request::Trace, None, true).unwrap();
        loop {
            match connection.receive::<Reply>(true).unwrap() {
                Some(Packet::Message(Reply::Events { .. }, _)) => {}
                Some(Packet::Message(reply, _)) => return reply,
                other => panic!("{other:?}"),
            }
        }
    };
    let connect = || Connection::to(&service.socket()).unwrap();
    let mut tracers: Vec<_> = std::iter::repeat_with(connect).take(MAX_TRACERS).collect();
    for tracer in &tracers {
        assert_eq!(request(tracer), Reply::Done);
    }
    assert_eq!(request(&tracers[0]), Reply::Done, "it traces already");
    let further = connect();
    let Reply::Refused { why } = request(&further) else { panic!("one tracer too many") };
    assert!(why.contains("user 0 already has 16 tracers") || !rustix::process::geteuid().is_root(), "{why}");
    tracers.pop();
    wait_until("the next tracer is accepted", || request(&further) == Reply::Done);
    // Users are limited separately.
    if let Some(mut other) = RoleProcess::of_other_user("traces", 1, &service) {
        assert_eq!(other.report(), "Done");
    }
}

/// How many times a process, or one thread of it, has called `read`.
fn reads(directory: &str) -> usize {
    let io = std::fs::read_to_string(format!("/proc/{directory}/io")).unwrap();
    let line = io.lines().find_map(|line| line.strip_prefix("syscr:")).unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn stopped_process_with_many_joins_and_threads_is_read_once_and_on_another_thread() {
    const COUNT: usize = 100;
    let service = RunningService::new();
    let mut hostile = RoleProcess::start("joins", COUNT, &service, None).unwrap();
    assert_eq!(hostile.report(), "ready");
    let program = FakeProgram::join(&service, "held");
    let queue = program.queue(8);
    program.mark_busy(queue);
    wait_until("the program is held", || program.is_held(queue));
    let (process, thread) = (format!("{}", service.pid()), format!("{0}/task/{0}", service.pid()));
    let (all, scheduling) = (reads(&process), reads(&thread));
    hostile.signal(Signal::STOP);
    wait_until("the program is held no more", || !program.is_held(queue));
    let (all, scheduling) = (reads(&process) - all, reads(&thread) - scheduling);
    println!("{all} reads, of the scheduling thread {scheduling}");
    assert!(all >= COUNT, "the service has read no threads");
    // One check that reads each of the threads for each of the joins takes more.
    assert!(all < COUNT * COUNT, "{all} reads");
    // It reads notifications. The reads of one check are those of all threads.
    assert!(2 * scheduling < all, "{scheduling} reads of the scheduling thread");
}

#[test]
fn orders_are_written_before_requests_of_processes_are_handled() {
    let service = RunningService::new();
    let program = FakeProgram::join(&service, "tasks");
    let (low, high) = (program.queue(8), program.queue(8));
    program.set_priority(low, -10);
    program.set_priority(high, 10);
    program.mark_busy(low);
    let others: Vec<_> = (0..100).map(|_| FakeProgram::join(&service, "hints")).collect();
    for priority in 1..=5 {
        wait_until("the task runs", || !program.is_held(low));
        // The service is stopped meanwhile, so that it finds all requests at once, and the notification last.
        kill_process(pid_of(&service), Signal::STOP).unwrap();
        wait_until("the service is stopped", || is_stopped(&service));
        let hint_request = HintRequest { priority: Some(priority), ..HintRequest::default() };
        for other in &others {
            other.connection.send(&Request::Hint(hint_request.clone()), None, true).unwrap();
        }
        program.mark_busy(high);
        kill_process(pid_of(&service), Signal::CONT).unwrap();
        let mut replies: Vec<_> =
            others.iter().map(|other| PollFd::new(&other.connection, PollFlags::IN)).collect();
        poll(&mut replies, None).unwrap();
        assert!(program.is_held(low), "a request was handled before the order was written");
        for other in &others {
            let reply = other.connection.receive::<Reply>(true).unwrap();
            assert!(matches!(reply, Some(Packet::Message(Reply::Done, _))), "{reply:?}");
        }
        program.mark_idle(high);
    }
}

#[test]
fn user_with_too_many_processes_is_refused() {
    let service = RunningService::with_config("[limits]\nmax_processes = 2\n");
    let Some(mut other) = RoleProcess::of_other_user("refused join", 2, &service) else { return };
    let why = other.report();
    assert!(why.contains("user 65534 already has 2 scheduled processes"), "{why}");
    // Root has no such limit.
    let _programs: Vec<_> = (0..3).map(|_| FakeProgram::join(&service, "root")).collect();
}

#[test]
fn queues_beyond_the_limit_of_their_user_are_not_scheduled() {
    let service = RunningService::with_config("[limits]\nmax_queues = 3\n");
    let Some(mut other) = RoleProcess::of_other_user("queues", 5, &service) else { return };
    other.report();
    let root = FakeProgram::join(&service, "root");
    for _ in 0..5 {
        root.queue(8);
    }
    let tool = ToolConnection::connect_to_first(vec![service.socket()]).unwrap();
    let queues_of = |pid: u32| tool.status().unwrap().queues.iter().filter(|queue| queue.pid == pid).count();
    wait_until("the queues of root are scheduled", || queues_of(std::process::id()) == 5);
    assert_eq!(queues_of(other.child.id()), 3);
}

#[test]
fn users_without_descriptors_left_do_not_keep_root_out() {
    let service = RunningService::with_descriptors(200);
    let Some(mut other) = RoleProcess::of_other_user("connects", 300, &service) else { return };
    let why = other.report();
    let root = ToolConnection::connect_to_first(vec![service.socket()]).unwrap();
    assert!(root.status().is_ok(), "root cannot use the service: {why}");
    assert!(why.contains("LimitNOFILE"), "{why}");
}

#[test]
fn connection_with_too_many_unread_replies_is_closed() {
    let service = RunningService::with_config("[limits]\nmax_unread_kib = 1\n");
    let programs: Vec<_> = (0..4).map(|_| FakeProgram::join(&service, "tasks")).collect();
    // Each queue is a task: it is the only one on its device.
    let mut devices = (1..).map(DeviceId);
    for program in &programs {
        for device in devices.by_ref().take(QUEUES) {
            program.queue_on(device, 8);
        }
    }
    let tool = ToolConnection::connect_to_first(vec![service.socket()]).unwrap();
    let all_tasks = programs.len() * QUEUES;
    wait_until("all tasks are listed", || tool.status().unwrap().tasks.len() == all_tasks);
    let connection = Connection::to(&service.socket()).unwrap();
    connection.send(&Request::Metrics, None, true).unwrap();
    // The replies are more than fits the socket. This connection reads none of them.
    wait_until("the service closes the connection", || {
        let mut polled = [PollFd::new(&connection, PollFlags::empty())];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        polled[0].revents().contains(PollFlags::HUP)
    });
    assert_eq!(tool.status().unwrap().tasks.len(), all_tasks, "other connections are not closed");
}

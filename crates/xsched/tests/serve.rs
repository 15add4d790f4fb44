//! `xsched serve` as a user starts and stops it.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod skipped;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use skipped::record_skipped;
use xsched_ipc::protocol::{Reply, Request};
use xsched_ipc::socket::{Connection, Packet};

fn xsched(socket: &Path) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("xsched"));
    command.arg("serve").arg("--socket").arg(socket).stderr(Stdio::piped());
    command
}

/// A service that is killed when dropped.
struct Service {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
}

impl Service {
    fn start(mut command: Command) -> (Self, String) {
        let mut child = command.spawn().unwrap();
        let mut service = Self { stderr: BufReader::new(child.stderr.take().unwrap()), child };
        let line = service.next_line();
        (service, line)
    }

    fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap(), signal).unwrap();
    }

    fn expect_success(&mut self) {
        assert!(self.child.wait().unwrap().success(), "{}", self.next_line());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn new_socket_path() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::Builder::new().prefix("xsched-serve").tempdir_in("/tmp").unwrap();
    let socket = directory.path().join("run/xsched/socket");
    (directory, socket)
}

/// The error line of a service that does not start.
fn start_error(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

fn pid_at(socket: &Path) -> u32 {
    let connection = Connection::to(socket).unwrap();
    connection.send(&Request::Status, None, true).unwrap();
    let Some(Packet::Message(Reply::Status(status), _)) = connection.receive(true).unwrap() else { panic!() };
    status.pid
}

#[test]
fn service_starts_and_removes_its_files_when_it_stops() {
    for signal in [Signal::TERM, Signal::INT] {
        let (_directory, socket) = new_socket_path();
        let mut command = xsched(&socket);
        command.args(["--policy", "fair"]);
        let (mut service, line) = Service::start(command);
        assert_eq!(line, format!("xsched: listening on {}, policy CFS (fair)", socket.display()));
        assert_eq!(pid_at(&socket), service.child.id());
        service.signal(signal);
        service.expect_success();
        assert_eq!(std::fs::read_dir(socket.parent().unwrap()).unwrap().count(), 0);
    }
}

#[test]
fn second_service_is_rejected_unless_it_replaces_the_first() {
    let (_directory, socket) = new_socket_path();
    let (mut first, _) = Service::start(xsched(&socket));
    let stderr = start_error(&mut xsched(&socket));
    assert!(stderr.contains("is already running at") && stderr.contains("--replace"), "{stderr}");
    let mut replace = xsched(&socket);
    replace.arg("--replace");
    let (second, _) = Service::start(replace);
    first.expect_success();
    assert_eq!(pid_at(&socket), second.child.id());
}

#[test]
fn service_starts_with_the_socket_of_a_killed_one() {
    let (_directory, socket) = new_socket_path();
    let (mut first, _) = Service::start(xsched(&socket));
    first.signal(Signal::KILL);
    first.child.wait().unwrap();
    assert!(socket.exists());
    let (second, line) = Service::start(xsched(&socket));
    assert!(line.contains("listening"), "{line}");
    assert_eq!(pid_at(&socket), second.child.id());
}

#[test]
fn start_errors_are_one_line_with_the_path() {
    let (directory, socket) = new_socket_path();
    let stderr = start_error(&mut xsched(Path::new("/proc/nowhere/socket")));
    assert!(stderr.contains("/proc/nowhere") && stderr.contains("--socket"), "{stderr}");
    let stderr = start_error(&mut xsched(&directory.path().join("x".repeat(120))));
    assert!(stderr.contains("the maximum is 107"), "{stderr}");
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let stderr = start_error(&mut xsched(&file));
    assert!(stderr.contains("is not a socket"), "{stderr}");
    let stderr = start_error(xsched(&socket).args(["--policy", "best"]));
    assert!(stderr.contains("unknown policy `best`: use one of"), "{stderr}");
    std::fs::write(&file, "[defaults]\npolicy = 3\n").unwrap();
    let stderr = start_error(xsched(&socket).arg("--config").arg(&file));
    assert!(stderr.contains("file:2:10: policy: "), "{stderr}");
    if rustix::process::geteuid().is_root() {
        record_skipped("part about a directory without write permission: root can write every directory");
    } else {
        let stderr = start_error(&mut xsched(Path::new("/usr/xsched-test/socket")));
        assert!(stderr.contains("/usr/xsched-test") && stderr.contains("as root"), "{stderr}");
    }
}

#[test]
fn idle_service_exits() {
    let (_directory, socket) = new_socket_path();
    let mut command = xsched(&socket);
    command.args(["--idle-exit", "2"]);
    let (mut service, _) = Service::start(command);
    let connection = Connection::to(&socket).unwrap();
    let deadline = Instant::now() + Duration::from_secs(3);
    while Instant::now() < deadline {
        assert!(service.child.try_wait().unwrap().is_none(), "the service exited with a client connected");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(connection);
    service.expect_success();
    assert!(!socket.exists());
}

/// A program may load for minutes between its start and its first queue.
#[test]
fn service_stays_for_a_program_without_queues() {
    let (_directory, socket) = new_socket_path();
    let mut command = xsched(&socket);
    command.args(["--idle-exit", "2"]);
    let (mut service, _) = Service::start(command);
    let mut run = Command::new(env!("CARGO_BIN_EXE_xsched"));
    run.args(["run", "--", "cat"]).env("XSCHED_SOCKET", &socket).stdin(Stdio::piped());
    let mut program = run.spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(4);
    while Instant::now() < deadline {
        assert!(service.child.try_wait().unwrap().is_none(), "the service exited before the first queue");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(program.stdin.take());
    program.wait().unwrap();
    service.expect_success();
}

#[test]
fn readiness_is_reported_to_the_service_manager() {
    let (directory, socket) = new_socket_path();
    let notify = directory.path().join("notify");
    let listener = std::os::unix::net::UnixDatagram::bind(&notify).unwrap();
    listener.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut command = xsched(&socket);
    command.arg("--quiet").env("NOTIFY_SOCKET", &notify);
    let service = Service { child: command.spawn().unwrap(), stderr: BufReader::new(empty_stderr()) };
    let mut text = [0; 64];
    let length = listener.recv(&mut text).unwrap();
    assert_eq!(&text[..length], b"READY=1");
    assert_eq!(pid_at(&socket), service.child.id());
}

/// The standard error of a process that prints nothing.
fn empty_stderr() -> std::process::ChildStderr {
    let mut child = Command::new("true").stderr(Stdio::piped()).spawn().unwrap();
    child.wait().unwrap();
    child.stderr.take().unwrap()
}

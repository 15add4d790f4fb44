//! `xsched serve` as a person starts and stops it.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
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
    said: BufReader<std::process::ChildStderr>,
}

impl Service {
    fn start(mut command: Command) -> (Self, String) {
        let mut child = command.spawn().unwrap();
        let mut service = Self { said: BufReader::new(child.stderr.take().unwrap()), child };
        let line = service.next_line();
        (service, line)
    }

    fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
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

fn place() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::Builder::new().prefix("xsched-serve").tempdir_in("/tmp").unwrap();
    let socket = directory.path().join("run/xsched/socket");
    (directory, socket)
}

/// What it says when it does not start.
fn complaint(command: &mut Command) -> String {
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
fn starts_where_nothing_is_and_leaves_nothing_behind() {
    for signal in [Signal::TERM, Signal::INT] {
        let (_directory, socket) = place();
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
fn a_second_service_says_what_to_do_and_takes_over_when_asked_to() {
    let (_directory, socket) = place();
    let (mut first, _) = Service::start(xsched(&socket));
    let said = complaint(&mut xsched(&socket));
    assert!(said.contains("is running at") && said.contains("--replace"), "{said}");
    let mut replace = xsched(&socket);
    replace.arg("--replace");
    let (second, _) = Service::start(replace);
    first.expect_success();
    assert_eq!(pid_at(&socket), second.child.id());
}

#[test]
fn what_a_killed_service_left_behind_is_no_obstacle() {
    let (_directory, socket) = place();
    let (mut first, _) = Service::start(xsched(&socket));
    first.signal(Signal::KILL);
    first.child.wait().unwrap();
    assert!(socket.exists());
    let (second, line) = Service::start(xsched(&socket));
    assert!(line.contains("listening"), "{line}");
    assert_eq!(pid_at(&socket), second.child.id());
}

#[test]
fn what_cannot_be_is_said_in_one_line_that_names_the_place() {
    let (directory, socket) = place();
    let said = complaint(&mut xsched(Path::new("/proc/nowhere/socket")));
    assert!(said.contains("/proc/nowhere") && said.contains("--socket"), "{said}");
    let said = complaint(&mut xsched(&directory.path().join("x".repeat(120))));
    assert!(said.contains("the system allows 107"), "{said}");
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let said = complaint(&mut xsched(&file));
    assert!(said.contains("is not a socket"), "{said}");
    let said = complaint(xsched(&socket).args(["--policy", "best"]));
    assert!(said.contains("unknown policy `best`: use one of"), "{said}");
    std::fs::write(&file, "[defaults]\npolicy = 3\n").unwrap();
    let said = complaint(xsched(&socket).arg("--config").arg(&file));
    assert!(said.contains("file:2:10: policy: "), "{said}");
    if rustix::process::geteuid().is_root() {
        println!("skipped for a directory that may not be written to: root may write everywhere");
    } else {
        let said = complaint(&mut xsched(Path::new("/usr/xsched-test/socket")));
        assert!(said.contains("/usr/xsched-test") && said.contains("as root"), "{said}");
    }
}

#[test]
fn a_service_that_nobody_uses_ends_by_itself() {
    let (_directory, socket) = place();
    let mut command = xsched(&socket);
    command.args(["--idle-exit", "2"]);
    let (mut service, _) = Service::start(command);
    let connection = Connection::to(&socket).unwrap();
    let patience = Instant::now() + Duration::from_secs(3);
    while Instant::now() < patience {
        assert!(service.child.try_wait().unwrap().is_none(), "it left a client behind");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(connection);
    service.expect_success();
    assert!(!socket.exists());
}

/// Between its start and its first queue a program may load for minutes.
#[test]
fn a_service_stays_for_a_program_that_has_not_come_to_its_device_yet() {
    let (_directory, socket) = place();
    let mut command = xsched(&socket);
    command.args(["--idle-exit", "2"]);
    let (mut service, _) = Service::start(command);
    let mut run = Command::new(env!("CARGO_BIN_EXE_xsched"));
    run.args(["run", "--", "cat"]).env("XSCHED_SOCKET", &socket).stdin(Stdio::piped());
    let mut program = run.spawn().unwrap();
    let patience = Instant::now() + Duration::from_secs(4);
    while Instant::now() < patience {
        assert!(service.child.try_wait().unwrap().is_none(), "it left before the program came");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(program.stdin.take());
    program.wait().unwrap();
    service.expect_success();
}

#[test]
fn readiness_is_told_to_who_started_it() {
    let (directory, socket) = place();
    let notify = directory.path().join("notify");
    let listener = std::os::unix::net::UnixDatagram::bind(&notify).unwrap();
    listener.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut command = xsched(&socket);
    command.arg("--quiet").env("NOTIFY_SOCKET", &notify);
    let service = Service { child: command.spawn().unwrap(), said: BufReader::new(placeholder()) };
    let mut text = [0; 64];
    let length = listener.recv(&mut text).unwrap();
    assert_eq!(&text[..length], b"READY=1");
    assert_eq!(pid_at(&socket), service.child.id());
}

/// The errors of a process that has none.
fn placeholder() -> std::process::ChildStderr {
    let mut child = Command::new("true").stderr(Stdio::piped()).spawn().unwrap();
    child.wait().unwrap();
    child.stderr.take().unwrap()
}

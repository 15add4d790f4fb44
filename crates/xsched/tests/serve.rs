//! `xsched serve` as a user starts and stops it.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod skipped;

use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use skipped::record_skipped;
use xsched_ipc::protocol::{Reply, Request, Status};
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

fn status_at(socket: &Path) -> Status {
    let connection = Connection::to(socket).unwrap();
    connection.send(&Request::Status, None, true).unwrap();
    let Some(Packet::Message(Reply::Status(status), _)) = connection.receive(true).unwrap() else { panic!() };
    status
}

fn pid_at(socket: &Path) -> u32 {
    status_at(socket).pid
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
fn hangup_reloads_the_configuration_and_an_invalid_one_changes_nothing() {
    let (directory, socket) = new_socket_path();
    let file = directory.path().join("config.toml");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write("[defaults]\npolicy = \"priority\"\n");
    let mut command = xsched(&socket);
    command.arg("--config").arg(&file);
    let (mut service, line) = Service::start(command);
    assert!(line.contains("policy HPF"), "{line}");

    write("[defaults]\npolicy = \"fair\"\n[http]\nmetrics_names = true\n");
    service.signal(Signal::HUP);
    assert_eq!(service.next_line(), "xsched: changes in [http] take effect after a restart of the service");
    assert!(service.next_line().ends_with(file.to_str().unwrap()));
    wait_for_policy(&socket, "CFS");

    write("[defaults]\npolicy = \"fiar\"\n");
    service.signal(Signal::HUP);
    let line = service.next_line();
    assert!(line.contains("the previous configuration stays in force"), "{line}");
    assert_eq!(policy_at(&socket), "CFS");
}

#[test]
fn policy_set_at_run_time_stays_unless_the_configuration_has_changed() {
    let (directory, socket) = new_socket_path();
    let file = directory.path().join("config.toml");
    std::fs::write(&file, "[limits]\nmax_priority = 0\n").unwrap();
    let mut command = xsched(&socket);
    command.arg("--config").arg(&file);
    let (mut service, _) = Service::start(command);
    let connection = Connection::to(&socket).unwrap();
    let fair = Request::Policy { name: Some("fair".into()), timeslice_us: None, k: None };
    connection.send(&fair, None, true).unwrap();
    let reply = connection.receive::<Reply>(true).unwrap();
    assert!(matches!(reply, Some(Packet::Message(Reply::Policy { .. }, _))));

    std::fs::write(&file, "[limits]\nmax_priority = 5\n").unwrap();
    service.signal(Signal::HUP);
    assert!(service.next_line().contains("configuration read again"));
    // The service was notified before that line, and applies new settings before it answers a tool.
    assert_eq!(policy_at(&socket), "CFS");
}

#[test]
fn config_reload_signals_the_service() {
    let (directory, socket) = new_socket_path();
    let file = directory.path().join("config.toml");
    std::fs::write(&file, "[defaults]\npolicy = \"fair\"\n").unwrap();
    let mut command = xsched(&socket);
    command.arg("--config").arg(&file);
    let (mut service, _) = Service::start(command);
    let mut reload = Command::new(assert_cmd::cargo::cargo_bin!("xsched"));
    let output = reload.args(["config", "reload"]).env("XSCHED_SOCKET", &socket).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(&format!("(process {})", service.child.id())), "{output:?}");
    assert!(service.next_line().contains("configuration read again"));
}

fn policy_at(socket: &Path) -> String {
    status_at(socket).policy
}

fn wait_for_policy(socket: &Path, name: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while policy_at(socket) != name {
        assert!(Instant::now() < deadline, "the policy did not become {name}");
        std::thread::sleep(Duration::from_millis(1));
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

/// A replacement creates its sockets as soon as the connection is closed: the old service must not remove those.
#[test]
fn sockets_are_removed_before_connections_are_closed() {
    let (_directory, socket) = new_socket_path();
    let metrics = socket.with_file_name("metrics.sock");
    for _ in 0..20 {
        let (mut service, _) = Service::start(xsched(&socket));
        assert!(metrics.exists());
        let connection = Connection::to(&socket).unwrap();
        connection.send(&Request::Stop, None, true).unwrap();
        while connection.receive::<Reply>(true).is_ok() {}
        assert!(!metrics.exists());
        service.expect_success();
    }
}

/// A process that listens in place of a service, and decides when a request to stop takes effect.
struct StandInService {
    listener: OwnedFd,
    socket: PathBuf,
}

impl StandInService {
    fn listen(socket: &Path) -> Self {
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let listener =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(socket).unwrap()).unwrap();
        listen(&listener, 8).unwrap();
        Self { listener, socket: socket.to_owned() }
    }

    /// Waits for the request to stop. The requesting process waits until the connection is closed.
    fn await_request_to_stop(&self) -> Connection {
        let connection = Connection::from_fd(accept_with(&self.listener, SocketFlags::CLOEXEC).unwrap());
        let request = connection.receive::<Request>(true).unwrap();
        assert!(matches!(request, Some(Packet::Message(Request::Stop, _))), "{request:?}");
        connection
    }

    fn release_socket(self) {
        std::fs::remove_file(&self.socket).unwrap();
    }
}

#[test]
fn service_that_appears_during_a_replacement_is_replaced_too() {
    let (_directory, socket) = new_socket_path();
    let old = StandInService::listen(&socket);
    let mut replace = xsched(&socket);
    replace.arg("--replace");
    let waiting = std::thread::spawn(|| Service::start(replace));
    let request = old.await_request_to_stop();
    old.release_socket();
    // As `xsched run` does when it finds no service at that moment.
    let (mut intruder, line) = Service::start(xsched(&socket));
    assert!(line.contains("listening"), "{line}");
    drop(request);
    let (successor, line) = waiting.join().unwrap();
    assert!(line.contains("listening"), "{line}");
    intruder.expect_success();
    assert_eq!(pid_at(&socket), successor.child.id());
}

#[test]
fn of_two_concurrent_replacements_the_second_gives_up() {
    let (_directory, socket) = new_socket_path();
    let old = StandInService::listen(&socket);
    let mut replace = xsched(&socket);
    replace.arg("--replace");
    let waiting = std::thread::spawn(|| Service::start(replace));
    let request = old.await_request_to_stop();
    let stderr = start_error(xsched(&socket).arg("--replace"));
    assert!(stderr.contains("another `xsched serve --replace` is replacing"), "{stderr}");
    old.release_socket();
    drop(request);
    let (successor, line) = waiting.join().unwrap();
    assert!(line.contains("listening"), "{line}");
    assert_eq!(pid_at(&socket), successor.child.id());
    // The lock of the replacement is released: the next one is possible.
    let mut again = xsched(&socket);
    again.arg("--replace");
    let (third, _) = Service::start(again);
    assert_eq!(pid_at(&socket), third.child.id());
}

#[test]
fn stopped_replacement_does_not_block_the_next_one() {
    let (_directory, socket) = new_socket_path();
    let old = StandInService::listen(&socket);
    let mut stopped = xsched(&socket).arg("--replace").spawn().unwrap();
    let request = old.await_request_to_stop();
    let pid = Pid::from_child(&stopped);
    kill_process(pid, Signal::STOP).unwrap();
    waitpid(Some(pid), WaitOptions::UNTRACED).unwrap();
    old.release_socket();
    drop(request);
    let mut replace = xsched(&socket);
    replace.arg("--replace");
    let (mut successor, line) = Service::start(replace);
    assert!(line.contains(&format!("process {})", stopped.id())) && line.contains("killed"), "{line}");
    assert!(!stopped.wait().unwrap().success());
    assert!(successor.next_line().contains("listening"));
    assert_eq!(pid_at(&socket), successor.child.id());
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
    std::fs::write(&file, "[http]\nmetrics = \"192.0.2.1:9400\"\n").unwrap();
    let stderr = start_error(xsched(&socket).arg("--config").arg(&file));
    assert!(
        stderr.contains("metrics in [http] 192.0.2.1:9400 can be reached from other machines"),
        "{stderr}"
    );
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

/// The scheduling thread makes a round for each: else the service would abort.
#[test]
fn signs_of_life_are_sent_to_a_service_manager_that_expects_them() {
    let (directory, socket) = new_socket_path();
    let notify = directory.path().join("notify");
    let listener = std::os::unix::net::UnixDatagram::bind(&notify).unwrap();
    listener.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut command = xsched(&socket);
    command.arg("--quiet").env("NOTIFY_SOCKET", &notify).env("WATCHDOG_USEC", "300000");
    let service = Service { child: command.spawn().unwrap(), stderr: BufReader::new(empty_stderr()) };
    for expected in ["READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"] {
        let mut text = [0; 64];
        let length = listener.recv(&mut text).unwrap();
        assert_eq!(&text[..length], expected.as_bytes());
    }
    assert_eq!(pid_at(&socket), service.child.id());
}

#[test]
fn service_that_fails_to_start_leaves_no_files() {
    let (_directory, socket) = new_socket_path();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = port.local_addr().unwrap().to_string();
    let stderr = start_error(xsched(&socket).args(["--metrics", &address]));
    assert!(stderr.contains("cannot listen at"), "{stderr}");
    assert_eq!(std::fs::read_dir(socket.parent().unwrap()).unwrap().count(), 0);
}

#[test]
fn directories_of_the_socket_do_not_depend_on_the_umask() {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    let (_directory, socket) = new_socket_path();
    let mut command = xsched(&socket);
    // SAFETY: the closure runs in the forked child and only makes one system call.
    unsafe {
        command.pre_exec(|| {
            libc::umask(0o077);
            Ok(())
        });
    }
    let (_service, _) = Service::start(command);
    let expected = if rustix::process::geteuid().is_root() { 0o755 } else { 0o700 };
    for directory in socket.ancestors().skip(1).take(2) {
        let mode = std::fs::metadata(directory).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, expected, "{}", directory.display());
    }
}

/// Any user could open the lock of an earlier version and keep it locked.
#[test]
fn service_starts_after_a_crash_though_another_program_has_locked_the_old_file() {
    let (_directory, socket) = new_socket_path();
    let (mut first, _) = Service::start(xsched(&socket));
    first.signal(Signal::KILL);
    first.child.wait().unwrap();
    let lock = socket.with_file_name("socket.lock");
    std::fs::set_permissions(&lock, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let theirs = std::fs::File::open(&lock).unwrap();
    rustix::fs::flock(&theirs, rustix::fs::FlockOperation::LockShared).unwrap();
    let (second, line) = Service::start(xsched(&socket));
    assert!(line.contains("listening"), "{line}");
    assert_eq!(pid_at(&socket), second.child.id());
    let start_again = start_error(&mut xsched(&socket));
    assert!(start_again.contains("is already running at"), "{start_again}");
}

/// A program that has run and exited is not waited for, and no descriptor of it stays.
#[test]
fn descriptors_of_expected_programs_are_closed_when_they_exit() {
    let (_directory, socket) = new_socket_path();
    let mut command = xsched(&socket);
    command.args(["--idle-exit", "600"]);
    let (service, _) = Service::start(command);
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", service.child.id())).unwrap().count();
    let before = descriptors();
    for _ in 0..5 {
        let mut run = Command::new(env!("CARGO_BIN_EXE_xsched"));
        run.args(["run", "--", "true"]).env("XSCHED_SOCKET", &socket);
        assert!(run.status().unwrap().success());
    }
    let deadline = Instant::now() + Duration::from_secs(30);
    while descriptors() > before {
        assert!(Instant::now() < deadline, "{} descriptors instead of {before}", descriptors());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The standard error of a process that prints nothing.
fn empty_stderr() -> std::process::ChildStderr {
    let mut child = Command::new("true").stderr(Stdio::piped()).spawn().unwrap();
    child.wait().unwrap();
    child.stderr.take().unwrap()
}

//! A service whose scheduling thread hangs, in a process of its own: the binary of this test, started again with a role.

use std::io::{BufRead as _, BufReader, Write as _, pipe};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use xsched_ipc::protocol::{Reply, Request};
use xsched_ipc::service::{Options, Service};
use xsched_ipc::socket::{Connection, SocketError};

/// Runs the service instead of the tests, if this process has that role.
#[test]
fn role() {
    let Some(socket) = std::env::var_os("WATCHDOG_TEST_SOCKET") else { return };
    let mut options = Options::at(PathBuf::from(socket));
    options.watchdog_timeout = Duration::from_secs(1);
    let service = Service::bind(options).unwrap();
    // SAFETY: the handler only calls `pause`, which is async-signal-safe, and never returns.
    unsafe { libc::signal(libc::SIGUSR1, hang as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    // SAFETY: returns the number of this thread.
    let scheduling_thread = unsafe { libc::pthread_self() };
    std::thread::spawn(move || {
        std::io::stdin().read_line(&mut String::new()).unwrap();
        // SAFETY: the thread exists: it runs the service until the process ends.
        unsafe { libc::pthread_kill(scheduling_thread, libc::SIGUSR1) };
    });
    println!("ready");
    service.run().unwrap();
}

extern "C" fn hang(_signal: libc::c_int) {
    loop {
        // SAFETY: has no preconditions.
        unsafe { libc::pause() };
    }
}

/// Waits up to 60 s until the service sends something or closes the connection.
fn wait_for_packet(connection: &Connection) {
    let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(connection, PollFlags::IN)], Some(&limit));
    assert_eq!(ready, Ok(1), "not within 60 s");
}

/// Has the service hang, whose messages go to `stderr`. Returns when it has aborted.
fn hang_until_abort(stderr: impl Into<Stdio>) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "role", "--nocapture", "--test-threads=1"])
        .env("WATCHDOG_TEST_SOCKET", &socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // The test harness prints lines of its own first.
    while !lines.next().unwrap().unwrap().ends_with("ready") {}
    let connection = Connection::to(&socket).unwrap();
    connection.send(&Request::Status, None, true).unwrap();
    wait_for_packet(&connection);
    connection.receive::<Reply>(true).unwrap();
    child.stdin.take().unwrap().write_all(b"hang\n").unwrap();
    wait_for_packet(&connection);
    assert!(matches!(connection.receive::<Reply>(true), Err(SocketError::Closed)));
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGABRT));
}

#[test]
fn service_that_makes_no_rounds_aborts_and_closes_its_connections() {
    let (reader, writer) = pipe().unwrap();
    hang_until_abort(writer);
    let error = std::io::read_to_string(reader).unwrap();
    assert!(error.contains("makes no rounds"), "{error}");
}

/// As after a restart of the system's log.
#[test]
fn service_that_makes_no_rounds_aborts_although_its_messages_have_no_reader() {
    hang_until_abort(pipe().unwrap().1);
}

#[test]
fn service_that_makes_no_rounds_aborts_although_its_messages_are_not_read() {
    let (_reader, mut writer) = pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while writer.write(&[0; 4_096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    hang_until_abort(writer);
}

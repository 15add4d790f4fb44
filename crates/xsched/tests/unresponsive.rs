//! A service that is stopped: the tools report it, programs run, and it can be replaced.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use environment::{TestEnvironment, wait_until};
use rustix::process::{Resource, Signal, getrlimit, kill_process, setrlimit};
use xsched_ipc::socket::{Connection, SocketError};

/// Fails the test if the command runs longer than this. Every tool has a deadline of its own, far below.
fn output(command: Command) -> Output {
    assert_cmd::Command::from_std(command).timeout(Duration::from_secs(60)).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Stops the service and connects until the kernel queues no more connections.
fn stop_service(env: &TestEnvironment) -> Vec<Connection> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    kill_process(env.service(), Signal::STOP).unwrap();
    let mut waiting = Vec::new();
    loop {
        match Connection::to_within(env.socket(), Duration::from_millis(50)) {
            Ok(connection) => waiting.push(connection),
            Err(SocketError::NotAccepted) => return waiting,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn tools_report_a_stopped_service_and_programs_run() {
    let env = TestEnvironment::with_service();
    let waiting = stop_service(&env);
    let pid = env.service().as_raw_nonzero();
    let found = format!("its process {pid} is stopped by a signal; replace it with `xsched serve --replace`");
    for arguments in [&["ps"][..], &["policy", "fair"], &["set", "1", "--priority", "0"]] {
        let output = output(env.xsched(arguments));
        let text = stderr(&output);
        assert!(
            !output.status.success() && text.contains("does not accept connections"),
            "{arguments:?}: {text}"
        );
        assert!(text.contains(&found) && text.lines().count() == 1, "{arguments:?}: {text}");
    }
    let doctor = output(env.xsched(&["doctor", "--json"]));
    let text = String::from_utf8_lossy(&doctor.stdout);
    assert!(!doctor.status.success() && text.contains("does not accept connections"), "{text}");
    let program = output(env.run(&[], &["sh", "-c", "echo done; exit 3"]));
    assert_eq!((program.stdout.as_slice(), program.status.code()), (&b"done\n"[..], Some(3)));
    let text = stderr(&program);
    assert!(text.contains("sh runs unscheduled until a service runs: the scheduler at"), "{text}");
    assert!(text.contains(&found) && text.lines().count() == 1, "{text}");
    // The kernel accepts a connection again, and the service does not read from it.
    drop(waiting);
    kill_process(env.service(), Signal::CONT).unwrap();
    wait_until("it replies", || output(env.xsched(&["policy"])).status.success());
    kill_process(env.service(), Signal::STOP).unwrap();
    let text = stderr(&output(env.xsched(&["ps"])));
    assert!(text.contains("does not reply") && text.contains(&found), "{text}");
}

#[test]
fn stopped_service_is_replaced() {
    let mut env = TestEnvironment::with_service();
    let _waiting = stop_service(&env);
    let stopped = env.service().as_raw_nonzero();
    let mut successor = env.spawn(env.xsched(&["serve", "--replace"]));
    let is_replaced = || Connection::to_within(env.socket(), Duration::from_millis(50)).is_ok();
    wait_until("the successor listens", is_replaced);
    assert_eq!(i64::from(env.status().pid), i64::from(successor.id()));
    env.stop_started_service();
    assert!(successor.wait().unwrap().success());
    let text = std::io::read_to_string(successor.stderr.take().unwrap()).unwrap();
    let killed = format!("the running service (process {stopped}) did not respond and was killed");
    assert!(text.contains(&killed), "{text}");
    env.kill_service();
}

/// A service that was stopped by a signal after it has locked its socket and before it listens.
#[test]
fn process_that_holds_the_lock_and_never_listens_is_replaced() {
    let env = TestEnvironment::without_service();
    let lock = env.socket().with_extension("lock");
    let script = r#"umask 077; exec 9<>"$0" && flock -n 9 && echo $$ >&9 && echo locked && exec sleep 1000"#;
    let mut holder =
        Command::new("sh").args(["-c", script]).arg(&lock).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "locked\n");
    let mut successor = env.spawn(env.xsched(&["serve", "--replace"]));
    wait_until("the successor listens", || Connection::to(env.socket()).is_ok());
    let ended = holder.try_wait().unwrap();
    assert_eq!(ended.and_then(|status| status.signal()), Some(Signal::KILL.as_raw()));
    env.stop_started_service();
    assert!(successor.wait().unwrap().success());
}

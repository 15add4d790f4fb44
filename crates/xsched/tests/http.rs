//! Metrics, the HTTP interface of the original C++ XSched and a trace, of a real service with a program that joined it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use assert_cmd::Command;
use assert_cmd::cargo::cargo_bin;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::{Value, json};
use xsched_ipc::protocol::{Reply, Settings};
use xsched_ipc::socket::Packet;

#[path = "common/live.rs"]
mod live;
#[path = "skipped/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod skipped;
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
fn level_that_the_device_lacks_is_rejected() {
    let service = RunningService::new();
    let program = program(&service);
    program.publish_levels(0, &[xsched_core::Level::Block, xsched_core::Level::Deactivate]);
    let without_window = |queue: &Value| queue["threshold"] == 0;
    let listed = queues(&service);
    let handle = listed.iter().find(|queue| without_window(queue)).unwrap()["handle"].as_u64().unwrap();
    let set = |level| json(service.http, "POST", &format!("/config/{handle:x}?level={level}"), "");
    assert_eq!(set(2), json!({ "info": "success" }));
    let error = set(3)["error"].as_str().unwrap().to_owned();
    assert!(error.contains("does not support level 3"), "{error}");
    // The levels of the other queue's device are not known: its program decides.
    let other = listed.iter().find(|queue| !without_window(queue)).unwrap()["handle"].as_u64().unwrap();
    let response = json(service.http, "POST", &format!("/config/{other:x}?level=3"), "");
    assert_eq!(response, json!({ "info": "success" }));
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
    xcli(&["list"]).assert().success().stdout(contains("| RDY  |  SUS  |").and(contains("| RDY  |  RUN  |")));
    xcli(&["policy", "-s", "-n", "SPUP"]).assert().success();
    xcli(&["policy", "-q"]).assert().success().stdout(contains("SPUP"));
    xcli(&["hint", "--pid", "1", "-p", "3"]).assert().failure().stderr(contains("pid 1"));
}

/// Runs as the program of another user, if the environment says so.
#[test]
fn role() {
    let Some(socket) = std::env::var_os("HTTP_TEST_SOCKET") else { return };
    let program = FakeProgram::join_at(&PathBuf::from(socket), "theirs");
    program.queue(0);
    println!("ready");
    // Until the test closes the pipe or kills this process.
    let _ = std::io::stdin().read(&mut [0]);
    std::process::exit(0);
}

/// The user of the other programs: any without an account.
const OTHER_USER: u32 = 54_321;

/// A program of another user.
struct OtherProgram(Child);

impl OtherProgram {
    fn start(service: &RunningService) -> std::io::Result<Self> {
        let mut command = std::process::Command::new(std::env::current_exe()?);
        command.args(["--exact", "role", "--nocapture"]).env("HTTP_TEST_SOCKET", service.socket());
        command.uid(OTHER_USER).gid(OTHER_USER).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("ready")), "it exited before it was ready");
        Ok(Self(child))
    }
}

impl Drop for OtherProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn requests_have_the_rights_of_the_user_who_sends_them() {
    if !rustix::process::geteuid().is_root() {
        return skipped::record_skipped("only root can become another user");
    }
    let service = RunningService::new();
    let links = tempfile::tempdir().unwrap();
    for path in [links.path().to_owned(), service.socket().parent().unwrap().to_owned()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let link = links.path().join("xcli");
    symlink(cargo_bin!("xsched"), &link).unwrap();
    let own = program(&service);
    let theirs = match OtherProgram::start(&service) {
        Ok(program) => program,
        Err(error) => {
            return skipped::record_skipped(&format!(
                "another user cannot start {:?}: {error}",
                std::env::current_exe()
            ));
        }
    };
    wait_until("the service knows all queues", || queues(&service).len() == 3);
    let (own_pid, their_pid) = (std::process::id().to_string(), theirs.0.id().to_string());
    let xcli = |uid: u32, arguments: &[&str]| {
        let mut command = std::process::Command::new(&link);
        command.uid(uid).gid(uid).args(["-p", &service.http.port().to_string()]).args(arguments);
        let output = command.output().unwrap();
        (
            output.status.success(),
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        )
    };
    // The original's client works as before for the programs of its own user, up to the limit.
    for arguments in [["hint", "--pid", &their_pid, "-p", "-3"], ["hint", "--pid", &their_pid, "-u", "30"]] {
        let (done, output) = xcli(OTHER_USER, &arguments);
        assert!(done, "{output}");
    }
    let handle_of = |pid: u32| {
        let queues = queues(&service);
        let queue = queues.iter().find(|queue| queue["pid"] == json!(pid)).unwrap();
        format!("{:x}", queue["handle"].as_u64().unwrap())
    };
    let (own_queue, their_queue) = (handle_of(std::process::id()), handle_of(theirs.0.id()));
    assert!(xcli(OTHER_USER, &["config", "-x", &their_queue, "-t", "4"]).0);
    let (_, list) = xcli(OTHER_USER, &["list"]);
    assert!(list.contains(&own_pid) && list.contains(&their_pid), "{list}");
    // The table has room for 60 characters of a command line.
    let own_name: String = std::env::args().next().unwrap().chars().take(60).collect();
    assert_eq!(list.matches(&own_name).count(), 1, "only their own command line is visible: {list}");
    for refused in [
        vec!["hint", "--pid", &own_pid, "-p", "-256"],
        vec!["hint", "-x", &own_queue, "-p", "-256"],
        vec!["hint", "--pid", &their_pid, "-p", "5"],
        vec!["hint", "-t", "500"],
        vec!["config", "-x", &own_queue, "-l", "1"],
        vec!["policy", "-s", "-n", "UP"],
    ] {
        let (done, output) = xcli(OTHER_USER, &refused);
        assert!(!done && output.contains("group `xsched`"), "{refused:?}: {output}");
    }
    // Root's rights are root's.
    let (_, list) = xcli(0, &["list"]);
    assert!(list.matches(&own_name).count() > 1, "{list}");
    for allowed in [vec!["hint", "--pid", &their_pid, "-p", "5"], vec!["policy", "-s", "-n", "UP"]] {
        let (done, output) = xcli(0, &allowed);
        assert!(done, "{output}");
    }
    drop(own);
}

#[test]
fn token_gives_the_rights_of_an_administrator() {
    if !rustix::process::geteuid().is_root() {
        return skipped::record_skipped("only root can become another user");
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // The service's file, and that of a user who was given the token.
    let [ours, theirs, wrong] = ["ours", "theirs", "wrong"].map(|name| directory.path().join(name));
    let secret = "0123456789abcdef".repeat(2);
    for (file, owner, text) in
        [(&ours, 0, &secret), (&theirs, OTHER_USER, &secret), (&wrong, OTHER_USER, &"x".repeat(32))]
    {
        std::fs::write(file, text).unwrap();
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::chown(file, Some(owner), None).unwrap();
    }
    let service = RunningService::with_config(&format!("[http]\ntoken_file = {ours:?}\n"));
    let link = directory.path().join("xcli");
    symlink(cargo_bin!("xsched"), &link).unwrap();
    let set_policy = |token: Option<&PathBuf>| {
        let mut command = std::process::Command::new(&link);
        command.uid(OTHER_USER).gid(OTHER_USER).args(["-p", &service.http.port().to_string()]);
        token.map(|file| command.arg("--token-file").arg(file));
        command.args(["policy", "-s", "-n", "UP"]).output().map(|output| output.status.success())
    };
    match set_policy(Some(&theirs)) {
        Ok(done) => assert!(done),
        Err(error) => {
            return skipped::record_skipped(&format!("another user cannot start {link:?}: {error}"));
        }
    }
    assert!(!set_policy(None).unwrap());
    assert!(!set_policy(Some(&wrong)).unwrap());
}

#[test]
fn metrics_show_names_to_their_owner_unless_configured() {
    if !rustix::process::geteuid().is_root() {
        return skipped::record_skipped("only root can become another user");
    }
    for (config, names) in [("", false), ("[http]\nmetrics_names = true\n", true)] {
        let service = RunningService::with_config(config);
        let program = program(&service);
        assert!(http_body(service.metrics, "GET", "/metrics", "").contains("name=\"serving"));
        // A client of another user.
        let mut client = std::process::Command::new("bash");
        let script = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{} && printf 'GET /metrics HTTP/1.1\\r\\n\\r\\n' >&3 && cat <&3",
            service.metrics.port()
        );
        client.args(["-c", &script]).uid(OTHER_USER).gid(OTHER_USER);
        let output = client.output().unwrap();
        let page = String::from_utf8_lossy(&output.stdout).into_owned();
        if page.is_empty() {
            return skipped::record_skipped(&format!(
                "bash cannot connect: {}",
                String::from_utf8_lossy(&output.stderr)
            ));
        }
        assert!(page.contains("xsched_task_info{"), "{page}");
        assert_eq!(page.contains("name=\"serving"), names, "{page}");
        drop(program);
    }
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
    let named = |name: &'static str| {
        trace["traceEvents"].as_array().unwrap().iter().filter(move |event| event["name"] == name)
    };
    let count = |kind: &str, name| named(name).filter(|event| event["cat"] == kind).count();
    for kind in ["task", "queue"] {
        assert_eq!((count(kind, "running"), count(kind, "held")), (3, 1), "{kind}: {trace:#}");
    }
    assert_eq!(named("preempted").count(), 1, "{trace:#}");
    assert!(count("scheduler", "round") > 0);
    assert!(
        named("process_name").map(|event| &event["args"]["name"]).any(|name| name == "serving \"it\""),
        "{trace:#}"
    );
}

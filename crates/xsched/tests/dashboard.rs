//! `xsched dashboard`: its requests and their limits, with a real service. `scripts/test_dashboard.py` tests the page in a browser.

#[path = "common/live.rs"]
mod live;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use assert_cmd::cargo::cargo_bin;
use live::{FakeProgram, RunningService, wait_until};
use serde_json::{Value, json};

/// A dashboard, ended when the test drops it.
struct Dashboard {
    child: Child,
    address: SocketAddr,
    token: String,
}

impl Dashboard {
    fn start(socket: &Path) -> Self {
        let mut child = Command::new(cargo_bin!("xsched"))
            .args(["dashboard", "--no-open"])
            .env("XSCHED_SOCKET", socket)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (address, token) = line.trim().strip_prefix("http://").unwrap().split_once("/#token=").unwrap();
        Self { child, address: address.parse().unwrap(), token: token.to_owned() }
    }

    /// Sends a request with these headers. Returns the status and the body.
    fn send(&self, method: &str, target: &str, headers: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let length = body.len();
        let head = format!("{method} {target} HTTP/1.1\r\n{headers}Content-Length: {length}\r\n\r\n");
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// The headers of the page.
    fn headers(&self) -> String {
        format!("Host: {}\r\nAuthorization: Bearer {}\r\n", self.address, self.token)
    }

    /// Sends a request of the page.
    fn request(&self, method: &str, target: &str, body: &Value) -> (u16, Value) {
        let (status, body) = self.send(method, target, &self.headers(), &body.to_string());
        (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")))
    }

    fn state(&self) -> Value {
        self.request("GET", "/api/state?events=1", &Value::Null).1
    }

    /// The state once the service has replied and a condition is true.
    fn state_when(&self, condition: &str, is_true: impl Fn(&Value) -> bool) -> Value {
        let mut state = Value::Null;
        wait_until(condition, || {
            state = self.state();
            state["service"] == "connected" && is_true(&state)
        });
        state
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a counter or gauge of the service is.
fn metric(service: &RunningService, name: &str) -> u64 {
    let mut stream = TcpStream::connect(service.metrics).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {}\r\n\r\n", service.metrics).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

/// What `xsched ps --json` prints.
fn ps(service: &RunningService) -> Value {
    let mut command = Command::new(cargo_bin!("xsched"));
    let output = command.args(["ps", "--json"]).env("XSCHED_SOCKET", service.socket()).output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn requests_without_the_token_and_of_other_pages_are_refused() {
    let service = RunningService::new();
    let dashboard = Dashboard::start(&service.socket());
    let (own, token) = (dashboard.address, &dashboard.token);
    let host = format!("Host: {own}\r\n");
    let bearer = format!("Authorization: Bearer {token}\r\n");
    let wrong = format!("Authorization: Bearer {}\r\n", "0".repeat(token.len()));
    for (headers, reason) in [
        (host.clone(), "the request has no token: open the address that `xsched dashboard` printed"),
        (format!("{host}{wrong}"), "the token is not that of this dashboard"),
        (format!("{host}Cookie: token={token}\r\n"), "the request has no token"),
        (format!("Host: evil.example\r\n{bearer}"), "does not name this machine"),
        (bearer.clone(), "does not name this machine"),
        (
            format!("{host}{bearer}Origin: http://evil.example\r\n"),
            "requests from other web pages are rejected",
        ),
        (
            format!("{host}{bearer}Origin: http://127.0.0.1:1\r\n"),
            "requests from other web pages are rejected",
        ),
    ] {
        for (method, target) in [("GET", "/api/state"), ("POST", "/api/task"), ("POST", "/api/policy")] {
            let (status, body) = dashboard.send(method, target, &headers, "{}");
            assert_eq!(status, 403, "{method} {target} {headers}");
            assert!(body.contains(reason), "{body}");
        }
    }
    assert_eq!(dashboard.send("GET", "/", &format!("{host}Origin: http://{own}\r\n"), "").0, 200);
    assert_eq!(dashboard.send("GET", "/", "Host: evil.example\r\n", "").0, 403);
    assert_eq!(
        dashboard.send("GET", "/api/state", &format!("{host}{bearer}Origin: http://{own}\r\n"), "").0,
        200
    );
    assert_eq!(dashboard.send("POST", "/", &host, "").0, 405);
    assert_eq!(dashboard.request("GET", "/api/none", &Value::Null).0, 404);
    assert_eq!(dashboard.request("GET", "/api/state?after=x", &Value::Null).0, 400);
}

#[test]
fn state_has_what_ps_prints_and_a_timeline() {
    let service = RunningService::new();
    let dashboard = Dashboard::start(&service.socket());
    let (high, low) = (FakeProgram::join(&service, "high"), FakeProgram::join(&service, "low"));
    let (first, second) = (high.queue(8), low.queue(8));
    high.set_priority(first, 100);
    low.mark_busy(second);
    dashboard.state_when("the recording has begun", |state| {
        state["status"]["tasks"].as_array().is_some_and(|tasks| tasks.len() == 2)
            && state["timeline"]["recording_since"].is_u64()
    });
    high.mark_busy(first);
    wait_until("low is held", || low.is_held(second));
    high.mark_idle(first);
    wait_until("low runs", || !low.is_held(second));

    let printed = ps(&service);
    // Both are in the process of this test, so they differ by their priorities only.
    let task = |priority: i64| {
        let tasks = printed["tasks"].as_array().unwrap();
        tasks.iter().find(|task| task["priority"] == priority).unwrap()["task"].clone()
    };
    let (high, low) = (task(100), task(0));
    let state = dashboard.state_when("low has waited", |state| {
        state["waits"].get(low.to_string()).is_some()
            && state["status"]["tasks"].as_array().unwrap().iter().any(|task| task["preemptions"] == 1)
    });
    for field in [
        "task",
        "pid",
        "uid",
        "name",
        "device",
        "priority",
        "share",
        "preemptions",
        "level",
        "device_name",
        "queues",
    ] {
        let of = |status: &Value| -> Vec<Value> {
            status["tasks"].as_array().unwrap().iter().map(|task| task[field].clone()).collect()
        };
        assert_eq!(of(&state["status"]), of(&ps(&service)), "{field}");
    }
    for field in ["version", "pid", "policy"] {
        assert_eq!(state["status"][field], printed[field], "{field}");
    }
    assert_eq!(state["policy"]["name"], "HPF");
    assert_eq!(state["devices"][0]["name"], "gpu 0000:00:06.0");
    // Low ran and was preempted, high ran, low was held until high was idle.
    let spans = state["timeline"]["spans"].as_array().unwrap();
    let has = |task: &Value, code: u64, preempted: u64| {
        spans.iter().any(|span| span[0] == *task && span[1] == code && span[4] == preempted)
    };
    assert!(has(&low, 0, 1) && has(&high, 0, 0) && has(&low, 1, 0), "{spans:?}");
    assert_eq!(state["waits"][low.to_string()]["count"], 1);
    let after = state["timeline"]["sequence"].as_u64().unwrap();
    let rest = dashboard.request("GET", &format!("/api/state?after={after}"), &Value::Null).1;
    assert_eq!(rest["timeline"]["spans"], json!([]), "each span is sent once");
}

#[test]
fn tasks_and_the_policy_are_changed() {
    let service = RunningService::new();
    let dashboard = Dashboard::start(&service.socket());
    let program = FakeProgram::join(&service, "program");
    let (common, own) = (program.queue(8), program.queue(8));
    program.set_priority(own, 3);
    let has_tasks = |state: &Value| state["status"]["tasks"].as_array().is_some_and(|tasks| tasks.len() == 2);
    let state = dashboard.state_when("both tasks are there", has_tasks);
    let (pid, tasks) = (state["status"]["pid"].clone(), state["status"]["tasks"].as_array().unwrap().clone());
    let number = |is_own: bool| tasks.iter().find(|task| task["own"] == is_own).unwrap()["task"].clone();
    let change = |fields: Value| {
        let mut body = json!({ "service": pid });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        dashboard.request("POST", "/api/task", &body)
    };
    let field = |is_own: bool, name: &str| {
        let status = ps(&service);
        let tasks = status["tasks"].as_array().unwrap();
        tasks.iter().find(|task| task["own"] == is_own).unwrap()[name].clone()
    };

    assert_eq!(
        change(json!({ "task": number(false), "priority": -9, "share": 40 })),
        (200, json!({ "done": true }))
    );
    assert_eq!((field(false, "priority"), field(false, "share")), (json!(-9), json!(40)));
    assert_eq!(field(true, "priority"), 3, "a queue with hints of its own is not changed with its process");
    assert_eq!(change(json!({ "task": number(true), "priority": 55 })).0, 200);
    assert_eq!((field(true, "priority"), field(false, "priority")), (json!(55), json!(-9)));
    dashboard.state_when("the state has the change at once", |state| {
        state["status"]["tasks"].as_array().unwrap().iter().any(|task| task["priority"] == 55)
    });
    program.mark_busy(common);
    assert_eq!(change(json!({ "task": number(false), "suspended": true })).0, 200);
    assert_eq!(field(false, "state"), "suspended");
    assert_eq!(change(json!({ "task": number(false), "suspended": false })).0, 200);
    assert_eq!(field(false, "state"), "running");

    let (status, body) = change(json!({ "task": number(false), "priority": 900 }));
    assert_eq!(status, 400);
    assert!(body["error"].as_str().unwrap().contains("priority 900 is out of range"), "{body}");
    assert_eq!(change(json!({ "task": 999, "priority": 1 })).0, 409);
    let other = json!({ "service": 1, "task": number(false), "priority": 1 });
    assert_eq!(dashboard.request("POST", "/api/task", &other).0, 409, "task numbers belong to one service");
    assert_eq!(change(json!({ "task": number(false), "priorty": 1 })).0, 400);
    assert_eq!(change(json!({ "task": "1" })).0, 400);
    assert_eq!(field(false, "priority"), -9);

    assert_eq!(dashboard.request("POST", "/api/policy", &json!({ "name": "UP" })).0, 200);
    assert_eq!(ps(&service)["policy"], "UP");
    assert_eq!(dashboard.request("POST", "/api/policy", &json!({ "name": "none" })).0, 400);
    assert_eq!(dashboard.request("POST", "/api/grant", &json!({ "name": "none", "suspended": true })).0, 400);
    assert_eq!(dashboard.request("GET", "/api/policy", &Value::Null).0, 405);
}

#[test]
fn many_requests_do_not_reach_the_service() {
    const THREADS: u64 = 8;
    const REQUESTS: u64 = 500;
    let service = RunningService::new();
    let dashboard = Dashboard::start(&service.socket());
    dashboard.state_when("the service is connected", |_| true);
    let before = metric(&service, "xsched_requests_total");
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..REQUESTS / 2 {
                    assert_eq!(dashboard.request("GET", "/api/state", &Value::Null).0, 200);
                    let (status, _) =
                        dashboard.send("GET", "/api/state", &format!("Host: {}\r\n", dashboard.address), "");
                    assert_eq!(status, 403);
                }
            });
        }
    });
    let reached = metric(&service, "xsched_requests_total") - before;
    assert!(reached < THREADS * REQUESTS / 10, "{reached} requests reached the service");

    // Changes reach the service, so they are limited: a burst of 20, then 20 in a second.
    let change = || dashboard.request("POST", "/api/policy", &json!({ "name": "HPF" }));
    let responses: Vec<_> = (0..200).map(|_| change()).collect();
    let refused = responses.iter().filter(|(status, _)| *status == 429).count();
    assert!(refused > 0 && responses.iter().all(|(status, _)| [200, 429].contains(status)), "{responses:?}");
    let carried_out = metric(&service, "xsched_policy_changes_total");
    assert!(carried_out <= 200 - refused as u64, "{carried_out} of 200, {refused} refused");
}

#[test]
fn dashboard_without_a_page_has_no_connection_to_the_service() {
    let service = RunningService::new();
    let open = || metric(&service, "xsched_connections_open");
    let before = open();
    let dashboard = Dashboard::start(&service.socket());
    dashboard.state_when("events are recorded", |state| state["timeline"]["recording_since"].is_u64());
    assert!(open() > before, "a page is open");
    // The last request of the page was the one above.
    wait_until("the dashboard has closed its connections", || open() == before);
    dashboard.state_when("a page is open again", |_| open() > before);
}

#[test]
fn page_without_events_makes_the_service_record_none() {
    let service = RunningService::new();
    let dashboard = Dashboard::start(&service.socket());
    let program = FakeProgram::join(&service, "program");
    let slot = program.queue(8);
    let mut state = Value::Null;
    wait_until("the task is there", || {
        state = dashboard.request("GET", "/api/state", &Value::Null).1;
        state["status"]["tasks"].as_array().is_some_and(|tasks| tasks.len() == 1)
    });
    program.mark_busy(slot);
    wait_until("the utilization is known", || {
        state = dashboard.request("GET", "/api/state", &Value::Null).1;
        state["timeline"]["samples"]
            .as_array()
            .is_some_and(|samples| samples.iter().any(|sample| sample[2] != json!([])))
    });
    assert_eq!(state["timeline"]["recording_since"], Value::Null);
    assert_eq!(state["timeline"]["spans"], json!([]));
}

#[test]
fn missing_service_is_reported_and_found_when_it_runs() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let dashboard = Dashboard::start(&socket);
    let mut state = Value::Null;
    wait_until("the dashboard reports the missing service", || {
        state = dashboard.state();
        state["service"] == "disconnected"
    });
    let error = state["error"].as_str().unwrap();
    assert!(error.contains("no scheduler is running") && error.contains("xsched serve"), "{error}");
    assert_eq!(dashboard.request("POST", "/api/policy", &json!({ "name": "UP" })).0, 503);
    let mut serve = Command::new(cargo_bin!("xsched"));
    let mut service = serve.args(["serve", "--quiet", "--socket"]).arg(&socket).spawn().unwrap();
    dashboard.state_when("the service runs", |_| true);
    service.kill().unwrap();
    service.wait().unwrap();
    wait_until("the dashboard reports that the service has gone", || {
        dashboard.state()["service"] == "disconnected"
    });
}

#[test]
fn port_in_use_is_an_error_of_the_command_line() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let mut command = Command::new(cargo_bin!("xsched"));
    let output = command.args(["dashboard", "--no-open", "--port", &port]).output().unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains(&format!("cannot listen at 127.0.0.1:{port} (--port)")), "{error}");
}

#[test]
fn unix_socket_is_for_its_user_only_and_removed_at_the_end() {
    let service = RunningService::new();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dashboard");
    let start = || {
        let mut command = Command::new(cargo_bin!("xsched"));
        command.args(["dashboard", "--unix"]).arg(&path).env("XSCHED_SOCKET", service.socket());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    // A socket that a killed dashboard has left is replaced.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let mut dashboard = start();
    let mut url = String::new();
    BufReader::new(dashboard.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let token = url.trim().split_once("/#token=").unwrap().1;
    let metadata = std::fs::metadata(&path).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);

    let get = |headers: &str| {
        let mut stream = UnixStream::connect(&path).unwrap();
        write!(stream, "GET /api/state HTTP/1.1\r\nHost: localhost:8080\r\n{headers}\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    };
    assert!(get("").starts_with("HTTP/1.1 403 "));
    let bearer = format!("Authorization: Bearer {token}\r\n");
    wait_until("the service is connected", || get(&bearer).contains("\"service\":\"connected\""));

    let second = start().wait_with_output().unwrap();
    assert!(!second.status.success());
    let error = String::from_utf8_lossy(&second.stderr);
    assert!(error.contains("another program listens there: choose another path"), "{error}");

    // SAFETY: passes two numbers; the child is not reaped yet.
    unsafe { libc::kill(dashboard.id().try_into().unwrap(), libc::SIGTERM) };
    assert!(dashboard.wait().unwrap().success());
    assert!(!path.exists());
    std::fs::write(&path, "a file of the user").unwrap();
    let third = start().wait_with_output().unwrap();
    assert!(!third.status.success());
    let error = String::from_utf8_lossy(&third.stderr);
    assert!(error.contains("it is a file, and no socket"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file of the user");
}

//! `xserver` and `xcli`, as scripts for the original C++ XSched call them.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::thread;

use assert_cmd::Command;
use assert_cmd::cargo::cargo_bin;
use predicates::str::{contains, diff, starts_with};

/// Replies like the HTTP server of the original C++ XSched, and stores the requests.
struct FakeServer {
    port: u16,
    requests: Arc<Mutex<Vec<String>>>,
    links: tempfile::TempDir,
}

const QUEUES: &str = r#"{"xqueues":[{"handle":127,"device":8589934640,"level":1,"pid":12,"threshold":16,
    "batch_size":8,"ready":true,"suspended":false}],"processes":[{"pid":12,"cmdline":"train"}]}"#;

impl FakeServer {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let received = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut lines = Vec::new();
                let mut length = 0;
                for line in reader.by_ref().lines() {
                    let line = line.unwrap();
                    if line.is_empty() {
                        break;
                    }
                    length = line.strip_prefix("Content-Length: ").map_or(length, |n| n.parse().unwrap());
                    lines.push(line);
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let request = lines[0].trim_end_matches(" HTTP/1.1");
                let (status, reply) = match request {
                    "GET /xqueues" => (200, QUEUES),
                    "GET /policy" => (200, r#"{"policy":4}"#),
                    "POST /config/7?level=1" => (404, r#"{"error":"no such queue"}"#),
                    _ => (200, r#"{"info":"success"}"#),
                };
                let body = String::from_utf8(body).unwrap();
                received.lock().unwrap().push(format!("{request} {body}").trim_end().to_owned());
                let length = reply.len();
                let _ = write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n\r\n{reply}");
            }
        });
        let links = tempfile::tempdir().unwrap();
        for name in ["xcli", "xserver"] {
            symlink(cargo_bin!("xsched"), links.path().join(name)).unwrap();
        }
        Self { port, requests, links }
    }

    fn xcli(&self, arguments: &str) -> Command {
        let mut command = Command::new(self.links.path().join("xcli"));
        command.args(["-p", &self.port.to_string()]).args(arguments.split(' '));
        command
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

#[test]
fn list_prints_a_table() {
    let server = FakeServer::new();
    server.xcli("list").assert().success().stdout(diff(
        "+-----+------------------+--------+------+-------+----+-------+\n\
         | PID |       DEV        | XQUEUE | STAT | SCHED | LV |  CMD  |\n\
         +-----+------------------+--------+------+-------+----+-------+\n\
         | 12  | GPU(0x200000030) |  0x7f  | RDY  |  RUN  | 1  | train |\n\
         +-----+------------------+--------+------+-------+----+-------+\n",
    ));
    assert_eq!(server.requests(), ["GET /xqueues"]);
}

#[test]
fn commands_send_the_requests_of_the_original() {
    let server = FakeServer::new();
    for (arguments, requests, printed) in [
        (
            "config -x 7f -l 1 -t 16 -b 8",
            vec!["POST /config/7f?level=1&threshold=16&batch_size=8", "GET /xqueues"],
            "Config of XQueue (0x7f) set to level: 1, command threshold: 16, command batch size: 8\n",
        ),
        (
            "config -x 0x7f -t 4",
            vec!["POST /config/7f?threshold=4", "GET /xqueues"],
            "Config of XQueue (0x7f) set to level: 0, command threshold: 4, command batch size: -1\n",
        ),
        ("policy -s -n SPUP", vec!["POST /policy?policy=6"], "Policy set to SPUP\n"),
        (
            "hint -x 7f -p -3",
            vec![r#"POST /hint {"handle":127,"hint_type":1,"priority":-3}"#],
            "Priority of XQueue 0x7f set to -3\n",
        ),
        (
            "hint --pid 12 -u 30 -t 500",
            vec![
                r#"POST /hint {"hint_type":2,"pid":12,"utilization":30}"#,
                r#"POST /hint {"hint_type":3,"pid":12,"timeslice":500}"#,
            ],
            "Utilization of process 12 set to 30\nTimeslice set to 500us\n",
        ),
    ] {
        server.xcli(arguments).assert().success().stdout(starts_with(printed));
        assert_eq!(server.requests(), requests, "{arguments}");
    }
    let policies = starts_with("Current policy: \n  UP\nAvailable policies: \n  HPF\n");
    server.xcli("policy -q").assert().success().stdout(policies);
}

#[test]
fn failures_are_printed_with_the_reason_of_the_server() {
    let server = FakeServer::new();
    server.xcli("config -x 7 -l 1").assert().failure().stderr(diff("xcli: no such queue\n"));
    server.xcli("policy -s -n nonsense").assert().failure().stderr(contains("unknown policy `nonsense`"));
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut unconnected = Command::new(server.links.path().join("xcli"));
    let stdout = contains(format!("xserver at 127.0.0.1:{closed}: cannot connect (is it running?)"));
    unconnected
        .args(["-a", "127.0.0.1", "-p", &closed.to_string(), "list"])
        .assert()
        .failure()
        .stderr(stdout);
}

#[test]
fn top_runs_until_the_pipe_closes() {
    let server = FakeServer::new();
    let mut child = std::process::Command::new(server.links.path().join("xcli"))
        .args(["-p", &server.port.to_string(), "top", "-f", "100"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let frames = lines.map(Result::unwrap).filter(|line| line.starts_with("| PID |")).take(3).count();
    assert_eq!(frames, 3);
    assert!(child.wait().unwrap().success(), "a closed pipe is not a failure");
}

#[test]
fn xserver_rejects_unknown_arguments() {
    let server = FakeServer::new();
    let xserver = || Command::new(server.links.path().join("xserver"));
    xserver().arg("nonsense").assert().code(2).stderr(contains("unknown policy `nonsense`"));
    xserver().args(["HPF", "port"]).assert().code(2);
    xserver().arg("HPF").assert().code(2).stderr(contains("<PORT>"));
}

/// A process, killed when dropped.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn xserver_serves_xcli() {
    let server = FakeServer::new();
    let directory = server.links.path();
    // A port that was free when it was bound.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let mut child = std::process::Command::new(directory.join("xserver"))
        .args(["mlfq", &port])
        .env("XSCHED_SOCKET", directory.join("socket"))
        .env("XDG_CONFIG_HOME", directory)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let _running = Running(child);
    assert!(stdout.any(|line| line.contains("listening on")), "xserver does not listen");
    let xcli = |arguments: &[&str]| {
        let mut command = Command::new(directory.join("xcli"));
        command.args(["-p", &port]).args(arguments);
        command
    };
    xcli(&["policy", "-q"]).assert().success().stdout(starts_with("Current policy: \n  MLFQ\n"));
    xcli(&["list"]).assert().success().stdout(contains("XQUEUE"));
}

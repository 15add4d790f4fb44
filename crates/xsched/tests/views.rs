//! `ps`, `set`, `policy`, `top --once` and `doctor` as users run them, with a stand-in for the service.

#[path = "common/fake_service.rs"]
mod fake_service;

use std::io::{BufRead as _, BufReader};
use std::process::{Command as Process, Stdio};
use std::sync::Mutex;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use xsched_ipc::protocol::{HintRequest, QueueStatus, Reply, Request, Status, Target, TaskState, TaskStatus};

use fake_service::FakeService;

fn xsched(service: &FakeService) -> Command {
    let mut command = without_service();
    command.env("XSCHED_SOCKET", service.socket());
    command
}

fn without_service() -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("xsched"));
    command.env("XSCHED_SOCKET", "/nowhere/socket").env("LC_ALL", "C.UTF-8").env_remove("COLUMNS");
    command
}

/// A service that rejects unexpected requests and stores changes. Each request for the status advances its clock by 1 s.
fn service() -> FakeService {
    let state = Mutex::new(FakeState {
        status_requests: 0,
        priority: -100,
        state: TaskState::Held,
        policy: "HPF".into(),
    });
    FakeService::new(move |request| state.lock().unwrap().reply(request))
}

struct FakeState {
    status_requests: u64,
    priority: i16,
    state: TaskState,
    policy: String,
}

impl FakeState {
    fn reply(&mut self, request: &Request) -> Vec<Reply> {
        match request {
            Request::Status => self.status(),
            Request::Set { target, hint_request } if is_train(target) => match hint_request.priority {
                Some(priority) if priority > 0 => reject("raising above normal is for the group xsched"),
                priority => {
                    self.priority = priority.map_or(self.priority, |n| i16::try_from(n).unwrap());
                    vec![Reply::Done]
                }
            },
            Request::Suspend(target) if is_train(target) => {
                self.state = TaskState::Suspended;
                vec![Reply::Done]
            }
            Request::Resume(target) if is_train(target) => vec![Reply::Done],
            Request::Set { .. } => reject("there is no such program here"),
            Request::Policy { name, timeslice_us, .. } => {
                self.policy = name.clone().unwrap_or(self.policy.clone());
                let timeslice_us = u64::try_from(timeslice_us.unwrap_or(5_000)).unwrap();
                vec![Reply::Policy { name: self.policy.clone(), timeslice_us, k: 1 }]
            }
            request => reject(&format!("not expected: {request:?}")),
        }
    }

    /// Two packets, as for a long list.
    fn status(&mut self) -> Vec<Reply> {
        self.status_requests += 1;
        let seconds = self.status_requests;
        let second = 1_000_000_000;
        let device = 0x2_0000_0030;
        let serve = TaskStatus {
            task: 1,
            pid: 41,
            name: "serve".into(),
            cmdline: "python serve.py --port 80".into(),
            device,
            priority: 100,
            share: 100,
            state: TaskState::Running,
            launches: seconds * 20_000,
            used_ns: seconds * second / 4 * 3,
            preemptions: 0,
            wait_p99_us: Some(180),
            ..TaskStatus::default()
        };
        let train = TaskStatus {
            task: 2,
            pid: 42,
            name: "train".into(),
            cmdline: "python train.py".into(),
            priority: self.priority,
            state: self.state,
            launches: seconds * 100,
            used_ns: seconds * second / 4,
            held_ns: seconds * second / 2,
            preemptions: seconds * 12,
            wait_p99_us: None,
            ..serve.clone()
        };
        let first = Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: 7,
            policy: self.policy.clone(),
            now_ns: seconds * second,
            rounds: seconds * 812,
            tasks: vec![train],
            queues: vec![QueueStatus { task: 2, pid: 42, device, level: 3, ..QueueStatus::default() }],
            more: true,
            ..Status::default()
        };
        let rest = Status { tasks: vec![serve], more: false, ..first.clone() };
        vec![Reply::Status(first), Reply::Status(rest)]
    }
}

fn is_train(target: &Target) -> bool {
    *target == Target::Pid(42) || *target == Target::Name("train".into())
}

fn reject(why: &str) -> Vec<Reply> {
    vec![Reply::Refused { why: why.into() }]
}

fn set(hint_request: HintRequest) -> Request {
    Request::Set { target: Target::Name("train".into()), hint_request }
}

#[test]
fn ps_lists_the_tasks_of_all_packets_with_their_rates() {
    let expected = "\
PID NAME  DEVICE       LEVEL PRIO STATE   UTIL LAUNCH/S HELD PREEMPT P99 WAIT
 41 serve 0000:00:06.0     -  100 running  75%    20.0k   0%       0    180us
 42 train 0000:00:06.0     3 -100 held     25%      100  50%      24        -
";
    xsched(&service()).args(["ps", "--sample", "1ms"]).assert().success().stdout(expected);
    xsched(&service())
        .args(["ps", "--sample", "1ms", "--wide"])
        .assert()
        .success()
        .stdout(contains("python serve.py --port 80").and(contains("COMMAND")));
}

#[test]
fn ps_lists_the_tasks_that_are_asked_for() {
    let listed = |options: &[&str]| {
        let output = xsched(&service()).args(["ps", "--sample", "1ms"]).args(options).assert().success();
        String::from_utf8(output.get_output().stdout.clone()).unwrap()
    };
    assert!(listed(&["--user", "12345"]).starts_with("none of the 2 tasks matches"));
    assert!(listed(&["--device", "07.0"]).starts_with("none of the 2 tasks matches"));
    let by_use = listed(&["--device", "06.0", "--user", "0", "--sort", "held"]);
    assert!(by_use.find("train") < by_use.find("serve"), "{by_use}");
    xsched(&service())
        .args(["ps", "--user", "no-such-user"])
        .assert()
        .failure()
        .stderr(contains("does not exist"));
}

#[test]
fn top_prints_one_json_object_per_interval_until_the_pipe_is_closed() {
    let service = service();
    let mut command = Process::new(assert_cmd::cargo::cargo_bin!("xsched"));
    command.args(["top", "--json", "--interval", "50ms"]).env("XSCHED_SOCKET", service.socket());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(3);
    let samples: Vec<serde_json::Value> =
        lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    assert!(samples.iter().all(|sample| sample["tasks"][0]["rates"]["utilization"] == 0.75), "{samples:?}");
    assert!(samples[0]["now_ns"].as_u64() < samples[2]["now_ns"].as_u64());
    assert!(child.wait().unwrap().success(), "the reader has closed the pipe");
}

#[test]
fn rates_do_not_depend_on_which_tasks_are_shown() {
    let requests = Mutex::new(0);
    let service = FakeService::new(move |_| {
        let mut requests = requests.lock().unwrap();
        *requests += 1;
        let task = |task, uid| TaskStatus { task, uid, device: 0x2_0000_0030, ..TaskStatus::default() };
        let now_ns = *requests * 1_000_000;
        vec![Reply::Status(Status { now_ns, tasks: vec![task(1, 0), task(2, 12_345)], ..Status::default() })]
    });
    for args in [&["ps", "--sample", "1ms"][..], &["top", "--once", "-i", "50ms"]] {
        let output = xsched(&service).args(args).args(["--json", "--user", "12345"]).assert().success();
        let json: serde_json::Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
        assert_eq!(json["tasks"].as_array().unwrap().len(), 1, "{args:?}");
        // Launches are not counted for a task alone on its device: this one is not.
        assert_eq!(json["tasks"][0]["rates"]["launches_per_s"], 0.0, "{args:?}");
    }
}

#[test]
fn ps_prints_json_with_the_rates_inside_the_tasks() {
    let output = xsched(&service()).args(["ps", "--json", "--sample", "1ms"]).assert().success();
    let json: serde_json::Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(json["policy"], "HPF");
    assert_eq!(json["tasks"][0]["pid"], 41);
    assert_eq!(json["tasks"][0]["rates"]["utilization"], 0.75);
    assert_eq!(json["tasks"][1]["rates"]["launches_per_s"], 100.0);
    assert_eq!(
        (&json["tasks"][1]["level"], &json["tasks"][1]["device_name"]),
        (&3.into(), &"0000:00:06.0".into())
    );
    let device =
        serde_json::json!({"index": 0, "device": json["tasks"][1]["device"], "address": "0000:00:06.0"});
    let devices = json["devices"].as_array().unwrap();
    assert_eq!((devices.len(), &devices[0]["address"]), (1, &device["address"]));
    assert_eq!((&devices[0]["index"], &devices[0]["device"]), (&device["index"], &device["device"]));
    assert!(devices[0]["name"].as_str().unwrap().ends_with("0000:00:06.0"), "{devices:?}");
    assert!(json.get("more").is_none());
}

#[test]
fn names_for_completions_are_those_of_the_tasks() {
    let output = xsched(&service()).args(["complete", "programs"]).assert().success();
    let names = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    let names: Vec<_> = names.lines().collect();
    assert!(names.is_sorted() && names.contains(&"train"), "{names:?}");
}

#[test]
fn ps_reports_that_no_task_is_scheduled() {
    let idle = FakeService::new(|_| vec![Reply::Status(Status::default())]);
    xsched(&idle).args(["ps", "--sample", "1ms"]).assert().success().stdout(contains("no task is scheduled"));
}

#[test]
fn views_without_a_service_print_one_error_line() {
    for args in [&["ps"][..], &["set", "42", "-p", "low"], &["policy", "fair"], &["top", "--once"]] {
        let expected = "xsched: no scheduler is running (looked at /nowhere/socket): start one with `xsched serve`, \
                        or let `xsched run` do it\n";
        without_service().args(args).assert().failure().stderr(expected).stdout("");
    }
}

#[test]
fn closed_connection_is_reported_with_the_socket() {
    let gone = FakeService::new(|_| vec![]);
    let text = contains("closed the connection").and(contains(gone.socket().to_str().unwrap()));
    xsched(&gone).arg("ps").assert().failure().stderr(text);
}

#[test]
fn set_prints_the_changes() {
    let service = service();
    xsched(&service)
        .args(["set", "train", "--priority", "-7"])
        .assert()
        .success()
        .stdout("train (pid 42): priority -100 → -7\n");
    xsched(&service)
        .args(["set", "train", "-p", "-7", "--share", "100%", "--suspend"])
        .assert()
        .success()
        .stdout("train (pid 42): priority -7 as before, share 100% as before, suspended\n");
    xsched(&service)
        .args(["set", "42", "--deadline", "5ms", "--laxity", "200us:low:high", "--resume"])
        .assert()
        .success();
    xsched(&service).args(["set", "train", "--deadline", "none", "--laxity", "none"]).assert().success();
    xsched(&service).args(["set", "train", "--laxity", "2ms"]).assert().success();
    let expected = [
        set(HintRequest { priority: Some(-7), ..HintRequest::default() }),
        set(HintRequest { priority: Some(-7), share: Some(100), ..HintRequest::default() }),
        Request::Suspend(Target::Name("train".into())),
        Request::Set {
            target: Target::Pid(42),
            hint_request: HintRequest {
                deadline_us: Some(5_000),
                laxity: Some((200, -100, 100)),
                ..HintRequest::default()
            },
        },
        Request::Resume(Target::Pid(42)),
        set(HintRequest { deadline_us: Some(-1), laxity: Some((-1, 0, 0)), ..HintRequest::default() }),
        set(HintRequest { laxity: Some((2_000, -7, 255)), ..HintRequest::default() }),
    ];
    assert_eq!(service.orders(), expected);
}

#[test]
fn rejection_is_printed_with_the_reason_of_the_service() {
    let service = service();
    xsched(&service)
        .args(["set", "train", "-p", "high"])
        .assert()
        .failure()
        .stderr("xsched: `train` was not changed: raising above normal is for the group xsched\n");
    xsched(&service)
        .args(["set", "9", "-p", "low"])
        .assert()
        .failure()
        .stderr(contains("pid 9 was not changed"));
}

#[test]
fn out_of_range_values_are_rejected_without_a_service() {
    for (args, expected) in [
        (&["--priority", "256"][..], "priority 256 is out of range: allowed is -256 (never run) to 255"),
        (&["--priority", "urgent"], "priority `urgent` is out of range"),
        (&["--share", "101"], "share 101 is out of range: allowed is 0 to 100 (percent)"),
        (&["--deadline", "0us"], "deadline 0 is out of range"),
        (&["--deadline", "5"], "`5` is not a time"),
        (&["--suspend", "--resume"], "cannot be used with"),
        (&[], "required arguments were not provided"),
    ] {
        without_service().args(["set", "train"]).args(args).assert().failure().stderr(contains(expected));
    }
    without_service()
        .args(["policy", "fairest"])
        .assert()
        .failure()
        .stderr(contains("unknown policy `fairest`: use one of priority (HPF)"));
    without_service()
        .args(["policy", "fair", "--timeslice", "1us"])
        .assert()
        .failure()
        .stderr(contains("timeslice 1 is out of range"));
    without_service().args(["ps", "--sample", "0s"]).assert().failure().stderr(contains("1ms to 3600s"));
    without_service().args(["top", "-i", "1ms"]).assert().failure().stderr(contains("50ms to 60s"));
}

#[test]
fn policy_shows_and_changes_the_active_policy() {
    let service = service();
    xsched(&service)
        .arg("policy")
        .assert()
        .success()
        .stdout(contains("policy: priority (HPF), time slice 5.0ms\n").and(contains("\n* priority ")));
    xsched(&service)
        .args(["policy", "fair", "--timeslice", "2ms"])
        .assert()
        .success()
        .stdout("policy: fair (CFS), time slice 2.0ms; before: priority (HPF), time slice 5.0ms\n");
    let output = xsched(&service).args(["policy", "--json"]).assert().success();
    let json: serde_json::Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    assert_eq!(json["policy"], "CFS");
    let policies = json["policies"].as_array().unwrap();
    assert_eq!(policies.len(), xsched_policy::POLICIES.len());
    assert_eq!(policies.iter().filter(|policy| policy["in_use"] == true).count(), 1);
}

#[test]
fn policies_are_listed_even_without_a_service() {
    without_service()
        .arg("policy")
        .assert()
        .success()
        .stdout(contains("deadline").and(contains("no scheduler is running")));
    without_service().args(["policy", "--json"]).assert().failure();
}

#[test]
fn top_prints_one_screen_without_a_terminal() {
    let expected = "\
\x20xsched VERSION   policy priority (HPF)   2 tasks   812 rounds/s   by device

 gpu 0000:00:06.0 ███████████████▓▓▓▓▓ 100%  serve 75%, train 25%, 1 held

PID NAME     PRIO STATE     UTIL LAUNCH/S HELD PREEMPT/S P99 WAIT LAST MINUTE
 41 serve     100 running    75%    20.0k   0%         0    180us            ▆
 42 train    -100 held       25%      100  50%        12        -            ▃
";
    let expected = expected.replace("VERSION", env!("CARGO_PKG_VERSION"));
    let output = xsched(&service()).args(["top", "--once", "-i", "50ms"]).assert().success();
    let shown = String::from_utf8(output.get_output().stdout.clone()).unwrap();
    assert!(shown.starts_with(&expected), "{shown}\ninstead of\n{expected}");
}

#[test]
fn top_without_a_terminal_suggests_once() {
    xsched(&service()).arg("top").assert().failure().stderr(contains("xsched top --once"));
}

#[test]
fn doctor_reports_the_tasks_of_the_service() {
    let output = xsched(&service()).args(["doctor", "--json"]).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let named = |name: &str| {
        let checks = json["checks"].as_array().unwrap();
        checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no {name}")).clone()
    };
    assert_eq!(named("service")["state"], "ok");
    assert!(named("tasks")["what"].as_str().unwrap().contains("2 tasks on gpu 0000:00:06.0"));
    assert!(named("simulated")["what"].as_str().unwrap().contains("levels 1, 2, 3"));
    assert_eq!(json["ok"], output.status.success());
}

#[test]
fn doctor_reports_a_service_of_another_version() {
    let old =
        FakeService::new(|_| vec![Reply::Status(Status { version: "0.0.1".into(), ..Status::default() })]);
    let text = contains("this program is version").and(contains("do: restart the service"));
    let output = xsched(&old).arg("doctor").output().unwrap();
    assert!(text.eval(&String::from_utf8(output.stdout).unwrap()));
}

#[test]
fn closed_pipe_is_not_a_failure() {
    let service = service();
    for args in [&["ps", "--wide"][..], &["policy"], &["top", "--once"], &["set", "train", "-p", "low"]] {
        let mut child = Process::new(assert_cmd::cargo::cargo_bin!("xsched"))
            .args(args)
            .env("XSCHED_SOCKET", service.socket())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stderr.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

//! Grants: what the processes of a job may not do and not see, also as root in a container, and the limits of the service.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod job_group;
#[path = "common/live.rs"]
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod live;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod skipped;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use job_group::{Cluster, JobGroup, OTHER_USER, error_line, grant};
use live::{FakeProgram, RunningService};
use test_program::TestProgram;
use xsched_ipc::protocol::{Grant, HintRequest, PROTOCOL, Reply, Request};
use xsched_ipc::socket::{Connection, Packet};
use xsched_ipc::tool::ToolConnection;

/// What no process of a job may do.
const FORBIDDEN: [&[&str]; 6] = [
    &["policy", "fair"],
    &["stop"],
    &["revoke", "job"],
    &["grant", "job", "--pid", "1", "--priority", "255"],
    &["suspend", "--grant", "job"],
    &["resume", "--grant", "job"],
];

fn assert_confined(cluster: &Cluster, group: &JobGroup, uid: u32) {
    for arguments in FORBIDDEN {
        let output = cluster.xsched(Some(group), uid, arguments);
        // `xsched grant --pid` fails before it connects if the process is in the root group.
        let error = error_line(&output);
        assert!(
            error.contains(&format!("user {uid} may not")) || error.contains("root control group"),
            "{error}"
        );
    }
}

/// The names that a process sees in the status, by process. Names that it may not see are empty.
fn names(cluster: &Cluster, group: Option<&JobGroup>, uid: u32) -> BTreeMap<u64, String> {
    let output = cluster.xsched(group, uid, &["ps", "--json", "--sample", "1ms"]);
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let tasks = status["tasks"].as_array().unwrap().iter();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    tasks
        .map(|task| {
            let name = text(&task["name"]);
            let is_hidden = name.is_empty();
            let hides_all = text(&task["grant"]).is_empty()
                && task["labels"].as_object().is_some_and(serde_json::Map::is_empty)
                && text(&task["cmdline"]).is_empty();
            assert!(!is_hidden || hides_all, "{task}");
            (task["pid"].as_u64().unwrap(), name)
        })
        .collect()
}

fn seen(cluster: &Cluster, group: Option<&JobGroup>, uid: u32, programs: &[&TestProgram]) -> Vec<String> {
    let names = names(cluster, group, uid);
    programs.iter().map(|program| names[&program.pid().into()].clone()).collect()
}

#[test]
fn root_in_the_control_group_of_a_grant_is_confined_to_the_grant() {
    let (Some(first), Some(second)) = (JobGroup::create(), JobGroup::create()) else { return };
    let cluster = Cluster::new();
    cluster.give(Grant { labels: [("pod".to_owned(), "a".to_owned())].into(), ..grant("job", &first) });
    cluster.give(grant("other", &second));
    let own = cluster.start(Some(&first), 0, &["--name", "own", "--priority", "200"]);
    assert_eq!(cluster.task(&own).priority, 100, "root in a container has the limit of the grant");
    let other_grant = cluster.start(Some(&second), 0, &["--name", "in another"]);
    let host = cluster.start(None, 0, &["--name", "of the host", "--priority", "200"]);
    assert_eq!(cluster.task(&host).priority, 200, "root outside is an administrator");
    let programs = [&own, &other_grant, &host];
    assert_confined(&cluster, &first, 0);
    for program in [&other_grant, &host] {
        let pid = program.pid().to_string();
        for arguments in [&["set", &pid, "--priority", "low"][..], &["suspend", &pid]] {
            let error = error_line(&cluster.xsched(Some(&first), 0, arguments));
            assert!(error.contains("may not change a process of another user or grant"), "{error}");
        }
        let error = error_line(&cluster.xsched(Some(&first), 0, &["suspend", "of the host"]));
        assert!(error.contains("no process of yours named"), "{error}");
    }
    assert_eq!(seen(&cluster, Some(&first), 0, &programs), ["own", "", ""]);
    assert_eq!(seen(&cluster, Some(&second), 0, &programs), ["", "in another", ""]);
    assert_eq!(seen(&cluster, None, 0, &programs), ["own", "in another", "of the host"]);
    let lower = cluster.xsched(Some(&first), 0, &["set", &own.pid().to_string(), "--priority", "20"]);
    assert!(lower.status.success() && cluster.task(&own).priority == 20, "{lower:?}");
    let listed = cluster.xsched(Some(&first), 0, &["grants", "--json"]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_eq!((&listed[0]["grant"]["name"], &listed[0]["processes"][0]), (&"job".into(), &own.pid().into()));

    // The end of the grant does not make the process an administrator.
    assert_eq!(cluster.env.request(&Request::Revoke("job".into())), Reply::Done);
    assert_eq!(cluster.task(&own).priority, 0);
}

#[test]
fn another_user_cannot_give_revoke_or_suspend_grants_and_sees_only_its_own() {
    let (Some(group), Some(theirs)) = (JobGroup::create(), JobGroup::create()) else { return };
    let cluster = Cluster::new();
    cluster.give(grant("job", &group));
    cluster.give(Grant { uid: Some(OTHER_USER + 1), ..grant("theirs", &theirs) });
    let member = cluster.start(Some(&group), OTHER_USER, &["--name", "member"]);
    let outside = cluster.start(None, OTHER_USER, &["--name", "outside"]);
    let stranger = cluster.start(None, OTHER_USER + 1, &["--name", "stranger"]);
    let programs = [&member, &outside, &stranger];
    assert_confined(&cluster, &group, OTHER_USER);
    for arguments in FORBIDDEN.into_iter().filter(|arguments| arguments[0] != "grant") {
        let error = error_line(&cluster.xsched(None, OTHER_USER, arguments));
        assert!(error.contains("run as root or join the group"), "{error}");
    }
    let path = theirs.path();
    let error = error_line(&cluster.xsched(None, OTHER_USER, &["grant", "mine", "--cgroup", &path]));
    assert!(error.contains("may not give a grant"), "{error}");
    assert_eq!(seen(&cluster, Some(&group), OTHER_USER, &programs), ["member", "", ""]);
    assert_eq!(seen(&cluster, None, OTHER_USER, &programs), ["member", "outside", ""]);
    assert_eq!(seen(&cluster, None, OTHER_USER + 1, &programs), ["", "", "stranger"]);
    let listed = |uid| {
        let output = cluster.xsched(None, uid, &["grants"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (text.contains("job "), text.contains("theirs "))
    };
    assert_eq!(
        [listed(OTHER_USER), listed(OTHER_USER + 1), listed(0)],
        [(true, false), (false, true), (true, true)]
    );
}

#[test]
fn configured_control_groups_are_confined_without_a_grant_and_a_group_may_give_grants() {
    let Some(group) = JobGroup::create() else { return };
    let config = tempfile::NamedTempFile::new().unwrap();
    let text = format!("[grants]\nconfine = [\"{}*\"]\ngroup = {OTHER_USER}\n", group.path());
    std::fs::write(config.path(), text).unwrap();
    let cluster = Cluster::with_options(&["--config", config.path().to_str().unwrap()]);
    let confined = cluster.start(Some(&group), 0, &["--priority", "high", "--name", "confined"]);
    let host = cluster.start(None, 0, &["--priority", "high", "--name", "host"]);
    assert_eq!((cluster.task(&confined).priority, cluster.task(&host).priority), (0, 100));
    assert_confined(&cluster, &group, 0);
    assert_eq!(seen(&cluster, Some(&group), 0, &[&confined, &host]), ["confined", ""]);
    let path = group.path();
    let give = ["grant", "job", "--cgroup", &path, "--priority", "50"];
    let error = error_line(&cluster.xsched(Some(&group), OTHER_USER, &give));
    assert!(error.contains("may not give a grant"), "not from a confined process: {error}");
    assert!(cluster.xsched(None, OTHER_USER, &give).status.success());
    assert_eq!(cluster.task(&confined).priority, 50, "it has requested 100");
    let error = error_line(&cluster.xsched(None, OTHER_USER, &["policy", "fair"]));
    assert!(error.contains("may not change the policy"), "{error}");
    assert!(cluster.xsched(None, OTHER_USER, &["revoke", "job"]).status.success());
}

#[test]
fn container_beside_that_of_a_confined_service_has_the_rights_of_its_user() {
    let Some(pods) = JobGroup::create() else { return };
    let (pod, other_pod) = (pods.below("pod"), pods.below("other"));
    let (service, agent, other) = (pod.below("service"), pod.below("agent"), other_pod.below("main"));
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), format!("[grants]\nconfine = [\"{}*\"]\n", pods.path())).unwrap();
    let cluster = Cluster::with_options(&["--config", config.path().to_str().unwrap()]);
    let path = other.path();
    let give = ["grant", "job", "--cgroup", &path, "--priority", "50"];
    let error = error_line(&cluster.xsched(Some(&agent), 0, &give));
    assert!(error.contains("may not give a grant"), "the service is not in the same pod: {error}");
    service.add(cluster.env.status().pid);
    assert!(cluster.xsched(Some(&agent), 0, &give).status.success());
    assert_confined(&cluster, &other, 0);
}

#[test]
fn root_over_http_is_no_administrator_while_control_groups_are_confined() {
    if !rustix::process::geteuid().is_root() {
        return skipped::record_skipped("the caller has to be root");
    }
    let change_policy = |address: SocketAddr| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream
            .write_all(b"POST /policy?policy=2 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            .unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    };
    let open = change_policy(RunningService::new().http);
    assert!(open.contains("success"), "{open}");
    let confined = change_policy(RunningService::with_config("[grants]\nconfine = [\"/kubepods*\"]\n").http);
    assert!(confined.contains("user 0 may not change the policy"), "{confined}");
}

fn token(number: usize) -> String {
    format!("{number:032}")
}

#[test]
fn number_of_grants_is_limited_and_all_are_listed_and_kept() {
    const MAX_GRANTS: usize = 4_096;
    let service = RunningService::new();
    let tool = ToolConnection::connect_to_first(vec![service.socket()]).unwrap();
    let give = |number: usize| {
        let (name, token) = (format!("grant-{number:04}"), Some(token(number)));
        tool.request(&Request::Grant(Grant { name, token, ..Grant::default() }))
    };
    for number in 0..MAX_GRANTS {
        assert_eq!(give(number).unwrap(), Reply::Done);
    }
    let error = give(MAX_GRANTS).unwrap_err().to_string();
    assert!(error.contains("4096 grants, which is the maximum"), "{error}");
    give(0).unwrap();
    let names: Vec<_> = tool.grants().unwrap().into_iter().map(|status| status.grant.name).collect();
    assert_eq!((names.len(), names.is_sorted()), (MAX_GRANTS, true));
}

#[test]
fn status_of_tasks_with_long_labels_is_complete() {
    let service = RunningService::new();
    let tool = ToolConnection::connect_to_first(vec![service.socket()]).unwrap();
    let labels = (0..16).map(|n| (format!("{}{n:02}", "n".repeat(62)), "\"".repeat(128)));
    let grant =
        Grant { name: "long".into(), token: Some(token(1)), labels: labels.collect(), ..Grant::default() };
    tool.request(&Request::Grant(grant)).unwrap();
    let hint_request = HintRequest::default();
    let join = Request::Join {
        protocol: PROTOCOL,
        version: "test".into(),
        name: Some("long".into()),
        hint_request,
        grant_token: Some(token(1)),
        memory_group: None,
    };
    // A process with a task for each of many queues.
    let connection = Connection::to(&service.socket()).unwrap();
    connection.send(&join, None, true).unwrap();
    let Some(Packet::Message(Reply::Welcome { .. }, Some(page))) = connection.receive(true).unwrap() else {
        panic!("the service rejects the program")
    };
    let program = FakeProgram::new(connection, &page);
    for _ in 0..40 {
        program.set_priority(program.queue(0), -1);
    }
    let status = tool.status().unwrap();
    assert_eq!(status.tasks.len(), 40);
    assert!(status.tasks.iter().all(|task| task.labels.len() == 16 && task.grant.as_deref() == Some("long")));
}

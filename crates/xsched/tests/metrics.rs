//! The metrics of a real service about a real program: the labels of its grant, and which readers see them.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use environment::{TestEnvironment, wait_until};
use test_program::TestProgram;
use xsched_ipc::protocol::{Caller, Reply, Request};
use xsched_ipc::socket::{Connection, Packet};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// A user that no test runs programs as.
const ANOTHER_USER: u32 = 54_321;

fn ask(connection: &Connection, request: &Request) -> Reply {
    connection.send(request, None, true).unwrap();
    match connection.receive::<Reply>(true).unwrap() {
        Some(Packet::Message(reply, _)) => reply,
        other => panic!("{other:?}"),
    }
}

fn metrics(connection: &Connection) -> String {
    match ask(connection, &Request::Metrics) {
        Reply::Metrics { text, more: false } => text,
        other => panic!("{other:?}"),
    }
}

fn info(metrics: &str) -> String {
    metrics.lines().find(|line| line.starts_with("xsched_task_info{")).unwrap_or_default().to_owned()
}

#[test]
fn labels_of_a_grant_are_shown_to_readers_that_may_see_names() {
    let env = TestEnvironment::with_service();
    let token = env.file("token", TOKEN);
    let labels = ["--label", "job=7", "--label", "namespace=pro\"d"];
    let granted =
        env.xsched(&[&["grant", "train-7", "--token", &token][..], &labels].concat()).output().unwrap();
    assert!(granted.status.success(), "{granted:?}");
    let mut command = env.run(&["--name", "trainer"], &["requests", "100000", "1", "1000", "10"]);
    command.env("XSCHED_GRANT", TOKEN);
    let program = TestProgram::spawn(command);
    program.next_line();
    let expected = r#"grant="train-7",label_job="7",label_namespace="pro\"d"} 1"#;
    let connection = env.connect();
    wait_until("the task is in the metrics", || !info(&metrics(&connection)).is_empty());
    let shown = info(&metrics(&connection));
    assert!(shown.contains(r#"name="trainer""#) && shown.ends_with(expected), "{shown}");

    let other = env.connect();
    assert_eq!(ask(&other, &Request::ActFor(Caller::User(ANOTHER_USER))), Reply::Done);
    let shown = info(&metrics(&other));
    assert!(shown.contains(r#"name="""#), "{shown}");
    assert!(!shown.contains("grant") && !shown.contains("label_"), "{shown}");

    // A new grant of the same name replaces the labels.
    let replaced = env.xsched(&["grant", "train-7", "--token", &token, "--label", "job=8"]).output().unwrap();
    assert!(replaced.status.success(), "{replaced:?}");
    wait_until("the new label is shown", || {
        info(&metrics(&connection)).ends_with(r#"grant="train-7",label_job="8"} 1"#)
    });
    assert!(env.xsched(&["revoke", "train-7"]).status().unwrap().success());
    wait_until("the labels are gone", || !info(&metrics(&connection)).contains("label_job"));
}

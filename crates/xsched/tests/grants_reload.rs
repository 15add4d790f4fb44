//! A configuration that confines control groups while their processes are connected. The process of this test enters such a group:
//! no other test belongs here.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod job_group;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod skipped;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use environment::wait_until;
use job_group::{Cluster, JobGroup};
use rustix::process::{Signal, kill_process};
use xsched_ipc::protocol::{Reply, Request};
use xsched_ipc::tool::ToolConnection;

#[test]
fn control_groups_that_a_reload_confines_are_confined_also_for_connected_processes() {
    let Some(group) = JobGroup::create() else { return };
    let config = tempfile::NamedTempFile::new().unwrap();
    let cluster = Cluster::with_options(&["--config", config.path().to_str().unwrap()]);
    let program = cluster.start(Some(&group), 0, &["--name", "container"]);
    let tool = ToolConnection::connect_to_first(vec![cluster.env.socket().to_owned()]).unwrap();
    let change_policy =
        || tool.request(&Request::Policy { name: Some("fair".to_owned()), timeslice_us: None, k: None });
    group.add(std::process::id());
    assert!(matches!(change_policy(), Ok(Reply::Policy { .. })));

    let text = format!("[defaults]\npolicy = \"fair\"\n[grants]\nconfine = [\"{}*\"]\n", group.path());
    std::fs::write(config.path(), text).unwrap();
    kill_process(cluster.env.service(), Signal::HUP).unwrap();
    wait_until("the tool is confined", || change_policy().is_err());
    let error = change_policy().unwrap_err().to_string();
    assert!(error.contains("user 0 may not change the policy"), "{error}");
    // What is confined to the same group sees the program: it is confined, too.
    let status = tool.status().unwrap();
    let task = status.tasks.iter().find(|task| task.pid == program.pid()).unwrap();
    assert_eq!(task.name, "container");
}

//! Programs and the service in PID namespaces of their own, as in containers.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod skipped;
use std::path::Path;
use std::process::{Child, Command};

use environment::{TestEnvironment, wait_until};
use skipped::record_skipped;
use xsched_ipc::protocol::{HintRequest, Reply, Request, Target, TaskStatus};

/// A command that runs a program in a new PID namespace.
const NEW_PID_NAMESPACE: [&str; 4] = ["unshare", "--pid", "--fork", "--kill-child"];
/// The service numbers processes that it cannot see from here on. No real PID is this large.
const FIRST_UNSEEN_PID: u32 = 1 << 31;

/// Whether a PID namespace can be created. Skips the test if not.
fn can_create_pid_namespace() -> bool {
    let output = Command::new(NEW_PID_NAMESPACE[0]).args(&NEW_PID_NAMESPACE[1..]).arg("true").output();
    let can_create = output.is_ok_and(|output| output.status.success());
    if !can_create {
        record_skipped("unshare --pid does not work (it needs root)");
    }
    can_create
}

/// A named program with one command that does not complete, with the command line `under` in front.
fn busy(env: &TestEnvironment, under: &[&str], name: &str) -> Child {
    let xsched = env!("CARGO_BIN_EXE_xsched");
    let run = [xsched, "run", "--name", name, "--", "work", "1", "1", "600000000"];
    let mut command = env.direct(&[under, &run].concat());
    // The simulated device identifies processes by PID, so each namespace needs a file of its own. The device ID is the same.
    command.env("XSIM_DEVICE", env.device().with_extension(name));
    env.spawn(command)
}

fn tasks(env: &TestEnvironment) -> Vec<TaskStatus> {
    let mut tasks = env.status().tasks;
    tasks.sort_by(|a, b| a.name.cmp(&b.name));
    tasks
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn program_in_a_container_has_its_pid_on_the_host() {
    if !can_create_pid_namespace() {
        return;
    }
    let env = TestEnvironment::with_service();
    let program = busy(&env, &NEW_PID_NAMESPACE, "inside");
    wait_until("the program is scheduled", || tasks(&env).len() == 1);
    let [task] = &tasks(&env)[..] else { panic!("one task") };
    assert_eq!(task.name, "inside");
    let parent = format!("/proc/{}/stat", task.pid);
    let parent = std::fs::read_to_string(parent).unwrap();
    let parent = parent.rsplit(") ").next().unwrap().split(' ').nth(1).unwrap().to_owned();
    assert_eq!(parent, program.id().to_string(), "the program is a child of unshare");
    end(program);
    wait_until("the service has removed the program", || tasks(&env).is_empty());
}

#[test]
fn service_in_a_container_schedules_programs_that_it_cannot_see() {
    if !can_create_pid_namespace() {
        return;
    }
    let mut env = TestEnvironment::without_service();
    env.start_service_under(&NEW_PID_NAMESPACE);
    let (outside, inside) = (busy(&env, &[], "a"), busy(&env, &NEW_PID_NAMESPACE, "b"));
    wait_until("both programs are scheduled", || tasks(&env).len() == 2);
    let [a, b] = &tasks(&env)[..] else { panic!("two tasks") };
    assert_eq!((a.name.as_str(), b.name.as_str()), ("a", "b"));
    assert!(a.pid >= FIRST_UNSEEN_PID && b.pid >= FIRST_UNSEEN_PID && a.pid != b.pid, "{a:?} {b:?}");

    // Requests accept these PIDs, and a program of higher priority holds the other program.
    let hint_request = HintRequest { priority: Some(10), ..HintRequest::default() };
    assert_eq!(env.request(&Request::Set { target: Target::Pid(b.pid), hint_request }), Reply::Done);
    let held =
        |name: &str| env.status().queues.iter().any(|queue| queue.suspended && queue.pid == pid(&env, name));
    wait_until("the program of lower priority is held", || held("a"));

    let nameless = env.spawn(env.preloaded(&["work", "1", "1", "600000000"]));
    wait_until("a program without a name is scheduled", || {
        tasks(&env).iter().any(|task| task.name == "(unseen)")
    });
    end(nameless);
    wait_until("the service has removed the program without a name", || tasks(&env).len() == 2);

    // The service detects the exit of a program, even if another process still holds its socket.
    assert!(watched(&env) >= 2, "the service has a pidfd of both");
    end(inside);
    wait_until("the remaining program runs", || tasks(&env).len() == 1 && !held("a"));
    end(outside);
    wait_until("the service has no tasks", || tasks(&env).is_empty());
}

fn pid(env: &TestEnvironment, name: &str) -> u32 {
    tasks(env).iter().find(|task| task.name == name).map_or(0, |task| task.pid)
}

/// How many pidfds the service has.
fn watched(env: &TestEnvironment) -> usize {
    let unshare = env.service().as_raw_nonzero();
    let children = format!("/proc/{unshare}/task/{unshare}/children");
    let service = std::fs::read_to_string(children).unwrap();
    let descriptors = Path::new("/proc").join(service.trim()).join("fd");
    let links = std::fs::read_dir(descriptors).unwrap().filter_map(|file| file.ok()?.path().read_link().ok());
    links.filter(|link| link.to_string_lossy().contains("pidfd")).count()
}

//! Programs and the service where processes have other numbers, as in containers.

#[allow(dead_code, reason = "the other tests on this stage use the rest")]
mod stage;

use std::path::Path;
use std::process::{Child, Command};

use stage::{Stage, eventually};
use xsched_ipc::protocol::{HintRequest, Reply, Request, Target, TaskStatus};

/// A command in front of a program, which then has process numbers of its own.
const APART: [&str; 4] = ["unshare", "--pid", "--fork", "--kill-child"];
/// Numbers that no process has begin here.
const NOBODYS: u32 = 1 << 31;

/// Whether there are other process numbers to be had.
fn can_be_apart() -> bool {
    let can = Command::new(APART[0]).args(&APART[1..]).arg("true").output();
    let can = can.is_ok_and(|output| output.status.success());
    if !can {
        println!("left out: unshare --pid does not work here (it needs root)");
    }
    can
}

/// A program with a name, and a command that does not end, behind the words `under`.
fn busy(stage: &Stage, under: &[&str], name: &str) -> Child {
    let xsched = env!("CARGO_BIN_EXE_xsched");
    let run = [xsched, "run", "--name", name, "--", "work", "1", "1", "600000000"];
    let mut command = stage.direct(&[under, &run].concat());
    // The simulated device knows processes by their numbers. What counts is that it has the same name for all of them.
    command.env("XSIM_DEVICE", stage.device().with_extension(name));
    stage.spawn(command)
}

fn tasks(stage: &Stage) -> Vec<TaskStatus> {
    let mut tasks = stage.status().tasks;
    tasks.sort_by(|a, b| a.name.cmp(&b.name));
    tasks
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_program_in_a_container_has_its_number_on_the_host() {
    if !can_be_apart() {
        return;
    }
    let stage = Stage::with_service();
    let program = busy(&stage, &APART, "inside");
    eventually("it is scheduled", || tasks(&stage).len() == 1);
    let [task] = &tasks(&stage)[..] else { panic!("one task") };
    assert_eq!(task.name, "inside");
    let parent = format!("/proc/{}/stat", task.pid);
    let parent = std::fs::read_to_string(parent).unwrap();
    let parent = parent.rsplit(") ").next().unwrap().split(' ').nth(1).unwrap().to_owned();
    assert_eq!(parent, program.id().to_string(), "a child of the command that set it apart");
    end(program);
    eventually("it is gone", || tasks(&stage).is_empty());
}

#[test]
fn a_service_in_a_container_schedules_programs_that_it_cannot_see() {
    if !can_be_apart() {
        return;
    }
    let mut stage = Stage::without_service();
    stage.start_service_under(&APART);
    let (outside, inside) = (busy(&stage, &[], "a"), busy(&stage, &APART, "b"));
    eventually("both are scheduled", || tasks(&stage).len() == 2);
    let [a, b] = &tasks(&stage)[..] else { panic!("two tasks") };
    assert_eq!((a.name.as_str(), b.name.as_str()), ("a", "b"));
    assert!(a.pid >= NOBODYS && b.pid >= NOBODYS && a.pid != b.pid, "{a:?} {b:?}");

    // By those numbers they can be spoken of, and one holds the other back.
    let hint_request = HintRequest { priority: Some(10), ..HintRequest::default() };
    assert_eq!(stage.ask(&Request::Set { target: Target::Pid(b.pid), hint_request }), Reply::Done);
    let held = |name: &str| {
        stage.status().queues.iter().any(|queue| queue.suspended && queue.pid == pid(&stage, name))
    };
    eventually("the more important one holds the other", || held("a"));

    let nameless = stage.spawn(stage.preloaded(&["work", "1", "1", "600000000"]));
    eventually("one without a name is scheduled", || {
        tasks(&stage).iter().any(|task| task.name == "(unseen)")
    });
    end(nameless);
    eventually("it is gone", || tasks(&stage).len() == 2);

    // The end of one is seen, though a process with its socket may live on.
    assert!(watched(&stage) >= 2, "the service has a handle on both");
    end(inside);
    eventually("the other runs", || tasks(&stage).len() == 1 && !held("a"));
    end(outside);
    eventually("nobody is left", || tasks(&stage).is_empty());
}

fn pid(stage: &Stage, name: &str) -> u32 {
    tasks(stage).iter().find(|task| task.name == name).map_or(0, |task| task.pid)
}

/// How many processes the service has a handle on.
fn watched(stage: &Stage) -> usize {
    let apart = stage.service().as_raw_nonzero();
    let children = format!("/proc/{apart}/task/{apart}/children");
    let service = std::fs::read_to_string(children).unwrap();
    let descriptors = Path::new("/proc").join(service.trim()).join("fd");
    let links = std::fs::read_dir(descriptors).unwrap().filter_map(|file| file.ok()?.path().read_link().ok());
    links.filter(|link| link.to_string_lossy().contains("pidfd")).count()
}

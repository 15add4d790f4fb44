//! Programs and the service in PID and time namespaces of their own, as in containers.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod skipped;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use environment::{TestEnvironment, wait_until};
use skipped::record_skipped;
use xsched_ipc::protocol::{HintRequest, Reply, Request, Target, TaskStatus};

/// A command that runs a program in a new PID namespace.
const NEW_PID_NAMESPACE: [&str; 4] = ["unshare", "--pid", "--fork", "--kill-child"];
/// A command that runs a program in a new time namespace, whose monotonic clock is six days ahead.
const NEW_TIME_NAMESPACE: [&str; 6] =
    ["unshare", "--time", "--monotonic=500000", "--boottime=500000", "--fork", "--kill-child"];
/// The service numbers processes that it cannot see from here on. No real PID is this large.
const FIRST_UNSEEN_PID: u32 = 1 << 31;

/// Whether a PID namespace can be created. Skips the test if not.
fn can_create_pid_namespace() -> bool {
    can_create(&NEW_PID_NAMESPACE, "unshare --pid does not work (it needs root)")
}

/// Whether a time namespace can be created. Skips the test if not.
fn can_create_time_namespace() -> bool {
    can_create(&NEW_TIME_NAMESPACE, "unshare --time does not work (it needs root and Linux 5.6)")
}

fn can_create(namespace: &[&str], why_skipped: &str) -> bool {
    let output = Command::new(namespace[0]).args(&namespace[1..]).arg("true").output();
    let can_create = output.is_ok_and(|output| output.status.success());
    if !can_create {
        record_skipped(why_skipped);
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

/// The process of a service that runs under `unshare`.
fn service_process(env: &TestEnvironment) -> String {
    let unshare = env.service().as_raw_nonzero();
    let children = format!("/proc/{unshare}/task/{unshare}/children");
    std::fs::read_to_string(children).unwrap().trim().to_owned()
}

/// How many pidfds the service has.
fn watched(env: &TestEnvironment) -> usize {
    let descriptors = Path::new("/proc").join(service_process(env)).join("fd");
    let links = std::fs::read_dir(descriptors).unwrap().filter_map(|file| file.ok()?.path().read_link().ok());
    links.filter(|link| link.to_string_lossy().contains("pidfd")).count()
}

/// A program of low priority that completes rounds without pause unless it is held, beside one of high priority that is busy.
struct HeldProgram {
    high: Child,
    low: Child,
    rounds: Arc<AtomicU64>,
}

impl HeldProgram {
    /// Returns when the service holds the program, which has the command line `under` in front.
    fn start(env: &TestEnvironment, under: &[&str]) -> Self {
        let high = busy(env, &[], "high");
        wait_until("the program of high priority is scheduled", || !tasks(env).is_empty());
        let hint_request = HintRequest { priority: Some(10), ..HintRequest::default() };
        let target = Target::Name("high".into());
        assert_eq!(env.request(&Request::Set { target, hint_request }), Reply::Done);
        let run =
            [env!("CARGO_BIN_EXE_xsched"), "run", "--name", "low", "--", "work", "100000000", "1", "100"];
        let mut command = env.direct(&[under, &run].concat());
        command.env("XSIM_DEVICE", env.device().with_extension("low"));
        let mut low = env.spawn(command);
        let lines = BufReader::new(low.stdout.take().unwrap()).lines();
        let rounds = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&rounds);
        std::thread::spawn(move || lines.for_each(|_| _ = counter.fetch_add(1, Ordering::SeqCst)));
        wait_until("the program of low priority is held", || held_ns(env) > 0);
        Self { high, low, rounds }
    }

    fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::SeqCst)
    }

    fn end(self) {
        end(self.high);
        end(self.low);
    }
}

fn held_ns(env: &TestEnvironment) -> u64 {
    tasks(env).iter().find(|task| task.name == "low").map_or(0, |task| task.held_ns)
}

#[test]
fn program_with_another_clock_is_held_while_the_service_is_alive() {
    if !can_create_time_namespace() {
        return;
    }
    let env = TestEnvironment::with_service();
    let program = HeldProgram::start(&env, &NEW_TIME_NAMESPACE);
    // A program that takes the service for dead frees itself after 500 ms.
    wait_until("the program is held for 1 s", || {
        let (rounds, held) = (program.rounds(), held_ns(&env));
        wait_until("the service has held it for 1 s", || held_ns(&env) > held + 1_000_000_000);
        program.rounds() == rounds
    });
    program.end();
}

#[test]
fn program_is_not_held_by_a_stopped_service_with_another_clock() {
    if !can_create_time_namespace() {
        return;
    }
    let mut env = TestEnvironment::without_service();
    env.start_service_under(&NEW_TIME_NAMESPACE);
    let program = HeldProgram::start(&env, &[]);
    let service = service_process(&env);
    let signal = |signal: &str| Command::new("kill").args([signal, &service]).status().unwrap();
    assert!(signal("-STOP").success());
    let rounds = program.rounds();
    wait_until("the program runs", || program.rounds() > rounds + 10);
    assert!(signal("-CONT").success());
    wait_until("the service replies", || !tasks(&env).is_empty());
    program.end();
}

/// The time from the first to the last event of a trace, in microseconds.
fn traced_time(trace: &Path) -> f64 {
    let text = std::fs::read_to_string(trace).unwrap();
    let trace: serde_json::Value = serde_json::from_str(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let times: Vec<f64> = events.iter().filter_map(|event| event["ts"].as_f64()).collect();
    let ends =
        events.iter().filter_map(|event| Some(event["ts"].as_f64()? + event["dur"].as_f64().unwrap_or(0.0)));
    ends.fold(0.0, f64::max) - times.iter().copied().fold(f64::MAX, f64::min)
}

#[test]
fn trace_of_a_service_with_another_clock_ends_when_the_recording_ends() {
    if !can_create_time_namespace() {
        return;
    }
    let env = TestEnvironment::with_service();
    let program = busy(&env, &[], "busy");
    wait_until("the program is scheduled", || !tasks(&env).is_empty());
    let file = env.device().with_extension("json");
    let xsched = env!("CARGO_BIN_EXE_xsched");
    let record = [xsched, "trace", "--duration", "100ms", "-o", file.to_str().unwrap()];
    let began = std::time::Instant::now();
    assert!(env.direct(&[&NEW_TIME_NAMESPACE[..], &record].concat()).status().unwrap().success());
    let took = began.elapsed().as_secs_f64() * 1e6;
    let traced = traced_time(&file);
    assert!(traced <= 2.0 * took, "{traced} us were traced in {took} us");
    end(program);
}

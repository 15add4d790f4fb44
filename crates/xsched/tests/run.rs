//! `xsched run` with real programs, real processes and a real service, on the simulated device.
//!
//! The programs are in C, linked to `libxsim.so` as to a vendor's library, without any XSched code.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod skipped;

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, Output, Stdio};

use environment::{TestEnvironment, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use skipped::skip;
use xsched_ipc::protocol::{Reply, Request, Settings, TaskState, TaskStatus};

/// What a user or a script can see of a program that has exited.
fn observed(output: &Output) -> (String, String, Option<i32>, Option<i32>) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr), output.status.code(), output.status.signal())
}

/// Runs a program directly and under the scheduler. Both runs must print and return the same.
fn assert_same(env: &TestEnvironment, command: &[&str]) -> String {
    let direct = observed(&env.direct(command).stdin(Stdio::null()).output().unwrap());
    let scheduled = observed(&env.run(&[], command).stdin(Stdio::null()).output().unwrap());
    assert_eq!(direct, scheduled, "{command:?}");
    assert_eq!(direct.1, "", "{command:?} printed an error");
    direct.0
}

/// Waits for a line of a program's output.
fn wait_for_line(child: &mut Child, expected: &str) -> BufReader<std::process::ChildStdout> {
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while output.read_line(&mut line).unwrap() > 0 {
        if line.trim_end() == expected {
            return output;
        }
        line.clear();
    }
    panic!("the program exited without printing `{expected}`");
}

fn task<'a>(tasks: &'a [TaskStatus], name: &str) -> Option<&'a TaskStatus> {
    tasks.iter().find(|task| task.name == name)
}

#[test]
fn scheduled_program_behaves_as_unscheduled() {
    let env = TestEnvironment::with_service();
    let stdout = assert_same(&env, &["work", "-q", "3", "-s", "3", "4", "30", "50"]);
    assert!(stdout.ends_with("finished 120\n"), "{stdout}");
    assert_same(&env, &["work", "1", "0", "1"]);
}

#[test]
fn vendor_events_and_errors_are_unchanged() {
    let env = TestEnvironment::with_service();
    let stdout = assert_same(&env, &["events"]);
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(lines[..3], ["never recorded: 0", "at once: 2 2 2", "afterwards: 0 0, 1"], "{stdout}");
    assert!(lines[3].starts_with("nothing: 1 the handle is not"), "{stdout}");
    assert_eq!(lines[4], "wrong kind: 1");
    assert!(lines[5].starts_with("no device: 3 /no/such/place"), "{stdout}");
}

#[test]
fn scripts_and_pipelines_behave_as_unscheduled() {
    let env = TestEnvironment::with_service();
    let script = env.file("script", "#!/bin/sh\nset -e\nwork 2 5 50\nexit 9\n");
    assert!(assert_same(&env, &[&script]).ends_with("finished 10\n"));
    let pipeline = "work 3 5 50 | tail -1 | tr a-z A-Z; work -s 4 1 1 50 >/dev/null || echo failed $?";
    assert_eq!(assert_same(&env, &["sh", "-c", pipeline]), "FINISHED 15\nfailed 4\n");
}

#[test]
fn forked_processes_behave_as_unscheduled() {
    let env = TestEnvironment::with_service();
    let servers = assert_same(&env, &["family", "servers", "5"]);
    assert_eq!(servers.matches("child: 5\n").count(), 5, "{servers}");
    assert_same(&env, &["family", "inherit"]);
    assert_eq!(assert_same(&env, &["family", "daemon"]), "parent: 5\ngrandchild: 5\n");
    assert_eq!(assert_same(&env, &["family", "chain", "3"]), "link: 5\n".repeat(4));
}

#[test]
fn child_processes_are_separate_tasks() {
    let env = TestEnvironment::with_service();
    let both = "work 1000 20 1000 & work 1000 20 1000 & wait";
    let mut shell = env.run(&["--name", "pair"], &["sh", "-c", both]).stdout(Stdio::null()).spawn().unwrap();
    wait_until("both programs are scheduled", || {
        env.status().tasks.iter().filter(|task| task.name == "pair").count() == 2
    });
    for task in env.status().tasks {
        kill_process(Pid::from_raw(i32::try_from(task.pid).unwrap()).unwrap(), Signal::KILL).unwrap();
    }
    shell.wait().unwrap();
    wait_until("the service has removed both programs", || env.status().tasks.is_empty());
}

#[test]
fn forked_child_joins_with_its_own_page() {
    let env = TestEnvironment::with_service();
    let mut parent = env.run(&[], &["family", "keeps-child"]);
    let mut parent = parent.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let _output = wait_for_line(&mut parent, "ready");
    let status = env.status();
    let queues = |pid: u32| status.queues.iter().filter(|queue| queue.pid == pid).count();
    let child = status.tasks.iter().map(|task| task.pid).find(|pid| *pid != parent.id());
    let child = child.expect("the child is its own task");
    assert_eq!((queues(parent.id()), queues(child)), (1, 1), "{:?}", status.queues);
    parent.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(parent.wait().unwrap().code(), Some(0));
    wait_until("the service has removed both programs", || env.status().tasks.is_empty());
}

#[test]
fn closing_the_connection_does_not_disturb_the_program() {
    let env = TestEnvironment::with_service();
    let contender = env.run(&["--name", "contender"], &["work", "100000", "2", "1000"]);
    let mut contender = env.spawn(contender);
    wait_until("the contender is scheduled", || task(&env.status().tasks, "contender").is_some());
    assert_eq!(assert_same(&env, &["family", "closer"]), "received 0\n");
    contender.kill().unwrap();
    contender.wait().unwrap();
}

#[test]
fn library_opened_by_the_program_is_scheduled() {
    let env = TestEnvironment::with_service();
    let library = env.library("libxsim.so");
    let stdout = assert_same(&env, &["opened", &library]);
    assert_eq!(stdout, "0 0 0 0 0 0 0 0 0 0 0 0 0\n", "open, create, ten launches, synchronize");
    let mut program = env.run(&["--name", "opener"], &["opened", &library]);
    let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let _output = wait_for_line(&mut program, stdout.trim_end());
    wait_until("the program is scheduled", || task(&env.status().tasks, "opener").is_some());
    let status = env.status();
    let task = task(&status.tasks, "opener").unwrap();
    assert_eq!((task.pid, task.queues), (program.id(), 1));
    program.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(program.wait().unwrap().code(), Some(4));
}

#[test]
fn failures_of_run_have_the_exit_statuses_of_env_and_nice() {
    let env = TestEnvironment::without_service();
    let ends = |arguments: &[&str]| {
        let output = env.xsched(arguments).output().unwrap();
        let (_, error, status, _) = observed(&output);
        (status, error)
    };
    let (status, error) = ends(&["run", "--priority", "999", "--", "true"]);
    assert_eq!(status, Some(125));
    assert!(error.contains("-256 (never run) to 255"), "{error}");
    let (status, error) = ends(&["run", "--deadline", "5", "--", "true"]);
    assert_eq!(status, Some(125));
    assert!(error.contains("deadline `5` is not a time such as 200us"), "{error}");
    assert_eq!(ends(&["run"]).0, Some(125));
    assert_eq!(ends(&["run", "--help"]).0, Some(0));

    let env = TestEnvironment::with_service();
    let ends = |command: &str| observed(&env.run(&[], &[command]).output().unwrap());
    let (_, error, status, _) = ends("no-such-program");
    assert_eq!((status, error.lines().count()), (Some(127), 1), "{error}");
    assert_eq!(ends("/").2, Some(126));
    let output = env.run(&[], &["true"]).env("XSCHED_LIBRARY", "/no/such/file").output().unwrap();
    assert_eq!(output.status.code(), Some(125));
}

#[test]
fn hints_reach_the_program_and_the_service() {
    let env = TestEnvironment::with_service();
    let hint_request = [
        "--priority",
        "-7",
        "--share",
        "30%",
        "--deadline",
        "5ms",
        "--laxity",
        "2ms",
        "--level",
        "2",
        "--budget",
        "300us",
        "--name",
        "trainer",
    ];
    let output = env.run(&hint_request, &["env"]).env("LD_PRELOAD", "").output().unwrap();
    let variables = String::from_utf8(output.stdout).unwrap();
    for expected in [
        "XSCHED_SCHEDULER=GLB",
        "XSCHED_AUTO_XQUEUE=ON",
        "XSCHED_AUTO_XQUEUE_PRIORITY=-7",
        "XSCHED_AUTO_XQUEUE_UTILIZATION=30",
        "XSCHED_AUTO_XQUEUE_DEADLINE=5000",
        "XSCHED_AUTO_XQUEUE_LAXITY=2000",
        "XSCHED_AUTO_XQUEUE_LEVEL=2",
        "XSCHED_BUDGET=300",
        "XSCHED_NAME=trainer",
    ] {
        assert!(variables.lines().any(|line| line == expected), "{expected} is missing in\n{variables}");
    }
    let mut program = env
        .run(&hint_request, &["family", "late"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let _output = wait_for_line(&mut program, "begun");
    wait_until("the program is scheduled", || task(&env.status().tasks, "trainer").is_some());
    let status = env.status();
    let task = task(&status.tasks, "trainer").unwrap();
    assert_eq!((task.priority, task.share), (-7, 30));
    assert_eq!((task.deadline_us, task.laxity_us, task.pid), (Some(5_000), Some(2_000), program.id()));
    assert_eq!(status.queues[0].level, 2);
    program.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(program.wait().unwrap().code(), Some(5));
}

#[test]
fn invalid_variables_are_ignored_and_logged() {
    let env = TestEnvironment::with_service();
    let with = |level: Option<&str>| {
        let mut command = env.preloaded(&["work", "1", "1", "50"]);
        command.env("XSCHED_AUTO_XQUEUE_UTILIZATION", "most of it");
        if let Some(level) = level {
            command.env("XLOG_LEVEL", level);
        }
        observed(&command.output().unwrap())
    };
    assert_eq!(with(None), ("round 0\nfinished 1\n".to_owned(), String::new(), Some(0), None));
    let error = with(Some("WARN")).1;
    assert!(error.contains("XSCHED_AUTO_XQUEUE_UTILIZATION is ignored: `most of it`"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn signals_reach_the_program() {
    let env = TestEnvironment::with_service();
    let start = |command: &[&str]| {
        env.run(&[], command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut sleeper = start(&["sh", "-c", "echo ready; exec sleep 1000"]);
    let _output = wait_for_line(&mut sleeper, "ready");
    kill_process(Pid::from_child(&sleeper), Signal::TERM).unwrap();
    assert_eq!(sleeper.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));

    let mut guest = start(&["guest", "use"]);
    let mut output = wait_for_line(&mut guest, "ready");
    for _ in 0..200 {
        kill_process(Pid::from_child(&guest), Signal::USR1).unwrap();
        std::thread::yield_now();
    }
    guest.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut stdout = String::new();
    output.read_line(&mut stdout).unwrap();
    assert_eq!(stdout, "signals: some, other threads 0\n");
    guest.wait().unwrap();
}

#[test]
fn library_creates_no_thread_or_descriptor_before_the_first_queue() {
    let env = TestEnvironment::with_service();
    let resources = |command: &mut Command| -> Vec<(u32, u32)> {
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines()
            .filter_map(|line| {
                let (threads, descriptors) = line.split_once(": ")?.1.split_once(" threads, ")?;
                Some((threads.parse().ok()?, descriptors.strip_suffix(" descriptors")?.parse().ok()?))
            })
            .collect()
    };
    assert_eq!(resources(&mut env.direct(&["guest"])), resources(&mut env.run(&[], &["guest"])));

    let (direct, scheduled) =
        (resources(&mut env.direct(&["guest", "use"])), resources(&mut env.run(&[], &["guest", "use"])));
    assert_eq!(direct[..2], scheduled[..2], "threads or descriptors exist before the first queue");
    let ((threads, descriptors), (threads_now, descriptors_now)) = (direct[2], scheduled[2]);
    assert_eq!(descriptors_now, descriptors + 1, "only the connection to the service");
    assert!(
        threads_now > threads && threads_now <= threads + 3,
        "{threads_now} threads instead of {threads}"
    );
}

#[test]
fn higher_priority_holds_the_background_and_both_complete() {
    let env = TestEnvironment::with_service();
    let low = env.run(&["--priority", "low", "--name", "low"], &["work", "150", "20", "500"]);
    let mut low = env.spawn(low);
    wait_until("the first program is scheduled", || task(&env.status().tasks, "low").is_some());
    let high = env.run(&["--priority", "high", "--name", "high"], &["work", "20", "20", "500"]);
    let high = env.spawn(high);
    wait_until("the program of low priority is held", || {
        let tasks = env.status().tasks;
        task(&tasks, "low").is_some_and(|low| low.state == TaskState::Held)
            && task(&tasks, "high").is_some_and(|high| high.state == TaskState::Running)
    });
    let high = observed(&high.wait_with_output().unwrap());
    assert!(low.try_wait().unwrap().is_none(), "the program of low priority exited first");
    let low = observed(&low.wait_with_output().unwrap());
    for ((output, errors, status, _), done) in [(high, "finished 400\n"), (low, "finished 3000\n")] {
        assert!(output.ends_with(done), "{output}");
        assert_eq!((errors.as_str(), status), ("", Some(0)));
    }
}

#[test]
fn killed_service_resumes_held_program_which_joins_the_next() {
    let mut env = TestEnvironment::with_service();
    let high = env.run(&["--priority", "high", "--name", "high"], &["work", "100000", "20", "1000"]);
    let mut high = env.spawn(high);
    wait_until("the first program is scheduled", || task(&env.status().tasks, "high").is_some());
    let low = env.run(&["--priority", "low", "--name", "low"], &["work", "100000", "1", "100"]);
    let mut low = env.spawn(low);
    let held = |env: &TestEnvironment| {
        task(&env.status().tasks, "low").is_some_and(|low| low.state == TaskState::Held)
    };
    wait_until("the program is held", || held(&env));
    let mut lines = BufReader::new(low.stdout.take().unwrap()).lines();
    env.kill_service();
    for _ in 0..50 {
        lines.next().expect("the program runs").unwrap();
    }
    let reader = std::thread::spawn(move || lines.for_each(drop));
    env.start_service();
    wait_until("both programs have joined the new service", || {
        let tasks = env.status().tasks;
        task(&tasks, "low").is_some() && task(&tasks, "high").is_some()
    });
    wait_until("the program is held again", || held(&env));
    high.kill().unwrap();
    high.wait().unwrap();
    wait_until("the program is no longer held", || !held(&env));
    low.kill().unwrap();
    low.wait().unwrap();
    reader.join().unwrap();
}

#[test]
fn stopped_service_does_not_hold_programs() {
    let env = TestEnvironment::with_service();
    let high = env.run(&["--priority", "high", "--name", "high"], &["work", "100000", "20", "1000"]);
    let high = env.spawn(high);
    wait_until("the first program is scheduled", || task(&env.status().tasks, "high").is_some());
    let low = env.run(&["--priority", "low", "--name", "low"], &["work", "100000", "1", "100"]);
    let mut low = env.spawn(low);
    let held = || task(&env.status().tasks, "low").is_some_and(|low| low.state == TaskState::Held);
    wait_until("the program is held", held);
    let mut lines = BufReader::new(low.stdout.take().unwrap()).lines();
    kill_process(env.service(), Signal::STOP).unwrap();
    for _ in 0..50 {
        lines.next().expect("the program runs").unwrap();
    }

    // A new program does not wait for the stopped service, and is scheduled once the service continues.
    let late = ["work", "100000", "20", "1000"];
    let mut late = env.preloaded(&late).env("XSCHED_NAME", "late").stdout(Stdio::piped()).spawn().unwrap();
    // Kept open: a program whose output is closed ends.
    let _output = wait_for_line(&mut late, "round 0");
    kill_process(env.service(), Signal::CONT).unwrap();
    wait_until("the program is held again", held);
    wait_until("the new program is scheduled", || task(&env.status().tasks, "late").is_some());
    for mut program in [high, low, late] {
        program.kill().unwrap();
        program.wait().unwrap();
    }
}

#[test]
fn queue_settings_can_change_at_run_time() {
    let env = TestEnvironment::with_service();
    let mut program = env.run(&[], &["family", "late"]);
    let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let _output = wait_for_line(&mut program, "begun");
    let queue = || env.status().queues.first().cloned();
    wait_until("the program is scheduled", || queue().is_some());
    let before = queue().unwrap();
    assert_eq!((before.level, before.threshold, before.batch_size), (3, 0, 0));
    let change = |settings| {
        let reply = env.request(&Request::Configure { queue: before.handle, settings });
        assert!(matches!(reply, Reply::Done), "{reply:?}");
    };
    change(Settings { level: Some(2), threshold: Some(4), ..Settings::default() });
    wait_until("level and threshold have changed", || {
        queue().is_some_and(|now| (now.level, now.threshold, now.batch_size) == (2, 4, 4))
    });
    change(Settings { batch_size: Some(1), ..Settings::default() });
    wait_until("the batch size has changed", || {
        queue().is_some_and(|now| (now.threshold, now.batch_size) == (4, 1))
    });
    drop(program.stdin.take());
    program.wait().unwrap();
}

#[test]
fn held_program_can_exit() {
    let env = TestEnvironment::with_service();
    // Busy for 20 s without an idle gap.
    let high = env.run(&["--priority", "high", "--name", "high"], &["work", "1", "1000", "20000"]);
    let mut high = env.spawn(high);
    wait_until("the program of high priority is scheduled", || task(&env.status().tasks, "high").is_some());
    let mut late = env
        .run(&["--priority", "low", "--name", "late"], &["family", "late"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = wait_for_line(&mut late, "begun");
    wait_until("the program of low priority is scheduled", || task(&env.status().tasks, "late").is_some());
    late.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut stdout = String::new();
    output.read_line(&mut stdout).unwrap();
    assert_eq!(stdout, "late\n");
    assert_eq!(late.wait().unwrap().code(), Some(5));
    high.kill().unwrap();
    let (done, ..) = observed(&high.wait_with_output().unwrap());
    assert_eq!(done, "", "the program was held until the leader exited");
}

#[test]
fn run_starts_a_detached_service_if_none_runs() {
    let env = TestEnvironment::without_service();
    // A shell waits for all of its children. It would not exit if the service were one of them.
    let output = env.run(&[], &["sh", "-c", "work 1 5 50; wait"]).output().unwrap();
    assert_eq!(observed(&output), ("round 0\nfinished 5\n".to_owned(), String::new(), Some(0), None));
    let service = env.status().pid;
    env.stop_started_service();
    wait_until("the service stops on request", || {
        !std::path::Path::new(&format!("/proc/{service}")).exists()
    });
}

#[test]
fn programs_run_without_a_service() {
    let mut env = TestEnvironment::without_service();
    // No socket can be created in this directory, so no service can listen.
    env.move_socket("/proc/no/such/place");
    let output = env.run(&[], &["work", "-s", "6", "2", "5", "50"]).output().unwrap();
    let (stdout, error, status, _) = observed(&output);
    assert_eq!((stdout.as_str(), status), ("round 0\nround 1\nfinished 10\n", Some(6)));
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.contains("runs unscheduled until a service runs"), "{error}");
}

#[test]
fn process_can_use_a_local_scheduler() {
    let env = TestEnvironment::without_service();
    for (variable, value) in
        [("XSCHED_POLICY", "CFS"), ("XSCHED_SCHEDULER", "LCL"), ("XSCHED_SCHEDULER", "APP")]
    {
        let mut command = env.preloaded(&["work", "-q", "2", "2", "20", "50"]);
        let output = command.env_remove("XSCHED_SCHEDULER").env(variable, value).output().unwrap();
        assert_eq!(
            observed(&output),
            ("round 0\nround 1\nfinished 40\n".to_owned(), String::new(), Some(0), None)
        );
    }
}

#[test]
fn static_program_runs_with_a_warning() {
    let env = TestEnvironment::with_service();
    let Some(program) = env.static_program() else {
        return skip("the compiler cannot link statically (Debian: libc6-dev)");
    };
    let output = env.run(&[], &[&program]).output().unwrap();
    let (stdout, error, status, _) = observed(&output);
    assert_eq!((stdout.as_str(), status), ("static\n", Some(3)));
    assert!(error.contains("will run unscheduled") && error.contains("linked statically"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn program_with_the_address_sanitizer_is_scheduled_and_so_are_its_children() {
    let env = TestEnvironment::with_service();
    let xsim = env.library("libxsim.so");
    let directory = std::path::Path::new(&xsim).parent().unwrap().display().to_string();
    let source = format!("{}/tests/programs/work.c", env!("CARGO_MANIFEST_DIR"));
    let program = std::path::Path::new(&env.file("work-asan", "")).to_owned();
    let headers = format!("{}/../../standins/xsim", env!("CARGO_MANIFEST_DIR"));
    let mut compile = std::process::Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compile.args(["-std=gnu11", "-fsanitize=address", "-shared-libasan", "-o"]).arg(&program);
    compile.args([&source, "-I", &headers, "-L", &directory, "-lxsim", "-ldl"]);
    compile.arg(format!("-Wl,-rpath,{directory}"));
    let made = compile.output().unwrap();
    if !made.status.success() {
        // Only Clang knows `-shared-libasan`, and links the runtime statically without it.
        let arguments: Vec<_> =
            compile.get_args().filter(|arg| *arg != "-shared-libasan").map(ToOwned::to_owned).collect();
        let made = std::process::Command::new(compile.get_program()).args(arguments).output().unwrap();
        if !made.status.success() {
            return skip("the compiler has no address sanitizer (Debian: gcc)");
        }
    }
    let program = program.display().to_string();
    let native = env.direct(&[&program, "2", "3", "100"]).output().unwrap();
    assert!(native.status.success(), "{native:?}");
    let output = env.run(&["--name", "sanitized"], &[&program, "2", "3", "100"]).output().unwrap();
    let (stdout, error, status, _) = observed(&output);
    assert_eq!((stdout.as_str(), status), ("round 0\nround 1\nfinished 6\n", Some(0)), "{error}");
    assert!(error.contains("address sanitizer") && error.contains("ASAN_OPTIONS"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");

    let busy =
        env.spawn(env.run(&["--name", "sanitized"], &["sh", "-c", &format!("'{program}' 1 1 600000000; :")]));
    wait_until("the child process is scheduled", || task(&env.status().tasks, "sanitized").is_some());
    let tasks = env.status().tasks;
    let child =
        rustix::process::Pid::from_raw(i32::try_from(task(&tasks, "sanitized").unwrap().pid).unwrap());
    kill_process(child.unwrap(), Signal::KILL).unwrap();
    let output = busy.wait_with_output().unwrap();
    let message = "a program that `xsched run` does not start itself needs no message";
    assert!(!String::from_utf8_lossy(&output.stderr).contains("address sanitizer"), "{message}: {output:?}");
}

/// A program whose loader has the name of musl's: it would exit with 127 if the library were preloaded.
#[test]
fn program_with_another_c_library_runs_without_the_preload() {
    let env = TestEnvironment::with_service();
    let system = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
    let Some(system) = system.into_iter().find(|loader| std::path::Path::new(loader).exists()) else {
        return skip("the system does not use the GNU C library");
    };
    let loader = env.device().with_file_name("ld-musl-test.so.1").display().to_string();
    std::os::unix::fs::symlink(system, &loader).unwrap();
    let source = env.file(
        "preload.c",
        "#include <stdio.h>\n#include <stdlib.h>\n\
         int main(void) { puts(getenv(\"LD_PRELOAD\") ? \"preloaded\" : \"alone\"); return 3; }\n",
    );
    let program = env.device().with_file_name("other").display().to_string();
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let dynamic_linker = format!("-Wl,--dynamic-linker={loader}");
    assert!(
        Command::new(compiler).args([&source, "-o", &program, &dynamic_linker]).status().unwrap().success()
    );
    let (stdout, error, status, _) = observed(&env.run(&[], &[&program]).output().unwrap());
    assert_eq!((stdout.as_str(), status), ("alone\n", Some(3)), "{error}");
    assert!(error.contains("will run unscheduled") && error.contains("musl"), "{error}");
}

/// The exit status and the errors of a command.
fn failure(mut command: Command) -> (Option<i32>, String) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn unknown_option_is_named_and_options_of_the_program_are_passed_on() {
    let env = TestEnvironment::with_service();
    let (status, error) = failure(env.xsched(&["run", "--prio", "high", "--", "true"]));
    assert_eq!(status, Some(125), "{error}");
    assert!(error.contains("'--prio'") && error.contains("'--priority'"), "{error}");
    for words in [&["run", "echo", "--prio"][..], &["run", "--", "echo", "--prio"]] {
        assert_eq!(env.xsched(words).output().unwrap().stdout, b"--prio\n");
    }
}

#[test]
fn variable_that_makes_no_sense_is_reported_in_one_line() {
    let env = TestEnvironment::with_service();
    let run = |options: &[&str]| {
        let mut command = env.run(options, &["work", "1", "1", "1"]);
        command.env("XSCHED_AUTO_XQUEUE_PRIORITY", "hgih");
        failure(command)
    };
    let (status, error) = run(&[]);
    assert_eq!((status, error.lines().count()), (Some(0), 1), "{error}");
    assert!(error.starts_with("xsched: XSCHED_AUTO_XQUEUE_PRIORITY is ignored: priority `hgih`"), "{error}");
    assert_eq!(run(&["--priority", "low"]), (Some(0), String::new()), "the option replaces the variable");
}

#[test]
fn clamped_priority_is_reported_in_one_line() {
    if !rustix::process::geteuid().is_root() {
        return skipped::record_skipped("only root can become another user");
    }
    let env = TestEnvironment::with_service();
    let directory = env.socket().parent().unwrap();
    for (path, mode) in [(directory, 0o755), (env.socket(), 0o666)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let run = |priority: &str| {
        let mut command = env.xsched(&["run", "--priority", priority, "--", "true"]);
        command.uid(65_534).gid(65_534).current_dir("/").stdin(Stdio::null());
        command.output()
    };
    let output = match run("high") {
        Ok(output) => output,
        Err(error) => {
            return skipped::record_skipped(&format!("the other user cannot execute xsched: {error}"));
        }
    };
    let (stdout, error, status, _) = observed(&output);
    assert_eq!((stdout.as_str(), status), ("", Some(0)), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    for part in ["priority 100 was requested, 0 was granted", "user 65534", "join the group `xsched`"] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
    assert_eq!(observed(&run("low").unwrap()).1, "");
}

#[test]
fn list_and_status_mean_ps_and_stop_ends_the_service() {
    let mut env = TestEnvironment::with_service();
    let output = |words: &[&str]| observed(&env.xsched(words).output().unwrap());
    for word in ["list", "status"] {
        assert_eq!(output(&[word]), output(&["ps"]));
    }
    let (stdout, error, status, _) = output(&["stop"]);
    assert_eq!((error.as_str(), status), ("", Some(0)));
    assert!(stdout.ends_with("has shut down\n"), "{stdout}");
    let (_, error, status, _) = output(&["stop"]);
    assert_eq!(status, Some(1));
    assert!(error.contains("no scheduler is running"), "{error}");
    env.start_service();
}

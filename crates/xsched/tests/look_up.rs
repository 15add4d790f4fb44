//! Programs that look functions up by version, or where there are none, and processes with more than one copy of the library.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;

use std::process::{Child, Command, Stdio};

use environment::{TestEnvironment, built_program, wait_until};

/// What a command says, and what it complains about.
fn said(mut command: Command) -> (String, String) {
    let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {out}{err}");
    (out, err)
}

#[test]
fn what_is_looked_up_by_version_is_found_as_without_us_and_hooked() {
    let library = built_program("versioned", &["-shared", "-fPIC", "-Wl,--version-script=versioned.map"]);
    let program = built_program("versions", &["-ldl"]);
    let program = [program.to_str().unwrap(), library.to_str().unwrap()];
    let env = TestEnvironment::with_service();
    let (native, _) = said(env.direct(&program));
    let (scheduled, _) = said(env.run(&[], &program));
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let (native, scheduled) = (lines(&native), lines(&scheduled));
    assert!(native.len() > 30 && native.iter().any(|line| line.contains("libc.so.6 0x")), "{native:#?}");
    let (own, theirs) = (native.len() - 1, scheduled.len() - 1);
    assert_eq!(native[..own], scheduled[..theirs], "the same answers, and the same functions called");
    assert_eq!(native[own - 1], "101 102 103");
    assert_eq!(native[own], "versioned versioned versioned");
    // Of two versions, the one that was asked for first is ours; the other is right, and left alone.
    assert_eq!(scheduled[theirs], "versioned libxsched.so libxsched.so");
}

#[test]
fn a_vendors_library_that_is_not_there_is_not_found() {
    let program = built_program("present", &["-ldl"]);
    let env = TestEnvironment::with_service();
    let program = [program.to_str().unwrap(), &env.library("libxsim.so")];
    let (native, _) = said(env.direct(&program));
    assert_eq!(native.matches("xsim_launch: 0 1 0").count(), 1, "{native}");
    assert_eq!(native.matches("xsim_launch: 1 0 1").count(), 1, "{native}");
    assert_eq!(said(env.run(&[], &program)).0, native);
}

/// A copy of the library elsewhere, as an older installation would leave one.
fn another_copy(env: &TestEnvironment) -> String {
    let copy = env.file("libxsched.so", "");
    std::fs::copy(env.library("libxsched.so"), &copy).unwrap();
    copy
}

/// A program with three queues, of which each launches once.
const THREE_QUEUES: [&str; 6] = ["work", "-q", "3", "3", "1", "50"];

#[test]
fn of_two_copies_in_a_process_one_does_the_work() {
    let env = TestEnvironment::with_service();
    let (ours, copy) = (env.library("libxsched.so"), another_copy(&env));
    for (first, second) in [(&ours, &copy), (&copy, &ours)] {
        let mut command = env.preloaded(&["work", "-q", "3", "100000", "1", "1000"]);
        command.env("LD_PRELOAD", format!("{first}:{second}")).env("XLOG_LEVEL", "WARN");
        let child = env.spawn(command);
        let mine =
            || env.status().tasks.into_iter().filter(|task| task.pid == child.id()).collect::<Vec<_>>();
        wait_until("it is scheduled", || mine().first().is_some_and(|task| task.queues == 3));
        assert_eq!(mine().len(), 1, "scheduled once");
        let said = end(child);
        let expected = format!(" is inactive: {first} was loaded into this process before it");
        assert!(said.contains(second) && said.contains(&expected) && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn another_copy_in_the_environment_is_left_out_with_a_word() {
    let env = TestEnvironment::with_service();
    let copy = another_copy(&env);
    let link = format!("{copy}.link");
    std::os::unix::fs::symlink(env.library("libxsched.so"), &link).unwrap();
    let harmless = env.library("libxsim.so");
    let mut command = env.run(&[], &["sh", "-c", "echo $LD_PRELOAD; exec work -q 3 3 1 50"]);
    command.env("LD_PRELOAD", format!("{copy}:{link}:{harmless}")).env("XLOG_LEVEL", "WARN");
    let (out, err) = said(command);
    let (out, native) = (out.split_once('\n').unwrap(), said(env.direct(&THREE_QUEUES)).0);
    assert_eq!(out.0, format!("{}:{harmless}", env.library("libxsched.so")));
    assert_eq!(out.1, native);
    assert!(err.starts_with(&format!("xsched: {copy} is removed from LD_PRELOAD: ")), "{err}");
    assert_eq!(err.lines().count(), 1, "nothing about its own library by another name: {err}");
}

fn end(mut child: Child) -> String {
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&output.stderr).into_owned()
}

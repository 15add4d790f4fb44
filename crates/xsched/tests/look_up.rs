//! Programs that look up functions by version or in a library that lacks them, and processes with two copies of the library.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;

use std::process::{Child, Command, Stdio};

use environment::{TestEnvironment, built_program, wait_until};

/// The standard output and standard error of a command.
fn output_of(mut command: Command) -> (String, String) {
    let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {out}{err}");
    (out, err)
}

#[test]
fn versioned_look_ups_return_the_same_functions_and_are_hooked() {
    let library = built_program("versioned", &["-shared", "-fPIC", "-Wl,--version-script=versioned.map"]);
    let program = built_program("versions", &["-ldl"]);
    let program = [program.to_str().unwrap(), library.to_str().unwrap()];
    let env = TestEnvironment::with_service();
    let (native, _) = output_of(env.direct(&program));
    let (scheduled, _) = output_of(env.run(&[], &program));
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let (native, scheduled) = (lines(&native), lines(&scheduled));
    assert!(native.len() > 30 && native.iter().any(|line| line.contains("libc.so.6 0x")), "{native:#?}");
    let (own, theirs) = (native.len() - 1, scheduled.len() - 1);
    assert_eq!(native[..own], scheduled[..theirs], "the same results, and the same functions called");
    assert_eq!(native[own - 1], "101 102 103");
    assert_eq!(native[own], "versioned versioned versioned");
    // Of two versions, the first that is looked up is hooked; the second is the correct function without a hook.
    assert_eq!(scheduled[theirs], "versioned libxsched.so libxsched.so");
}

#[test]
fn missing_vendor_library_is_not_found() {
    let program = built_program("present", &["-ldl"]);
    let env = TestEnvironment::with_service();
    let program = [program.to_str().unwrap(), &env.library("libxsim.so")];
    let (native, _) = output_of(env.direct(&program));
    assert_eq!(native.matches("xsim_launch: 0 1 0").count(), 1, "{native}");
    assert_eq!(native.matches("xsim_launch: 1 0 1").count(), 1, "{native}");
    assert_eq!(output_of(env.run(&[], &program)).0, native);
}

/// A second copy of the library, as from an older installation.
fn second_copy(env: &TestEnvironment) -> String {
    let copy = env.file("libxsched.so", "");
    std::fs::copy(env.library("libxsched.so"), &copy).unwrap();
    copy
}

/// A program with three queues, each with one launch.
const THREE_QUEUES: [&str; 6] = ["work", "-q", "3", "3", "1", "50"];

#[test]
fn only_one_of_two_copies_in_a_process_is_active() {
    let env = TestEnvironment::with_service();
    let (library, copy) = (env.library("libxsched.so"), second_copy(&env));
    for (first, second) in [(&library, &copy), (&copy, &library)] {
        let mut command = env.preloaded(&["work", "-q", "3", "100000", "1", "1000"]);
        command.env("LD_PRELOAD", format!("{first}:{second}")).env("XLOG_LEVEL", "WARN");
        let child = env.spawn(command);
        let tasks =
            || env.status().tasks.into_iter().filter(|task| task.pid == child.id()).collect::<Vec<_>>();
        wait_until("the program is scheduled", || tasks().first().is_some_and(|task| task.queues == 3));
        assert_eq!(tasks().len(), 1, "scheduled once");
        let stderr = end(child);
        let expected = format!(" is inactive: {first} was loaded into this process before it");
        assert!(
            stderr.contains(second) && stderr.contains(&expected) && stderr.lines().count() == 1,
            "{stderr}"
        );
    }
}

#[test]
fn second_copy_in_ld_preload_is_removed_with_a_warning() {
    let env = TestEnvironment::with_service();
    let copy = second_copy(&env);
    let link = format!("{copy}.link");
    std::os::unix::fs::symlink(env.library("libxsched.so"), &link).unwrap();
    let harmless = env.library("libxsim.so");
    let mut command = env.run(&[], &["sh", "-c", "echo $LD_PRELOAD; exec work -q 3 3 1 50"]);
    command.env("LD_PRELOAD", format!("{copy}:{link}:{harmless}")).env("XLOG_LEVEL", "WARN");
    let (out, err) = output_of(command);
    let (out, native) = (out.split_once('\n').unwrap(), output_of(env.direct(&THREE_QUEUES)).0);
    assert_eq!(out.0, format!("{}:{harmless}", env.library("libxsched.so")));
    assert_eq!(out.1, native);
    assert!(err.starts_with(&format!("xsched: {copy} is removed from LD_PRELOAD: ")), "{err}");
    assert_eq!(err.lines().count(), 1, "a link to the same library causes no warning: {err}");
}

fn end(mut child: Child) -> String {
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&output.stderr).into_owned()
}

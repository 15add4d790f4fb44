//! Standard error that no program reads, or that cannot be written: the service, `xsched run` and scheduled programs continue.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;

use std::io::{PipeReader, PipeWriter, Write as _, pipe};
use std::process::{Command, Stdio};

use environment::{TestEnvironment, wait_until};
use rustix::process::{Signal, kill_process};

/// The end of a pipe for a program's output, and the reader of the pipe, if it exists.
type Unread = (Option<PipeReader>, PipeWriter);

fn without_reader() -> Unread {
    (None, pipe().unwrap().1)
}

/// A pipe with a reader that does not read, and no room.
fn full() -> Unread {
    let (reader, mut writer) = pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while writer.write(&[0; 4_096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    (Some(reader), writer)
}

/// The output and the exit status of a command whose messages are not read.
fn output(mut command: Command, (reader, writer): Unread) -> (String, Option<i32>) {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(writer).spawn().unwrap();
    // The command has its own copy.
    drop(command);
    let output = child.wait_with_output().unwrap();
    drop(reader);
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code())
}

const WORK: [&str; 4] = ["work", "1", "5", "50"];

fn done() -> (String, Option<i32>) {
    ("round 0\nfinished 5\n".to_owned(), Some(0))
}

#[test]
fn program_runs_although_no_program_reads_the_messages_of_run() {
    let mut env = TestEnvironment::without_service();
    // No service can listen there, which `xsched run` reports.
    env.move_socket("/proc/no/such/place");
    assert_eq!(output(env.run(&[], &WORK), without_reader()), done());
}

#[test]
fn program_runs_although_no_program_reads_the_messages_of_the_library() {
    let env = TestEnvironment::with_service();
    let chatty = || {
        let mut program = Command::new("timeout");
        let preloaded = env.preloaded(&WORK);
        program.arg("60").arg(preloaded.get_program()).args(preloaded.get_args());
        program.envs(preloaded.get_envs().filter_map(|(name, value)| Some((name, value?))));
        program.env("XSCHED_AUTO_XQUEUE_UTILIZATION", "most of it").env("XLOG_LEVEL", "DEBG");
        program
    };
    assert_eq!(output(chatty(), without_reader()), done());
    assert_eq!(output(chatty(), full()), done());
}

#[test]
fn service_reloads_its_configuration_although_its_messages_cannot_be_written() {
    let mut env = TestEnvironment::without_service();
    let write = |env: &TestEnvironment, policy: &str, names: bool| {
        env.file(
            "config.toml",
            &format!("[defaults]\npolicy = \"{policy}\"\n[http]\nmetrics_names = {names}\n"),
        )
    };
    let file = write(&env, "priority", false);
    let script = format!("exec \"$@\" --config '{file}' 2>/dev/full");
    env.start_service_under(&["sh", "-c", &script, "sh"]);
    assert_eq!(env.status().policy, "HPF");
    // The service reports changes of [http], which need a restart.
    for (policy, names, short) in [("fair", true, "CFS"), ("deadline", false, "KEDF")] {
        write(&env, policy, names);
        kill_process(env.service(), Signal::HUP).unwrap();
        wait_until(policy, || env.status().policy == short);
    }
}

//! A program of high priority that is stopped, frozen or debugged holds no other program, and a long command is no such stop.
//!
//! Two C programs without any XSched code, the real `xsched run`, the real service, one simulated device.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod skipped;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::path::{Path, PathBuf};

use environment::{TestEnvironment, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use skipped::record_skipped;
use test_program::TestProgram;
use xsched_ipc::protocol::{TaskState, TaskStatus};

/// Each step is a command of 2 ms, and prints a line.
const STEPS: [&str; 4] = ["work", "1000000", "1", "2000"];
/// One command, for longer than any test.
const LONG_COMMAND: [&str; 4] = ["work", "1", "1", "600000000"];
/// How many steps the program of low priority completes to show that it is not held.
const ENOUGH_STEPS: usize = 50;

/// A program of high priority with a long command, for which one of low priority is held.
struct Contention {
    env: TestEnvironment,
    high: TestProgram,
    low: TestProgram,
}

impl Contention {
    fn start() -> Self {
        let env = TestEnvironment::with_service();
        let low = TestProgram::spawn(env.run(&["--priority", "low", "--name", "low"], &STEPS));
        low.next_line();
        let high = TestProgram::spawn(env.run(&["--priority", "high", "--name", "high"], &LONG_COMMAND));
        let contention = Self { env, high, low };
        contention.wait_for("the program of low priority is held", "low", TaskState::Held);
        contention
    }

    fn task(&self, name: &str) -> TaskStatus {
        let tasks = self.env.status().tasks;
        tasks.into_iter().find(|task| task.name == name).expect("the program is scheduled")
    }

    fn wait_for(&self, what: &str, name: &str, state: TaskState) {
        wait_until(what, || self.task(name).state == state);
    }

    /// The program of high priority is stopped by `stop`, and continues after `resume`.
    fn check<T>(&self, stop: impl FnOnce(u32) -> T, resume: impl FnOnce(T)) {
        let stopped = stop(self.high.pid());
        self.wait_for("the stopped program is stalled", "high", TaskState::Stalled);
        self.low.lines.try_iter().for_each(drop);
        for _ in 0..ENOUGH_STEPS {
            self.low.next_line();
        }
        let ps = self.env.xsched(&["ps"]).output().unwrap();
        assert!(String::from_utf8_lossy(&ps.stdout).contains("stalled"), "{ps:?}");
        resume(stopped);
        self.wait_for("the program has its precedence again", "low", TaskState::Held);
        assert_eq!(self.task("high").state, TaskState::Running);
    }
}

#[test]
fn program_with_a_long_command_keeps_its_precedence() {
    let contention = Contention::start();
    let held = contention.task("low").held_ns;
    // Ten checks of the service.
    wait_until("the program is held for 1 s", || {
        assert_eq!(contention.task("high").state, TaskState::Running);
        contention.task("low").held_ns > held + 1_000_000_000
    });
}

#[test]
fn program_stopped_by_a_signal_holds_no_other_program() {
    let send = |signal| {
        move |pid: u32| {
            let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
            kill_process(pid, signal).unwrap();
        }
    };
    let contention = Contention::start();
    let pid = contention.high.pid();
    contention.check(send(Signal::STOP), |()| send(Signal::CONT)(pid));
}

/// All threads of a process, stopped by the calling thread as a debugger does, until it is dropped.
///
/// Dropped also when a check fails: a killed process remains until its tracer has detached from the threads.
struct Debugged {
    threads: Vec<libc::pid_t>,
}

impl Debugged {
    /// None if this process may not trace another.
    fn attach(pid: u32) -> Option<Self> {
        let mut debugged = Self { threads: Vec::new() };
        // A thread that still runs may create another: read the list until it contains no new one.
        loop {
            let entries = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
            let all = entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap());
            let new: Vec<libc::pid_t> = all.filter(|thread| !debugged.threads.contains(thread)).collect();
            if new.is_empty() {
                return Some(debugged);
            }
            for thread in new {
                if ptrace(libc::PTRACE_SEIZE, thread) != 0 {
                    if std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH) {
                        // The thread has exited meanwhile.
                        continue;
                    }
                    return None;
                }
                debugged.threads.push(thread);
                assert_eq!(ptrace(libc::PTRACE_INTERRUPT, thread), 0);
                // SAFETY: waits for the stop requested above. The status is not needed.
                assert_eq!(unsafe { libc::waitpid(thread, std::ptr::null_mut(), libc::__WALL) }, thread);
            }
        }
    }
}

impl Drop for Debugged {
    fn drop(&mut self) {
        for &thread in &self.threads {
            ptrace(libc::PTRACE_DETACH, thread);
        }
    }
}

fn ptrace(request: libc::c_uint, thread: libc::pid_t) -> libc::c_long {
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the requests of this test read and write no memory of this process.
    unsafe { libc::ptrace(request, thread, nothing, nothing) }
}

#[test]
fn program_in_a_debugger_holds_no_other_program() {
    let contention = Contention::start();
    match Debugged::attach(contention.high.pid()) {
        Some(debugged) => contention.check(|_| debugged, drop),
        None => record_skipped("this process may not trace another (ptrace is restricted)"),
    }
}

/// A control group, frozen until it is dropped.
struct FrozenGroup {
    directory: PathBuf,
    file: &'static str,
    thawed: &'static str,
}

impl FrozenGroup {
    /// Moves a process to a new group below `mount` and freezes the group. None if that is not possible.
    fn of(pid: u32, mount: &str, file: &'static str, [frozen, thawed]: [&'static str; 2]) -> Option<Self> {
        let directory = Path::new(mount).join(format!("xsched-test-{pid}"));
        std::fs::create_dir(&directory).ok()?;
        let group = Self { directory, file, thawed };
        std::fs::write(group.directory.join("cgroup.procs"), pid.to_string()).ok()?;
        std::fs::write(group.directory.join(file), frozen).ok()?;
        Some(group)
    }
}

impl Drop for FrozenGroup {
    fn drop(&mut self) {
        let _ = std::fs::write(self.directory.join(self.file), self.thawed);
        let parent = self.directory.parent().unwrap().join("cgroup.procs");
        for pid in std::fs::read_to_string(self.directory.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = std::fs::write(&parent, pid);
        }
        let _ = std::fs::remove_dir(&self.directory);
    }
}

#[test]
fn program_in_a_frozen_control_group_holds_no_other_program() {
    let contention = Contention::start();
    let pid = contention.high.pid();
    let version_2 = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
    let group = version_2.into_iter().find_map(|mount| {
        let is_mounted = Path::new(mount).join("cgroup.procs").exists();
        is_mounted.then(|| FrozenGroup::of(pid, mount, "cgroup.freeze", ["1", "0"])).flatten()
    });
    match group {
        Some(group) => contention.check(|_| group, drop),
        None => record_skipped("no control group of version 2 can be created (it needs root)"),
    }
}

#[test]
fn program_in_a_frozen_control_group_of_version_1_holds_no_other_program() {
    let contention = Contention::start();
    let pid = contention.high.pid();
    match FrozenGroup::of(pid, "/sys/fs/cgroup/freezer", "freezer.state", ["FROZEN", "THAWED"]) {
        Some(group) => contention.check(|_| group, drop),
        None => record_skipped("this machine has no freezer of version 1, or it needs root"),
    }
}

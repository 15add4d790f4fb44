//! Identifies processes and checks whether they are alive.
//!
//! A pid identifies a process only until it is reused; pid and start time together identify it permanently. A process
//! that was killed but not yet reaped by its parent counts as dead, because it executes nothing more.

use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, getpid, test_kill_process};

/// A process of this machine, alive or dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Clock ticks from boot to its start; 0 if /proc does not report them.
    pub(crate) started: u64,
}

/// The fields of `/proc/<pid>/stat` that matter here.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    ended: bool,
    started: u64,
}

impl Process {
    /// The calling process.
    pub(crate) fn current() -> Self {
        let pid = current_pid();
        Self { pid, started: read_stat(pid).map_or(0, |stat| stat.started) }
    }

    /// Whether the process is alive. In doubt it counts as alive: taking over from a live process is worse than waiting.
    pub(crate) fn is_alive(self) -> bool {
        is_alive_if(self.pid, |started| self.started == 0 || started == self.started)
    }
}

/// The pid of the calling process; a child has a different one after fork.
pub(crate) fn current_pid() -> u32 {
    u32::try_from(getpid().as_raw_pid()).unwrap_or(0)
}

/// Whether a process with this pid is alive and `accepts_start` accepts its start time.
pub(crate) fn is_alive_if(pid: u32, accepts_start: impl Fn(u64) -> bool) -> bool {
    let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    if test_kill_process(id) == Err(Errno::SRCH) {
        return false;
    }
    read_stat(pid).is_none_or(|stat| !stat.ended && accepts_start(stat.started))
}

fn read_stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses a stat line. The program name in parentheses may hold anything, so fields are counted from the last parenthesis.
fn parse_stat(text: &str) -> Option<Stat> {
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let threads: u64 = fields.nth(16)?.parse().ok()?;
    let started = fields.nth(1)?.parse().ok()?;
    // A main thread that has exited looks like a zombie while other threads of its process still run.
    Some(Stat { ended: matches!(state, "Z" | "X") && threads <= 1, started })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_name_cannot_disguise_the_state() {
        let line = "42 (a) Z (b) R 1 1 1 0 -1 4194304 101 0 0 0 0 0 0 0 20 0 3 0 131960 3133440 414";
        assert_eq!(parse_stat(line), Some(Stat { ended: false, started: 131_960 }));
        let line = "42 (a) Z 1 1 1 0 -1 4194304 101 0 0 0 0 0 0 0 20 0 1 0 7 3133440 414";
        assert_eq!(parse_stat(line), Some(Stat { ended: true, started: 7 }));
    }

    #[test]
    fn this_process_is_alive_and_a_reused_pid_is_not() {
        let me = Process::current();
        assert!(me.is_alive());
        assert!(!Process { started: me.started + 1, ..me }.is_alive());
        assert!(!Process { pid: 0, started: 0 }.is_alive());
    }

    #[test]
    fn killed_process_is_dead_before_it_is_reaped() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process { pid: child.id(), started: 0 };
        assert!(process.is_alive());
        child.kill().unwrap();
        while process.is_alive() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!process.is_alive());
    }
}

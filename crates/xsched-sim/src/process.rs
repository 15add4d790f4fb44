//! Which process is which, and whether it still lives.
//!
//! A pid alone names a process only until it is used again; together with the time the process was started it names
//! it for good. A process that was killed but not yet waited for by its parent counts as gone: it will never act.

use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, getpid, test_kill_process};

/// A process of this machine, past or present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Clock ticks from boot to its start; 0 when /proc does not tell.
    pub(crate) started: u64,
}

/// What `/proc/<pid>/stat` says about a process.
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

    /// Whether it can still act. In doubt it can: taking something from a live process is worse than waiting.
    pub(crate) fn is_alive(self) -> bool {
        is_alive_if(self.pid, |started| self.started == 0 || started == self.started)
    }
}

/// The calling process's number: another one after a fork.
pub(crate) fn current_pid() -> u32 {
    u32::try_from(getpid().as_raw_pid()).unwrap_or(0)
}

/// Whether a process with this number lives and was started when `is_it` accepts.
pub(crate) fn is_alive_if(pid: u32, is_it: impl Fn(u64) -> bool) -> bool {
    let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    if test_kill_process(id) == Err(Errno::SRCH) {
        return false;
    }
    read_stat(pid).is_none_or(|stat| !stat.ended && is_it(stat.started))
}

fn read_stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name in parentheses may hold anything, so fields are counted from the last parenthesis.
fn parse_stat(text: &str) -> Option<Stat> {
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let threads: u64 = fields.nth(16)?.parse().ok()?;
    let started = fields.nth(1)?.parse().ok()?;
    // A main thread that ended looks like a zombie while others of its process go on.
    Some(Stat { ended: matches!(state, "Z" | "X") && threads <= 1, started })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_program_cannot_disguise_its_state() {
        let line = "42 (a) Z (b) R 1 1 1 0 -1 4194304 101 0 0 0 0 0 0 0 20 0 3 0 131960 3133440 414";
        assert_eq!(parse_stat(line), Some(Stat { ended: false, started: 131_960 }));
        let line = "42 (a) Z 1 1 1 0 -1 4194304 101 0 0 0 0 0 0 0 20 0 1 0 7 3133440 414";
        assert_eq!(parse_stat(line), Some(Stat { ended: true, started: 7 }));
    }

    #[test]
    fn this_process_lives_and_its_namesake_does_not() {
        let me = Process::current();
        assert!(me.is_alive());
        assert!(!Process { started: me.started + 1, ..me }.is_alive());
        assert!(!Process { pid: 0, started: 0 }.is_alive());
    }

    #[test]
    fn a_killed_process_is_gone_before_anybody_waited_for_it() {
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

//! What the system knows about a process.
//!
//! Everything here is for people and for rules, none of it decides who may do what but the groups: and those are
//! believed only if the process still belongs to the user at the other end of the socket.

use std::io::Read as _;
use std::os::fd::OwnedFd;

use rustix::process::Pid;

/// The longest text that is kept about a process.
const LONGEST: usize = 512;

fn read(pid: u32, what: &str, most: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(format!("/proc/{pid}/{what}")).ok()?;
    file.take(most as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// A handle on a process that no other process ever has.
pub(super) fn pidfd(pid: u32) -> Option<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

/// Whether a process has not ended.
pub(super) fn lives(pidfd: &OwnedFd) -> bool {
    let mut ended = [rustix::event::PollFd::new(pidfd, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut ended, Some(&now)) == Ok(0)
}

/// The path of its executable; its short name if the path may not be known.
pub(super) fn executable(pid: u32) -> String {
    let path = std::fs::read_link(format!("/proc/{pid}/exe"));
    let name = path.map(|path| path.to_string_lossy().into_owned()).ok();
    name.or_else(|| Some(String::from_utf8_lossy(&read(pid, "comm", 64)?).trim_end().to_owned()))
        .map_or_else(String::new, |name| clean(name.strip_suffix(" (deleted)").unwrap_or(&name)))
}

/// Its command line.
pub(super) fn command_line(pid: u32) -> String {
    let bytes = read(pid, "cmdline", LONGEST).unwrap_or_default();
    let text: Vec<_> = bytes.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    clean(text.join(" ").trim_end())
}

/// Its control group.
pub(super) fn cgroup(pid: u32) -> String {
    let bytes = read(pid, "cgroup", 8192).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default().to_owned()
}

/// Its supplementary groups, if it belongs to this user.
pub(super) fn groups(pid: u32, uid: u32) -> Vec<u32> {
    let bytes = read(pid, "status", 65_536).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let numbers = |field: &str| -> Vec<u32> {
        let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
        line.split_whitespace().filter_map(|number| number.parse().ok()).collect()
    };
    if numbers("Uid:").contains(&uid) { numbers("Groups:") } else { Vec::new() }
}

/// Its CPU nice value.
pub(super) fn nice(pid: u32) -> Option<i8> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    i8::try_from(rustix::process::getpriority_process(Some(pid)).ok()?).ok()
}

/// What can be shown on a terminal and fits a packet.
pub(super) fn clean(text: &str) -> String {
    let shown = text.chars().map(|c| if c.is_control() { '?' } else { c });
    let mut cleaned = String::new();
    for c in shown {
        if cleaned.len() + c.len_utf8() > LONGEST {
            break;
        }
        cleaned.push(c);
    }
    cleaned
}

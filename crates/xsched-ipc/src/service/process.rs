//! Facts about a process from the kernel, for status reports and rules.
//!
//! Permissions depend only on the groups. Those are used only if the process still belongs to the user that the kernel reports
//! for the socket.

use std::io::Read as _;
use std::os::fd::OwnedFd;

use rustix::process::Pid;

/// The maximum length of a text about a process, in bytes.
const MAX_TEXT_LENGTH: usize = 512;

fn read(pid: u32, file: &str, max_length: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(format!("/proc/{pid}/{file}")).ok()?;
    file.take(max_length as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// A pidfd, which never refers to another process.
pub(super) fn pidfd(pid: u32) -> Option<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

/// Whether a process exists.
pub(super) fn exists(pidfd: &OwnedFd) -> bool {
    let mut exited = [rustix::event::PollFd::new(pidfd, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut exited, Some(&now)) == Ok(0)
}

/// The path of its executable, or its short name if the service may not read the path.
pub(super) fn executable(pid: u32) -> String {
    let path = std::fs::read_link(format!("/proc/{pid}/exe"));
    let name = path.map(|path| path.to_string_lossy().into_owned()).ok();
    name.or_else(|| Some(String::from_utf8_lossy(&read(pid, "comm", 64)?).trim_end().to_owned()))
        .map_or_else(String::new, |name| clean(name.strip_suffix(" (deleted)").unwrap_or(&name)))
}

/// Its command line.
pub(super) fn command_line(pid: u32) -> String {
    let bytes = read(pid, "cmdline", MAX_TEXT_LENGTH).unwrap_or_default();
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

/// The text without control characters, truncated to fit a packet.
pub(super) fn clean(text: &str) -> String {
    let printable = text.chars().map(|c| if c.is_control() { '?' } else { c });
    let mut cleaned = String::new();
    for c in printable {
        if cleaned.len() + c.len_utf8() > MAX_TEXT_LENGTH {
            break;
        }
        cleaned.push(c);
    }
    cleaned
}

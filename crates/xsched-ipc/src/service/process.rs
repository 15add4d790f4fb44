//! Facts about a process from the kernel, for status reports and rules.
//!
//! Permissions depend only on the groups. Those are used only if the process still belongs to the user that the kernel reports
//! for the socket.

use std::io::Read as _;
use std::os::fd::OwnedFd;

use rustix::process::Pid;
use xsched_core::is_control;

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

/// Its control group of version 2.
pub(super) fn cgroup(pid: u32) -> String {
    let text = cgroup_file(pid).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default().to_owned()
}

/// Its control groups in all hierarchies, as the kernel writes them. The last line is incomplete if the text is very long.
pub(super) fn cgroup_file(pid: u32) -> Option<String> {
    let bytes = read(pid, "cgroup", 65_536)?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// When it was started, in clock ticks since the machine was. Two processes with the same number were started at different times.
pub(super) fn start_time(pid: u32) -> Option<u64> {
    let bytes = read(pid, "stat", 4_096)?;
    let text = String::from_utf8_lossy(&bytes);
    // The name in parentheses may contain anything.
    text.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
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
    let printable = text.chars().map(|c| if is_control(c) { '?' } else { c });
    let mut cleaned = String::new();
    for c in printable {
        if cleaned.len() + c.len_utf8() > MAX_TEXT_LENGTH {
            break;
        }
        cleaned.push(c);
    }
    cleaned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_control_the_terminal_or_the_order_of_text() {
        assert_eq!(clean("a\x1b[2J\u{202e}gnp.exe\u{2069}\n"), "a?[2J?gnp.exe??");
        assert_eq!(clean("訓練"), "訓練");
        assert_eq!(clean(&"x".repeat(2_000)).len(), MAX_TEXT_LENGTH);
    }
}

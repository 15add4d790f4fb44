//! The library's log: lines on standard error, if `XLOG_LEVEL` is `ERRO`, `WARN`, `INFO` or `DEBG`. Without it the library
//! writes nothing, because standard error belongs to the program, except what its user must know: see [`report_to_user`].

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::threads::without_sigpipe;

/// The severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Severity {
    /// A request cannot be carried out.
    Error = 1,
    /// A value or a message was ignored or changed.
    Warning,
    /// A change of state that a user may want to know.
    Info,
    /// A detail for debugging.
    Debug,
}

/// `XLOG_LEVEL` has not been read.
const UNREAD: u8 = u8::MAX;
/// The least severe lines that are written; 0 for none.
static MAX_SEVERITY: AtomicU8 = AtomicU8::new(UNREAD);

fn max_severity() -> u8 {
    match MAX_SEVERITY.load(Ordering::Relaxed) {
        UNREAD => {
            let severity = std::env::var("XLOG_LEVEL").map_or(0, |level| parse(&level));
            MAX_SEVERITY.store(severity, Ordering::Relaxed);
            severity
        }
        severity => severity,
    }
}

fn parse(level: &str) -> u8 {
    match level.to_ascii_uppercase().as_str() {
        "ERRO" | "ERROR" => Severity::Error as u8,
        "WARN" | "WARNING" => Severity::Warning as u8,
        "INFO" => Severity::Info as u8,
        "DEBG" | "DEBUG" => Severity::Debug as u8,
        _ => 0,
    }
}

/// Writes one line to standard error, if `XLOG_LEVEL` includes its severity.
pub fn report(severity: Severity, what: fmt::Arguments<'_>) {
    if severity as u8 <= max_severity() {
        write(what);
    }
}

/// As [`report`], also if `XLOG_LEVEL` is not set: the program runs otherwise than its user asked, unscheduled or beyond its
/// memory limit. Once in a process for each `is_reported`.
pub fn report_to_user(is_reported: &AtomicBool, what: fmt::Arguments<'_>) {
    let is_wanted = max_severity() >= Severity::Error as u8 || std::env::var_os("XLOG_LEVEL").is_none();
    if is_wanted && !is_reported.swap(true, Ordering::Relaxed) {
        write(what);
    }
}

fn write(what: fmt::Arguments<'_>) {
    let line = format!("xsched[{}]: {what}\n", std::process::id());
    write_to_stderr(line.as_bytes());
}

/// Writes a line to standard error, unless its reader has gone or does not read. Never blocks, and raises no SIGPIPE, which would
/// end the program. One write without a lock: lines of several processes do not mix, and a fork meanwhile leaves no lock held.
pub(crate) fn write_to_stderr(line: &[u8]) {
    let stderr = std::io::stderr();
    let mut ready = [PollFd::new(&stderr, PollFlags::OUT)];
    let polled = poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    if polled.is_ok() && ready[0].revents().contains(PollFlags::OUT) {
        // A pipe with room has room for a line of this length.
        let line = &line[..line.len().min(libc::PIPE_BUF)];
        without_sigpipe(|| rustix::io::write(&stderr, line) == Err(Errno::PIPE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_levels_are_those_of_the_original_and_invalid_ones_disable_the_log() {
        assert_eq!(["ERRO", "warn", "INFO", "DEBG", "", "loud"].map(parse), [1, 2, 3, 4, 0, 0]);
        assert!(Severity::Error < Severity::Debug);
    }
}

//! What the library has to say, to those who ask: `XLOG_LEVEL` set to `ERRO`, `WARN`, `INFO` or `DEBG`. Without it, not
//! a word: it is a guest in somebody else's program.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

/// How much it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Severity {
    /// Something asked for will not happen.
    Error = 1,
    /// Something was ignored.
    Warning,
    /// Something worth knowing.
    Info,
    /// Something for whoever looks for a fault.
    Debug,
}

/// Not looked up yet.
const UNKNOWN: u8 = u8::MAX;
/// What is wanted: nothing (0), or everything up to this severity.
static WANTED: AtomicU8 = AtomicU8::new(UNKNOWN);

fn wanted() -> u8 {
    match WANTED.load(Ordering::Relaxed) {
        UNKNOWN => {
            let wanted = std::env::var("XLOG_LEVEL").map_or(0, |level| parse(&level));
            WANTED.store(wanted, Ordering::Relaxed);
            wanted
        }
        known => known,
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

/// Writes one line to standard error, if it is wanted.
pub fn report(severity: Severity, what: fmt::Arguments<'_>) {
    if severity as u8 > wanted() {
        return;
    }
    let line = format!("xsched[{}]: {what}\n", std::process::id());
    // One write without a lock: lines of several processes do not mix, and a fork in between leaves nothing locked.
    // SAFETY: the line is valid for its length. Nobody there to read it: then nobody reads it.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_those_of_the_reference_and_rubbish_is_silence() {
        assert_eq!(["ERRO", "warn", "INFO", "DEBG", "", "loud"].map(parse), [1, 2, 3, 4, 0, 0]);
        assert!(Severity::Error < Severity::Debug);
    }
}

//! Records a test that was skipped, with the reason, for the summary of `scripts/test`.

use std::fs::OpenOptions;
use std::io::Write as _;

/// Skips the calling test because the machine lacks something that `scripts/test` installs. Fails the test in CI.
pub(crate) fn skip(reason: &str) {
    assert!(std::env::var_os("CI").is_none(), "CI may not skip this test: {reason}");
    record_skipped(reason);
}

/// Skips the calling test, in CI too: the machine lacks something that `scripts/test` cannot install everywhere.
pub(crate) fn record_skipped(reason: &str) {
    let thread = std::thread::current();
    // The test harness names the thread after the test.
    let test = format!("{}::{}", env!("CARGO_CRATE_NAME"), thread.name().unwrap_or("unknown"));
    eprintln!("skipped {test}: {reason}");
    let Some(path) = std::env::var_os("XSCHED_SKIPPED") else { return };
    let mut file = OpenOptions::new().create(true).append(true).open(&path).unwrap();
    // One write for each line: other test processes append to the same file.
    file.write_all(format!("{test}: {reason}\n").as_bytes()).unwrap();
}

//! The configuration file.

use std::path::PathBuf;

use super::Run;

#[allow(dead_code, reason = "only the parser runs here")]
#[path = "../../../xsched/src/config.rs"]
mod file;

pub(super) const WORDS: &[&str] = &[
    "[defaults]\n",
    "[limits]\n",
    "[[limits.for]]\n",
    "[[rules]]\n",
    "[http]\n",
    "policy = ",
    "timeslice_us = ",
    "k = ",
    "max_priority = ",
    "max_share = ",
    "user = ",
    "group = ",
    "executable = ",
    "cgroup = ",
    "priority = ",
    "share = ",
    "token_file = ",
    "metrics_names = true\n",
    "metrics = \"127.0.0.1:9400\"\n",
    "sample_utilization = false\n",
    "\"root\"",
    "\"high\"",
    "\"fair\"",
    "\"*\"",
    "'''",
    "\"\"\"",
    "{",
    "}",
    "[",
    "]",
    "=",
    "\n",
    "\r\n",
    "#",
    "inf",
    "nan",
    "1979-05-27",
    "\\u0000",
    "\u{feff}",
    "é",
];

pub(super) fn start() -> Run {
    Box::new(|input| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        match file::parse(text) {
            Ok(content) => {
                let config = file::Config { file: None, content };
                let options = config.options(PathBuf::new());
                for rule in &options.rules {
                    assert!(rule.priority.is_some() || rule.share.is_some());
                }
            }
            Err(errors) => {
                assert!(!errors.is_empty());
                for error in errors {
                    // `LINE:COLUMN: reason`, and the position exists.
                    let message = error.to_string();
                    let line: usize =
                        message.split(':').next().and_then(|line| line.parse().ok()).expect("a line");
                    assert!(line >= 1 && line <= text.split('\n').count().max(1), "{message}: {text:?}");
                }
            }
        }
    })
}

//! Progress on stderr.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar on a terminal, otherwise one line for each phase.
pub(super) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self::with_template("{bar:30} {pos}/{len} {msg}")
    }

    /// With the time that is left, for phases of the same length.
    pub(super) fn with_time_left() -> Self {
        let progress = Self::with_template("{bar:30} {percent:>3} %  {eta:>3} left  {msg}");
        if !progress.bar.is_hidden() {
            progress.bar.enable_steady_tick(Duration::from_millis(200));
        }
        progress
    }

    fn with_template(template: &str) -> Self {
        let bar = if io::stderr().is_terminal() { ProgressBar::new(0) } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar }
    }

    /// Begins a phase of so many steps.
    pub(super) fn phase(&self, name: &str, steps: u32) {
        self.bar.set_length(steps.into());
        self.bar.set_position(0);
        self.message(name);
    }

    /// What is done now.
    pub(super) fn message(&self, text: &str) {
        self.bar.set_message(text.to_owned());
        if self.bar.is_hidden() {
            crate::cli::message(format_args!("xsched: {text}"));
        }
    }

    pub(super) fn step(&self) {
        self.bar.inc(1);
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

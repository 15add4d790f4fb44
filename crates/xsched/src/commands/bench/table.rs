//! The results as a table for a terminal.

use std::fmt::Write as _;

use super::estimate::Estimate;
use super::results::{Failure, Metric, Results};
use crate::term::{self, NO_VALUE};

const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const RESET: &str = "\x1b[0m";

/// `results` as text that ends with a newline; `colour` allows escape sequences.
pub(super) fn table(results: &Results, colour: bool) -> String {
    let style =
        |style: &str, text: &str| if colour { format!("{style}{text}{RESET}") } else { text.to_owned() };
    let mut out = String::new();
    push(&mut out, &style(BOLD, &results.summary));
    for (name, value) in &results.settings {
        push(&mut out, &style(DIM, &format!("{name}: {}", term::printable(value))));
    }
    let repetitions = results.repetitions;
    let interval = format!("medians of {repetitions} interleaved repetitions (95 % confidence interval)");
    push(&mut out, &style(DIM, &interval));
    if !results.rows.is_empty() {
        out.push('\n');
        let lines = lines(results);
        push(&mut out, &style(DIM, &lines[0]));
        for (row, line) in results.rows.iter().zip(&lines[1..]) {
            push(&mut out, &if row.scene == "xsched" { style(BOLD, line) } else { line.clone() });
        }
    }
    for conclusion in &results.conclusions {
        out.push('\n');
        push(&mut out, conclusion);
    }
    for failure in &results.failures {
        out.push('\n');
        push(&mut out, &failure_text(failure));
    }
    out
}

/// The command that failed, why, and the end of its output.
fn failure_text(failure: &Failure) -> String {
    let Failure { scene, failure } = failure;
    let mut text = format!(
        "{scene}: the {} could not be measured: it {}\n  command: {}",
        failure.program,
        failure.reason,
        term::printable(&failure.command)
    );
    if failure.output.is_empty() {
        text.push_str("\n  it printed nothing");
    } else {
        text.push_str("\n  the end of its output:");
        for line in failure.output.lines() {
            let _ = write!(text, "\n  | {}", term::printable(line));
        }
    }
    text
}

/// The header and a line for each row, with aligned columns.
fn lines(results: &Results) -> Vec<String> {
    let metrics = results.metrics();
    let mut cells = vec![vec!["scene".to_owned(), "program".to_owned()]];
    cells[0].extend(metrics.iter().map(|metric| metric.title.to_owned()));
    for row in &results.rows {
        let mut line = vec![row.scene.clone(), row.program.clone()];
        line.extend(metrics.iter().map(|metric| row.figure(*metric).map_or(NO_VALUE.to_owned(), cell)));
        cells.push(line);
    }
    let width = |column: usize| cells.iter().map(|line| term::width(&line[column])).max().unwrap_or(0);
    let widths: Vec<usize> = (0..metrics.len() + 2).map(width).collect();
    let line = |line: &Vec<String>| {
        let mut text = String::new();
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let padding = " ".repeat(width - term::width(cell));
            // Names begin, and numbers end, in the same column.
            let _ = if column < 2 {
                write!(text, "{cell}{padding}  ")
            } else {
                write!(text, "  {padding}{cell}")
            };
        }
        text.trim_end().to_owned()
    };
    cells.iter().map(line).collect()
}

/// The median and the interval with the same number of decimals.
fn cell(estimate: &Estimate) -> String {
    let decimals = decimals(estimate.median);
    let Estimate { median, low, high, .. } = estimate;
    format!("{median:.decimals$} ({low:.decimals$} .. {high:.decimals$})")
}

/// The decimals that show three digits.
pub(super) fn decimals(value: f64) -> usize {
    match value.abs() {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    }
}

/// A metric and its estimate as a short text.
pub(super) fn shown(metric: Metric, estimate: &Estimate) -> String {
    format!("{}: {}", metric.title, cell(estimate))
}

fn push(out: &mut String, line: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{line}");
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::results::Samples;
    use super::super::scene::ProgramFailure;
    use super::*;

    const RATE: Metric = Metric { key: "launches_per_s", title: "launches/s" };
    const TIME: Metric = Metric { key: "request_p99_ms", title: "request p99 (ms)" };

    /// Results with every part.
    pub(crate) fn sample() -> Results {
        let mut samples = Samples::default();
        for repetition in 0..3 {
            samples.push("alone", "foreground", RATE, 405.0);
            samples.push("xsched", "foreground", RATE, 400.0 + f64::from(repetition));
            samples.push("xsched", "foreground", TIME, 8.25);
        }
        let failure = ProgramFailure {
            program: "background".to_owned(),
            command: "python train.py".to_owned(),
            reason: "failed with exit status: 1".to_owned(),
            output: "no module\u{1b} <torch>".to_owned(),
        };
        Results {
            bench: "corun",
            summary: "Two programs".to_owned(),
            repetitions: 3,
            settings: vec![("device", "simulated".to_owned())],
            rows: samples.rows(),
            conclusions: vec!["It works.".to_owned()],
            failures: vec![Failure { scene: "native".to_owned(), failure }],
        }
    }

    #[test]
    fn table_has_aligned_columns_and_names_what_failed() {
        let shown = table(&sample(), false);
        let expected = [
            "Two programs",
            "device: simulated",
            "medians of 3 interleaved repetitions (95 % confidence interval)",
            "",
            "scene   program             launches/s     request p99 (ms)",
            "alone   foreground    405 (405 .. 405)                    -",
            "xsched  foreground    401 (400 .. 402)  8.25 (8.25 .. 8.25)",
            "",
            "It works.",
            "",
            "native: the background could not be measured: it failed with exit status: 1",
            "  command: python train.py",
            "  the end of its output:",
            "  | no module? <torch>",
        ];
        assert_eq!(shown.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn command_without_output_is_named() {
        let mut results = sample();
        results.failures[0].failure.output.clear();
        assert!(table(&results, false).ends_with("  it printed nothing\n"));
    }

    #[test]
    fn intervals_that_touch_overlap() {
        let results = sample();
        let overlap = |metric| results.intervals_overlap(("alone", "xsched"), "foreground", metric);
        assert_eq!(overlap(RATE), Some(false));
        assert_eq!(overlap(TIME), None, "it was measured in one scene only");
        let same = results.intervals_overlap(("xsched", "xsched"), "foreground", RATE);
        assert_eq!(same, Some(true));
    }

    #[test]
    fn json_has_one_object_per_row() {
        let json = sample().to_json();
        assert_eq!(json["rows"][1]["launches_per_s"]["median"], 401.0);
        assert_eq!(json["rows"][1]["launches_per_s"]["samples"].as_array().unwrap().len(), 3);
        assert_eq!(json["failures"][0]["command"], "python train.py");
        assert_eq!(json["failures"][0]["scene"], "native");
    }
}

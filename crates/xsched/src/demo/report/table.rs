//! The results as a table for a terminal of 80 columns.

use std::fmt::Write as _;

use super::units::{duration, fine_percent, percent, plain, times};
use super::{Results, Scene, SceneName, Workload, verdict};

const WIDTH: usize = 80;
const NO_VALUE: &str = "–";

const GROUPS: &str = "           ────── foreground latency ──────     ── background utilization ─";

const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const RESET: &str = "\x1b[0m";

/// `results` as text that ends with a newline; `colour` allows escape sequences.
pub(crate) fn table(results: &Results, colour: bool) -> String {
    let style =
        |style: &str, text: &str| if colour { format!("{style}{text}{RESET}") } else { text.to_owned() };
    let mut out = String::new();

    let device = format!("{}, level {}", results.device, results.level);
    push(&mut out, &style(BOLD, &wrap(&device)));
    if !results.device_note.is_empty() {
        push(&mut out, &style(DIM, &wrap(&results.device_note)));
    }
    push(&mut out, &style(DIM, &wrap(&workload(&results.workload))));
    out.push('\n');

    push(&mut out, &style(DIM, GROUPS));
    push(&mut out, &style(DIM, &row(["scene", "p50", "p99", "p99 / alone", "of device", "of time left"])));
    for scene in &results.scenes {
        let line = row(cells(results, scene).each_ref().map(String::as_str));
        push(&mut out, &if scene.name == SceneName::XSched { style(BOLD, &line) } else { line });
    }
    out.push('\n');

    push(&mut out, &wrap(&verdict::sentence(results)));
    plain(&out)
}

/// The workload in one sentence.
pub(crate) fn workload(workload: &Workload) -> String {
    format!(
        "{} requests of {} ({} commands each) at {} load, beside a background that always has commands of {}.",
        workload.requests,
        duration(workload.request_us),
        workload.commands_per_request,
        percent(workload.load),
        duration(workload.background_command_us),
    )
}

fn cells(results: &Results, scene: &Scene) -> [String; 6] {
    let latencies = scene.latencies();
    let or_no_value = |text: Option<String>| text.unwrap_or(NO_VALUE.to_owned());
    let rest = scene.background_of_rest();
    [
        scene.name.as_str().to_owned(),
        or_no_value(latencies.map(|l| duration(l.p50))),
        or_no_value(latencies.map(|l| duration(l.p99))),
        or_no_value(results.ratio_p99(scene).map(|ratio| format!("{}×", times(ratio)))),
        or_no_value(rest.map(|_| fine_percent(scene.background_utilization))),
        or_no_value(rest.map(fine_percent)),
    ]
}

fn row([scene, p50, p99, ratio, utilization, rest]: [&str; 6]) -> String {
    format!("{scene:<7}{p50:>11}{p99:>11}{ratio:>14}{utilization:>14}{rest:>18}")
}

fn push(out: &mut String, line: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{line}");
}

/// Breaks `text` at ordinary spaces, so that no line is wider than the terminal.
fn wrap(text: &str) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > WIDTH {
            out.push('\n');
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += width;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn table_of_all_scenes() {
        let shown = table(&sample::of_constant_latency(10_120.0, 27_300.0, 10_480.0, 0.784), false);
        let expected = [
            "NVIDIA H200, level 3",
            "a real GPU without other users",
            "100 requests of 10.0 ms (20 commands each) at 20 % load, beside a background",
            "that always has commands of 2.00 ms.",
            "",
            "           ────── foreground latency ──────     ── background utilization ─",
            "scene          p50        p99   p99 / alone     of device      of time left",
            "alone      10.1 ms    10.1 ms         1.00×             –                 –",
            "native     27.3 ms    27.3 ms         2.70×        76.0 %            95.0 %",
            "xsched     10.5 ms    10.5 ms         1.04×        78.4 %            98.0 %",
            "",
            "With XSched the foreground's p99 is 1.04 times its p99 alone (native: 2.70",
            "times), and the background has 98 % of the time left.",
        ];
        assert_eq!(shown.lines().collect::<Vec<_>>(), expected);
        assert!(shown.ends_with('\n'));
    }

    #[test]
    fn table_without_requests() {
        let shown = table(&sample::empty(), false);
        let expected = [
            "NVIDIA H200, level 3",
            "a real GPU without other users",
            "100 requests of 10.0 ms (20 commands each) at 20 % load, beside a background",
            "that always has commands of 2.00 ms.",
            "",
            "           ────── foreground latency ──────     ── background utilization ─",
            "scene          p50        p99   p99 / alone     of device      of time left",
            "alone            –          –             –             –                 –",
            "native           –          –             –         0.0 %             0.0 %",
            "xsched           –          –             –         0.0 %             0.0 %",
            "",
            "Too little was measured to compare: not every scene completed a foreground",
            "request.",
        ];
        assert_eq!(shown.lines().collect::<Vec<_>>(), expected);
        assert!(shown.ends_with('\n'));
    }

    #[test]
    fn colours_only_add_escape_sequences() {
        let results = sample::realistic();
        let mut coloured = table(&results, true);
        assert!(coloured.contains(BOLD));
        for code in [BOLD, DIM, RESET] {
            coloured = coloured.replace(code, "");
        }
        assert_eq!(coloured, table(&results, false));
    }

    #[test]
    fn lines_have_at_most_80_columns() {
        let mut results = sample::realistic();
        results.device_note = "a simulated device which shares its time between processes ".repeat(3);
        for line in table(&results, false).lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }
}

//! Text on a terminal: widths, units, and the characters it can show.

use std::env;
use std::io::{self, IsTerminal as _};

use ratatui::crossterm::terminal;
use ratatui::symbols::border;
use ratatui::text::Span;
use xsched_core::{DeviceId, DeviceKind, is_control};
use xsched_ipc::memory::format_size;
use xsched_ipc::protocol::{TaskStatus, UnscheduledProcess};

use crate::rates::Rates;

/// Shown where there is no value.
pub(crate) const NO_VALUE: &str = "-";

/// The characters a terminal can show.
#[derive(Debug)]
pub(crate) struct Glyphs {
    /// Ends text that was cut.
    pub(crate) ellipsis: &'static str,
    /// Fillings of the parts of a bar, used cyclically.
    pub(crate) bar: [&'static str; 3],
    /// The empty part of a bar.
    pub(crate) empty: &'static str,
    /// Fillings of full cells of a graph, used cyclically: colours distinguish its parts where there are colours.
    pub(crate) graph: [&'static str; 3],
    /// The mark of a task, in its colour.
    pub(crate) mark: &'static str,
    /// Heights of a sparkline, from 0 to 1.
    pub(crate) spark: [&'static str; 8],
    /// Passed, warning, failed.
    pub(crate) verdict: [&'static str; 3],
    /// Around a box.
    pub(crate) border: border::Set<'static>,
    /// From one value to the next.
    pub(crate) arrow: &'static str,
}

impl Glyphs {
    /// For terminals with Unicode.
    pub(crate) const UNICODE: &'static Self = &Self {
        ellipsis: "…",
        bar: ["█", "▓", "▒"],
        empty: "·",
        graph: ["█"; 3],
        mark: "■",
        spark: ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
        verdict: ["✓", "!", "✗"],
        border: border::PLAIN,
        arrow: "→",
    };

    /// For terminals with ASCII only.
    pub(crate) const ASCII: &'static Self = &Self {
        ellipsis: "~",
        bar: ["#", "=", "+"],
        empty: ".",
        graph: ["#", "=", "+"],
        mark: "*",
        spark: ["_", ".", ":", "-", "=", "+", "*", "#"],
        verdict: ["ok", "!", "X"],
        border: border::Set {
            top_left: "+",
            top_right: "+",
            bottom_left: "+",
            bottom_right: "+",
            vertical_left: "|",
            vertical_right: "|",
            horizontal_top: "-",
            horizontal_bottom: "-",
        },
        arrow: "->",
    };

    /// The characters that the locale allows.
    pub(crate) fn of_locale() -> &'static Self {
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .iter()
            .filter_map(|name| env::var(name).ok())
            .find(|value| !value.is_empty())
            .unwrap_or_default()
            .to_ascii_lowercase();
        if locale.contains("utf-8") || locale.contains("utf8") { Self::UNICODE } else { Self::ASCII }
    }
}

/// Columns and lines: `COLUMNS` and `LINES` if set, else those of the terminal, else no limit.
pub(crate) fn size() -> (Option<u16>, Option<u16>) {
    let from_variable = |name| env::var(name).ok().and_then(|value| value.parse().ok());
    let of_terminal = || if io::stdout().is_terminal() { terminal::size().ok() } else { None };
    let (columns, lines) = of_terminal().unzip();
    (from_variable("COLUMNS").or(columns), from_variable("LINES").or(lines))
}

/// The number of columns that `text` occupies.
pub(crate) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// `text` without control characters: names and command lines of other users must not control the terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if is_control(c) { '?' } else { c }).collect()
}

/// `text`, cut to `columns` if it is longer.
pub(crate) fn fit(text: &str, columns: usize, glyphs: &Glyphs) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let room = columns.saturating_sub(width(glyphs.ellipsis));
    let mut cut = String::new();
    for c in text.chars() {
        cut.push(c);
        if width(&cut) > room {
            cut.pop();
            break;
        }
    }
    if columns > 0 {
        cut.push_str(glyphs.ellipsis);
    }
    cut
}

/// A time, with at most three digits: `850us`, `5.2ms`, `12s`.
pub(crate) fn duration(us: u64) -> String {
    let us = us as f64;
    // The bounds are where rounding reaches the next format.
    match us {
        us if us < 1e3 => format!("{us}us"),
        us if us < 9_950.0 => format!("{:.1}ms", us / 1e3),
        us if us < 999_500.0 => format!("{:.0}ms", us / 1e3),
        us if us < 9_950_000.0 => format!("{:.1}s", us / 1e6),
        us => format!("{:.0}s", us / 1e6),
    }
}

/// The device memory of a task, its limit, and how much is in memory of the host: `1.5G/20G`, `512M`, `4G (3G out)`.
pub(crate) fn memory(task: &TaskStatus) -> String {
    let text = match (task.memory_bytes, task.memory_limit_bytes) {
        (Some(used), Some(limit)) => format!("{}/{}", format_size(used), format_size(limit)),
        (Some(used), None) => format_size(used),
        (None, _) => NO_VALUE.to_owned(),
    };
    match task.parking.as_ref().map_or(0, |parking| parking.moved_bytes) {
        0 => text,
        moved => format!("{text} ({} out)", format_size(moved)),
    }
}

/// A number of times per second: `0`, `3.2`, `120`, `12.3k`, `4.5M`.
pub(crate) fn per_second(n: f64) -> String {
    match n {
        n if n < 0.05 => "0".to_owned(),
        n if n < 9.95 => format!("{n:.1}"),
        n if n < 999.5 => format!("{n:.0}"),
        n if n < 99_950.0 => format!("{:.1}k", n / 1e3),
        n if n < 999_500.0 => format!("{:.0}k", n / 1e3),
        n => format!("{:.1}M", n / 1e6),
    }
}

/// A part of a whole in percent; more than 0 and less than 0.5 % is shown as `<1%`.
pub(crate) fn percent(part: f64) -> String {
    let percent = part * 100.0;
    if percent > 0.0 && percent < 0.5 { "<1%".to_owned() } else { format!("{percent:.0}%") }
}

/// The utilization of a task: with a `~` if it is an estimate from samples, and no value if the task is alone on a device that cannot
/// be sampled, because a task alone on its device counts nothing itself.
pub(crate) fn utilization(rates: &Rates) -> String {
    let percent = percent(rates.utilization);
    match rates {
        Rates { is_sampled: true, .. } => format!("~{percent}"),
        Rates { launches_per_s: None, utilization, .. } if *utilization <= 0.0 => NO_VALUE.to_owned(),
        _ => percent,
    }
}

/// Why the launches of a host-bound task are not deferred, if they are not.
pub(crate) fn not_deferred(task: &TaskStatus) -> Option<String> {
    let reasons = (!task.not_deferred.is_empty()).then(|| task.not_deferred.join(", "))?;
    Some(format!("{} ({}) is host-bound, and its launches are not deferred: {reasons}", task.pid, name(task)))
}

/// That an unscheduled process keeps a device busy.
pub(crate) fn unscheduled(process: &UnscheduledProcess) -> String {
    format!(
        "{} is kept busy by unscheduled process {}: tasks that give way have ordinary time slices there",
        DeviceId(process.device),
        process.pid
    )
}

/// The name of a task: that of its program, with `[queue]` if the task is a single queue.
pub(crate) fn name(task: &TaskStatus) -> String {
    let name = if task.name.is_empty() { "?".to_owned() } else { printable(&task.name) };
    if task.own { format!("{name} [queue]") } else { name }
}

/// The name of a device: its kind if known, and its address.
pub(crate) fn device(device: u64) -> String {
    let id = DeviceId(device);
    let is = |kind| device >> 32 == kind as u64;
    let kinds = [
        (DeviceKind::Cpu, "cpu "),
        (DeviceKind::Gpu, "gpu "),
        (DeviceKind::Npu, "npu "),
        (DeviceKind::Fpga, "fpga "),
        (DeviceKind::Asic, "asic "),
        (DeviceKind::Mca, "mca "),
    ];
    let kind = kinds.iter().find(|(kind, _)| is(*kind)).map_or("", |(_, name)| name);
    format!("{kind}{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_with_an_ellipsis() {
        assert_eq!(fit("python", 6, Glyphs::UNICODE), "python");
        assert_eq!(fit("python3", 6, Glyphs::UNICODE), "pytho…");
        assert_eq!(fit("python3", 6, Glyphs::ASCII), "pytho~");
        assert_eq!(fit("訓練訓練", 6, Glyphs::UNICODE), "訓練…", "wide characters take two columns");
        assert_eq!(fit("x", 0, Glyphs::UNICODE), "");
    }

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(printable("a\x1b[2Jb\n\u{202e}"), "a?[2Jb??");
    }

    #[test]
    fn numbers_have_three_digits() {
        let times = [0, 999, 1_000, 9_949, 9_950, 999_499, 999_500, 12_000_000];
        let shown = ["0us", "999us", "1.0ms", "9.9ms", "10ms", "999ms", "1.0s", "12s"];
        assert_eq!(times.map(duration), shown);
        let rates = [0.0, 0.04, 3.16, 9.96, 999.4, 999.6, 12_345.0, 99_960.0, 4_500_000.0];
        let shown = ["0", "0", "3.2", "10", "999", "1.0k", "12.3k", "100k", "4.5M"];
        assert_eq!(rates.map(per_second), shown);
        assert_eq!([0.0, 0.001, 0.784, 1.0].map(percent), ["0%", "<1%", "78%", "100%"]);
    }

    #[test]
    fn device_name_starts_with_its_kind() {
        assert_eq!(device(DeviceId::new(DeviceKind::Gpu, 0x30).0), "gpu 0000:00:06.0");
        assert_eq!(device(0), "0000:00:00.0");
    }
}

//! The findings as text.

use super::{Check, Group, State, count};
use crate::term::{self, Glyphs};

/// A line for each finding, by section, with what to do below it, and the numbers of problems and warnings at the end.
pub(crate) fn text(checks: &[Check], columns: Option<usize>, glyphs: &Glyphs, colour: bool) -> String {
    let mut text = String::new();
    for group in Group::ALL {
        let of_group: Vec<_> = checks.iter().filter(|check| check.group == group).collect();
        if of_group.is_empty() {
            continue;
        }
        text.push_str(group.heading());
        text.push('\n');
        for check in of_group {
            text.push_str(&finding(check, columns, glyphs, colour));
        }
        text.push('\n');
    }
    text.push_str(&verdict(checks));
    text
}

fn finding(check: &Check, columns: Option<usize>, glyphs: &Glyphs, colour: bool) -> String {
    let (symbol, ansi) = match check.state {
        State::Absent => ("-", "2"),
        State::Ok => (glyphs.verdict[0], "32"),
        State::Warning => (glyphs.verdict[1], "33"),
        State::Problem => (glyphs.verdict[2], "31"),
    };
    let gap = " ".repeat(2_usize.saturating_sub(term::width(symbol)) + 1);
    let symbol = if colour { format!("\x1b[{ansi}m{symbol}\x1b[0m") } else { symbol.to_owned() };
    let what = format!("{}: {}", check.name, check.what);
    let mut text = indented(&format!("  {symbol}{gap}"), 5, &what, columns);
    if let Some(do_next) = &check.do_next {
        text.push_str(&indented("       do: ", 11, do_next, columns));
    }
    text
}

/// The commands in what to do, after the finding and its remedy as comments.
pub(crate) fn commands(checks: &[Check]) -> String {
    let mut lines = Vec::new();
    for check in checks {
        let Some(do_next) = &check.do_next else { continue };
        lines.push(format!("# {}: {}", check.name, check.what));
        lines.push(format!("#   do: {do_next}"));
        // Options of a container's command line are quoted too.
        let quoted = do_next.split('`').skip(1).step_by(2).filter(|quoted| !quoted.starts_with('-'));
        lines.extend(quoted.map(str::to_owned));
    }
    lines.into_iter().flat_map(|line| [line, "\n".to_owned()]).collect()
}

/// `text` after `first`, which occupies `indent` columns; further lines are indented by as much.
fn indented(first: &str, indent: usize, text: &str, columns: Option<usize>) -> String {
    let lines = wrap(text, columns.map(|columns| columns.saturating_sub(indent)));
    format!("{first}{}\n", lines.join(&format!("\n{}", " ".repeat(indent))))
}

/// `text` in lines of at most `columns`, broken between words, but not within a `command`, so that it can be copied.
fn wrap(text: &str, columns: Option<usize>) -> Vec<String> {
    let Some(columns) = columns else { return vec![text.to_owned()] };
    let mut lines = vec![String::new()];
    let mut within_command = false;
    let is_break = |c: char| {
        within_command ^= c == '`';
        c == ' ' && !within_command
    };
    for word in text.split(is_break) {
        let line = lines.last().map_or(0, |line| term::width(line));
        if line > 0 && line + 1 + term::width(word) > columns {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

fn verdict(checks: &[Check]) -> String {
    let count_of = |n: usize, noun: &str| match n {
        0 => format!("no {noun}s"),
        1 => format!("1 {noun}"),
        n => format!("{n} {noun}s"),
    };
    let (problems, warnings) = (count(checks, State::Problem), count(checks, State::Warning));
    format!("{}, {}\n", count_of(problems, "problem"), count_of(warnings, "warning"))
}

//! The table of tasks.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, StatefulWidget as _, Table, TableState};
use xsched_ipc::protocol::{TaskState, TaskStatus};

use super::{BOLD, Mode, Screen};
use crate::term::{self, NO_VALUE};

const MIN_NAME_WIDTH: u16 = 8;
const MAX_NAME_WIDTH: u16 = 32;
/// A sparkline of fewer columns is unreadable; more than one column per second shows nothing new.
const MIN_SPARK_WIDTH: u16 = 6;
const MAX_SPARK_WIDTH: u16 = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Pid,
    Name,
    Device,
    Priority,
    State,
    Utilization,
    Launches,
    Held,
    Preemptions,
    Wait,
    Spark,
}

use Column::{Device, Held, Launches, Name, Pid, Preemptions, Priority, Spark, State, Utilization, Wait};

impl Column {
    fn heading(self, width: u16) -> &'static str {
        match self {
            Pid => "PID",
            Name => "NAME",
            Device => "DEV",
            Priority => "PRIO",
            State => "STATE",
            Utilization => "UTIL",
            Launches => "LAUNCH/S",
            Held => "HELD",
            Preemptions => "PREEMPT/S",
            Wait => "P99 WAIT",
            Spark if width < 11 => "MINUTE",
            Spark => "LAST MINUTE",
        }
    }

    fn is_number(self) -> bool {
        !matches!(self, Name | State | Spark)
    }
}

/// The columns that fit into `width`, with their widths: the least important are left out first.
fn columns(screen: &Screen, width: u16) -> Vec<(Column, u16)> {
    let tasks = screen.visible();
    let longest = |of: &dyn Fn(&TaskStatus) -> usize| tasks.iter().map(|task| of(task)).max().unwrap_or(0);
    let pid = longest(&|task| task.pid.to_string().len()).max(3);
    let name = longest(&|task| term::width(&term::name(task)));
    let mut fixed =
        vec![(Pid, u16::try_from(pid).unwrap_or(10)), (Name, MIN_NAME_WIDTH), (Device, 3), (Priority, 4)];
    fixed.extend([(State, 9), (Utilization, 4), (Launches, 8), (Held, 4), (Preemptions, 9), (Wait, 8)]);
    if screen.devices().len() < 2 {
        fixed.retain(|(column, _)| *column != Device);
    }
    let total = |columns: &[(Column, u16)]| columns.iter().map(|(_, width)| width + 1).sum::<u16>();
    for column in [Preemptions, Launches, Held, Wait, Pid, State] {
        if total(&fixed) > width {
            fixed.retain(|(other, _)| *other != column);
        }
    }
    let mut rest = width.saturating_sub(total(&fixed));
    let spark = rest > MIN_SPARK_WIDTH;
    let extra =
        u16::try_from(name).unwrap_or(u16::MAX).clamp(MIN_NAME_WIDTH, MAX_NAME_WIDTH) - MIN_NAME_WIDTH;
    // The name gets up to half of the remaining width, the sparkline the rest.
    let extra = if spark { extra.min((rest - MIN_SPARK_WIDTH) / 2) } else { extra.min(rest) };
    for (column, width) in &mut fixed {
        if *column == Name {
            *width += extra;
        }
    }
    rest -= extra;
    if spark {
        fixed.push((Spark, (rest - 1).min(MAX_SPARK_WIDTH)));
    }
    fixed
}

/// Draws the table, scrolled so that the row of the cursor is visible.
pub(super) fn draw(screen: &Screen, area: Rect, buffer: &mut Buffer) {
    let columns = columns(screen, area.width.saturating_sub(1));
    let devices = screen.devices();
    let tasks = screen.visible();
    let room = usize::from(area.height.saturating_sub(1));
    // The cursor stays in the middle while there are tasks on either side.
    let offset = screen.row.saturating_sub(room / 2).min(tasks.len().saturating_sub(room));
    let heading = |(column, width): &(Column, u16)| {
        let line = Line::raw(column.heading(*width));
        Cell::new(if column.is_number() { line.right_aligned() } else { line })
    };
    let header = Row::new(columns.iter().map(heading)).style(BOLD);
    let rows = tasks.iter().map(|task| {
        let number = devices.iter().position(|device| *device == task.device).unwrap_or(0);
        Row::new(columns.iter().map(|(column, width)| cell(screen, task, number, *column, *width)))
    });
    let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
    let table = Table::new(rows, widths)
        .header(header)
        .column_spacing(1)
        .highlight_symbol(">")
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let selected = screen.selected.filter(|_| screen.mode != Mode::Static).map(|_| screen.row);
    let mut state = TableState::new().with_offset(offset).with_selected(selected);
    table.render(area, buffer, &mut state);
}

fn cell<'a>(screen: &Screen, task: &TaskStatus, device: usize, column: Column, width: u16) -> Cell<'a> {
    let rates = screen.rates_of(task);
    let or_no_value = |text: Option<String>| text.unwrap_or(NO_VALUE.to_owned());
    let text = match column {
        Pid => task.pid.to_string(),
        Name => term::fit(&term::name(task), usize::from(width), screen.glyphs),
        Device => device.to_string(),
        Priority => task.priority.to_string(),
        State => term::state(task.state).to_owned(),
        Utilization => or_no_value(rates.map(|rates| term::percent(rates.utilization))),
        Launches => or_no_value(rates.and_then(|rates| rates.launches_per_s).map(term::per_second)),
        Held => or_no_value(rates.map(|rates| term::percent(rates.held))),
        Preemptions => or_no_value(rates.map(|rates| term::per_second(rates.preemptions_per_s))),
        Wait => or_no_value(task.wait_p99_us.map(term::duration)),
        Spark => sparkline(screen, task, usize::from(width)),
    };
    let line = Line::raw(text);
    let line = if column.is_number() { line.right_aligned() } else { line };
    let style = match (column, task.state) {
        (State, TaskState::Running) => Style::new().fg(Color::Green),
        (State, TaskState::Held) => Style::new().fg(Color::Yellow),
        (State, TaskState::Suspended) => Style::new().fg(Color::Red),
        (Spark, _) => Style::new().fg(Color::Cyan),
        _ => Style::new(),
    };
    Cell::new(line).style(style)
}

fn sparkline(screen: &Screen, task: &TaskStatus, width: usize) -> String {
    let now_ns = screen.status.as_ref().map_or(0, |status| status.now_ns);
    let Some(history) = screen.histories.get(&task.task) else { return String::new() };
    let spark = &screen.glyphs.spark;
    let glyph = |utilization: Option<f64>| match utilization {
        None => " ",
        Some(utilization) => {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 7")]
            let step = (utilization.clamp(0.0, 1.0) * (spark.len() - 1) as f64).round() as usize;
            spark[step]
        }
    };
    history.columns(now_ns, width).into_iter().map(glyph).collect()
}

//! The table of tasks.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, StatefulWidget as _, Table, TableState};
use xsched_ipc::protocol::{TaskKind, TaskState, TaskStatus};

use super::{BOLD, Mode, Place, Screen, Sort};
use crate::term::{self, NO_VALUE};
use crate::top::colours;
use crate::users;

const MIN_NAME_WIDTH: u16 = 8;
const MAX_NAME_WIDTH: u16 = 32;
/// On narrower screens the names need the room.
const MIN_WIDTH_WITH_LEVEL: u16 = 100;
/// Longer names of users are cut.
const USER_WIDTH: u16 = 8;
/// A sparkline of fewer columns is unreadable; more than one column per second shows nothing new.
const MIN_SPARK_WIDTH: u16 = 6;
const MAX_SPARK_WIDTH: u16 = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    /// The mark in the colour of the task.
    Mark,
    Pid,
    User,
    Name,
    Device,
    Level,
    Priority,
    State,
    Kind,
    Utilization,
    Launches,
    Held,
    Preemptions,
    Wait,
    Memory,
    Spark,
}

use Column::{
    Device, Held, Kind, Launches, Level, Mark, Memory, Name, Pid, Preemptions, Priority, Spark, State, User,
    Utilization, Wait,
};

impl Column {
    fn heading(self, width: u16) -> &'static str {
        match self {
            Mark => "",
            Pid => "PID",
            User => "USER",
            Name => "NAME",
            Device => "DEV",
            Level => "LEVEL",
            Priority => "PRIO",
            State => "STATE",
            Kind => "KIND",
            Utilization => "UTIL",
            Launches => "LAUNCH/S",
            Held => "HELD",
            Preemptions => "PREEMPT/S",
            Wait => "P99 WAIT",
            Memory => "MEM",
            Spark if width < 11 => "MINUTE",
            Spark => "LAST MINUTE",
        }
    }

    fn is_number(self) -> bool {
        !matches!(self, Mark | User | Name | State | Kind | Spark)
    }

    /// What a click on the heading sorts by.
    fn sort(self) -> Sort {
        match self {
            Mark | Device => Sort::Device,
            Pid => Sort::Pid,
            User => Sort::User,
            Name => Sort::Name,
            Level | Priority => Sort::Priority,
            State | Kind => Sort::State,
            Utilization | Spark => Sort::Util,
            Launches => Sort::Launch,
            Held => Sort::Held,
            Preemptions => Sort::Preempt,
            Wait => Sort::Wait,
            Memory => Sort::Memory,
        }
    }
}

/// The columns that fit into `width`, with their widths: the least important are left out first.
fn columns(screen: &Screen, width: u16) -> Vec<(Column, u16)> {
    let tasks = screen.visible();
    let longest = |of: &dyn Fn(&TaskStatus) -> usize| tasks.iter().map(|task| of(task)).max().unwrap_or(0);
    let pid = longest(&|task| task.pid.to_string().len()).max(3);
    let name = longest(&|task| term::width(&name(task)));
    let mut fixed = vec![(Mark, 1), (Pid, u16::try_from(pid).unwrap_or(10))];
    if screen.tasks().iter().any(|task| task.uid != screen.tasks()[0].uid) {
        fixed.push((User, USER_WIDTH));
    }
    fixed.extend([(Name, MIN_NAME_WIDTH), (Device, 3), (Level, 5), (Priority, 4)]);
    let is_sampled = |task: &TaskStatus| screen.rates_of(task).is_some_and(|rates| rates.is_sampled);
    // Room for the mark of an estimate.
    let utilization = if tasks.iter().any(|task| is_sampled(task)) { 5 } else { 4 };
    fixed.extend([
        (State, 9),
        (Kind, 10),
        (Utilization, utilization),
        (Launches, 8),
        (Held, 4),
        (Preemptions, 9),
        (Wait, 8),
        (Memory, u16::try_from(longest(&|task| term::memory(task).len())).unwrap_or(0).max(3)),
    ]);
    if screen.devices().len() < 2 {
        fixed.retain(|(column, _)| *column != Device);
    }
    if width < MIN_WIDTH_WITH_LEVEL || tasks.iter().all(|task| screen.level_of(task).is_none()) {
        fixed.retain(|(column, _)| *column != Level);
    }
    if tasks.iter().all(|task| task.kind.is_none()) {
        fixed.retain(|(column, _)| *column != Kind);
    }
    if tasks.iter().all(|task| task.memory_bytes.is_none()) {
        fixed.retain(|(column, _)| *column != Memory);
    }
    if screen.mode == Mode::Static {
        // Text without colours.
        fixed.retain(|(column, _)| *column != Mark);
    }
    let total = |columns: &[(Column, u16)]| columns.iter().map(|(_, width)| width + 1).sum::<u16>();
    for column in [Kind, Preemptions, Launches, Held, User, Memory, Wait, Pid, State] {
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
    let offset = first_row(screen, area, tasks.len());
    let heading = |(column, width): &(Column, u16)| {
        let line = Line::raw(column.heading(*width));
        let line = if column.is_number() { line.right_aligned() } else { line };
        let is_sorted = column.sort() == screen.sort && !matches!(column, Mark | Level | Kind | Spark);
        Cell::new(if is_sorted { line.patch_style(Modifier::UNDERLINED) } else { line })
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
        .row_highlight_style(SELECTED);
    let selected = screen.selected.filter(|_| screen.mode != Mode::Static).map(|_| screen.row);
    let mut state = TableState::new().with_offset(offset).with_selected(selected);
    table.render(area, buffer, &mut state);
    if let Some((row, task)) = selected.and_then(|row| Some((row, *tasks.get(row)?))) {
        let line = row.checked_sub(offset).and_then(|line| u16::try_from(line + 1).ok());
        let at =
            line.and_then(|line| buffer.cell_mut((area.x.saturating_add(1), area.y.saturating_add(line))));
        if let Some(mark) = at {
            mark.set_style(Style::new().fg(screen.colours.of(task.task)).remove_modifier(Modifier::REVERSED));
        }
    }
}

/// The selected row: the colours of the terminal, exchanged. A colour of a cell would become its background, on which text in the
/// terminal's background can be unreadable.
const SELECTED: Style = Style::new()
    .fg(Color::Reset)
    .bg(Color::Reset)
    .add_modifier(Modifier::REVERSED)
    .remove_modifier(Modifier::DIM);

/// The first row that is shown: the cursor stays in the middle while there are tasks on either side.
fn first_row(screen: &Screen, area: Rect, tasks: usize) -> usize {
    let room = usize::from(area.height.saturating_sub(1));
    screen.row.saturating_sub(room / 2).min(tasks.saturating_sub(room))
}

/// What is shown at this column and line.
pub(super) fn place_at(screen: &Screen, area: Rect, column: u16, line: u16) -> Option<Place> {
    let tasks = screen.visible().len();
    let line = line.checked_sub(area.y).filter(|line| *line < area.height)?;
    if line > 0 {
        let row = first_row(screen, area, tasks) + usize::from(line) - 1;
        return (row < tasks).then_some(Place::Row(row));
    }
    // After the symbol of the cursor. The gap after a column belongs to it.
    let mut end = area.x + 1;
    let columns = columns(screen, area.width.saturating_sub(1));
    let at = columns.iter().find(|(_, width)| {
        end += width + 1;
        column < end
    });
    at.map(|(column, _)| Place::Heading(column.sort()))
}

fn cell<'a>(screen: &Screen, task: &TaskStatus, device: usize, column: Column, width: u16) -> Cell<'a> {
    let rates = screen.rates_of(task);
    let or_no_value = |text: Option<String>| text.unwrap_or(NO_VALUE.to_owned());
    let text = match column {
        Mark => screen.glyphs.mark.to_owned(),
        Pid => task.pid.to_string(),
        User => term::fit(&users::name_of(task.uid), usize::from(width), screen.glyphs),
        Name => term::fit(&name(task), usize::from(width), screen.glyphs),
        Device => device.to_string(),
        Level => or_no_value(screen.level_of(task).map(|level| level.to_string())),
        Priority => task.priority.to_string(),
        State => task.state.name().to_owned(),
        Kind => task.kind.map_or(NO_VALUE, TaskKind::name).to_owned(),
        Utilization => or_no_value(rates.map(term::utilization)),
        Launches => or_no_value(rates.and_then(|rates| rates.launches_per_s).map(term::per_second)),
        Held => or_no_value(rates.map(|rates| term::percent(rates.held))),
        Preemptions => or_no_value(rates.map(|rates| term::per_second(rates.preemptions_per_s))),
        Wait => or_no_value(task.wait_p99_us.map(term::duration)),
        Memory => term::memory(task),
        Spark => sparkline(screen, task, usize::from(width)),
    };
    let line = Line::raw(text);
    let line = if column.is_number() { line.right_aligned() } else { line };
    let style = match (column, task.state) {
        (State, TaskState::Running) => Style::new().fg(colours::GREEN),
        (State, TaskState::Held) => Style::new().fg(colours::OCHRE),
        (State, TaskState::Suspended | TaskState::Stalled | TaskState::Parked) => {
            Style::new().fg(colours::RED)
        }
        (Mark | Spark, _) => Style::new().fg(screen.colours.of(task.task)),
        _ => Style::new(),
    };
    Cell::new(line).style(style)
}

fn sparkline(screen: &Screen, task: &TaskStatus, width: usize) -> String {
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
    history.utilization.columns(screen.now_ns(), width).into_iter().map(glyph).collect()
}

/// The name of a task, followed by its job if it has one.
fn name(task: &TaskStatus) -> String {
    let name = term::name(task);
    match &task.job {
        Some(job) => format!("{name} ({})", term::printable(job)),
        None => name,
    }
}

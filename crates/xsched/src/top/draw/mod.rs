//! Draws the screen: a pure function of its state.
//!
//! ```text
//!   header      version, policy, number of tasks, scheduling rounds per second
//!   devices     a panel each: a bar of the utilization by each task, and graphs of the last minute if there is room
//!   tasks       a line each
//!   footer      the last message, else the keys
//! ```

mod devices;
mod graph;
mod popup;
mod tasks;

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget as _, Wrap};
use xsched_policy::PolicyInfo;

use super::colours;
use super::screen::{Mode, Screen};
use super::sort::Sort;
use crate::{term, users};

const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const ERROR: Style = Style::new().fg(colours::RED).add_modifier(Modifier::BOLD);

/// The keys; the first line that fits is shown.
const KEYS: [&str; 3] = [
    " up/down select  +/- priority  s suspend  r resume  p policy  / filter  ? help  q quit",
    " up/down  +/- priority  s suspend  r resume  p policy  / filter  ? help  q quit",
    " up/down  +/- priority  p policy  / filter  ? help  q quit",
];

/// The parts of the screen.
struct Parts {
    header: Rect,
    devices: Rect,
    tasks: Rect,
    footer: Rect,
}

fn parts(screen: &Screen, area: Rect) -> Parts {
    let device_lines = devices::lines(screen, area.height);
    let [header, devices, tasks, footer] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(device_lines),
        Constraint::Min(0),
        Constraint::Length(u16::from(screen.mode != Mode::Static)),
    ])
    .areas(area);
    Parts { header, devices, tasks, footer }
}

/// What is shown at a place of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The heading of a column that tasks can be sorted by.
    Heading(Sort),
    /// A row of the table, by its number among the visible tasks.
    Row(usize),
}

/// What is shown at this column and line.
pub(super) fn place_at(screen: &Screen, area: Rect, column: u16, line: u16) -> Option<Place> {
    tasks::place_at(screen, parts(screen, area).tasks, column, line)
}

/// Draws the whole screen.
pub(super) fn draw(screen: &Screen, area: Rect, buffer: &mut Buffer) {
    let Parts { header, devices, tasks, footer } = parts(screen, area);
    draw_header(screen, header, buffer);
    if screen.status.is_none() {
        let waiting = format!("{} - waiting", screen.disconnect_reason);
        draw_message(&[&waiting, "q quits"], tasks, buffer);
    } else if screen.tasks().is_empty() {
        let how = "`xsched run -- PROGRAM` starts a program under the scheduler";
        draw_message(&["no task is scheduled", how], tasks, buffer);
    } else {
        devices::draw(screen, area.height, devices, buffer);
        tasks::draw(screen, tasks, buffer);
    }
    draw_footer(screen, footer, buffer);
    match screen.mode {
        Mode::Policies(at) => popup::draw_policies(screen, at, area, buffer),
        Mode::Help => popup::draw_help(screen, area, buffer),
        Mode::Table | Mode::Filter | Mode::Static => {}
    }
}

/// The lines that a static screen needs to show everything.
pub(super) fn lines_for_all(screen: &Screen) -> u16 {
    let devices = u16::try_from(screen.shown_devices().len()).unwrap_or(u16::MAX);
    let tasks = u16::try_from(screen.visible().len()).unwrap_or(u16::MAX);
    // Header, a blank line above and below the devices, headings; devices take a quarter at most.
    tasks.saturating_add(devices).saturating_add(4).max(devices.saturating_mul(4)).max(6)
}

fn draw_header(screen: &Screen, area: Rect, buffer: &mut Buffer) {
    let mut spans = vec![Span::styled(" xsched", BOLD)];
    if let Some(status) = &screen.status {
        let policy = PolicyInfo::find(&status.policy).map_or_else(
            |_| term::printable(&status.policy),
            |info| format!("{} ({})", info.plain, info.name),
        );
        let (shown, all) = (screen.visible().len(), status.tasks.len());
        let tasks = match (shown, all) {
            (1, 1) => "1 task".to_owned(),
            (shown, all) if shown == all => format!("{all} tasks"),
            (shown, all) => format!("{shown} of {all} tasks"),
        };
        let rounds = screen.rounds_per_s.map_or(term::NO_VALUE.to_owned(), term::per_second);
        let order = if screen.is_reversed { ", reversed" } else { "" };
        spans.push(Span::raw(format!(" {}", term::printable(&status.version))));
        spans.push(Span::raw("   policy "));
        spans.push(Span::styled(policy, BOLD));
        spans.push(Span::raw(format!("   {tasks}")));
        let sorted = Span::styled(format!("   by {}{order}", screen.sort.name()), DIM);
        let rounds = Span::raw(format!("   {rounds} rounds/s"));
        let used: usize = spans.iter().map(Span::width).sum();
        // A narrow terminal shows the order only.
        if used + rounds.width() + sorted.width() <= usize::from(area.width) {
            spans.push(rounds);
        }
        spans.push(sorted);
    }
    Line::from(spans).render(area, buffer);
}

fn draw_message(lines: &[&str], area: Rect, buffer: &mut Buffer) {
    let text: Vec<Line<'_>> = lines.iter().map(|line| Line::raw(*line)).collect();
    let middle = Rect { y: area.y + area.height / 3, height: area.height - area.height / 3, ..area };
    Paragraph::new(text).centered().wrap(Wrap { trim: true }).render(middle, buffer);
}

fn draw_footer(screen: &Screen, area: Rect, buffer: &mut Buffer) {
    let room = usize::from(area.width);
    let line = match (&screen.note, screen.mode) {
        (Some(note), _) => {
            let text = term::fit(&format!(" {}", term::printable(&note.text)), room, screen.glyphs);
            Line::styled(text, if note.is_error { ERROR } else { BOLD })
        }
        (None, Mode::Filter) => {
            Line::styled(format!(" show only: {}_   Enter applies, Esc shows all", screen.filter), BOLD)
        }
        (None, Mode::Table) if screen.is_filtered() => {
            Line::styled(format!(" showing only: {}   Esc shows all", shown_only(screen)), BOLD)
        }
        (None, _) => Line::styled(KEYS.into_iter().find(|keys| keys.len() <= room).unwrap_or(KEYS[2]), DIM),
    };
    line.render(area, buffer);
}

/// What the filters show.
fn shown_only(screen: &Screen) -> String {
    let user = screen.selection.user.map(|user| format!("user {}", users::name_of(user)));
    let device = screen.selection.device.as_ref().map(|device| format!("device {}", term::printable(device)));
    let text = Some(screen.filter.clone()).filter(|text| !text.is_empty());
    [user, device, text].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// `part` of `width` cells, rounded.
fn cells(part: f64, width: usize) -> usize {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 0 to the width of a screen"
    )]
    let cells = (part.clamp(0.0, 1.0) * width as f64).round() as usize;
    cells.min(width)
}

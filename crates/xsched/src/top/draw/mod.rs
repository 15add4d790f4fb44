//! Draws the screen: a pure function of its state.
//!
//! ```text
//!   header      version, policy, number of tasks, scheduling rounds per second
//!   devices     a line each, with a bar of the utilization by each task
//!   tasks       a line each
//!   footer      the last message, else the keys
//! ```

mod devices;
mod popup;
mod tasks;

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget as _, Wrap};
use xsched_policy::PolicyInfo;

use super::screen::{Mode, Screen};
use crate::term;

const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const ERROR: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);

const KEYS: &str = " up/down select  +/- priority  s suspend  r resume  p policy  / filter  ? help  q quit";
const SHORT_KEYS: &str = " up/down  +/- priority  s suspend  r resume  p policy  / filter  ? help  q quit";

/// Draws the whole screen.
pub(super) fn draw(screen: &Screen, area: Rect, buffer: &mut Buffer) {
    let device_lines = devices::lines(screen, area.height);
    let [header, devices, tasks, footer] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(device_lines),
        Constraint::Min(0),
        Constraint::Length(u16::from(screen.mode != Mode::Static)),
    ])
    .areas(area);
    draw_header(screen, header, buffer);
    if screen.status.is_none() {
        let waiting = format!("{} - waiting", screen.disconnect_reason);
        draw_message(&[&waiting, "q quits"], tasks, buffer);
    } else if screen.tasks().is_empty() {
        let how = "`xsched run -- PROGRAM` starts a program under the scheduler";
        draw_message(&["no task is scheduled", how], tasks, buffer);
    } else {
        devices::draw(screen, devices, buffer);
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
    let devices = u16::try_from(screen.devices().len()).unwrap_or(u16::MAX);
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
        spans.push(Span::raw(format!(" {}", term::printable(&status.version))));
        spans.push(Span::raw("   policy "));
        spans.push(Span::styled(policy, BOLD));
        spans.push(Span::raw(format!("   {tasks}   {rounds} rounds/s")));
        spans.push(Span::styled(format!("   by {}", screen.sort.name()), DIM));
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
        (None, _) if !screen.filter.is_empty() => {
            Line::styled(format!(" showing only: {}   Esc shows all", screen.filter), BOLD)
        }
        (None, _) => Line::styled(if room < KEYS.len() { SHORT_KEYS } else { KEYS }, DIM),
    };
    line.render(area, buffer);
}

//! The lines of the devices: a bar of the utilization by each task.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget as _;
use xsched_ipc::protocol::TaskState;

use super::{DIM, Screen};
use crate::term;

/// Colours of the parts of a bar, used cyclically.
const PARTS: [Color; 5] = [Color::Green, Color::Blue, Color::Magenta, Color::Cyan, Color::Yellow];

/// Lines of the devices on a screen of `height` lines, with a blank line above and below.
pub(super) fn lines(screen: &Screen, height: u16) -> u16 {
    let devices = u16::try_from(screen.devices().len()).unwrap_or(u16::MAX);
    if devices == 0 { 0 } else { devices.min((height / 4).max(1)) + 2 }
}

/// Draws a line for each device that fits, and the number of the devices that do not.
pub(super) fn draw(screen: &Screen, area: Rect, buffer: &mut Buffer) {
    let devices = screen.devices();
    let room = usize::from(area.height.saturating_sub(2));
    let shown = if devices.len() > room { room.saturating_sub(1) } else { devices.len() };
    let label_width = devices.iter().map(|device| term::device(*device).len()).max().unwrap_or(0);
    let rows = area.rows().skip(1);
    for ((number, device), row) in devices.iter().enumerate().take(shown).zip(rows) {
        let number = if devices.len() > 1 { format!(" {number:>2} ") } else { " ".to_owned() };
        let label = format!("{number}{:<label_width$} ", term::device(*device));
        line(screen, *device, label, usize::from(row.width)).render(row, buffer);
    }
    if shown < devices.len() {
        let row = Rect { y: area.y + 1 + u16::try_from(shown).unwrap_or(0), height: 1, ..area };
        Line::styled(format!("    and {} more devices", devices.len() - shown), DIM).render(row, buffer);
    }
}

fn line<'a>(screen: &Screen, device: u64, label: String, width: usize) -> Line<'a> {
    let mut utilizations: Vec<(String, f64)> = screen
        .tasks()
        .iter()
        .filter(|task| task.device == device)
        .filter_map(|task| Some((term::name(task), screen.rates_of(task)?.utilization)))
        .filter(|(_, utilization)| *utilization > 0.0)
        .collect();
    utilizations.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let total = utilizations.iter().fold(0.0, |total, (_, utilization)| total + utilization);
    // Tasks that run at the same time can add up to more than 1: then the bar shows their proportions.
    let scale = total.max(1.0);

    let bar_width = (width / 4).max(10);
    let mut spans = vec![Span::raw(label)];
    let mut filled = 0;
    let mut sum = 0.0;
    for (i, (_, utilization)) in utilizations.iter().enumerate() {
        sum += utilization / scale;
        let end = cells(sum, bar_width);
        let glyph = screen.glyphs.bar[i % screen.glyphs.bar.len()];
        spans.push(Span::styled(glyph.repeat(end - filled), Style::new().fg(PARTS[i % PARTS.len()])));
        filled = end;
    }
    spans.push(Span::styled(screen.glyphs.empty.repeat(bar_width - filled), DIM));
    spans.push(Span::raw(format!(" {:>4}  ", term::percent(total.min(1.0)))));

    let used: usize = spans.iter().map(Span::width).sum();
    let mut texts: Vec<String> = utilizations
        .iter()
        .map(|(name, utilization)| format!("{name} {}", term::percent(*utilization)))
        .collect();
    let held = screen.count(device, TaskState::Held);
    if held > 0 {
        texts.push(format!("{held} held"));
    }
    spans.push(Span::raw(term::fit(&texts.join(", "), width.saturating_sub(used), screen.glyphs)));
    Line::from(spans)
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

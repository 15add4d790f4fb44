//! Boxes drawn over the screen: the list of policies, and the help.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Widget as _};
use xsched_policy::POLICIES;

use super::{BOLD, Screen};
use crate::term;
use crate::top::keys::HELP;

/// Draws the policies; the cursor is on `at`, and a star marks the policy in use.
pub(super) fn draw_policies(screen: &Screen, at: usize, area: Rect, buffer: &mut Buffer) {
    let in_use = screen.status.as_ref().map(|status| status.policy.as_str()).unwrap_or_default();
    let width = area.width.saturating_sub(4).min(104);
    let room = usize::from(width.saturating_sub(2));
    let mut lines: Vec<Line<'_>> = POLICIES
        .iter()
        .enumerate()
        .map(|(i, info)| {
            let mark = if info.name.eq_ignore_ascii_case(in_use) { '*' } else { ' ' };
            let cursor = if i == at { '>' } else { ' ' };
            let text = format!("{cursor}{mark}{:<13} {:<4} {}", info.plain, info.name, info.summary);
            let style = if i == at { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
            Line::styled(term::fit(&text, room, screen.glyphs), style)
        })
        .collect();
    let summary = POLICIES.get(at).map(|info| info.summary).unwrap_or_default();
    lines.push(Line::default());
    // The full summary of the policy at the cursor: the list may cut it.
    lines.push(Line::styled(term::fit(&format!("  {summary}"), room, screen.glyphs), BOLD));
    lines.push(Line::raw("  Enter: use this policy   Esc: cancel"));
    draw_box(screen, " policy ", lines, width, area, buffer);
}

/// Draws the help.
pub(super) fn draw_help(screen: &Screen, area: Rect, buffer: &mut Buffer) {
    let lines = HELP.iter().map(|(keys, what)| Line::raw(format!(" {keys:>9}  {what} "))).collect();
    draw_box(screen, " help ", lines, 62, area, buffer);
}

fn draw_box(screen: &Screen, title: &str, lines: Vec<Line<'_>>, width: u16, area: Rect, buffer: &mut Buffer) {
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX).min(area.height);
    let width = width.min(area.width);
    let rect =
        Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    Clear.render(rect, buffer);
    let block = Block::bordered().border_set(screen.glyphs.border).title(title);
    Paragraph::new(lines).block(block).render(rect, buffer);
}

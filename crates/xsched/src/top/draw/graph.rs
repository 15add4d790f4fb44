//! A graph of the last minute: parts of a whole, stacked in the colours of their tasks.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Color;

use crate::term::Glyphs;

/// One part of a column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Part {
    /// Its part of the whole, 0 to 1.
    pub(super) value: f64,
    pub(super) colour: Color,
    /// The filling of full cells, where only ASCII can be shown.
    pub(super) filling: usize,
}

/// Draws the columns from the left, the first part of each at the bottom. Parts that add up to more than 1 keep their proportions.
pub(super) fn draw(columns: &[Vec<Part>], glyphs: &Glyphs, area: Rect, buffer: &mut Buffer) {
    let steps = glyphs.spark.len();
    let height = usize::from(area.height);
    for (x, parts) in (area.left()..area.right()).zip(columns) {
        let levels = levels(parts, height * steps);
        for (y, cell) in (area.top()..area.bottom()).rev().zip(levels.chunks(steps)) {
            let Some(first) = cell[0] else { break };
            let filled = cell.iter().take_while(|part| **part == Some(first)).count();
            let target = &mut buffer[(x, y)];
            let is_full = filled == steps;
            target.set_symbol(if is_full {
                glyphs.graph[parts[first].filling % glyphs.graph.len()]
            } else {
                glyphs.spark[filled - 1]
            });
            target.set_fg(parts[first].colour);
            // Above the first part in this cell is the second one, which is its background.
            if let Some(second) = cell.get(filled).copied().flatten() {
                target.set_bg(parts[second].colour);
            }
        }
    }
}

/// The part at each of `count` levels from the bottom.
fn levels(parts: &[Part], count: usize) -> Vec<Option<usize>> {
    let scale = parts.iter().map(|part| part.value).sum::<f64>().max(1.0);
    let mut levels = Vec::with_capacity(count);
    let mut sum = 0.0;
    for (number, part) in parts.iter().enumerate() {
        sum += part.value / scale;
        let end = super::cells(sum, count);
        levels.resize(end.max(levels.len()), Some(number));
    }
    levels.resize(count, None);
    levels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(value: f64, number: u8) -> Part {
        Part { value, colour: Color::Indexed(number), filling: usize::from(number) }
    }

    #[test]
    fn parts_are_stacked_and_a_cell_shows_two_of_them() {
        let area = Rect::new(0, 0, 3, 2);
        let mut buffer = Buffer::empty(area);
        let columns = [vec![part(0.25, 1), part(0.5, 2)], vec![], vec![part(1.0, 1), part(1.0, 2)]];
        draw(&columns, Glyphs::UNICODE, area, &mut buffer);
        let cell = |x, y| (buffer[(x, y)].symbol().to_owned(), buffer[(x, y)].fg, buffer[(x, y)].bg);
        assert_eq!(cell(0, 1), ("▄".into(), Color::Indexed(1), Color::Indexed(2)));
        assert_eq!(cell(0, 0), ("▄".into(), Color::Indexed(2), Color::Reset));
        assert_eq!(cell(1, 1), (" ".into(), Color::Reset, Color::Reset));
        assert_eq!(cell(2, 1), ("█".into(), Color::Indexed(1), Color::Reset), "200 % is scaled to 100 %");
        assert_eq!(cell(2, 0), ("█".into(), Color::Indexed(2), Color::Reset));
    }
}

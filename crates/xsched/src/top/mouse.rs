//! The effect of the mouse.

use ratatui::crossterm::event::{MouseButton, MouseEvent, MouseEventKind};
use ratatui::layout::Rect;
use xsched_policy::POLICIES;

use super::draw::{Place, place_at};
use super::screen::{Mode, Screen};

impl Screen {
    /// Handles a click or a turn of the wheel on a screen of this size: a click selects a row or sorts by a column, the wheel scrolls.
    pub(super) fn click(&mut self, mouse: MouseEvent, area: Rect) {
        let rows = match mouse.kind {
            MouseEventKind::ScrollUp => -1,
            MouseEventKind::ScrollDown => 1,
            MouseEventKind::Down(MouseButton::Left) => 0,
            _ => return,
        };
        self.note = None;
        match self.mode {
            Mode::Table | Mode::Filter if rows != 0 => self.move_by(rows),
            Mode::Table | Mode::Filter => match place_at(self, area, mouse.column, mouse.row) {
                Some(Place::Row(row)) => self.select(row),
                Some(Place::Heading(sort)) => self.sort_by(sort),
                None => {}
            },
            Mode::Policies(at) => {
                self.mode = Mode::Policies(at.saturating_add_signed(rows).min(POLICIES.len() - 1));
            }
            Mode::Help => self.mode = Mode::Table,
            Mode::Static => {}
        }
    }
}

//! The colours of the tasks: the same in the table, in the bars and in the graphs.
//!
//! All are numbers of the palette of 256 colours, with a luminance in the middle: they can be read on a dark and on a light
//! background. The 16 colours of a terminal cannot: its yellow on white has almost no contrast.

use std::collections::{HashMap, HashSet};

use ratatui::style::Color;

/// Of the tasks, used cyclically: blue, orange, green, magenta, teal, ochre, violet.
const TASKS: [u8; 7] = [33, 166, 64, 162, 30, 136, 99];

/// Good, in the table: a task runs.
pub(super) const GREEN: Color = Color::Indexed(64);
/// A task waits.
pub(super) const OCHRE: Color = Color::Indexed(136);
/// An error, or a task that cannot run.
pub(super) const RED: Color = Color::Indexed(160);
/// The memory of a device.
pub(super) const GREY: Color = Color::Indexed(244);

/// The colour of each task, while it exists or is in a graph.
#[derive(Clone, Debug, Default)]
pub(super) struct Colours(HashMap<u64, usize>);

impl Colours {
    /// Gives a colour to every task of a device that has none: the first that no other task of the device has.
    pub(super) fn assign(&mut self, on_device: &[u64]) {
        let mut used: HashSet<usize> =
            on_device.iter().filter_map(|task| self.0.get(task).copied()).collect();
        for task in on_device {
            if self.0.contains_key(task) {
                continue;
            }
            let free = (0..TASKS.len()).find(|number| !used.contains(number));
            let number = free.unwrap_or(self.0.len());
            used.insert(number);
            self.0.insert(*task, number);
        }
    }

    /// Forgets the tasks for which `is_shown` is false.
    pub(super) fn retain(&mut self, is_shown: impl Fn(u64) -> bool) {
        self.0.retain(|task, _| is_shown(*task));
    }

    /// The number of the colour of a task, which also selects its filling where there are no colours.
    pub(super) fn number(&self, task: u64) -> usize {
        self.0.get(&task).copied().unwrap_or(0)
    }

    /// The colour of a task.
    pub(super) fn of(&self, task: u64) -> Color {
        Color::Indexed(TASKS[self.number(task) % TASKS.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The relative luminance of a colour of the palette, 0 to 1, as in the Web Content Accessibility Guidelines.
    fn luminance(number: u8) -> f64 {
        let channels = if number >= 232 {
            [8 + 10 * (number - 232); 3]
        } else {
            let step = |index: u8| if index == 0 { 0 } else { 55 + 40 * index };
            let cube = number - 16;
            [step(cube / 36), step(cube / 6 % 6), step(cube % 6)]
        };
        let linear = channels.map(|channel| {
            let part = f64::from(channel) / 255.0;
            if part <= 0.040_45 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        });
        0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    }

    #[test]
    fn colours_can_be_read_on_black_and_on_white() {
        let named = [GREEN, OCHRE, RED, GREY].map(|colour| match colour {
            Color::Indexed(number) => number,
            other => panic!("{other:?}"),
        });
        for number in TASKS.into_iter().chain(named) {
            let luminance = luminance(number);
            let (on_black, on_white) = ((luminance + 0.05) / 0.05, 1.05 / (luminance + 0.05));
            assert!(on_black >= 3.0 && on_white >= 3.0, "{number}: {on_black:.1} and {on_white:.1}");
        }
    }

    #[test]
    fn tasks_of_a_device_have_different_colours_which_they_keep() {
        let mut colours = Colours::default();
        colours.assign(&[10, 11, 12]);
        colours.assign(&[20]);
        let before: Vec<_> = [10, 11, 12].map(|task| colours.of(task)).into();
        assert_eq!(before.iter().collect::<HashSet<_>>().len(), 3);
        assert_eq!(colours.of(20), colours.of(10), "it is on another device");
        colours.retain(|task| task != 11);
        colours.assign(&[10, 12, 13]);
        assert_eq!([10, 13, 12].map(|task| colours.of(task)).to_vec(), before);
        colours.assign(&(30..50).collect::<Vec<_>>());
    }
}

//! The state of the screen, and how a status of the service changes it. No clock, no terminal, no socket.

use std::collections::HashMap;

use xsched_ipc::protocol::{Status, TaskState, TaskStatus};

use super::history::History;
use crate::rates::{self, Rates};
use crate::term::Glyphs;

/// How the tasks are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// By device, the highest priority first.
    #[default]
    Device,
    /// The highest utilization first.
    Utilization,
    /// The highest part of the time held first.
    Held,
    /// The longest wait first.
    Wait,
    /// By name.
    Name,
}

impl Sort {
    /// The order after this one.
    pub(super) fn next(self) -> Self {
        match self {
            Self::Device => Self::Utilization,
            Self::Utilization => Self::Held,
            Self::Held => Self::Wait,
            Self::Wait => Self::Name,
            Self::Name => Self::Device,
        }
    }

    /// Shown in the header.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Utilization => "utilization",
            Self::Held => "held",
            Self::Wait => "wait",
            Self::Name => "name",
        }
    }
}

/// What the keys act on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    /// The table of tasks.
    #[default]
    Table,
    /// The text of the filter.
    Filter,
    /// The list of policies; the cursor is on this one.
    Policies(usize),
    /// The help, which any key closes.
    Help,
    /// No keys: the screen is printed once.
    Static,
}

/// A message in the last line of the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) text: String,
    /// An error stays until a key is pressed, any other message for `NOTE_DURATION_NS`.
    pub(super) is_error: bool,
    since_ns: u64,
}

/// How long a message that is no error is shown.
const NOTE_DURATION_NS: u64 = 5_000_000_000;

/// The state of the screen.
#[derive(Clone, Debug)]
pub(super) struct Screen {
    /// The characters to draw with.
    pub(super) glyphs: &'static Glyphs,
    /// The latest status; none while no service replies.
    pub(super) status: Option<Status>,
    /// Why there is no status.
    pub(super) disconnect_reason: String,
    /// Rates by task, from the last two statuses.
    pub(super) rates: HashMap<u64, Rates>,
    /// Rounds of the scheduler.
    pub(super) rounds_per_s: Option<f64>,
    /// Utilization over the last minute, by task.
    pub(super) histories: HashMap<u64, History>,
    /// The row under the cursor, and its task.
    pub(super) row: usize,
    pub(super) selected: Option<u64>,
    /// Only tasks that contain this text are shown.
    pub(super) filter: String,
    /// How the tasks are sorted.
    pub(super) sort: Sort,
    /// What the keys act on.
    pub(super) mode: Mode,
    /// The last message.
    pub(super) note: Option<Note>,
}

impl Screen {
    /// A screen without a status.
    pub(super) fn new(glyphs: &'static Glyphs) -> Self {
        Self {
            glyphs,
            status: None,
            disconnect_reason: "connecting to the service".to_owned(),
            rates: HashMap::new(),
            rounds_per_s: None,
            histories: HashMap::new(),
            row: 0,
            selected: None,
            filter: String::new(),
            sort: Sort::default(),
            mode: Mode::default(),
            note: None,
        }
    }

    /// Shows a new status.
    pub(super) fn update(&mut self, new: Status) {
        let old = self.status.take();
        self.rates = old.as_ref().map(|old| rates::between(old, &new)).unwrap_or_default();
        self.rounds_per_s = old.as_ref().and_then(|old| rates::rounds_per_s(old, &new));
        if old.as_ref().is_none_or(|old| old.pid != new.pid) {
            // Task numbers are unique within one service only.
            self.histories.clear();
        }
        self.histories.retain(|id, _| new.tasks.iter().any(|task| task.task == *id));
        let from_ns = old.map_or(new.now_ns, |old| old.now_ns);
        for (id, rates) in &self.rates {
            self.histories.entry(*id).or_default().push(from_ns, new.now_ns, rates.utilization);
        }
        self.note
            .take_if(|note| !note.is_error && new.now_ns.saturating_sub(note.since_ns) >= NOTE_DURATION_NS);
        self.status = Some(new);
        self.follow_selection();
    }

    /// Shows that no service replies.
    pub(super) fn disconnect(&mut self, reason: String) {
        self.status = None;
        self.rates.clear();
        self.rounds_per_s = None;
        self.disconnect_reason = reason;
        if matches!(self.mode, Mode::Policies(_)) {
            self.mode = Mode::Table;
        }
    }

    /// Shows a message in the last line.
    pub(super) fn show_note(&mut self, text: impl Into<String>, is_error: bool) {
        let since_ns = self.status.as_ref().map_or(0, |status| status.now_ns);
        self.note = Some(Note { text: text.into(), is_error, since_ns });
    }

    /// The rates of a task, if the last two statuses have it.
    pub(super) fn rates_of(&self, task: &TaskStatus) -> Option<&Rates> {
        self.rates.get(&task.task)
    }

    /// All tasks.
    pub(super) fn tasks(&self) -> &[TaskStatus] {
        self.status.as_ref().map_or(&[], |status| &status.tasks)
    }

    /// The tasks to show, sorted.
    pub(super) fn visible(&self) -> Vec<&TaskStatus> {
        let filter = self.filter.to_lowercase();
        let matches = |task: &&TaskStatus| {
            filter.is_empty()
                || task.name.to_lowercase().contains(&filter)
                || task.cmdline.to_lowercase().contains(&filter)
                || task.pid.to_string() == filter
        };
        let mut tasks: Vec<_> = self.tasks().iter().filter(matches).collect();
        tasks.sort_by_key(|task| (task.device, -task.priority, task.pid, task.task));
        let rate = |task: &TaskStatus, of: fn(&Rates) -> f64| self.rates_of(task).map_or(-1.0, of);
        match self.sort {
            Sort::Device => {}
            Sort::Utilization => {
                tasks.sort_by(|a, b| rate(b, |r| r.utilization).total_cmp(&rate(a, |r| r.utilization)));
            }
            Sort::Held => tasks.sort_by(|a, b| rate(b, |r| r.held).total_cmp(&rate(a, |r| r.held))),
            Sort::Wait => tasks.sort_by_key(|task| std::cmp::Reverse(task.wait_p99_us)),
            Sort::Name => tasks.sort_by(|a, b| a.name.cmp(&b.name)),
        }
        tasks
    }

    /// The devices, sorted; the index of a device is its number on the screen.
    pub(super) fn devices(&self) -> Vec<u64> {
        let mut devices: Vec<_> = self.tasks().iter().map(|task| task.device).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// The task under the cursor.
    pub(super) fn selected_task(&self) -> Option<&TaskStatus> {
        let id = self.selected?;
        self.tasks().iter().find(|task| task.task == id)
    }

    /// Moves the cursor by so many rows.
    pub(super) fn move_by(&mut self, rows: isize) {
        self.row = self.row.saturating_add_signed(rows);
        self.select_row();
    }

    /// Moves the cursor to the row of its task, or keeps the row if the task is gone.
    pub(super) fn follow_selection(&mut self) {
        let found = self.visible().iter().position(|task| Some(task.task) == self.selected);
        if let Some(row) = found {
            self.row = row;
        }
        self.select_row();
    }

    fn select_row(&mut self) {
        let ids: Vec<_> = self.visible().iter().map(|task| task.task).collect();
        self.row = self.row.min(ids.len().saturating_sub(1));
        self.selected = ids.get(self.row).copied();
    }

    /// Shows a requested change before the service confirms it; the next status replaces it.
    pub(super) fn apply_expected(&mut self, pid: u32, change: impl Fn(&mut TaskStatus)) {
        let tasks = self.status.iter_mut().flat_map(|status| &mut status.tasks);
        tasks.filter(|task| task.pid == pid).for_each(change);
        self.follow_selection();
    }

    /// How many tasks of a device are in `state`.
    pub(super) fn count(&self, device: u64, state: TaskState) -> usize {
        self.tasks().iter().filter(|task| task.device == device && task.state == state).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn task(task: u64, name: &str, priority: i16, used_ns: u64) -> TaskStatus {
        let pid = 100 + u32::try_from(task).unwrap();
        TaskStatus { task, pid, name: name.into(), priority, used_ns, ..TaskStatus::default() }
    }

    fn status_of(pid: u32, now_ns: u64, tasks: Vec<TaskStatus>) -> Status {
        Status { pid, now_ns, rounds: now_ns / 1_000_000, tasks, ..Status::default() }
    }

    fn names(screen: &Screen) -> Vec<&str> {
        screen.visible().iter().map(|task| task.name.as_str()).collect()
    }

    #[test]
    fn two_statuses_give_rates_and_a_history() {
        let mut screen = Screen::new(Glyphs::UNICODE);
        screen.update(status_of(1, SECOND, vec![task(1, "a", 0, 0)]));
        assert!(screen.rates.is_empty());
        screen.update(status_of(1, 3 * SECOND, vec![task(1, "a", 0, SECOND)]));
        assert!((screen.rates[&1].utilization - 0.5).abs() < 1e-9);
        assert_eq!(screen.rounds_per_s, Some(1000.0));
        let columns = screen.histories[&1].columns(3 * SECOND, 60);
        assert_eq!(columns[57..], [None, Some(0.5), Some(0.5)]);
    }

    #[test]
    fn removed_task_leaves_no_state() {
        let mut screen = Screen::new(Glyphs::UNICODE);
        for second in 1..4 {
            screen.update(status_of(1, second * SECOND, vec![task(1, "a", 0, 0), task(2, "b", 0, 0)]));
        }
        screen.selected = Some(2);
        screen.follow_selection();
        assert_eq!(screen.row, 1);
        screen.update(status_of(1, 5 * SECOND, vec![task(1, "a", 0, 0)]));
        assert!(!screen.histories.contains_key(&2) && !screen.rates.contains_key(&2));
        assert_eq!((screen.row, screen.selected), (0, Some(1)));
        screen.update(status_of(1, 6 * SECOND, vec![]));
        assert_eq!((screen.row, screen.selected), (0, None));
    }

    #[test]
    fn new_service_clears_histories() {
        let mut screen = Screen::new(Glyphs::UNICODE);
        screen.update(status_of(1, SECOND, vec![task(1, "a", 0, 0)]));
        screen.update(status_of(1, 2 * SECOND, vec![task(1, "a", 0, 0)]));
        screen.disconnect("gone".into());
        assert!(screen.visible().is_empty());
        screen.update(status_of(2, 3 * SECOND, vec![task(1, "b", 0, 0)]));
        assert!(screen.histories.is_empty() && screen.rates.is_empty());
    }

    #[test]
    fn messages_expire_and_errors_stay() {
        let mut screen = Screen::new(Glyphs::UNICODE);
        for (is_error, stays) in [(false, false), (true, true)] {
            screen.update(status_of(1, SECOND, vec![]));
            screen.show_note("message", is_error);
            screen.update(status_of(1, 3 * SECOND, vec![]));
            assert!(screen.note.is_some());
            screen.update(status_of(1, 6 * SECOND, vec![]));
            assert_eq!(screen.note.is_some(), stays);
        }
    }

    #[test]
    fn cursor_follows_its_task_when_the_sorting_changes() {
        let mut screen = Screen::new(Glyphs::UNICODE);
        let tasks = |b_used| vec![task(1, "a", 5, 0), task(2, "b", 0, b_used), task(3, "c", 9, 0)];
        screen.update(status_of(1, SECOND, tasks(0)));
        assert_eq!(names(&screen), ["c", "a", "b"]);
        screen.move_by(2);
        assert_eq!(screen.selected, Some(2));
        screen.sort = Sort::Utilization;
        screen.update(status_of(1, 2 * SECOND, tasks(SECOND)));
        assert_eq!(names(&screen), ["b", "c", "a"]);
        assert_eq!((screen.row, screen.selected), (0, Some(2)));
    }

    #[test]
    fn filter_matches_names_command_lines_and_pids() {
        let mut screen = Screen::new(Glyphs::UNICODE);
        let mut serve = task(1, "Serve", 0, 0);
        serve.cmdline = "python serve.py".into();
        screen.update(status_of(1, SECOND, vec![serve, task(2, "train", 0, 0)]));
        for (filter, expected) in
            [("serve", vec!["Serve"]), ("PYTHON", vec!["Serve"]), ("102", vec!["train"]), ("x", vec![])]
        {
            screen.filter = filter.into();
            assert_eq!(names(&screen), expected, "{filter}");
        }
    }
}

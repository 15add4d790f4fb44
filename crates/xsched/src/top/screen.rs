//! The state of the screen, and how a status of the service changes it. No clock, no terminal, no socket.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use xsched_ipc::protocol::{Status, TaskState, TaskStatus};

use super::colours::Colours;
use super::history::History;
use super::sort::Sort;
use crate::device_memory::Memory;
use crate::rates::{self, Rates};
use crate::selection::Selection;
use crate::status;
use crate::term::Glyphs;

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

/// The utilization by one task.
#[derive(Clone, Debug)]
pub(super) struct TaskHistory {
    device: u64,
    pub(super) utilization: History,
}

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
    /// Utilization over the last minute, by task. Tasks that are gone keep theirs until it has expired.
    pub(super) histories: HashMap<u64, TaskHistory>,
    /// The colours of these tasks.
    pub(super) colours: Colours,
    /// The memory of each device, where it is known.
    pub(super) memory: HashMap<u64, Memory>,
    /// The used part of it over the last minute.
    pub(super) memory_histories: HashMap<u64, History>,
    /// The row under the cursor, and its task.
    pub(super) row: usize,
    pub(super) selected: Option<u64>,
    /// Only tasks that contain this text are shown.
    pub(super) filter: String,
    /// Only tasks of this user and on this device are shown.
    pub(super) selection: Selection,
    /// How the tasks are sorted, and whether in the reverse order.
    pub(super) sort: Sort,
    pub(super) is_reversed: bool,
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
            colours: Colours::default(),
            memory: HashMap::new(),
            memory_histories: HashMap::new(),
            row: 0,
            selected: None,
            filter: String::new(),
            selection: Selection::default(),
            sort: Sort::default(),
            is_reversed: false,
            mode: Mode::default(),
            note: None,
        }
    }

    /// Shows a new status, and the memory of the devices at the same time.
    pub(super) fn update(&mut self, new: Status, memory: HashMap<u64, Memory>) {
        let old = self.status.take();
        self.rates = old.as_ref().map(|old| rates::between(old, &new)).unwrap_or_default();
        self.rounds_per_s = old.as_ref().and_then(|old| rates::rounds_per_s(old, &new));
        if old.as_ref().is_none_or(|old| old.pid != new.pid) {
            // Task numbers are unique within one service only.
            self.histories.clear();
            self.memory_histories.clear();
        }
        self.memory = memory;
        self.extend_histories(old.map_or(new.now_ns, |old| old.now_ns), &new);
        self.note
            .take_if(|note| !note.is_error && new.now_ns.saturating_sub(note.since_ns) >= NOTE_DURATION_NS);
        self.status = Some(new);
        self.assign_colours();
        self.follow_selection();
    }

    fn extend_histories(&mut self, from_ns: u64, new: &Status) {
        for task in &new.tasks {
            let Some(rates) = self.rates.get(&task.task) else { continue };
            let history = self
                .histories
                .entry(task.task)
                .or_insert_with(|| TaskHistory { device: task.device, utilization: History::default() });
            history.utilization.push(from_ns, new.now_ns, rates.utilization);
        }
        self.histories.retain(|_, history| !history.utilization.has_expired(new.now_ns));
        for (device, memory) in &self.memory {
            let history = self.memory_histories.entry(*device).or_default();
            history.push(from_ns, new.now_ns, memory.used_part());
        }
        self.memory_histories.retain(|_, history| !history.has_expired(new.now_ns));
    }

    fn assign_colours(&mut self) {
        let Self { colours, histories, status, .. } = self;
        let tasks = status.as_ref().map_or(&[][..], |status| &status.tasks);
        colours.retain(|task| histories.contains_key(&task) || tasks.iter().any(|other| other.task == task));
        let mut by_device = BTreeMap::<u64, BTreeSet<u64>>::new();
        let gone = histories.iter().map(|(task, history)| (history.device, *task));
        for (device, task) in tasks.iter().map(|task| (task.device, task.task)).chain(gone) {
            by_device.entry(device).or_default().insert(task);
        }
        for on_device in by_device.values() {
            colours.assign(&on_device.iter().copied().collect::<Vec<_>>());
        }
    }

    /// Shows that no service replies.
    pub(super) fn disconnect(&mut self, reason: String) {
        self.status = None;
        self.rates.clear();
        self.memory.clear();
        self.rounds_per_s = None;
        self.disconnect_reason = reason;
        if matches!(self.mode, Mode::Policies(_)) {
            self.mode = Mode::Table;
        }
    }

    /// Shows a message in the last line.
    pub(super) fn show_note(&mut self, text: impl Into<String>, is_error: bool) {
        self.note = Some(Note { text: text.into(), is_error, since_ns: self.now_ns() });
    }

    /// The rates of a task, if the last two statuses have it.
    pub(super) fn rates_of(&self, task: &TaskStatus) -> Option<&Rates> {
        self.rates.get(&task.task)
    }

    /// The preemption level of a task.
    pub(super) fn level_of(&self, task: &TaskStatus) -> Option<u8> {
        self.status.as_ref().and_then(|status| status::level(status, task))
    }

    /// All tasks.
    pub(super) fn tasks(&self) -> &[TaskStatus] {
        self.status.as_ref().map_or(&[], |status| &status.tasks)
    }

    /// The tasks to show, sorted.
    pub(super) fn visible(&self) -> Vec<&TaskStatus> {
        let filter = self.filter.to_lowercase();
        let matches = |task: &&TaskStatus| {
            self.selection.has_task(task)
                && (filter.is_empty()
                    || task.name.to_lowercase().contains(&filter)
                    || task.cmdline.to_lowercase().contains(&filter)
                    || task.pid.to_string() == filter)
        };
        let mut tasks: Vec<_> = self.tasks().iter().filter(matches).collect();
        self.sort.sort(self.is_reversed, &mut tasks, &self.rates);
        tasks
    }

    /// When the latest status was made.
    pub(super) fn now_ns(&self) -> u64 {
        self.status.as_ref().map_or(0, |status| status.now_ns)
    }

    /// The utilizations by the tasks of a device over the last minute, in the order in which the tasks appeared.
    pub(super) fn histories_of(&self, device: u64) -> Vec<(u64, &History)> {
        let on_device = self.histories.iter().filter(|(_, history)| history.device == device);
        let mut histories: Vec<_> = on_device.map(|(task, history)| (*task, &history.utilization)).collect();
        histories.sort_unstable_by_key(|(task, _)| *task);
        histories
    }

    /// The devices, sorted; the index of a device is its number on the screen.
    pub(super) fn devices(&self) -> Vec<u64> {
        let mut devices: Vec<_> = self.tasks().iter().map(|task| task.device).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// The devices that have a panel.
    pub(super) fn shown_devices(&self) -> Vec<u64> {
        self.devices().into_iter().filter(|device| self.selection.has_device(*device)).collect()
    }

    /// Whether some tasks are not shown by request.
    pub(super) fn is_filtered(&self) -> bool {
        !self.filter.is_empty() || !self.selection.is_all()
    }

    /// Shows all tasks.
    pub(super) fn clear_filters(&mut self) {
        self.filter.clear();
        self.selection = Selection::default();
        self.follow_selection();
    }

    /// Sorts by this column; in the reverse order if the tasks are sorted by it already.
    pub(super) fn sort_by(&mut self, sort: Sort) {
        self.is_reversed = self.sort == sort && !self.is_reversed;
        self.sort = sort;
        self.follow_selection();
    }

    /// Selects a row, by its number among the visible tasks.
    pub(super) fn select(&mut self, row: usize) {
        self.row = row;
        self.select_row();
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

    fn update(screen: &mut Screen, status: Status) {
        screen.update(status, HashMap::new());
    }

    fn names(screen: &Screen) -> Vec<&str> {
        screen.visible().iter().map(|task| task.name.as_str()).collect()
    }

    #[test]
    fn two_statuses_give_rates_and_a_history() {
        let mut screen = Screen::new(Glyphs::UNICODE);
        update(&mut screen, status_of(1, SECOND, vec![task(1, "a", 0, 0)]));
        assert!(screen.rates.is_empty());
        update(&mut screen, status_of(1, 3 * SECOND, vec![task(1, "a", 0, SECOND)]));
        assert!((screen.rates[&1].utilization - 0.5).abs() < 1e-9);
        assert_eq!(screen.rounds_per_s, Some(1000.0));
        let columns = screen.histories[&1].utilization.columns(3 * SECOND, 60);
        assert_eq!(columns[57..], [None, Some(0.5), Some(0.5)]);
    }

    #[test]
    fn removed_task_stays_in_the_graphs_for_a_minute() {
        let mut screen = Screen::new(Glyphs::UNICODE);
        for second in 1..4 {
            update(&mut screen, status_of(1, second * SECOND, vec![task(1, "a", 0, 0), task(2, "b", 0, 0)]));
        }
        screen.selected = Some(2);
        screen.follow_selection();
        assert_eq!(screen.row, 1);
        update(&mut screen, status_of(1, 5 * SECOND, vec![task(1, "a", 0, 0)]));
        assert!(!screen.rates.contains_key(&2));
        assert_eq!(screen.histories_of(0).len(), 2);
        assert_eq!((screen.row, screen.selected), (0, Some(1)));
        update(&mut screen, status_of(1, 70 * SECOND, vec![]));
        assert_eq!((screen.row, screen.selected), (0, None));
        assert!(screen.histories.is_empty() && screen.histories_of(0).is_empty());
    }

    #[test]
    fn new_service_clears_histories() {
        let mut screen = Screen::new(Glyphs::UNICODE);
        update(&mut screen, status_of(1, SECOND, vec![task(1, "a", 0, 0)]));
        update(&mut screen, status_of(1, 2 * SECOND, vec![task(1, "a", 0, 0)]));
        screen.disconnect("gone".into());
        assert!(screen.visible().is_empty());
        update(&mut screen, status_of(2, 3 * SECOND, vec![task(1, "b", 0, 0)]));
        assert!(screen.histories.is_empty() && screen.rates.is_empty());
    }

    #[test]
    fn messages_expire_and_errors_stay() {
        let mut screen = Screen::new(Glyphs::UNICODE);
        for (is_error, stays) in [(false, false), (true, true)] {
            update(&mut screen, status_of(1, SECOND, vec![]));
            screen.show_note("message", is_error);
            update(&mut screen, status_of(1, 3 * SECOND, vec![]));
            assert!(screen.note.is_some());
            update(&mut screen, status_of(1, 6 * SECOND, vec![]));
            assert_eq!(screen.note.is_some(), stays);
        }
    }

    #[test]
    fn cursor_follows_its_task_when_the_sorting_changes() {
        let mut screen = Screen::new(Glyphs::UNICODE);
        let tasks = |b_used| vec![task(1, "a", 5, 0), task(2, "b", 0, b_used), task(3, "c", 9, 0)];
        update(&mut screen, status_of(1, SECOND, tasks(0)));
        assert_eq!(names(&screen), ["c", "a", "b"]);
        screen.move_by(2);
        assert_eq!(screen.selected, Some(2));
        screen.sort = Sort::Util;
        update(&mut screen, status_of(1, 2 * SECOND, tasks(SECOND)));
        assert_eq!(names(&screen), ["b", "c", "a"]);
        assert_eq!((screen.row, screen.selected), (0, Some(2)));
    }

    #[test]
    fn filter_matches_names_command_lines_and_pids() {
        let mut screen = Screen::new(Glyphs::UNICODE);
        let mut serve = task(1, "Serve", 0, 0);
        serve.cmdline = "python serve.py".into();
        update(&mut screen, status_of(1, SECOND, vec![serve, task(2, "train", 0, 0)]));
        for (filter, expected) in
            [("serve", vec!["Serve"]), ("PYTHON", vec!["Serve"]), ("102", vec!["train"]), ("x", vec![])]
        {
            screen.filter = filter.into();
            assert_eq!(names(&screen), expected, "{filter}");
        }
    }
}

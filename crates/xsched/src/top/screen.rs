//! All that the screen shows, and how it changes with what the service tells. No clock, no terminal, no socket.

use std::collections::HashMap;

use xsched_ipc::protocol::{Status, TaskState, TaskStatus};

use super::history::History;
use crate::rates::{self, Rates};
use crate::term::Glyphs;

/// By what the tasks are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// By device, the most important first.
    #[default]
    Device,
    /// Who has most of a device.
    Utilization,
    /// Who is held longest.
    Held,
    /// Who waits longest.
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

    /// In a word.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Utilization => "utilization",
            Self::Held => "held",
            Self::Wait => "wait",
            Self::Name => "name",
        }
    }
}

/// What the keys mean at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    /// They move in the table and change tasks.
    #[default]
    Table,
    /// They write the filter.
    Filter,
    /// They choose a policy; this one is under the cursor.
    Policies(usize),
    /// Any closes the help.
    Help,
    /// There are none: this is a picture.
    Still,
}

/// A line for the user at the foot of the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    /// What to say.
    pub(super) text: String,
    /// Whether something went wrong: then it stays until a key is pressed, else for a while.
    pub(super) wrong: bool,
    since_ns: u64,
}

/// How long good news stay.
const GOOD_NEWS_NS: u64 = 5_000_000_000;

/// All that is shown.
#[derive(Clone, Debug)]
pub(super) struct Screen {
    /// The signs to draw with.
    pub(super) glyphs: &'static Glyphs,
    /// The latest status; none while no service answers.
    pub(super) status: Option<Status>,
    /// Why there is none.
    pub(super) waiting: String,
    /// Rates by task, from the last two looks.
    pub(super) rates: HashMap<u64, Rates>,
    /// Rounds of the scheduler.
    pub(super) rounds_per_s: Option<f64>,
    /// Shares over the last minute, by task.
    pub(super) histories: HashMap<u64, History>,
    /// The row under the cursor, and its task.
    pub(super) row: usize,
    pub(super) selected: Option<u64>,
    /// Only tasks that contain this are shown.
    pub(super) filter: String,
    /// Their order.
    pub(super) sort: Sort,
    /// What the keys mean.
    pub(super) mode: Mode,
    /// The last thing to say.
    pub(super) note: Option<Note>,
}

impl Screen {
    /// A screen that has seen nothing yet.
    pub(super) fn new(glyphs: &'static Glyphs) -> Self {
        Self {
            glyphs,
            status: None,
            waiting: "looking for the scheduler".to_owned(),
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

    /// Takes in a new look at the service.
    pub(super) fn update(&mut self, new: Status) {
        let old = self.status.take();
        self.rates = old.as_ref().map(|old| rates::between(old, &new)).unwrap_or_default();
        self.rounds_per_s = old.as_ref().and_then(|old| rates::rounds_per_s(old, &new));
        if old.as_ref().is_none_or(|old| old.pid != new.pid) {
            // Another service numbers its tasks anew.
            self.histories.clear();
        }
        self.histories.retain(|id, _| new.tasks.iter().any(|task| task.task == *id));
        let from_ns = old.map_or(new.now_ns, |old| old.now_ns);
        for (id, rates) in &self.rates {
            self.histories.entry(*id).or_default().push(from_ns, new.now_ns, rates.utilization);
        }
        self.note.take_if(|note| !note.wrong && new.now_ns.saturating_sub(note.since_ns) >= GOOD_NEWS_NS);
        self.status = Some(new);
        self.follow_selection();
    }

    /// The service does not answer any more, or not yet.
    pub(super) fn lose(&mut self, why: String) {
        self.status = None;
        self.rates.clear();
        self.rounds_per_s = None;
        self.waiting = why;
        if matches!(self.mode, Mode::Policies(_)) {
            self.mode = Mode::Table;
        }
    }

    /// Says something at the foot of the screen.
    pub(super) fn say(&mut self, text: impl Into<String>, wrong: bool) {
        let since_ns = self.status.as_ref().map_or(0, |status| status.now_ns);
        self.note = Some(Note { text: text.into(), wrong, since_ns });
    }

    /// The rates of a task, if it was there at the last two looks.
    pub(super) fn rates_of(&self, task: &TaskStatus) -> Option<&Rates> {
        self.rates.get(&task.task)
    }

    /// All tasks.
    pub(super) fn tasks(&self) -> &[TaskStatus] {
        self.status.as_ref().map_or(&[], |status| &status.tasks)
    }

    /// The tasks to show, in order.
    pub(super) fn visible(&self) -> Vec<&TaskStatus> {
        let wanted = self.filter.to_lowercase();
        let matches = |task: &&TaskStatus| {
            wanted.is_empty()
                || task.name.to_lowercase().contains(&wanted)
                || task.cmdline.to_lowercase().contains(&wanted)
                || task.pid.to_string() == wanted
        };
        let mut tasks: Vec<_> = self.tasks().iter().filter(matches).collect();
        tasks.sort_by_key(|task| (task.device, -task.priority, task.pid, task.task));
        let rate = |task: &TaskStatus, of: fn(&Rates) -> f64| self.rates_of(task).map_or(-1.0, of);
        match self.sort {
            Sort::Device => {}
            Sort::Utilization => {
                tasks.sort_by(|a, b| rate(b, |r| r.utilization).total_cmp(&rate(a, |r| r.utilization)))
            }
            Sort::Held => tasks.sort_by(|a, b| rate(b, |r| r.held).total_cmp(&rate(a, |r| r.held))),
            Sort::Wait => tasks.sort_by_key(|task| std::cmp::Reverse(task.wait_p99_us)),
            Sort::Name => tasks.sort_by(|a, b| a.name.cmp(&b.name)),
        }
        tasks
    }

    /// The devices there are, in order; their place is their number on the screen.
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

    /// Keeps the cursor on its task wherever that went, or in its place if the task is gone.
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

    /// Shows already what was asked for; the next status tells what became of it.
    pub(super) fn expect(&mut self, pid: u32, change: impl Fn(&mut TaskStatus)) {
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

    fn look(pid: u32, now_ns: u64, tasks: Vec<TaskStatus>) -> Status {
        Status { pid, now_ns, rounds: now_ns / 1_000_000, tasks, ..Status::default() }
    }

    fn names(screen: &Screen) -> Vec<&str> {
        screen.visible().iter().map(|task| task.name.as_str()).collect()
    }

    #[test]
    fn two_looks_give_rates_and_a_history() {
        let mut screen = Screen::new(Glyphs::UNICODE);
        screen.update(look(1, SECOND, vec![task(1, "a", 0, 0)]));
        assert!(screen.rates.is_empty());
        screen.update(look(1, 3 * SECOND, vec![task(1, "a", 0, SECOND)]));
        assert!((screen.rates[&1].utilization - 0.5).abs() < 1e-9);
        assert_eq!(screen.rounds_per_s, Some(1000.0));
        let columns = screen.histories[&1].columns(3 * SECOND, 60);
        assert_eq!(columns[57..], [None, Some(0.5), Some(0.5)]);
    }

    #[test]
    fn what_disappears_leaves_nothing_behind() {
        let mut screen = Screen::new(Glyphs::UNICODE);
        for second in 1..4 {
            screen.update(look(1, second * SECOND, vec![task(1, "a", 0, 0), task(2, "b", 0, 0)]));
        }
        screen.selected = Some(2);
        screen.follow_selection();
        assert_eq!(screen.row, 1);
        screen.update(look(1, 5 * SECOND, vec![task(1, "a", 0, 0)]));
        assert!(!screen.histories.contains_key(&2) && !screen.rates.contains_key(&2));
        assert_eq!((screen.row, screen.selected), (0, Some(1)));
        screen.update(look(1, 6 * SECOND, vec![]));
        assert_eq!((screen.row, screen.selected), (0, None));
    }

    #[test]
    fn another_service_starts_anew() {
        let mut screen = Screen::new(Glyphs::UNICODE);
        screen.update(look(1, SECOND, vec![task(1, "a", 0, 0)]));
        screen.update(look(1, 2 * SECOND, vec![task(1, "a", 0, 0)]));
        screen.lose("gone".into());
        assert!(screen.visible().is_empty());
        screen.update(look(2, 3 * SECOND, vec![task(1, "b", 0, 0)]));
        assert!(screen.histories.is_empty() && screen.rates.is_empty());
    }

    #[test]
    fn good_news_go_by_themselves_and_bad_ones_stay() {
        let mut screen = Screen::new(Glyphs::UNICODE);
        for (wrong, stays) in [(false, false), (true, true)] {
            screen.update(look(1, SECOND, vec![]));
            screen.say("news", wrong);
            screen.update(look(1, 3 * SECOND, vec![]));
            assert!(screen.note.is_some());
            screen.update(look(1, 6 * SECOND, vec![]));
            assert_eq!(screen.note.is_some(), stays);
        }
    }

    #[test]
    fn the_cursor_stays_on_its_task_when_the_order_changes() {
        let mut screen = Screen::new(Glyphs::UNICODE);
        let tasks = |b_used| vec![task(1, "a", 5, 0), task(2, "b", 0, b_used), task(3, "c", 9, 0)];
        screen.update(look(1, SECOND, tasks(0)));
        assert_eq!(names(&screen), ["c", "a", "b"]);
        screen.move_by(2);
        assert_eq!(screen.selected, Some(2));
        screen.sort = Sort::Utilization;
        screen.update(look(1, 2 * SECOND, tasks(SECOND)));
        assert_eq!(names(&screen), ["b", "c", "a"]);
        assert_eq!((screen.row, screen.selected), (0, Some(2)));
    }

    #[test]
    fn the_filter_looks_at_names_command_lines_and_numbers() {
        let mut screen = Screen::new(Glyphs::UNICODE);
        let mut serve = task(1, "Serve", 0, 0);
        serve.cmdline = "python serve.py".into();
        screen.update(look(1, SECOND, vec![serve, task(2, "train", 0, 0)]));
        for (filter, expected) in
            [("serve", vec!["Serve"]), ("PYTHON", vec!["Serve"]), ("102", vec!["train"]), ("x", vec![])]
        {
            screen.filter = filter.into();
            assert_eq!(names(&screen), expected, "{filter}");
        }
    }
}

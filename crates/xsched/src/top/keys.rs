//! The effect of each key.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use xsched_core::{DeviceId, Priority};
use xsched_ipc::protocol::{Request, Target, TaskState};
use xsched_policy::{POLICIES, PolicyInfo};

use super::screen::{Mode, Screen};
use crate::term;

/// What a key requires beyond a change of the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Exit.
    Quit,
    /// Suspend this process until the shell continues it.
    Suspend,
    /// Send a request to the service, and show this text when it is carried out.
    Send(Request, String),
}

/// Lines of the help: keys and columns, and their meaning.
pub(super) const HELP: [(&str, &str); 16] = [
    ("up down", "select a task (also j k, Home, End)"),
    ("+ -", "raise or lower its priority by 1"),
    ("PgUp PgDn", "by 10 (also shift with up and down)"),
    ("0 h l", "normal, high or low priority"),
    ("s r", "suspend, resume"),
    ("p", "choose the policy"),
    ("/", "show only tasks that contain a text"),
    ("u v", "only tasks of its user, on its device"),
    ("d", "sort by the next column; i reverses the order"),
    ("mouse", "selects a row, sorts by a heading, scrolls"),
    ("Esc", "show all tasks, or quit"),
    ("?", "this help"),
    ("q", "quit (also Ctrl-C)"),
    ("UTIL", "part of the time a task had its device"),
    ("HELD", "part of the time a task had work and was held"),
    ("P99 WAIT", "99th percentile of the wait for the device"),
];

impl Screen {
    /// Handles one key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Option<Action> {
        self.note = None;
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Some(Action::Quit),
                KeyCode::Char('z') => Some(Action::Suspend),
                _ => None,
            };
        }
        match self.mode {
            Mode::Table => self.press_in_table(key),
            Mode::Filter => {
                self.press_in_filter(key.code);
                None
            }
            Mode::Policies(at) => self.press_in_policies(key.code, at),
            Mode::Help => {
                self.mode = Mode::Table;
                None
            }
            Mode::Static => None,
        }
    }

    fn press_in_table(&mut self, key: KeyEvent) -> Option<Action> {
        let shift = key.modifiers.contains(KeyModifiers::SHIFT);
        match key.code {
            KeyCode::Esc if self.is_filtered() => self.clear_filters(),
            KeyCode::Char('q') | KeyCode::Esc => return Some(Action::Quit),
            KeyCode::Up if shift => return self.change_priority(10),
            KeyCode::Down if shift => return self.change_priority(-10),
            KeyCode::PageUp => return self.change_priority(10),
            KeyCode::PageDown => return self.change_priority(-10),
            KeyCode::Char('+' | '=') => return self.change_priority(1),
            KeyCode::Char('-' | '_') => return self.change_priority(-1),
            KeyCode::Char('0') => return self.set_priority(Priority::DEFAULT.get()),
            KeyCode::Char('h') => return self.set_priority(Priority::HIGH.get()),
            KeyCode::Char('l') => return self.set_priority(Priority::LOW.get()),
            KeyCode::Char('s') => return self.suspend(),
            KeyCode::Char('r') => return self.resume(),
            KeyCode::Up | KeyCode::Char('k') => self.move_by(-1),
            KeyCode::Down | KeyCode::Char('j') => self.move_by(1),
            KeyCode::Home => self.move_by(isize::MIN),
            KeyCode::End => self.move_by(isize::MAX),
            KeyCode::Char('p') => self.open_policies(),
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('d') => self.sort_by(self.sort.next()),
            KeyCode::Char('i') => self.sort_by(self.sort),
            KeyCode::Char('u') => self.toggle_user(),
            KeyCode::Char('v') => self.toggle_device(),
            KeyCode::Char('?') => self.mode = Mode::Help,
            _ => {}
        }
        None
    }

    fn press_in_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.mode = Mode::Table,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = Mode::Table;
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c) => self.filter.push(c),
            _ => {}
        }
        self.follow_selection();
    }

    /// Shows only the tasks of the user whose task is selected, or those of all users again.
    fn toggle_user(&mut self) {
        let user = self.selected_task().map(|task| task.uid);
        self.selection.user = if self.selection.user.is_some() { None } else { user };
        self.follow_selection();
    }

    /// Shows only the device of the selected task, or all devices again.
    fn toggle_device(&mut self) {
        let device = self.selected_task().map(|task| DeviceId(task.device).to_string());
        self.selection.device = if self.selection.device.is_some() { None } else { device };
        self.follow_selection();
    }

    fn open_policies(&mut self) {
        match &self.status {
            Some(status) => {
                let at = POLICIES.iter().position(|info| info.name.eq_ignore_ascii_case(&status.policy));
                self.mode = Mode::Policies(at.unwrap_or(0));
            }
            None => self.show_note("no service is connected: the policy cannot be changed", true),
        }
    }

    fn press_in_policies(&mut self, key: KeyCode, at: usize) -> Option<Action> {
        match key {
            KeyCode::Up | KeyCode::Char('k') => self.mode = Mode::Policies(at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => {
                self.mode = Mode::Policies((at + 1).min(POLICIES.len() - 1));
            }
            KeyCode::Enter => {
                self.mode = Mode::Table;
                return POLICIES.get(at).map(set_policy);
            }
            KeyCode::Esc | KeyCode::Char('q' | 'p') => self.mode = Mode::Table,
            _ => {}
        }
        None
    }

    fn change_priority(&mut self, by: i16) -> Option<Action> {
        let priority = self.selected_task()?.priority.saturating_add(by);
        // The range excludes -256, which means never run: a key held down must not reach it.
        self.set_priority(priority.clamp(Priority::MIN.get(), Priority::MAX.get()))
    }

    fn set_priority(&mut self, priority: i16) -> Option<Action> {
        let task = self.selected_task()?;
        let (pid, old, name) = (task.pid, task.priority, term::name(task));
        if old == priority {
            self.show_note(format!("{name} has priority {priority} already"), false);
            return None;
        }
        self.apply_expected(pid, |task| task.priority = priority);
        let hint_request =
            xsched_ipc::protocol::HintRequest { priority: Some(priority.into()), ..Default::default() };
        let arrow = self.glyphs.arrow;
        let done = format!("{name} (pid {pid}): priority {old} {arrow} {priority}");
        Some(Action::Send(Request::Set { target: Target::Pid(pid), hint_request }, done))
    }

    fn suspend(&mut self) -> Option<Action> {
        let task = self.selected_task()?;
        let (pid, done) = (task.pid, format!("{} (pid {}): suspended", term::name(task), task.pid));
        self.apply_expected(pid, |task| task.state = TaskState::Suspended);
        Some(Action::Send(Request::Suspend(Target::Pid(pid)), done))
    }

    fn resume(&mut self) -> Option<Action> {
        let task = self.selected_task()?;
        let (pid, done) = (task.pid, format!("{} (pid {}): resumed", term::name(task), task.pid));
        Some(Action::Send(Request::Resume(Target::Pid(pid)), done))
    }
}

fn set_policy(info: &PolicyInfo) -> Action {
    let request = Request::Policy { name: Some(info.name.to_owned()), timeslice_us: None, k: None };
    Action::Send(request, format!("policy: {} ({})", info.plain, info.name))
}

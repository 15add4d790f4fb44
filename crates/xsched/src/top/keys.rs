//! What the keys do.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use xsched_core::Priority;
use xsched_ipc::protocol::{Request, Target, TaskState};
use xsched_policy::{POLICIES, PolicyInfo};

use super::screen::{Mode, Screen};
use crate::term;

/// What a key asks of the program beyond changing the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// End.
    Quit,
    /// Stop until the shell continues us.
    Pause,
    /// Ask the service; say this when it is done.
    Ask(Request, String),
}

/// Lines of the help: keys, and what they do.
pub(super) const HELP: [(&str, &str); 12] = [
    ("up down", "select a task (also j k, Home, End)"),
    ("+ -", "raise or lower its priority by 1"),
    ("PgUp PgDn", "by 10 (also shift with up and down)"),
    ("0 h l", "normal, high or low priority"),
    ("s r", "suspend, resume"),
    ("p", "choose the policy"),
    ("/", "show only what contains a text"),
    ("d", "sort by device, utilization, held, wait or name"),
    ("?", "this help"),
    ("q", "quit (also Esc, Ctrl-C)"),
    ("HELD", "part of the time a task had work and was held"),
    ("P99 WAIT", "longest of 99 in 100 waits for the device"),
];

impl Screen {
    /// Takes in one key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Option<Order> {
        self.note = None;
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Some(Order::Quit),
                KeyCode::Char('z') => Some(Order::Pause),
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
            Mode::Still => None,
        }
    }

    fn press_in_table(&mut self, key: KeyEvent) -> Option<Order> {
        let shift = key.modifiers.contains(KeyModifiers::SHIFT);
        match key.code {
            KeyCode::Esc if !self.filter.is_empty() => {
                self.filter.clear();
                self.follow_selection();
            }
            KeyCode::Char('q') | KeyCode::Esc => return Some(Order::Quit),
            KeyCode::Up if shift => return self.nudge(10),
            KeyCode::Down if shift => return self.nudge(-10),
            KeyCode::PageUp => return self.nudge(10),
            KeyCode::PageDown => return self.nudge(-10),
            KeyCode::Char('+' | '=') => return self.nudge(1),
            KeyCode::Char('-' | '_') => return self.nudge(-1),
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
            KeyCode::Char('d') => {
                self.sort = self.sort.next();
                self.follow_selection();
            }
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

    fn open_policies(&mut self) {
        match &self.status {
            Some(status) => {
                let at = POLICIES.iter().position(|info| info.name.eq_ignore_ascii_case(&status.policy));
                self.mode = Mode::Policies(at.unwrap_or(0));
            }
            None => self.say("there is no scheduler to give a policy to", true),
        }
    }

    fn press_in_policies(&mut self, key: KeyCode, at: usize) -> Option<Order> {
        match key {
            KeyCode::Up | KeyCode::Char('k') => self.mode = Mode::Policies(at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => {
                self.mode = Mode::Policies((at + 1).min(POLICIES.len() - 1));
            }
            KeyCode::Enter => {
                self.mode = Mode::Table;
                return POLICIES.get(at).map(choose);
            }
            KeyCode::Esc | KeyCode::Char('q' | 'p') => self.mode = Mode::Table,
            _ => {}
        }
        None
    }

    fn nudge(&mut self, by: i16) -> Option<Order> {
        let priority = self.selected_task()?.priority.saturating_add(by);
        // "Never run" is a decision of its own, not the end of a row of key presses.
        self.set_priority(priority.clamp(Priority::MIN.get(), Priority::MAX.get()))
    }

    fn set_priority(&mut self, priority: i16) -> Option<Order> {
        let task = self.selected_task()?;
        let (pid, old, whom) = (task.pid, task.priority, term::name(task));
        if old == priority {
            self.say(format!("{whom} has priority {priority} already"), false);
            return None;
        }
        self.expect(pid, |task| task.priority = priority);
        let hint_request =
            xsched_ipc::protocol::HintRequest { priority: Some(priority.into()), ..Default::default() };
        let arrow = self.glyphs.arrow;
        let done = format!("{whom} (pid {pid}): priority {old} {arrow} {priority}");
        Some(Order::Ask(Request::Set { target: Target::Pid(pid), hint_request }, done))
    }

    fn suspend(&mut self) -> Option<Order> {
        let task = self.selected_task()?;
        let (pid, done) = (task.pid, format!("{} (pid {}): suspended", term::name(task), task.pid));
        self.expect(pid, |task| task.state = TaskState::Suspended);
        Some(Order::Ask(Request::Suspend(Target::Pid(pid)), done))
    }

    fn resume(&mut self) -> Option<Order> {
        let task = self.selected_task()?;
        let (pid, done) = (task.pid, format!("{} (pid {}): resumed", term::name(task), task.pid));
        Some(Order::Ask(Request::Resume(Target::Pid(pid)), done))
    }
}

fn choose(info: &PolicyInfo) -> Order {
    let request = Request::Policy { name: Some(info.name.to_owned()), timeslice_us: None, k: None };
    Order::Ask(request, format!("policy: {} ({})", info.plain, info.name))
}

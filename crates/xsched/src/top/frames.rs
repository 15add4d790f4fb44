//! Whole screens, compared with the snapshots in `tests/frames`.
//!
//! After a change, `INSTA_UPDATE=always cargo test -p xsched frames` or `cargo insta review` writes new snapshots: read the
//! difference before you commit it.

use std::collections::HashMap;

use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};
use xsched_core::{DeviceId, DeviceKind};
use xsched_ipc::protocol::{QueueStatus, Request, Status, Target, TaskState, TaskStatus};

use super::as_text;
use super::draw::draw;
use super::keys::{Action, HELP};
use super::screen::{Mode, Screen};
use super::sort::Sort;
use crate::device_memory::Memory;
use crate::term::Glyphs;

const SECOND: u64 = 1_000_000_000;

fn assert_frame(name: &str, frame: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/frames"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, frame));
}

fn gpu(number: u32) -> u64 {
    DeviceId::new(DeviceKind::Gpu, number << 8).0
}

fn task(task: u64, name: &str, device: u64, priority: i16, state: TaskState) -> TaskStatus {
    let pid = 4000 + u32::try_from(task).unwrap();
    let wait_p99_us = Some(180 * task);
    let cmdline = format!("python {name}.py");
    TaskStatus {
        task,
        pid,
        name: name.into(),
        cmdline,
        device,
        priority,
        state,
        wait_p99_us,
        ..TaskStatus::default()
    }
}

/// A task that has `utilization` of its device in even seconds and half of that in odd ones, and is held for the rest.
fn after(second: u64, task: &TaskStatus, utilization: f64) -> TaskStatus {
    let used: f64 = (0..second).map(|s| if s % 2 == 0 { utilization } else { utilization / 2.0 }).sum();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds of a test")]
    let used_ns = (used * SECOND as f64) as u64;
    TaskStatus {
        used_ns,
        held_ns: if task.state == TaskState::Held { second * SECOND - used_ns } else { 0 },
        launches: used_ns / 40_000,
        preemptions: second * 12,
        ..task.clone()
    }
}

fn status_at(second: u64, tasks: Vec<TaskStatus>) -> Status {
    let queue = |task: &TaskStatus| QueueStatus { task: task.task, level: 3, ..QueueStatus::default() };
    Status {
        queues: tasks.iter().map(queue).collect(),
        version: "0.1.0".into(),
        pid: 1,
        policy: "HPF".into(),
        now_ns: second * SECOND,
        rounds: second * 812,
        tasks,
        ..Status::default()
    }
}

/// Thirty seconds of a server and a training on one device, and an idle task on a second device.
fn two_devices() -> Screen {
    let tasks = [
        (task(1, "serve", gpu(6), 100, TaskState::Running), 0.8),
        (task(2, "train-resnet", gpu(6), -100, TaskState::Held), 0.2),
        (task(3, "notebook", gpu(7), 0, TaskState::Idle), 0.0),
    ];
    let mut screen = Screen::new(Glyphs::UNICODE);
    for second in 0..=31 {
        let now = tasks.iter().map(|(task, utilization)| after(second, task, *utilization)).collect();
        screen.update(status_at(second, now), HashMap::new());
    }
    screen
}

fn press(screen: &mut Screen, code: KeyCode) -> Option<Action> {
    screen.press(KeyEvent::new(code, KeyModifiers::NONE))
}

#[test]
fn two_devices_on_a_small_and_a_large_terminal() {
    let screen = two_devices();
    assert_frame("two-devices-80x24", &as_text(&screen, 80, 24));
    assert_frame("two-devices-120x40", &as_text(&screen, 120, 40));
}

#[test]
fn narrow_terminal_shows_the_most_important_columns() {
    let mut screen = two_devices();
    assert_frame("two-devices-60x20", &as_text(&screen, 60, 20));
    screen.mode = Mode::Help;
    let text = as_text(&screen, 60, 24);
    for (keys, meaning) in HELP {
        assert!(text.contains(keys) && text.contains(meaning), "{meaning}: {text}");
    }
}

#[test]
fn memory_of_a_device_has_a_graph_of_its_own() {
    let mut screen = Screen::new(Glyphs::UNICODE);
    let serve = task(1, "serve", gpu(6), 100, TaskState::Running);
    for second in 0..=31 {
        let memory = Memory { used: (second + 1) << 30, total: 64 << 30 };
        screen.update(status_at(second, vec![after(second, &serve, 0.8)]), HashMap::from([(gpu(6), memory)]));
    }
    assert_frame("memory-80x24", &as_text(&screen, 80, 24));
}

#[test]
fn memory_of_tasks_has_a_column_where_it_is_known() {
    let mut screen = two_devices();
    assert!(!as_text(&screen, 120, 24).contains("MEM"), "no task reports its memory");
    let (serve, train) =
        (task(1, "serve", gpu(6), 100, TaskState::Running), task(2, "train", gpu(6), -100, TaskState::Held));
    let serve = TaskStatus {
        memory_bytes: Some(3 << 29),
        memory_limit_bytes: Some(20 << 30),
        ..after(40, &serve, 0.8)
    };
    screen.update(status_at(40, vec![serve, after(40, &train, 0.0)]), HashMap::new());
    screen.sort = Sort::Memory;
    let text = as_text(&screen, 120, 24);
    let at = |word: &str| text.find(word).unwrap_or_else(|| panic!("{word} is not shown: {text}"));
    assert!(at("MEM") < at("1.5G/20G"), "{text}");
}

fn buffer_of(screen: &Screen, columns: u16, lines: u16) -> Buffer {
    let area = Rect::new(0, 0, columns, lines);
    let mut buffer = Buffer::empty(area);
    draw(screen, area, &mut buffer);
    buffer
}

/// The position of the first cell of `text`.
fn position(buffer: &Buffer, text: &str) -> (u16, u16) {
    let area = *buffer.area();
    let line_of = |y: u16| (0..area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    let found = (0..area.height).find_map(|y| {
        let line = line_of(y);
        let at = line.find(text)?;
        Some((u16::try_from(line[..at].chars().count()).unwrap(), y))
    });
    found.unwrap_or_else(|| panic!("no {text}"))
}

#[test]
fn graph_bar_and_row_of_a_task_have_one_colour() {
    let screen = two_devices();
    let buffer = buffer_of(&screen, 80, 24);
    let row = |name: &str| position(&buffer, &format!("{name} "));
    let (serve, train) = (screen.colours.of(1), screen.colours.of(2));
    assert_ne!(serve, train);
    let marks = [row("4001").1, row("4002").1].map(|y| buffer[(1, y)].fg);
    assert_eq!(marks, [serve, train]);
    // The latest column of the first graph: 80 % of one task, 20 % of the other above it.
    let bottom = position(&buffer, "   0%").1;
    assert_eq!((buffer[(79, bottom)].symbol(), buffer[(79, bottom)].fg), ("█", serve));
    let top = bottom - 3;
    assert_eq!((buffer[(79, top)].fg, buffer[(79, top)].bg), (serve, train));
    let bar = position(&buffer, "█");
    assert_eq!(buffer[bar].fg, serve);
}

#[test]
fn selected_row_has_the_colours_of_the_terminal_exchanged() {
    let buffer = buffer_of(&two_devices(), 80, 24);
    let y = position(&buffer, ">").1;
    // After the symbol of the cursor and the mark.
    for x in 2..80 {
        let cell = &buffer[(x, y)];
        assert_eq!((cell.fg, cell.bg), (Color::Reset, Color::Reset), "column {x}");
        assert!(cell.modifier.contains(Modifier::REVERSED) && !cell.modifier.contains(Modifier::DIM));
    }
    assert!(!buffer[(1, y)].modifier.contains(Modifier::REVERSED), "the mark keeps its colour");
}

fn click(screen: &mut Screen, kind: MouseEventKind, (column, row): (u16, u16)) {
    let event = MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE };
    screen.click(event, Rect::new(0, 0, 120, 24));
}

#[test]
fn mouse_selects_sorts_and_scrolls() {
    let press = MouseEventKind::Down(MouseButton::Left);
    let mut screen = two_devices();
    let at = |screen: &Screen, text: &str| position(&buffer_of(screen, 120, 24), text);
    let train = at(&screen, "4002");
    click(&mut screen, press, train);
    assert_eq!(screen.selected, Some(2));
    for (heading, sort) in
        [("NAME", Sort::Name), ("PID", Sort::Pid), ("MINUTE", Sort::Util), ("P99 WAIT", Sort::Wait)]
    {
        let place = at(&screen, heading);
        click(&mut screen, press, place);
        assert_eq!((screen.sort, screen.is_reversed, screen.selected), (sort, false, Some(2)), "{heading}");
        click(&mut screen, press, place);
        assert_eq!((screen.sort, screen.is_reversed), (sort, true), "{heading}");
    }
    click(&mut screen, MouseEventKind::ScrollDown, (0, 0));
    assert_eq!((screen.row, screen.selected), (2, Some(3)), "the longest wait is last");
    click(&mut screen, MouseEventKind::ScrollUp, (0, 0));
    assert_eq!(screen.row, 1);
    // Below the last row, above the table and outside of the screen nothing happens.
    for place in [(5, 22), (5, 2), (500, 500)] {
        click(&mut screen, press, place);
        assert_eq!(screen.row, 1);
    }
    screen.mode = Mode::Policies(0);
    click(&mut screen, MouseEventKind::ScrollDown, (0, 0));
    assert_eq!(screen.mode, Mode::Policies(1));
}

#[test]
fn every_heading_sorts_by_what_its_column_shows() {
    let mut screen = two_devices();
    for (heading, sort) in [
        ("DEV", Sort::Device),
        ("PRIO", Sort::Priority),
        ("STATE", Sort::State),
        ("UTIL", Sort::Util),
        ("LAUNCH/S", Sort::Launch),
        ("HELD", Sort::Held),
        ("PREEMPT/S", Sort::Preempt),
    ] {
        let buffer = buffer_of(&screen, 120, 24);
        let area = *buffer.area();
        let (column, row) = position(&buffer, heading);
        let end = column + u16::try_from(heading.len()).unwrap() - 1;
        for column in [column, end] {
            screen.sort = Sort::Pid;
            let kind = MouseEventKind::Down(MouseButton::Left);
            screen.click(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE }, area);
            assert_eq!(screen.sort, sort, "{heading}");
        }
    }
}

#[test]
fn tasks_of_one_user_or_device_are_shown() {
    let mut screen = two_devices();
    screen.status.as_mut().unwrap().tasks[2].uid = 4_000_000_000;
    assert!(as_text(&screen, 120, 24).contains("USER"));
    press(&mut screen, KeyCode::End);
    press(&mut screen, KeyCode::Char('u'));
    let text = as_text(&screen, 120, 24);
    assert!(text.contains("1 of 3 tasks") && text.contains("showing only: user 4000000000"), "{text}");
    assert!(text.contains("serve 80%"), "the panels show every task of a device: {text}");
    press(&mut screen, KeyCode::Char('u'));
    press(&mut screen, KeyCode::Char('v'));
    let text = as_text(&screen, 120, 24);
    assert!(text.contains("showing only: device 0000:07:00.0") && !text.contains("0000:06:00.0"), "{text}");
    assert!(text.contains("  1 gpu 0000:07:00.0"), "the number is that of the column DEV: {text}");
    assert_eq!(press(&mut screen, KeyCode::Esc), None);
    assert_eq!(screen.visible().len(), 3);
}

#[test]
fn ascii_terminal() {
    let mut screen = two_devices();
    screen.glyphs = Glyphs::ASCII;
    let text = as_text(&screen, 80, 24);
    assert!(text.is_ascii(), "{text}");
    assert_frame("ascii-80x24", &text);
    screen.mode = Mode::Help;
    assert!(as_text(&screen, 80, 24).is_ascii());
    screen.mode = Mode::Policies(0);
    assert!(as_text(&screen, 80, 24).is_ascii());
}

#[test]
fn no_tasks_and_no_service() {
    let mut screen = Screen::new(Glyphs::UNICODE);
    screen.update(status_at(1, vec![]), HashMap::new());
    assert_frame("empty-80x24", &as_text(&screen, 80, 24));
    screen.disconnect(
        "no scheduler is running (searched /run/xsched/socket): start one with `xsched serve`".into(),
    );
    assert_frame("waiting-80x24", &as_text(&screen, 80, 24));
}

#[test]
fn task_list_scrolls_with_the_cursor_and_devices_beyond_the_screen_are_counted() {
    let mut screen = Screen::new(Glyphs::UNICODE);
    let tasks: Vec<_> = (0..60)
        .map(|n| {
            task(n, &format!("worker-{n:02}"), gpu(u32::try_from(n % 10).unwrap()), 0, TaskState::Running)
        })
        .collect();
    for second in 0..3 {
        let now = tasks.iter().map(|task| after(second, task, 0.15)).collect();
        screen.update(status_at(second, now), HashMap::new());
    }
    for _ in 0..30 {
        press(&mut screen, KeyCode::Down);
    }
    assert_frame("many-80x24", &as_text(&screen, 80, 24));
}

#[test]
fn policies_and_help_are_drawn_over_the_table() {
    let mut screen = two_devices();
    press(&mut screen, KeyCode::Char('p'));
    press(&mut screen, KeyCode::Down);
    assert_frame("policies-80x24", &as_text(&screen, 80, 24));
    press(&mut screen, KeyCode::Esc);
    press(&mut screen, KeyCode::Char('?'));
    assert_frame("help-80x24", &as_text(&screen, 80, 24));
}

#[test]
fn error_stays_in_the_last_line_until_the_next_key() {
    let mut screen = two_devices();
    screen.show_note("priority 101 is above the default: only root and the group xsched may raise it", true);
    let text = as_text(&screen, 80, 24);
    assert_frame("error-80x24", &text);
    press(&mut screen, KeyCode::Down);
    assert!(!as_text(&screen, 80, 24).contains("above the default"));
}

#[test]
fn every_terminal_size_can_be_drawn() {
    let screen = two_devices();
    for columns in 0..100 {
        for lines in [0, 1, 2, 3, 5, 9] {
            as_text(&screen, columns, lines);
        }
    }
    let mut popup = two_devices();
    popup.mode = Mode::Policies(3);
    as_text(&popup, 3, 3);
    popup.mode = Mode::Help;
    as_text(&popup, 1, 1);
}

#[test]
fn keys_change_the_priority_of_the_task_under_the_cursor() {
    let mut screen = two_devices();
    press(&mut screen, KeyCode::Down);
    for (key, expected) in [
        (KeyCode::Char('+'), -99),
        (KeyCode::PageUp, -89),
        (KeyCode::Char('-'), -90),
        (KeyCode::Char('h'), 100),
        (KeyCode::Char('0'), 0),
        (KeyCode::Char('l'), -100),
    ] {
        // A task of higher priority moves up, and the cursor with it.
        let Some(Action::Send(Request::Set { target, hint_request }, done)) = press(&mut screen, key) else {
            panic!("{key:?}")
        };
        assert_eq!(target, Target::Pid(4002));
        assert_eq!(hint_request.priority, Some(expected), "{key:?}: {done}");
    }
    assert_eq!(press(&mut screen, KeyCode::Char('l')), None, "the priority is unchanged");
    assert!(screen.note.as_ref().unwrap().text.contains("already"));
}

#[test]
fn priority_keys_stop_at_the_range() {
    let mut screen = two_devices();
    screen.apply_expected(4001, |task| task.priority = 250);
    let Some(Action::Send(Request::Set { hint_request, .. }, _)) = press(&mut screen, KeyCode::PageUp) else {
        panic!()
    };
    assert_eq!(hint_request.priority, Some(255));
    assert_eq!(press(&mut screen, KeyCode::PageUp), None);
    screen.apply_expected(4001, |task| task.priority = -254);
    screen.selected = Some(1);
    let Some(Action::Send(Request::Set { hint_request, .. }, _)) = press(&mut screen, KeyCode::PageDown)
    else {
        panic!()
    };
    assert_eq!(hint_request.priority, Some(-255), "never -256, which means never run");
}

#[test]
fn suspend_resume_and_policy_keys_send_requests() {
    let mut screen = two_devices();
    let request_of = |order| match order {
        Some(Action::Send(request, _)) => request,
        other => panic!("{other:?}"),
    };
    assert_eq!(request_of(press(&mut screen, KeyCode::Char('s'))), Request::Suspend(Target::Pid(4001)));
    assert_eq!(request_of(press(&mut screen, KeyCode::Char('r'))), Request::Resume(Target::Pid(4001)));
    press(&mut screen, KeyCode::Char('p'));
    press(&mut screen, KeyCode::Down);
    let Request::Policy { name, .. } = request_of(press(&mut screen, KeyCode::Enter)) else { panic!() };
    assert_eq!(name.as_deref(), Some("HHPF"));
    assert_eq!(screen.mode, Mode::Table);
}

#[test]
fn filter_is_typed_applied_and_cleared() {
    let mut screen = two_devices();
    for c in "/note".chars() {
        assert_eq!(press(&mut screen, KeyCode::Char(c)), None);
    }
    press(&mut screen, KeyCode::Enter);
    let text = as_text(&screen, 80, 24);
    assert!(text.contains("1 of 3 tasks") && text.contains("showing only: note"), "{text}");
    assert!(!text.contains("4002"), "{text}");
    assert_eq!(press(&mut screen, KeyCode::Esc), None);
    assert_eq!(screen.visible().len(), 3);
    assert_eq!(press(&mut screen, KeyCode::Esc), Some(Action::Quit));
}

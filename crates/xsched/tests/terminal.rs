//! `xsched top` on a terminal.

use std::process::Command;

#[path = "common/fake_service.rs"]
mod fake_service;
#[path = "common/pty.rs"]
mod pty;

use fake_service::FakeService;
use pty::OnTerminal;

const MOUSE_ON: &str = "\x1b[?1000h\x1b[?1006h";
const MOUSE_OFF: &str = "\x1b[?1006l\x1b[?1000l";
const ALTERNATE_SCREEN_OFF: &str = "\x1b[?1049l";

/// Starts `xsched top` on a terminal of this size.
fn top(service: &FakeService, columns: u16, lines: u16) -> OnTerminal {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("xsched"));
    command.arg("top").env("XSCHED_SOCKET", service.socket()).env("TERM", "xterm").env("LC_ALL", "C.UTF-8");
    OnTerminal::start(command, columns, lines)
}

#[test]
fn top_quits_on_a_terminal_of_any_size() {
    let service = FakeService::plain();
    for (columns, lines) in [(80, 24), (65_535, 65_535), (65_535, 1), (1, 65_535), (1, 1), (0, 0)] {
        let mut top = top(&service, columns, lines);
        top.type_keys(b"q");
        let (status, _) = top.finish();
        assert!(status.success(), "{columns} x {lines}: {status}");
    }
}

/// The mouse was switched on, and its last switch is off; so is the alternate screen.
fn assert_restored(output: &str) {
    let last = |text: &str| output.rfind(text).unwrap_or_else(|| panic!("no {text:?} in {output:?}"));
    assert!(last(MOUSE_OFF) > last(MOUSE_ON), "{output:?}");
    assert!(last(ALTERNATE_SCREEN_OFF) > last("\x1b[?1049h"), "{output:?}");
}

#[test]
fn top_restores_the_terminal_on_every_exit() {
    let service = FakeService::plain();
    for signal in [None, Some(libc::SIGTERM), Some(libc::SIGINT), Some(libc::SIGHUP), Some(libc::SIGQUIT)] {
        let mut top = top(&service, 80, 24);
        top.wait_for("train");
        match signal {
            Some(signal) => top.signal(signal),
            None => top.type_keys(b"q"),
        }
        let (status, output) = top.finish();
        assert!(status.success(), "{signal:?}: {status}");
        assert_restored(&output);
    }
}

#[test]
fn top_restores_the_terminal_while_it_is_suspended() {
    let service = FakeService::plain();
    let mut top = top(&service, 80, 24);
    top.wait_for(MOUSE_ON);
    // Ctrl-Z. The kernel does not stop a process whose session has no shell that could continue it.
    top.type_keys(b"\x1a");
    top.wait_for(MOUSE_OFF);
    top.signal(libc::SIGCONT);
    top.type_keys(b"q");
    let (status, output) = top.finish();
    assert!(status.success(), "{status}");
    let parts: Vec<&str> = output.split(MOUSE_ON).collect();
    assert_eq!(parts.len(), 3, "switched on twice: {output:?}");
    for part in &parts[1..] {
        assert!(part.contains(MOUSE_OFF) && part.contains(ALTERNATE_SCREEN_OFF), "{output:?}");
    }
}

#[test]
fn clicks_reach_the_screen() {
    let service = FakeService::plain();
    let mut top = top(&service, 80, 24);
    top.wait_for("by device");
    // A press of the left button as a terminal reports it, at column 9 and line 10: the heading NAME.
    top.type_keys(b"\x1b[<0;9;10M");
    top.wait_for("name");
    top.type_keys(b"q");
    assert!(top.finish().0.success());
}

#[test]
fn top_ends_when_its_terminal_is_closed() {
    let service = FakeService::plain();
    let top = top(&service, 80, 24);
    top.wait_for("by device");
    top.close();
}

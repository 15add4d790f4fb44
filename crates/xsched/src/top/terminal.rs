//! The terminal while the screen is shown: raw, its alternate screen, and with reports of mouse buttons.
//!
//! Every exit restores it: the end of [`super::live`], also after SIGTERM, SIGINT, SIGHUP and SIGQUIT; Ctrl-Z, until the shell continues the
//! process; and a panic. A terminal that still reports the mouse would fill the command line of the shell with escape sequences.

use std::io::{self, Write as _};
use std::sync::Once;

use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, is_raw_mode_enabled};
use ratatui::layout::{Rect, Size};
use ratatui::{DefaultTerminal, TerminalOptions, Viewport};

/// The largest screen that is drawn. Terminals report any size, and a screen of 65535 by 65535 cells would fill the memory.
const MAX_SIZE: Size = Size { width: 1_000, height: 500 };

/// Reports presses and releases of buttons and the wheel, in decimal numbers. Movements are not reported: each would be an event.
const MOUSE_ON: &[u8] = b"\x1b[?1000h\x1b[?1006h";
const MOUSE_OFF: &[u8] = b"\x1b[?1006l\x1b[?1000l";

/// The part of a terminal of this size that is drawn on.
pub(super) fn area(terminal: Size) -> Rect {
    Rect::new(0, 0, terminal.width.min(MAX_SIZE.width), terminal.height.min(MAX_SIZE.height))
}

/// Initializes the terminal. Also installs a panic hook that restores it.
pub(super) fn init() -> io::Result<DefaultTerminal> {
    static PANIC_HOOK: Once = Once::new();
    PANIC_HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            mouse(MOUSE_OFF);
            print(panic);
        }));
    });
    let (width, height) = terminal::size()?;
    let viewport = Viewport::Fixed(area(Size { width, height }));
    // Its panic hook restores the rest, and then calls the one above.
    let terminal = ratatui::try_init_with_options(TerminalOptions { viewport })?;
    execute!(io::stdout(), EnterAlternateScreen, Clear(ClearType::All))?;
    mouse(MOUSE_ON);
    Ok(terminal)
}

/// Restores the terminal, unless a panic hook has done so: a second time would overwrite the panic message.
pub(super) fn restore() {
    mouse(MOUSE_OFF);
    if is_raw_mode_enabled().unwrap_or(true) {
        // A terminal that was closed cannot be restored.
        let _ = ratatui::try_restore();
    }
}

fn mouse(switch: &[u8]) {
    let mut out = io::stdout();
    // Without a mouse the keys still work.
    let _ = out.write_all(switch).and_then(|()| out.flush());
}

#[cfg(test)]
#[path = "../../tests/common/pty.rs"]
mod pty;

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::pty::OnTerminal;
    use super::*;

    /// Runs in the process that the test below starts.
    #[test]
    #[ignore = "panics, on the terminal of another test"]
    fn panics_on_its_terminal() {
        let _terminal = init().unwrap();
        panic!("on purpose");
    }

    #[test]
    fn panic_restores_the_terminal() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let test = "top::terminal::tests::panics_on_its_terminal";
        command.args([test, "--exact", "--ignored", "--nocapture"]).env("TERM", "xterm");
        let (status, output) = OnTerminal::start(command, 80, 24).finish();
        assert!(!status.success());
        let last = |text: &[u8]| output.rfind(std::str::from_utf8(text).unwrap()).unwrap();
        assert!(last(MOUSE_OFF) > last(MOUSE_ON), "{output:?}");
        assert!(last(b"\x1b[?1049l") > last(MOUSE_ON), "{output:?}");
        assert!(
            last(b"on purpose") > last(b"\x1b[?1049l"),
            "the message is on the ordinary screen: {output:?}"
        );
    }
}

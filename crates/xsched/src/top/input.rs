//! The user's input, and the end of the terminal.

use std::fs::File;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use ratatui::crossterm::event;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What [`Keyboard::wait`] found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    None,
    /// An event can be read.
    Event,
    /// The terminal was closed.
    Closed,
}

/// The terminal that events are read from. Crossterm reads a closed terminal without pause and does not return, so this waits before
/// crossterm does.
pub(super) struct Keyboard {
    /// None if it is the standard input.
    terminal: Option<File>,
}

impl Keyboard {
    pub(super) fn open() -> io::Result<Self> {
        let terminal = if io::stdin().is_terminal() { None } else { Some(File::open("/dev/tty")?) };
        Ok(Self { terminal })
    }

    /// Waits for an event, at most this long.
    pub(super) fn wait(&self, timeout: Duration) -> io::Result<Input> {
        let stdin = io::stdin();
        let terminal = self.terminal.as_ref().map_or(stdin.as_fd(), |file| file.as_fd());
        // The first round finds events that crossterm has read already.
        for timeout in [Duration::ZERO, timeout] {
            if is_closed_within(terminal, timeout)? {
                return Ok(Input::Closed);
            }
            if event::poll(Duration::ZERO)? {
                return Ok(Input::Event);
            }
        }
        Ok(Input::None)
    }
}

/// Waits until the terminal is closed or has input, at most this long. Returns whether it is closed.
fn is_closed_within(terminal: BorrowedFd<'_>, timeout: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    let mut polled = [PollFd::new(&terminal, PollFlags::IN)];
    match poll(&mut polled, Some(&timeout)) {
        Ok(_) => Ok(polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

//! The live screen of `xsched top`.
//!
//! ```text
//!   service ── feed (a thread) ── Update ──► Screen ── draw ──► terminal
//!           ◄── Request ──────── press, click ◄── keys, mouse
//! ```

mod colours;
mod draw;
mod feed;
#[cfg(test)]
mod frames;
mod history;
mod input;
mod keys;
mod mouse;
mod screen;
mod sort;
mod terminal;

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use ratatui::DefaultTerminal;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::layout::{Rect, Size};
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use self::draw::draw;
use self::feed::{Feed, Update};
use self::input::{Input, Keyboard};
use self::keys::Action;
use self::screen::{Mode, Screen};
use crate::selection::Selection;
use crate::term::{self, Glyphs};
use crate::tool::ToolConnection;

/// How long a key, a signal or an update of the feed can stay unhandled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) use self::sort::Sort;

/// What the screen shows first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    pub(crate) selection: Selection,
    pub(crate) sort: Sort,
}

impl Options {
    fn screen(self) -> Screen {
        let Self { selection, sort } = self;
        Screen { selection, sort, ..Screen::new(Glyphs::of_locale()) }
    }
}

/// Shows the screen until the user quits.
pub(crate) fn live(interval: Duration, options: Options) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGQUIT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot watch for signals")?;
    }
    let result = terminal::init()
        .context("cannot initialize the terminal")
        .and_then(|mut terminal| run_screen(&mut terminal, interval, options, &stop));
    terminal::restore();
    result
}

fn run_screen(
    terminal: &mut DefaultTerminal,
    interval: Duration,
    options: Options,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let mut screen = options.screen();
    let feed = Feed::start(interval);
    let keyboard = Keyboard::open()?;
    let mut changed = true;
    while !stop.load(Ordering::Relaxed) {
        while let Some(update) = feed.next_update()? {
            apply(&mut screen, update);
            changed = true;
        }
        if changed {
            terminal.draw(|frame| draw(&screen, frame.area(), frame.buffer_mut()))?;
        }
        let input = keyboard.wait(POLL_INTERVAL)?;
        changed = input == Input::Event;
        match input {
            Input::None => continue,
            Input::Event => {}
            Input::Closed => break,
        }
        let key = match event::read()? {
            Event::Key(key) => key,
            Event::Resize(width, height) => {
                terminal.resize(terminal::area(Size { width, height }))?;
                continue;
            }
            Event::Mouse(mouse) => {
                screen.click(mouse, terminal.get_frame().area());
                continue;
            }
            _ => continue,
        };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        match screen.press(key) {
            Some(Action::Quit) => break,
            Some(Action::Suspend) => suspend(terminal)?,
            Some(Action::Send(request, done)) => feed.send(request, done),
            None => {}
        }
    }
    Ok(())
}

fn apply(screen: &mut Screen, update: Update) {
    match update {
        Update::Status(status, memory) => screen.update(*status, memory),
        Update::Disconnected(reason) => screen.disconnect(reason),
        Update::Done(text) => screen.show_note(text, false),
        Update::Failed(reason) => screen.show_note(reason, true),
    }
}

/// Suspends this process as Ctrl-Z does, with the terminal restored until the shell continues it.
fn suspend(terminal: &mut DefaultTerminal) -> anyhow::Result<()> {
    terminal::restore();
    rustix::process::kill_process(rustix::process::getpid(), Signal::TSTP)?;
    *terminal = terminal::init()?;
    Ok(())
}

/// Prints one screen as text, with all tasks.
pub(crate) fn once(sample: Duration, options: Options) -> anyhow::Result<()> {
    let tool = ToolConnection::connect()?;
    let mut screen = options.screen();
    screen.update(tool.status()?, HashMap::new());
    thread::sleep(sample);
    screen.update(tool.status()?, HashMap::new());
    screen.mode = Mode::Static;
    let text = as_text(&screen, term::size().0.unwrap_or(80), draw::lines_for_all(&screen));
    io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}

/// The screen as lines of text.
fn as_text(screen: &Screen, columns: u16, lines: u16) -> String {
    let area = Rect::new(0, 0, columns, lines);
    let mut buffer = Buffer::empty(area);
    draw(screen, area, &mut buffer);
    let mut text = String::new();
    for row in area.rows() {
        let mut line = String::new();
        // A wide character also covers the cells after it.
        let mut covered = 0;
        for cell in row.columns().map(|cell| &buffer[(cell.x, cell.y)]) {
            if covered == 0 {
                line.push_str(cell.symbol());
                covered = term::width(cell.symbol());
            }
            covered = covered.saturating_sub(1);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

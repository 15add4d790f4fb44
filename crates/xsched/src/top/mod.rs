//! The live screen of `xsched top`.
//!
//! ```text
//!   service ── feed (a thread) ── News ──► Screen ── draw ──► terminal
//!           ◄── Request ────────────────── press ◄── keys ───
//! ```

mod draw;
mod feed;
#[cfg(test)]
mod frames;
mod history;
mod keys;
mod screen;

use std::io::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use ratatui::DefaultTerminal;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::crossterm::terminal::is_raw_mode_enabled;
use ratatui::layout::Rect;
use rustix::process::Signal;

use self::draw::draw;
use self::feed::{Feed, News};
use self::keys::Order;
use self::screen::{Mode, Screen};
use crate::term::{self, Glyphs};
use crate::tool::Tool;

/// How long a key, a signal or news can wait to be noticed.
const NOTICE: Duration = Duration::from_millis(50);

/// Shows the screen until the user quits.
pub(crate) fn live(interval: Duration) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot watch for signals")?;
    }
    // Puts the terminal back in order if there is a panic, too.
    let mut terminal = ratatui::try_init().context("cannot use this terminal")?;
    let result = watch(&mut terminal, interval, &stop);
    // After a panic of the other thread it is in order already, and doing it twice would write over the message.
    if is_raw_mode_enabled()? {
        ratatui::restore();
    }
    result
}

fn watch(terminal: &mut DefaultTerminal, interval: Duration, stop: &AtomicBool) -> anyhow::Result<()> {
    let mut screen = Screen::new(Glyphs::of_locale());
    let feed = Feed::start(interval);
    let mut changed = true;
    while !stop.load(Ordering::Relaxed) {
        while let Some(news) = feed.news()? {
            take_in(&mut screen, news);
            changed = true;
        }
        if changed {
            terminal.draw(|frame| draw(&screen, frame.area(), frame.buffer_mut()))?;
        }
        changed = event::poll(NOTICE)?;
        if !changed {
            continue;
        }
        let Event::Key(key) = event::read()? else { continue };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        match screen.press(key) {
            Some(Order::Quit) => break,
            Some(Order::Pause) => pause(terminal)?,
            Some(Order::Ask(request, done)) => feed.ask(request, done),
            None => {}
        }
    }
    Ok(())
}

fn take_in(screen: &mut Screen, news: News) {
    match news {
        News::Status(status) => screen.update(*status),
        News::Lost(why) => screen.lose(why),
        News::Done(text) => screen.say(text, false),
        News::Failed(why) => screen.say(why, true),
    }
}

/// Gives the terminal back to the shell until it continues us.
fn pause(terminal: &mut DefaultTerminal) -> anyhow::Result<()> {
    ratatui::restore();
    rustix::process::kill_process(rustix::process::getpid(), Signal::TSTP)?;
    *terminal = ratatui::try_init()?;
    terminal.clear()?;
    Ok(())
}

/// Prints one screen as text, with all tasks on it.
pub(crate) fn once(sample: Duration) -> anyhow::Result<()> {
    let tool = Tool::connect()?;
    let mut screen = Screen::new(Glyphs::of_locale());
    screen.update(tool.status()?);
    thread::sleep(sample);
    screen.update(tool.status()?);
    screen.mode = Mode::Still;
    let text = as_text(&screen, term::size().0.unwrap_or(80), draw::lines_for_all(&screen));
    io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}

/// What `draw` paints, as lines of text.
fn as_text(screen: &Screen, columns: u16, lines: u16) -> String {
    let area = Rect::new(0, 0, columns, lines);
    let mut buffer = Buffer::empty(area);
    draw(screen, area, &mut buffer);
    let mut text = String::new();
    for row in area.rows() {
        let mut line = String::new();
        // A wide character takes the cells after it, too.
        let mut taken = 0;
        for cell in row.columns().map(|place| &buffer[(place.x, place.y)]) {
            if taken == 0 {
                line.push_str(cell.symbol());
                taken = term::width(cell.symbol());
            }
            taken = taken.saturating_sub(1);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

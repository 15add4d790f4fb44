//! The panels of the devices: a bar of the utilization by each task, and graphs of the last minute.
//!
//! ```text
//!   0 gpu 0000:06:00.0 ████████▓▓····  80%  serve 60%, train 20%, 1 held, memory 3.1 of 64.0 GiB
//! 100%      the utilization by each task,
//!   0%      in the colours of the rows
//!  mem      the used part of the memory, where the driver reports it
//! ```

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget as _;
use xsched_ipc::protocol::TaskState;

use super::graph::{self, Part};
use super::{DIM, Mode, Screen, cells};
use crate::term;
use crate::top::colours;

/// A graph of fewer lines is hard to read; more lines show little more.
const MIN_GRAPH_LINES: u16 = 2;
const MAX_GRAPH_LINES: u16 = 5;
/// Columns left of a graph, for its scale.
const SCALE_WIDTH: u16 = 6;

/// The lines of the panels on a screen of some height.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Panels {
    /// Devices that have a panel; the others are counted.
    shown: usize,
    /// Lines of the graph of the utilization; 0 if there is no room for graphs.
    graph: u16,
    /// Lines of the graph of the memory: 1 if it is known.
    memory: u16,
    /// Lines of all panels.
    total: u16,
}

impl Panels {
    /// Panels without graphs have up to a quarter of the screen, those with graphs up to a half.
    fn new(screen: &Screen, height: u16) -> Self {
        let devices = u16::try_from(screen.shown_devices().len()).unwrap_or(u16::MAX);
        let memory = u16::from(!screen.memory.is_empty());
        // One line each for the title and the blank lines above and below all panels.
        let room = (height / 2).saturating_sub(2).checked_div(devices).unwrap_or(0).saturating_sub(1);
        let graph = room.saturating_sub(memory).min(MAX_GRAPH_LINES);
        if graph < MIN_GRAPH_LINES || screen.mode == Mode::Static {
            let total = devices.min((height / 4).max(1));
            let shown = usize::from(if total < devices { total - 1 } else { devices });
            return Self { shown, graph: 0, memory: 0, total };
        }
        let total = devices * (1 + graph + memory);
        Self { shown: usize::from(devices), graph, memory, total }
    }
}

/// Lines of the devices on a screen of `height` lines, with a blank line above and below.
pub(super) fn lines(screen: &Screen, height: u16) -> u16 {
    let total = Panels::new(screen, height).total;
    if total == 0 { 0 } else { total + 2 }
}

/// Draws a panel for each device that fits, and the number of the devices that do not.
pub(super) fn draw(screen: &Screen, height: u16, area: Rect, buffer: &mut Buffer) {
    let panels = Panels::new(screen, height);
    let (all, shown) = (screen.devices(), screen.shown_devices());
    let label_width = shown.iter().map(|device| term::device(*device).len()).max().unwrap_or(0);
    let mut rest = Rect { y: area.y.saturating_add(1), height: area.height.saturating_sub(2), ..area };
    let mut take = |lines: u16| {
        let lines = lines.min(rest.height);
        let taken = Rect { height: lines, ..rest };
        rest = Rect { y: rest.y + lines, height: rest.height - lines, ..rest };
        taken
    };
    for device in shown.iter().take(panels.shown) {
        let number = all.iter().position(|other| other == device).unwrap_or(0);
        let number = if all.len() > 1 { format!(" {number:>2} ") } else { " ".to_owned() };
        let label = format!("{number}{:<label_width$} ", term::device(*device));
        let title = take(1);
        line(screen, *device, label, usize::from(title.width)).render(title, buffer);
        draw_utilization(screen, *device, take(panels.graph), buffer);
        draw_memory(screen, *device, take(panels.memory), buffer);
    }
    if panels.shown < shown.len() {
        let more = format!("    and {} more devices", shown.len() - panels.shown);
        Line::styled(more, DIM).render(take(1), buffer);
    }
}

/// The graph of the utilization by each task.
fn draw_utilization(screen: &Screen, device: u64, area: Rect, buffer: &mut Buffer) {
    if area.height == 0 {
        return;
    }
    for (text, y) in [(" 100%", area.top()), ("   0%", area.bottom() - 1)] {
        Line::styled(text, DIM).render(Rect { y, height: 1, ..area }, buffer);
    }
    let area = beside_scale(area);
    let mut columns = vec![Vec::new(); usize::from(area.width)];
    for (task, history) in screen.histories_of(device) {
        let (colour, filling) = (screen.colours.of(task), screen.colours.number(task));
        let values = history.columns(screen.now_ns(), columns.len());
        for (column, value) in columns.iter_mut().zip(values) {
            column.extend(value.map(|value| Part { value, colour, filling }));
        }
    }
    graph::draw(&columns, screen.glyphs, area, buffer);
}

/// The graph of the used part of the memory.
fn draw_memory(screen: &Screen, device: u64, area: Rect, buffer: &mut Buffer) {
    let Some(history) = screen.memory_histories.get(&device).filter(|_| area.height > 0) else { return };
    Line::styled("  mem", DIM).render(area, buffer);
    let area = beside_scale(area);
    let part = |value| Part { value, colour: colours::GREY, filling: 0 };
    let columns: Vec<Vec<Part>> = history
        .columns(screen.now_ns(), usize::from(area.width))
        .into_iter()
        .map(|value| value.map(part).into_iter().collect())
        .collect();
    graph::draw(&columns, screen.glyphs, area, buffer);
}

fn beside_scale(area: Rect) -> Rect {
    let scale = SCALE_WIDTH.min(area.width);
    Rect { x: area.x + scale, width: area.width - scale, ..area }
}

/// The title of a panel.
fn line<'a>(screen: &Screen, device: u64, label: String, width: usize) -> Line<'a> {
    let mut utilizations: Vec<(u64, String, f64)> = screen
        .tasks()
        .iter()
        .filter(|task| task.device == device)
        .filter_map(|task| Some((task.task, term::name(task), screen.rates_of(task)?.utilization)))
        .filter(|(.., utilization)| *utilization > 0.0)
        .collect();
    utilizations.sort_by(|(.., a), (.., b)| b.total_cmp(a));
    let total = utilizations.iter().fold(0.0, |total, (.., utilization)| total + utilization);
    // Tasks that run at the same time can add up to more than 1: then the bar shows their proportions.
    let scale = total.max(1.0);

    let bar_width = (width / 4).max(10);
    let mut spans = vec![Span::raw(label)];
    let mut filled = 0;
    let mut sum = 0.0;
    for (i, (task, _, utilization)) in utilizations.iter().enumerate() {
        sum += utilization / scale;
        let end = cells(sum, bar_width);
        let glyph = screen.glyphs.bar[i % screen.glyphs.bar.len()];
        spans.push(Span::styled(glyph.repeat(end - filled), Style::new().fg(screen.colours.of(*task))));
        filled = end;
    }
    spans.push(Span::styled(screen.glyphs.empty.repeat(bar_width - filled), DIM));
    spans.push(Span::raw(format!(" {:>4}  ", term::percent(total.min(1.0)))));

    let used: usize = spans.iter().map(Span::width).sum();
    let mut texts: Vec<String> = utilizations
        .iter()
        .map(|(_, name, utilization)| format!("{name} {}", term::percent(*utilization)))
        .collect();
    let held = screen.count(device, TaskState::Held);
    if held > 0 {
        texts.push(format!("{held} held"));
    }
    texts.extend(screen.memory.get(&device).map(|memory| format!("memory {memory}")));
    spans.push(Span::raw(term::fit(&texts.join(", "), width.saturating_sub(used), screen.glyphs)));
    Line::from(spans)
}

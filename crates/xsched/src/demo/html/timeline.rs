//! Which task had the device: the same time span, natively and with XSched.
//!
//! ```text
//!   ●────────27.3 ms───────┐     a request, from its arrival to its end
//!    ▄▄▄   ▄▄▄   ▄▄▄   ▄▄▄       foreground
//! ▄▄▄   ▄▄▄   ▄▄▄   ▄▄▄   ▄▄▄▄   background
//! ```
//! The SVG is as wide as the time span that the page contains, in microseconds, and shows a part of it through its view box, which
//! the script moves. Labels are drawn above it and positioned by the same two numbers, as CSS variables.

use std::fmt::Write as _;

use super::super::report::{Owner, Request, Results, Scene, SceneName, Span, Workload, units::duration};

/// Foreground periods in the initial view: a few requests, wide enough to see commands.
const PERIODS_SHOWN: f64 = 3.2;
/// The time span in the page, as a multiple of the initial view.
const SPAN_PER_VIEW: f64 = 4.0;
/// Requests that must complete within the initial view, so that they can be compared.
const REQUESTS_SHOWN: usize = 2;
/// Limit on the blocks per scene; with more, short blocks are joined.
const MAX_BLOCKS: usize = 6000;

/// Height of a row of brackets; all heights are also CSS pixels.
const BRACKETS: f64 = 26.0;
/// Height of a lane, and of the gap between the lanes, where context switches are drawn.
const LANE: f64 = 28.0;
const GAP: f64 = 6.0;
/// Width of a bracket's label on a narrow screen, as a part of the view.
const LABEL: f64 = 0.13;

/// Both timelines above one axis.
pub(super) fn figure(results: &Results) -> String {
    let shown: Vec<&Scene> =
        [SceneName::Native, SceneName::XSched].iter().filter_map(|name| results.scene(*name)).collect();
    if shown.iter().all(|scene| scene.foreground.is_empty() && scene.timeline.is_empty()) {
        return "<p class=\"empty\">Neither scene has a request or a timeline to show.</p>".to_owned();
    }
    let frame = Frame::choose(&results.workload, &shown);
    let mut out = format!(
        "<div class=\"timeline plot\" id=\"timeline\" style=\"--from:0;--span:{:.0}\" data-whole=\"{:.0}\">\n",
        frame.view, frame.whole
    );
    let mut coarsest = 0.0_f64;
    for scene in &shown {
        let (track, resolution) = track(scene, &frame);
        out.push_str(&track);
        coarsest = coarsest.max(resolution);
    }
    out.push_str("<div class=\"axis\">");
    for tick in ticks(frame.view) {
        let _ = write!(out, "<span style=\"--t:{tick}\">{}</span>", tick_label(tick));
    }
    out.push_str("</div></div>\n");
    let bracket = "A bracket extends from the arrival of a request (●) to its completion";
    let (choice, whole) = (frame.choice, duration(frame.whole));
    let _ = if shown.iter().all(|scene| scene.timeline.is_empty()) {
        write!(
            out,
            "<p class=\"caption\">{bracket}.</p><p class=\"caption small\">{choice}; {whole} in total."
        )
    } else {
        write!(
            out,
            "<p class=\"caption\">In each lane, colour is time in which the foreground had the device and grey time in which the background \
             had it. {bracket}; grey below it is time that the request waited.</p>\
             <p class=\"caption small\">{choice}; {whole} in total. Blocks shorter than {} are joined.",
            duration(coarsest),
        )
    };
    let has_switches = |scene: &&Scene| scene.timeline.iter().any(|span| span.task == Owner::Switch);
    if shown.iter().any(has_switches) {
        out.push_str(" A mark between the lanes is a context switch.");
    }
    out.push_str("</p>");
    out
}

/// About seven round numbers from 0 to `end`, except one whose label would exceed the end.
pub(super) fn ticks(end: f64) -> Vec<f64> {
    let rough = end / 7.0;
    let magnitude = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * magnitude).find(|s| *s >= rough).unwrap_or(rough);
    std::iter::successors(Some(0.0), |at| Some(at + step)).take_while(|at| *at <= end * 0.97).collect()
}

fn tick_label(us: f64) -> String {
    if us == 0.0 { "0".to_owned() } else { format!("{}\u{a0}ms", us / 1e3) }
}

/// The time span that is shown, the same in both scenes, in microseconds.
struct Frame {
    /// Its start, in the time of the scenes.
    start: f64,
    /// The length of the initial view.
    view: f64,
    /// The length of the span in the page.
    whole: f64,
    /// Why it starts there, for the caption.
    choice: &'static str,
}

impl Frame {
    fn choose(workload: &Workload, scenes: &[&Scene]) -> Self {
        let view = PERIODS_SHOWN * workload.request_us / workload.load;
        let view = if view.is_finite() && view > 0.0 { view } else { 160_000.0 };
        // Begins somewhat before the first arrival, to show the device before it.
        let before = |request: &Request| (request.arrived_us - 0.06 * view).max(0.0);
        let candidates = || scenes.iter().flat_map(|scene| scene.foreground.iter().map(before));
        let is_comparable = |start: &f64| {
            scenes.iter().all(|scene| {
                let inside = |r: &&Request| r.arrived_us >= *start && r.done_us <= *start + view * 0.97;
                scene.foreground.iter().filter(inside).take(REQUESTS_SHOWN).count() == REQUESTS_SHOWN
            })
        };
        // Bounded, so that a long demo without a comparable span is drawn quickly.
        let (start, choice) = match candidates().take(200).find(is_comparable) {
            Some(start) => (start, "The first time span in which both scenes complete two requests"),
            None => (candidates().next().unwrap_or(0.0), "The beginning of the run"),
        };
        let ends = scenes.iter().flat_map(|scene| scene.foreground.iter().map(|r| r.done_us));
        let end = ends.max_by(f64::total_cmp).unwrap_or(0.0);
        Self { start, view, whole: (end - start).min(view * SPAN_PER_VIEW).max(view), choice }
    }

    /// A time of the scene as a position in the page, clamped to its span.
    fn position(&self, us: f64) -> f64 {
        (us - self.start).clamp(0.0, self.whole)
    }
}

/// One scene, and the length below which its blocks are joined.
fn track(scene: &Scene, frame: &Frame) -> (String, f64) {
    let name = scene.name.as_str();
    let brackets = Bracket::stack(&scene.foreground, frame);
    let rows = brackets.iter().map(|b| b.row + 1).max().unwrap_or(1);
    let lanes_top = rows as f64 * BRACKETS + 6.0;
    let below_top = lanes_top + LANE + GAP;
    let height = below_top + LANE;
    let (blocks, resolution) = Block::all(&scene.timeline, frame);

    let mut out = format!(
        "<div class=\"track {name}\"><h3>{name}<span> {}</span></h3><div class=\"row\" style=\"height:{height}px\">\
         <div class=\"gutter\"><span style=\"top:{lanes_top}px\">foreground</span>\
         <span style=\"top:{below_top}px\">background</span></div><div class=\"view\">\
         <svg viewBox=\"0 0 {:.0} {height}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"which task had the device when, {name}\">",
        scene.name.meaning(),
        frame.view,
    );
    let mut path = |class: &str, d: String| {
        let _ = write!(out, "<path class=\"{class}\" d=\"{d}\"/>");
    };
    if !blocks.is_empty() {
        let lane = |top| rectangle(0.0, frame.whole, top, LANE);
        path("lane", lane(lanes_top) + &lane(below_top));
    }
    let waiting = brackets.iter().map(|b| rectangle(b.from, b.to, b.line(), height - b.line()));
    path("waiting", waiting.collect());
    for (class, owner, top, tall) in [
        ("back", Owner::Background, below_top, LANE),
        ("fore", Owner::Foreground, lanes_top, LANE),
        ("switch", Owner::Switch, lanes_top + LANE, GAP),
    ] {
        let of_owner = || blocks.iter().filter(|b| b.owner == owner);
        path(class, of_owner().map(|b| rectangle(b.from, b.to, top, tall)).collect());
        path("seam", of_owner().filter(|b| b.seam).map(|b| vertical(b.from, top, tall)).collect());
    }
    path("bracket", brackets.iter().map(Bracket::path).collect());
    path("arrival", brackets.iter().map(Bracket::arrival).collect());
    out.push_str("</svg>");
    if blocks.is_empty() {
        let _ = write!(
            out,
            "<p class=\"unknown\" style=\"top:{lanes_top}px\">this device does not report which task had it when</p>"
        );
    }
    for b in &brackets {
        let middle = f64::midpoint(b.from, b.to);
        let _ = write!(out, "<b style=\"--t:{middle:.0};top:{}px\">{}</b>", b.top(), duration(b.latency_us));
    }
    out.push_str("</div></div></div>\n");
    (out, resolution)
}

fn rectangle(from: f64, to: f64, top: f64, tall: f64) -> String {
    let from = from.round();
    let wide = to.round() - from;
    format!("M{from} {top}h{wide}v{tall}h-{wide}z")
}

fn vertical(at: f64, top: f64, tall: f64) -> String {
    format!("M{at:.0} {top}v{tall}")
}

/// A request above the lanes.
struct Bracket {
    from: f64,
    to: f64,
    latency_us: f64,
    row: usize,
}

impl Bracket {
    /// All requests that arrive within `frame`, in as few rows as keep them and their labels apart.
    fn stack(requests: &[Request], frame: &Frame) -> Vec<Self> {
        let end = frame.start + frame.whole;
        let mut inside: Vec<&Request> =
            requests.iter().filter(|r| r.arrived_us >= frame.start && r.arrived_us < end).collect();
        inside.sort_by(|a, b| a.arrived_us.total_cmp(&b.arrived_us));
        let mut taken_until: Vec<f64> = Vec::new();
        let mut out = Vec::new();
        for request in inside {
            let (from, to) = (frame.position(request.arrived_us), frame.position(request.done_us));
            let label = (LABEL * frame.view - (to - from)).max(0.0) / 2.0;
            let free = taken_until.iter().position(|until| *until <= from - label);
            // More rows would be unreadable: requests that do not fit are left out.
            let row = match free {
                Some(row) => row,
                None if taken_until.len() < 5 => {
                    taken_until.push(0.0);
                    taken_until.len() - 1
                }
                None => continue,
            };
            taken_until[row] = to + label;
            out.push(Self { from, to, latency_us: request.latency_us(), row });
        }
        out
    }

    fn top(&self) -> f64 {
        self.row as f64 * BRACKETS
    }

    /// The position of its line, below its label.
    fn line(&self) -> f64 {
        self.top() + 20.0
    }

    fn path(&self) -> String {
        format!("M{:.0} {}H{:.0}v6", self.from, self.line(), self.to)
    }

    fn arrival(&self) -> String {
        format!("M{:.0} {}h0", self.from, self.line())
    }
}

/// A part of the timeline as drawn.
struct Block {
    owner: Owner,
    from: f64,
    to: f64,
    /// Whether it follows its predecessor without a gap and is long enough for a line between them.
    seam: bool,
}

impl Block {
    /// The blocks within `frame`, and the length below which they were joined to limit their number.
    fn all(timeline: &[Span], frame: &Frame) -> (Vec<Self>, f64) {
        let end = frame.start + frame.whole;
        let mut spans: Vec<&Span> =
            timeline.iter().filter(|s| s.end_us > frame.start && s.start_us < end).collect();
        spans.sort_by(|a, b| a.start_us.total_cmp(&b.start_us));
        let mut resolution = frame.view / 8000.0;
        loop {
            let blocks = Self::join(&spans, frame, resolution);
            if blocks.len() <= MAX_BLOCKS {
                return (blocks, resolution);
            }
            resolution *= 2.0;
        }
    }

    fn join(spans: &[&Span], frame: &Frame, resolution: f64) -> Vec<Self> {
        let mut blocks: Vec<Self> = Vec::new();
        let mut latest = [None::<usize>; 3];
        for span in spans {
            let (from, to) = (frame.position(span.start_us), frame.position(span.end_us));
            let last = &mut latest[span.task as usize];
            let previous = last.map(|i| &mut blocks[i]);
            let touches = |b: &Block| from - b.to <= resolution;
            let short = |length: f64| length < resolution;
            match previous {
                Some(b) if touches(b) && (short(to - from) || short(b.to - b.from)) => b.to = b.to.max(to),
                previous => {
                    let seam = previous.is_some_and(|b| touches(b)) && to - from > frame.view / 150.0;
                    *last = Some(blocks.len());
                    blocks.push(Self { owner: span.task, from, to, seam });
                }
            }
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::report::sample;
    use super::*;

    const FRAME: Frame = Frame { start: 1000.0, view: 8000.0, whole: 32_000.0, choice: "" };

    fn request(arrived_us: f64, done_us: f64) -> Request {
        Request { arrived_us, done_us }
    }

    #[test]
    fn view_contains_requests_of_both_scenes() {
        let results = sample::realistic();
        let scenes: Vec<&Scene> = results.scenes[1..].iter().collect();
        let frame = Frame::choose(&results.workload, &scenes);
        assert!((frame.view - 160_000.0).abs() < 1.0);
        for scene in scenes {
            let end = frame.start + frame.view;
            let inside = scene.foreground.iter().filter(|r| r.arrived_us >= frame.start && r.done_us <= end);
            assert!(inside.count() >= REQUESTS_SHOWN);
        }
    }

    #[test]
    fn overlapping_requests_are_in_separate_rows() {
        let requests = [request(2000.0, 6000.0), request(3000.0, 7000.0), request(12_000.0, 16_000.0)];
        let rows: Vec<usize> = Bracket::stack(&requests, &FRAME).iter().map(|b| b.row).collect();
        assert_eq!(rows, [0, 1, 0]);
    }

    #[test]
    fn workload_without_load_has_a_view() {
        let mut workload = sample::empty().workload;
        workload.load = 0.0;
        assert!(Frame::choose(&workload, &[]).view > 0.0);
    }

    #[test]
    fn short_blocks_are_joined_and_long_ones_keep_their_seam() {
        let span = |start_us, end_us| Span { task: Owner::Background, start_us, end_us };
        let spans = [span(1000.0, 1000.5), span(1000.5, 1001.0), span(3000.0, 5000.0), span(5000.0, 7000.0)];
        let (blocks, resolution) = Block::all(&spans, &FRAME);
        assert!((resolution - 1.0).abs() < 1e-9);
        let drawn: Vec<(f64, f64, bool)> = blocks.iter().map(|b| (b.from, b.to, b.seam)).collect();
        assert_eq!(drawn, [(0.0, 1.0, false), (2000.0, 4000.0, false), (4000.0, 6000.0, true)]);
    }
}

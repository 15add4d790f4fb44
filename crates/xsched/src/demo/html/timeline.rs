//! Who had the device: the same stretch of time, natively and with XSched.
//!
//! ```text
//!   ●────────27.3 ms───────┐     a request, from its arrival to its end
//!    ▄▄▄   ▄▄▄   ▄▄▄   ▄▄▄       foreground
//! ▄▄▄   ▄▄▄   ▄▄▄   ▄▄▄   ▄▄▄▄   background
//! ```
//! The SVG is as wide as all the time the page carries, in microseconds, and shows a part of it through its view box; moving
//! that is all the script does. Labels lie above it and are placed by the same two numbers, as CSS variables.

use std::fmt::Write as _;

use super::super::report::{Owner, Request, Results, Scene, SceneName, Span, Workload, units::duration};

/// Foreground periods to show at first: a few requests, still wide enough to see commands.
const PERIODS_SHOWN: f64 = 3.2;
/// How much more than that the page carries.
const CARRIED: f64 = 4.0;
/// Requests that must end within the first view, so that there is something to compare.
const REQUESTS_SHOWN: usize = 2;
/// Most stretches per scene; more are joined.
const MOST_BLOCKS: usize = 6000;

/// Height of a row of brackets; all heights are also CSS pixels.
const BRACKETS: f64 = 26.0;
/// Height of a lane, and of the gap between the two, where hand-overs are drawn.
const LANE: f64 = 28.0;
const GAP: f64 = 6.0;
/// Part of the view a bracket's label takes on a narrow screen.
const LABEL: f64 = 0.13;

/// Both timelines above one axis.
pub(super) fn figure(results: &Results) -> String {
    let shown: Vec<&Scene> =
        [SceneName::Native, SceneName::XSched].iter().filter_map(|name| results.scene(*name)).collect();
    if shown.iter().all(|scene| scene.foreground.is_empty() && scene.timeline.is_empty()) {
        return "<p class=\"empty\">Nothing ran beside the background, so there is no timeline to show.</p>"
            .to_owned();
    }
    let frame = Frame::choose(&results.workload, &shown);
    let mut out = format!(
        "<div class=\"timeline plot\" id=\"timeline\" style=\"--from:0;--span:{:.0}\" data-whole=\"{:.0}\">\n",
        frame.view, frame.whole
    );
    let mut finest = 0.0_f64;
    for scene in &shown {
        let (track, resolution) = track(scene, &frame);
        out.push_str(&track);
        finest = finest.max(resolution);
    }
    out.push_str("<div class=\"axis\">");
    for tick in ticks(frame.view) {
        let _ = write!(out, "<span style=\"--t:{tick}\">{}</span>", tick_label(tick));
    }
    out.push_str("</div></div>\n");
    let bracket = "A bracket runs from a request’s arrival (●) to its end";
    let (choice, whole) = (frame.choice, duration(frame.whole));
    let _ = if shown.iter().all(|scene| scene.timeline.is_empty()) {
        write!(out, "<p class=\"caption\">{bracket}.</p><p class=\"caption small\">{choice}; {whole} in all.")
    } else {
        write!(
            out,
            "<p class=\"caption\">In each lane, colour is where the foreground had the device and grey where the background \
             had it. {bracket}, and grey beneath it is time that request spent waiting.</p>\
             <p class=\"caption small\">{choice}; {whole} in all. Pieces shorter than {} are drawn joined.",
            duration(finest),
        )
    };
    let handed_over = |scene: &&Scene| scene.timeline.iter().any(|span| span.task == Owner::Switch);
    if shown.iter().any(handed_over) {
        out.push_str(" A mark between the lanes is the device being handed over.");
    }
    out.push_str("</p>");
    out
}

/// Round numbers from 0 to `end`, some seven of them, without one whose label would hang over the end.
pub(super) fn ticks(end: f64) -> Vec<f64> {
    let rough = end / 7.0;
    let magnitude = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].iter().map(|m| m * magnitude).find(|s| *s >= rough).unwrap_or(rough);
    std::iter::successors(Some(0.0), |at| Some(at + step)).take_while(|at| *at <= end * 0.97).collect()
}

fn tick_label(us: f64) -> String {
    if us == 0.0 { "0".to_owned() } else { format!("{}\u{a0}ms", us / 1e3) }
}

/// The stretch of time that is shown, the same in both scenes; in microseconds.
struct Frame {
    /// Where it starts, in the time of the scenes.
    start: f64,
    /// How much of it is seen at first.
    view: f64,
    /// How much of it the page carries.
    whole: f64,
    /// Why it starts there, for the reader.
    choice: &'static str,
}

impl Frame {
    fn choose(workload: &Workload, scenes: &[&Scene]) -> Self {
        let view = PERIODS_SHOWN * workload.request_us / workload.load;
        let view = if view.is_finite() && view > 0.0 { view } else { 160_000.0 };
        // Some time before the first arrival, to see what was there before.
        let before = |request: &Request| (request.arrived_us - 0.06 * view).max(0.0);
        let candidates = || scenes.iter().flat_map(|scene| scene.foreground.iter().map(before));
        let good = |start: &f64| {
            scenes.iter().all(|scene| {
                let inside = |r: &&Request| r.arrived_us >= *start && r.done_us <= *start + view * 0.97;
                scene.foreground.iter().filter(inside).take(REQUESTS_SHOWN).count() == REQUESTS_SHOWN
            })
        };
        // Bounded, so that a long demo in which no stretch is good does not take long to draw.
        let (start, choice) = match candidates().take(200).find(good) {
            Some(start) => (start, "The first stretch in which both scenes finish two requests"),
            None => (candidates().next().unwrap_or(0.0), "The beginning of the run"),
        };
        let ends = scenes.iter().flat_map(|scene| scene.foreground.iter().map(|r| r.done_us));
        let end = ends.max_by(f64::total_cmp).unwrap_or(0.0);
        Self { start, view, whole: (end - start).min(view * CARRIED).max(view), choice }
    }

    /// A time of the scene as a position on the page, kept to what it carries.
    fn place(&self, us: f64) -> f64 {
        (us - self.start).clamp(0.0, self.whole)
    }
}

/// One scene, and the length below which its pieces are joined.
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
         aria-label=\"who had the device when, {name}\">",
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
        let own = || blocks.iter().filter(|b| b.owner == owner);
        path(class, own().map(|b| rectangle(b.from, b.to, top, tall)).collect());
        path("seam", own().filter(|b| b.seam).map(|b| vertical(b.from, top, tall)).collect());
    }
    path("bracket", brackets.iter().map(Bracket::path).collect());
    path("arrival", brackets.iter().map(Bracket::arrival).collect());
    out.push_str("</svg>");
    if blocks.is_empty() {
        let _ = write!(
            out,
            "<p class=\"unknown\" style=\"top:{lanes_top}px\">this device does not tell who had it when</p>"
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
            let (from, to) = (frame.place(request.arrived_us), frame.place(request.done_us));
            let label = (LABEL * frame.view - (to - from)).max(0.0) / 2.0;
            let free = taken_until.iter().position(|until| *until <= from - label);
            // More rows would be a wall nobody reads; what does not fit is left out.
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

    /// Where its line is: below its label.
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

/// A stretch as it is drawn.
struct Block {
    owner: Owner,
    from: f64,
    to: f64,
    /// Follows its predecessor without a gap and is long enough for a line between them.
    seam: bool,
}

impl Block {
    /// The stretches within `frame`, and the length below which they were joined to keep their number bounded.
    fn all(timeline: &[Span], frame: &Frame) -> (Vec<Self>, f64) {
        let end = frame.start + frame.whole;
        let mut spans: Vec<&Span> =
            timeline.iter().filter(|s| s.end_us > frame.start && s.start_us < end).collect();
        spans.sort_by(|a, b| a.start_us.total_cmp(&b.start_us));
        let mut resolution = frame.view / 8000.0;
        loop {
            let blocks = Self::join(&spans, frame, resolution);
            if blocks.len() <= MOST_BLOCKS {
                return (blocks, resolution);
            }
            resolution *= 2.0;
        }
    }

    fn join(spans: &[&Span], frame: &Frame, resolution: f64) -> Vec<Self> {
        let mut blocks: Vec<Self> = Vec::new();
        let mut latest = [None::<usize>; 3];
        for span in spans {
            let (from, to) = (frame.place(span.start_us), frame.place(span.end_us));
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
    fn the_view_holds_requests_of_both_scenes() {
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
    fn requests_that_overlap_get_rows_of_their_own() {
        let requests = [request(2000.0, 6000.0), request(3000.0, 7000.0), request(12_000.0, 16_000.0)];
        let rows: Vec<usize> = Bracket::stack(&requests, &FRAME).iter().map(|b| b.row).collect();
        assert_eq!(rows, [0, 1, 0]);
    }

    #[test]
    fn a_workload_without_load_still_has_a_view() {
        let mut workload = sample::empty().workload;
        workload.load = 0.0;
        assert!(Frame::choose(&workload, &[]).view > 0.0);
    }

    #[test]
    fn short_pieces_are_joined_and_long_ones_keep_their_seam() {
        let span = |start_us, end_us| Span { task: Owner::Background, start_us, end_us };
        let spans = [span(1000.0, 1000.5), span(1000.5, 1001.0), span(3000.0, 5000.0), span(5000.0, 7000.0)];
        let (blocks, resolution) = Block::all(&spans, &FRAME);
        assert!((resolution - 1.0).abs() < 1e-9);
        let drawn: Vec<(f64, f64, bool)> = blocks.iter().map(|b| (b.from, b.to, b.seam)).collect();
        assert_eq!(drawn, [(0.0, 1.0, false), (2000.0, 4000.0, false), (4000.0, 6000.0, true)]);
    }
}

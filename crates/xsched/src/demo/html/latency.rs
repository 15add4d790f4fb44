//! The latency of each request: a column of dots per scene and latency, all scenes above one axis.

use std::fmt::Write as _;

use super::super::report::{Latencies, Results, Scene, SceneName, units::duration};

/// The SVGs' inner width; they are stretched to the page's.
const WIDTH: f64 = 1000.0;
/// Height of one scene's row, the same in CSS pixels.
const ROW: f64 = 92.0;
/// Where the dots are centred, leaving room for labels above.
const MIDDLE: f64 = 55.0;
/// Height available for the dots.
const DOTS_HEIGHT: f64 = 64.0;
/// Distance of dots in a column that is not crowded, and width of a column.
const DOT: f64 = 5.0;
/// Limit on the dots of a scene; with more requests, a dot represents several.
const MAX_DOTS: usize = 8000;
/// Limit on the latencies of a scene in the page, for the values at the pointer.
const MAX_LATENCIES: usize = 4000;
/// Ratio of the longest to the shortest latency above which the axis is logarithmic.
const LOGARITHMIC_RATIO: f64 = 12.0;

/// The chart with its axis and the data for the pointer.
pub(super) fn figure(results: &Results) -> String {
    let Some(scale) = Scale::for_all(&results.scenes) else {
        return "<p class=\"empty\">No foreground request completed, so there is no latency to show.</p>"
            .to_owned();
    };
    let mut out = String::from("<div class=\"latency plot\" id=\"latency\">\n");
    let alone = results.scene(SceneName::Alone).and_then(Scene::latencies);
    let mut per_dot = 1;
    for scene in &results.scenes {
        let dots = Dots::of(&scene.sorted_latencies(), &scale);
        per_dot = per_dot.max(dots.requests_per_dot);
        out.push_str(&row(scene, &dots, &scale, alone));
    }
    out.push_str("<div class=\"axis\">");
    for tick in scale.ticks() {
        let _ = write!(out, "<span style=\"left:{:.2}%\">{}</span>", scale.percent(tick), label(tick));
    }
    out.push_str("</div>\n");
    let _ =
        writeln!(out, "<script type=\"application/json\">{}</script></div>", data(&results.scenes, &scale));
    let dot = if per_dot == 1 {
        "Every dot is one request".to_owned()
    } else {
        format!("A dot represents up to {per_dot} requests")
    };
    let axis = if scale.log { ", on a logarithmic axis" } else { "" };
    let _ = write!(
        out,
        "<p class=\"caption\">{dot}; further left is faster{axis}. The dashed line is the p99 of the foreground alone: \
         if the foreground is protected, its dots are there, whatever the background does.</p>"
    );
    out
}

fn row(scene: &Scene, dots: &Dots, scale: &Scale, alone: Option<Latencies>) -> String {
    let name = scene.name.as_str();
    let mut out = format!(
        "<div class=\"row {name}\"><div class=\"gutter\">{name}</div><div class=\"view\">\
         <svg viewBox=\"0 0 {WIDTH} {ROW}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"latencies of {} requests, {name}\">",
        scene.foreground.len()
    );
    let mut line = |class: &str, us: f64, top: f64| {
        let _ = write!(out, "<path class=\"{class}\" d=\"M{:.1} {top}V{ROW}\"/>", scale.percent(us) * 10.0);
    };
    if let Some(alone) = alone {
        line("alone99", alone.p99, 0.0);
    }
    if let Some(l) = scene.latencies() {
        line("mark", l.p50, 8.0);
        line("mark", l.p99, 8.0);
    }
    let _ = write!(out, "<path class=\"dots\" d=\"{}\"/></svg>", dots.path);
    if let Some(l) = scene.latencies() {
        for (class, us) in [("p50", l.p50), ("p99", l.p99)] {
            let at = scale.percent(us);
            let _ = write!(
                out,
                "<span class=\"{class}\" style=\"left:{at:.2}%\">{class} <b>{}</b></span>",
                duration(us)
            );
        }
    }
    out.push_str("</div></div>\n");
    out
}

/// The dots of one scene, as one path of points.
struct Dots {
    path: String,
    requests_per_dot: usize,
}

impl Dots {
    fn of(sorted: &[f64], scale: &Scale) -> Self {
        let requests_per_dot = sorted.len().div_ceil(MAX_DOTS).max(1);
        let dots: Vec<f64> =
            sorted.iter().step_by(requests_per_dot).map(|us| scale.percent(*us) * 10.0).collect();
        let same_column = |a: &f64, b: &f64| (a / DOT).floor() >= (b / DOT).floor();
        let fullest = dots.chunk_by(same_column).map(<[f64]>::len).max().unwrap_or(1);
        let spacing = (DOTS_HEIGHT / fullest as f64).min(DOT);
        let mut path = String::new();
        for column in dots.chunk_by(same_column) {
            let top = MIDDLE - (column.len() - 1) as f64 * spacing / 2.0;
            // A dot is drawn at its latency, not at the middle of its column: columns should not look like a grid.
            for (i, x) in column.iter().enumerate() {
                let _ = write!(path, "M{x:.1} {:.1}h0", top + i as f64 * spacing);
            }
        }
        Self { path, requests_per_dot }
    }
}

/// Maps latencies to positions.
struct Scale {
    low: f64,
    high: f64,
    log: bool,
}

impl Scale {
    /// One scale for all scenes; none if no request completed.
    fn for_all(scenes: &[Scene]) -> Option<Self> {
        let all = || scenes.iter().filter_map(Scene::latencies);
        let min = all().map(|l| l.min).min_by(f64::total_cmp)?;
        let max = all().map(|l| l.max).max_by(f64::total_cmp)?.max(1.0);
        let log = min > 0.0 && max / min > LOGARITHMIC_RATIO;
        // The margin at the right is for the label of a p99 that is also the maximum.
        Some(if log {
            Self { low: min / 1.5, high: max * (max / min).powf(0.25), log }
        } else {
            Self { low: 0.0, high: max * 1.3, log }
        })
    }

    fn percent(&self, us: f64) -> f64 {
        let part = if self.log {
            (us / self.low).ln() / (self.high / self.low).ln()
        } else {
            (us - self.low) / (self.high - self.low)
        };
        part.clamp(0.0, 1.0) * 100.0
    }

    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let decades = 0..12;
            let all = decades.flat_map(|e| [1.0, 2.0, 5.0].map(|m| m * 10_f64.powi(e)));
            let inside: Vec<f64> = all.filter(|us| (self.low..=self.high).contains(us)).collect();
            let every = inside.len().div_ceil(8).max(1);
            inside.into_iter().step_by(every).collect()
        } else {
            super::timeline::ticks(self.high)
        }
    }
}

/// The label of a tick.
fn label(us: f64) -> String {
    let (value, unit) = if us < 1e3 {
        (us, "µs")
    } else if us < 1e6 {
        (us / 1e3, "ms")
    } else {
        (us / 1e6, "s")
    };
    if us == 0.0 { "0".to_owned() } else { format!("{value}\u{a0}{unit}") }
}

/// The data for the values at the pointer: the axis and sorted latencies, in whole microseconds.
fn data(scenes: &[Scene], scale: &Scale) -> String {
    let mut out =
        format!("{{\"low\":{:.3},\"high\":{:.3},\"log\":{},\"scenes\":[", scale.low, scale.high, scale.log);
    for (i, scene) in scenes.iter().enumerate() {
        let sorted = scene.sorted_latencies();
        let every = sorted.len().div_ceil(MAX_LATENCIES).max(1);
        let sampled: Vec<String> = sorted.iter().step_by(every).map(|us| format!("{us:.0}")).collect();
        let comma = if i > 0 { "," } else { "" };
        let _ = write!(out, "{comma}[\"{}\",[{}]]", scene.name.as_str(), sampled.join(","));
    }
    out.push_str("]}");
    out
}

#[cfg(test)]
mod tests {
    use super::super::super::report::sample;
    use super::*;

    #[test]
    fn axis_is_logarithmic_for_a_wide_range() {
        let near = Scale::for_all(&sample::of_constant_latency(10.0, 30.0, 11.0, 0.8).scenes).unwrap();
        assert!(!near.log);
        assert!(near.percent(0.0) < 1e-9);
        let far = Scale::for_all(&sample::of_constant_latency(10.0, 3000.0, 11.0, 0.8).scenes).unwrap();
        assert!(far.log);
        assert!(far.percent(10.0) > 0.0 && far.percent(3000.0) < 100.0);
        assert!(far.ticks().len() > 3);
    }

    #[test]
    fn crowded_column_keeps_its_height() {
        let scale = Scale { low: 0.0, high: 100.0, log: false };
        assert_eq!(Dots::of(&[50.0, 50.0], &scale).path, "M500.0 52.5h0M500.0 57.5h0");
        let crowded = Dots::of(&vec![50.0; 3 * MAX_DOTS], &scale);
        assert_eq!(crowded.requests_per_dot, 3);
        assert_eq!(crowded.path.matches('M').count(), MAX_DOTS);
        assert!(crowded.path.ends_with(" 87.0h0"), "the last dot is at the bottom of the row");
    }
}

//! How long each request took: a column of dots per scene and latency, all scenes above one axis.

use std::fmt::Write as _;

use super::super::report::{Latencies, Results, Scene, SceneName, units::duration};

/// The SVGs' inner width; they are stretched to the page's.
const WIDTH: f64 = 1000.0;
/// Height of one scene's row, the same in CSS pixels.
const ROW: f64 = 92.0;
/// Where the dots are centred, leaving room for labels above.
const MIDDLE: f64 = 55.0;
/// Height the dots may take.
const SWARM: f64 = 64.0;
/// Distance of dots in a column that is not crowded, and width of a column.
const DOT: f64 = 5.0;
/// Most dots in a row; where there are more requests than that, a dot stands for several.
const MOST_DOTS: usize = 8000;
/// Most latencies of a scene that the page carries for the pointer's read-out.
const MOST_LATENCIES: usize = 4000;
/// Slowest over quickest request from which a linear axis would hide the quick ones.
const WIDE: f64 = 12.0;

/// The picture with its axis and read-out.
pub(super) fn figure(results: &Results) -> String {
    let Some(scale) = Scale::for_all(&results.scenes) else {
        return "<p class=\"empty\">No foreground request finished, so there is no latency to show.</p>"
            .to_owned();
    };
    let mut out = String::from("<div class=\"latency plot\" id=\"latency\">\n");
    let alone = results.scene(SceneName::Alone).and_then(Scene::latencies);
    let mut per_dot = 1;
    for scene in &results.scenes {
        let swarm = Swarm::of(&scene.sorted_latencies(), &scale);
        per_dot = per_dot.max(swarm.requests_per_dot);
        out.push_str(&row(scene, &swarm, &scale, alone));
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
        format!("A dot stands for up to {per_dot} requests")
    };
    let axis = if scale.log { ", on a logarithmic axis" } else { "" };
    let _ = write!(
        out,
        "<p class=\"caption\">{dot}; further left is quicker{axis}. The dashed line is the p99 of the foreground alone: \
         a scheduler that protects it puts its dots there, beside any background.</p>"
    );
    out
}

fn row(scene: &Scene, swarm: &Swarm, scale: &Scale, alone: Option<Latencies>) -> String {
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
    let _ = write!(out, "<path class=\"dots\" d=\"{}\"/></svg>", swarm.path);
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
struct Swarm {
    path: String,
    requests_per_dot: usize,
}

impl Swarm {
    fn of(sorted: &[f64], scale: &Scale) -> Self {
        let requests_per_dot = sorted.len().div_ceil(MOST_DOTS).max(1);
        let dots: Vec<f64> =
            sorted.iter().step_by(requests_per_dot).map(|us| scale.percent(*us) * 10.0).collect();
        let same_column = |a: &f64, b: &f64| (a / DOT).floor() >= (b / DOT).floor();
        let fullest = dots.chunk_by(same_column).map(<[f64]>::len).max().unwrap_or(1);
        let spacing = (SWARM / fullest as f64).min(DOT);
        let mut path = String::new();
        for column in dots.chunk_by(same_column) {
            let top = MIDDLE - (column.len() - 1) as f64 * spacing / 2.0;
            // A dot sits where its latency is, not at its column's middle: columns should not look like a grid.
            for (i, x) in column.iter().enumerate() {
                let _ = write!(path, "M{x:.1} {:.1}h0", top + i as f64 * spacing);
            }
        }
        Self { path, requests_per_dot }
    }
}

/// From latencies to positions.
struct Scale {
    low: f64,
    high: f64,
    log: bool,
}

impl Scale {
    /// One scale for all scenes; `None` if no request finished.
    fn for_all(scenes: &[Scene]) -> Option<Self> {
        let all = || scenes.iter().filter_map(Scene::latencies);
        let min = all().map(|l| l.min).min_by(f64::total_cmp)?;
        let max = all().map(|l| l.max).max_by(f64::total_cmp)?.max(1.0);
        let log = min > 0.0 && max / min > WIDE;
        // The room at the right is for the label of a p99 that is also the slowest.
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

/// A tick's text: as short as its number allows.
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

/// What the pointer's read-out needs: the axis and sorted latencies, in whole microseconds.
fn data(scenes: &[Scene], scale: &Scale) -> String {
    let mut out =
        format!("{{\"low\":{:.3},\"high\":{:.3},\"log\":{},\"scenes\":[", scale.low, scale.high, scale.log);
    for (i, scene) in scenes.iter().enumerate() {
        let sorted = scene.sorted_latencies();
        let every = sorted.len().div_ceil(MOST_LATENCIES).max(1);
        let kept: Vec<String> = sorted.iter().step_by(every).map(|us| format!("{us:.0}")).collect();
        let comma = if i > 0 { "," } else { "" };
        let _ = write!(out, "{comma}[\"{}\",[{}]]", scene.name.as_str(), kept.join(","));
    }
    out.push_str("]}");
    out
}

#[cfg(test)]
mod tests {
    use super::super::super::report::sample;
    use super::*;

    #[test]
    fn the_axis_is_linear_until_that_hides_something() {
        let near = Scale::for_all(&sample::of_constant_latency(10.0, 30.0, 11.0, 0.8).scenes).unwrap();
        assert!(!near.log);
        assert!(near.percent(0.0) < 1e-9);
        let far = Scale::for_all(&sample::of_constant_latency(10.0, 3000.0, 11.0, 0.8).scenes).unwrap();
        assert!(far.log);
        assert!(far.percent(10.0) > 0.0 && far.percent(3000.0) < 100.0);
        assert!(far.ticks().len() > 3);
    }

    #[test]
    fn a_crowded_column_keeps_its_height() {
        let scale = Scale { low: 0.0, high: 100.0, log: false };
        assert_eq!(Swarm::of(&[50.0, 50.0], &scale).path, "M500.0 52.5h0M500.0 57.5h0");
        let crowded = Swarm::of(&vec![50.0; 3 * MOST_DOTS], &scale);
        assert_eq!(crowded.requests_per_dot, 3);
        assert_eq!(crowded.path.matches('M').count(), MOST_DOTS);
        assert!(crowded.path.ends_with(" 87.0h0"), "the last dot is at the bottom of the row");
    }
}

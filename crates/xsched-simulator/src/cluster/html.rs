//! A report as one HTML page without references to other files: GPUs needed, utilization over time, and the assumptions.

use std::fmt::Write as _;

use super::outcome::Outcome;

/// One way of sharing, and its result.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// The result.
    pub outcome: Outcome,
}

const COLORS: [&str; 6] = ["#6b7280", "#d97706", "#2563eb", "#059669", "#9333ea", "#dc2626"];
const WIDTH: f64 = 760.0;
const LABELS: f64 = 180.0;
const BAR: f64 = 30.0;
const CURVES: f64 = 240.0;

/// The page. `title` and `assumptions` are plain text.
#[must_use]
pub fn report(title: &str, rows: &[Row], assumptions: &[String]) -> String {
    let title = escaped(title);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{title}</title>\n<style>\
         body{{font:15px/1.5 system-ui,sans-serif;max-width:820px;margin:2em auto;padding:0 1em;color:#111;background:#fff}}\
         table{{border-collapse:collapse}}td,th{{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}}\
         td:first-child,th:first-child{{text-align:left;white-space:nowrap}}svg text{{font:13px system-ui,sans-serif}}</style>\n<h1>{title}</h1>\n"
    );
    page.push_str("<h2>GPUs</h2>\n");
    page.push_str(&bars(rows));
    page.push_str("<h2>Utilization from the first arrival to the last</h2>\n");
    page.push_str(&curves(rows));
    page.push_str("<h2>Figures</h2>\n");
    page.push_str(&table(rows));
    page.push_str("<h2>Assumptions</h2>\n<ul>\n");
    for line in assumptions {
        // Writing to a string does not fail.
        let _ = writeln!(page, "<li>{}</li>", escaped(line));
    }
    page.push_str("</ul>\n</html>\n");
    page
}

fn color(index: usize) -> &'static str {
    COLORS[index % COLORS.len()]
}

fn bars(rows: &[Row]) -> String {
    let most = rows.iter().map(|row| row.outcome.gpus).max().unwrap_or(1).max(1);
    let height = BAR * rows.len() as f64;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"GPUs by way of sharing\">\n"
    );
    for (index, row) in rows.iter().enumerate() {
        let top = BAR * index as f64;
        let length = (WIDTH - LABELS - 90.0) * f64::from(row.outcome.gpus) / f64::from(most);
        let middle = top + 19.0;
        let _ = writeln!(
            svg,
            "<text x=\"0\" y=\"{middle:.1}\">{}</text><rect x=\"{LABELS}\" y=\"{:.1}\" width=\"{length:.1}\" height=\"20\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{middle:.1}\">{}{}</text>",
            escaped(&row.name),
            top + 4.0,
            color(index),
            LABELS + length + 6.0,
            row.outcome.gpus,
            if row.outcome.meets_targets { "" } else { " (misses)" },
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn curves(rows: &[Row]) -> String {
    let (left, bottom) = (44.0, CURVES - 24.0);
    let mut svg =
        format!("<svg viewBox=\"0 0 {WIDTH} {CURVES}\" role=\"img\" aria-label=\"utilization over time\">\n");
    for percent in [0, 25, 50, 75, 100] {
        let y = bottom - (bottom - 10.0) * f64::from(percent) / 100.0;
        let _ = writeln!(
            svg,
            "<line x1=\"{left}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/><text x=\"0\" y=\"{:.1}\">{percent} %</text>",
            y + 4.0
        );
    }
    for (index, row) in rows.iter().enumerate() {
        let points = &row.outcome.utilization_over_time;
        let step = (WIDTH - left) / (points.len().max(2) - 1) as f64;
        let line: Vec<_> = (points.iter().enumerate())
            .map(|(at, value)| {
                let (x, y) = (left + step * at as f64, bottom - (bottom - 10.0) * value.clamp(0.0, 1.0));
                format!("{x:.1},{y:.1}")
            })
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"><title>{}</title></polyline>",
            line.join(" "),
            color(index),
            escaped(&row.name)
        );
    }
    let axis = CURVES - 5.0;
    let days = rows.first().map_or(0.0, |row| row.outcome.span_s) / 86_400.0;
    let _ = write!(
        svg,
        "<text x=\"{left}\" y=\"{axis}\">0</text><text x=\"{WIDTH}\" y=\"{axis}\" text-anchor=\"end\">{days:.2} days</text>\n</svg>\n"
    );
    svg
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "<table>\n<tr><th>sharing</th><th>GPUs</th><th>utilization</th><th>service p99 / alone, mean</th><th>max</th>\
         <th>batch slowdown p50</th><th>p95</th></tr>\n",
    );
    for (index, row) in rows.iter().enumerate() {
        let Outcome { batch, services, .. } = &row.outcome;
        let _ = writeln!(
            text,
            "<tr><td><span style=\"color:{}\">&#9632;</span> {}</td><td>{}</td><td>{:.1} %</td><td>{:.2}</td><td>{:.2}</td>\
             <td>{:.2}</td><td>{:.2}</td></tr>",
            color(index),
            escaped(&row.name),
            row.outcome.gpus,
            row.outcome.utilization * 100.0,
            services.p99_ratio_mean,
            services.p99_ratio_max,
            batch.slowdown_p50,
            batch.slowdown_p95,
        );
    }
    text.push_str("</table>\n");
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

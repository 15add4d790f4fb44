//! The results as an HTML page: a single file that loads nothing.
//!
//! All charts are SVG made here. The script in `page.js` only scrolls the timeline and shows values at the pointer; the page is
//! complete without it. Text is never inside an SVG: SVGs stretch with the page, text must not.

mod latency;
mod timeline;

use std::borrow::Cow;
use std::fmt::Write as _;

use super::report::units::{duration, fine_percent, percent, times};
use super::report::{Results, Scene, SceneName, verdict, workload};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The columns of the table of all numbers, as narrow screens show them: each cell with its name.
const COLUMNS: [&str; 8] = [
    "requests",
    "min",
    "p50",
    "p99",
    "max",
    "p99 / alone",
    "background, of the device",
    "background, of the time left",
];

/// The page.
pub(crate) fn page(results: &Results) -> String {
    fill(
        PAGE,
        &[
            ("style", STYLE.into()),
            ("script", SCRIPT.into()),
            ("device", escape(&results.device).into()),
            ("level", results.level.to_string().into()),
            ("headline", verdict::headline(results).into()),
            ("verdict", escape(&verdict::sentence(results)).into()),
            ("cards", cards(results).into()),
            ("timeline", timeline::figure(results).into()),
            ("latency", latency::figure(results).into()),
            ("background", background(results).into()),
            ("rows", rows(results).into()),
            ("facts", facts(results).into()),
        ],
    )
}

/// Replaces every `{{name}}` of `template`. The values are not expanded again.
fn fill(template: &str, values: &[(&str, Cow<'_, str>)]) -> String {
    let mut pieces = template.split("{{");
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (name, text) = piece.split_once("}}").unwrap_or((piece, ""));
        if let Some((_, value)) = values.iter().find(|(known, _)| *known == name) {
            out.push_str(value);
        }
        out.push_str(text);
    }
    out
}

/// `text` for the content of an element or an attribute.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// The p99 of each scene.
fn cards(results: &Results) -> String {
    results.scenes.iter().map(|scene| card(results, scene)).collect()
}

fn card(results: &Results, scene: &Scene) -> String {
    let name = scene.name.as_str();
    let meaning = scene.name.meaning();
    let (p50, p99) = scene
        .latencies()
        .map_or(("–".to_owned(), "–".to_owned()), |l| (duration(l.p50), duration(l.p99)));
    let (ratio, of) = match results.ratio_p99(scene) {
        Some(ratio) if scene.name != SceneName::Alone => (format!("{}×", times(ratio)), "p99 alone"),
        _ => (String::new(), ""),
    };
    let utilization = match scene.background_of_rest() {
        Some(rest) => format!(
            "background utilization: {} of the device, {} of the time the foreground leaves",
            percent(scene.background_utilization),
            percent(rest)
        ),
        None => format!("foreground utilization: {} of the device", percent(scene.foreground_utilization)),
    };
    let foreground = width(scene.foreground_utilization);
    let background = width(scene.background_utilization);
    format!(
        "<article class=\"card {name}\"><h2>{name}</h2><p class=\"meaning\">{meaning}</p>\
         <p class=\"number\"><b>{p99}</b><span class=\"ratio\">{ratio}</span></p>\
         <p class=\"unit\"><span>p99; p50 is {p50}</span><span>{of}</span></p>\
         <div class=\"utilization\" aria-hidden=\"true\"><i class=\"fore\" style=\"width:{foreground:.1}%\"></i>\
         <i class=\"back\" style=\"width:{background:.1}%\"></i></div><p class=\"note\">{utilization}</p></article>\n"
    )
}

/// A utilization as a width in percent, clamped to its box.
fn width(utilization: f64) -> f64 {
    (utilization * 100.0).clamp(0.0, 100.0)
}

/// What both tasks had of the device in each scene with a background, and what changed for the background.
fn background(results: &Results) -> String {
    let mut out = String::from("<div class=\"kept\">\n");
    for scene in &results.scenes {
        let Some(rest) = scene.background_of_rest() else { continue };
        let name = scene.name.as_str();
        let (foreground, background) =
            (width(scene.foreground_utilization), width(scene.background_utilization));
        let (of_device, of_rest) = (fine_percent(scene.background_utilization), fine_percent(rest));
        let _ = writeln!(
            out,
            "<div class=\"{name}\"><h3>{name}</h3><div class=\"utilization\" role=\"img\" aria-label=\"{name}: the \
             background had {of_device} of the device\"><i class=\"fore\" style=\"width:{foreground:.1}%\"></i>\
             <i class=\"back\" style=\"width:{background:.1}%\"></i></div>\
             <p class=\"note\">background: <b>{of_device}</b> of the device, {of_rest} of the time the foreground leaves</p></div>"
        );
    }
    out.push_str("</div>\n");
    let utilization = |name| results.scene(name).map(|scene| scene.background_utilization);
    if let (Some(native), Some(xsched)) = (utilization(SceneName::Native), utilization(SceneName::XSched))
        && native > 0.0
    {
        let _ = write!(
            out,
            "<p class=\"caption\">Under XSched the background has {}× the device time that it has natively. Colour is the \
             foreground, grey the background, and the rest of a bar is time in which the device was idle or switched.</p>",
            times(xsched / native)
        );
    }
    out
}

/// The rows of the table of all numbers.
fn rows(results: &Results) -> String {
    let mut out = String::new();
    for scene in &results.scenes {
        let latencies = scene.latencies();
        let time = |of: fn(&super::report::Latencies) -> f64| latencies.as_ref().map(|l| duration(of(l)));
        let rest = scene.background_of_rest();
        let cells = [
            Some(scene.foreground.len().to_string()),
            time(|l| l.min),
            time(|l| l.p50),
            time(|l| l.p99),
            time(|l| l.max),
            results.ratio_p99(scene).map(|ratio| format!("{}×", times(ratio))),
            rest.map(|_| fine_percent(scene.background_utilization)),
            rest.map(fine_percent),
        ];
        let name = scene.name.as_str();
        let _ = write!(out, "<tr class=\"{name}\"><th scope=\"row\">{name}</th>");
        for (label, cell) in COLUMNS.into_iter().zip(cells) {
            let _ = write!(out, "<td data-label=\"{label}\">{}</td>", cell.as_deref().unwrap_or("–"));
        }
        out.push_str("</tr>\n");
    }
    out
}

/// Device, workload and versions.
fn facts(results: &Results) -> String {
    let mut device = format!("{}, level {}", results.device, results.level);
    if !results.device_note.is_empty() {
        let _ = write!(device, "; {}", results.device_note);
    }
    let versions: Vec<String> =
        results.versions.iter().map(|v| format!("{} {}", v.name, v.version)).collect();
    let facts =
        [("Device", device), ("Workload", workload(&results.workload)), ("Versions", versions.join(", "))];
    let mut out = String::new();
    for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(out, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(value));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::report::{Owner, Request, Span, sample};
    use super::*;

    #[test]
    fn page_loads_nothing_and_fills_all_placeholders() {
        let page = page(&sample::realistic());
        for forbidden in ["http", "//cdn", "@import", "url(", "src=", "{{", "}}", "NaN", "inf"] {
            let found = page.find(forbidden).map(|at| page[at..].chars().take(60).collect::<String>());
            assert_eq!(found, None, "{forbidden}");
        }
    }

    #[test]
    fn background_of_both_scenes_is_compared() {
        let mut results = sample::realistic();
        for scene in &mut results.scenes {
            (scene.foreground_utilization, scene.background_utilization) = match scene.name {
                SceneName::Native => (0.2, 0.4),
                SceneName::XSched => (0.2, 0.6),
                SceneName::Alone => (0.2, 0.0),
            };
        }
        let section = background(&results);
        assert!(section.contains("has 1.50× the device time"), "{section}");
        assert_eq!(section.matches("<h3>").count(), 2, "{section}");
    }

    #[test]
    fn external_strings_are_escaped() {
        let mut results = sample::realistic();
        let hostile = "<script>alert('{{style}}')</script>\"&";
        results.device = hostile.to_owned();
        results.device_note = hostile.to_owned();
        for version in &mut results.versions {
            version.name = hostile.to_owned();
            version.version = hostile.to_owned();
        }
        let page = page(&results);
        assert!(!page.contains("<script>alert"));
        assert!(page.contains("&lt;script&gt;alert(&#39;{{style}}&#39;)&lt;/script&gt;&quot;&amp;"));
    }

    #[test]
    fn page_of_a_long_demo_is_small() {
        let mut results = sample::realistic();
        for scene in &mut results.scenes {
            let starts = (0..100_000).map(|i| f64::from(i) * 50.0);
            let task = |start: f64| if start % 100.0 < 50.0 { Owner::Foreground } else { Owner::Background };
            scene.timeline = starts
                .clone()
                .map(|start_us| Span { task: task(start_us), start_us, end_us: start_us + 49.0 })
                .collect();
            scene.foreground = starts
                .enumerate()
                .map(|(i, at)| Request { arrived_us: at, done_us: at + 9_000.0 + (i * 7919 % 20_000) as f64 })
                .collect();
        }
        let size = page(&results).len();
        assert!(size < 1_500_000, "{size}");
    }

    #[test]
    fn empty_and_missing_scenes_give_a_page() {
        assert!(page(&sample::empty()).contains("Too little was measured"));
        let mut results = sample::realistic();
        for scene in &mut results.scenes {
            scene.timeline.clear();
        }
        assert!(page(&results).contains("does not report"));
        results.scenes.clear();
        assert!(page(&results).ends_with("</html>\n"));
    }
}

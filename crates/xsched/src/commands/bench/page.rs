//! The results as an HTML page: a single file that loads nothing.

use std::fmt::Write as _;

use super::estimate::Estimate;
use super::results::{Metric, Results, Row};
use super::table::{decimals, shown};
use crate::demo::html::escape;

const STYLE: &str = include_str!("page.css");

/// The page.
pub(super) fn page(results: &Results) -> String {
    let mut out = String::new();
    let title = escape(&results.summary);
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>xsched bench {}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<header>\n\
         <p class=\"eyebrow\"><b>XSched</b> bench {}</p>\n<h1>{title}</h1>\n",
        results.bench, results.bench
    );
    for conclusion in &results.conclusions {
        let _ = writeln!(out, "<p class=\"lede\">{}</p>", escape(conclusion));
    }
    out.push_str("</header>\n");
    for metric in results.metrics() {
        plot(&mut out, results, metric);
    }
    failures(&mut out, results);
    numbers(&mut out, results);
    out.push_str("<footer><dl>\n");
    let repetitions = format!("{}, interleaved; medians and 95 % confidence intervals", results.repetitions);
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let settings = results.settings.iter().cloned();
    for (name, value) in settings.chain([("repetitions", repetitions), ("version", version)]) {
        let _ = writeln!(out, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(&value));
    }
    out.push_str("</dl></footer>\n</main>\n</body>\n</html>\n");
    out
}

/// A bar for the median of each row, with its interval and a mark for each repetition.
fn plot(out: &mut String, results: &Results, metric: Metric) {
    let measured = || results.rows.iter().filter_map(|row| Some((row, row.figure(metric)?)));
    let values = measured().flat_map(|(_, estimate)| estimate.samples.iter().copied());
    let highest = values.fold(f64::MIN_POSITIVE, f64::max);
    let _ = writeln!(out, "<section>\n<h2>{}</h2>\n<div class=\"plot\">", escape(metric.title));
    for (row, estimate) in measured() {
        bar(out, row, metric, estimate, highest);
    }
    out.push_str("</div>\n</section>\n");
}

fn bar(out: &mut String, row: &Row, metric: Metric, estimate: &Estimate, highest: f64) {
    let part = |value: f64| (value / highest * 100.0).clamp(0.0, 100.0);
    let Estimate { median, low, high, samples } = estimate;
    let places = decimals(*median);
    let _ = write!(
        out,
        "<div class=\"bar {}\" title=\"{}\"><span class=\"name\">{} <small>{}</small></span><span class=\"track\">\
         <i style=\"width:{:.2}%\"></i><em style=\"left:{:.2}%;width:{:.2}%\"></em>",
        escape(&row.scene),
        escape(&shown(metric, estimate)),
        escape(&row.scene),
        escape(&row.program),
        part(*median),
        part(*low),
        (part(*high) - part(*low)).max(0.2),
    );
    for sample in samples {
        let _ = write!(out, "<u style=\"left:{:.2}%\"></u>", part(*sample));
    }
    let _ = writeln!(out, "</span><b>{median:.places$}</b></div>");
}

fn failures(out: &mut String, results: &Results) {
    if results.failures.is_empty() {
        return;
    }
    out.push_str("<section>\n<h2>What could not be measured</h2>\n");
    for failure in &results.failures {
        let program = &failure.failure;
        let printed = if program.output.is_empty() { "It printed nothing." } else { &program.output };
        let _ = writeln!(
            out,
            "<p>{}: the {} {}</p>\n<pre>$ {}\n{}</pre>",
            escape(&failure.scene),
            escape(&program.program),
            escape(&program.reason),
            escape(&program.command),
            escape(printed)
        );
    }
    out.push_str("</section>\n");
}

/// The table of all numbers. On a narrow screen each row is a list, with the names of the columns from `data-label`.
fn numbers(out: &mut String, results: &Results) {
    let metrics = results.metrics();
    out.push_str("<section>\n<h2>All numbers</h2>\n<table>\n<thead><tr><th>scene</th><th>program</th>");
    for metric in &metrics {
        let _ = write!(out, "<th>{}</th>", escape(metric.title));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in &results.rows {
        let _ = write!(out, "<tr><th>{}</th><td>{}</td>", escape(&row.scene), escape(&row.program));
        for metric in &metrics {
            let text = row.figure(*metric).map_or("–".to_owned(), |estimate| {
                let places = decimals(estimate.median);
                let Estimate { median, low, high, .. } = estimate;
                format!("<b>{median:.places$}</b> {low:.places$} – {high:.places$}")
            });
            let _ = write!(out, "<td data-label=\"{}\">{text}</td>", escape(metric.title));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table>\n</section>\n");
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::sample;
    use super::*;

    #[test]
    fn page_loads_nothing_and_escapes_what_programs_print() {
        let page = page(&sample());
        for forbidden in ["http", "@import", "url(", "src=", "<torch>"] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        assert!(page.contains("&lt;torch&gt;") && page.ends_with("</html>\n"));
    }

    #[test]
    fn every_figure_has_a_bar_and_a_mark_for_each_repetition() {
        let page = page(&sample());
        assert_eq!(page.matches("class=\"bar ").count(), 3);
        assert_eq!(page.matches("<u style").count(), 9);
    }
}

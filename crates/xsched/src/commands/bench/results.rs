//! The results of a benchmark: figures by scene and program, and the programs that could not be measured.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::estimate::Estimate;
use super::scene::ProgramFailure;
use super::{page, table};

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Metric {
    /// Its key in JSON, with the unit.
    pub(super) key: &'static str,
    /// Its name in tables, with the unit.
    pub(super) title: &'static str,
}

/// The figures of one program in one scene.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) scene: String,
    pub(super) program: String,
    pub(super) figures: Vec<(Metric, Estimate)>,
}

impl Row {
    /// The estimate of a metric, if it was measured.
    pub(super) fn figure(&self, metric: Metric) -> Option<&Estimate> {
        self.figures.iter().find(|(measured, _)| *measured == metric).map(|(_, estimate)| estimate)
    }
}

/// A scene that could not be measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Failure {
    pub(super) scene: String,
    #[serde(flatten)]
    pub(super) failure: ProgramFailure,
}

/// The values of all repetitions so far, in the order in which they first appeared.
#[derive(Debug, Default)]
pub(super) struct Samples(Vec<(String, String, Metric, Vec<f64>)>);

impl Samples {
    pub(super) fn push(&mut self, scene: &str, program: &str, metric: Metric, value: f64) {
        let known = self.0.iter_mut().find(|(s, p, m, _)| s == scene && p == program && *m == metric);
        match known {
            Some((.., values)) => values.push(value),
            None => self.0.push((scene.to_owned(), program.to_owned(), metric, vec![value])),
        }
    }

    /// The medians.
    pub(super) fn rows(self) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        for (scene, program, metric, values) in self.0 {
            let Some(estimate) = Estimate::of(values) else { continue };
            match rows.iter_mut().find(|row| row.scene == scene && row.program == program) {
                Some(row) => row.figures.push((metric, estimate)),
                None => rows.push(Row { scene, program, figures: vec![(metric, estimate)] }),
            }
        }
        rows
    }
}

/// All results of one benchmark.
#[derive(Clone, Debug)]
pub(super) struct Results {
    /// The name of the benchmark.
    pub(super) bench: &'static str,
    /// What was measured, in one sentence.
    pub(super) summary: String,
    pub(super) repetitions: u32,
    /// Names and values of what was chosen or found.
    pub(super) settings: Vec<(&'static str, String)>,
    pub(super) rows: Vec<Row>,
    /// What the figures mean, in sentences.
    pub(super) conclusions: Vec<String>,
    pub(super) failures: Vec<Failure>,
}

impl Results {
    /// The row of a program in a scene.
    pub(super) fn row(&self, scene: &str, program: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.scene == scene && row.program == program)
    }

    /// The median of a metric.
    pub(super) fn median(&self, scene: &str, program: &str, metric: Metric) -> Option<f64> {
        Some(self.row(scene, program)?.figure(metric)?.median)
    }

    /// Whether the confidence intervals of a metric overlap in two scenes, if it was measured in both.
    pub(super) fn intervals_overlap(
        &self,
        scenes: (&str, &str),
        program: &str,
        metric: Metric,
    ) -> Option<bool> {
        let of = |scene| self.row(scene, program)?.figure(metric);
        let (one, other) = (of(scenes.0)?, of(scenes.1)?);
        Some(one.low <= other.high && other.low <= one.high)
    }

    /// The metrics of any row, in the order of their first appearance.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        let mut metrics = Vec::new();
        for (metric, _) in self.rows.iter().flat_map(|row| &row.figures) {
            if !metrics.contains(metric) {
                metrics.push(*metric);
            }
        }
        metrics
    }

    pub(super) fn to_json(&self) -> Value {
        let row = |row: &Row| {
            let mut fields = Map::new();
            fields.insert("scene".to_owned(), json!(row.scene));
            fields.insert("program".to_owned(), json!(row.program));
            fields.extend(row.figures.iter().map(|(metric, value)| (metric.key.to_owned(), json!(value))));
            Value::Object(fields)
        };
        let settings: Map<String, Value> =
            self.settings.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        json!({
            "bench": self.bench,
            "version": env!("CARGO_PKG_VERSION"),
            "repetitions": self.repetitions,
            "settings": settings,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "failures": self.failures,
        })
    }
}

/// The options of every benchmark.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct OutputOptions {
    /// How often each scene is measured. The scenes alternate, so that a change of the machine affects all of them.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(super) repetitions: u32,

    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,

    /// Directory for a report: index.html, a page with plots that loads nothing, and results.json. Is created.
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
}

impl OutputOptions {
    /// Creates the directory of the report, so that an error is reported before the measurement.
    pub(super) fn prepare(&self) -> anyhow::Result<()> {
        let Some(directory) = &self.report else { return Ok(()) };
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot create the directory {} of the report", directory.display()))
    }

    /// Prints the results, and writes the report. Fails if a scene could not be measured.
    pub(super) fn finish(&self, results: &Results) -> anyhow::Result<()> {
        if let Some(directory) = &self.report {
            write(&directory.join("index.html"), &page::page(results))?;
            write(&directory.join("results.json"), &format!("{:#}\n", results.to_json()))?;
        }
        let mut out = io::stdout().lock();
        if self.json {
            writeln!(out, "{:#}", results.to_json())?;
        } else {
            let colour = out.is_terminal() && std::env::var_os("NO_COLOR").is_none();
            write!(out, "{}", table::table(results, colour))?;
            if let Some(directory) = &self.report {
                writeln!(out, "\nReport: {}", directory.join("index.html").display())?;
            }
        }
        out.flush()?;
        drop(out);
        if let [first, ..] = results.failures.as_slice() {
            let ProgramFailure { program, reason, .. } = &first.failure;
            anyhow::bail!(
                "{} scene(s) could not be measured, the first one because the {program} {reason}",
                results.failures.len()
            );
        }
        Ok(())
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

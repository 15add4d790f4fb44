//! A trace of jobs, read from CSV: columns by name, one row per job.
//!
//! Every error of a row is reported with its line, up to a limit, so that the conversion of a trace can be corrected in one go.

use std::fmt;
use std::io::BufRead;

use xsched_core::{Priority, is_control};

use super::csv::{Cells, split};

/// The maximum number of errors that are reported one by one.
const MAX_ERRORS: usize = 20;
/// More rows than this are probably not a trace of jobs.
const MAX_ROWS: usize = 20_000_000;
/// The maximum number of GPUs of one job.
const MAX_GPUS: f64 = 100_000.0;
/// The maximum of times in seconds: a century.
const MAX_SECONDS: f64 = 3.2e9;

/// One job of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its line in the file.
    pub line: u32,
    /// When it was submitted, in seconds.
    pub arrival_s: f64,
    /// How long it runs with its GPUs to itself, in seconds.
    pub duration_s: f64,
    /// How many GPUs it uses at a time.
    pub gpus: u32,
    /// Memory that it needs on each GPU, in GiB.
    pub memory_gib: f32,
    /// Higher preempts lower, on a GPU and among waiting jobs.
    pub priority: i16,
    /// What it does.
    pub work: Work,
}

/// What a job does with each of its GPUs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// It computes.
    Batch {
        /// The part of the time in which it uses its GPUs.
        utilization: f32,
    },
    /// It answers requests until its time is over.
    Service {
        /// Requests per second on each of its GPUs.
        rate: f32,
        /// Device time of a request, in seconds.
        request_s: f32,
        /// Requests arrive at equal intervals.
        is_periodic: bool,
    },
}

/// The jobs of a file in the order of their arrival.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// The jobs.
    pub jobs: Vec<Job>,
    /// Columns that were not used.
    pub ignored_columns: Vec<String>,
    /// Jobs without a value for memory: they count as needing none.
    pub without_memory: usize,
}

/// Why a trace was rejected.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file could not be read.
    #[error("cannot read line {line}: {error}")]
    Read {
        /// The line.
        line: usize,
        /// The reason.
        error: std::io::Error,
    },
    /// The header cannot be used.
    #[error("line 1: {0}")]
    Header(String),
    /// There is no job in the file.
    #[error("the trace has no jobs: a header and at least one row are needed")]
    Empty,
    /// Rows cannot be used.
    #[error("{0}")]
    Rows(RowErrors),
}

/// The first errors of the rows, and how many rows are wrong.
#[derive(Debug, Default)]
pub struct RowErrors {
    /// Line and reason.
    pub first: Vec<(usize, String)>,
    /// All rows with an error.
    pub count: usize,
}

impl fmt::Display for RowErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (line, reason)) in self.first.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}line {line}: {reason}")?;
        }
        match self.count - self.first.len() {
            0 => Ok(()),
            more => write!(f, "\nand {more} more rows with errors"),
        }
    }
}

/// The columns that a trace can have. Every other column is ignored.
const COLUMNS: [&str; 13] = [
    "arrival",
    "duration",
    "work",
    "gpus",
    "utilization",
    "memory",
    "priority",
    "kind",
    "rate",
    "request",
    "arrivals",
    "name",
    "user",
];

/// Where each column is in a row.
struct Header {
    at: [Option<usize>; COLUMNS.len()],
    cells: usize,
}

impl Header {
    fn read(line: &str) -> Result<(Self, Vec<String>), TraceError> {
        let mut cells = Cells::default();
        // Spreadsheets put a byte order mark in front of the header.
        split(line.trim_start_matches('\u{feff}'), &mut cells)
            .map_err(|why| TraceError::Header(why.to_owned()))?;
        let mut header = Self { at: [None; COLUMNS.len()], cells: cells.len() };
        let mut ignored = Vec::new();
        for (index, name) in cells.iter().enumerate() {
            let lower = name.trim().to_ascii_lowercase();
            match COLUMNS.iter().position(|column| *column == lower) {
                Some(column) if header.at[column].is_some() => {
                    return Err(TraceError::Header(format!("column `{lower}` occurs twice")));
                }
                Some(column) => header.at[column] = Some(index),
                None => ignored.push(shown(name.trim())),
            }
        }
        for needed in ["arrival", "gpus"] {
            if !header.has(needed) {
                return Err(TraceError::Header(format!(
                    "there is no column `{needed}`: the header needs arrival, gpus, and duration or work"
                )));
            }
        }
        if !header.has("duration") && !header.has("work") {
            return Err(TraceError::Header(
                "there is no column `duration` and none `work`: one is needed".into(),
            ));
        }
        Ok((header, ignored))
    }

    fn has(&self, name: &str) -> bool {
        COLUMNS.iter().zip(self.at).any(|(column, at)| *column == name && at.is_some())
    }

    /// The cell of a column; none if the column is missing or the cell is empty.
    fn cell<'a>(&self, cells: &'a Cells, name: &str) -> Option<&'a str> {
        let column = COLUMNS.iter().position(|column| *column == name)?;
        self.at[column].and_then(|at| cells.get(at)).map(str::trim).filter(|cell| !cell.is_empty())
    }

    /// A number within `range`.
    fn number(&self, cells: &Cells, name: &str, range: (f64, f64)) -> Result<Option<f64>, String> {
        let Some(cell) = self.cell(cells, name) else { return Ok(None) };
        let (least, most) = range;
        match cell.parse::<f64>() {
            Ok(number) if number.is_finite() && (least..=most).contains(&number) => Ok(Some(number)),
            Ok(number) => Err(format!("{name} {number} is out of range: allowed is {least} to {most}")),
            Err(_) => Err(format!("{name} `{}` is not a number", shown(cell))),
        }
    }

    fn job(&self, cells: &Cells, line: usize) -> Result<(Job, bool), String> {
        if cells.len() != self.cells {
            return Err(format!("the row has {} cells, the header has {}", cells.len(), self.cells));
        }
        let required = |value: Option<f64>, name: &str| value.ok_or_else(|| format!("there is no {name}"));
        let arrival_s = required(self.number(cells, "arrival", (0.0, MAX_SECONDS))?, "arrival")?;
        let gpus = required(self.number(cells, "gpus", (1.0, MAX_GPUS))?, "gpus")?;
        if gpus.fract() != 0.0 {
            return Err(format!(
                "gpus {gpus} is not a whole number: write a part of a GPU as gpus 1 and that utilization"
            ));
        }
        let memory = self.number(cells, "memory", (0.0, 10_000.0))?;
        let (work, utilization) = self.work(cells, gpus)?;
        let duration_s = match (
            self.number(cells, "duration", (0.0, MAX_SECONDS))?,
            self.number(cells, "work", (0.0, MAX_SECONDS))?,
        ) {
            (Some(_), Some(_)) => {
                return Err("duration and work are both given: one of them follows from the other".into());
            }
            (Some(duration), None) => duration,
            (None, Some(work)) => work / (gpus * utilization),
            (None, None) => return Err("there is no duration and no work".into()),
        };
        let priority = match self.cell(cells, "priority") {
            Some(text) => text.parse::<Priority>().map_err(|error| error.to_string())?,
            None if matches!(work, Work::Service { .. }) => Priority::HIGH,
            None => Priority::LOW,
        };
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole, and within u32 by its range"
        )]
        let gpus = gpus as u32;
        let job = Job {
            line: u32::try_from(line).unwrap_or(u32::MAX),
            arrival_s,
            duration_s,
            gpus,
            memory_gib: narrow(memory.unwrap_or(0.0)),
            priority: priority.get(),
            work,
        };
        Ok((job, memory.is_some()))
    }

    /// The kind of the job, and its utilization.
    fn work(&self, cells: &Cells, gpus: f64) -> Result<(Work, f64), String> {
        let utilization = self.number(cells, "utilization", (0.001, 1.0))?;
        let rate = self.number(cells, "rate", (1e-6, 1e9))?;
        let request = self.number(cells, "request", (0.001, 3_600_000.0))?;
        let is_service = match self.cell(cells, "kind") {
            None => rate.is_some() || request.is_some(),
            Some(kind) if kind.eq_ignore_ascii_case("service") => true,
            Some(kind) if kind.eq_ignore_ascii_case("batch") => false,
            Some(kind) => {
                return Err(format!("kind `{}` is unknown: allowed is service or batch", shown(kind)));
            }
        };
        if !is_service {
            if rate.is_some() || request.is_some() {
                return Err("a batch job has no rate and no request: they belong to kind service".into());
            }
            let utilization = utilization.unwrap_or(1.0);
            return Ok((Work::Batch { utilization: narrow(utilization) }, utilization));
        }
        // Two of the three determine the third.
        let request_s = request.map(|milliseconds| milliseconds / 1e3);
        let rate = rate.map(|rate| rate / gpus);
        let (rate, request_s) = match (rate, request_s, utilization) {
            (Some(rate), Some(request_s), _) => (rate, request_s),
            (Some(rate), None, Some(utilization)) => (rate, utilization / rate),
            (None, Some(request_s), Some(utilization)) => (utilization / request_s, request_s),
            _ => return Err("a service needs two of rate, request and utilization".into()),
        };
        let load = rate * request_s;
        if load > 0.95 {
            return Err(format!(
                "its requests need {:.0} % of its GPUs' time: allowed is 95 %, or the service cannot keep up",
                load * 100.0
            ));
        }
        let is_periodic = match self.cell(cells, "arrivals") {
            None => false,
            Some(kind) if kind.eq_ignore_ascii_case("random") => false,
            Some(kind) if kind.eq_ignore_ascii_case("periodic") => true,
            Some(kind) => {
                return Err(format!("arrivals `{}` is unknown: allowed is random or periodic", shown(kind)));
            }
        };
        Ok((Work::Service { rate: narrow(rate), request_s: narrow(request_s), is_periodic }, load))
    }
}

impl Trace {
    /// Reads a CSV file.
    pub fn read(mut file: impl BufRead) -> Result<Self, TraceError> {
        let mut text = String::new();
        let mut line = 1;
        let mut next = |text: &mut String, line: usize| {
            text.clear();
            match file.read_line(text) {
                Ok(length) => Ok(length > 0),
                Err(error) => Err(TraceError::Read { line, error }),
            }
        };
        if !next(&mut text, line)? || text.trim().is_empty() {
            return Err(TraceError::Empty);
        }
        let (header, ignored_columns) = Header::read(text.trim_end_matches(['\r', '\n']))?;
        let mut trace = Self { ignored_columns, ..Self::default() };
        let (mut errors, mut cells) = (RowErrors::default(), Cells::default());
        loop {
            line += 1;
            if !next(&mut text, line)? {
                break;
            }
            let row = text.trim_end_matches(['\r', '\n']);
            if row.trim().is_empty() {
                continue;
            }
            if trace.jobs.len() >= MAX_ROWS {
                return Err(TraceError::Header(format!("the trace has more than {MAX_ROWS} jobs")));
            }
            let job = split(row, &mut cells).map_err(str::to_owned).and_then(|()| header.job(&cells, line));
            match job {
                Ok((job, has_memory)) => {
                    trace.without_memory += usize::from(!has_memory);
                    trace.jobs.push(job);
                }
                Err(reason) => {
                    errors.count += 1;
                    if errors.first.len() < MAX_ERRORS {
                        errors.first.push((line, reason));
                    }
                }
            }
        }
        if errors.count > 0 {
            return Err(TraceError::Rows(errors));
        }
        if trace.jobs.is_empty() {
            return Err(TraceError::Empty);
        }
        // Rows of the same time keep their order.
        trace.jobs.sort_by(|a, b| a.arrival_s.total_cmp(&b.arrival_s));
        Ok(trace)
    }
}

/// A cell for an error message: one line, not too long.
fn shown(cell: &str) -> String {
    cell.chars().filter(|c| !is_control(*c)).take(40).collect()
}

#[allow(clippy::cast_possible_truncation, reason = "seven digits are more than a trace has")]
fn narrow(number: f64) -> f32 {
    number as f32
}

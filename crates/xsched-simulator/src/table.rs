//! Reports as tables for users.

use std::fmt::Write as _;

use xsched_core::Nanos;

use crate::report::{DeviceReport, Report, TaskReport};

/// One report: the setup, the tasks, the devices.
#[must_use]
pub fn table(report: &Report) -> String {
    let mut tasks = Table::new(&TASK_HEADER);
    for row in rows_of(&report.task_groups, &report.all_tasks) {
        tasks.row(task_cells(row));
    }
    let mut devices = Table::new(&DEVICE_HEADER);
    for row in rows_of(&report.device_groups, &report.all_devices) {
        devices.row(device_cells(row));
    }
    format!("{}, under {}\n\n{tasks}\n{devices}", setup(report), policy(report))
}

/// Several reports of one specification, side by side.
#[must_use]
pub fn compare(reports: &[Report]) -> String {
    let Some(first) = reports.first() else { return String::new() };
    let mut tasks = Table::new(&[&["policy"], &TASK_HEADER[..]].concat());
    let mut devices = Table::new(&[&["policy"], &DEVICE_HEADER[..]].concat());
    for report in reports {
        // The name is written once, before the first of its rows.
        let mut name = policy(report);
        for row in &report.task_groups {
            tasks.row([vec![std::mem::take(&mut name)], task_cells(row)].concat());
        }
        let mut name = policy(report);
        for row in &report.device_groups {
            devices.row([vec![std::mem::take(&mut name)], device_cells(row)].concat());
        }
    }
    format!("{}, under {} policies\n\n{tasks}\n{devices}", setup(first), reports.len())
}

/// A single row needs no sum.
fn rows_of<'a, T>(groups: &'a [T], all: &'a T) -> impl Iterator<Item = &'a T> {
    groups.iter().chain((groups.len() > 1).then_some(all))
}

fn setup(report: &Report) -> String {
    let warmup = match report.warmup_ns {
        0 => String::new(),
        warmup => format!(" after {} of warm-up", Nanos(warmup)),
    };
    format!(
        "{} and {} over {} of virtual time{warmup}, seed {}",
        counted(report.device_count, "device"),
        counted(report.task_count, "task"),
        Nanos(report.duration_ns - report.warmup_ns),
        report.seed
    )
}

fn counted(n: usize, what: &str) -> String {
    format!("{} {what}{}", grouped(n as u64), if n == 1 { "" } else { "s" })
}

fn policy(report: &Report) -> String {
    if report.plain == report.policy {
        report.plain.clone()
    } else {
        format!("{} ({})", report.plain, report.policy)
    }
}

const TASK_HEADER: [&str; 12] = [
    "task",
    "tasks",
    "jobs",
    "jobs/s",
    "p50",
    "p90",
    "p99",
    "max",
    "utilization",
    "missed",
    "preempted",
    "held",
];

fn task_cells(row: &TaskReport) -> Vec<String> {
    let latency = |ns| if row.jobs == 0 { "-".to_owned() } else { Nanos(ns).to_string() };
    vec![
        row.name.clone(),
        grouped(row.count),
        grouped(row.jobs),
        format!("{:.1}", row.jobs_per_s),
        latency(row.latency.p50_ns),
        latency(row.latency.p90_ns),
        latency(row.latency.p99_ns),
        latency(row.latency.max_ns),
        percent(row.utilization),
        match row.deadline_jobs {
            0 => "-".to_owned(),
            due => format!("{} of {}", grouped(row.deadline_misses), grouped(due)),
        },
        grouped(row.preemptions),
        Nanos(row.held_ns).to_string(),
    ]
}

const DEVICE_HEADER: [&str; 7] = ["device", "devices", "busy", "lost", "idle", "switches", "preemptions"];

fn device_cells(row: &DeviceReport) -> Vec<String> {
    let all = (row.busy_ns + row.lost_ns + row.idle_ns) as f64;
    let part = |ns: u64| percent(ns as f64 / all);
    vec![
        row.name.clone(),
        grouped(row.count),
        part(row.busy_ns),
        part(row.lost_ns),
        part(row.idle_ns),
        grouped(row.switches),
        grouped(row.preemptions),
    ]
}

pub(crate) fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

/// A number with commas between thousands.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Cells in columns: text left-aligned, numbers right-aligned.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    is_text: Vec<bool>,
}

impl Table {
    pub(crate) fn new(header: &[&str]) -> Self {
        let is_text =
            header.iter().map(|name| ["policy", "task", "device", "sharing"].contains(name)).collect();
        Self { rows: vec![header.iter().map(|name| (*name).to_owned()).collect()], is_text }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<_> = (0..self.is_text.len()).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for ((cell, width), is_text) in row.iter().zip(&widths).zip(&self.is_text) {
                if *is_text {
                    write!(line, "{cell:<width$}  ")?;
                } else {
                    write!(line, "{cell:>width$}  ")?;
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["task", "jobs"]);
        table.row(vec!["long name".into(), "7".into()]);
        table.row(vec!["x".into(), "12,345".into()]);
        assert_eq!(table.to_string(), "task         jobs\nlong name       7\nx          12,345\n");
    }
}

//! Synthetic traces: heavy-tailed durations, days and nights, services beside batch jobs. A function of the seed.
//!
//! The shapes are those that published traces of GPU clusters have in common: most jobs are short and use one GPU, a few are
//! long and large, many use a part of their GPU's time, and more arrive by day. The numbers are round; they are no
//! particular cluster's.

use std::io::{self, Write};

use crate::random::Random;

const DAY_S: f64 = 86_400.0;
/// Arrivals at the busiest hour over the average, less 1.
const DAY_SWING: f64 = 0.6;
/// The busiest time of the day.
const PEAK_S: f64 = 15.0 * 3_600.0;
/// One job in so many is a service.
const JOBS_PER_SERVICE: u64 = 12;
const USERS: u64 = 50;

/// What to generate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Generated {
    /// The number of jobs.
    pub jobs: u64,
    /// The time in which they arrive.
    pub days: f64,
    /// The seed of all random numbers.
    pub seed: u64,
}

/// Writes a trace as CSV.
pub fn generate(what: &Generated, mut out: impl Write) -> io::Result<()> {
    let mut arrivals = arrivals(what);
    arrivals.sort_by(f64::total_cmp);
    writeln!(out, "name,user,kind,arrival,duration,gpus,utilization,memory,priority,rate,request")?;
    for (number, arrival) in arrivals.into_iter().enumerate() {
        let mut random = Random::stream(what.seed, number as u64 + 1);
        let user = random.between(1, USERS);
        if random.between(1, JOBS_PER_SERVICE) == 1 {
            service(&mut out, number, user, arrival, &mut random)?;
        } else {
            batch(&mut out, number, user, arrival, &mut random)?;
        }
    }
    out.flush()
}

/// Times of arrival: a Poisson process whose rate follows the time of day, given its number of events.
fn arrivals(what: &Generated) -> Vec<f64> {
    let mut random = Random::stream(what.seed, 0);
    let mut times = Vec::new();
    while (times.len() as u64) < what.jobs {
        let at = random.unit() * what.days * DAY_S;
        let rate = 1.0 + DAY_SWING * (std::f64::consts::TAU * (at - PEAK_S) / DAY_S).cos();
        if random.unit() * (1.0 + DAY_SWING) < rate {
            times.push(at);
        }
    }
    times
}

fn batch(
    out: &mut impl Write,
    number: usize,
    user: u64,
    arrival: f64,
    random: &mut Random,
) -> io::Result<()> {
    // The mean is five times the median.
    let duration = lognormal(random, 900.0, 1.8).clamp(10.0, 5.0 * DAY_S);
    let gpus = match random.between(1, 100) {
        1..=76 => 1,
        77..=84 => 2,
        85..=91 => 4,
        92..=99 => 8,
        _ => 16,
    };
    // Large jobs are tuned better.
    let utilization = if gpus == 1 { 0.15 + 0.85 * random.unit() } else { 0.6 + 0.4 * random.unit() };
    let memory = lognormal(random, if gpus == 1 { 12.0 } else { 30.0 }, 0.7).clamp(1.0, 76.0);
    writeln!(
        out,
        "job-{number},user-{user},batch,{arrival:.1},{duration:.1},{gpus},{utilization:.2},{memory:.1},low,,"
    )
}

fn service(
    out: &mut impl Write,
    number: usize,
    user: u64,
    arrival: f64,
    random: &mut Random,
) -> io::Result<()> {
    let duration = lognormal(random, 10.0 * 3_600.0, 1.0).clamp(300.0, 5.0 * DAY_S);
    let gpus = if random.between(1, 10) == 1 { 2 } else { 1 };
    let request_ms = lognormal(random, 12.0, 0.8).clamp(1.0, 200.0);
    let load = 0.03 + 0.37 * random.unit() * random.unit();
    let rate = f64::from(gpus) * load * 1e3 / request_ms;
    let memory = lognormal(random, 14.0, 0.5).clamp(2.0, 60.0);
    writeln!(
        out,
        "job-{number},user-{user},service,{arrival:.1},{duration:.1},{gpus},,{memory:.1},high,{rate:.3},{request_ms:.2}"
    )
}

fn lognormal(random: &mut Random, median: f64, sigma: f64) -> f64 {
    median * (sigma * random.normal()).exp()
}

//! Traces of jobs. A valid trace of few jobs is also simulated on a small cluster.

use xsched_core::Level;
use xsched_simulator::Progress;
use xsched_simulator::cluster::{self, Costs, Placement, Settings, Targets, Trace, TraceError};

use super::Run;

pub(super) const WORDS: &[&str] = &[
    "name,user,kind,arrival,duration,gpus,utilization,memory,priority,rate,request,arrivals\n",
    "batch,",
    "service,",
    "random",
    "periodic",
    "low",
    "high",
    "-255",
    "0",
    "0.5",
    "1e300",
    "1e-300",
    "inf",
    "nan",
    "4294967296",
    "\"",
    "\"\"",
    ",",
    ",,,,",
    "\n",
    "\r\n",
    "\u{feff}",
    "é",
];

/// More jobs would be slow, not wrong.
const MAX_JOBS: usize = 64;

pub(super) fn start() -> Run {
    let sharing = [Costs::exclusive(), Costs::time_slices(), Costs::xsched(Level::Interrupt)];
    let placements = [Placement::FirstFit, Placement::Pack, Placement::Spread];
    let mut next = 0;
    Box::new(move |input| match Trace::read(input) {
        Ok(trace) if trace.jobs.len() <= MAX_JOBS => {
            next += 1;
            let settings = Settings {
                costs: sharing[next % 3],
                gpus: 16,
                gpus_per_node: 8,
                gpu_memory_gib: 80.0,
                jobs_per_gpu: 4,
                placement: placements[next / 3 % 3],
                targets: Targets::default(),
            };
            // A job may be too large for this cluster.
            let _ = cluster::run(&trace, &settings, &Progress::default());
        }
        Ok(_) => {}
        Err(TraceError::Rows(errors)) => {
            let lines = input.split(|byte| *byte == b'\n').count();
            assert!(errors.first.iter().all(|(line, _)| (2..=lines).contains(line)), "{errors}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    })
}

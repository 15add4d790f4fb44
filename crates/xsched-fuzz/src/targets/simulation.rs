//! Simulation files. A valid file that describes little work is also simulated.

use xsched_core::Nanos;
use xsched_policy::POLICIES;
use xsched_simulator::Spec;

use super::Run;

pub(super) const WORDS: &[&str] = &[
    "[[device]]\n",
    "[[task]]\n",
    "[policy]\n",
    "duration = \"1s\"\n",
    "warmup = \"1ms\"\n",
    "seed = 7\n",
    "timeslice = ",
    "k = ",
    "name = \"a\"\n",
    "count = ",
    "machine = ",
    "level = ",
    "priority = ",
    "share = ",
    "deadline = ",
    "laxity = ",
    "device = \"a\"\n",
    "commands = ",
    "command = ",
    "command.uniform = { min = \"1us\", max = \"2ms\" }\n",
    "arrival.periodic = { every = \"1ms\", jitter = \"1ms\", phase = \"1ms\" }\n",
    "arrival.poisson = { rate = 1000 }\n",
    "arrival.closed = { think = \"1us\" }\n",
    "preempt = ",
    "restore = ",
    "switch = ",
    "\"1ms\"",
    "\"24h\"",
    "\"1us\"",
    "\"0ns\"",
    "\"18446744073709551615ns\"",
    "[",
    "]",
    "{",
    "}",
    "=",
    "\n",
    "inf",
    "nan",
    "-1",
    "1e300",
    "é",
];

/// A longer simulation would be slow, not wrong.
const SIMULATED: Nanos = Nanos::from_millis(5);

pub(super) fn start() -> Run {
    let mut next_policy = 0;
    Box::new(move |input| {
        let Ok(text) = std::str::from_utf8(input) else { return };
        match Spec::from_toml(text) {
            Ok(spec) => {
                if spec.devices() <= 8
                    && spec.tasks() <= 16
                    && let Ok(short) = spec.with_duration(SIMULATED)
                {
                    let policy = &POLICIES[next_policy % POLICIES.len()];
                    next_policy += 1;
                    let report = xsched_simulator::run(&short, policy);
                    assert!(!xsched_simulator::table(&report).is_empty());
                }
            }
            Err(error) => {
                let lines = text.split('\n').count();
                assert!(error.line.is_none_or(|line| (1..=lines).contains(&line)), "{error}");
            }
        }
    })
}

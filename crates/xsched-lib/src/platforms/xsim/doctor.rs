//! The simulated device, which every machine has.

use xsched_core::Level;
use xsched_sim::Config;

use crate::doctor::{Check, Group, Machine};

/// The levels that the simulated device offers.
pub(crate) fn probe(_machine: &Machine) -> Vec<Check> {
    let capabilities = Config::default().capabilities();
    let levels: Vec<_> = Level::ALL
        .iter()
        .filter(|level| capabilities.cost(**level).is_ok())
        .map(|level| level.number().to_string())
        .collect();
    let what = format!("always available; levels {} work: `xsched demo` shows them", levels.join(", "));
    vec![Check::ok(Group::Devices, "simulated", what)]
}

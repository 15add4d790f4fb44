//! Clocks, power and temperature: a GPU that is throttled makes measurements worthless.

use serde_json::json;

use super::HERE;
use super::topology::{self, Gpu};
use crate::doctor::{Check, Machine};

/// A power limit below this part of the default limit is reported.
const MIN_POWER_LIMIT: f64 = 0.9;
/// A temperature so close to the critical one, in degrees Celsius, is reported.
const TEMPERATURE_MARGIN: f64 = 5.0;

/// One finding for each GPU that shows any of its clocks, power and temperature.
pub(super) fn probe(machine: &Machine, gpus: &[Gpu]) -> Vec<Check> {
    topology::whole_gpus(gpus).filter_map(|gpu| examine(machine, gpu)).collect()
}

fn examine(machine: &Machine, gpu: &Gpu) -> Option<Check> {
    let directory = format!("/sys/bus/pci/devices/{}", gpu.address);
    let monitor = machine.names_in(&format!("{directory}/hwmon")).into_iter().next().unwrap_or_default();
    let sensor = |file: &str, unit: f64| {
        let text = machine.text(&format!("{directory}/hwmon/{monitor}/{file}"))?;
        Some(text.trim().parse::<f64>().ok()? / unit)
    };
    let (watts, degrees) = (1e6, 1e3);
    let clocks = topology::pci_file(machine, gpu, "pp_dpm_sclk").unwrap_or_default();
    let megahertz =
        |line: &str| line.split_once(':')?.1.trim().split(['M', 'm']).next()?.trim().parse::<u32>().ok();
    let clock = clocks.lines().find(|line| line.contains('*')).and_then(megahertz);
    let max_clock = clocks.lines().filter_map(megahertz).max();
    let level = topology::pci_file(machine, gpu, "power_dpm_force_performance_level");
    let power = sensor("power1_average", watts).or_else(|| sensor("power1_input", watts));
    let limit = sensor("power1_cap", watts);
    let default_limit = sensor("power1_cap_default", watts).or_else(|| sensor("power1_cap_max", watts));
    // The junction, if the GPU has that sensor.
    let temperature = sensor("temp2_input", degrees).or_else(|| sensor("temp1_input", degrees));
    let critical = sensor("temp2_crit", degrees).or_else(|| sensor("temp1_crit", degrees));
    let values = [
        clock.zip(max_clock).map(|(now, max)| format!("clock {now} of {max} MHz")),
        power.zip(limit).map(|(now, limit)| format!("{now:.0} of {limit:.0} W")),
        temperature.map(|now| format!("{now:.0} degrees Celsius")),
        level.as_ref().map(|level| format!("performance level `{level}`")),
    ];
    let values: Vec<String> = values.into_iter().flatten().collect();
    if values.is_empty() {
        return None;
    }
    let what = values.join(", ");
    let name = format!("amd clocks {}", gpu.address);
    let fixed = level.as_deref().filter(|level| !matches!(*level, "auto" | "high" | "perf_determinism"));
    let lowered = limit.zip(default_limit).is_some_and(|(limit, default)| limit < MIN_POWER_LIMIT * default);
    let is_hot = temperature
        .zip(critical)
        .is_some_and(|(now, critical)| critical > 0.0 && now > critical - TEMPERATURE_MARGIN);
    let check = if let Some(level) = fixed {
        let what = format!(
            "{what}: the performance level `{level}` fixes the clocks, so measured times are not those of the GPU"
        );
        Check::warning(HERE, name, what, "`sudo rocm-smi --setperflevel auto`")
    } else if lowered {
        let what = format!(
            "{what}: the power limit is below the default of {:.0} W",
            default_limit.unwrap_or_default()
        );
        Check::warning(
            HERE,
            name,
            what,
            "`sudo rocm-smi --resetpoweroverdrive`, or compare only with runs at this limit",
        )
    } else if is_hot {
        let what = format!(
            "{what}: close to the critical {:.0} degrees, the GPU lowers its clocks",
            critical.unwrap_or_default()
        );
        Check::warning(HERE, name, what, "let it cool down, then measure again")
    } else {
        Check::ok(HERE, name, what)
    };
    Some(check.with_facts(json!({
        "clock_mhz": clock, "max_clock_mhz": max_clock, "power_w": power, "power_limit_w": limit,
        "default_power_limit_w": default_limit, "temperature_c": temperature, "critical_temperature_c": critical,
        "performance_level": level,
        "busy_percent": topology::pci_file(machine, gpu, "gpu_busy_percent").and_then(|text| text.parse::<u32>().ok()),
    })))
}

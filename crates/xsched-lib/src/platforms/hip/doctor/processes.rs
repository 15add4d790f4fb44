//! Processes that use the compute driver.

use serde_json::json;

use super::HERE;
use crate::doctor::{Check, Machine};

const PROCESSES: &str = "/sys/class/kfd/kfd/proc";

/// The processes that have queues or memory on a GPU; none if the driver does not list them.
pub(super) fn probe(machine: &Machine) -> Option<Check> {
    if !machine.has(PROCESSES) {
        return None;
    }
    let own = std::process::id().to_string();
    let is_process = |name: &String| name.bytes().all(|c| c.is_ascii_digit()) && *name != own;
    let pids: Vec<String> = machine.names_in(PROCESSES).into_iter().filter(is_process).collect();
    let name = "amd processes";
    let facts = json!({
        "count": pids.len(),
        "names": pids.iter().map(|pid| machine.text(&format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()).collect::<Vec<_>>(),
    });
    let check = match pids.as_slice() {
        [] => Check::ok(HERE, name, "no process uses the compute driver"),
        pids => {
            let what = match pids.len() {
                1 => "1 process uses the compute driver".to_owned(),
                n => format!("{n} processes use the compute driver"),
            };
            let what = format!("{what} ({}): XSched preempts only those that it schedules", numbers(pids));
            Check::warning(
                HERE,
                name,
                what,
                "start them with `xsched run` too, or end them before you measure",
            )
        }
    };
    Some(check.with_facts(facts))
}

/// The first few process numbers.
fn numbers(pids: &[String]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<&str> = pids.iter().take(SHOWN).map(String::as_str).collect();
    let more = if pids.len() > SHOWN { ", ..." } else { "" };
    format!("PID {}{more}", shown.join(", "))
}

//! What the tools add to the status that the service reports.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Value, json};
use xsched_core::DeviceId;
use xsched_ipc::protocol::{Status, TaskStatus};

use crate::rates::Rates;
use crate::{device_model, term};

/// The status as the service reports it, with the rates, the level and the name of the device of each task, and with the devices. The
/// index of a device is its place in the order of the addresses, as in `xsched top`.
pub(crate) fn to_json(status: &Status, rates: &HashMap<u64, Rates>) -> anyhow::Result<Value> {
    let mut value = serde_json::to_value(status)?;
    if let Some(fields) = value.as_object_mut() {
        // Only the socket's protocol splits the status into several packets.
        fields.remove("more");
    }
    for (task, value) in status.tasks.iter().zip(value["tasks"].as_array_mut().into_iter().flatten()) {
        value["rates"] = json!(rates.get(&task.task));
        value["device_name"] = json!(DeviceId(task.device).to_string());
        value["level"] = json!(level(status, task));
    }
    let devices: BTreeSet<u64> = status.tasks.iter().map(|task| task.device).collect();
    let device = |(index, number): (usize, &u64)| {
        let id = DeviceId(*number);
        json!({
            "index": index,
            "device": number,
            "address": id.to_string(),
            "name": device_model::of(id).unwrap_or_else(|| term::device(*number)),
        })
    };
    value["devices"] = devices.iter().enumerate().map(device).collect();
    Ok(value)
}

/// The preemption level of a task: the lowest of its queues.
pub(crate) fn level(status: &Status, task: &TaskStatus) -> Option<u8> {
    status.queues.iter().filter(|queue| queue.task == task.task).map(|queue| queue.level).min()
}

/// Sorts the tasks by device, and those of one device by priority.
pub(crate) fn sort(tasks: &mut [TaskStatus]) {
    tasks.sort_by_key(|task| (task.device, -task.priority, task.pid, task.task));
}

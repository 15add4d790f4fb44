//! Which tasks `ps` and `top` show.

use xsched_core::DeviceId;
use xsched_ipc::protocol::{Status, TaskStatus};

use crate::users;

/// The tasks of one user, or on one device, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Selection {
    /// Show the tasks of this user only, by name or user ID.
    #[arg(short, long, value_name = "USER", value_parser = users::parse_user)]
    pub(crate) user: Option<u32>,

    /// Show the tasks on this device only, by its name or the end of its name, such as 06.0.
    #[arg(short, long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,
}

impl Selection {
    /// Whether every task is selected.
    pub(crate) fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a task is selected.
    pub(crate) fn has_task(&self, task: &TaskStatus) -> bool {
        self.user.is_none_or(|user| user == task.uid) && self.has_device(task.device)
    }

    /// Whether tasks on this device can be selected.
    pub(crate) fn has_device(&self, device: u64) -> bool {
        self.device.as_ref().is_none_or(|end| DeviceId(device).to_string().ends_with(end.as_str()))
    }

    /// Removes the tasks that are not selected, and their queues. Rates are computed before: whether a task is alone on its device
    /// depends on the tasks that are not shown, too.
    pub(crate) fn apply(&self, status: &mut Status) {
        status.tasks.retain(|task| self.has_task(task));
        let Status { tasks, queues, .. } = status;
        queues.retain(|queue| tasks.iter().any(|task| task.task == queue.task));
    }
}

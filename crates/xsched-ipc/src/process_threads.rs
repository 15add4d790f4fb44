//! The threads of a scheduled process: a [watcher](crate::watcher), and an [enforcer](crate::enforcer) for each device. They
//! start when there is a scheduler and a queue, and sleep on the futex of the page until an order changes.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use xsched_core::DeviceId;

use crate::scheduled_process::{ScheduledProcess, lock};
use crate::threads::CpuScheduling;
use crate::{enforcer, threads, watcher};

/// The enforcers wait for orders with this mask of the futex.
pub(crate) const ENFORCER_WAKE_MASK: NonZeroU32 = NonZeroU32::new(1).unwrap();
/// The watcher waits for orders with this mask of the futex: it can be woken without the enforcers.
pub(crate) const WATCHER_WAKE_MASK: NonZeroU32 = NonZeroU32::new(2).unwrap();
/// The thread that moves device memory waits for orders with this mask of the futex.
pub(crate) const PARKING_WAKE_MASK: NonZeroU32 = NonZeroU32::new(4).unwrap();
/// How long a thread sleeps that has nothing to do before the next order.
pub(crate) const ORDER_WAIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Which threads of a process run.
#[derive(Default)]
pub(crate) struct ProcessThreads(Mutex<Running>);

#[derive(Default)]
struct Running {
    /// The process has had a scheduler: from then on every device with a queue needs an enforcer.
    is_enabled: bool,
    has_watcher: bool,
    /// The devices that have an enforcer. The index is the number in the thread's name.
    enforcers: Vec<Option<DeviceId>>,
}

impl ProcessThreads {
    /// Starts the watcher, and the enforcers of all devices with queues, as far as they do not run yet. Devices whose first
    /// queue is created later get their enforcer by [`ProcessThreads::ensure_enforcer`].
    pub(crate) fn start(&self, process: &Arc<ScheduledProcess>) -> std::io::Result<()> {
        let mut running = lock(&self.0);
        running.is_enabled = true;
        if !running.has_watcher {
            let process = Arc::downgrade(process);
            threads::start("xsched-watch", CpuScheduling::Batch, move || watcher::run(&process))?;
            running.has_watcher = true;
        }
        process.devices().into_iter().try_for_each(|device| running.ensure_enforcer(process, device))
    }

    /// Starts the enforcer of a device unless it runs, or there never was a scheduler. Call this after the queue was added:
    /// an enforcer ends only if it finds no queue of its device.
    pub(crate) fn ensure_enforcer(
        &self,
        process: &Arc<ScheduledProcess>,
        device: DeviceId,
    ) -> std::io::Result<()> {
        let mut running = lock(&self.0);
        if running.is_enabled { running.ensure_enforcer(process, device) } else { Ok(()) }
    }

    /// The enforcer of `device` is about to return. False if the device has a queue again: then it must not.
    pub(crate) fn end_enforcer(&self, process: &ScheduledProcess, device: DeviceId) -> bool {
        let mut running = lock(&self.0);
        if process.devices().contains(&device) {
            return false;
        }
        for entry in &mut running.enforcers {
            if *entry == Some(device) {
                *entry = None;
            }
        }
        true
    }
}

impl Running {
    fn ensure_enforcer(&mut self, process: &Arc<ScheduledProcess>, device: DeviceId) -> std::io::Result<()> {
        if self.enforcers.contains(&Some(device)) {
            return Ok(());
        }
        let free = self.enforcers.iter().position(Option::is_none);
        let number = free.unwrap_or(self.enforcers.len());
        let process = Arc::downgrade(process);
        let name = format!("xsched-enf-{number}");
        threads::start(&name, CpuScheduling::Prompt, move || enforcer::run(&process, device))?;
        match self.enforcers.get_mut(number) {
            Some(entry) => *entry = Some(device),
            None => self.enforcers.push(Some(device)),
        }
        Ok(())
    }
}

/// Calls `step` again whenever the orders of the page have changed, and no later than after the time that it returns. Returns
/// when `step` returns none or the process is gone. The thread keeps no handle on the process while it sleeps.
pub(crate) fn repeat_on_orders(
    process: &Weak<ScheduledProcess>,
    wake_mask: NonZeroU32,
    mut step: impl FnMut(&Arc<ScheduledProcess>) -> Option<Duration>,
) {
    loop {
        let Some(process) = process.upgrade() else { return };
        let (binding, seen) = process.observe_orders();
        let Some(timeout) = step(&process) else { return };
        drop(process);
        binding.page.orders().wait_masked(wake_mask, seen, timeout);
    }
}

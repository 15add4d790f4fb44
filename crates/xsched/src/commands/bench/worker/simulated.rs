//! The loads on the simulated device.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use xsched_core::HwQueue as _;
use xsched_ipc::environment::{Environment, Scheduler};
use xsched_ipc::{Client, ClientInfo, ScheduledQueue, socket};
use xsched_sim::{SimDevice, SimQueue};

use super::Accelerator;

/// The shortest command of the simulated device.
const SHORTEST: Duration = Duration::from_micros(1);

pub(super) struct Device {
    name: String,
    queue: Arc<SimQueue>,
    /// Without it the commands go straight to the device.
    scheduled: Option<(Arc<ScheduledQueue>, Client)>,
}

impl Device {
    /// Attaches the device in this file, and joins the service that the environment names, if any.
    pub(super) fn open(file: &Path) -> anyhow::Result<Self> {
        let device = SimDevice::open(file)?;
        let queue = Arc::new(device.queue()?);
        let environment = Environment::read(|name| std::env::var(name).ok(), |_, _| {});
        let is_scheduled =
            environment.schedules_every_queue && matches!(environment.scheduler, Scheduler::Service);
        let scheduled = is_scheduled.then(|| join(&environment, &queue)).transpose()?;
        Ok(Self { name: device.config().name(), queue, scheduled })
    }
}

fn join(environment: &Environment, queue: &Arc<SimQueue>) -> anyhow::Result<(Arc<ScheduledQueue>, Client)> {
    let client = Client::with_service(ClientInfo {
        sockets: socket::candidates(),
        name: environment.name.clone(),
        hint_request: environment.hint_request.clone(),
        grant_token: None,
        memory: None,
        memory_group: None,
    })?;
    Ok((client.join(Arc::clone(queue) as _, environment.level)?, client))
}

impl Accelerator for Device {
    fn launch(&mut self, length_us: u64) -> anyhow::Result<()> {
        let length = Duration::from_micros(length_us).max(SHORTEST);
        Ok(match &self.scheduled {
            Some((queue, _)) => queue.launch(|| self.queue.launch(length)),
            None => self.queue.launch(length),
        }?)
    }

    fn synchronize(&mut self) -> anyhow::Result<()> {
        Ok(match &self.scheduled {
            Some((queue, _)) => queue.launch_path().synchronized(|| self.queue.synchronize()),
            None => self.queue.synchronize(),
        }?)
    }

    fn describe(&self) -> (String, String) {
        (self.name.clone(), String::new())
    }

    /// The simulated device computes nothing. Its result is the number of commands that it has completed.
    fn compute(&mut self, commands: u32, length_us: u64) -> anyhow::Result<u64> {
        for _ in 0..commands {
            self.launch(length_us)?;
        }
        self.synchronize()?;
        Ok(self.queue.finished()?)
    }
}

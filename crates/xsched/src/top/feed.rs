//! The thread that communicates with the service, so that the screen never blocks on it.

use std::collections::{BTreeSet, HashMap};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use xsched_core::DeviceId;
use xsched_ipc::protocol::{Request, Status};

use crate::device_memory::{self, Memory};
use crate::tool::{ToolConnection, ToolError};

/// What the thread sends to the screen.
#[derive(Debug)]
pub(super) enum Update {
    /// The status of the service, and the memory of each device, where it is known.
    Status(Box<Status>, HashMap<u64, Memory>),
    /// No service replies, and why.
    Disconnected(String),
    /// A request was carried out; the text to show.
    Done(String),
    /// A request failed, and why.
    Failed(String),
}

/// The screen's ends of the channels to the thread.
#[derive(Debug)]
pub(super) struct Feed {
    requests: Sender<(Request, String)>,
    updates: Receiver<Update>,
}

impl Feed {
    /// Starts the thread, which reads the status every `interval`. It exits when this is dropped.
    pub(super) fn start(interval: Duration) -> Self {
        let (requests, pending) = mpsc::channel();
        let (sender, updates) = mpsc::channel();
        thread::spawn(move || run(interval, &pending, &sender));
        Self { requests, updates }
    }

    /// Queues a request for the service; the screen receives `done` if it is carried out.
    pub(super) fn send(&self, request: Request, done: String) {
        // Fails only if the thread panicked, which `next_update` reports.
        let _ = self.requests.send((request, done));
    }

    /// The next update, if one has arrived. Fails if the thread has panicked.
    pub(super) fn next_update(&self) -> anyhow::Result<Option<Update>> {
        match self.updates.try_recv() {
            Ok(update) => Ok(Some(update)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => {
                anyhow::bail!("the thread that reads the status of the service has failed")
            }
        }
    }
}

fn run(interval: Duration, pending: &Receiver<(Request, String)>, sender: &Sender<Update>) {
    let mut tool: Option<ToolConnection> = None;
    loop {
        let next_read = Instant::now() + interval;
        let update = match read_status(&mut tool) {
            Ok(status) => {
                let memory = memory_of_devices(&status);
                Update::Status(Box::new(status), memory)
            }
            Err(error) => {
                tool = None;
                Update::Disconnected(error.to_string())
            }
        };
        if sender.send(update).is_err() {
            return;
        }
        loop {
            match pending.recv_timeout(next_read.saturating_duration_since(Instant::now())) {
                Ok((request, done)) => {
                    let update = match send(tool.as_ref(), &request) {
                        Ok(()) => Update::Done(done),
                        Err(error) => Update::Failed(error),
                    };
                    if sender.send(update).is_err() {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

fn memory_of_devices(status: &Status) -> HashMap<u64, Memory> {
    let devices: BTreeSet<u64> = status.tasks.iter().map(|task| task.device).collect();
    devices.into_iter().filter_map(|device| Some((device, device_memory::of(DeviceId(device))?))).collect()
}

fn read_status(tool: &mut Option<ToolConnection>) -> Result<Status, ToolError> {
    let connected = match tool.take() {
        Some(connected) => connected,
        None => ToolConnection::connect()?,
    };
    let status = connected.status()?;
    *tool = Some(connected);
    Ok(status)
}

fn send(tool: Option<&ToolConnection>, request: &Request) -> Result<(), String> {
    let tool = tool.ok_or("no service is connected")?;
    tool.request(request).map(drop).map_err(|error| error.to_string())
}

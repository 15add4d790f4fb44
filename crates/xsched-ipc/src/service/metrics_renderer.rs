//! Renders metrics on a thread of its own.
//!
//! The text has about ten lines for each task. With thousands of tasks rendering takes milliseconds, for which the scheduling
//! thread would write no orders.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use xsched_core::Nanos;

use super::listings::MetricsView;
use crate::metrics::{self, Counters};
use crate::notifier::Notifier;
use crate::protocol::Status;

/// A packet, which all sessions that wait to send it share.
pub(super) type SharedPacket = Arc<[u8]>;

/// What a reader may know about a process.
pub(super) struct VisibleNames {
    pub(super) name: String,
    /// The name of its grant, and the labels of that.
    pub(super) grant: Option<(String, BTreeMap<String, String>)>,
}

/// What is rendered.
pub(super) struct MetricsInput {
    pub(super) view: MetricsView,
    pub(super) status: Arc<Status>,
    /// The names of the processes that the view includes, by process id.
    pub(super) names: HashMap<u32, VisibleNames>,
    pub(super) counters: Arc<Counters>,
}

/// Rendered metrics.
pub(super) struct RenderedMetrics {
    pub(super) view: MetricsView,
    pub(super) packets: Arc<[SharedPacket]>,
    /// How long rendering took.
    pub(super) took: Nanos,
}

/// Takes inputs and returns the metrics when they were rendered.
pub(super) struct MetricsRenderer {
    inputs: mpsc::Sender<MetricsInput>,
    results: Arc<Mutex<Vec<RenderedMetrics>>>,
    notifier: Arc<Notifier>,
}

impl MetricsRenderer {
    /// Starts the thread. It exits when this value is dropped.
    pub(super) fn start() -> std::io::Result<Self> {
        // At most one input for each user waits: see `Listings`.
        let (inputs, received) = mpsc::channel();
        let (results, notifier) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Notifier::new()?));
        let (finished, ready) = (Arc::clone(&results), Arc::clone(&notifier));
        std::thread::Builder::new().name("xsched-metrics".to_owned()).spawn(move || {
            for input in received {
                let result = render(input);
                finished.lock().unwrap_or_else(PoisonError::into_inner).push(result);
                ready.notify();
            }
        })?;
        Ok(Self { inputs, results, notifier })
    }

    /// Has metrics rendered.
    pub(super) fn request(&self, input: MetricsInput) {
        // The thread does not exit before this value is dropped.
        let _ = self.inputs.send(input);
    }

    /// What was rendered since the last call.
    pub(super) fn take_results(&self) -> Vec<RenderedMetrics> {
        self.notifier.acknowledge();
        std::mem::take(&mut *self.results.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl AsFd for MetricsRenderer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }
}

fn render(input: MetricsInput) -> RenderedMetrics {
    let began = Nanos::now();
    let MetricsInput { view, status, names, counters } = input;
    let mut status = Arc::unwrap_or_clone(status);
    for task in &mut status.tasks {
        if let Some(visible) = names.get(&task.pid) {
            task.name.clone_from(&visible.name);
            if let Some((grant, labels)) = &visible.grant {
                task.grant = Some(grant.clone());
                task.labels.clone_from(labels);
            }
        }
    }
    let text = metrics::render(&status, &counters);
    let packets = metrics::replies(&text).into_iter().filter_map(|reply| serde_json::to_vec(&reply).ok());
    let packets = packets.map(SharedPacket::from).collect();
    RenderedMetrics { view, packets, took: Nanos::now() - began }
}

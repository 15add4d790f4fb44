//! The simulated devices, one for each GPU or partition.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, OnceLock, PoisonError};

use amd_machine::GpuNode;
use xsched_core::{DeviceId, DeviceKind, Nanos};
use xsched_sim::{Config, SimDevice, SimQueue, Span, SpanKind, Timeline};

/// A GPU or a partition of it.
pub(crate) struct Device {
    pub(crate) node: GpuNode,
    sim: SimDevice,
    spans: Mutex<Spans>,
}

/// When the commands of this process's queues ran.
struct Spans {
    timeline: Timeline,
    drained: Vec<Span>,
    queues: HashMap<u32, QueueSpans>,
}

/// Completed commands of a queue that were not asked for yet, and when an unfinished one started.
type QueueSpans = (VecDeque<(Nanos, Nanos)>, Option<Nanos>);

impl Device {
    /// A queue on the device; none if it has no more.
    pub(crate) fn queue(&self) -> Option<SimQueue> {
        let queue = self.sim.queue().or_else(|_| {
            // Queues of exited processes may still be open; `usage` removes them.
            let _ = self.sim.usage();
            self.sim.queue()
        });
        let queue = queue.ok()?;
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        spans.drain(&self.sim);
        spans.queues.insert(queue.number(), (VecDeque::new(), None));
        Some(queue)
    }

    /// When the oldest completed command of a queue that was not asked for yet started and ended; none if the device's
    /// record of it was overwritten.
    pub(crate) fn next_completed(&self, queue: u32) -> Option<(Nanos, Nanos)> {
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        let known = spans.queues.get_mut(&queue).and_then(|(completed, _)| completed.pop_front());
        known.or_else(|| {
            spans.drain(&self.sim);
            spans.queues.get_mut(&queue).and_then(|(completed, _)| completed.pop_front())
        })
    }

    /// Forgets a queue that is closed.
    pub(crate) fn forget(&self, queue: u32) {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).queues.remove(&queue);
    }
}

impl Spans {
    fn drain(&mut self, sim: &SimDevice) {
        self.drained.clear();
        if self.timeline.drain(&mut self.drained).is_err() {
            return;
        }
        let context = sim.context();
        for span in self.drained.iter().filter(|span| span.context == context) {
            let Some(queue) = span.queue else { continue };
            let Some((completed, started)) = self.queues.get_mut(&queue) else { continue };
            let start = started.take().unwrap_or(span.start);
            if span.kind == SpanKind::Finished {
                completed.push_back((start, span.end));
            } else {
                *started = Some(start);
            }
        }
    }
}

static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();

/// All devices that `ROCR_VISIBLE_DEVICES` permits; none before `open_all`.
pub(crate) fn devices() -> &'static [Device] {
    DEVICES.get().map_or(&[], Vec::as_slice)
}

/// Opens the devices.
pub(crate) fn open_all() -> Result<(), ()> {
    if DEVICES.get().is_none() {
        let opened: Option<Vec<Device>> = visible_nodes().into_iter().map(open).collect();
        let _ = DEVICES.set(opened.ok_or(())?);
    }
    Ok(())
}

/// The nodes that `ROCR_VISIBLE_DEVICES` lists, by number or by UUID. The first invalid entry ends the list.
fn visible_nodes() -> Vec<GpuNode> {
    let nodes = amd_machine::gpu_nodes();
    let Ok(list) = std::env::var("ROCR_VISIBLE_DEVICES") else { return nodes };
    let find = |text: &str| {
        let text = text.trim();
        let by_number = text.parse::<usize>().ok().and_then(|number| nodes.get(number));
        by_number.or_else(|| nodes.iter().find(|node| crate::agents::uuid(node).eq_ignore_ascii_case(text)))
    };
    list.split(',').map(find).map_while(Option::<&GpuNode>::cloned).collect()
}

fn open(node: GpuNode) -> Option<Device> {
    let config = Config { device: DeviceId::new(DeviceKind::Gpu, node.location_id), ..Config::default() };
    let sim = match node.device_file() {
        None => SimDevice::create(&config).ok()?,
        Some(path) => {
            // If another process creates it at the same time, opening it succeeds.
            let created = if path.exists() { None } else { SimDevice::create_at(&path, &config).ok() };
            created.or_else(|| SimDevice::open(&path).ok())?
        }
    };
    let spans = Spans { timeline: sim.timeline(), drained: Vec::new(), queues: HashMap::new() };
    Some(Device { node, sim, spans: Mutex::new(spans) })
}

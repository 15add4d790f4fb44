//! Preemption of one stream or queue: the levels that it offers, and its registration with its device. HIP streams and
//! `ROCr` queues share it.

use std::sync::atomic::{AtomicBool, Ordering};

use xsched_core::{Capabilities, DeviceId, HalError, Level, LevelRequest, Order};
use xsched_ipc::kfd_topology::Topology;
use xsched_ipc::report::{Severity, report};

use super::device_queues::{StopMechanism, StreamOnDevice};
use super::kfd;
use super::stall_points::{self, StallWord};

/// How the queues of a device can be stopped, or the reasons why not.
pub(super) enum StopSupport {
    /// By the kernel driver, which has this id for the GPU: levels 2 and 3.
    Kfd(Option<u32>),
    /// At stall points: level 2.
    StallPoints { word: &'static StallWord, why_not_level_3: String },
    /// Not at all: level 1.
    GateOnly { why_not_level_2: String, why_not_level_3: String },
}

impl StopSupport {
    /// Support by the kernel driver, or none.
    pub(super) fn find_kfd(device: DeviceId) -> Self {
        match kfd::check() {
            Ok(()) => Self::Kfd(Topology::read().gpu_of(device)),
            Err(why) => Self::gate_only(why),
        }
    }

    pub(super) fn gate_only(why: String) -> Self {
        Self::GateOnly { why_not_level_2: why.clone(), why_not_level_3: why }
    }

    /// If the kernel driver cannot be used, the stall points whose word `find_word` returns.
    pub(super) fn or_stall_points(
        self,
        find_word: impl FnOnce() -> Result<&'static StallWord, String>,
    ) -> Self {
        match self {
            Self::GateOnly { why_not_level_3, .. } => match find_word() {
                Ok(word) => Self::StallPoints { word, why_not_level_3 },
                Err(why_not_level_2) => Self::GateOnly { why_not_level_2, why_not_level_3 },
            },
            found => found,
        }
    }

    /// Reports once per process why the level is below 3. `api` names what is scheduled.
    pub(super) fn report_once(&self, api: &str) {
        static REPORTED: AtomicBool = AtomicBool::new(false);
        let (level, why) = match self {
            Self::Kfd(_) => return,
            Self::StallPoints { why_not_level_3, .. } => (2, why_not_level_3),
            Self::GateOnly { why_not_level_3, .. } => (1, why_not_level_3),
        };
        if !REPORTED.swap(true, Ordering::Relaxed) {
            report(Severity::Warning, format_args!("{api} is scheduled at level {level}: {why}"));
        }
    }

    fn mechanism(&self) -> Option<StopMechanism> {
        match self {
            Self::Kfd(gpu) => Some(StopMechanism::Kfd(*gpu)),
            Self::StallPoints { word, .. } => Some(StopMechanism::StallPoints(vec![word])),
            Self::GateOnly { .. } => None,
        }
    }

    /// The driver's id of a device, also where the driver cannot stop its queues.
    fn gpu(&self, device: DeviceId) -> Option<u32> {
        match self {
            Self::Kfd(gpu) => *gpu,
            _ => Topology::read().gpu_of(device),
        }
    }

    fn capabilities(self, device: DeviceId) -> Capabilities {
        let (deactivate, interrupt) = match self {
            Self::Kfd(_) => (Ok(kfd::COST), Ok(kfd::COST)),
            Self::StallPoints { why_not_level_3, .. } => (Ok(stall_points::COST), Err(why_not_level_3)),
            Self::GateOnly { why_not_level_2, why_not_level_3 } => {
                (Err(why_not_level_2), Err(why_not_level_3))
            }
        };
        Capabilities::block_only(format!("device {device}"), "")
            .with_deactivate(deactivate)
            .with_interrupt(interrupt)
    }
}

/// See the head of this file.
pub(super) struct Preemption {
    device: DeviceId,
    /// The driver's id of the device; none if the driver does not list it.
    gpu: Option<u32>,
    capabilities: Capabilities,
    /// None at level 1.
    on_device: Option<StreamOnDevice>,
}

impl Preemption {
    /// Registers a stream with its device.
    pub(super) fn register(device: DeviceId, mut support: StopSupport) -> Self {
        let registered = support.mechanism().map(|mechanism| StreamOnDevice::register(device, mechanism));
        let on_device = registered.transpose().unwrap_or_else(|why| {
            support = StopSupport::gate_only(why);
            None
        });
        let gpu = support.gpu(device);
        Self { device, gpu, capabilities: support.capabilities(device), on_device }
    }

    pub(super) fn device(&self) -> DeviceId {
        self.device
    }

    pub(super) fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Whether the device has work of this process. The streams of a process share its queues.
    pub(super) fn query_busy(&self) -> Option<bool> {
        kfd::has_pending_packets(self.gpu)
    }

    pub(super) fn error(&self, what: &'static str, why: impl Into<String>) -> HalError {
        HalError::Driver { device: self.capabilities.device().to_owned(), what, why: why.into() }
    }

    pub(super) fn preempt(&self, level: Level) -> Result<(), HalError> {
        self.capabilities.negotiate(LevelRequest::Exactly(level))?;
        let stopped = self.on_device.as_ref().map_or(Ok(()), |stream| stream.set_preempted(true));
        stopped.map_err(|why| self.error("stopping the process's queues", why))
    }

    pub(super) fn restore(&self) -> Result<(), HalError> {
        let resumed = self.on_device.as_ref().map_or(Ok(()), |stream| stream.set_preempted(false));
        resumed.map_err(|why| self.error("resuming the process's queues", why))
    }

    pub(super) fn set_has_work(&self, has_work: bool) {
        if let Some(stream) = &self.on_device {
            stream.set_has_work(has_work);
        }
    }

    /// Work was launched on the stream, so it has a queue.
    pub(super) fn set_launched(&self) {
        if let Some(stream) = &self.on_device {
            stream.set_launched();
        }
    }

    pub(super) fn set_order(&self, order: Order) {
        if let Some(stream) = &self.on_device {
            stream.set_order(order);
        }
    }

    /// For a stream that is destroyed.
    pub(super) fn unregister(&self) {
        if let Some(stream) = &self.on_device {
            stream.unregister();
        }
    }
}

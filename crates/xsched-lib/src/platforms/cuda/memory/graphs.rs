//! Memory of graphs: the driver allocates it when a graph with allocation nodes is launched, and keeps it until it is trimmed.

use std::sync::atomic::{AtomicBool, Ordering};

use xsched_interpose::run_isolated;
use xsched_ipc::page::Staying;

use super::reserves::{self, Holder};
use super::{Device, swap};
use crate::platforms::cuda::vendor::Code;

/// A graph with an allocation node exists. Most programs have none, and launch their graphs without asking the driver.
static HAS_ALLOCATIONS: AtomicBool = AtomicBool::new(false);

/// Calls `real`, which adds an allocation node to a graph.
pub(in super::super) fn add_allocation(real: impl FnOnce() -> Code) -> Code {
    HAS_ALLOCATIONS.store(true, Ordering::Release);
    swap::stays(Staying::Graphs);
    real()
}

/// Calls `real`, which launches a graph.
pub(in super::super) fn launch(real: impl FnOnce() -> Code) -> Code {
    let code = real();
    if HAS_ALLOCATIONS.load(Ordering::Relaxed) {
        run_isolated(|| {
            if let Some(device) = Device::current() {
                reserves::count(Holder::Graphs(device.ordinal), device.id, None);
            }
        });
    }
    code
}

//! The conformance suite of xsched-core, on devices with all preemption levels and with fewer.

use std::sync::Arc;
use std::time::Duration;

use xsched_core::conformance::Subject;
use xsched_sim::{Config, SimDevice, SimQueue};

/// A separate device for each check.
struct Simulated(SimDevice);

impl Simulated {
    fn new(config: &Config) -> Self {
        Self(SimDevice::create(config).expect("creating a device in memory failed"))
    }
}

impl Subject for Simulated {
    type Queue = SimQueue;

    fn queue(&self) -> Arc<SimQueue> {
        Arc::new(self.0.queue().expect("opening a queue failed"))
    }

    fn launch(&self, queue: &SimQueue, length: Duration) {
        queue.launch(length).expect("launching failed");
    }

    fn finished(&self, queue: &SimQueue) -> u64 {
        queue.finished().expect("reading the count failed")
    }
}

mod all_levels {
    use super::*;
    xsched_core::conformance!(Simulated::new(&Config::default()));
}

mod without_interrupt {
    use super::*;
    xsched_core::conformance!(Simulated::new(&Config { interrupt: None, ..Config::default() }));
}

mod without_preemption {
    use super::*;
    xsched_core::conformance!(Simulated::new(&Config {
        deactivate: None,
        interrupt: None,
        ..Config::default()
    }));
}

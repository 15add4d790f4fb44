//! The suite that every backend passes, on devices with all levels and with fewer.

use std::sync::Arc;
use std::time::Duration;

use xsched_core::conformance::Subject;
use xsched_sim::{Config, SimDevice, SimQueue};

/// A device of its own for each check.
struct Simulated(SimDevice);

impl Simulated {
    fn new(config: &Config) -> Self {
        Self(SimDevice::create(config).expect("a device in memory can be made"))
    }
}

impl Subject for Simulated {
    type Queue = SimQueue;

    fn queue(&self) -> Arc<SimQueue> {
        Arc::new(self.0.queue().expect("the device has queues left"))
    }

    fn launch(&self, queue: &SimQueue, length: Duration) {
        queue.launch(length).expect("an attached process may launch");
    }

    fn finished(&self, queue: &SimQueue) -> u64 {
        queue.finished().expect("an attached process may look")
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

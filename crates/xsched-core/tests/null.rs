//! The null device passes the suite, which shows that the suite requires no optional feature.
#![cfg(not(loom))]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use xsched_core::NullQueue;
use xsched_core::conformance::Subject;

/// Counts launches: on this device a command completes as soon as it is launched.
#[derive(Default)]
struct Null {
    launched: Mutex<HashMap<usize, u64>>,
}

/// Identifies a queue by its address.
fn address(queue: &NullQueue) -> usize {
    std::ptr::from_ref(queue).addr()
}

impl Subject for Null {
    type Queue = NullQueue;

    fn queue(&self) -> Arc<NullQueue> {
        let queue = Arc::default();
        // The address may be that of an earlier queue.
        self.launched.lock().unwrap().insert(address(&queue), 0);
        queue
    }

    fn launch(&self, queue: &NullQueue, _duration: Duration) {
        *self.launched.lock().unwrap().entry(address(queue)).or_default() += 1;
    }

    fn finished(&self, queue: &NullQueue) -> u64 {
        self.launched.lock().unwrap().get(&address(queue)).copied().unwrap_or(0)
    }
}

xsched_core::conformance!(Null::default());

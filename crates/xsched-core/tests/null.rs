//! The do-nothing backend passes the suite, and so shows that the suite asks nothing that only some devices have.
#![cfg(not(loom))]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use xsched_core::NullQueue;
use xsched_core::conformance::Subject;

/// Counts launches, for on this device a command is finished the moment it is launched.
#[derive(Default)]
struct Null {
    launched: Mutex<HashMap<usize, u64>>,
}

/// Stands for the queue: they are told apart by where they lie.
fn address(queue: &NullQueue) -> usize {
    std::ptr::from_ref(queue).addr()
}

impl Subject for Null {
    type Queue = NullQueue;

    fn queue(&self) -> Arc<NullQueue> {
        let queue = Arc::default();
        // It may lie where an earlier one was.
        self.launched.lock().unwrap().insert(address(&queue), 0);
        queue
    }

    fn launch(&self, queue: &NullQueue, _length: Duration) {
        *self.launched.lock().unwrap().entry(address(queue)).or_default() += 1;
    }

    fn finished(&self, queue: &NullQueue) -> u64 {
        self.launched.lock().unwrap().get(&address(queue)).copied().unwrap_or(0)
    }
}

xsched_core::conformance!(Null::default());

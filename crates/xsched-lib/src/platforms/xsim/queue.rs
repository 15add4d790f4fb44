//! A queue of the simulated device as a hardware queue of the core.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use xsched_core::{
    Capabilities, DeviceId, HalError, HwQueue, Level, LevelCost, LevelRequest, Marker, Nanos, Progress,
};
use xsched_interpose::RevocableHandle;

use super::vendor::{self, Code, Queue};
use crate::loader::Function;
use crate::tracked_queue::VendorQueue;

/// The longest wait with the vendor's handle in use. A thread that destroys the queue blocks no longer than this.
const MAX_HANDLE_USE: Nanos = Nanos::from_millis(50);

/// A queue of the program that is scheduled.
pub(crate) struct XsimQueue {
    handle: RevocableHandle<Queue>,
    device: DeviceId,
    capabilities: Capabilities,
    /// The progress when it was last read.
    reached: Mutex<Progress>,
}

impl XsimQueue {
    /// None if the vendor rejects the queue.
    pub(crate) fn new(queue: Queue) -> Option<Self> {
        let (mut device, mut costs) = (0, [0; 4]);
        // SAFETY: the types are those of `xsim.h`; both variables have room for the results. The vendor rejects an invalid
        // queue.
        let known = unsafe {
            vendor::DEVICE.get()?(queue, &raw mut device) == vendor::SUCCESS
                && vendor::LEVELS.get()?(queue, costs.as_mut_ptr()) == vendor::SUCCESS
        };
        let device = known.then_some(DeviceId(device))?;
        let name = format!("simulated device {device}");
        let cost = |preempt, restore| match (preempt, restore) {
            (u64::MAX, _) => Err("the simulated device was configured without it".to_owned()),
            (preempt, restore) => Ok(LevelCost { preempt: Nanos(preempt), restore: Nanos(restore) }),
        };
        let capabilities = Capabilities::block_only(name, "")
            .with_deactivate(cost(costs[0], costs[1]))
            .with_interrupt(cost(costs[2], costs[3]));
        let handle = RevocableHandle::new(queue);
        Some(Self { handle, device, capabilities, reached: Mutex::default() })
    }

    /// Runs `work` with a function of the vendor and the queue.
    fn call<F: Copy>(
        &self,
        what: &'static str,
        function: &Function<F>,
        work: impl FnOnce(F, Queue) -> Code,
    ) -> Result<Code, HalError> {
        let error =
            |why: String| HalError::Driver { device: self.capabilities.device().to_owned(), what, why };
        let function = function.get().ok_or_else(|| error("the library lacks the function".to_owned()))?;
        match self.handle.with(|queue| work(function, queue)) {
            None => Err(error("the queue was destroyed".to_owned())),
            Some(code @ (vendor::SUCCESS | vendor::NOT_READY)) => Ok(code),
            Some(code) => Err(error(format!("error {code}"))),
        }
    }
}

impl VendorQueue for XsimQueue {
    fn revoke(&self) {
        self.handle.revoke();
    }
}

impl HwQueue for XsimQueue {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mark(&self) -> Result<Marker, HalError> {
        let mut marker = 0;
        // SAFETY: `call` makes sure that the queue exists; `marker` has room for a number.
        self.call("placing a marker", &vendor::MARK, |mark, queue| unsafe { mark(queue, &raw mut marker) })?;
        Ok(marker)
    }

    fn progress(&self) -> Progress {
        let (mut marker, mut at) = (0, 0);
        // SAFETY: as in `mark`, for two numbers.
        let result = self.call("reading the progress", &vendor::PROGRESS, |progress, queue| unsafe {
            progress(queue, &raw mut marker, &raw mut at)
        });
        let mut reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        if result.is_ok() && marker > reached.marker {
            *reached = Progress { marker, at: Some(Nanos(at)) };
        }
        *reached
    }

    fn wait(&self, marker: Marker, timeout: Duration) -> Result<bool, HalError> {
        let deadline = Nanos::now() + timeout.into();
        loop {
            if self.progress().marker >= marker {
                return Ok(true);
            }
            let left = deadline - Nanos::now();
            if left == Nanos::ZERO {
                return Ok(false);
            }
            self.call("waiting for a marker", &vendor::WAIT, |wait, queue| {
                // SAFETY: as in `mark`.
                unsafe { wait(queue, marker, left.min(MAX_HANDLE_USE).0) }
            })?;
        }
    }

    fn query_busy(&self) -> Option<bool> {
        // SAFETY: as in `mark`.
        let code = self.call("querying a queue", &vendor::QUERY, |query, queue| unsafe { query(queue) });
        code.ok().map(|code| code == vendor::NOT_READY)
    }

    fn synchronize(&self) -> Result<(), HalError> {
        // SAFETY: as in `mark`.
        self.call("synchronizing", &vendor::SYNCHRONIZE, |synchronize, queue| unsafe { synchronize(queue) })
            .map(drop)
    }

    fn preempt(&self, level: Level) -> Result<(), HalError> {
        self.capabilities.negotiate(LevelRequest::Exactly(level))?;
        // SAFETY: as in `mark`.
        self.call("preempting a queue", &vendor::PREEMPT, |preempt, queue| unsafe {
            preempt(queue, level.number().into())
        })
        .map(drop)
    }

    fn restore(&self) -> Result<(), HalError> {
        // SAFETY: as in `mark`.
        self.call("restoring a queue", &vendor::RESTORE, |restore, queue| unsafe { restore(queue) }).map(drop)
    }
}

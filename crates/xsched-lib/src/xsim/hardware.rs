//! A queue of the simulated device, through its vendor's functions.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use xsched_core::{
    Capabilities, DeviceId, HalError, HwQueue, Level, LevelCost, LevelRequest, Marker, Nanos, Progress,
};
use xsched_interpose::Lease;

use super::vendor::{self, Code, Queue};
use crate::loader::Function;
use crate::station::Leased;

/// How long the vendor's handle is used without a pause: who destroys the queue waits no longer.
const SLICE: Nanos = Nanos::from_millis(50);
/// How long to wait before looking again for a marker that nobody has placed yet.
const NOT_PLACED: Duration = Duration::from_micros(100);

/// See the head of this file.
pub(crate) struct XsimQueue {
    lease: Lease<Queue>,
    device: DeviceId,
    capabilities: Capabilities,
    marks: Mutex<Marks>,
}

/// The vendor numbers markers itself, together with events: which of its numbers stands for which of ours.
#[derive(Default)]
struct Marks {
    placed: VecDeque<(Marker, u64)>,
    reached: Progress,
}

impl XsimQueue {
    /// None if the vendor does not know the queue, or cannot be asked.
    pub(crate) fn new(queue: Queue) -> Option<Self> {
        let (mut device, mut costs) = (0, [0; 4]);
        // SAFETY: the types are those of `xsim.h`; both places are large enough. A queue the program made up is as
        // invalid to us as to the function it was given to.
        let known = unsafe {
            vendor::DEVICE.get()?(queue, &raw mut device) == vendor::SUCCESS
                && vendor::LEVELS.get()?(queue, costs.as_mut_ptr()) == vendor::SUCCESS
        };
        let device = known.then_some(DeviceId(device))?;
        let name = format!("simulated device {device}");
        let cost = |preempt, restore| match (preempt, restore) {
            (u64::MAX, _) => Err("it was made without".to_owned()),
            (preempt, restore) => Ok(LevelCost { preempt: Nanos(preempt), restore: Nanos(restore) }),
        };
        let capabilities = Capabilities::block_only(name, "")
            .with_deactivate(cost(costs[0], costs[1]))
            .with_interrupt(cost(costs[2], costs[3]));
        let lease = Lease::new(queue);
        Some(Self { lease, device, capabilities, marks: Mutex::default() })
    }

    /// Calls a function of the vendor's. `work` gets it and the queue.
    fn call<F: Copy>(
        &self,
        what: &'static str,
        function: &Function<F>,
        work: impl FnOnce(F, Queue) -> Code,
    ) -> Result<Code, HalError> {
        let failed =
            |why: String| HalError::Driver { device: self.capabilities.device().to_owned(), what, why };
        let function = function.get().ok_or_else(|| failed("the library lacks it".to_owned()))?;
        match self.lease.with(|queue| work(function, queue)) {
            None => Err(failed("the queue was destroyed".to_owned())),
            Some(code @ (vendor::SUCCESS | vendor::NOT_READY)) => Ok(code),
            Some(code) => Err(failed(format!("error {code}"))),
        }
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leased for XsimQueue {
    fn end(&self) {
        self.lease.end();
    }
}

impl HwQueue for XsimQueue {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mark(&self, marker: Marker) -> Result<(), HalError> {
        let mut marks = self.marks();
        let mut number = 0;
        // SAFETY: the lease makes sure that the queue exists; `number` has room for a number.
        self.call("placing a marker", &vendor::MARK, |mark, queue| unsafe { mark(queue, &raw mut number) })?;
        marks.placed.push_back((marker, number));
        Ok(())
    }

    fn progress(&self) -> Progress {
        let (mut number, mut at) = (0, 0);
        // SAFETY: as in `mark`, for two numbers.
        let told = self.call("asking how far the queue is", &vendor::PROGRESS, |progress, queue| unsafe {
            progress(queue, &raw mut number, &raw mut at)
        });
        let mut marks = self.marks();
        if told.is_ok() {
            let count = marks.placed.iter().take_while(|(_, placed)| *placed <= number).count();
            let last = marks.placed.drain(..count).next_back();
            if let Some((marker, _)) = last {
                marks.reached = Progress { marker, at: Some(Nanos(at)) };
            }
        }
        marks.reached
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
            let placed = self.marks().placed.iter().find(|(placed, _)| *placed >= marker).copied();
            let Some((_, number)) = placed else {
                std::thread::sleep(NOT_PLACED.min(left.into()));
                continue;
            };
            self.call("waiting for a marker", &vendor::WAIT, |wait, queue| {
                // SAFETY: as in `mark`.
                unsafe { wait(queue, number, left.min(SLICE).0) }
            })?;
        }
    }

    fn synchronize(&self) -> Result<(), HalError> {
        // SAFETY: as in `mark`.
        self.call("synchronizing", &vendor::SYNCHRONIZE, |synchronize, queue| unsafe { synchronize(queue) })
            .map(drop)
    }

    fn preempt(&self, level: Level) -> Result<(), HalError> {
        self.capabilities.negotiate(LevelRequest::Exactly(level))?;
        // SAFETY: as in `mark`.
        self.call("stopping a queue", &vendor::PREEMPT, |preempt, queue| unsafe {
            preempt(queue, level.number().into())
        })
        .map(drop)
    }

    fn restore(&self) -> Result<(), HalError> {
        // SAFETY: as in `mark`.
        self.call("restoring a queue", &vendor::RESTORE, |restore, queue| unsafe { restore(queue) }).map(drop)
    }
}

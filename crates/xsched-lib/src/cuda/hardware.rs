//! A CUDA stream, through the driver's functions. Markers are events that are polled.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use xsched_core::{
    Capabilities, DeviceId, DeviceKind, HalError, HwQueue, Level, LevelRequest, Marker, Nanos, Order,
    Progress,
};
use xsched_interpose::Lease;

use super::rm;
use super::vendor::{self, Code, Context, Event, Stream};
use crate::loader::Function;
use crate::station::Leased;

/// How long to wait before asking an event again.
const POLL: Duration = Duration::from_micros(50);
/// `CU_EVENT_DISABLE_TIMING`: the cheapest kind.
const PLAIN_EVENT: u32 = 2;

/// Streams being captured, in the whole program. While there are any, nothing of ours is put into a stream.
pub(crate) static CAPTURES: AtomicUsize = AtomicUsize::new(0);

/// See the head of this file.
pub(crate) struct CudaStream {
    lease: Lease<Handle>,
    device: DeviceId,
    capabilities: Capabilities,
    marks: Mutex<Marks>,
}

#[derive(Clone, Copy)]
struct Handle {
    stream: Stream,
    context: Context,
}

// SAFETY: the driver's functions may be called from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

#[derive(Default)]
struct Marks {
    placed: VecDeque<(Marker, EventHandle)>,
    unused: Vec<EventHandle>,
    reached: Progress,
}

#[derive(Clone, Copy)]
struct EventHandle(Event);

// SAFETY: as for `Handle`.
unsafe impl Send for EventHandle {}

impl CudaStream {
    /// A stream of the context that is current on this thread. None if the driver cannot be asked.
    pub(crate) fn new(stream: Stream, context: Context) -> Option<Self> {
        let mut device = 0;
        // SAFETY: the place has room for the answer; a context is current, the caller has seen it.
        if unsafe { vendor::CTX_GET_DEVICE.get()?(&raw mut device) } != vendor::SUCCESS {
            return None;
        }
        let attribute = |which: c_int| {
            let mut value = 0;
            // SAFETY: as above.
            let code = unsafe { vendor::DEVICE_ATTRIBUTE.get()?(&raw mut value, which, device) };
            u32::try_from(value).ok().filter(|_| code == vendor::SUCCESS)
        };
        // Domain, bus and device number on the PCI bus.
        let (domain, bus, slot) = (attribute(50)?, attribute(33)?, attribute(34)?);
        let device = DeviceId::new(DeviceKind::Gpu, (domain << 16) | (bus << 8) | (slot << 3));
        let capabilities =
            Capabilities::block_only(format!("device {device}"), "stall points are not placed yet")
                .with_interrupt(rm::capability());
        let lease = Lease::new(Handle { stream, context });
        Some(Self { lease, device, capabilities, marks: Mutex::default() })
    }

    fn failed(&self, what: &'static str, why: String) -> HalError {
        HalError::Driver { device: self.capabilities.device().to_owned(), what, why }
    }

    /// Does something with the stream while its context is current on this thread.
    fn with<F: Copy, R>(
        &self,
        what: &'static str,
        function: &Function<F>,
        work: impl FnOnce(F, Stream) -> Result<R, Code>,
    ) -> Result<R, HalError> {
        let needed = function.get().zip(vendor::CTX_PUSH.get()).zip(vendor::CTX_POP.get());
        let ((function, push), pop) =
            needed.ok_or_else(|| self.failed(what, "the driver lacks it".to_owned()))?;
        let done = self.lease.with(|Handle { stream, context }| {
            // SAFETY: the lease makes sure that the stream exists, and with it its context.
            let code = unsafe { push(context) };
            if code != vendor::SUCCESS {
                return Err(code);
            }
            let result = work(function, stream);
            let mut popped = std::ptr::null_mut();
            // SAFETY: pushed above; the place has room for a handle.
            unsafe { pop(&raw mut popped) };
            result
        });
        match done {
            None => Err(self.failed(what, "the stream was destroyed".to_owned())),
            Some(result) => result.map_err(|code| self.failed(what, format!("error {code}"))),
        }
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leased for CudaStream {
    fn end(&self) {
        self.lease.end();
    }
}

fn checked(code: Code) -> Result<(), Code> {
    if code == vendor::SUCCESS { Ok(()) } else { Err(code) }
}

impl HwQueue for CudaStream {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mark(&self, marker: Marker) -> Result<(), HalError> {
        const WHAT: &str = "placing a marker";
        if CAPTURES.load(Ordering::SeqCst) != 0 {
            return Err(self.failed(WHAT, "a stream is being captured".to_owned()));
        }
        let mut marks = self.marks();
        let event = match marks.unused.pop() {
            Some(event) => event,
            None => self.with(WHAT, &vendor::EVENT_CREATE, |create, _| {
                let mut event = std::ptr::null_mut();
                // SAFETY: the place has room for a handle, and a context is current.
                checked(unsafe { create(&raw mut event, PLAIN_EVENT) })?;
                Ok(EventHandle(event))
            })?,
        };
        let recorded = self.with(WHAT, &vendor::EVENT_RECORD, |record, stream| {
            // SAFETY: both belong to the context that is current.
            checked(unsafe { record(event.0, stream) })
        });
        match recorded {
            Ok(()) => marks.placed.push_back((marker, event)),
            Err(_) => marks.unused.push(event),
        }
        recorded
    }

    fn progress(&self) -> Progress {
        let mut marks = self.marks();
        while let Some((marker, event)) = marks.placed.front().copied() {
            let reached = self.with("asking a marker", &vendor::EVENT_QUERY, |query, _| {
                // SAFETY: an event that we made and never destroy.
                match unsafe { query(event.0) } {
                    vendor::SUCCESS => Ok(true),
                    vendor::NOT_READY => Ok(false),
                    code => Err(code),
                }
            });
            if !reached.unwrap_or(false) {
                break;
            }
            marks.placed.pop_front();
            marks.unused.push(event);
            marks.reached = Progress { marker, at: None };
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
            std::thread::sleep(POLL.min(left.into()));
        }
    }

    fn synchronize(&self) -> Result<(), HalError> {
        self.with("synchronizing", &vendor::STREAM_SYNCHRONIZE, |synchronize, stream| {
            // SAFETY: the stream belongs to the context that is current.
            checked(unsafe { synchronize(stream) })
        })
    }

    /// Nothing is left to do here: the slices set in `order_changed` make a running kernel give way to more important
    /// work, and the gate keeps new ones out. That is less than the core's contract asks for: a kernel that nobody
    /// competes with runs on to its end. A full stop needs the channels themselves to be disabled, which is not done yet.
    fn preempt(&self, level: Level) -> Result<(), HalError> {
        self.capabilities.negotiate(LevelRequest::Exactly(level))?;
        Ok(())
    }

    fn restore(&self) -> Result<(), HalError> {
        Ok(())
    }

    fn order_changed(&self, order: Order) {
        rm::follow(order);
    }
}

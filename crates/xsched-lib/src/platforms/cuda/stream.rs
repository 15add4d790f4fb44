//! A CUDA stream as a hardware queue of the core.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;

use xsched_core::{
    Capabilities, DeviceId, HalError, HoldPoint, HwQueue, Level, LevelCost, LevelRequest, Marker, Nanos,
    Order, Progress,
};
use xsched_interpose::RevocableHandle;
use xsched_ipc::report::{Severity, report};

use super::capture::unless_capturing;
use super::contexts;
use super::device::{self, StreamOnDevice};
use super::markers::{StallReason, StreamMarkers};
use super::resource_manager;
use super::vendor::{self, Code, Context, PER_THREAD, Stream, checked};
use crate::tracked_queue::VendorQueue;

/// A stream of the program that is scheduled.
pub(crate) struct CudaStream {
    handle: RevocableHandle<Handle>,
    context: usize,
    device: DeviceId,
    capabilities: Capabilities,
    markers: Arc<StreamMarkers>,
    on_device: StreamOnDevice,
    /// The thread whose default stream this is: only that thread can name the stream.
    owner_thread: Option<ThreadId>,
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

/// The GPU of the calling thread's current context.
pub(crate) fn current_device() -> Option<DeviceId> {
    let mut ordinal = 0;
    // SAFETY: `ordinal` has room for the result.
    let code = unsafe { vendor::CTX_GET_DEVICE.get()?(&raw mut ordinal) };
    if code == vendor::SUCCESS { device_with_ordinal(ordinal) } else { None }
}

/// The GPU that has this ordinal in this process. Its PCI address identifies it, because `CUDA_VISIBLE_DEVICES` gives the
/// same GPU different ordinals in different processes.
pub(crate) fn device_with_ordinal(ordinal: c_int) -> Option<DeviceId> {
    /// `CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID`, `_PCI_BUS_ID` and `_PCI_DEVICE_ID`.
    const PCI_DOMAIN: c_int = 50;
    const PCI_BUS: c_int = 33;
    const PCI_DEVICE: c_int = 34;
    let attribute = |number: c_int| {
        let mut value = 0;
        // SAFETY: `value` has room for the result.
        let code = unsafe { vendor::DEVICE_ATTRIBUTE.get()?(&raw mut value, number, ordinal) };
        u32::try_from(value).ok().filter(|_| code == vendor::SUCCESS)
    };
    Some(resource_manager::pci_device(attribute(PCI_DOMAIN)?, attribute(PCI_BUS)?, attribute(PCI_DEVICE)?))
}

/// Reports the preemption level once per process, and why no higher level is available.
fn report_level_once(capabilities: &Capabilities) {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if REPORTED.swap(true, Ordering::Relaxed) {
        return;
    }
    let highest = capabilities.highest();
    let missing: Vec<_> = Level::ALL
        .into_iter()
        .filter(|level| *level > highest)
        .filter_map(|level| {
            Some(format!("level {} is not available: {}", level.number(), capabilities.cost(level).err()?))
        })
        .collect();
    let severity = if missing.is_empty() { Severity::Info } else { Severity::Warning };
    let line = std::iter::once(format!("CUDA is scheduled at level {}", highest.number())).chain(missing);
    report(severity, format_args!("{}", line.collect::<Vec<_>>().join("; ")));
}

/// Runs `work` while a context is current on this thread.
pub(crate) fn with_current<R>(context: Context, work: impl FnOnce() -> R) -> Option<R> {
    let (push, pop) = vendor::CTX_PUSH.get().zip(vendor::CTX_POP.get())?;
    // SAFETY: the caller has the context from the driver.
    if unsafe { push(context) } != vendor::SUCCESS {
        return None;
    }
    let result = work();
    let mut popped = std::ptr::null_mut();
    // SAFETY: pushed above; `popped` has room for a handle.
    unsafe { pop(&raw mut popped) };
    Some(result)
}

impl CudaStream {
    /// A stream of the calling thread's current context. None if the driver reports no device for it, or while a stream is
    /// captured.
    pub(crate) fn new(stream: Stream, context: Context) -> Option<Self> {
        let device = current_device()?;
        contexts::record(context, device);
        let (markers, stop_points) = unless_capturing(|| StreamMarkers::new(stream, context))?;
        let markers = Arc::new(markers);
        let deactivate = stop_points
            .map(|()| LevelCost { preempt: Nanos::from_micros(500), restore: Nanos::from_micros(10) });
        let capabilities = Capabilities::block_only(format!("device {device}"), "")
            .with_deactivate(deactivate)
            .with_interrupt(device::interrupt_support(device));
        report_level_once(&capabilities);
        Some(Self {
            handle: RevocableHandle::new(Handle { stream, context }),
            context: context.addr(),
            device,
            capabilities,
            on_device: StreamOnDevice::register(device, Arc::clone(&markers)),
            markers,
            owner_thread: (stream.addr() == PER_THREAD).then(|| std::thread::current().id()),
        })
    }

    fn error(&self, what: &'static str, why: String) -> HalError {
        HalError::Driver { device: self.capabilities.device().to_owned(), what, why }
    }

    /// Runs `work` with the stream while the stream's context is current on this thread.
    fn with<R>(
        &self,
        what: &'static str,
        work: impl FnOnce(Stream) -> Result<R, Code>,
    ) -> Result<R, HalError> {
        let functions = vendor::CTX_PUSH.get().zip(vendor::CTX_POP.get());
        let (push, pop) =
            functions.ok_or_else(|| self.error(what, "the driver lacks the function".to_owned()))?;
        let result = self.handle.with(|Handle { stream, context }| {
            // SAFETY: while the handle is held the program cannot destroy the stream, and so not its context.
            checked(unsafe { push(context) })?;
            let result = work(stream);
            let mut popped = std::ptr::null_mut();
            // SAFETY: pushed above; `popped` has room for a handle.
            unsafe { pop(&raw mut popped) };
            result
        });
        match result {
            None => Err(self.error(what, "the stream was destroyed".to_owned())),
            Some(result) => result.map_err(|code| self.error(what, format!("error {code}"))),
        }
    }
}

impl VendorQueue for CudaStream {
    fn revoke(&self) {
        self.handle.revoke();
    }

    fn belongs_to(&self, context: usize) -> bool {
        self.context == context
    }
}

impl HwQueue for CudaStream {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mark(&self) -> Result<Marker, HalError> {
        const WHAT: &str = "placing a marker";
        if self.owner_thread.is_some_and(|owner| owner != std::thread::current().id()) {
            return Err(self.error(WHAT, "the stream is another thread's default stream".to_owned()));
        }
        let placed = unless_capturing(|| self.with(WHAT, |stream| self.markers.place(stream)));
        placed.unwrap_or_else(|| Err(self.error(WHAT, "a stream is being captured".to_owned())))
    }

    fn progress(&self) -> Progress {
        if let Some(progress) = self.markers.progress_without_context() {
            return progress;
        }
        let progress = unless_capturing(|| self.with("querying a marker", |_| Ok(self.markers.progress())));
        progress.and_then(Result::ok).unwrap_or_else(|| self.markers.last_progress())
    }

    fn query_busy(&self) -> Option<bool> {
        if self.owner_thread.is_some_and(|owner| owner != std::thread::current().id()) {
            return None;
        }
        // A query would invalidate a capture.
        let code = unless_capturing(|| {
            self.with("querying a stream", |stream| {
                let query = vendor::STREAM_QUERY.get();
                // SAFETY: the stream belongs to the current context.
                Ok(query.map(|query| unsafe { query(stream) }))
            })
        });
        match code?.ok()?? {
            vendor::SUCCESS => Some(false),
            vendor::NOT_READY => Some(true),
            _ => None,
        }
    }

    fn synchronize(&self) -> Result<(), HalError> {
        const NOT_SUPPORTED: Code = 801;
        self.with("synchronizing", |stream| {
            let synchronize = vendor::STREAM_SYNCHRONIZE.get().ok_or(NOT_SUPPORTED)?;
            // SAFETY: the stream belongs to the current context.
            checked(unsafe { synchronize(stream) })
        })
    }

    fn preempt(&self, level: Level) -> Result<(), HalError> {
        self.capabilities.negotiate(LevelRequest::Exactly(level))?;
        self.markers.set_stall_reason(StallReason::Preempted, true);
        if level == Level::Interrupt
            && let Err(why) = self.on_device.set_preempted(true)
        {
            // The caller does not resume a queue whose preemption failed.
            let _ = self.restore();
            return Err(self.error("disabling the program's channels", why));
        }
        Ok(())
    }

    fn restore(&self) -> Result<(), HalError> {
        self.markers.set_stall_reason(StallReason::Preempted, false);
        let resumed = self.on_device.set_preempted(false);
        resumed.map_err(|why| self.error("enabling the program's channels", why))
    }

    fn set_has_work(&self, has_work: bool) {
        self.markers.set_has_work(has_work);
        if !has_work {
            // If the driver refuses, resuming the stream tries again.
            let _ = self.on_device.became_idle();
        }
    }

    /// Time slices decide which process preempts which. A held stream also stalls at its next stop point: otherwise the GPU
    /// would run it in the gaps between the leader's launches, and the leader would have to preempt it after each.
    fn order_changed(&self, order: Order) {
        self.markers.set_stall_reason(StallReason::Order, order.stops());
        // If the driver refuses, stop points and the gate still enforce the order, and `preempts_by_time_slice` returns false.
        let _ = self.on_device.set_order(order);
    }

    /// A context switch takes 0.2 ms, and launching a large graph about 0.05 ms: triggered early, the switch overlaps the
    /// launch. The trigger is a memory set because that is a kernel; a memory write in the stream does not make the GPU switch.
    fn trigger_context_switch(&self) {
        // Without it the switch begins with the launch itself.
        let _ = unless_capturing(|| {
            self.with("triggering a context switch", |stream| self.markers.trigger_context_switch(stream))
        });
    }

    fn preempts_by_time_slice(&self) -> bool {
        self.on_device.has_time_slice()
    }

    fn accepts_launches_while_stopped(&self) -> bool {
        self.markers.are_stop_points()
    }

    fn can_defer(&self) -> bool {
        self.markers.are_stop_points()
    }

    fn defer(&self, point: HoldPoint) -> Result<(), HalError> {
        const WHAT: &str = "deferring launches";
        if self.owner_thread.is_some_and(|owner| owner != std::thread::current().id()) {
            return Err(self.error(WHAT, "the stream is another thread's default stream".to_owned()));
        }
        let placed = unless_capturing(|| self.with(WHAT, |stream| self.markers.defer(stream, point)));
        placed.unwrap_or_else(|| Err(self.error(WHAT, "a stream is being captured".to_owned())))
    }

    fn release_deferred(&self, point: HoldPoint) {
        self.markers.release_deferred(point);
    }

    fn deferred_progress(&self) -> HoldPoint {
        self.markers.deferred_progress()
    }

    fn can_mark_from_any_thread(&self) -> bool {
        self.owner_thread.is_none()
    }
}

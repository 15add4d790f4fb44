//! A CUDA stream, through the driver's functions.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;

use xsched_core::{
    Capabilities, DeviceId, HalError, HwQueue, Level, LevelCost, LevelRequest, Marker, Nanos, Order, Progress,
};
use xsched_interpose::RevocableHandle;
use xsched_ipc::report::{Severity, report};

use super::capture::unless_capturing;
use super::contexts;
use super::device::{self, Membership};
use super::marks::{Marks, Reason};
use super::rm;
use super::vendor::{self, Code, Context, PER_THREAD, Stream, checked};
use crate::tracked_queue::VendorQueue;

/// See the head of this file.
pub(crate) struct CudaStream {
    lease: RevocableHandle<Handle>,
    context: usize,
    device: DeviceId,
    capabilities: Capabilities,
    marks: Arc<Marks>,
    member: Membership,
    /// The one thread that can name this stream, if it is that thread's default stream.
    only: Option<ThreadId>,
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

/// The GPU of the context that is current on this thread.
pub(crate) fn current_device() -> Option<DeviceId> {
    let mut device = 0;
    // SAFETY: the place has room for the answer.
    let code = unsafe { vendor::CTX_GET_DEVICE.get()?(&raw mut device) };
    if code == vendor::SUCCESS { device_numbered(device) } else { None }
}

/// The GPU that has this number in the program.
pub(crate) fn device_numbered(device: c_int) -> Option<DeviceId> {
    let attribute = |which: c_int| {
        let mut value = 0;
        // SAFETY: the place has room for the answer.
        let code = unsafe { vendor::DEVICE_ATTRIBUTE.get()?(&raw mut value, which, device) };
        u32::try_from(value).ok().filter(|_| code == vendor::SUCCESS)
    };
    // Domain, bus and device number on the PCI bus: the same however the program numbers its GPUs.
    Some(rm::pci(attribute(50)?, attribute(33)?, attribute(34)?))
}

/// One line about how deep programs can be stopped here, and why no deeper.
fn tell_once(capabilities: &Capabilities) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if TOLD.swap(true, Ordering::Relaxed) {
        return;
    }
    let highest = capabilities.highest();
    let missing: Vec<_> = Level::ALL
        .into_iter()
        .filter(|level| *level > highest)
        .filter_map(|level| {
            Some(format!("level {} is not there: {}", level.number(), capabilities.cost(level).err()?))
        })
        .collect();
    let severity = if missing.is_empty() { Severity::Info } else { Severity::Warning };
    let line = std::iter::once(format!("CUDA is scheduled at level {}", highest.number())).chain(missing);
    report(severity, format_args!("{}", line.collect::<Vec<_>>().join("; ")));
}

/// Does something while a context is current on this thread.
pub(crate) fn with_current<R>(context: Context, work: impl FnOnce() -> R) -> Option<R> {
    let (push, pop) = vendor::CTX_PUSH.get().zip(vendor::CTX_POP.get())?;
    // SAFETY: the driver has just named the context.
    if unsafe { push(context) } != vendor::SUCCESS {
        return None;
    }
    let result = work();
    let mut popped = std::ptr::null_mut();
    // SAFETY: pushed above; the place has room for a handle.
    unsafe { pop(&raw mut popped) };
    Some(result)
}

impl CudaStream {
    /// A stream of the context that is current on this thread. None if the driver cannot be asked.
    pub(crate) fn new(stream: Stream, context: Context) -> Option<Self> {
        let device = current_device()?;
        contexts::meet(context, device);
        let (marks, stops) = unless_capturing(|| Marks::new(stream, context))?;
        let marks = Arc::new(marks);
        let stops =
            stops.map(|()| LevelCost { preempt: Nanos::from_micros(500), restore: Nanos::from_micros(10) });
        let capabilities = Capabilities::block_only(format!("device {device}"), "")
            .with_deactivate(stops)
            .with_interrupt(device::interrupts(device));
        tell_once(&capabilities);
        Some(Self {
            lease: RevocableHandle::new(Handle { stream, context }),
            context: context.addr(),
            device,
            capabilities,
            member: Membership::on(device, Arc::clone(&marks)),
            marks,
            only: (stream.addr() == PER_THREAD).then(|| std::thread::current().id()),
        })
    }

    fn failed(&self, what: &'static str, why: String) -> HalError {
        HalError::Driver { device: self.capabilities.device().to_owned(), what, why }
    }

    /// Does something with the stream while its context is current on this thread.
    fn with<R>(
        &self,
        what: &'static str,
        work: impl FnOnce(Stream) -> Result<R, Code>,
    ) -> Result<R, HalError> {
        let needed = vendor::CTX_PUSH.get().zip(vendor::CTX_POP.get());
        let (push, pop) = needed.ok_or_else(|| self.failed(what, "the driver lacks it".to_owned()))?;
        let done = self.lease.with(|Handle { stream, context }| {
            // SAFETY: the lease makes sure that the stream exists, and with it its context.
            checked(unsafe { push(context) })?;
            let result = work(stream);
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
}

impl VendorQueue for CudaStream {
    fn end(&self) {
        self.lease.end();
    }

    fn ends_with(&self, context: usize) -> bool {
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
        if self.only.is_some_and(|only| only != std::thread::current().id()) {
            return Err(self.failed(WHAT, "the stream is another thread's".to_owned()));
        }
        let placed = unless_capturing(|| self.with(WHAT, |stream| self.marks.place(stream)));
        placed.unwrap_or_else(|| Err(self.failed(WHAT, "a stream is being captured".to_owned())))
    }

    fn progress(&self) -> Progress {
        if let Some(reached) = self.marks.reached() {
            return reached;
        }
        let asked = unless_capturing(|| self.with("asking a marker", |_| Ok(self.marks.ask())));
        asked.and_then(Result::ok).unwrap_or_else(|| self.marks.known())
    }

    fn synchronize(&self) -> Result<(), HalError> {
        const MISSING: Code = 801;
        self.with("synchronizing", |stream| {
            let synchronize = vendor::STREAM_SYNCHRONIZE.get().ok_or(MISSING)?;
            // SAFETY: the stream belongs to the context that is current.
            checked(unsafe { synchronize(stream) })
        })
    }

    fn preempt(&self, level: Level) -> Result<(), HalError> {
        self.capabilities.negotiate(LevelRequest::Exactly(level))?;
        self.marks.stand(Reason::Preempted, true);
        if level == Level::Interrupt
            && let Err(why) = self.member.stop(true)
        {
            // Refused, and so not to be taken back by anybody later.
            let _ = self.restore();
            return Err(self.failed("stopping the program's channels", why));
        }
        Ok(())
    }

    fn restore(&self) -> Result<(), HalError> {
        self.marks.stand(Reason::Preempted, false);
        self.member.stop(false).map_err(|why| self.failed("letting the program's channels go on", why))
    }

    fn set_has_work(&self, has_work: bool) {
        self.marks.set_has_work(has_work);
        if !has_work {
            // A driver that refuses is asked again when the stream is let go on.
            let _ = self.member.rest();
        }
    }

    /// The slices decide who takes the GPU from whom; a stream that holds also stands at its next stop point, so that the
    /// gaps between the launches of a more important program are not filled with what it would have to interrupt again.
    fn order_changed(&self, order: Order) {
        self.marks.stand(Reason::Order, order.stops());
        // A driver that refuses leaves it at stop points and the gate.
        let _ = self.member.follow(order);
    }

    /// Changing over takes the GPU 0.2 ms, and a large graph some 0.05 ms to get there. A word that the stream writes does not
    /// make the GPU change over, as a memory set does, which is a kernel.
    fn trigger_context_switch(&self) {
        // Whoever is refused comes a little later.
        let _ = unless_capturing(|| {
            self.with("turning to the program", |stream| self.marks.trigger_context_switch(stream))
        });
    }

    fn preempts_by_time_slice(&self) -> bool {
        true
    }

    fn accepts_launches_while_stopped(&self) -> bool {
        self.marks.are_stop_points()
    }

    fn can_mark_from_any_thread(&self) -> bool {
        self.only.is_none()
    }
}

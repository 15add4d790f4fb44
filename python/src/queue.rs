//! Control of one stream.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::exception;
use crate::hints::HintArguments;
use crate::library::{
    Act, ActWith, Code, Configure, Create, Find, Handle, Laxity, Level, Library, Query, Wrap, library,
};

const SYNC_HW_QUEUE: i64 = 1;
const DROP_COMMANDS: i64 = 1;
/// The levels to try if none is requested: the highest that the device supports.
const LEVELS: [i64; 3] = [3, 2, 1];
const NOT_SUPPORTED: Code = 5;

/// A platform: its name in Python, and the functions that create and find its hardware queues.
struct Platform {
    name: &'static str,
    create: &'static [&'static CStr],
    get: &'static CStr,
}

const PLATFORMS: &[Platform] = &[
    Platform { name: "cuda", create: &[c"CudaQueueCreate"], get: c"CudaQueueGet" },
    Platform { name: "hip", create: &[c"HipQueueCreate"], get: c"HipQueueGet" },
    Platform { name: "opencl", create: &[c"OclQueueCreate", c"OpenclQueueCreate"], get: c"OclQueueGet" },
    Platform { name: "xsim", create: &[c"XsimQueueCreate"], get: c"XsimQueueGet" },
];

/// The functions that are called often, looked up once.
struct Functions {
    suspend: ActWith,
    resume: ActWith,
}

/// A stream under control: what is launched on it can be suspended and resumed.
///
/// The stream is a torch.cuda.Stream, a pyopencl.CommandQueue, an object with `__cuda_stream__`, or a handle as a number
/// together with its platform: "cuda", "hip", "opencl" or "xsim". Control ends with `close()`; dropping the object only
/// resumes the stream if it is suspended.
#[pyclass(frozen, module = "xsched")]
pub(crate) struct Queue {
    /// 0 once it is closed.
    handle: AtomicU64,
    hardware: Handle,
    /// Created by this object, which therefore destroys it.
    is_created: bool,
    suspended: AtomicBool,
    functions: Functions,
    library: &'static Library,
    /// Keeps the vendor's stream alive while it is under control.
    _stream: Py<PyAny>,
}

/// Calls a function of the C interface without the GIL; an error code becomes an exception.
macro_rules! call {
    ($py:expr, $library:expr, $name:literal, $function:expr $(, $argument:expr)*) => {{
        let function = $function;
        // SAFETY: a function of the C interface, called with the arguments that its header declares.
        let code: Code = $py.detach(|| unsafe { function($($argument),*) });
        check($py, $library, $name, code)
    }};
}

fn check(py: Python<'_>, library: &Library, what: &str, code: Code) -> PyResult<()> {
    let (class, default_message) = match code {
        0 => return Ok(()),
        1 => ("Error", "the device or its driver failed"),
        2 => ("OutOfRange", "a value is out of range, or a handle is invalid"),
        3 => ("Error", "no such object"),
        4 => ("NotAllowed", "the operation is not allowed"),
        NOT_SUPPORTED => ("NotSupported", "the device does not support the operation"),
        6 => ("Error", "the scheduler sent an invalid reply"),
        _ => ("Error", "unknown error"),
    };
    let message = library.last_error().unwrap_or_else(|| default_message.to_owned());
    Err(exception(py, class, &format!("{what}: {message} (XResult {code})")))
}

#[pymethods]
impl Queue {
    #[new]
    #[pyo3(signature = (stream, *, platform=None, level=None))]
    fn new(stream: &Bound<'_, PyAny>, platform: Option<&str>, level: Option<i64>) -> PyResult<Self> {
        let py = stream.py();
        if level.is_some_and(|level| !(1..=3).contains(&level)) {
            let message = format!("level {} is out of range: allowed is 1 to 3", level.unwrap_or(0));
            return Err(exception(py, "OutOfRange", &message));
        }
        let (platform, raw) = vendor_handle(stream, platform)?;
        let library = library(py)?;
        if !library.preloaded {
            warn_not_preloaded(py)?;
        }
        // SAFETY: the types of these functions in xsched/xqueue.h.
        let functions = unsafe {
            Functions {
                suspend: library.function(py, c"XQueueSuspend")?,
                resume: library.function(py, c"XQueueResume")?,
            }
        };
        let found = existing(py, library, platform, raw);
        let is_created = found.is_none();
        let (queue, hardware) = found.map_or_else(|| create(py, library, platform, raw, level), Ok)?;
        let queue = Self {
            handle: AtomicU64::new(queue),
            hardware,
            is_created,
            suspended: AtomicBool::new(false),
            functions,
            library,
            _stream: stream.clone().unbind(),
        };
        if let (Some(level), false) = (level, queue.is_created) {
            queue.set_level(py, level)?;
        }
        Ok(queue)
    }

    /// Suspends the stream: later launches block. With wait, waits for what is on the device already.
    #[pyo3(signature = (*, wait=false))]
    fn suspend(&self, py: Python<'_>, wait: bool) -> PyResult<()> {
        let queue = self.open(py)?;
        let flags = if wait { SYNC_HW_QUEUE } else { 0 };
        call!(py, self.library, "suspending", self.functions.suspend, queue, flags)?;
        self.suspended.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Resumes the stream. With drop, discards the commands that were submitted and not launched.
    #[pyo3(signature = (*, drop=false))]
    fn resume(&self, py: Python<'_>, drop: bool) -> PyResult<()> {
        let queue = self.open(py)?;
        let flags = if drop { DROP_COMMANDS } else { 0 };
        call!(py, self.library, "resuming", self.functions.resume, queue, flags)?;
        self.suspended.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until all submitted commands have completed.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        let queue = self.open(py)?;
        // SAFETY: its type in xsched/xqueue.h.
        let function = unsafe { self.library.function::<Act>(py, c"XQueueWaitAll")? };
        call!(py, self.library, "waiting", function, queue)
    }

    /// "idle" or "ready".
    #[getter]
    fn state(&self, py: Python<'_>) -> PyResult<&'static str> {
        let queue = self.open(py)?;
        let mut state: c_int = 0;
        let at = (&raw mut state).expose_provenance();
        // SAFETY: its type in xsched/xqueue.h.
        let query = unsafe { self.library.function::<Query>(py, c"XQueueQuery")? };
        call!(
            py,
            self.library,
            "querying the state",
            query,
            queue,
            std::ptr::with_exposed_provenance_mut(at)
        )?;
        Ok(match state {
            1 => "idle",
            2 => "ready",
            _ => "unknown",
        })
    }

    /// Gives this queue its own priority, share, deadline or laxity, which makes it a task of its own.
    #[pyo3(signature = (*, priority=None, share=None, deadline=None, laxity=None))]
    fn hint(
        &self,
        py: Python<'_>,
        priority: Option<&Bound<'_, PyAny>>,
        share: Option<&Bound<'_, PyAny>>,
        deadline: Option<&Bound<'_, PyAny>>,
        laxity: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let queue = self.open(py)?;
        let hint_request = HintArguments { priority, share, deadline, laxity }.hint_request(|| Ok(0))?;
        let small = |number: i64| i32::try_from(number).unwrap_or(i32::MAX);
        if let Some(priority) = hint_request.priority {
            // SAFETY: its type in xsched/hint.h, as of the other three.
            let function = unsafe { self.library.function::<Level>(py, c"XHintPriority")? };
            call!(py, self.library, "setting the priority", function, queue, small(priority))?;
        }
        if let Some(percent) = hint_request.share {
            // SAFETY: as above.
            let function = unsafe { self.library.function::<Level>(py, c"XHintUtilization")? };
            call!(py, self.library, "setting the share", function, queue, small(percent))?;
        }
        if let Some(us) = hint_request.deadline_us {
            // SAFETY: as above.
            let function = unsafe { self.library.function::<ActWith>(py, c"XHintDeadline")? };
            call!(py, self.library, "setting the deadline", function, queue, us)?;
        }
        if let Some((us, before, after)) = hint_request.laxity {
            // SAFETY: as above.
            let function = unsafe { self.library.function::<Laxity>(py, c"XHintLaxity")? };
            call!(py, self.library, "setting the laxity", function, queue, us, small(before), small(after))?;
        }
        Ok(())
    }

    /// The preemption level: 1, 2 or 3.
    fn set_level(&self, py: Python<'_>, level: i64) -> PyResult<()> {
        let queue = self.open(py)?;
        let level =
            c_int::try_from(level).map_err(|_| PyValueError::new_err("the level must be 1, 2 or 3"))?;
        // SAFETY: its type in xsched/xqueue.h.
        let function = unsafe { self.library.function::<Level>(py, c"XQueueSetPreemptLevel")? };
        call!(py, self.library, "setting the level", function, queue, level)
    }

    /// How many commands may be in flight, and how many of them share a marker.
    fn set_limit(&self, py: Python<'_>, threshold: i64, batch_size: i64) -> PyResult<()> {
        let queue = self.open(py)?;
        // SAFETY: its type in xsched/xqueue.h.
        let function = unsafe { self.library.function::<Configure>(py, c"XQueueSetLaunchConfig")? };
        call!(py, self.library, "setting the limit", function, queue, threshold, batch_size)
    }

    /// Ends control of the stream. A stream that was scheduled before stays scheduled.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let queue = self.handle.swap(0, Ordering::AcqRel);
        if queue == 0 {
            return Ok(());
        }
        if self.suspended.swap(false, Ordering::Relaxed) {
            call!(py, self.library, "resuming", self.functions.resume, queue, 0)?;
        }
        if !self.is_created {
            return Ok(());
        }
        // SAFETY: the types of both in xsched/xqueue.h.
        let (destroy, forget) = unsafe {
            let library = self.library;
            (library.function::<Act>(py, c"XQueueDestroy")?, library.function::<Act>(py, c"HwQueueDestroy")?)
        };
        call!(py, self.library, "closing", destroy, queue)?;
        call!(py, self.library, "closing", forget, self.hardware)
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        match self.handle.load(Ordering::Acquire) {
            0 => "<xsched.Queue, closed>".to_owned(),
            queue => format!("<xsched.Queue {queue:#x}>"),
        }
    }
}

impl Queue {
    fn open(&self, py: Python<'_>) -> PyResult<Handle> {
        match self.handle.load(Ordering::Acquire) {
            0 => Err(exception(py, "Error", "this queue is closed")),
            queue => Ok(queue),
        }
    }
}

impl Drop for Queue {
    /// Resumes a suspended queue, because no object is left that could resume it.
    fn drop(&mut self) {
        let (queue, suspended) = (*self.handle.get_mut(), *self.suspended.get_mut());
        if queue != 0 && suspended {
            // SAFETY: its type in xsched/xqueue.h. The result is ignored, because a destructor cannot report it.
            unsafe { (self.functions.resume)(queue, 0) };
        }
    }
}

/// The vendor's handle of a stream, and its platform.
fn vendor_handle(stream: &Bound<'_, PyAny>, named: Option<&str>) -> PyResult<(&'static Platform, usize)> {
    let py = stream.py();
    let (platform, raw) = if let Ok(raw) = stream.extract::<usize>() {
        (named.unwrap_or("cuda"), raw)
    } else if let Ok(raw) = stream.getattr("cuda_stream") {
        // PyTorch uses the same name for AMD's streams.
        (named.unwrap_or(if torch_is_for_amd(py) { "hip" } else { "cuda" }), raw.extract()?)
    } else if let Ok(raw) = stream.getattr("int_ptr") {
        (named.unwrap_or("opencl"), raw.extract()?)
    } else if let Ok(result) = stream.call_method0("__cuda_stream__") {
        let (_version, raw) = result.extract::<(i64, usize)>()?;
        (named.unwrap_or("cuda"), raw)
    } else {
        return Err(PyTypeError::new_err(format!(
            "{} is not a stream: pass a torch.cuda.Stream, a pyopencl.CommandQueue or a handle as a number",
            stream.repr()?
        )));
    };
    let found = PLATFORMS.iter().find(|known| known.name == platform);
    let found = found.ok_or_else(|| {
        let known: Vec<_> = PLATFORMS.iter().map(|platform| platform.name).collect();
        PyValueError::new_err(format!("unknown platform `{platform}`: use one of {}", known.join(", ")))
    })?;
    Ok((found, raw))
}

fn torch_is_for_amd(py: Python<'_>) -> bool {
    let hip = || -> PyResult<bool> {
        let modules = py.import("sys")?.getattr("modules")?;
        Ok(!modules.get_item("torch")?.getattr("version")?.getattr("hip")?.is_none())
    };
    hip().unwrap_or(false)
}

/// The queue that this stream has already, for example under `xsched run`.
fn existing(py: Python<'_>, library: &Library, platform: &Platform, raw: usize) -> Option<(Handle, Handle)> {
    // SAFETY: the types of both in xsched/xqueue.h and the platform's hal.h.
    let both = unsafe { (library.find::<Wrap>(platform.get), library.find::<Find>(c"XQueueGet")) };
    let (Some(get), Some(find)) = both else { return None };
    let (mut hardware, mut queue): (Handle, Handle) = (0, 0);
    let (to, stream) = ((&raw mut hardware).expose_provenance(), raw);
    if call!(
        py,
        library,
        "finding the stream",
        get,
        handle_at(to),
        std::ptr::with_exposed_provenance_mut::<c_void>(stream)
    )
    .is_err()
    {
        return None;
    }
    let to = (&raw mut queue).expose_provenance();
    call!(py, library, "finding the queue", find, handle_at(to), hardware)
        .is_ok()
        .then_some((queue, hardware))
}

/// Creates a queue for this stream.
fn create(
    py: Python<'_>,
    library: &Library,
    platform: &Platform,
    raw: usize,
    level: Option<i64>,
) -> PyResult<(Handle, Handle)> {
    // SAFETY: the type of all of these functions in the platforms' hal.h.
    let wrap = platform.create.iter().find_map(|name| unsafe { library.find::<Wrap>(name) });
    let wrap = match (wrap, platform.create.first()) {
        (Some(wrap), _) => wrap,
        // SAFETY: as above; returns the error for the missing function.
        (None, Some(name)) => unsafe { library.function(py, name)? },
        (None, None) => return Err(exception(py, "NotSupported", "no such platform")),
    };
    // SAFETY: its type in xsched/xqueue.h.
    let create_queue = unsafe { library.function::<Create>(py, c"XQueueCreate")? };
    let (mut hardware, mut queue): (Handle, Handle) = (0, 0);
    let to = (&raw mut hardware).expose_provenance();
    call!(
        py,
        library,
        "creating a hardware queue",
        wrap,
        handle_at(to),
        std::ptr::with_exposed_provenance_mut::<c_void>(raw)
    )?;
    let to = (&raw mut queue).expose_provenance();
    let requested = level.map(|level| [level]);
    let mut last = Ok(());
    for level in requested.as_ref().map_or(&LEVELS[..], |requested| &requested[..]) {
        // SAFETY: as in `call!`.
        let code = py.detach(|| unsafe { create_queue(handle_at(to), hardware, *level, 0) });
        last = check(py, library, "creating a queue", code);
        if code != NOT_SUPPORTED {
            break;
        }
    }
    last.map(|()| (queue, hardware))
}

/// The place where a handle is written. An address can be used without the GIL, a pointer cannot.
fn handle_at(at: usize) -> *mut Handle {
    std::ptr::with_exposed_provenance_mut(at)
}

fn warn_not_preloaded(py: Python<'_>) -> PyResult<()> {
    let category = py.import("xsched._errors")?.getattr("UnscheduledWarning")?;
    PyErr::warn(
        py,
        &category,
        c"libxsched.so is not preloaded, so this program's launches are not scheduled: start it with `xsched run`",
        1,
    )
}

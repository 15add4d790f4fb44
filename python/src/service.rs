//! Requests to the scheduler service. The GIL is released while a reply is awaited.

use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use xsched_core::{DeviceId, Nanos};
use xsched_ipc::memory::MemoryLimit;
use xsched_ipc::protocol::{HintRequest, ParkingStatus, Reply, Request, Status, Target, TaskStatus};
use xsched_ipc::socket;
use xsched_ipc::tool::{ToolConnection, ToolError};
use xsched_policy::{POLICIES, PolicyInfo};

use crate::errors::{exception, out_of_range, tool_error};
use crate::hints::{HintArguments, timeslice};

/// A connection that is reused for the next request.
struct Connection {
    tool: ToolConnection,
    /// The process that connected. A child must not use its parent's connection after fork.
    process: u32,
    candidates: Vec<PathBuf>,
}

/// The connection while no thread uses it. A thread takes it out and puts it back; there is no lock, because a lock that
/// another thread holds during a fork would stay locked in the child.
static IDLE_CONNECTION: AtomicPtr<Connection> = AtomicPtr::new(ptr::null_mut());

fn take_idle() -> Option<Box<Connection>> {
    let idle = IDLE_CONNECTION.swap(ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: the pointer came from `Box::into_raw` in `put_back`, and the swap made this thread its only owner.
    let idle = (!idle.is_null()).then(|| unsafe { Box::from_raw(idle) })?;
    (idle.process == std::process::id() && idle.candidates == socket::candidates()).then_some(idle)
}

fn put_back(connection: Box<Connection>) {
    let before = IDLE_CONNECTION.swap(Box::into_raw(connection), Ordering::AcqRel);
    if !before.is_null() {
        // SAFETY: as in `take_idle`. Two threads sent requests at once; one connection is enough.
        drop(unsafe { Box::from_raw(before) });
    }
}

fn connect() -> Result<Box<Connection>, ToolError> {
    let candidates = socket::candidates();
    Ok(Box::new(Connection { tool: ToolConnection::connect()?, process: std::process::id(), candidates }))
}

/// Sends requests to the service. An idle connection may have died with its service: then this tries again on a new
/// one, which is safe because every request here may be repeated.
fn with_service<T>(send: impl Fn(&ToolConnection) -> Result<T, ToolError>) -> Result<T, ToolError> {
    let idle = take_idle();
    let was_idle = idle.is_some();
    let connection = idle.map_or_else(connect, Ok)?;
    match send(&connection.tool) {
        Err(ToolError::ConnectionFailed { .. }) if was_idle => {
            let connection = connect()?;
            let reply = send(&connection.tool);
            put_back_unless_broken(connection, &reply);
            reply
        }
        reply => {
            put_back_unless_broken(connection, &reply);
            reply
        }
    }
}

fn put_back_unless_broken<T>(connection: Box<Connection>, reply: &Result<T, ToolError>) {
    if matches!(reply, Ok(_) | Err(ToolError::Refused(_))) {
        put_back(connection);
    }
}

fn request(py: Python<'_>, request: &Request, context: Option<&str>) -> PyResult<Reply> {
    py.detach(|| with_service(|tool| tool.request(request))).map_err(|error| tool_error(py, &error, context))
}

fn status(py: Python<'_>) -> PyResult<Status> {
    py.detach(|| with_service(ToolConnection::status)).map_err(|error| tool_error(py, &error, None))
}

fn unexpected(py: Python<'_>) -> PyErr {
    py.detach(|| with_service(|tool| Err::<(), _>(tool.unexpected())))
        .map_or_else(|error| tool_error(py, &error, None), |()| exception(py, "Error", "no reply"))
}

/// The scheduled tasks: a dict for each, with the fields of the dataclass `Task`.
#[pyfunction]
pub(crate) fn tasks(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let mut tasks = status(py)?.tasks;
    tasks.sort_by_key(|task| (task.device, -task.priority, task.pid, task.task));
    tasks.iter().map(|task| as_dict(py, task)).collect()
}

fn as_dict<'py>(py: Python<'py>, task: &TaskStatus) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("task", task.task)?;
    dict.set_item("pid", task.pid)?;
    dict.set_item("uid", task.uid)?;
    dict.set_item("name", &task.name)?;
    dict.set_item("cmdline", &task.cmdline)?;
    dict.set_item("device", DeviceId(task.device).to_string())?;
    dict.set_item("own", task.own)?;
    dict.set_item("priority", task.priority)?;
    dict.set_item("share", task.share)?;
    dict.set_item("deadline_us", task.deadline_us)?;
    dict.set_item("laxity_us", task.laxity_us)?;
    dict.set_item("state", task.state.name())?;
    dict.set_item("kind", task.kind.map(|kind| kind.name().to_lowercase().replace('-', "_")))?;
    dict.set_item("queues", task.queues)?;
    dict.set_item("launches", task.launches)?;
    dict.set_item("used_ns", task.used_ns)?;
    dict.set_item("sampled_ns", task.sampled_ns)?;
    dict.set_item("held_ns", task.held_ns)?;
    dict.set_item("wasted_ns", task.wasted_ns)?;
    dict.set_item("not_deferred", &task.not_deferred)?;
    dict.set_item("preemptions", task.preemptions)?;
    dict.set_item("wait_p99_us", task.wait_p99_us)?;
    dict.set_item("job", &task.job)?;
    dict.set_item("grant", &task.grant)?;
    dict.set_item("labels", &task.labels)?;
    dict.set_item("memory_bytes", task.memory_bytes)?;
    dict.set_item("memory_peak_bytes", task.memory_peak_bytes)?;
    dict.set_item("memory_limit_bytes", task.memory_limit_bytes)?;
    dict.set_item("parking", task.parking.as_ref().map(|parking| parking_as_dict(py, parking)).transpose()?)?;
    Ok(dict)
}

fn parking_as_dict<'py>(py: Python<'py>, parking: &ParkingStatus) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("pid", parking.pid)?;
    dict.set_item("is_parked", parking.is_parked)?;
    dict.set_item("is_settled", parking.is_settled)?;
    dict.set_item("movable_bytes", parking.movable_bytes)?;
    dict.set_item("moved_bytes", parking.moved_bytes)?;
    dict.set_item("held_threads", parking.held_threads)?;
    dict.set_item("stays", &parking.stays)?;
    dict.set_item("failure", &parking.failure)?;
    Ok(dict)
}

/// A limit of device memory as the variable `XSCHED_MEMORY` has it: a size such as "20G" or a part of the device such as "50%".
#[pyfunction]
pub(crate) fn parse_memory(py: Python<'_>, text: &str) -> PyResult<String> {
    let limit: Result<MemoryLimit, String> = text.parse();
    limit.map(|limit| limit.to_string()).map_err(|why| out_of_range(py, &format!("memory {why}")))
}

/// All policies: name, plain name, rule.
#[pyfunction]
pub(crate) fn policies() -> Vec<(&'static str, &'static str, &'static str)> {
    POLICIES.iter().map(|info| (info.name, info.plain, info.summary)).collect()
}

/// Changes the given settings of the policy. Returns the active one: name, plain name, time slice in microseconds, k.
#[pyfunction]
#[pyo3(signature = (name=None, timeslice=None, k=None))]
#[allow(clippy::needless_pass_by_value, reason = "Python passes owned values")]
pub(crate) fn policy(
    py: Python<'_>,
    name: Option<String>,
    #[pyo3(from_py_with = some_timeslice)] timeslice: Option<i64>,
    k: Option<i64>,
) -> PyResult<(String, String, u64, usize)> {
    let known = name.as_deref().map(PolicyInfo::find).transpose();
    let known = known.map_err(|error| out_of_range(py, &error.to_string()))?;
    let k = match k.map(usize::try_from) {
        None => None,
        Some(Ok(k)) if k > 0 => Some(k),
        Some(_) => {
            return Err(out_of_range(
                py,
                &format!("k {} is out of range: allowed is 1 and more", k.unwrap_or(0)),
            ));
        }
    };
    let request =
        Request::Policy { name: known.map(|info| info.name.to_owned()), timeslice_us: timeslice, k };
    let Reply::Policy { name, timeslice_us, k } = self::request(py, &request, None)? else {
        return Err(unexpected(py));
    };
    let plain = PolicyInfo::find(&name).map_or_else(|_| name.clone(), |info| info.plain.to_owned());
    Ok((name, plain, timeslice_us, k))
}

fn some_timeslice(value: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    if value.is_none() { Ok(None) } else { timeslice(value).map(Some) }
}

fn target(value: &Bound<'_, PyAny>) -> PyResult<Target> {
    match value.extract::<u32>() {
        Ok(pid) => Ok(Target::Pid(pid)),
        Err(_) => value.extract().map(Target::Name),
    }
}

fn not_changed(target: &Target) -> String {
    match target {
        Target::Pid(pid) => format!("pid {pid} was not changed"),
        Target::Name(name) => format!("`{name}` was not changed"),
    }
}

/// Changes the hints of a process, or of every program with a name.
#[pyfunction]
#[pyo3(signature = (target, priority=None, share=None, deadline=None, laxity=None))]
pub(crate) fn set_target(
    py: Python<'_>,
    #[pyo3(from_py_with = target)] target: Target,
    priority: Option<&Bound<'_, PyAny>>,
    share: Option<&Bound<'_, PyAny>>,
    deadline: Option<&Bound<'_, PyAny>>,
    laxity: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let current = || {
        let is_target = |task: &&TaskStatus| match &target {
            Target::Pid(pid) => task.pid == *pid,
            Target::Name(name) => task.name == *name,
        };
        Ok(status(py)?.tasks.iter().find(is_target).map_or(0, |task| task.priority.into()))
    };
    let hint_request = HintArguments { priority, share, deadline, laxity }.hint_request(current)?;
    let context = not_changed(&target);
    request(py, &Request::Set { target, hint_request }, Some(&context)).map(drop)
}

/// Suspends or resumes all launches of a process, or of every program with a name.
#[pyfunction]
pub(crate) fn suspend_target(
    py: Python<'_>,
    #[pyo3(from_py_with = target)] target: Target,
    suspended: bool,
) -> PyResult<()> {
    let context = not_changed(&target);
    let message = if suspended { Request::Suspend(target) } else { Request::Resume(target) };
    request(py, &message, Some(&context)).map(drop)
}

/// The hints of a process: priority, share, deadline and laxity, as in [`HintRequest`].
type Hints = (Option<i64>, Option<i64>, Option<i64>, Option<(i64, i64, i64)>);

/// Checks hints without sending them. A laxity without priorities starts with the current priority of the process.
#[pyfunction]
pub(crate) fn parse_hints(
    py: Python<'_>,
    priority: Option<&Bound<'_, PyAny>>,
    share: Option<&Bound<'_, PyAny>>,
    deadline: Option<&Bound<'_, PyAny>>,
    laxity: Option<&Bound<'_, PyAny>>,
) -> PyResult<Hints> {
    // Without a service the process has no priority yet.
    let current =
        || Ok(set(py, HintRequest::default()).ok().flatten().and_then(|before| before.0).unwrap_or(0));
    let hint_request = HintArguments { priority, share, deadline, laxity }.hint_request(current)?;
    Ok(as_tuple(&hint_request))
}

/// Changes the hints of this process. Returns the previous ones; None if it is not scheduled (yet).
#[pyfunction]
pub(crate) fn set_own_hints(py: Python<'_>, hints: Hints) -> PyResult<Option<Hints>> {
    let (priority, share, deadline_us, laxity) = hints;
    set(py, HintRequest { priority, share, deadline_us, laxity })
}

fn as_tuple(hint_request: &HintRequest) -> Hints {
    (hint_request.priority, hint_request.share, hint_request.deadline_us, hint_request.laxity)
}

/// For how long this process sends no hints to a service after a reply timed out.
const RETRY_DELAY: Nanos = Nanos::from_secs(10);
/// The end of that delay, in nanoseconds of the monotonic clock.
static RETRY_AT: AtomicU64 = AtomicU64::new(0);

/// Sends this process's hints to the service; when it replies, the resulting orders are in effect. After a timeout the
/// next calls fail at once, because a program may set hints for every request that it serves.
fn set(py: Python<'_>, hint_request: HintRequest) -> PyResult<Option<Hints>> {
    if Nanos::now().0 < RETRY_AT.load(Ordering::Relaxed) {
        let message = "the scheduler did not reply to a request less than 10 s ago";
        return Err(exception(py, "SchedulerFailed", message));
    }
    let request = Request::SetOwn(hint_request);
    let reply = py.detach(|| with_service(|tool| tool.request(&request)));
    if let Err(ToolError::NoReply { .. }) = &reply {
        RETRY_AT.store((Nanos::now() + RETRY_DELAY).0, Ordering::Relaxed);
    }
    match reply.map_err(|error| tool_error(py, &error, Some("this program was not changed")))? {
        Reply::PreviousHints(before) => Ok(before.as_ref().map(as_tuple)),
        _ => Err(unexpected(py)),
    }
}

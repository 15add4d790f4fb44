//! What is asked of the scheduler service. Python's lock is released while it thinks.

use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use xsched_core::{DeviceId, Nanos};
use xsched_ipc::protocol::{HintRequest, Reply, Request, Status, Target, TaskState, TaskStatus};
use xsched_ipc::socket;
use xsched_ipc::tool::{Tool, ToolError};
use xsched_policy::{POLICIES, PolicyInfo};

use crate::errors::{exception, out_of_range, tool_error};
use crate::hint_request::{Given, timeslice};

/// A connection that is kept from one question to the next.
struct Line {
    tool: Tool,
    /// A child of a fork has its parent's; it must not speak on it.
    process: u32,
    looked: Vec<PathBuf>,
}

/// The connection while nobody speaks on it. Taken out and put back, never locked: a lock that another thread holds
/// during a fork would stay locked in the child.
static KEPT: AtomicPtr<Line> = AtomicPtr::new(ptr::null_mut());

fn take() -> Option<Box<Line>> {
    let line = KEPT.swap(ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: whatever is there came from `Box::into_raw` in `keep`, and the swap made it ours alone.
    let line = (!line.is_null()).then(|| unsafe { Box::from_raw(line) })?;
    (line.process == std::process::id() && line.looked == socket::candidates()).then_some(line)
}

fn keep(line: Box<Line>) {
    let before = KEPT.swap(Box::into_raw(line), Ordering::AcqRel);
    if !before.is_null() {
        // SAFETY: as in `take`. Two spoke at once; one connection is enough.
        drop(unsafe { Box::from_raw(before) });
    }
}

fn connect() -> Result<Box<Line>, ToolError> {
    let looked = socket::candidates();
    Ok(Box::new(Line { tool: Tool::connect()?, process: std::process::id(), looked }))
}

/// Speaks with the service. A connection that was kept may have died with its service: then once more on a new one,
/// which is safe because everything asked here may be asked twice.
fn with_service<T>(speak: impl Fn(&Tool) -> Result<T, ToolError>) -> Result<T, ToolError> {
    let kept = take();
    let was_kept = kept.is_some();
    let line = kept.map_or_else(connect, Ok)?;
    match speak(&line.tool) {
        Err(ToolError::ConnectionFailed { .. }) if was_kept => {
            let line = connect()?;
            let answer = speak(&line.tool);
            keep_unless_broken(line, &answer);
            answer
        }
        answer => {
            keep_unless_broken(line, &answer);
            answer
        }
    }
}

fn keep_unless_broken<T>(line: Box<Line>, answer: &Result<T, ToolError>) {
    if matches!(answer, Ok(_) | Err(ToolError::Refused(_))) {
        keep(line);
    }
}

fn ask(py: Python<'_>, request: &Request, context: Option<&str>) -> PyResult<Reply> {
    py.detach(|| with_service(|tool| tool.request(request))).map_err(|error| tool_error(py, &error, context))
}

fn status(py: Python<'_>) -> PyResult<Status> {
    py.detach(|| with_service(Tool::status)).map_err(|error| tool_error(py, &error, None))
}

fn unexpected(py: Python<'_>) -> PyErr {
    py.detach(|| with_service(|tool| Err::<(), _>(tool.unexpected())))
        .map_or_else(|error| tool_error(py, &error, None), |()| exception(py, "Error", "no answer"))
}

/// What is being scheduled: a dict for each task, with the names of the dataclass `Task`.
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
    dict.set_item("state", state(task.state))?;
    dict.set_item("queues", task.queues)?;
    dict.set_item("launches", task.launches)?;
    dict.set_item("used_ns", task.used_ns)?;
    dict.set_item("held_ns", task.held_ns)?;
    dict.set_item("preemptions", task.preemptions)?;
    dict.set_item("wait_p99_us", task.wait_p99_us)?;
    Ok(dict)
}

fn state(state: TaskState) -> &'static str {
    match state {
        TaskState::Idle => "idle",
        TaskState::Running => "running",
        TaskState::Held => "held",
        TaskState::Suspended => "suspended",
    }
}

/// Every policy there is: name, plain name, rule.
#[pyfunction]
pub(crate) fn policies() -> Vec<(&'static str, &'static str, &'static str)> {
    POLICIES.iter().map(|info| (info.name, info.plain, info.summary)).collect()
}

/// Changes what is given of the policy, and tells the one at work then: name, plain name, microseconds of a turn, k.
#[pyfunction]
#[pyo3(signature = (name=None, timeslice=None, k=None))]
#[allow(clippy::needless_pass_by_value, reason = "what Python hands over is owned")]
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
    let Reply::Policy { name, timeslice_us, k } = ask(py, &request, None)? else {
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

/// Changes the hint_request of a process, or of every program of a name.
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
    let usual = || {
        let means = |task: &&TaskStatus| match &target {
            Target::Pid(pid) => task.pid == *pid,
            Target::Name(name) => task.name == *name,
        };
        Ok(status(py)?.tasks.iter().find(means).map_or(0, |task| task.priority.into()))
    };
    let hint_request = Given { priority, share, deadline, laxity }.hint_request(usual)?;
    let whom = not_changed(&target);
    ask(py, &Request::Set { target, hint_request }, Some(&whom)).map(drop)
}

/// Holds all launches of a process, or of every program of a name; or lets them go.
#[pyfunction]
pub(crate) fn suspend_target(
    py: Python<'_>,
    #[pyo3(from_py_with = target)] target: Target,
    suspended: bool,
) -> PyResult<()> {
    let whom = not_changed(&target);
    let request = if suspended { Request::Suspend(target) } else { Request::Resume(target) };
    ask(py, &request, Some(&whom)).map(drop)
}

/// What a process wished for: priority, share, deadline and laxity, as [`HintRequest`] has them.
type Had = (Option<i64>, Option<i64>, Option<i64>, Option<(i64, i64, i64)>);

/// Understands hint_request without telling anybody. A laxity without priorities begins with the one the process has now.
#[pyfunction]
pub(crate) fn parse_wishes(
    py: Python<'_>,
    priority: Option<&Bound<'_, PyAny>>,
    share: Option<&Bound<'_, PyAny>>,
    deadline: Option<&Bound<'_, PyAny>>,
    laxity: Option<&Bound<'_, PyAny>>,
) -> PyResult<Had> {
    // Nobody there: it has no priority yet.
    let usual = || Ok(own(py, HintRequest::default()).ok().flatten().and_then(|had| had.0).unwrap_or(0));
    let hint_request = Given { priority, share, deadline, laxity }.hint_request(usual)?;
    Ok(as_tuple(&hint_request))
}

/// Changes this process's own hint_request. Answers what they were; None if it is not scheduled (yet).
#[pyfunction]
pub(crate) fn set_own(py: Python<'_>, hint_request: Had) -> PyResult<Option<Had>> {
    let (priority, share, deadline_us, laxity) = hint_request;
    own(py, HintRequest { priority, share, deadline_us, laxity })
}

fn as_tuple(hint_request: &HintRequest) -> Had {
    (hint_request.priority, hint_request.share, hint_request.deadline_us, hint_request.laxity)
}

/// How long a service that has let a program wait in vain is left alone by that program's own hint_request.
const LEFT_ALONE: Nanos = Nanos::from_secs(10);
/// Until when, in nanoseconds of the monotonic clock.
static LEFT_ALONE_UNTIL: AtomicU64 = AtomicU64::new(0);

/// Tells the service what this process would like; the orders that follow have been given when it answers. One that does
/// not answer is waited for once: a program may have hint_request for every request it serves.
fn own(py: Python<'_>, hint_request: HintRequest) -> PyResult<Option<Had>> {
    if Nanos::now().0 < LEFT_ALONE_UNTIL.load(Ordering::Relaxed) {
        return Err(exception(py, "SchedulerFailed", "the scheduler did not answer a moment ago"));
    }
    let request = Request::SetOwn(hint_request);
    let answer = py.detach(|| with_service(|tool| tool.request(&request)));
    if let Err(ToolError::NoReply { .. }) = &answer {
        LEFT_ALONE_UNTIL.store((Nanos::now() + LEFT_ALONE).0, Ordering::Relaxed);
    }
    match answer.map_err(|error| tool_error(py, &error, Some("this program was not changed")))? {
        Reply::PreviousHints(had) => Ok(had.as_ref().map(as_tuple)),
        _ => Err(unexpected(py)),
    }
}

//! The HTTP interface of the original C++ XSched's `xserver`: its paths, numbers and JSON keys. `docs/compatibility.md`
//! describes it. Its hint `utilization` is what XSched calls a share.

use serde::Deserialize;
use serde_json::{Value, json};
use xsched_ipc::protocol::{
    HintRequest, QueueStatus, Reply, Request as ServiceRequest, Settings, Status, Target,
};
use xsched_policy::{POLICIES, PolicyInfo};

use super::message::{Request, Response};
use crate::tool::{ToolConnection, ToolError};

/// Connects to the service, with the rights of the caller.
pub(super) type Connect<'a> = &'a dyn Fn() -> Result<ToolConnection, ToolError>;

/// Responds to one request with the help of the service.
pub(super) fn respond(service: Connect<'_>, request: &Request) -> Response {
    route(service, request).unwrap_or_else(|response| response)
}

/// The response to a valid request, or the response that reports an error.
type RouteResult = Result<Response, Response>;

fn route(service: Connect<'_>, request: &Request) -> RouteResult {
    let path: Vec<&str> = request.path.trim_start_matches('/').split('/').collect();
    match (request.method.as_str(), &path[..]) {
        ("GET", ["xqueues"]) => Ok(queues(&connect(service)?.status().map_err(error_response)?)),
        ("GET", ["xqueue", handle]) => {
            let handle = handle_of(handle)?;
            let status = connect(service)?.status().map_err(error_response)?;
            let queue = find(&status, handle)?;
            Ok(Response::json(
                &json!({ "xqueue": queue_json(queue), "process": process_json(&status, queue.pid) }),
            ))
        }
        ("GET", ["policy"]) => policy(&connect(service)?),
        ("POST", ["policy"]) => {
            let policy = requested_policy(request)?;
            let service_request =
                ServiceRequest::Policy { name: Some(policy.name.to_owned()), timeslice_us: None, k: None };
            send(&connect(service)?, &service_request)
        }
        ("POST", ["config", handle]) => {
            let (queue, settings) = (handle_of(handle)?, settings(request)?);
            let tool = connect(service)?;
            let current = find(&tool.status().map_err(error_response)?, queue)?.clone();
            if settings == Settings::default() {
                return Ok(Response::json(&json!({ "warning": "no change" })));
            }
            check_window(&current, &settings)?;
            send(&tool, &ServiceRequest::Configure { queue, settings })
        }
        ("POST", ["hint"]) => hint(service, &request.body),
        (_, ["xqueues"] | ["xqueue", _]) => Err(Response::error(405, "use GET")),
        (_, ["policy"]) => Err(Response::error(405, "use GET or POST")),
        (_, ["config", _] | ["hint"]) => Err(Response::error(405, "use POST")),
        _ => Err(Response::error(404, format_args!("{} does not exist", request.path))),
    }
}

fn connect(service: Connect<'_>) -> Result<ToolConnection, Response> {
    service().map_err(error_response)
}

#[allow(clippy::needless_pass_by_value, reason = "made for `map_err`")]
fn error_response(error: ToolError) -> Response {
    Response::error(if matches!(error, ToolError::Refused(_)) { 400 } else { 503 }, error)
}

fn send(tool: &ToolConnection, service_request: &ServiceRequest) -> RouteResult {
    match tool.request(service_request).map_err(error_response)? {
        // The reply to a change of the policy may contain the policy.
        Reply::Done | Reply::Policy { .. } => Ok(Response::json(&json!({ "info": "success" }))),
        _ => Err(error_response(tool.unexpected())),
    }
}

fn bad_request(reason: impl std::fmt::Display) -> Response {
    Response::error(400, reason)
}

fn handle_of(hex: &str) -> Result<u64, Response> {
    let digits = hex.strip_prefix("0x").unwrap_or(hex);
    // `from_str_radix` alone would accept a sign.
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let handle = if is_hex { u64::from_str_radix(digits, 16).ok() } else { None };
    handle.ok_or_else(|| bad_request(format_args!("`{hex}` is not the hexadecimal handle of a queue")))
}

fn find(status: &Status, handle: u64) -> Result<&QueueStatus, Response> {
    let found = status.queues.iter().find(|queue| queue.handle == handle);
    found.ok_or_else(|| Response::error(404, format_args!("no queue {handle:#x} exists")))
}

fn queues(status: &Status) -> Response {
    let mut pids: Vec<u32> = status.queues.iter().map(|queue| queue.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    let queues: Vec<Value> = status.queues.iter().map(queue_json).collect();
    let processes: Vec<Value> = pids.into_iter().map(|pid| process_json(status, pid)).collect();
    Response::json(&json!({ "xqueues": queues, "processes": processes }))
}

fn queue_json(queue: &QueueStatus) -> Value {
    json!({
        "handle": queue.handle,
        "device": queue.device,
        "level": queue.level,
        "pid": queue.pid,
        "threshold": queue.threshold,
        "batch_size": queue.batch_size,
        "ready": queue.ready,
        "suspended": queue.suspended,
    })
}

fn process_json(status: &Status, pid: u32) -> Value {
    let task = status.tasks.iter().find(|task| task.pid == pid);
    let cmdline = task.map_or("", |task| if task.cmdline.is_empty() { &task.name } else { &task.cmdline });
    json!({ "pid": pid, "cmdline": cmdline })
}

fn policy(tool: &ToolConnection) -> RouteResult {
    let service_request = ServiceRequest::Policy { name: None, timeslice_us: None, k: None };
    let Reply::Policy { name, .. } = tool.request(&service_request).map_err(error_response)? else {
        return Err(error_response(tool.unexpected()));
    };
    // 0 is the original C++ XSched's number for an unknown policy.
    let number = PolicyInfo::find(&name).map_or(0, |policy| policy.number);
    Ok(Response::json(&json!({ "policy": number })))
}

fn requested_policy(request: &Request) -> Result<&'static PolicyInfo, Response> {
    let given = request
        .parameter("policy")
        .ok_or_else(|| bad_request("the policy number is missing: use ?policy=1"))?;
    let number = given.parse::<u32>().ok();
    POLICIES.iter().find(|policy| Some(policy.number) == number).ok_or_else(|| {
        let known: Vec<_> =
            POLICIES.iter().map(|policy| format!("{} {}", policy.number, policy.name)).collect();
        bad_request(format_args!("unknown policy `{given}`: use one of {}", known.join(", ")))
    })
}

fn settings(request: &Request) -> Result<Settings, Response> {
    // `xcli` of the original C++ XSched sends every setting, 0 or -1 for those that do not change.
    let number = |name: &str, max: i64| {
        let Some(given) = request.parameter(name) else { return Ok(None) };
        match given.parse() {
            Ok(0) if name == "level" => Ok(None),
            Ok(-1) if name != "level" => Ok(None),
            Ok(number) if (1..=max).contains(&number) => Ok(Some(number)),
            _ => Err(bad_request(format_args!("{name} `{given}` is not a number from 1 to {max}"))),
        }
    };
    Ok(Settings {
        level: number("level", 3)?,
        threshold: number("threshold", u32::MAX.into())?,
        batch_size: number("batch_size", u32::MAX.into())?,
    })
}

/// The original C++ XSched rejects a batch that is not smaller than the threshold. A threshold alone is accepted: the library
/// reduces the batch.
fn check_window(current: &QueueStatus, settings: &Settings) -> Result<(), Response> {
    let Some(batch) = settings.batch_size else { return Ok(()) };
    // 0 while the window is measured in time.
    let current = Some(i64::from(current.threshold)).filter(|threshold| *threshold != 0);
    match settings.threshold.or(current) {
        Some(threshold) if batch >= threshold => Err(bad_request(format_args!(
            "the batch size must be less than the threshold: {batch} is not less than {threshold}"
        ))),
        _ => Ok(()),
    }
}

/// The body of a hint. The type determines which fields are required.
#[derive(Deserialize)]
struct Hint {
    #[serde(rename = "hint_type")]
    kind: i64,
    handle: Option<u64>,
    pid: Option<u32>,
    priority: Option<i64>,
    utilization: Option<i64>,
    timeslice: Option<i64>,
    deadline: Option<i64>,
    #[serde(alias = "kdeadline")]
    k: Option<usize>,
    laxity: Option<i64>,
    lax_prio: Option<i64>,
    crit_prio: Option<i64>,
}

fn required<T>(value: Option<T>, name: &str) -> Result<T, Response> {
    value.ok_or_else(|| bad_request(format_args!("the hint has no `{name}`")))
}

fn hint(service: Connect<'_>, body: &[u8]) -> RouteResult {
    let hint: Hint =
        serde_json::from_slice(body).map_err(|error| bad_request(format_args!("not a hint: {error}")))?;
    let hint_request = HintRequest::default();
    let hint_request = match hint.kind {
        1 => HintRequest { priority: Some(required(hint.priority, "priority")?), ..hint_request },
        2 => HintRequest { share: Some(required(hint.utilization, "utilization")?), ..hint_request },
        3 => {
            let timeslice_us = Some(required(hint.timeslice, "timeslice")?);
            return send(&connect(service)?, &ServiceRequest::Policy { name: None, timeslice_us, k: None });
        }
        4 => HintRequest { deadline_us: Some(required(hint.deadline, "deadline")?), ..hint_request },
        5 => {
            let k = Some(required(hint.k, "k")?);
            return send(&connect(service)?, &ServiceRequest::Policy { name: None, timeslice_us: None, k });
        }
        6 => {
            let span = required(hint.laxity, "laxity")?;
            let laxity = (span, hint.lax_prio.unwrap_or(0), hint.crit_prio.unwrap_or(0));
            HintRequest { laxity: Some(laxity), ..hint_request }
        }
        7 => {
            // Process ID 0 means that no process has the focus.
            let pid = Some(required(hint.pid, "pid")?).filter(|pid| *pid != 0);
            return send(&connect(service)?, &ServiceRequest::Focus(pid));
        }
        other => {
            return Err(bad_request(format_args!(
                "unknown hint_type {other}: use 1 (priority), 2 (utilization), 3 (timeslice), 4 (deadline), \
                 5 (k of the deadlines), 6 (laxity) or 7 (window active)"
            )));
        }
    };
    let tool = connect(service)?;
    // `xcli` of the original C++ XSched sends both, 0 for the one that is not meant.
    let service_request = match (hint.handle.filter(|handle| *handle != 0), hint.pid.filter(|pid| *pid != 0))
    {
        (Some(handle), _) => {
            let queue = find(&tool.status().map_err(error_response)?, handle)?.handle;
            ServiceRequest::SetQueue { queue, hint_request }
        }
        (None, Some(pid)) => ServiceRequest::Set { target: Target::Pid(pid), hint_request },
        (None, None) => return Err(bad_request("the hint has neither `handle` nor `pid`")),
    };
    send(&tool, &service_request)
}
